//! The customer that a request belongs to, and the limits that follow from it.

use serde_json::json;

use crate::admin_api::{HOST, post};
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::{Gateway, Origin, wait_until};

const CUSTOMERS: &str = "credential,customer,plan\n\
    free-key,acme,free\n\
    other-free-key,umbrella,free\n\
    second-key-of-acme,acme,free\n\
    pro-key,globex,pro\n\
    big-key,initech,enterprise\n";

fn with_plans(origin: &Origin, customers: &str) -> Gateway {
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}, {{ bearer: true }}]
  directory: {{ file: customers.csv }}
{customers}
plans: [anonymous, free, pro, enterprise]
limits:
  per-customer:
    key: customer
    algorithm: gcra
    rate: 1/h
    burst: 1
    plans:
      anonymous: {{ burst: 2 }}
      free: {{ burst: 4 }}
      pro: {{ burst: 8 }}
      enterprise: unlimited
routes: [{{ name: all, upstream: origin, limits: [per-customer] }}]
",
        origin.upstream()
    );
    Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[])
}

fn admitted(gateway: &Gateway, fields: &[(&str, &str)]) -> usize {
    let mut client = gateway.client();
    (0..12).filter(|_| client.round_trip("GET", "/", fields).status == 200).count()
}

#[test]
fn each_customer_gets_what_its_plan_says() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "  anonymous: { plan: anonymous }");
    assert_eq!(admitted(&gateway, &[]), 2);
    assert_eq!(admitted(&gateway, &[("x-api-key", "free-key")]), 4);
    assert_eq!(admitted(&gateway, &[("x-api-key", "other-free-key")]), 4);
    assert_eq!(admitted(&gateway, &[("x-api-key", "second-key-of-acme")]), 0, "one customer, one bucket");
    assert_eq!(admitted(&gateway, &[("authorization", "Bearer pro-key")]), 8);
    assert_eq!(admitted(&gateway, &[("authorization", "bEARER big-key")]), 12);
    let labels = |plan| [("route", "all"), ("limit", "per-customer"), ("plan", plan), ("outcome", "admitted")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("free"), 8.0);
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("pro"), 8.0);
    assert_eq!(gateway.metrics().value("tollgate_limit_requests_total", &labels("enterprise")), None);
}

#[test]
fn a_request_in_flight_is_settled_under_the_plan_that_it_was_charged_under() {
    let (answer, origin) = Origin::on_command();
    let limit = "key: customer, algorithm: gcra, rate: 1/30d, cost: { response_field: cost, max: 50 }, \
                 charge: { when: response, reserve: 5 }, plans: { free: { burst: 10 }, pro: { burst: 100 } }";
    let (free, pro) = ("credential,customer,plan\nkey,acme,free\n", "credential,customer,plan\nkey,acme,pro\n");
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free, pro]
limits: {{ guard: {{ {limit} }} }}
{ALL_GUARDED}",
        origin.upstream()
    );
    let gateway = Gateway::start_with(&config, &[("customers.csv", free)], &[]);
    let remaining = || {
        let question = json!({ "limit": "guard", "key": { "customer": "acme" } });
        post(&gateway, "/v1/keys/peek", &[HOST], &question).json()["standing"]["remaining"].clone()
    };
    let mut client = gateway.client();
    // of the 10 tokens of the plan `free`, 5 are left, and then 2: these are 20 of the plan `pro`
    for (to, left, body, settled) in [(pro, 50, &b"{\"cost\": 8}"[..], 20), (free, 1, b"{\"cost\": 1}", 1)] {
        let before = origin.count();
        client.send_request("GET", "/", &[("x-api-key", "key")]);
        origin.wait_for_count(before + 1);
        gateway.folder.write("customers.csv", to);
        wait_until("the other plan", || remaining() == left);
        [body, b""].into_iter().for_each(|part| answer.send(part).unwrap());
        assert_eq!(client.receive().status, 200);
        let (plan, outcome, tokens) = if to == pro { ("free", "debited", 3.0) } else { ("pro", "refunded", 4.0) };
        let labels = [("limit", "guard"), ("plan", plan), ("outcome", outcome)];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, tokens);
        assert_eq!(remaining(), settled, "as {plan}");
    }
}

