//! The same traffic through the gateway's own code on a virtual clock, and through `replay` from the log that it wrote:
//! every request is decided alike.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tollgate::units::Nanos;

use crate::stage::{Asked, Stage};
use crate::support::{Folder, seed};

const START: u64 = 1_700_000_000;

const CONFIG: &str = r#"
listeners: [{ address: "127.0.0.1:1" }]
upstreams: { origin: { nodes: ["127.0.0.1:2"] }, aside: { nodes: ["127.0.0.1:3"] } }
customers:
  identify: [{ header: x-api-key }]
  directory: { file: customers.csv }
  anonymous: { plan: anonymous }
plans: [anonymous, free, pro, vip]
access_log: full
bypass: { customers: [friend] }
access: { deny: { addresses: [127.0.0.9] } }
limits:
  per-customer:
    key: customer
    algorithm: gcra
    plans:
      anonymous: { rate: 1/s, burst: 3 }
      free: { rate: 2/s, burst: 5 }
      pro: { rate: 10/s, burst: 5 }
      vip: unlimited
    candidate: { plans: { anonymous: { rate: 2/s, burst: 1 }, free: { rate: 1/s, burst: 9 }, pro: unlimited, vip: unlimited } }
  hourly: { key: customer, algorithm: fixed_window, limit: 60, window: 5m }
  log: { key: [client_address, route], algorithm: sliding_log, limit: 2, window: 8s, count_denied: true }
  logins:
    key: client_address
    algorithm: sliding_window
    limit: 4
    window: 1m
    charge: { when: response, if_status: [401, 403] }
  running: { key: customer, algorithm: concurrency, limit: 3 }
  queue: { key: route, algorithm: leaky_queue, rate: 100/s, capacity: 1, over_limit: { delay: { max_wait: 8ms } } }
  costs: { key: method, algorithm: token_bucket, rate: 3/s, burst: 8, cost: { by_method: { GET: 1, POST: 4 } } }
  watched: { key: customer, algorithm: exponential, limit: 8, period: 4s, policy: strict, shadow: true }
  aside: { key: host, algorithm: cycle, limit: 6, period: 3s, over_limit: { divert: aside } }
  some: { key: customer, algorithm: quota_linear, limit: 8, window: 20s, enabled_percent: 60 }
  guesses: { key: client_address, algorithm: sliding_log, limit: 10, window: 20s, charge: { when: response, if_status: [401] } }
  slots: { key: client_address, algorithm: concurrency, limit: 40 }
