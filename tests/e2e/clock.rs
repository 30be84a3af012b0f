//! The wall clock is set while gateways run: everything that depends on it follows at once, and no limit refills or blocks
//! its keys.

use serde_json::json;

use crate::support::cluster::{Nodes, keys, wait_for_members};
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::tokens::{Issuer, key_set, seconds_from_now};
use crate::support::wall_clock::WallClock;
use crate::support::{Gateway, Origin, wait_until};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn start(clock: &WallClock, config: &str, files: &[(&str, &str)]) -> Gateway {
    let environment = clock.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    Gateway::start_with(config, files, &environment)
}

/// Sets the clock of `gateway`, and waits until the gateway has noticed.
fn set(clock: &WallClock, gateway: &Gateway, ahead: i64) {
    clock.set(ahead);
    let expected = seconds_from_now(ahead) as f64;
    let says = || gateway.admin_get("/status").json()["timestamp_seconds"].as_f64().unwrap();
    wait_until("the gateway to see its clock set", || (says() - expected).abs() < 600.0);
}

fn ask(gateway: &Gateway, user: &str) -> u16 {
    gateway.get("/", &[("x-user", user)]).status
}

#[test]
fn tokens_and_customers_end_when_the_wall_clock_says_so() {
    let (origin, clock) = (Origin::start(), WallClock::new());
    let config = format!(
        "{}customers: {{ identify: [{{ jwt: {{ jwks_file: keys.jwks, plan: free }} }}, {{ header: x-api-key }}], \
         directory: {{ file: customers.csv }} }}\nplans: [free]\n\
         limits: {{ guard: {{ algorithm: gcra, rate: 1000/s, burst: 1000, key: client_address }} }}\n{ALL_GUARDED}",
        origin.upstream()
    );
    let end = jiff::Timestamp::from_second(seconds_from_now(2 * HOUR)).unwrap();
    let customers = format!("credential,customer,plan,valid_until\nkey,acme,free,{end}\n");
    let files = [("keys.jwks", key_set(&[Issuer::ed25519()])), ("customers.csv", customers)];
    let gateway = start(&clock, &config, &files.each_ref().map(|(name, text)| (*name, text.as_str())));
    let token = Issuer::ed25519().sign(&json!({ "sub": "acme", "exp": seconds_from_now(HOUR) }));
    let ask = || {
        let bearer = gateway.get("/", &[("authorization", &format!("Bearer {token}"))]).status;
        (bearer, gateway.get("/", &[("x-api-key", "key")]).status)
    };
    assert_eq!(ask(), (200, 200));
    clock.set(90 * 60);
    wait_until("the token to end", || ask() == (401, 200));
    clock.set(3 * HOUR);
    wait_until("the customer to end", || ask() == (401, 401));
    clock.set(0);
    wait_until("both to be good again", || ask() == (200, 200));
}

#[test]
fn a_step_neither_refills_a_limit_nor_locks_anybody_out() {
    let (origin, clock) = (Origin::start(), WallClock::new());
    let config = format!(
        "{}limits:
  bucket: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ header: x-user }} }}
  window: {{ algorithm: sliding_window, limit: 100, window: 1h, key: {{ header: x-user }} }}
  refills: {{ algorithm: gcra, rate: 100/s, burst: 1, key: {{ header: x-user }} }}
routes:
  - {{ name: quick, match: {{ path: /quick }}, upstream: origin, limits: [refills] }}
  - {{ name: all, upstream: origin, limits: [bucket, window] }}
",
        origin.upstream()
    );
    let gateway = start(&clock, &config, &[]);
    let quick = || gateway.get("/quick", &[("x-user", "ann")]).status;
    assert_eq!([0; 3].map(|_| ask(&gateway, "ann")), [200, 200, 429]);
    for ahead in [2 * DAY, 0, -2 * DAY, 3 * DAY, -HOUR] {
        set(&clock, &gateway, ahead);
        let response = gateway.get("/", &[("x-user", "ann")]);
        assert_eq!(response.status, 429, "{ahead} s ahead");
        assert!(response.number("retry-after").unwrap() <= HOUR as u64, "{response:?}");
        wait_until("a token that comes in 10 ms", || quick() == 200);
    }
}

