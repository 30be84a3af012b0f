//! Shared limits when Redis fails: no request gets an error, and the number of admitted requests stays within the
//! guaranteed bounds.

use serde_json::{Value, json};

use crate::admin_api;
use crate::support::redis::Redis;
use crate::support::shared::{self, ONCE_IN_LONG, passed, wait_for_breaker};
use crate::support::{Gateway, LossyProxy, Origin, free_port, wait_until};

/// A gateway with `limit`, shared through the Redis on `port`.
fn gateway(origin: &Origin, port: u16, limit: &str) -> Gateway {
    shared::gateway(origin, port, "timeout: 1s", limit)
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.get("/", &[("x-key", key)]).status
}

/// The labels of an outcome of the limit.
fn outcome(outcome: &str) -> [(&str, &str); 4] {
    [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", outcome)]
}

#[test]
fn without_redis_each_of_two_gateways_enforces_half_of_what_is_left() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateways = [(); 2].map(|()| gateway(&origin, redis.port, ONCE_IN_LONG));
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 2.0);
        assert_eq!(passed(gateway, "spent", 1), 1);
    }
    redis.signal("KILL");
    for gateway in &gateways {
        // a key that neither gateway knows: half of 6
        assert_eq!(passed(gateway, "new", 10), 3);
        // both gateways had used 1, so 4 were left, which the second knew; the first knew of 5
    }
    let left: Vec<usize> = gateways.iter().map(|gateway| passed(gateway, "spent", 10)).collect();
    assert_eq!(left, [2, 2]);
    wait_for_breaker(&gateways[0], "open");
    let fallback = [("source", "fallback")];
    let decided = gateways[0].metrics().value("tollgate_limit_decision_duration_seconds_count", &fallback);
    assert!(decided >= Some(20.0), "{decided:?}");
}

#[test]
fn tokens_admitted_without_redis_are_reconciled_on_recovery() {
    let (origin, port) = (Origin::start(), free_port());
    let redis = Redis::start_on(port, None);
    let gateway = gateway(&origin, port, "algorithm: gcra, rate: 1/h, burst: 6, on_store_down: local");
    assert_eq!(passed(&gateway, "a", 1), 1);
    drop(redis);
    assert_eq!(passed(&gateway, "a", 3), 3);
    wait_for_breaker(&gateway, "open");
    let redis = Redis::start_on(port, None);
    wait_for_breaker(&gateway, "closed");
    // Redis restarts empty: the gateway restores the older request by read repair, and reconciles the three
    assert_eq!(passed(&gateway, "a", 10), 2);
    drop(redis);
}

#[test]
fn a_reconciliation_whose_reply_is_lost_counts_once() {
    let (origin, port) = (Origin::start(), free_port());
    let redis = Redis::start_on(port, None);
    // the charge that reconciles is the only one that takes tokens and is made even where it is denied
    let way = LossyProxy::to(port, b"\r\ntd\r\n", 2);
    let gateway = gateway(&origin, way.port, "algorithm: gcra, rate: 1/h, burst: 9, on_store_down: local");
    assert_eq!(passed(&gateway, "a", 1), 1);
    drop(redis);
    assert_eq!(passed(&gateway, "a", 3), 3);
    wait_for_breaker(&gateway, "open");
    let redis = Redis::start_on(port, None);
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 0.0);
    assert!(way.left() < 2, "a reply was lost");
    wait_for_breaker(&gateway, "closed");
    assert_eq!(passed(&gateway, "a", 10), 5);
    drop(redis);
}

