//! Requests that wait for their turns.

use std::time::Duration;

use crate::support::client::request;
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::origin::by_path;
use crate::support::{Client, Gateway, Origin, Response, now, pattern, together, wait_until};

/// A limit of one token every `every`; early requests wait, at most `max_wait`.
fn paced(origin: &Origin, every: &str, max_wait: &str, more: &str) -> Gateway {
    let limit = format!(
        "{{ algorithm: gcra, rate: 1/{every}, burst: 1000, delay_after: 0, key: all,
           over_limit: {{ delay: {{ max_wait: {max_wait}{more} }} }} }}"
    );
    Gateway::start(&limited(origin, &limit))
}

fn wait_for_outcome(gateway: &Gateway, outcome: &str, count: f64) {
    let labels = [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, count);
}

/// The number of requests with this outcome so far.
fn counted(gateway: &Gateway, outcome: &str) -> f64 {
    let labels = [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
    gateway.metrics().value("tollgate_limit_requests_total", &labels).unwrap_or(0.0)
}

/// Sends a request that has to wait, and waits until `number` requests have been delayed.
fn waiting(gateway: &Gateway, target: &str, number: u32) -> Client {
    let mut client = gateway.client();
    client.send_request("GET", target, &[]);
    wait_for_outcome(gateway, "delayed", f64::from(number));
    client
}

fn wait_until_none_is_in_flight(gateway: &Gateway) {
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

/// Sends 64 requests together under a limit and its longest wait; the `n`th request at the upstream must not arrive before
/// `due(n)` from the start.
fn assert_paced(limit: &str, due: impl Fn(u32) -> Duration) {
    const COUNT: u32 = 64;
    /// The tolerance for a busy machine.
    const LATE: Duration = Duration::from_secs(10);
    let origin = Origin::start();
    let limit = format!("{{ {limit}, key: all, over_limit: {{ delay: {{ max_wait: 20s }} }} }}");
    let gateway = Gateway::start(&limited(&origin, &limit));
    // One thread sends them on open connections, so that they arrive close together on a busy machine, too.
    let mut clients: Vec<Client> = (0..COUNT).map(|_| gateway.client()).collect();
    let began = now();
    for client in &mut clients {
        client.send_request("GET", "/", &[]);
    }
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.receive().status).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let seen = origin.received();
    assert_eq!(seen.len(), COUNT as usize);
    for (number, seen) in (0..).zip(&seen) {
        let (came, due) = (seen.at - began, due(number));
        assert!(came + Duration::from_millis(1) >= due, "number {number} came after {came:?}, due after {due:?}");
        assert!(came <= due + LATE, "number {number} came after {came:?}, due after {due:?}");
    }
    wait_until_none_is_in_flight(&gateway);
    let (admitted, delayed) = (counted(&gateway, "admitted"), counted(&gateway, "delayed"));
    assert!(delayed > 0.0 && admitted > 0.0);
    assert_eq!(delayed + admitted, f64::from(COUNT));
    let waits = gateway.metrics().value("tollgate_limit_wait_seconds_count", &[("limit", "guard")]);
    assert_eq!(waits, Some(delayed));
}

const EVERY: Duration = Duration::from_millis(20);

#[test]
fn requests_reach_the_upstream_at_the_rate_and_none_is_lost() {
    assert_paced("algorithm: gcra, rate: 1/20ms, burst: 1000, delay_after: 0", |number| EVERY * number);
}

#[test]
fn a_leaky_queue_lets_them_out_at_the_rate() {
    assert_paced("algorithm: leaky_queue, rate: 1/20ms, capacity: 1000", |number| EVERY * number);
}

#[test]
fn smooth_bursty_starts_without_a_burst_and_keeps_the_rate() {
    assert_paced("algorithm: smooth_bursty, rate: 1/20ms", |number| EVERY * number);
}

#[test]
fn smooth_warming_up_starts_at_a_third_of_the_rate() {
    // Half of the 20 stored permits lie above the threshold. On the line from three times the price down to the price
    // itself, they cost 58 ms, 54 ms, and so on down to 22 ms: 400 ms together, which is the warm-up time.
    let price = |number: u32| Duration::from_millis(if number < 10 { 58 - 4 * u64::from(number) } else { 20 });
    assert_eq!((0..10).map(price).sum::<Duration>(), Duration::from_millis(400));
    let limit = "algorithm: smooth_warming_up, rate: 1/20ms, warm_up: 400ms";
    assert_paced(limit, |number| (0..number).map(price).sum());
}

#[test]
fn a_cycle_lets_its_share_out_each_period() {
    assert_paced("algorithm: cycle, limit: 2, period: 40ms", |number| Duration::from_millis(40) * (number / 2));
}

#[test]
fn first_come_is_first_served() {
    let origin = Origin::start();
    let gateway = paced(&origin, "1s", "20s", "");
    let began = now();
    assert_eq!(gateway.get("/0", &[]).status, 200);
    let charge = |number: u32| {
        let mut client = gateway.client();
        client.send_request("GET", &format!("/{number}"), &[]);
        // On a busy machine its turn may have come already.
        wait_until("the charge", || counted(&gateway, "admitted") + counted(&gateway, "delayed") > f64::from(number));
        client
    };
    let mut clients: Vec<Client> = (1..=5).map(charge).collect();
    for client in &mut clients {
        assert_eq!(client.receive().status, 200);
    }
    let seen = origin.received();
    let targets: Vec<&str> = seen.iter().map(|seen| seen.target()).collect();
    assert_eq!(targets, ["/0", "/1", "/2", "/3", "/4", "/5"]);
    assert!(seen[5].at - began >= Duration::from_millis(5 * 1000 - 1), "{seen:?}");
}

#[test]
fn a_request_that_would_wait_too_long_is_denied_at_once() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "150s", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let waits = waiting(&gateway, "/", 1);
    let denied = gateway.get("/", &[]);
    assert_eq!(denied.status, 429);
    // The wait would be 200 s; 50 s later it is 150 s.
    assert!((40..=50).contains(&denied.number("retry-after").unwrap()), "{denied:?}");
    assert_eq!(origin.count(), 1);
    drop(waits);
}