#[test]
fn calendar_windows_follow_the_wall_clock_and_none_begins_twice() {
    let (origin, clock) = (Origin::start(), WallClock::new());
    let daily = "{ algorithm: fixed_window, limit: 2, window: day, align: calendar, key: { header: x-user } }";
    let config = format!("headers: {{ x_ratelimit: epoch }}\n{}", limited(&origin, daily));
    let gateway = start(&clock, &config, &[]);
    // noon, so that a test of some minutes ends on the same day
    let noon = DAY / 2 - seconds_from_now(0) % DAY;
    let three = || [0; 3].map(|_| ask(&gateway, "ann"));
    set(&clock, &gateway, noon);
    assert_eq!(three(), [200, 200, 429]);
    set(&clock, &gateway, noon + DAY);
    assert_eq!(three(), [200, 200, 429], "the next day");
    for ahead in [noon, noon + DAY] {
        set(&clock, &gateway, ahead);
        assert_eq!(three(), [429; 3], "both days' windows are spent");
    }
    set(&clock, &gateway, noon + 2 * DAY);
    let response = gateway.get("/", &[("x-user", "ann")]);
    assert_eq!(response.status, 200);
    let ends = (seconds_from_now(noon + 2 * DAY) / DAY + 1) * DAY;
    assert_eq!(response.number("x-ratelimit-reset"), Some(ends as u64));
    assert_eq!(ask(&gateway, "ann"), 200);
    // the clock was far ahead by mistake: after the correction, the usage counts in the real day
    set(&clock, &gateway, noon - 300 * DAY);
    let response = gateway.get("/", &[("x-user", "ann")]);
    assert_eq!(response.status, 429);
    assert!(response.number("retry-after").unwrap() <= DAY as u64, "{response:?}");
}

#[test]
fn a_restart_after_a_step_neither_refills_nor_locks_out() {
    let (origin, clock) = (Origin::start(), WallClock::new());
    let bucket = "{ algorithm: gcra, rate: 1/h, burst: 1, key: { header: x-user } }";
    let config = format!("{}state: {{ file: tollgate.state, every: 1h }}\n", limited(&origin, bucket));
    let mut gateway = start(&clock, &config, &[]);
    assert_eq!([0; 2].map(|_| ask(&gateway, "ann")), [200, 429]);
    for ahead in [5 * HOUR, -5 * HOUR] {
        set(&clock, &gateway, ahead);
        gateway.restart("TERM");
        let response = gateway.get("/", &[("x-user", "ann")]);
        assert_eq!(response.status, 429, "{ahead} s ahead");
        assert!(response.number("retry-after").unwrap() <= HOUR as u64, "{response:?}");
    }
}

#[test]
fn states_that_move_to_a_gateway_whose_clock_was_not_stepped_are_the_same_there() {
    const KEYS: usize = 20;
    let (origin, clock, nodes) = (Origin::start(), WallClock::new(), Nodes::new(2));
    let limit = "algorithm: gcra, rate: 1/h, burst: 1";
    // the first gateway's clock is wrong at its start, and is corrected later
    clock.set(-5 * HOUR);
    let environment = clock.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let rest =
        format!("{}limits: {{ guard: {{ key: {{ header: x-user }}, {limit} }} }}\n{ALL_GUARDED}", origin.upstream());
    let config = |position| format!("{}{rest}", nodes.section(position, "timeout: 1s"));
    let secret = ("cluster.key", crate::support::cluster::SECRET);
    let mut gateways = vec![Gateway::start_with(&config(0), &[secret], &environment)];
    set(&clock, &gateways[0], 0);
    let user = |number: usize| format!("user-{number}");
    for number in 0..KEYS {
        assert_eq!([0; 2].map(|_| ask(&gateways[0], &user(number))), [200, 429]);
    }
    gateways.push(Gateway::start_with(&config(1), &[secret], &[]));
    wait_for_members(&gateways, 2);
    wait_until("some states to move", || keys(&gateways[1]) > 0);
    gateways[0].end("TERM");
    for number in 0..KEYS {
        let response = gateways[1].get("/", &[("x-user", &user(number))]);
        assert_eq!(response.status, 429, "{number}");
        assert!(response.number("retry-after").unwrap() <= HOUR as u64, "{response:?}");
    }
}
