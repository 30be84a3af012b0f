//! Banned keys: a limit denies every request of such a key for a while.

use serde_json::{Value, json};

use crate::admin_api;
use crate::support::cluster::Nodes;
use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, Response};

const TOKEN: &str = "a-token-that-is-long-enough";

fn config(origin: &Origin, ban: &str) -> String {
    format!(
        "{}plans: [free]
customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
limits:
  early: {{ key: {{ header: x-tenant }}, algorithm: fixed_window, limit: 2, window: 1s, ban: {{ {ban} }}, missing_key: skip }}
  late: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 4 }}
routes: [{{ name: all, upstream: origin, limits: [early, late] }}]
access_log: full\n",
        origin.upstream()
    )
}

fn start(origin: &Origin, ban: &str) -> Gateway {
    start_with(&config(origin, ban))
}

fn start_with(config: &str) -> Gateway {
    let files = [("customers.csv", "credential,customer,plan\nkey,acme,free\n"), ("token", TOKEN)];
    let gateway = Gateway::start_with(config, &files, &[]);
    let admin = format!("admin: {{ address: \"{}\" }}", gateway.admin);
    let with_token = format!("admin: {{ address: \"{}\", token_file: token }}", gateway.admin);
    gateway.folder.write("tollgate.yaml", gateway.complete_config(config).replace(&admin, &with_token));
    assert_eq!(gateway.reload().status, 200);
    gateway
}

fn ask(gateway: &Gateway, tenant: &str) -> Response {
    gateway.get("/", &[("x-api-key", "key"), ("x-tenant", tenant)])
}

/// Sends requests until the gateway denies one because the key is banned.
fn until_banned(gateway: &Gateway, tenant: &str) -> Response {
    let mut answers = std::iter::repeat_with(|| ask(gateway, tenant)).take(100);
    answers.find(is_banned).expect("a hundred requests are over the limit often enough")
}

fn is_banned(response: &Response) -> bool {
    response.status == 429 && response.text().contains("Too many requests were denied")
}

fn post(gateway: &Gateway, verb: &str, limit: &str) -> Response {
    let question = json!({ "limit": limit, "key": { "header x-tenant": "a" } });
    let token = format!("Bearer {TOKEN}");
    admin_api::post(gateway, &format!("/v1/keys/{verb}"), &[admin_api::HOST, ("authorization", &token)], &question)
}

fn counted(gateway: &Gateway, outcome: &str) -> f64 {
    let labels = [("route", "all"), ("limit", "early"), ("plan", "free"), ("outcome", outcome)];
    gateway.metrics().value("tollgate_limit_requests_total", &labels).unwrap_or_default()
}

fn banned_for(told: &Value) -> f64 {
    told["banned_for_seconds"].as_f64().unwrap_or_default()
}

#[test]
fn a_key_that_is_denied_again_and_again_is_denied_altogether_and_nothing_is_charged() {
    let origin = Origin::start();
    let gateway = start(&origin, "after: 3 denials in 1h, for: 10h");
    let bans = |count: f64| {
        gateway.wait_for_metric("tollgate_limit_bans_total", &[("limit", "early"), ("plan", "free")], count)
    };
    bans(0.0);
    let banned = until_banned(&gateway, "a");
    let after: u64 = banned.field("retry-after").unwrap().parse().unwrap();
    assert!((35_900..=36_000).contains(&after), "{after}");
    assert_eq!(banned.json()["violated-policies"], json!(["early"]));
    assert!(!banned.field("ratelimit").unwrap().contains("late"), "nobody asked that limit: {banned:?}");
    assert_eq!(counted(&gateway, "denied"), 3.0);
    bans(1.0);

    let passed = origin.count();
    for _ in 0..20 {
        assert!(is_banned(&ask(&gateway, "a")));
    }
    assert_eq!(origin.count(), passed);
    assert!(counted(&gateway, "banned") >= 20.0);
    assert_eq!((counted(&gateway, "denied"), ask(&gateway, "b").status), (3.0, 200), "others are not banned");
    let line = gateway.process.wait_for_access("\"decision\":\"banned\"");
    assert_eq!((&line["limit"], &line["status"]), (&json!("early"), &json!(429)));

    // the early limit denies without a look at the credential
    let guess = gateway.get("/", &[("x-api-key", "guess"), ("x-tenant", "a")]);
    assert!(is_banned(&guess), "{guess:?}");
    bans(1.0);
}

