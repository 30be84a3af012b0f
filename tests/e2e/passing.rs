//! Limits that do not deny: they divert, mark or only count a request over the limit; and candidate limits on trial.

use std::collections::BTreeSet;

use crate::support::gateway::limited;
use crate::support::origin::ReceivedRequest;
use crate::support::{Gateway, Origin, Response, together};

const ONE: &str = "key: all, algorithm: gcra, rate: 1/h, burst: 1";
const TWO: &str = "key: all, algorithm: gcra, rate: 1/h, burst: 2";
const MANY: &str = "key: all, algorithm: gcra, rate: 1/h, burst: 100";

fn requests(gateway: &Gateway, limit: &str, outcome: &str, count: u32) {
    let labels = [("route", "all"), ("limit", limit), ("plan", "none"), ("outcome", outcome)];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, f64::from(count));
}

fn compared(gateway: &Gateway, limit: &str, counts: &[(&str, &str, u32)]) {
    for live in ["admitted", "delayed", "denied"] {
        for candidate in ["admitted", "delayed", "denied"] {
            let count = counts.iter().find(|(of, said, _)| (*of, *said) == (live, candidate)).map_or(0, |each| each.2);
            let labels = [("limit", limit), ("plan", "none"), ("live", live), ("candidate", candidate)];
            gateway.wait_for_metric("tollgate_limit_candidate_requests_total", &labels, f64::from(count));
        }
    }
}

fn statuses(gateway: &Gateway, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.get("/", &[]).status).collect()
}

/// A gateway with one upstream, these limits, and one route under all of them.
fn under(origin: &Origin, limits: &[(&str, &str)]) -> Gateway {
    Gateway::start(&config_under(origin, limits))
}

fn config_under(origin: &Origin, limits: &[(&str, &str)]) -> String {
    let each: String = limits.iter().map(|(name, limit)| format!("  {name}: {{ {limit} }}\n")).collect();
    let names: Vec<&str> = limits.iter().map(|(name, _)| *name).collect();
    let route = format!("routes: [{{ name: all, upstream: origin, limits: [{}] }}]\n", names.join(", "));
    format!("{}limits:\n{each}{route}access_log: full\n", origin.upstream())
}

fn remaining(response: &Response) -> Option<u64> {
    response.number("x-ratelimit-remaining")
}

#[test]
fn only_requests_over_a_diverting_limit_go_to_the_other_upstream() {
    let (origin, quarantine) = (Origin::start(), Origin::with(|exchange| exchange.reply("202 Accepted", "", b"later")));
    let config = config_under(&origin, &[("guard", &format!("{TWO}, over_limit: {{ divert: quarantine }}"))]);
    let both = format!(
        "upstreams:\n  origin: {{ nodes: [{}] }}\n  quarantine: {{ nodes: [{}] }}\n",
        origin.node(),
        quarantine.node()
    );
    let gateway = Gateway::start(&config.replacen(&origin.upstream(), &both, 1));
    assert_eq!(statuses(&gateway, 2), [200, 200]);
    let diverted = gateway.get("/x?y=1", &[]);
    assert_eq!((diverted.status, diverted.text().as_str()), (202, "later"));
    assert_eq!((remaining(&diverted), diverted.field("retry-after")), (Some(0), None));
    assert!(diverted.field("ratelimit").unwrap().starts_with("\"guard\";r=0;t="), "{diverted:?}");
    assert_eq!((origin.count(), quarantine.only().target()), (2, "/x?y=1"));
    requests(&gateway, "guard", "admitted", 2);
    requests(&gateway, "guard", "diverted", 1);
    let line = gateway.process.wait_for_access("diverted");
    assert_eq!((line["decision"].as_str(), line["limit"].as_str()), (Some("diverted"), Some("guard")));
    assert_eq!(line["upstream"], quarantine.address.to_string());
}

