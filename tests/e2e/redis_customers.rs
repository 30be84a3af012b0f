//! Customers in a Redis hash: looked up, cached, and still known while Redis is unavailable.

use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, PATIENCE, Response, now, together, wait_until};

/// The SHA-256 of `key-1`, `key-2` and `key-3`.
const FIELDS: [&str; 3] = [
    "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",
    "sha256:7c36b0a9dedde119c75165957c6c9c187e65df1ee5db87c4c58ad503ad88cbe3",
    "sha256:d9ef8196557c9da69806fb5d777f4e5ad6d5c18593039e0ff62f9fdf003b0198",
];
const ACME: &str = r#"{"customer": "acme", "plan": "free"}"#;

/// A gateway with its customers in `redis`; `options` are settings of the directory, `server` settings of the store.
fn gateway_with(origin: &Origin, redis: &Redis, options: &str, server: &str) -> Gateway {
    let config = format!(
        "{}store: {{ redis: \"{}\"{server} }}
customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ redis: \"tollgate:customers\"{options} }}
plans: [free, pro]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 1000, plans: {{ pro: {{ burst: 2000 }} }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
        redis.url()
    );
    Gateway::start_with(&config, &[("redis.password", "opensesame\n")], &[])
}

fn gateway(origin: &Origin, redis: &Redis, options: &str) -> Gateway {
    gateway_with(origin, redis, options, "")
}

fn put(redis: &Redis, number: usize, value: &str) {
    redis.command(&["HSET", "tollgate:customers", FIELDS[number - 1], value]);
}

#[track_caller]
fn ask(gateway: &Gateway, key: &str) -> Response {
    gateway.get("/", &[("x-api-key", key)])
}

/// The quota, which shows the plan.
fn quota(response: &Response) -> Option<u64> {
    response.number("x-ratelimit-limit")
}

/// Waits until a request with this key gets this status: Redis may need a moment to recover.
fn wait_for_status(gateway: &Gateway, key: &str, status: u16) {
    wait_until(&format!("status {status}"), || ask(gateway, key).status == status);
}

#[test]
fn a_customer_is_asked_for_once_and_remembered() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, ACME);
    let gateway = gateway(&origin, &redis, "");
    for _ in 0..5 {
        let response = ask(&gateway, "key-1");
        assert_eq!((response.status, quota(&response)), (200, Some(1000)), "{response:?}");
    }
    assert_eq!(redis.calls("hget"), 1);
    let found = [("op", "customer"), ("result", "found")];
    gateway.wait_for_metric("tollgate_store_requests_total", &found, 1.0);
    gateway.wait_for_metric("tollgate_store_request_duration_seconds_count", &[("op", "customer")], 1.0);
}

#[test]
fn a_credential_that_nobody_has_is_remembered_too_and_for_less_long() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, &redis, ", negative_ttl: 200ms");
    let began = now();
    assert_eq!(ask(&gateway, "key-1").status, 401);
    assert_eq!(ask(&gateway, "key-1").status, 401);
    if now() - began < std::time::Duration::from_millis(150) {
        assert_eq!(redis.calls("hget"), 1);
    }
    put(&redis, 1, ACME);
    wait_for_status(&gateway, "key-1", 200);
}

#[test]
fn a_changed_plan_is_taken_up_when_the_answer_is_old() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, ACME);
    let gateway = gateway(&origin, &redis, ", ttl: 200ms");
    assert_eq!(quota(&ask(&gateway, "key-1")), Some(1000));
    put(&redis, 1, r#"{"customer": "acme", "plan": "pro"}"#);
    wait_until("the other plan", || quota(&ask(&gateway, "key-1")) == Some(2000));
    redis.command(&["HDEL", "tollgate:customers", FIELDS[0]]);
    wait_for_status(&gateway, "key-1", 401);
}

#[test]
fn an_answer_stays_good_while_redis_is_dead_and_strangers_are_told_to_come_back() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let port = redis.port;
    put(&redis, 1, ACME);
    let gateway = gateway(&origin, &redis, ", ttl: 1ms, negative_ttl: 1ms");
    assert_eq!(ask(&gateway, "key-1").status, 200);
    drop(redis);
    for _ in 0..20 {
        assert_eq!(ask(&gateway, "key-1").status, 200);
    }
    let response = ask(&gateway, "key-2");
    assert_eq!((response.status, response.number("retry-after")), (503, Some(1)));
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert!(response.json()["detail"].as_str().unwrap().contains("cannot be looked up"), "{response:?}");
    assert_eq!(response.field("www-authenticate"), None);

    let redis = Redis::start_on(port, None);
    put(&redis, 1, r#"{"customer": "acme", "plan": "pro"}"#);
    put(&redis, 2, r#"{"customer": "globex", "plan": "free"}"#);
    wait_for_status(&gateway, "key-2", 200);
    wait_until("the other plan", || quota(&ask(&gateway, "key-1")) == Some(2000));
}

#[test]
fn a_reload_that_changes_limits_while_redis_is_dead_keeps_customers_known() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, ACME);
    put(&redis, 2, r#"{"customer": "globex", "plan": "pro", "overrides": {"guard": {"burst": 7}}}"#);
    let gateway = gateway(&origin, &redis, ", ttl: 1ms");
    assert_eq!(["key-1", "key-2"].map(|key| quota(&ask(&gateway, key))), [Some(1000), Some(7)]);
    drop(redis);
    let config = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    for burst in [3000, 4000] {
        let changed = config.replace("burst: 1000", &format!("burst: {burst}")).replace("[free, pro]", "[pro, free]");
        gateway.folder.write("tollgate.yaml", changed);
        assert_eq!(gateway.reload().status, 200);
        for _ in 0..5 {
            assert_eq!(["key-1", "key-2"].map(|key| quota(&ask(&gateway, key))), [Some(burst), Some(7)]);
        }
        assert_eq!(ask(&gateway, "key-3").status, 503, "nobody knows whether this one is a customer");
    }
}

