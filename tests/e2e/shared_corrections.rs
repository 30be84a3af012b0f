//! Corrections while Redis is unavailable: refunds and real costs count for the requests that this gateway admits
//! meanwhile, and for the tokens that it reconciles afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::{Exchange, Gateway, Origin, free_port, now, wait_until};

/// A gateway that shares `limits` through the Redis on `port`; `routes` is the list of routes. It syncs so seldom that it
/// counts a key alone for as long as a test needs.
fn gateway(origin: &Origin, port: u16, limits: &str, routes: &str) -> Gateway {
    Gateway::start(&format!(
        "{}store: {{ redis: \"redis://127.0.0.1:{port}\", timeout: 1s, sync_every: 10s, nodes: 2 }}
limits:\n{limits}routes: {routes}
",
        origin.upstream(),
    ))
}

fn limit(name: &str, settings: &str) -> String {
    format!("  {name}: {{ mode: shared, on_store_down: local, {settings} }}\n")
}

/// A gateway with one limit for all requests.
fn guarded(origin: &Origin, port: u16, settings: &str) -> Gateway {
    gateway(
        origin,
        port,
        &limit("guard", &format!("key: all, {settings}")),
        "[{ name: all, upstream: origin, limits: [guard] }]",
    )
}

#[track_caller]
fn remaining(gateway: &Gateway, path: &str) -> u64 {
    let response = gateway.get(path, &[]);
    response.number("x-ratelimit-remaining").unwrap_or_else(|| panic!("{response:?}"))
}

/// The number of admitted requests of `count`; all others must be denied.
#[track_caller]
fn passed(gateway: &Gateway, path: &str, count: usize) -> usize {
    let statuses: Vec<u16> = (0..count).map(|_| gateway.get(path, &[("x-key", "a")]).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 401 | 429)), "{statuses:?}");
    statuses.iter().filter(|status| **status != 429).count()
}

/// Stops Redis, runs `meanwhile`, waits until `unsynced` tokens wait for reconciliation, and starts an empty Redis.
fn without_redis(redis: Redis, gateway: &Gateway, meanwhile: impl FnOnce(), unsynced: f64) -> Redis {
    let port = redis.port;
    drop(redis);
    // the heartbeats fail until the breaker is open
    gateway.wait_for_metric("tollgate_store_breaker_state", &[("state", "open")], 1.0);
    meanwhile();
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], unsynced);
    let redis = Redis::start_on(port, None);
    gateway.wait_for_metric("tollgate_store_breaker_state", &[("state", "closed")], 1.0);
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 0.0);
    redis
}

const RULE: &str = "algorithm: gcra, rate: 1/h, burst: 30";

