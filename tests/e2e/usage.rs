//! Customers can read their usage, and these requests cost nothing.

use serde_json::{Value, json};

use crate::admin_api::{self, HOST};
use crate::support::{Gateway, Origin, free_port};

const CUSTOMERS: &str = "credential,customer,plan\nfree-key,acme,free\npro-key,globex,pro\n";

const LIMITS: &str = "limits:
  per-customer: { key: customer, algorithm: gcra, rate: 1/h, burst: 3, plans: { pro: unlimited },
    candidate: { rate: 1/h, burst: 1 } }
  watched: { key: customer, algorithm: gcra, rate: 1/h, burst: 1, shadow: true }
  per-route: { key: [route, customer], algorithm: fixed_window, limit: 5, window: 1d }
  per-tenant: { key: { header: x-tenant }, missing_key: skip, algorithm: gcra, rate: 1/h, burst: 9 }
routes:
  - { name: all, upstream: origin, limits: [watched, per-customer, per-route, per-tenant] }
  - { name: reports, match: { path: /reports/** }, upstream: origin, limits: [per-customer, per-route] }
";

fn with_usage(origin: &Origin, usage: &str) -> Gateway {
    with_usage_config(origin, &format!("{usage}\n{LIMITS}"))
}

fn with_usage_config(origin: &Origin, more: &str) -> Gateway {
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free, pro]
{more}",
        origin.upstream()
    );
    Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[])
}

const FREE: (&str, &str) = ("x-api-key", "free-key");

fn report(gateway: &Gateway, fields: &[(&str, &str)]) -> Value {
    let response = gateway.get("/.tollgate/usage", fields);
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.field("content-type"), Some("application/json"));
    assert_eq!(response.field("cache-control"), Some("no-store"));
    response.json()
}

fn remaining(report: &Value) -> Vec<(String, Vec<String>, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let lines = report["limits"].as_array().unwrap();
    let routes = |line: &Value| line["routes"].as_array().unwrap().iter().map(text).collect();
    lines.iter().map(|line| (text(&line["limit"]), routes(line), line["remaining"].as_u64().unwrap())).collect()
}

#[test]
fn a_customer_sees_its_plan_and_what_is_left_and_pays_nothing() {
    let origin = Origin::start();
    let gateway = with_usage(&origin, "usage: {}");
    let both = vec!["all".to_owned(), "reports".to_owned()];
    let line = |limit: &str, routes: &[String], left| (limit.to_owned(), routes.to_vec(), left);
    for _ in 0..10 {
        let fresh = report(&gateway, &[FREE]);
        assert_eq!((fresh["customer"].as_str(), fresh["plan"].as_str()), (Some("acme"), Some("free")));
        let expected =
            [line("per-customer", &both, 3), line("per-route", &both[..1], 5), line("per-route", &both[1..], 5)];
        assert_eq!(remaining(&fresh), expected);
    }
    assert_eq!(gateway.get("/reports/1", &[FREE]).status, 200);
    let used = report(&gateway, &[FREE, ("x-tenant", "t")]);
    let expected = [
        line("per-customer", &both, 2),
        line("per-route", &both[..1], 5),
        line("per-tenant", &both[..1], 9),
        line("per-route", &both[1..], 4),
    ];
    assert_eq!(remaining(&used), expected);
    let more = used["limits"][0]["more_in_seconds"].as_f64().unwrap();
    assert!(more > 3000.0 && more <= 3600.0, "{used}");
    assert_eq!(remaining(&report(&gateway, &[("x-api-key", "pro-key")])).len(), 2, "unlimited has no line");
    assert_eq!(origin.count(), 1);
}

#[test]
fn the_page_is_for_customers_and_for_reading() {
    let origin = Origin::start();
    let gateway = with_usage(&origin, "usage: { path: /me/quota }");
    assert_eq!(gateway.get("/me/quota", &[FREE]).status, 200);
    assert_eq!(gateway.get("/me//%71uota", &[FREE]).status, 200, "as every path it has one canonical spelling");
    assert_eq!(gateway.get("/me/quota", &[]).status, 401);
    assert_eq!(gateway.get("/me/quota", &[("x-api-key", "nobody")]).status, 401);
    let posted = gateway.client().round_trip("POST", "/me/quota", &[FREE]);
    assert_eq!((posted.status, posted.field("allow")), (405, Some("GET, HEAD")));
    assert_eq!(gateway.client().round_trip("HEAD", "/me/quota", &[FREE]).status, 200);
    assert_eq!(origin.count(), 0);
    assert_eq!(gateway.get("/.tollgate/usage", &[FREE]).status, 200, "a path like any other");
    assert_eq!(origin.count(), 1);
}

#[test]
fn without_the_setting_there_is_no_such_page() {
    let origin = Origin::start();
    let gateway = with_usage(&origin, "");
    assert_eq!(gateway.get("/.tollgate/usage", &[FREE]).status, 200);
    assert_eq!(origin.count(), 1, "the upstream answered");
}

#[test]
fn a_limit_by_something_that_the_request_lacks_is_left_out_and_hides_no_other() {
    let origin = Origin::start();
    for (missing_key, status, left) in [("deny", 400, 3), ("shared_bucket", 200, 2)] {
        let gateway = with_usage_config(
            &origin,
            &format!(
                "usage: {{}}
limits:
  per-tenant: {{ key: {{ header: x-tenant }}, missing_key: {missing_key}, algorithm: gcra, rate: 1/h, burst: 9 }}
  per-customer: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 3 }}
routes:
  - {{ name: all, upstream: origin, limits: [per-tenant, per-customer] }}
"
            ),
        );
        assert_eq!(gateway.get("/", &[FREE]).status, status);
        let all = vec!["all".to_owned()];
        let per_customer = ("per-customer".to_owned(), all.clone(), left);
        assert_eq!(remaining(&report(&gateway, &[FREE])), std::slice::from_ref(&per_customer), "{missing_key}");
        let both = [("per-tenant".to_owned(), all, 9), per_customer];
        assert_eq!(remaining(&report(&gateway, &[FREE, ("x-tenant", "t")])), both);
    }
}

#[test]
fn usage_unknown_in_an_outage_is_left_out() {
    let (origin, port) = (Origin::start(), free_port());
    let gateway = with_usage_config(
        &origin,
        &format!(
            "usage: {{}}
store: {{ redis: \"redis://127.0.0.1:{port}\" }}
limits:
  open: {{ key: customer, mode: shared, on_store_down: allow, algorithm: fixed_window, limit: 5, window: 1d }}
  local: {{ key: customer, mode: shared, on_store_down: local, algorithm: fixed_window, limit: 5, window: 1d }}
routes: [{{ name: all, upstream: origin, limits: [open, local] }}]
"
        ),
    );
    let fields = ["remaining", "more_in_seconds", "full_in_seconds"];
    let report = report(&gateway, &[FREE]);
    let known = [0, 1].map(|limit| fields.map(|field| report["limits"][limit].get(field).is_some()));
    assert_eq!(known, [[false; 3], [true; 3]], "{report:#}");
    let request = json!({ "url": "http://localhost/", "headers": { "x-api-key": "free-key" } });
    let peeked =
        admin_api::post(&gateway, "/v1/keys/peek", &[HOST], &json!({ "limit": "open", "key": { "customer": "acme" } }));
    let explained = admin_api::post(&gateway, "/v1/explain", &[HOST], &request).json();
    for standing in [&peeked.json()["standing"], &explained["limits"][0]["standing"]] {
        assert_eq!(fields.map(|field| &standing[field]), [&Value::Null; 3], "{standing:#}");
    }
    assert_eq!(explained["limits"][1]["standing"]["full_in_seconds"], 0.0);
}

#[test]
fn a_banned_customer_sees_its_ban() {
    let origin = Origin::start();
    let gateway = with_usage_config(
        &origin,
        "usage: {}
limits:
  guard: { key: customer, algorithm: fixed_window, limit: 1, window: 1d, ban: { after: 1 denial in 1m, for: 1h } }
routes: [{ name: all, upstream: origin, limits: [guard] }]
",
    );
    let banned = || report(&gateway, &[FREE])["limits"][0]["banned_for_seconds"].as_f64();
    assert_eq!([(); 2].map(|()| (banned(), gateway.get("/", &[FREE]).status)), [(None, 200), (None, 429)]);
    assert!(banned().is_some_and(|seconds| (3_500.0..=3_600.0).contains(&seconds)), "{:?}", banned());
}

#[test]
fn limits_that_never_charge_the_customer_are_left_out() {
    let origin = Origin::start();
    let limit = "{ key: customer, algorithm: fixed_window, limit: 5, window: 1d }";
    let gateway = with_usage_config(
        &origin,
        &format!(
            "usage: {{}}
limits: {{ met: {limit}, of-exempt: {limit}, of-denied: {limit} }}
routes:
  - {{ name: exempt, match: {{ path: /a }}, upstream: origin, limits: [met, of-exempt], bypass: {{ customers: [acme] }} }}
  - {{ name: denied, match: {{ path: /b }}, upstream: origin, limits: [met, of-denied], access: {{ deny: {{ customers: [acme] }} }} }}
  - {{ name: met, upstream: origin, limits: [met] }}
"
        ),
    );
    assert_eq!(["/a", "/b", "/c"].map(|path| gateway.get(path, &[FREE]).status), [200, 403, 200]);
    assert_eq!(remaining(&report(&gateway, &[FREE])), [("met".to_owned(), vec!["met".to_owned()], 4)]);
}