#[test]
fn marks_are_seen_by_the_upstream_and_cannot_be_forged() {
    let origin = Origin::start();
    let mark = "over_limit: { mark: X-Over }";
    let limits = [
        ("one", format!("{ONE}, {mark}")),
        ("two", format!("{TWO}, {mark}")),
        ("other", format!("{ONE}, over_limit: {{ mark: x_other }}")),
    ];
    let limits: Vec<(&str, &str)> = limits.iter().map(|(name, limit)| (*name, limit.as_str())).collect();
    let gateway = under(&origin, &limits);
    let forged: &[(&str, &str)] = &[
        ("x-over", "forged"),
        ("X_Over", "forged"),
        ("x-over", "again"),
        ("x-other", "forged"),
        ("x_other", "forged"),
    ];
    for _ in 0..3 {
        let response = gateway.get("/", forged);
        assert_eq!((response.status, response.field("x-over")), (200, None));
    }
    let fields = |seen: ReceivedRequest| {
        assert!(seen.head.all("x_over").is_empty() && seen.head.all("x-other").is_empty(), "{seen:?}");
        ["x-over", "x_other"].map(|name| seen.head.all(name).join("|"))
    };
    let seen: Vec<[String; 2]> = origin.received().into_iter().map(fields).collect();
    assert_eq!(seen, [["", ""], ["one", "other"], ["one, two", "other"]]);
    requests(&gateway, "one", "marked", 2);
    requests(&gateway, "two", "marked", 1);
    requests(&gateway, "two", "admitted", 2);
    assert_eq!(gateway.process.wait_for_access("marked")["limit"], "one");
}

#[test]
fn a_shadow_limit_counts_and_never_acts_or_shows() {
    let origin = Origin::start();
    let queue = "key: all, algorithm: leaky_queue, rate: 1/h, capacity: 5, shadow: true, over_limit: { delay: { max_wait: 1d, max_waiting: 1 } }";
    let gateway = under(&origin, &[("watched", &format!("{ONE}, shadow: true")), ("queue", queue), ("real", MANY)]);
    for count in 1..=4 {
        let response = gateway.get("/", &[]);
        assert_eq!((response.status, remaining(&response)), (200, Some(100 - count)), "{response:?}");
        for field in ["ratelimit", "ratelimit-policy"] {
            let value = response.field(field).unwrap();
            assert!(value.starts_with("\"real\"") && !value.contains(','), "{value}");
        }
    }
    assert_eq!(origin.count(), 4);
    requests(&gateway, "watched", "admitted", 1);
    requests(&gateway, "watched", "shadow_denied", 3);
    requests(&gateway, "queue", "delayed", 3);
    assert_eq!(gateway.process.wait_for_access("watched")["shadow_denied"], "watched");
}

#[test]
fn a_denial_leaves_limits_uncharged_that_mark_divert_or_watch() {
    let origin = Origin::start();
    let limits = [
        ("marks", format!("{TWO}, over_limit: {{ mark: x-over }}")),
        ("diverts", format!("{TWO}, over_limit: {{ divert: origin }}")),
        ("watches", format!("{TWO}, shadow: true")),
        ("denies", "key: { header: x-user }, algorithm: gcra, rate: 1/h, burst: 1".to_owned()),
    ];
    let limits: Vec<(&str, &str)> = limits.iter().map(|(name, limit)| (*name, limit.as_str())).collect();
    let gateway = under(&origin, &limits);
    let ask = |user: &str| gateway.get("/", &[("x-user", user)]).status;
    assert_eq!([ask("a"), ask("a"), ask("a"), ask("a")], [200, 429, 429, 429]);
    assert_eq!(ask("b"), 200, "one token is left of each");
    for limit in ["marks", "diverts", "watches"] {
        requests(&gateway, limit, "admitted", 2);
    }
    assert_eq!(ask("c"), 200);
    requests(&gateway, "marks", "marked", 1);
    requests(&gateway, "diverts", "diverted", 1);
    requests(&gateway, "watches", "shadow_denied", 1);
    requests(&gateway, "denies", "denied", 3);
}

#[test]
fn slots_of_a_shadow_limit_are_given_back_by_those_who_took_them() {
    let origin = Origin::start();
    let gateway = under(&origin, &[("watched", "key: all, algorithm: concurrency, limit: 1, shadow: true")]);
    let mut stalled = gateway.client();
    stalled.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    assert_eq!(statuses(&gateway, 2), [200, 200]);
    // an enforcing limit would deny each of them: none freed the slot of the first request
    requests(&gateway, "watched", "shadow_denied", 2);
    requests(&gateway, "watched", "admitted", 1);
}

