//! The number of a gateway's metric series depends on its configuration alone, whatever clients send.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, together, wait_for, wait_until};

const PLANS: [&str; 5] = ["trial", "free", "pro", "business", "enterprise"];
const ROUTES: usize = 50;
const LIMITS: usize = 20;

/// Fifty routes with two limits each, out of twenty limits, a quarter of which are shared; each limit has parameters for
/// every plan.
fn large(origin: &Origin, redis: &Redis) -> String {
    let terms: String = PLANS.iter().map(|plan| format!("{plan}: {{ rate: 1/h, burst: 3 }}, ")).collect();
    let limits: String = (0..LIMITS)
        .map(|limit| {
            let mode = if limit % 4 == 0 { "shared" } else { "sticky" };
            let key = "[customer, route, { header: x-key }]";
            format!("  limit-{limit}: {{ mode: {mode}, algorithm: gcra, key: {key}, plans: {{ {terms} }} }}\n")
        })
        .collect();
    let routes: String = (0..ROUTES)
        .map(|route| {
            let (one, other) = (route % LIMITS, (route + 7) % LIMITS);
            format!(
                "  - {{ name: route-{route}, match: {{ path: /r{route}/** }}, upstream: origin, limits: [limit-{one}, limit-{other}] }}\n"
            )
        })
        .collect();
    format!(
        "{}store: {{ redis: \"{}\", timeout: 1s }}
customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: trial }}
  unknown: anonymous
plans: [{}]
limits:
{limits}routes:
{routes}",
        origin.upstream(),
        redis.url(),
        PLANS.join(", "),
    )
}

/// Creates all series that the configuration makes possible: each route and plan admitted, denied, failed upstream and
/// exempt.
fn warm(gateway: &Gateway) {
    together(2, |half| {
        let mut client = gateway.client();
        for route in (0..ROUTES).filter(|route| route % 2 == half) {
            for plan in PLANS {
                let statuses = ["200", "500", "404", "200"].map(|status| {
                    let fields = [("x-api-key", plan), ("x-key", "warm"), ("x-status", status)];
                    client.round_trip("GET", &format!("/r{route}/"), &fields).status
                });
                assert_eq!(statuses, [200, 500, 404, 429]);
            }
            let preflight = [("origin", "https://a.test"), ("access-control-request-method", "GET")];
            client.round_trip("OPTIONS", &format!("/r{route}/"), &preflight);
        }
    });
    assert_eq!(gateway.get("/nowhere", &[]).status, 404);
    assert_eq!(gateway.round_trip_raw("GET /%zz HTTP/1.1\r\nhost: test\r\n\r\n").unwrap().status, 400);
}

/// Sends `count` requests with new paths, queries, keys, credentials, hosts and methods.
fn wander(gateway: &Gateway, count: usize) {
    const CLIENTS: usize = 4;
    together(CLIENTS, |number| {
        let mut random = StdRng::seed_from_u64(number as u64);
        let mut client = gateway.client();
        for _ in 0..count / CLIENTS {
            let word = format!("w{:x}", random.random::<u64>());
            let route = random.random_range(0..ROUTES + 1);
            let method = if random.random_bool(0.5) { "GET".to_owned() } else { word.to_uppercase() };
            let plan = if random.random_bool(0.5) { PLANS[random.random_range(0..PLANS.len())] } else { &word };
            let host = format!("{word}.test");
            let fields = [("x-api-key", plan), ("x-key", &word), ("host", &host), ("user-agent", &word)];
            let response = client.round_trip(&method, &format!("/r{route}/{word}?{word}={word}"), &fields);
            assert!(matches!(response.status, 200 | 404 | 429), "{response:?}");
        }
    });
}

fn assert_constant_under(count: usize) {
    let redis = Redis::start();
    let origin = Origin::with(|exchange| {
        let status = exchange.head.field("x-status").unwrap_or("200").to_owned();
        exchange.body()?;
        exchange.reply(&format!("{status} Whatever"), "", b"")
    });
    let customers: String = PLANS.iter().map(|plan| format!("{plan},customer-{plan},{plan}\n")).collect();
    let customers = format!("credential,customer,plan\n{customers}");
    let gateway = Gateway::start_with(&large(&origin, &redis), &[("customers.csv", &customers)], &[]);
    warm(&gateway);
    let series = || {
        let text = gateway.admin_get("/metrics").text();
        let mut series: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
            .collect();
        series.sort();
        series
    };
    // a request is counted a moment after its response
    let before = wait_for("the last request to be counted", || {
        let before = series();
        let counted = before.iter().any(|one| one.contains("code=\"400\""));
        counted.then_some(before)
    });
    assert!(before.len() < 6000, "{} series", before.len());
    // by far most of the series belong to the names in the configuration
    assert!(before.len() > 4000, "{} series", before.len());
    wander(&gateway, count);
    wait_until("all requests to be over", || {
        let in_flight = gateway.metrics();
        in_flight.all("tollgate_http_requests_in_flight").iter().all(|sample| sample.value == 0.0)
    });
    let after = series();
    let new: Vec<&String> = after.iter().filter(|one| before.binary_search(one).is_err()).collect();
    assert_eq!(new, [""; 0]);
    assert_eq!(after.len(), before.len());
}

#[test]
fn series_are_few_and_the_same_whatever_clients_send() {
    assert_constant_under(1_200);
}

#[test]
#[ignore = "takes minutes; run it in a release build"]
fn series_are_the_same_after_a_million_requests() {
    assert_constant_under(1_000_000);
}
