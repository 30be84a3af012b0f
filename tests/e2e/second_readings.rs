//! Requests that the upstream could read in another way than tollgate: bodies that are JSON to tollgate and something else to
//! the upstream, and GraphQL documents in the URL.

use serde_json::json;

use crate::support::gateway::limited;
use crate::support::{Client, Gateway, Origin, Response};

const JSON: &str = "application/json";

/// Posts a body with these values of `content-type`.
fn post(gateway: &Gateway, target: &str, types: &[&str], body: &str) -> Response {
    let fields: Vec<_> = types.iter().map(|value| ("content-type", *value)).collect();
    gateway.client().post(target, &fields, body.as_bytes())
}

#[test]
fn a_form_that_is_also_json_has_no_bucket_of_its_own() {
    let origin = Origin::start();
    let logins =
        "{ algorithm: token_bucket, rate: 1/30d, burst: 2, key: { request_field: username }, missing_key: skip }";
    let gateway = Gateway::start(&limited(&origin, logins));
    let guess = |number: usize| {
        let body = json!({ "username": format!("random-{number}"), "x": "&username=victim&password=guess&y=" });
        post(&gateway, "/login", &["application/x-www-form-urlencoded"], &body.to_string()).status
    };
    assert_eq!([1, 2, 3].map(guess), [200, 200, 429], "they share the bucket of bodies that cannot be read");
    let victim = post(&gateway, "/login", &[JSON], r#"{"username": "victim"}"#);
    assert_eq!((victim.status, victim.number("x-ratelimit-remaining")), (200, Some(1)));
}

#[test]
fn only_a_body_that_its_type_calls_json_in_utf_8_tells_its_cost() {
    let origin = Origin::start();
    let limit = "{ algorithm: token_bucket, rate: 1/30d, burst: 10000, key: all, cost: { request_field: max_tokens, max: 100 } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let mut left = 10_000;
    for (types, cost) in [
        (&[][..], 1),
        (&[JSON], 1),
        (&["Application/JSON ; Charset=\"UTF-8\""], 1),
        (&["application/json;charset=utf8; profile=x"], 1),
        (&["application/vnd.api+json"], 1),
        (&["application/json; charset=utf-7"], 100),
        (&["application/json; charset=utf-8; charset=utf-7"], 100),
        (&["application/json; charset*=utf-7"], 100),
        (&["application/json; x=\"; charset=utf-7; \""], 100),
        (&["application/json; charset"], 100),
        (&["application/x-www-form-urlencoded"], 100),
        (&["application/x-www-form-urlencoded+json"], 100),
        (&["application/x y+json"], 100),
        (&["multipart/form-data; boundary=x"], 100),
        (&["text/plain"], 100),
        (&["text/json"], 100),
        (&["application/jsonp"], 100),
        (&["+json"], 100),
        (&[""], 100),
        (&["application/json; x=y, text/plain"], 100),
        (&[JSON, "application/x-www-form-urlencoded"], 100),
        (&[JSON, JSON], 100),
    ] {
        left -= cost;
        let answer = post(&gateway, "/", types, r#"{"max_tokens": 1}"#);
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, Some(left)), "{types:?}");
    }
    let question = json!({ "method": "POST", "url": "http://test/", "headers": { "content-type": "text/plain" },
                           "body": { "max_tokens": 1 } });
    let explained =
        Client::connect(gateway.admin).post("/explain", &[("host", "127.0.0.1")], question.to_string().as_bytes());
    assert_eq!(explained.json()["limits"][0]["cost"], 100);
}

#[test]
fn a_graphql_document_in_the_url_costs_the_most() {
    let origin = Origin::start();
    let limit = "{ algorithm: token_bucket, rate: 1/30d, burst: 10000, key: all, cost: { graphql: { max: 100 } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let mut left = 10_000;
    for (target, cost) in [
        ("/graphql", 1),
        ("/graphql?", 1),
        ("/graphql?subquery={a}&querying=1&x=query", 1),
        ("/graphql?query={a{b{c}}}", 100),
        ("/graphql?query", 100),
        ("/graphql?x=1&%71u%65ry={a}", 100),
        ("/graphql?QUERY={a}", 100),
        ("/graphql?+query={a}", 100),
        ("/graphql?x=1;query={a}", 100),
    ] {
        left -= cost;
        let answer = post(&gateway, target, &[JSON], r#"{"query": "{a}"}"#);
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, Some(left)), "{target}");
    }
}
