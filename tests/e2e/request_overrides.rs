//! Parameters and plans that requests carry: in claims of tokens, and in fields that a trusted proxy sets.

use serde_json::{Value, json};

use crate::support::redis::Redis;
use crate::support::tokens::{Issuer, key_set, seconds_from_now};
use crate::support::{Client, Gateway, Origin, Response};

/// Customers with tokens under a limit of 1000/h and a burst of 10, which accepts other numbers from requests.
fn config(origin: &Origin, limit: &str) -> String {
    format!(
        "{}client_address: {{ trusted_proxies: [127.0.0.1] }}
customers:
  identify: [{{ jwt: {{ jwks_file: keys.jwks, plan: free }} }}, {{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  plan_from: {{ header: x-plan, plans: [free, pro] }}
plans: [free, pro, internal]
limits:
  guard:
    key: customer
    algorithm: gcra
    rate: 1000/h
    burst: 10
    plans: {{ pro: {{ burst: 50 }}, internal: unlimited }}
    request_overrides:
      rate: {{ jwt_claim: limits.rate, min: 10/h, max: 5000/h }}
      burst: {{ header: x-burst, min: 5, max: 100 }}
{limit}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
usage: {{}}
",
        origin.upstream()
    )
}

const CUSTOMERS: &str =
    "credential,customer,plan,overrides\nfree-key,acme,free,\nown-key,globex,free,\"{guard: {burst: 7}}\"\n";

fn start(config: &str) -> Gateway {
    let keys = key_set(&[Issuer::p256()]);
    Gateway::start_with(config, &[("keys.jwks", &keys), ("customers.csv", CUSTOMERS)], &[])
}

/// The quota and window in `RateLimit-Policy`.
fn policy(response: &Response) -> &str {
    assert_eq!(response.status, 200, "{response:?}");
    response.field("ratelimit-policy").unwrap()
}

/// A request of a customer whose token has this rate under `limits`; each rate has its own customer.
fn with_claim(gateway: &Gateway, rate: &Value) -> Response {
    let claims = json!({ "sub": rate.to_string(), "exp": seconds_from_now(600), "limits": { "rate": rate } });
    gateway.get("/", &[("authorization", &format!("Bearer {}", Issuer::p256().sign(&claims)))])
}

#[test]
fn a_claim_says_the_rate_within_the_bounds() {
    let origin = Origin::start();
    let gateway = start(&config(&origin, ""));
    for (rate, window) in [
        (json!("2000/h"), "18"),
        (json!("0.5/s"), "20"),
        (json!(500), "72"),
        (json!("500"), "72"),
        // values outside the bounds
        (json!("100/s"), "8"),
        (json!(u64::MAX), "8"),
        (json!("9".repeat(40)), "8"),
        (json!("99999999999999999999/h"), "8"),
        (json!(0), "3600"),
        (json!("0/s"), "3600"),
        (json!("1/d"), "3600"),
        (json!(-5), "3600"),
        // values that the gateway cannot read
        (json!(1.5), "36"),
        (json!("0/x"), "36"),
        (json!("many"), "36"),
        (json!(true), "36"),
        (json!(null), "36"),
        (json!([2000]), "36"),
        (json!({ "rate": 2000 }), "36"),
    ] {
        assert_eq!(policy(&with_claim(&gateway, &rate)), format!("\"guard\";q=10;w={window}"), "{rate}");
    }
}

#[test]
fn a_whole_number_in_a_claim_is_held_within_the_bounds() {
    let origin = Origin::start();
    let rate = "      rate: { jwt_claim: limits.rate, min: 10/h, max: 5000/h }\n";
    let config = config(&origin, "").replace(rate, "").replace("header: x-burst", "jwt_claim: limits.rate");
    let gateway = start(&config);
    for (burst, quota) in [
        (json!(60), 60),
        (json!(u64::MAX), 100),
        (json!(2.0_f64.powi(64)), 100),
        (json!("18446744073709551616"), 100),
        (json!(0), 5),
        (json!(-3), 5),
        (json!("-3"), 5),
        (json!(-2.0_f64.powi(64)), 5),
        (json!(60.5), 10),
        (json!("-"), 10),
    ] {
        let response = with_claim(&gateway, &burst);
        assert!(policy(&response).starts_with(&format!("\"guard\";q={quota};")), "{burst}: {response:?}");
    }
}

#[test]
fn a_field_is_believed_of_trusted_proxies_alone() {
    let origin = Origin::start();
    let trusting = start(&config(&origin, ""));
    let ask = |gateway: &Gateway, key: &str, fields: &[(&str, &str)]| {
        let fields: Vec<_> = [("x-api-key", key)].into_iter().chain(fields.iter().copied()).collect();
        policy(&gateway.get("/", &fields)).to_owned()
    };
    assert_eq!(ask(&trusting, "free-key", &[("x-burst", "60")]), "\"guard\";q=60;w=216");
    assert_eq!(ask(&trusting, "free-key", &[("x-burst", "1000")]), "\"guard\";q=100;w=360");
    assert_eq!(ask(&trusting, "free-key", &[("x-burst", "-3")]), "\"guard\";q=5;w=18");
    assert_eq!(ask(&trusting, "free-key", &[("x-burst", "60"), ("x-burst", "60")]), "\"guard\";q=10;w=36");
    assert_eq!(ask(&trusting, "free-key", &[("x-burst", "6e1")]), "\"guard\";q=10;w=36");
    // the directory's overrides of a customer take precedence, and so does `unlimited` of its plan
    assert_eq!(ask(&trusting, "own-key", &[("x-burst", "60")]), "\"guard\";q=7;w=26");
    assert_eq!(ask(&trusting, "free-key", &[("x-plan", "pro")]), "\"guard\";q=50;w=180");
    assert_eq!(ask(&trusting, "free-key", &[("x-plan", "pro"), ("x-burst", "60")]), "\"guard\";q=60;w=216");
    // a plan that the header may not assign, and one that does not exist
    assert_eq!(ask(&trusting, "free-key", &[("x-plan", "internal")]), "\"guard\";q=10;w=36");
    assert_eq!(ask(&trusting, "free-key", &[("x-plan", "gold")]), "\"guard\";q=10;w=36");
    let usage = trusting.get("/.tollgate/usage", &[("x-api-key", "free-key"), ("x-plan", "pro"), ("x-burst", "60")]);
    assert_eq!((usage.json()["plan"].as_str(), usage.json()["limits"][0]["quota"].as_u64()), (Some("pro"), Some(60)));
    let strict = start(&config(&origin, "").replace("[127.0.0.1]", "[10.0.0.5], header: cf-connecting-ip"));
    let claims = [("x-burst", "60"), ("x-plan", "pro"), ("cf-connecting-ip", "192.0.2.1")];
    assert_eq!(ask(&strict, "free-key", &claims), "\"guard\";q=10;w=36");
    // nor are they told to the upstream as if a proxy had said so
    let head = origin.received().pop().unwrap().head;
    assert_eq!((head.field("x-plan"), head.field("cf-connecting-ip")), (None, None));
}

#[test]
fn a_trusted_proxy_names_the_plan_of_a_token_without_one() {
    let origin = Origin::start();
    let gateway = start(&config(&origin, "").replace("keys.jwks, plan: free", "keys.jwks, plan_claim: plan"));
    let token = Issuer::p256().sign(&json!({ "sub": "initech", "exp": seconds_from_now(600) }));
    let ask = |plan: &str| gateway.get("/", &[("authorization", &format!("Bearer {token}")), ("x-plan", plan)]);
    assert_eq!(policy(&ask("pro")), "\"guard\";q=50;w=180");
    assert_eq!(ask("internal").status, 403, "a plan that the header may not assign");
}

#[test]
fn tokens_are_counted_across_changes_of_the_numbers() {
    let origin = Origin::start();
    let redis = Redis::start();
    let shared = format!("store: {{ redis: \"{}\", timeout: 1s }}\n", redis.url());
    for config in [config(&origin, ""), config(&origin, "    mode: shared") + &shared] {
        let gateway = start(&config);
        let passed = |burst: &str, count: usize| {
            let ask = |_| gateway.get("/", &[("x-api-key", "free-key"), ("x-burst", burst)]).status;
            (0..count).map(ask).filter(|status| *status == 200).count()
        };
        assert_eq!(passed("20", 30), 20);
        // a spent bucket stays spent when its size changes
        assert_eq!(passed("100", 3), 0);
        assert_eq!(passed("5", 3), 0);
    }
}

#[test]
fn explain_says_whose_the_parameters_are() {
    let origin = Origin::start();
    let gateway = start(&config(&origin, ""));
    let explained = |key: &str| {
        let headers = json!({ "host": "localhost", "x-api-key": key, "x-burst": "60" });
        let question = json!({ "method": "GET", "url": "/", "headers": headers, "client": "127.0.0.1" });
        let mut admin = Client::connect(gateway.admin);
        let answer = admin.post("/explain", &[("connection", "close")], question.to_string().as_bytes()).json();
        answer["limits"][0]["why"].as_str().map(str::to_owned)
    };
    assert_eq!(explained("free-key").unwrap(), "the parameters that the request brings along");
    assert_eq!(explained("own-key").unwrap(), "the customer's own parameters");
}

#[test]
fn a_time_zone_leaves_the_plan_and_the_numbers_of_a_request_in_force() {
    let origin = Origin::start();
    let daily = "algorithm: fixed_window, window: day, align: calendar, timezone: customer, limit: 100,
    plans: { pro: { limit: 10000 } }";
    let config = format!(
        "{}client_address: {{ trusted_proxies: [127.0.0.1] }}
customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  groups: {{ levels: [team], file: groups.csv }}
  plan_from: {{ header: x-plan, plans: [pro] }}
plans: [free, pro]
limits:
  own: {{ key: customer, {daily}, request_overrides: {{ limit: {{ header: x-limit, max: 500 }} }} }}
  team: {{ key: {{ group: team }}, {daily} }}
routes: [{{ name: all, upstream: origin, limits: [own, team] }}]
",
        origin.upstream()
    );
    let customers = "credential,customer,plan,time_zone,team\nk,acme,free,Europe/Berlin,search\n";
    let groups = "level,group,time_zone\nteam,search,Asia/Tokyo\n";
    let gateway = Gateway::start_with(&config, &[("customers.csv", customers), ("groups.csv", groups)], &[]);
    let quotas = |headers: &[(&str, &str)]| {
        let response = gateway.get("/", &[&[("x-api-key", "k")][..], headers].concat());
        let policies = policy(&response).split(", ").map(|policy| policy.split(';').take(2).collect::<String>());
        policies.collect::<Vec<_>>()
    };
    assert_eq!(quotas(&[]), ["\"own\"q=100", "\"team\"q=100"]);
    assert_eq!(quotas(&[("x-plan", "pro")]), ["\"own\"q=10000", "\"team\"q=10000"]);
    assert_eq!(quotas(&[("x-limit", "300")]), ["\"own\"q=300", "\"team\"q=100"]);
    let question = json!({ "method": "GET", "url": "/", "headers": { "host": "localhost", "x-api-key": "k" } });
    let mut admin = Client::connect(gateway.admin);
    let answer = admin.post("/explain", &[("connection", "close")], question.to_string().as_bytes()).json();
    let whose = "the parameters of the plan free of the team, in the time zone of the team";
    assert_eq!(answer["limits"][1]["why"], whose, "{answer}");
    assert_eq!(answer["caller"]["has_own_terms"], false);
    for (plan, quota) in [(json!(null), 100), (json!("free"), 100), (json!("pro"), 10_000)] {
        let question = json!({ "limit": "own", "key": { "customer": "acme" }, "plan": plan });
        let mut admin = Client::connect(gateway.admin);
        let fields = [("connection", "close"), ("host", "localhost")];
        let peeked = admin.post("/v1/keys/peek", &fields, question.to_string().as_bytes()).json();
        assert_eq!(peeked["quota"], quota, "{plan}: {peeked}");
    }
}