#[test]
fn a_limit_says_what_becomes_of_requests_without_redis() {
    let origin = Origin::start();
    let port = free_port();
    let strict = gateway(&origin, port, "algorithm: gcra, rate: 1/h, burst: 2, on_store_down: deny");
    let denied = strict.get("/", &[("x-key", "a")]);
    assert_eq!(denied.status, 503, "{denied:?}");
    assert!(denied.number("retry-after").is_some(), "{denied:?}");
    assert_eq!(denied.field("ratelimit"), None, "nobody knows");
    assert_eq!(denied.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    let refused = outcome("error_denied");
    strict.wait_for_metric("tollgate_limit_requests_total", &refused, 1.0);
    assert_eq!(origin.count(), 0);

    let open = gateway(&origin, port, "algorithm: gcra, rate: 1/h, burst: 2, on_store_down: allow");
    assert_eq!(passed(&open, "a", 5), 5);
    let admitted = open.get("/", &[("x-key", "a")]);
    assert_eq!(
        (admitted.status, admitted.field("ratelimit"), admitted.field("x-ratelimit-remaining")),
        (200, None, None)
    );
    let passed_over = outcome("error_admitted");
    open.wait_for_metric("tollgate_limit_requests_total", &passed_over, 6.0);
    let said = |command: &[&str]| {
        let admin = open.admin.to_string();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([command, &["--admin", &admin]].concat())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let peeked = said(&["keys", "peek", "--limit", "guard", "header x-key=a"]);
    assert!(peeked.contains("now: nobody knows while Redis is unavailable"), "{peeked}");
    let header = "admitted/s  over/s  share  unknown/s  keys";
    wait_until("requests without Redis", || {
        let top = said(&["top", "--once"]);
        assert!(top.contains(header), "{top}");
        let guard = top.lines().find_map(|line| line.strip_prefix("guard ")).unwrap();
        !guard.split_whitespace().nth(3).unwrap().starts_with("0.0")
    });

    let local = gateway(&origin, port, "algorithm: gcra, rate: 1/h, burst: 2, on_store_down: local");
    assert_eq!(passed(&local, "a", 5), 2);
}

#[test]
fn the_access_log_says_what_could_not_be_known() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "access_log: full
{}store: {{ redis: \"redis://127.0.0.1:{}\" }}
limits:
  own: {{ algorithm: gcra, rate: 9/s, burst: 9, key: all }}
  open: {{ algorithm: gcra, rate: 9/s, burst: 9, key: all, mode: shared, on_store_down: allow }}
  closed: {{ algorithm: gcra, rate: 9/s, burst: 9, key: all, mode: shared, on_store_down: deny }}
routes:
- {{ name: open, match: {{ path: /open }}, upstream: origin, limits: [own, open] }}
- {{ name: closed, match: {{ path: /closed }}, upstream: origin, limits: [closed] }}
",
        origin.upstream(),
        free_port(),
    ));
    for (path, status, decision, limit) in
        [("/open", 200, "error_admitted", json!("open")), ("/closed", 503, "error_denied", Value::Null)]
    {
        assert_eq!(gateway.get(path, &[]).status, status);
        let line = gateway.process.wait_for_access(path);
        assert_eq!((&line["decision"], &line["limit"]), (&json!(decision), &limit), "{line}");
    }
}

#[test]
fn a_redis_that_refuses_charges_is_left_alone_until_it_takes_them() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, "algorithm: gcra, rate: 1/h, burst: 2, on_store_down: deny");
    assert_eq!(passed(&gateway, "a", 1), 1);
    redis.command(&["ACL", "SETUSER", "default", "-set"]);
    assert_eq!([(); 10].map(|()| status(&gateway, "a")), [503; 10]);
    wait_for_breaker(&gateway, "open");
    let refused_probes = || {
        let labels = [("op", "heartbeat"), ("result", "refused")];
        gateway.metrics().value("tollgate_store_requests_total", &labels).unwrap_or_default()
    };
    wait_until("probes to be refused", || refused_probes() >= 5.0);
    wait_for_breaker(&gateway, "open");
    // in the words of Redis and of Valkey
    const REFUSAL: &str = "on @user_script";
    let server = || gateway.admin_get("/status").json()["store"]["servers"][0].clone();
    let failure = server()["failure"].as_str().unwrap_or_default().to_owned();
    assert!(failure.contains(REFUSAL), "{failure}");
    let lines = gateway.process.stderr();
    let opened = lines.lines().find(|line| line.contains("calls to Redis fail; limits that gateways share")).unwrap();
    assert!(opened.contains(REFUSAL), "{opened}");
    redis.command(&["ACL", "SETUSER", "default", "+@all"]);
    wait_for_breaker(&gateway, "closed");
    wait_until("no failure to be shown", || server()["failure"].is_null());
    assert_eq!(passed(&gateway, "a", 3), 1);
}

