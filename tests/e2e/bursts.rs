//! The number of admitted requests: exactly the number that the limit allows, and for each key separately.

use crate::support::gateway::limited;
use crate::support::{Client, Gateway, Origin, together};

/// A limit so slow that no token refills while a test runs.
fn per_hour(burst: usize, key: &str) -> String {
    format!("{{ algorithm: gcra, rate: 1/h, burst: {burst}, key: {key} }}")
}

/// The number of admitted requests of `count` on one connection; all others must be denied.
fn admitted(client: &mut Client, count: usize, fields: &[(&str, &str)]) -> usize {
    let responses = (0..count).map(|_| client.round_trip("GET", "/", fields).status);
    responses
        .filter(|status| {
            assert!(matches!(status, 200 | 429), "{status}");
            *status == 200
        })
        .count()
}

#[test]
fn one_client_is_admitted_exactly_the_burst() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &per_hour(10, "all")));
    assert_eq!(admitted(&mut gateway.client(), 30, &[]), 10);
    assert_eq!(origin.count(), 10);
    let labels = |outcome| [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("admitted"), 10.0);
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("denied"), 20.0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "429")], 20.0);
}

#[test]
fn sixty_four_clients_together_are_admitted_exactly_the_burst() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &per_hour(100, "all")));
    let counts = together(64, |_| admitted(&mut gateway.client(), 5, &[]));
    assert_eq!(counts.iter().sum::<usize>(), 100);
    assert_eq!(origin.count(), 100);
}

#[test]
fn keys_from_a_header_do_not_share() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &per_hour(3, "{ header: x-key }")));
    let keys = ["a", "b", "ab", "A", ""];
    let counts = together(keys.len() * 2, |number| {
        (number % keys.len(), admitted(&mut gateway.client(), 4, &[("x-key", keys[number % keys.len()])]))
    });
    for (position, key) in keys.iter().enumerate() {
        let total: usize = counts.iter().filter(|(key, _)| *key == position).map(|(_, count)| count).sum();
        assert_eq!(total, 3, "{key:?}");
    }
}

#[test]
fn client_addresses_do_not_share() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &per_hour(4, "client_address")));
    let counts = together(6, |number| {
        let last = 1 + u8::try_from(number % 3).unwrap();
        (last, admitted(&mut gateway.client_from(last), 5, &[]))
    });
    for last in 1..=3 {
        let total: usize = counts.iter().filter(|(other, _)| *other == last).map(|(_, count)| count).sum();
        assert_eq!(total, 4, "127.0.0.{last}");
    }
}

#[test]
fn a_key_of_several_parts_is_not_a_joined_text() {
    let origin = Origin::start();
    let key = "[{ header: x-a }, { header: x-b }]";
    let gateway = Gateway::start(&limited(&origin, &per_hour(1, key)));
    for (a, b) in [("ab", "c"), ("a", "bc"), ("a:b", "c"), ("a", "b:c"), ("{}", ""), ("", "{}"), ("a,b", "c")] {
        let fields = [("x-a", a), ("x-b", b)];
        assert_eq!(admitted(&mut gateway.client(), 2, &fields), 1, "{fields:?}");
    }
}

#[test]
fn two_limits_on_one_key_trip_apart_and_a_denied_request_is_charged_by_neither() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  wide: {{ algorithm: gcra, rate: 1/h, burst: 6, key: client_address }}
  narrow: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ header: x-key }} }}
routes: [{{ name: all, upstream: origin, limits: [wide, narrow] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    for key in ["a", "b", "c"] {
        assert_eq!(admitted(&mut client, 10, &[("x-key", key)]), 2, "{key}");
    }
    assert_eq!(admitted(&mut client, 10, &[("x-key", "d")]), 0);
}

#[test]
fn limits_of_several_algorithms_are_charged_together_or_not_at_all() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  bucket: {{ algorithm: token_bucket, rate: 1/d, burst: 6, key: all }}
  log: {{ algorithm: sliding_log, limit: 3, window: 1d, key: {{ header: x-user }} }}
  quota: {{ algorithm: quota_reset, limit: 2, window: 1d, key: [{{ header: x-user }}, {{ header: x-item }}] }}
routes: [{{ name: all, upstream: origin, limits: [bucket, log, quota] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    let mut ask = |user: &str, item: &str| {
        let response = client.round_trip("GET", "/", &[("x-user", user), ("x-item", item)]);
        let field = response.field("ratelimit").unwrap();
        let left = ["bucket", "log", "quota"].map(|limit| {
            let told = field.split(", ").find(|entry| entry.starts_with(&format!("\"{limit}\";r="))).unwrap();
            told.split([';', '=']).nth(2).unwrap().parse::<u64>().unwrap()
        });
        (response.status, left)
    };
    assert_eq!(ask("a", "one"), (200, [5, 2, 1]));
    assert_eq!(ask("a", "one"), (200, [4, 1, 0]));
    assert_eq!(ask("a", "one"), (429, [4, 1, 0]), "the quota denies");
    assert_eq!(ask("a", "two"), (200, [3, 0, 1]));
    assert_eq!(ask("a", "two"), (429, [3, 0, 1]), "the log denies");
    assert_eq!(ask("b", "one"), (200, [2, 2, 1]));
    assert_eq!(ask("b", "two"), (200, [1, 1, 1]));
    assert_eq!(ask("c", "one"), (200, [0, 2, 1]));
    assert_eq!(ask("c", "one"), (429, [0, 2, 1]), "the bucket denies");
    assert_eq!(ask("d", "one"), (429, [0, 3, 2]), "and takes nothing of a key that is new");
    assert_eq!(origin.count(), 6);
}

#[test]
fn routes_that_name_one_limit_share_its_state() {
    let origin = Origin::start();
    let config = format!(
        "{}limits: {{ guard: {} }}
routes:
  - {{ name: a, match: {{ path: /a }}, upstream: origin, limits: [guard] }}
  - {{ name: b, match: {{ path: /b }}, upstream: origin, limits: [guard] }}
  - {{ name: free, upstream: origin }}
",
        origin.upstream(),
        per_hour(3, "all")
    );
    let gateway = Gateway::start(&config);
    let statuses = ["/a", "/b", "/a", "/b", "/a", "/free"].map(|path| gateway.get(path, &[]).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429, 200]);
}