#[test]
fn requests_of_a_banned_key_owe_no_tokens() {
    let origin = Origin::start();
    let config = config(&origin, "after: 2 denials in 1h, for: 10h")
        .replace("window: 1s,", "window: 30d, charge: { denied: true },");
    let gateway = start_with(&config);
    let banned = [(); 7].map(|()| ask(&gateway, "a")).iter().filter(|response| is_banned(response)).count();
    assert_eq!(banned, 3, "two pass, two more are denied");
    let debited = [("limit", "early"), ("plan", "free"), ("outcome", "debited")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &debited, 2.0);
}

#[test]
fn operators_see_bans_and_lift_them_and_a_reload_keeps_them() {
    let origin = Origin::start();
    let gateway = start(&origin, "after: 1 denial in 1m, for: 1h");
    until_banned(&gateway, "a");
    let peeked = post(&gateway, "peek", "early").json();
    assert!((3_500.0..=3_600.0).contains(&banned_for(&peeked)), "{peeked}");
    let question =
        json!({ "method": "GET", "url": "http://test/", "headers": { "x-api-key": "key", "x-tenant": "a" } });
    let explained = admin_api::post(&gateway, "/v1/explain", &[admin_api::HOST], &question).json();
    assert_eq!(explained["now"]["outcome"], "banned", "{explained}");
    assert!(banned_for(&explained["limits"][0]) > 3_500.0, "{explained}");

    gateway.folder.write(
        "tollgate.yaml",
        std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap().replace("burst: 4", "burst: 40"),
    );
    assert_eq!(gateway.reload().status, 200);
    assert!(is_banned(&ask(&gateway, "a")), "a reload keeps it");

    assert_eq!(post(&gateway, "unban", "early").status, 200);
    assert_eq!(post(&gateway, "unban", "early").status, 404, "once");
    assert_eq!(banned_for(&post(&gateway, "peek", "early").json()), 0.0);
    assert!(!is_banned(&ask(&gateway, "a")));
    until_banned(&gateway, "a");
    assert_eq!(post(&gateway, "reset", "early").status, 200);
    assert_eq!(ask(&gateway, "a").status, 200, "a key that starts afresh is not banned either");
}

#[test]
fn a_reset_that_fails_leaves_the_ban() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let shared = config(&origin, "after: 1 denial in 1m, for: 1h").replace("window: 1s,", "window: 1s, mode: shared,");
    let gateway = start_with(&format!("{shared}store: {{ redis: \"{}\" }}\n", redis.url()));
    until_banned(&gateway, "a");
    drop(redis);
    assert_eq!(post(&gateway, "reset", "early").status, 503);
    assert!(is_banned(&ask(&gateway, "a")));
}

#[test]
fn the_denial_that_bans_a_key_says_when_the_ban_ends() {
    let origin = Origin::start();
    let gateway = start(&origin, "after: 1 denial in 1m, for: 10h");
    let mut answers = std::iter::repeat_with(|| ask(&gateway, "a")).take(100);
    let first = answers.find(|response| response.status == 429).unwrap();
    assert!(!is_banned(&first), "{first:?}");
    let after = first.number("retry-after").unwrap();
    assert!((35_900..=36_000).contains(&after), "{after}");
    assert_eq!(first.number("x-ratelimit-reset"), Some(after));
    let told = gateway.metrics().value("tollgate_limit_retry_after_seconds_sum", &[("limit", "early")]);
    assert!(
        told.is_some_and(|seconds| seconds > 35_000.0),
        "the metrics have the time that the client was told: {told:?}"
    );
}