routes:
  - name: orders
    match: { hosts: [a.test], path: /v1/orders/** }
    upstream: origin
    limits: [per-customer, hourly, running, watched, some, guesses, slots]
  - name: login
    match: { hosts: [a.test], path: "/login/*", methods: [POST] }
    upstream: origin
    limits: [logins, log]
  - name: search
    match: { path: /search/** }
    upstream: origin
    limits: [queue, costs, aside]
"#;

const CUSTOMERS: &str = "credential,customer,plan,overrides
k-ann,ann,free,
k-bob,bob,free,\"{per-customer: {rate: 4/s}}\"
k-eve,eve,pro,
k-vip,vip,vip,
k-friend,friend,free,
";

/// The host, the path and the methods of requests.
const PLACES: [(&str, &str, &[&str]); 7] = [
    ("a.test", "/v1/orders/", &["GET", "POST"]),
    ("A.test:80", "/v1/./orders/", &["GET"]),
    ("a.test", "/login/", &["POST", "GET"]),
    ("b.test", "/search/", &["GET", "POST"]),
    ("c.test", "/search//", &["GET"]),
    ("a.test", "/v1/orders/x/", &["PUT"]),
    ("b.test", "/nowhere/", &["GET"]),
];
const KEYS: [Option<&str>; 8] =
    [None, None, Some("k-ann"), Some("k-bob"), Some("k-eve"), Some("k-vip"), Some("k-friend"), Some("nobodys")];

/// The number at the end of a request's path.
fn number(path: &str) -> usize {
    path.rsplit('/').next().unwrap().split(['?', ' ']).next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_access_log_of_a_gateway_is_decided_as_the_gateway_decided() {
    let mut random = StdRng::seed_from_u64(seed());
    let folder = Folder::new();
    folder.write("customers.csv", CUSTOMERS);
    let mut stage = Stage::new(&folder.write("tollgate.yaml", CONFIG)).await;
    let mut at = START * 1_000_000_000;
    let count = 3000;
    for id in 0..count {
        at += match random.random_range(0..20) {
            0 => random.random_range(1..4_000_000_000),
            1..8 => random.random_range(1..100_000_000),
            _ => random.random_range(1..2_000_000),
        };
        let (host, path, methods) = PLACES.choose(&mut random).unwrap();
        let key = KEYS.choose(&mut random).unwrap();
        let fields: Vec<_> = [("host", *host)].into_iter().chain(key.map(|key| ("x-api-key", key))).collect();
        stage
            .ask(&Asked {
                at: Nanos::new(at),
                from: *[2, 3, 3, 3, 4, 4, 9].choose(&mut random).unwrap(),
                method: methods.choose(&mut random).unwrap(),
                target: &format!("{path}{id}"),
                fields: &fields,
                status: *[200, 200, 401, 403, 500].choose(&mut random).unwrap(),
                took: Nanos::new(random.random_range(1_000..3_000_000_000)),
            })
            .await;
    }
    folder.write("access.log", stage.finish());
    let log: Vec<serde_json::Value> =
        folder.read("access.log").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(log.len(), count);

    folder.replayed(&["--config", "tollgate.yaml", "--decisions", "decisions.csv", "access.log"]);
    let rows = folder.rows("decisions.csv");
    assert_eq!(rows.len(), count);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for row in &rows {
        let line = &log[row["line"].parse::<usize>().unwrap() - 1];
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let answered = text("answered");
        let expected = match answered.as_str() {
            "" | "limited" => [text("decision"), String::new(), text("limit")],
            cause => ["refused".to_owned(), cause.to_owned(), String::new()],
        };
        let [decision, cause, limit] = &expected;
        assert_eq!([&row["decision"], &row["cause"], &row["limit"]], [decision, cause, limit], "{row:?}\n{line}");
        *seen.entry(format!("{decision} {cause}")).or_default() += 1;
        if decision == "denied" {
            *seen.entry(format!("by {limit}")).or_default() += 1;
        }
    }
    // the traffic has to produce every outcome
    for what in [
        "admitted ", "delayed ", "diverted ", "bypassed ", "denied ", "refused credential_unknown",
        "refused access_denied", "refused no_route", "by per-customer", "by hourly", "by log", "by logins",
        "by running", "by queue", "by costs", "by some", "by guesses",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count > 0), "{what}: {seen:?}");
    }
}

#[tokio::test]
async fn a_combined_log_of_evenly_paced_traffic_is_decided_as_the_gateway_decided() {
    let mut random = StdRng::seed_from_u64(seed());
    let folder = Folder::new();
    folder.write("customers.csv", CUSTOMERS);
    let mut stage = Stage::new(&folder.write("tollgate.yaml", CONFIG)).await;
    let mut log = String::new();
    let mut denied = Vec::new();
    // a random number of evenly paced requests in each second; the log has whole seconds only
    let mut times = Vec::new();
    for second in START..START + 400 {
        let count = if random.random_ratio(1, 8) { 0 } else { random.random_range(1..16) };
        times.extend((0..count).map(|number| second * 1_000_000_000 + number * 1_000_000_000 / count));
    }
    for (id, at) in times.into_iter().enumerate() {
        let (_, path, methods) = PLACES.choose(&mut random).unwrap();
        // such a log has neither the host nor unknown credentials, so the requests do not vary in them
        let key = KEYS.iter().filter(|key| **key != Some("nobodys")).collect::<Vec<_>>();
        let key = **key.choose(&mut random).unwrap();
        let fields: Vec<_> = [("host", "a.test")].into_iter().chain(key.map(|key| ("x-api-key", key))).collect();
        let asked = Asked {
            at: Nanos::new(at),
            from: *[2, 3, 3, 3, 4, 4, 9].choose(&mut random).unwrap(),
            method: methods.choose(&mut random).unwrap(),
            target: &format!("{path}{id}?x=1"),
            fields: &fields,
            status: *[200, 401, 403, 500].choose(&mut random).unwrap(),
            took: Nanos::ZERO,
        };
        if stage.ask(&asked).await {
            denied.push(id);
        }
        let second = jiff::Timestamp::from_second((at / 1_000_000_000).try_into().unwrap()).unwrap();
        let time = second.strftime("%d/%b/%Y:%H:%M:%S +0000");
        let user = key.map_or("-", |key| key.strip_prefix("k-").unwrap());
        let Asked { from, method, target, status, .. } = asked;
        log +=
            &format!("127.0.0.{from} - {user} [{time}] \"{method} {target} HTTP/1.1\" {status} 17 \"-\" \"test/1\"\n");
    }
    stage.finish();
    folder.write("access.log", &log);
    let flags = ["--config", "tollgate.yaml", "--host", "a.test", "--hold", "0s", "--decisions", "decisions.csv"];
    folder.replayed(&[&flags[..], &["access.log"]].concat());
    let lines: Vec<&str> = log.lines().collect();
    let found: Vec<usize> = folder
        .rows("decisions.csv")
        .iter()
        .filter(|row| row["decision"] == "denied")
        .map(|row| {
            number(
                lines[row["line"].parse::<usize>().unwrap() - 1].split('"').nth(1).unwrap().split(' ').nth(1).unwrap(),
            )
        })
        .collect();
    assert!(denied.len() > 100, "{}", denied.len());
    assert_eq!(found, denied);
}
