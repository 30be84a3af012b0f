//! Access rules: the requests that the gateway lets in, and those that it never charges.

use crate::support::{Gateway, Origin, Response};

const CUSTOMERS: &str = "credential,customer,plan\n\
    acme-key,acme,free\n\
    globex-key,globex,free\n\
    checker-key,health-checker,free\n";

/// A gateway on which every request falls under one limit: one request an hour for each caller. `route` is added to the
/// route `here`.
fn gateway(origin: &Origin, top: &str, route: &str) -> Gateway {
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 1 }} }}
{top}
routes:
  - {{ name: here, match: {{ path: /here/** }}, upstream: origin, limits: [guard]{route} }}
  - {{ name: all, upstream: origin, limits: [guard] }}
access_log: full
",
        origin.upstream()
    );
    Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[])
}

fn three_times(ask: impl Fn() -> Response) -> [u16; 3] {
    [(); 3].map(|()| ask().status)
}

fn bypassed(gateway: &Gateway, route: &str, count: f64) {
    let labels = [("route", route), ("limit", "guard"), ("plan", "free"), ("outcome", "bypassed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, count);
}

#[test]
fn bypassed_requests_are_counted_but_not_charged() {
    let origin = Origin::start();
    let top =
        "bypass: { addresses: [127.0.0.8/31], customers: [health-checker], methods: [HEAD], paths: [/static/**] }";
    let gateway = gateway(&origin, top, "");
    let as_customer = |key| [("x-api-key", key)];
    assert_eq!(three_times(|| gateway.client_from(9).get("/")), [200; 3], "an address");
    assert_eq!(three_times(|| gateway.get("/", &as_customer("checker-key"))), [200; 3], "a customer");
    assert_eq!(
        three_times(|| gateway.client().round_trip("HEAD", "/", &as_customer("acme-key"))),
        [200; 3],
        "a method"
    );
    assert_eq!(three_times(|| gateway.get("/static/a", &as_customer("acme-key"))), [200; 3], "a path");
    bypassed(&gateway, "all", 12.0);
    let free = gateway.get("/static/a", &as_customer("acme-key"));
    assert_eq!((free.field("ratelimit"), free.field("x-ratelimit-limit")), (None, None));
    assert_eq!(three_times(|| gateway.get("/", &as_customer("acme-key"))), [200, 429, 429], "nothing was taken before");
    assert_eq!(three_times(|| gateway.client_from(10).get("/")), [200, 429, 429], "another address");
    assert_eq!(
        gateway.get("/static/a", &as_customer("nobodys")).status,
        401,
        "a credential has to be right all the same"
    );
    assert!(gateway.process.stdout().contains("bypassed") || gateway.process.stderr().contains("bypassed"));
}

#[test]
fn a_route_adds_to_what_is_bypassed_everywhere() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "bypass: { methods: [PUT] }", ", bypass: { customers: [acme] }");
    let ask = |method: &'static str, path: &'static str| {
        three_times(|| gateway.client().round_trip(method, path, &[("x-api-key", "acme-key")]))
    };
    assert_eq!(ask("GET", "/here/a"), [200; 3]);
    assert_eq!(ask("PUT", "/here/a"), [200; 3]);
    assert_eq!(ask("PUT", "/"), [200; 3]);
    assert_eq!(ask("GET", "/"), [200, 429, 429]);
    bypassed(&gateway, "here", 6.0);
    bypassed(&gateway, "all", 3.0);
}

#[test]
fn denied_callers_get_the_reason() {
    let origin = Origin::start();
    let top = "access: { deny: { addresses: [127.0.0.16/30], customers: [globex] } }";
    let gateway = gateway(&origin, top, "");
    let by_address = gateway.client_from(18).get("/");
    let by_name = gateway.get("/", &[("x-api-key", "globex-key")]);
    for denied in [&by_address, &by_name] {
        assert_eq!(denied.status, 403);
        assert_eq!(denied.field("content-type"), Some("application/problem+json"));
        assert_eq!(denied.json()["title"], "Forbidden");
        assert_eq!(denied.json()["detail"], "This caller is not let in here.");
        assert_eq!(denied.field("ratelimit"), None);
    }
    let wrong = gateway.client_from(18).round_trip("GET", "/", &[("x-api-key", "nobodys")]);
    assert_eq!(wrong.status, 403, "whether a credential is right is not told to those who are kept out");
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "403")], 3.0);
    assert_eq!(gateway.get("/", &[("x-api-key", "acme-key")]).status, 200);
    assert_eq!(gateway.client_from(20).get("/").status, 200);
}

#[test]
fn only_those_who_are_allowed_come_in() {
    let origin = Origin::start();
    let route =
        ", access: { allow: { addresses: [127.0.0.24], customers: [acme, globex] }, deny: { customers: [globex] } }";
    let gateway = gateway(&origin, "access: { deny: { addresses: [127.0.0.25] } }", route);
    let ask = |last: u8, path: &str, fields: &[(&str, &str)]| {
        gateway.client_from(last).round_trip("GET", path, fields).status
    };
    assert_eq!(ask(24, "/here/a", &[]), 200);
    assert_eq!(ask(26, "/here/a", &[]), 403);
    assert_eq!(ask(26, "/here/a", &[("x-api-key", "acme-key")]), 200);
    assert_eq!(ask(26, "/here/a", &[("x-api-key", "checker-key")]), 403);
    assert_eq!(ask(24, "/here/a", &[("x-api-key", "globex-key")]), 403, "who is denied is not let in");
    assert_eq!(ask(25, "/here/a", &[("x-api-key", "acme-key")]), 403, "what holds everywhere holds here");
    assert_eq!(ask(27, "/", &[]), 200, "the list is the route's");
    assert_eq!(origin.count(), 3);
}

#[test]
fn lists_go_by_the_address_that_is_believed() {
    let origin = Origin::start();
    let top = "client_address: { trusted_proxies: [127.0.0.2], ipv6_prefix: 64 }
bypass: { addresses: [198.51.100.7] }
access: { deny: { addresses: [192.0.2.0/24, \"2001:db8::bad\", \"::ffff:203.0.113.0/120\"] } }";
    let gateway = gateway(&origin, top, "");
    let ask = |last: u8, forwarded: &str| {
        gateway.client_from(last).round_trip("GET", "/", &[("x-forwarded-for", forwarded)]).status
    };
    for claim in ["198.51.100.7", "198.51.100.7, 198.51.100.7"] {
        let from_anywhere = [ask(33, claim), ask(33, claim)];
        assert!(from_anywhere.contains(&429), "whoever is not trusted cannot claim to be exempt: {from_anywhere:?}");
    }
    assert_ne!(ask(34, "192.0.2.1"), 403, "nor make somebody else be kept out");
    assert_eq!(
        three_times(|| gateway.client_from(2).round_trip("GET", "/", &[("x-forwarded-for", "198.51.100.7")])),
        [200; 3]
    );
    assert_eq!(ask(2, "198.51.100.7, 192.0.2.1"), 403);
    assert_eq!(ask(2, "::ffff:192.0.2.1"), 403, "an address in another spelling");
    assert_eq!(ask(2, "203.0.113.9"), 403, "a network in another spelling");
    assert_eq!(ask(2, "2001:db8::bad"), 403);
    assert_eq!(ask(2, "2001:db8::1"), 200, "a neighbour in the same network is not kept out");
    assert_eq!(ask(2, "2001:db8::2"), 429, "though both count as one");
    assert_eq!(ask(2, "nonsense"), 403, "an address that nobody can read may be a denied one");
}

#[test]
fn customers_who_are_kept_out_do_not_see_their_usage() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "usage: { path: /.tollgate/usage }\naccess: { deny: { customers: [globex] } }", "");
    let usage = |key| gateway.get("/.tollgate/usage", &[("x-api-key", key)]).status;
    assert_eq!([usage("acme-key"), usage("globex-key")], [200, 403]);
}