#[test]
fn the_denial_that_begins_a_ban_tells_it_also_where_the_denial_is_longer_or_for_good() {
    let origin = Origin::start();
    let config = |limits: &str, named: &str| {
        format!(
            "{}limits: {{ {limits} }}\nroutes: [{{ name: all, upstream: origin, limits: [{named}] }}]\n",
            origin.upstream()
        )
    };
    let cost = "key: all, cost: { header: x-cost, max: 10 }";
    let longer =
        format!("slow: {{ algorithm: gcra, rate: 1/h, burst: 5, {cost}, ban: {{ after: 1 denial in 1m, for: 50s }} }}");
    let gateway = Gateway::start(&config(&longer, "slow"));
    assert_eq!(gateway.get("/", &[("x-cost", "2")]).status, 200);
    let denied = gateway.get("/", &[("x-cost", "4")]);
    assert!(denied.field("ratelimit").unwrap().starts_with("\"slow\";r=0;t=3"), "{denied:?}");
    assert!(denied.number("retry-after").is_some_and(|seconds| seconds > 3_500), "{denied:?}");
    assert!(is_banned(&gateway.get("/", &[("x-cost", "1")])));

    let good = format!(
        "large: {{ algorithm: gcra, rate: 1/s, burst: 5, {cost}, ban: {{ after: 1 denial in 1m, for: 50s }} }}"
    );
    let gateway = Gateway::start(&config(&good, "large"));
    let denied = gateway.get("/", &[("x-cost", "9")]);
    assert_eq!((denied.status, denied.number("retry-after")), (429, None), "no wait helps: {denied:?}");
    assert_eq!(denied.field("ratelimit"), Some("\"large\";r=0;t=50"), "{denied:?}");
    let [left, reset] = ["x-ratelimit-remaining", "x-ratelimit-reset"].map(|name| denied.number(name));
    assert_eq!((left, reset), (Some(0), Some(50)), "{denied:?}");
    assert!(is_banned(&gateway.get("/", &[("x-cost", "1")])));
}

#[test]
fn each_limit_that_begins_a_ban_tells_its_own() {
    let origin = Origin::start();
    let limit = |name: &str, lasts: &str| {
        format!(
            "  {name}: {{ key: all, algorithm: gcra, rate: 1/20m, burst: 1, ban: {{ after: 1 denial in 1m, for: {lasts} }} }}\n"
        )
    };
    let gateway = Gateway::start(&format!(
        "{}limits:\n{}{}{}routes: [{{ name: all, upstream: origin, limits: [short, long, middle] }}]\n",
        origin.upstream(),
        limit("short", "50s"),
        limit("long", "10h"),
        limit("middle", "5h")
    ));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let denied = gateway.get("/", &[]);
    assert_eq!(denied.json()["violated-policies"], json!(["short", "long", "middle"]));
    assert_eq!(denied.number("retry-after"), Some(36_000));
    let told = denied.field("ratelimit").unwrap();
    let (short, others) = told.split_once(", ").unwrap();
    assert!(short.starts_with("\"short\";r=0;t=1"), "its own denial is longer than its ban: {told}");
    assert_eq!(others, "\"long\";r=0;t=36000, \"middle\";r=0;t=18000");
}

#[test]
fn a_ban_ends() {
    let origin = Origin::start();
    let gateway = start(&origin, "after: 1 denial in 1m, for: 1500ms");
    let banned = until_banned(&gateway, "a");
    assert_eq!(banned.field("retry-after"), Some("2"));
    crate::support::wait_until("the end of the ban", || ask(&gateway, "a").status == 200);
}

#[test]
fn each_gateway_of_a_cluster_bans_by_its_own_denials() {
    let (origin, nodes) = (Origin::start(), Nodes::new(2));
    let limit = "algorithm: gcra, rate: 1/h, burst: 1, ban: { after: 3 denials in 1h, for: 10h }";
    let gateways = nodes.start_all(&origin, limit);
    let ask = |gateway: &Gateway| gateway.get("/", &[("x-key", "a")]);
    assert_eq!(ask(&gateways[0]).status, 200);
    for gateway in &gateways {
        for _ in 0..3 {
            let denied = ask(gateway);
            assert!(denied.status == 429 && !is_banned(&denied), "{denied:?}");
        }
        assert!(is_banned(&ask(gateway)));
    }
    assert_eq!(origin.count(), 1);
}