#[test]
fn without_a_wait_nothing_waits() {
    let origin = Origin::start();
    let gateway = paced(&origin, "1h", "0s", "");
    assert_eq!([(); 3].map(|()| gateway.get("/", &[]).status), [200, 429, 429]);
}

#[test]
fn a_client_that_obeys_the_retry_time_of_a_full_queue_finds_its_place() {
    let origin = Origin::start();
    let gateway = paced(&origin, "6s", "20s", ", max_waiting: 1");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let mut waits = waiting(&gateway, "/", 1);
    let denied = gateway.get("/", &[]);
    let told = now();
    assert_eq!(denied.status, 429);
    let seconds = denied.number("retry-after").unwrap();
    assert!((1..=6).contains(&seconds), "{denied:?}");
    wait_until("the retry time to come", || now() - told >= Duration::from_secs(seconds));
    assert_eq!(waits.receive().status, 200);
    assert_eq!(gateway.get("/", &[]).status, 200);
}

#[test]
fn requests_that_another_limit_denies_find_no_queue_full() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  pace: {{ algorithm: gcra, rate: 1/h, burst: 1000, delay_after: 0, key: all,
           over_limit: {{ delay: {{ max_wait: 1d, max_waiting: 1 }} }} }}
  quota: {{ algorithm: sliding_log, limit: 1, window: 1d, key: {{ header: x-user }} }}