#[test]
fn a_file_of_customers_that_loses_all_of_them_is_warned_of() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "");
    gateway.folder.write("customers.csv", "credential,customer,plan\n");
    assert_eq!(gateway.reload().status, 200);
    wait_until("the warning", || gateway.process.stderr().contains("names a file without customers"));
}

#[test]
fn a_refused_customer_is_named_to_operators() {
    let origin = Origin::start();
    let config = format!(
        "access_log: full\n{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free]\n",
        limited(&origin, "{ key: customer, algorithm: gcra, rate: 1/h, burst: 2 }")
    );
    let customers = "credential,customer,plan,valid_until,suspended\nkey-1,acme,free,,true\n\
        key-2,globex,free,2020-12-31,\nkey-3,initech,free,2020-12-31,\nkey-4,initech,free,2099-12-31,\n";
    let gateway = Gateway::start_with(&config, &[("customers.csv", customers)], &[]);
    let peeked_text = |customer: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["keys", "peek", "--limit", "guard", customer, "--admin", &gateway.admin.to_string()])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (key, customer, status, cause, refused) in [
        ("key-1", "acme", 403, "suspended", json!("suspended")),
        ("key-2", "globex", 401, "credential_expired", json!("credential_expired")),
        ("key-3", "initech", 401, "credential_expired", json!(null)),
    ] {
        assert_eq!(gateway.get(&format!("/{key}"), &[("x-api-key", key)]).status, status);
        let line = gateway.process.wait_for_access(&format!("/{key}"));
        assert_eq!((&line["customer"], &line["answered"]), (&json!(customer), &json!(cause)), "{line}");
        let question = json!({ "url": "http://test/", "headers": { "x-api-key": key } });
        let explained = post(&gateway, "/v1/explain", &[HOST], &question).json();
        assert_eq!(
            (&explained["caller"]["customer"], &explained["answer"]["cause"]),
            (&json!(customer), &json!(cause))
        );
        let question = json!({ "limit": "guard", "key": { "customer": customer } });
        assert_eq!(post(&gateway, "/v1/keys/peek", &[HOST], &question).json()["refused"], refused);
        let text = peeked_text(&format!("customer={customer}"));
        assert_eq!(text.contains("  refused: "), !refused.is_null(), "{text}");
    }
}

#[test]
fn an_unlimited_plan_is_told_of_no_limit() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "  anonymous: { plan: anonymous }");
    let response = gateway.get("/", &[("x-api-key", "big-key")]);
    assert_eq!((response.status, response.field("ratelimit")), (200, None));
}

#[test]
fn anonymous_callers_are_told_apart_by_their_address() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "  anonymous: { plan: anonymous, key: client_address }");
    for last in [1, 2] {
        let statuses = [(); 3].map(|()| gateway.client_from(last).get("/").status);
        assert_eq!(statuses, [200, 200, 429], "127.0.0.{last}");
    }
}

#[test]
fn a_credential_that_nobody_has_is_refused() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "  anonymous: { plan: anonymous }\n  unknown: deny");
    for field in [("x-api-key", "nobodys"), ("authorization", "Bearer nobodys"), ("x-api-key", "")] {
        let response = gateway.get("/", &[field]);
        assert_eq!(response.status, 401, "{field:?}");
        assert_eq!(response.field("www-authenticate"), Some("Bearer"));
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
        assert!(!response.text().contains("nobodys"), "{response:?}");
    }
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "401")], 3.0);
}