#[test]
fn a_share_of_the_keys_is_under_a_limit_and_always_the_same_ones() {
    const KEYS: usize = 2000;
    let origin = Origin::start();
    let limit = |percent: &str| {
        format!("{{ key: {{ header: x-user }}, algorithm: gcra, rate: 1/h, burst: 1, enabled_percent: {percent} }}")
    };
    let config = limited(&origin, &limit("12.5"));
    let limited_keys = |config: &str| -> BTreeSet<usize> {
        let gateway = Gateway::start(config);
        let found = together(4, |quarter| {
            let mut client = gateway.client();
            let mut ask = |key: &usize| {
                client.round_trip("GET", "/", &[("x-user", &key.to_string())]).field("ratelimit").is_some()
            };
            (quarter * KEYS / 4..(quarter + 1) * KEYS / 4).filter(|key| ask(key)).collect::<Vec<_>>()
        });
        found.into_iter().flatten().collect()
    };
    let first = limited_keys(&config);
    // 250 on average, with a standard deviation of 15
    assert!((160..=340).contains(&first.len()), "{}", first.len());
    assert_eq!(limited_keys(&config), first, "another process, the same keys");
    let other = limited_keys(&config.replace("guard", "other"));
    let common = first.intersection(&other).count();
    assert!(common < first.len() / 2, "limits choose for themselves: {common} of {}", first.len());
    let key = first.first().unwrap().to_string();
    let more = Gateway::start(&limited(&origin, &limit("50")));
    let all: Vec<bool> =
        first.iter().map(|key| more.get("/", &[("x-user", &key.to_string())]).field("ratelimit").is_some()).collect();
    assert!(all.iter().all(|under| *under), "a larger share holds the smaller one");
    assert_eq!(more.get("/", &[("x-user", &key)]).status, 429);
    let none = Gateway::start(&limited(&origin, &limit("0")));
    assert_eq!([(); 3].map(|()| none.get("/", &[("x-user", &key)]).status), [200; 3]);
}

#[test]
fn a_candidate_is_charged_as_if_it_were_in_force_and_never_acts() {
    let origin = Origin::start();
    let limit = format!("{TWO}, candidate: {{ rate: 1/h, burst: 4 }}");
    let gateway = under(&origin, &[("guard", &limit), ("real", MANY)]);
    assert_eq!(statuses(&gateway, 7), [200, 200, 429, 429, 429, 429, 429]);
    let response = gateway.get("/", &[]);
    assert_eq!(response.json()["violated-policies"], serde_json::json!(["guard"]));
    assert!(!response.field("ratelimit").unwrap().contains("candidate"), "{response:?}");
    // the candidate would admit two more requests, and no more than that
    compared(&gateway, "guard", &[("admitted", "admitted", 2), ("denied", "admitted", 2), ("denied", "denied", 4)]);
    requests(&gateway, "guard", "denied", 6);
    assert_eq!(
        gateway
            .metrics()
            .all("tollgate_limit_requests_total")
            .iter()
            .filter(|sample| sample.labels["limit"].contains(' '))
            .count(),
        0
    );
}

#[test]
fn a_candidate_may_be_stricter_of_another_algorithm_or_wait() {
    let origin = Origin::start();
    let limits = [
        ("stricter", format!("{MANY}, candidate: {{ algorithm: fixed_window, limit: 2, window: 1d }}")),
        ("waits", format!("{MANY}, candidate: {{ algorithm: leaky_queue, rate: 1/h, capacity: 3, max_wait: 1d }}")),
    ];
    let limits: Vec<(&str, &str)> = limits.iter().map(|(name, limit)| (*name, limit.as_str())).collect();
    let gateway = under(&origin, &limits);
    assert_eq!(statuses(&gateway, 5), [200; 5]);
    compared(&gateway, "stricter", &[("admitted", "admitted", 2), ("admitted", "denied", 3)]);
    compared(&gateway, "waits", &[("admitted", "admitted", 1), ("admitted", "delayed", 3), ("admitted", "denied", 1)]);
}