routes: [{{ name: all, upstream: origin, limits: [pace, quota] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.get("/", &[("x-user", "a")]).status, 200);
    let mut waits = gateway.client();
    waits.send_request("GET", "/", &[("x-user", "b")]);
    let labels = [("route", "all"), ("limit", "pace"), ("plan", "none"), ("outcome", "delayed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 1.0);
    for _ in 0..3 {
        let denied = gateway.get("/", &[("x-user", "a")]);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["quota"]), "{denied:?}");
        assert!(denied.number("retry-after").unwrap() > 7_200, "{denied:?}");
        let pace = denied.field("ratelimit").unwrap().strip_prefix("\"pace\";r=0;t=").unwrap();
        let (seconds, _) = pace.split_once(',').unwrap();
        assert!(seconds.parse::<u64>().unwrap() > 3_600, "two are charged, and stay charged: {denied:?}");
    }
    drop(waits);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn a_full_queue_tells_what_is_left_of_other_limits_after_the_refund() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  month: {{ algorithm: fixed_window, window: 30d, limit: 9, key: all }}
  denials: {{ algorithm: fixed_window, window: 30d, limit: 9, key: all, charge: {{ denied: true }} }}
  pace: {{ algorithm: leaky_queue, rate: 1/h, capacity: 10, key: all, over_limit: {{ delay: {{ max_wait: 8h, max_waiting: 1 }} }} }}
routes: [{{ name: all, upstream: origin, limits: [month, denials, pace] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.get("/", &[]).status, 200);
    let mut waits = gateway.client();
    waits.send_request("GET", "/", &[]);
    let labels = [("route", "all"), ("limit", "pace"), ("plan", "none"), ("outcome", "delayed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 1.0);
    for kept in [6, 5] {
        let denied = gateway.get("/", &[]);
        assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, serde_json::json!(["pace"])));
        let told = denied.field("ratelimit").unwrap();
        assert!(told.starts_with("\"month\";r=7;") && told.contains(&format!("\"denials\";r={kept};")), "{denied:?}");
    }
    drop(waits);
}

#[test]
fn more_than_may_wait_are_denied() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "1h", ", max_waiting: 3");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let clients: Vec<Client> = (1..=3).map(|number| waiting(&gateway, "/", number)).collect();
    for _ in 0..3 {
        let denied = gateway.get("/", &[]);
        assert_eq!(denied.status, 429);
        assert!((80..=100).contains(&denied.number("retry-after").unwrap()), "{denied:?}");
    }
    assert_eq!(origin.count(), 1);
    drop(clients);
    wait_until_none_is_in_flight(&gateway);
}

#[test]
fn of_many_together_only_as_many_wait_as_may() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "1h", ", max_waiting: 10");
    let clients = together(40, |_| {
        let mut client = gateway.client();
        client.send_request("GET", "/", &[]);
        client
    });
    wait_for_outcome(&gateway, "admitted", 1.0);
    wait_for_outcome(&gateway, "delayed", 10.0);
    wait_for_outcome(&gateway, "denied", 29.0);
    drop(clients);
    wait_until_none_is_in_flight(&gateway);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "499")], 10.0);
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_client_that_leaves_gives_its_place_back() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "1h", ", max_waiting: 1");
    assert_eq!(gateway.get("/", &[]).status, 200);
    for number in 1..=3 {
        let waits = waiting(&gateway, "/", number);
        assert_eq!(gateway.get("/", &[]).status, 429);
        drop(waits);
        wait_until_none_is_in_flight(&gateway);
    }
    assert_eq!(origin.count(), 1, "who left does not reach the upstream");
}

#[test]
fn a_client_that_leaves_gives_its_tokens_back() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "150s", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let waits = waiting(&gateway, "/", 1);
    assert_eq!(gateway.get("/", &[]).status, 429, "200 s are too long");
    drop(waits);
    wait_until_none_is_in_flight(&gateway);
    drop(waiting(&gateway, "/", 2));
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_client_that_leaves_after_having_sent_a_body_is_noticed() {
    let origin = Origin::start();
    let gateway = paced(&origin, "100s", "1h", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    for (number, length) in [10, 60_000].into_iter().enumerate() {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[("content-length", &length.to_string())]));
        client.send(vec![b'x'; length]);
        wait_for_outcome(&gateway, "delayed", f64::from(u32::try_from(number + 1).unwrap()));
        drop(client);
        wait_until_none_is_in_flight(&gateway);
    }
}