#[test]
fn a_redis_that_hangs_may_charge_the_requests_that_did_not_wait_for_it() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = shared::gateway(&origin, redis.port, "timeout: 50ms", "algorithm: gcra, rate: 1/h, burst: 100");
    assert_eq!(passed(&gateway, "a", 1), 1);
    redis.signal("STOP");
    assert_eq!(passed(&gateway, "a", 50), 50);
    wait_for_breaker(&gateway, "open");
    redis.signal("CONT");
    wait_for_breaker(&gateway, "closed");
    let left = passed(&gateway, "a", 60);
    assert!((44..=49).contains(&left), "{left}");
}

#[test]
fn a_redis_that_forgets_does_not_refill_what_is_known_to_be_spent() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, ONCE_IN_LONG);
    assert_eq!(passed(&gateway, "a", 4), 4);
    assert_eq!(redis.command(&["FLUSHALL"]), "+OK");
    assert_eq!(redis.command(&["SCRIPT", "FLUSH"]), "+OK");
    assert_eq!(passed(&gateway, "a", 10), 2);
    assert_eq!(status(&gateway, "b"), 200);
}

#[test]
fn windows_and_logs_are_not_refilled_either() {
    for limit in [
        "algorithm: fixed_window, limit: 6, window: 1d",
        "algorithm: quota_reset, limit: 6, window: 1d",
        "algorithm: sliding_window, limit: 6, window: 1d",
        "algorithm: sliding_log, limit: 6, window: 1d, min_gap: 1ns",
        "algorithm: sliding_counters, limit: 6, window: 1d",
    ] {
        let (origin, redis) = (Origin::start(), Redis::start());
        let gateway = gateway(&origin, redis.port, limit);
        assert_eq!(passed(&gateway, "a", 4), 4, "{limit}");
        assert_eq!(redis.command(&["FLUSHALL"]), "+OK");
        let more = passed(&gateway, "a", 10);
        assert!(more <= 3, "{limit}: {more}");
    }
}

#[test]
fn limits_whose_tokens_come_back_are_not_refilled_by_a_redis_that_forgets() {
    for rule in [
        "gcra, rate: 1/h, burst: 6",
        "fixed_window, limit: 6, window: 1d",
        "cycle, limit: 6, period: 1d",
        "sliding_window, limit: 6, window: 1d",
        "sliding_log, limit: 6, window: 1d",
    ] {
        let (origin, redis) = (Origin::start(), Redis::start());
        let limit = format!("algorithm: {rule}, charge: {{ when: response, if_status: [200] }}");
        let gateway = gateway(&origin, redis.port, &limit);
        assert_eq!(passed(&gateway, "a", 4), 4, "{limit}");
        assert_eq!(redis.command(&["FLUSHALL"]), "+OK");
        let more = passed(&gateway, "a", 10);
        assert!(more <= 3, "{limit}: {more}");
    }
}

#[test]
fn a_redis_that_refuses_writes_is_one_that_is_away() {
    for refusal in [&["CONFIG", "SET", "maxmemory", "1"][..], &["REPLICAOF", "127.0.0.1", "1"]] {
        let (origin, redis) = (Origin::start(), Redis::start());
        let gateway = gateway(&origin, redis.port, ONCE_IN_LONG);
        assert_eq!(passed(&gateway, "a", 1), 1);
        assert_eq!(redis.command(refusal), "+OK");
        assert_eq!(passed(&gateway, "a", 20), 5, "{refusal:?}");
        wait_for_breaker(&gateway, "open");
    }
}

#[test]
fn invalid_states_in_redis_are_replaced() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, ONCE_IN_LONG);
    assert_eq!(passed(&gateway, "a", 1), 1);
    let key = redis.keys("tollgate:*guard*").pop().unwrap();
    for poison in [&["SET", key.as_str(), "nan"][..], &["SET", key.as_str(), "9e99 9e99 9e99"]] {
        assert_eq!(redis.command(poison), "+OK");
        assert!(matches!(status(&gateway, "a"), 200 | 429));
    }
    redis.command(&["DEL", &key]);
    redis.command(&["RPUSH", &key, "1"]);
    assert!(matches!(status(&gateway, "a"), 200 | 429));
    wait_until("the states to be counted", || {
        gateway.metrics().value("tollgate_store_states_healed_total", &[]).is_some_and(|healed| healed >= 2.0)
    });
}