#[test]
fn a_candidate_is_not_compared_on_requests_that_another_limit_denies() {
    let origin = Origin::start();
    let limits = [
        ("tried", format!("{TWO}, candidate: {{ rate: 1/h, burst: 3 }}")),
        ("denies", "key: { header: x-user }, algorithm: gcra, rate: 1/h, burst: 1".to_owned()),
    ];
    let limits: Vec<(&str, &str)> = limits.iter().map(|(name, limit)| (*name, limit.as_str())).collect();
    let gateway = under(&origin, &limits);
    let ask = |user: &str| gateway.get("/", &[("x-user", user)]).status;
    assert_eq!([ask("a"), ask("a"), ask("a"), ask("b")], [200, 429, 429, 200]);
    // both limits deny this request, so it would be denied with the candidate in the place of `tried`, too
    assert_eq!(ask("b"), 429);
    assert_eq!([ask("c"), ask("d")], [429, 429]);
    compared(&gateway, "tried", &[("admitted", "admitted", 2), ("denied", "admitted", 1), ("denied", "denied", 1)]);
}

#[test]
fn a_request_that_does_not_pass_after_all_is_charged_to_nothing_but_a_candidate() {
    let origin = Origin::start();
    let queue = "key: all, algorithm: gcra, rate: 1/h, burst: 100, delay_after: 0,
        over_limit: { delay: { max_wait: 1d, max_waiting: 1 } }, candidate: { algorithm: gcra, rate: 1/h, burst: 3 }";
    let gateway = under(&origin, &[("queue", queue), ("watched", &format!("{TWO}, shadow: true"))]);
    let wait = |delayed| {
        let mut client = gateway.client();
        client.send_request("GET", "/", &[]);
        requests(&gateway, "queue", "delayed", delayed);
        client
    };
    assert_eq!(gateway.get("/", &[]).status, 200);
    let waiting = wait(1);
    assert_eq!(gateway.get("/", &[]).status, 429, "the queue is full");
    drop(waiting);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    let waiting = wait(2);
    // the cancelled request got its token back
    requests(&gateway, "watched", "admitted", 3);
    requests(&gateway, "watched", "shadow_denied", 0);
    assert_eq!(gateway.get("/", &[]).status, 429);
    let counts =
        [("admitted", "admitted", 1), ("delayed", "admitted", 2), ("denied", "admitted", 1), ("denied", "denied", 1)];
    compared(&gateway, "queue", &counts);
    drop(waiting);
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_candidate_that_counts_what_runs_gives_its_slots_back_once_whatever_its_limit_is_charged() {
    let origin = Origin::start();
    let limit = format!(
        "{MANY}, charge: {{ when: response, if_status: [401] }}, candidate: {{ algorithm: concurrency, limit: 2 }}"
    );
    let gateway = under(&origin, &[("guard", &limit)]);
    let stall = |count| {
        let mut client = gateway.client();
        client.send_request("GET", "/stall", &[]);
        origin.wait_for_count(count);
        client
    };
    let first = stall(1);
    assert_eq!(gateway.get("/", &[]).status, 200);
    let refunded = [("limit", "guard"), ("plan", "none"), ("outcome", "refunded")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &refunded, 1.0);
    let second = stall(3);
    assert_eq!(gateway.get("/", &[]).status, 200);
    // the finished request freed its own slot, not also that of the first
    compared(&gateway, "guard", &[("admitted", "admitted", 3), ("admitted", "denied", 1)]);
    drop((first, second));
}

#[test]
fn a_candidate_that_counts_what_runs_keeps_no_slot_of_what_finds_a_queue_full() {
    let origin = Origin::start();
    let queue = "key: all, algorithm: gcra, rate: 1/h, burst: 100, delay_after: 0, charge: { denied: true },
        over_limit: { delay: { max_wait: 9d, max_waiting: 1 } }, candidate: { algorithm: concurrency, limit: 3 }";
    let gateway = under(&origin, &[("queue", queue)]);
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    let mut waiting = gateway.client();
    waiting.send_request("GET", "/", &[]);
    requests(&gateway, "queue", "delayed", 1);
    assert_eq!(statuses(&gateway, 3), [429; 3]);
    let counts = [("admitted", "admitted", 1), ("delayed", "admitted", 1), ("denied", "admitted", 3)];
    compared(&gateway, "queue", &counts);
}