#[test]
fn redis_that_hangs_holds_nobody_up() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, ACME);
    let gateway = gateway(&origin, &redis, ", ttl: 1ms");
    assert_eq!(ask(&gateway, "key-1").status, 200);
    redis.signal("STOP");
    let began = now();
    for _ in 0..10 {
        assert_eq!(ask(&gateway, "key-1").status, 200);
        assert_eq!(ask(&gateway, "key-2").status, 503);
    }
    assert!(now() - began < PATIENCE, "each request waits a part of a second at most");
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "503")], 10.0);
    redis.signal("CONT");
    put(&redis, 2, r#"{"customer": "globex", "plan": "free"}"#);
    wait_for_status(&gateway, "key-2", 200);
}

#[test]
fn requests_at_once_share_a_call() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, ACME);
    put(&redis, 2, ACME);
    let gateway = gateway(&origin, &redis, "");
    assert_eq!(ask(&gateway, "key-2").status, 200, "so that the connection is there");
    let statuses = together(16, |_| ask(&gateway, "key-1").status);
    assert_eq!(statuses, [200; 16]);
    assert_eq!(redis.calls("hget"), 2);
}

#[test]
fn unreadable_entries_are_no_customers_and_show_no_secret() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, &redis, ", ttl: 1ms, negative_ttl: 1ms");
    let bad = [
        "canary-value",
        r#"{"customer": "acme"}"#,
        r#"{"customer": "acme", "plan": "canary1234567890"}"#,
        r#"{"customer": "acme", "plan": "free", "color": "canary"}"#,
        r#"{"customer": "acme", "plan": "free", "overrides": {"guard": {"burst": "lots"}}}"#,
        r#"{"customer": "acme", "plan": "free", "valid_until": "canary"}"#,
        "[]",
        "",
    ];
    for (number, value) in bad.iter().enumerate() {
        put(&redis, 1, value);
        wait_until("the value to be read", || {
            assert_eq!(ask(&gateway, "key-1").status, 503, "{value}");
            let invalid = gateway.metrics().value("tollgate_store_requests_total", &INVALID);
            invalid.is_some_and(|count| count > number as f64)
        });
    }
    put(&redis, 1, ACME);
    wait_for_status(&gateway, "key-1", 200);
    put(&redis, 1, "broken");
    let before = gateway.metrics().value("tollgate_store_requests_total", &INVALID).unwrap();
    wait_until("another call", || {
        assert_eq!(ask(&gateway, "key-1").status, 200, "the last good answer stays good");
        gateway.metrics().value("tollgate_store_requests_total", &INVALID).unwrap() > before
    });
    let log = gateway.process.stderr();
    assert!(log.contains("cannot read a customer's entry in the directory"), "{log}");
    assert!(!log.contains("canary") && !log.contains("key-1"), "{log}");
    assert!(!log.contains(FIELDS[0]), "{log}");
}

const INVALID: [(&str, &str); 2] = [("op", "customer"), ("result", "invalid")];

#[test]
fn a_key_that_holds_no_hash_is_an_outage() {
    let (origin, redis) = (Origin::start(), Redis::start());
    redis.command(&["SET", "tollgate:customers", "x"]);
    let gateway = gateway(&origin, &redis, "");
    assert_eq!(ask(&gateway, "key-1").status, 503);
    redis.command(&["DEL", "tollgate:customers"]);
    put(&redis, 1, ACME);
    wait_for_status(&gateway, "key-1", 200);
}

#[test]
fn the_password_comes_from_a_file_and_a_wrong_one_is_not_told() {
    let origin = Origin::start();
    let redis = Redis::start_with_password("opensesame");
    put(&redis, 1, ACME);
    let right = gateway_with(&origin, &redis, "", ", password_file: redis.password");
    assert_eq!(ask(&right, "key-1").status, 200);

    let other = Redis::start_with_password("another");
    put(&other, 1, ACME);
    let wrong = gateway_with(&origin, &other, "", ", password_file: redis.password");
    assert_eq!(ask(&wrong, "key-1").status, 503);
    wait_until("the log to say why", || wrong.process.stderr().contains("does not answer customer lookups"));
    assert!(!wrong.process.stderr().contains("opensesame"));
    // the server's password changes to the configured one, and the gateway recovers without a restart
    other.command(&["CONFIG", "SET", "requirepass", "opensesame"]);
    wait_for_status(&wrong, "key-1", 200);
}

#[test]
fn suspended_and_expired_customers_in_redis_are_refused() {
    let (origin, redis) = (Origin::start(), Redis::start());
    put(&redis, 1, r#"{"customer": "acme", "plan": "free", "suspended": true}"#);
    put(&redis, 2, r#"{"customer": "acme", "plan": "free", "valid_until": "2020-01-01", "time_zone": "Asia/Tokyo"}"#);
    put(&redis, 3, r#"{"customer": "acme", "plan": "free", "overrides": {"guard": "unlimited"}}"#);
    let gateway = gateway(&origin, &redis, "");
    assert_eq!(ask(&gateway, "key-1").status, 403);
    assert_eq!(ask(&gateway, "key-2").status, 401);
    let unlimited = ask(&gateway, "key-3");
    assert_eq!((unlimited.status, quota(&unlimited)), (200, None));
}