#[test]
fn a_key_that_makes_no_sense_is_no_fresh_one() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, "algorithm: fixed_window, limit: 6, window: 1d");
    assert_eq!(passed(&gateway, "a", 4), 4);
    let key = redis.keys("tollgate:*guard*").pop().unwrap();
    assert_eq!(redis.command(&["SET", &key, "nan"]), "+OK");
    let more = passed(&gateway, "a", 10);
    assert!(more <= 3, "{more}");
}

#[test]
fn connections_that_are_cut_are_opened_again() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, "algorithm: gcra, rate: 1/h, burst: 1000");
    for _ in 0..20 {
        assert_eq!(passed(&gateway, "a", 5), 5);
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}

#[test]
fn without_redis_operators_are_told_what_becomes_of_requests() {
    let origin = Origin::start();
    let config = format!(
        "{}store: {{ redis: \"redis://127.0.0.1:{}\", nodes: 2 }}
limits:
  denies: {{ key: all, mode: shared, on_store_down: deny, algorithm: gcra, rate: 1/h, burst: 10 }}
  allows: {{ key: all, mode: shared, on_store_down: allow, algorithm: gcra, rate: 1/h, burst: 10 }}
  slots: {{ key: all, mode: shared, algorithm: concurrency, limit: 4 }}
routes: [{{ name: all, upstream: origin, limits: [denies, allows, slots] }}]
",
        origin.upstream(),
        free_port(),
    );
    let gateway = admin_api::started(&config, &[]);
    let ask = |path: &str, question: &Value| {
        admin_api::post(&gateway, path, &[admin_api::HOST, admin_api::BEARER], question).json()
    };
    let explained = ask("/v1/explain", &json!({ "method": "GET", "url": "http://test/" }));
    assert_eq!(explained["answer"]["status"], 503, "{explained}");
    let limits =
        [("denies", "denied", Value::Null), ("allows", "admitted", Value::Null), ("slots", "admitted", json!(2))];
    for (position, (limit, decision, remaining)) in limits.into_iter().enumerate() {
        let peeked = ask("/v1/keys/peek", &json!({ "limit": limit }));
        for standing in [&peeked["standing"], &explained["limits"][position]["standing"]] {
            assert_eq!((&standing["decision"], &standing["remaining"]), (&json!(decision), &remaining), "{limit}");
        }
    }
}

const LEASED: &str = "algorithm: gcra, rate: 1/h, burst: 100, consistency: leased";

#[test]
fn leased_tokens_are_not_refilled_by_a_redis_that_forgets() {
    for meanwhile in [0, 15] {
        let (origin, port) = (Origin::start(), free_port());
        let redis = Redis::start_on(port, None);
        let gateway = gateway(&origin, port, LEASED);
        let mut passes = passed(&gateway, "a", 60);
        drop(redis);
        wait_for_breaker(&gateway, "open");
        passes += passed(&gateway, "a", meanwhile);
        let redis = Redis::start_on(port, None);
        wait_for_breaker(&gateway, "closed");
        passes += passed(&gateway, "a", 130);
        let tokens =
            |event| gateway.metrics().value("tollgate_lease_tokens_total", &[("event", event)]).unwrap_or_default();
        // expired leases are lost
        let lost = tokens("taken") - tokens("spent");
        let used = f64::from(u32::try_from(passes).unwrap()) + lost;
        assert!(passes <= 100 && used >= 95.0, "{passes} passed, {lost} lapsed");
        drop(redis);
    }
}

#[test]
fn of_tokens_taken_ahead_clients_are_never_told_of_more_than_there_are() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, LEASED);
    let mut client = gateway.client();
    let mut most = 100;
    for _ in 0..100 {
        let response = client.round_trip("GET", "/", &[("x-key", "a")]);
        most -= u64::from(response.status == 200 && most > 0);
        let told = response.number("x-ratelimit-remaining").unwrap();
        assert!(told <= most, "{told} of {most}");
        most = told;
    }
}