#[test]
fn a_credential_that_nobody_has_can_count_as_none() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "  anonymous: { plan: anonymous }\n  unknown: anonymous");
    let statuses = ["x", "y", "z"].map(|key| gateway.get("/", &[("x-api-key", key)]).status);
    assert_eq!(statuses, [200, 200, 429], "made-up credentials buy nothing");
}

#[test]
fn without_anonymous_callers_a_credential_is_needed() {
    let origin = Origin::start();
    let gateway = with_plans(&origin, "");
    let refused = gateway.get("/", &[]);
    assert_eq!(refused.status, 401);
    let detail = "A credential is needed: in the header x-api-key or as a bearer token.";
    assert_eq!(refused.json()["detail"], detail, "the client is told where to put it");
    assert_eq!(gateway.get("/", &[("x-api-key", "free-key")]).status, 200);
    assert_eq!(origin.count(), 1);
    for code in ["401", "200"] {
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", code)], 1.0);
    }
}

fn missing_key(origin: &Origin, choice: &str) -> Gateway {
    let limit = format!("{{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ header: x-key }}, missing_key: {choice} }}");
    Gateway::start(&limited(origin, &limit))
}

#[test]
fn a_request_without_its_key_can_be_refused() {
    let origin = Origin::start();
    let gateway = missing_key(&origin, "deny");
    let response = gateway.get("/", &[]);
    assert_eq!(response.status, 400);
    assert!(response.json()["detail"].as_str().unwrap().contains("x-key"), "{response:?}");
    assert_eq!(origin.count(), 0);
    assert_eq!(gateway.get("/", &[("x-key", "")]).status, 200, "empty is not absent");
    for code in ["400", "200"] {
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", code)], 1.0);
    }
}

#[test]
fn requests_without_their_key_can_share_one_bucket() {
    let origin = Origin::start();
    let gateway = missing_key(&origin, "share");
    let mut statuses = Vec::new();
    for last in [1, 2, 3] {
        statuses.push(gateway.client_from(last).get("/").status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(gateway.get("/", &[("x-key", "")]).status, 200, "an empty key is another bucket");
}

#[test]
fn requests_without_their_key_can_pass_uncounted() {
    let origin = Origin::start();
    let gateway = missing_key(&origin, "skip");
    for _ in 0..5 {
        let response = gateway.get("/", &[]);
        assert_eq!((response.status, response.field("ratelimit")), (200, None));
    }
    assert_eq!(gateway.get("/", &[("x-key", "a")]).number("x-ratelimit-remaining"), Some(1));
}

#[test]
fn suspended_and_expired_customers_are_refused_with_a_reason() {
    let origin = Origin::start();
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 1 }} }}
{ALL_GUARDED}",
        origin.upstream()
    );
    let hash = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";
    let customers = format!(
        "credential,customer,plan,overrides,time_zone,valid_until,suspended\n\
         late,acme,free,,,2020-02-29,\n\
         both,globex,free,,,2020-02-29,true\n\
         out,umbrella,free,,,,true\n\
         sha256:{hash},initech,free,{{guard: unlimited}},,2100-01-01T00:00:00Z,false\n"
    );
    let gateway = Gateway::start_with(&config, &[("customers.csv", &customers)], &[]);
    let ask = |key| gateway.get("/", &[("x-api-key", key)]);
    for (key, status, words) in [("late", 401, "expired"), ("both", 401, "expired"), ("out", 403, "suspended")] {
        let response = ask(key);
        assert_eq!(response.status, status, "{key}");
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
        assert!(response.json()["detail"].as_str().unwrap().contains(words), "{response:?}");
        assert_eq!(response.field("www-authenticate").is_some(), status == 401);
    }
    assert_eq!(origin.count(), 0);
    for _ in 0..3 {
        assert_eq!(ask("key").status, 200, "known by its hash, and without a limit");
    }
    assert_eq!(ask(&format!("sha256:{hash}")).status, 401, "the hash of a credential is none");
}