#[test]
fn a_request_that_one_limit_denies_in_an_outage_is_handed_in_to_none() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limits = [
        limit("own", "key: { header: x-key }, algorithm: gcra, rate: 1/h, burst: 7"),
        limit("exact", &format!("key: all, {RULE}")),
        limit("leased", &format!("key: all, consistency: leased, {RULE}")),
        limit("eventual", &format!("key: all, consistency: eventual, {RULE}")),
    ];
    let routes = "
  - { name: each, match: { path: /each/* }, upstream: origin, limits: [own, exact, leased, eventual] }
  - { name: exact, match: { path: /exact }, upstream: origin, limits: [exact] }
  - { name: leased, match: { path: /leased }, upstream: origin, limits: [leased] }
  - { name: eventual, match: { path: /eventual }, upstream: origin, limits: [eventual] }";
    let gateway = gateway(&origin, redis.port, &limits.concat(), routes);
    let redis = without_redis(redis, &gateway, || assert_eq!(passed(&gateway, "/each/1", 27), 7), 28.0);
    for path in ["/exact", "/leased", "/eventual"] {
        assert_eq!(passed(&gateway, path, 40), 23, "{path}");
    }
    drop(redis);
}

#[test]
fn requests_that_cost_nothing_in_the_end_are_not_handed_in() {
    for rule in [
        "algorithm: gcra, rate: 1/h, burst: 30",
        "algorithm: gcra, rate: 1/h, burst: 30, consistency: leased",
        "algorithm: gcra, rate: 1/h, burst: 30, consistency: eventual",
        "algorithm: fixed_window, limit: 30, window: 30d",
        "algorithm: sliding_window, limit: 30, window: 30d",
        "algorithm: sliding_log, limit: 30, window: 30d",
    ] {
        let (origin, redis) = (Origin::start(), Redis::start());
        let gateway = guarded(&origin, redis.port, &format!("{rule}, charge: {{ when: response, if_status: [401] }}"));
        // Redis has counted this request, but loses it when it restarts
        assert_eq!(passed(&gateway, "/status/401", 1), 1, "{rule}");
        let meanwhile = || {
            assert_eq!(passed(&gateway, "/", 10), 10, "{rule}");
            assert_eq!(passed(&gateway, "/status/401", 3), 3, "{rule}");
        };
        let redis = without_redis(redis, &gateway, meanwhile, 3.0);
        let left = f64::from(u32::try_from(passed(&gateway, "/status/401", 60)).unwrap());
        let tokens =
            |event| gateway.metrics().value("tollgate_lease_tokens_total", &[("event", event)]).unwrap_or_default();
        // leased tokens that have expired are lost
        let lost = tokens("taken") + tokens("returned") - tokens("spent");
        assert!((26.0..=27.0).contains(&(left + lost)), "{rule}: {left}, and {lost} lapsed");
        drop(redis);
    }
}

/// Answers with a completion whose cost is the number in the path.
fn complete(exchange: &mut Exchange<'_>) -> std::io::Result<()> {
    let tokens = exchange.path().trim_start_matches('/').to_owned();
    if tokens == "failed" {
        exchange.keep = false;
        return Ok(());
    }
    let body = format!("{{\"usage\": {{\"total_tokens\": {tokens}}}}}");
    exchange.reply("200 OK", "content-type: application/json\r\n", body.as_bytes())
}

const BY_TOKENS: &str = "algorithm: gcra, rate: 1/h, burst: 9000, cost: { response_field: usage.total_tokens, max: 5000 }, charge: { when: response, reserve: 100 }";

#[test]
fn responses_tell_in_an_outage_what_they_cost_there_and_afterwards() {
    let (origin, redis) = (Origin::with(complete), Redis::start());
    let gateway = guarded(&origin, redis.port, BY_TOKENS);
    let meanwhile = || {
        for (answer, left) in [("10", 8900), ("10", 8890), ("500", 8880), ("3000", 8380), ("0", 5380), ("failed", 5380)]
        {
            wait_until("the response before to be charged", || remaining(&gateway, "/0") == left);
            gateway.get(&format!("/{answer}"), &[]);
        }
    };
    let redis = without_redis(redis, &gateway, meanwhile, 3520.0);
    assert_eq!(remaining(&gateway, "/0"), 9000 - 3520 - 100);
    drop(redis);
}

#[test]
fn a_gateway_charges_its_share_with_all_that_responses_cost() {
    let origin = Origin::with(complete);
    let divided = limit("guard", &format!("key: all, {BY_TOKENS}")).replace("local", "divide");
    // without Redis this gateway is one of two, as the configuration says
    let gateway = gateway(&origin, free_port(), &divided, "[{ name: all, upstream: origin, limits: [guard] }]");
    for (answer, left) in [("1000", 4400), ("10", 3400), ("0", 3390)] {
        wait_until("the response before to be charged", || remaining(&gateway, "/0") == left);
        gateway.get(&format!("/{answer}"), &[]);
    }
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 1010.0);
}

#[test]
fn a_response_after_redis_went_away_costs_what_it_says_of_a_request_from_before() {
    let (redis, (command, origin)) = (Redis::start(), Origin::on_command());
    let gateway = guarded(&origin, redis.port, BY_TOKENS);
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    let meanwhile = || {
        for part in [&br#"{"usage": {"total_tokens": 1000}}"#[..], b""] {
            command.send(part).unwrap();
        }
        assert_eq!(client.receive().status, 200);
    };
    drop(without_redis(redis, &gateway, meanwhile, 900.0));
}

#[test]
fn a_share_of_what_is_counted_apart_is_whole_again_when_requests_cost_nothing() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let rule = "algorithm: gcra, rate: 1/h, burst: 30, charge: { when: response, if_status: [401] }";
    let divided = limit("guard", &format!("key: all, consistency: eventual, {rule}")).replace("local", "divide");
    let gateways =
        [(); 2].map(|()| gateway(&origin, redis.port, &divided, "[{ name: all, upstream: origin, limits: [guard] }]"));
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 2.0);
        assert_eq!(passed(gateway, "/status/401", 1), 1);
    }
    drop(redis);
    gateways[0].wait_for_metric("tollgate_store_breaker_state", &[("state", "open")], 1.0);
    assert_eq!(passed(&gateways[0], "/", 40), 40);
    // half of 28, or of 29 if the gateway has not heard of the other one's request
    assert_eq!(passed(&gateways[0], "/status/401", 40), 14);
}

#[test]
fn reserves_that_come_back_late_are_no_second_burst() {
    const RESERVE: u32 = 5;
    for round in 0..3 {
        let is_open = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&is_open);
        let origin = Origin::with(move |exchange| {
            let is_held = exchange.path() == "/held";
            if is_held {
                wait_until("the gate to open", || gate.load(Ordering::Relaxed));
            }
            let tokens = if is_held { 0 } else { RESERVE };
            let body = format!("{{\"usage\": {{\"total_tokens\": {tokens}}}}}");
            exchange.reply("200 OK", "content-type: application/json\r\n", body.as_bytes())
        });
        let redis = Redis::start();
        let rule = "algorithm: gcra, rate: 100/s, burst: 200, consistency: leased, strict: true";
        let by_tokens = "cost: { response_field: usage.total_tokens, max: 100 }";
        let settings = format!("{rule}, {by_tokens}, charge: {{ when: response, reserve: {RESERVE} }}");
        let gateway = guarded(&origin, redis.port, &settings);
        let mut held: Vec<_> = (0..32).map(|_| gateway.client()).collect();
        for (number, client) in held.iter_mut().enumerate() {
            client.send_request("GET", "/held", &[]);
            origin.wait_for_count(number + 1);
        }
        // the time until the bucket is full
        let whole = now() + Duration::from_secs(2);
        wait_until("the bucket to be whole", || now() >= whole);
        let (mut client, mut admitted, began) = (gateway.client(), 0, now());
        while now() - began < Duration::from_secs(1) {
            admitted += u32::from(client.round_trip("GET", "/", &[]).status == 200) * RESERVE;
            is_open.fetch_or(admitted > 5 * round * RESERVE, Ordering::Relaxed);
        }
        let fits = 200.0 + 100.0 * (now() - began).as_secs_f64();
        assert!(f64::from(admitted) <= fits, "{admitted} of {fits}");
    }
}