#[test]
fn a_body_that_is_sent_while_its_request_waits_arrives_intact() {
    let origin = Origin::start();
    let gateway = paced(&origin, "300ms", "20s", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    for length in [10, 1 << 20] {
        let body = pattern(length);
        let response = gateway.client().post("/echo", &[], &body);
        assert_eq!(response.status, 200);
        assert!(response.body == body, "{length}");
    }
}

#[test]
fn a_connection_goes_on_after_a_wait() {
    let origin = Origin::start();
    let gateway = paced(&origin, "50ms", "20s", "");
    let mut client = gateway.client();
    for number in 0..5 {
        assert_eq!(client.get("/").status, 200, "{number}");
    }
}

#[test]
fn keys_wait_apart() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/100s, burst: 9, delay_after: 0, key: { header: x-key },
        over_limit: { delay: { max_wait: 1h } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[("x-key", "a")]).status, 200);
    let mut waits = gateway.client();
    waits.send_request("GET", "/", &[("x-key", "a")]);
    wait_for_outcome(&gateway, "delayed", 1.0);
    assert_eq!(gateway.get("/", &[("x-key", "b")]).status, 200);
}

#[test]
fn a_request_that_waits_is_in_flight_when_the_gateway_stops() {
    let origin = Origin::start();
    let mut gateway = paced(&origin, "3s", "20s", "");
    wait_until("the handler", || gateway.process.catches(15));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let mut waits = waiting(&gateway, "/", 1);
    gateway.process.signal("TERM");
    assert_eq!(waits.receive().status, 200);
    assert_eq!(gateway.process.wait().code(), Some(0));
}

/// The times until a reset that a response tells: `t` of `RateLimit`, and in the two other dialects.
fn resets(response: &Response) -> [u64; 3] {
    let (_, t) = response.field("ratelimit").unwrap().rsplit_once(";t=").unwrap();
    [Some(t.parse().unwrap()), response.number("x-ratelimit-reset"), response.number("ratelimit-reset")]
        .map(Option::unwrap)
}

#[test]
fn the_time_until_a_reset_is_told_as_of_the_response() {
    let origin = Origin::with(|exchange| {
        if exchange.path() == "/slow" {
            let began = now();
            wait_until("a second and a half", || began.elapsed() > Duration::from_millis(1500));
        }
        by_path(exchange)
    });
    let upstream = origin.upstream_with("timeouts: { first_byte: 3s }");
    let of = |limit: &str| {
        let limit =
            format!("limits: {{ guard: {{ key: {{ header: x-key }}, {limit} }} }}\nheaders: {{ ietf_06: true }}\n");
        Gateway::start(&format!("{upstream}{limit}{ALL_GUARDED}"))
    };
    let gateway = of("algorithm: quota_reset, limit: 5, window: 1m");
    let slow = resets(&gateway.get("/slow", &[("x-key", "slow")]));
    let failed = gateway.get("/stall", &[("x-key", "failed")]);
    assert_eq!(failed.status, 504);
    assert!(slow.iter().all(|seconds| *seconds <= 59), "{slow:?}");
    assert!(resets(&failed).iter().all(|seconds| *seconds <= 57), "{failed:?}");

    let queue = "algorithm: leaky_queue, rate: 1/2s, capacity: 1, over_limit: { delay: { max_wait: 2s } }";
    let gateway = of(queue);
    let [first, delayed] = ["/", "/"].map(|target| gateway.get(target, &[("x-key", "a")]));
    for response in [first, delayed] {
        assert!(resets(&response).iter().all(|seconds| (1..=2).contains(seconds)), "{response:?}");
    }
}
