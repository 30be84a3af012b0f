//! Routing: a request takes the most specific route that matches, or none.

use crate::support::client::request;
use crate::support::{Gateway, Origin};

/// A gateway whose routes send their name to the upstream.
fn gateway(origin: &Origin, routes: &[(&str, &str)]) -> Gateway {
    let lines: String = routes
        .iter()
        .map(|(name, matched)| {
            format!(
                "  - {{ name: {name}, match: {{ {matched} }}, upstream: origin, request_headers: {{ set: {{ x-route: {name} }} }} }}\n"
            )
        })
        .collect();
    Gateway::start(&format!("{}routes:\n{lines}", origin.upstream()))
}

/// The route that a request took; `none` for a 404.
fn route(gateway: &Gateway, origin: &Origin, method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let before = origin.count();
    let mut client = gateway.client();
    client.send(request(method, target, fields));
    let response = client.next_to(method).unwrap();
    match response.status {
        200 => origin.received().pop().unwrap().head.field("x-route").unwrap().to_owned(),
        404 => {
            assert_eq!(origin.count(), before, "nothing reaches the upstream");
            "none".to_owned()
        }
        _ => panic!("{response:?}"),
    }
}

#[test]
fn the_most_specific_host_wins() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        &[
            ("any", "path: /open"),
            ("wide", "hosts: [\"*.example.com\"]"),
            ("narrow", "hosts: [\"*.eu.example.com\"]"),
            ("exact", "hosts: [api.eu.example.com, other.test]"),
        ],
    );
    for (host, wanted) in [
        ("api.eu.example.com", "exact"),
        ("API.EU.Example.com:8080", "exact"),
        ("other.test", "exact"),
        ("b.eu.example.com", "narrow"),
        ("eu.example.com", "wide"),
        ("a.b.example.com", "wide"),
        ("example.com", "none"),
        ("badexample.com", "none"),
        ("unknown.test", "none"),
    ] {
        assert_eq!(route(&gateway, &origin, "GET", "/", &[("host", host)]), wanted, "{host}");
    }
    assert_eq!(route(&gateway, &origin, "GET", "/open", &[("host", "unknown.test")]), "any");
    assert_eq!(route(&gateway, &origin, "GET", "/open", &[("host", "example.com")]), "any");
}

#[test]
fn the_most_specific_path_wins_whatever_the_order_in_the_file() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        &[
            ("everything-below-v1", "path: /v1/**"),
            ("one-below", "path: /v1/*"),
            ("lines", "path: /v1/*/lines"),
            ("orders", "path: /v1/orders"),
            ("orders-and-below", "path: /v1/orders/**"),
            ("root", "path: /"),
        ],
    );
    for (path, wanted) in [
        ("/", "root"),
        ("/v1", "everything-below-v1"),
        ("/v1/", "everything-below-v1"),
        ("/v1/orders", "orders"),
        ("/v1/orders?x=/v1", "orders"),
        ("/v1/orders/", "orders-and-below"),
        ("/v1/orders/7", "orders-and-below"),
        ("/v1/orders/lines", "orders-and-below"),
        ("/v1/carts", "one-below"),
        ("/v1/carts/lines", "lines"),
        ("/v1/carts/lines/7", "everything-below-v1"),
        ("/v1/x/../orders", "orders"),
        ("/v2", "none"),
        ("/v1orders", "none"),
        ("/V1/orders", "none"),
    ] {
        assert_eq!(route(&gateway, &origin, "GET", path, &[]), wanted, "{path}");
    }
}

#[test]
fn methods_and_header_conditions_choose_among_routes_of_one_path() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        &[
            ("plain", "path: /a"),
            ("reads", "path: /a, methods: [GET, HEAD]"),
            ("beta", "path: /a, headers: { x-beta: true }"),
            ("beta-two", "path: /a, headers: { x-beta: \"2\", x-who: me }"),
            ("writes", "path: /b, methods: [POST]"),
        ],
    );
    let taken = |method: &str, path: &str, fields: &[(&str, &str)]| route(&gateway, &origin, method, path, fields);
    assert_eq!(taken("GET", "/a", &[]), "reads");
    assert_eq!(taken("HEAD", "/a", &[]), "reads");
    assert_eq!(taken("DELETE", "/a", &[]), "plain");
    assert_eq!(taken("DELETE", "/a", &[("X-Beta", "anything")]), "beta");
    assert_eq!(taken("DELETE", "/a", &[("x-beta", "2"), ("x-who", "me")]), "beta-two");
    assert_eq!(taken("DELETE", "/a", &[("x-beta", "2"), ("x-who", "you")]), "beta");
    assert_eq!(taken("GET", "/b", &[]), "none");
    assert_eq!(taken("POST", "/b", &[]), "writes");
}

#[test]
fn values_of_which_only_some_fit_a_route_are_refused() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        &[
            ("any", "path: /a"),
            ("small", "path: /a, query: { size: small }"),
            ("beta", "path: /a, headers: { x-beta: { regex: \"[12]\" } }"),
        ],
    );
    let betas = |values: [&'static str; 2]| values.map(|value| ("x-beta", value));
    let contested: [(&str, &[(&str, &str)]); 4] = [
        ("/a?size=small&size=huge", &[]),
        ("/a?size=&x&s%69ze=small", &[]),
        ("/a", &betas(["1", "3"])),
        ("/a", &betas(["3", "2"])),
    ];
    for (target, fields) in contested {
        assert_eq!(gateway.get(target, fields).status, 400, "{target} {fields:?}");
    }
    let taken = |target: &str, fields: &[(&str, &str)]| route(&gateway, &origin, "GET", target, fields);
    assert_eq!(taken("/a?size=small&size=small", &[]), "small");
    assert_eq!(taken("/a?size=large&size=huge", &betas(["3", "4"])), "any");
    assert_eq!(taken("/a", &betas(["1", "2"])), "beta");
}

#[test]
fn query_parameters_and_expressions_choose_among_routes_of_one_path() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        &[
            ("plain", "path: /a"),
            ("debug", "path: /a, query: { debug: true }"),
            ("second", "path: /a, query: { \"api version\": \"2\" }"),
            ("later", "path: /a, query: { \"api version\": { regex: \"[3-9]|1[0-9]\" } }"),
            ("both", "path: /a, query: { debug: true }, headers: { x-version: { regex: \"(?x) v [0-9]+ # ours\" } }"),
        ],
    );
    let taken = |target: &str, fields: &[(&str, &str)]| route(&gateway, &origin, "GET", target, fields);
    assert_eq!(taken("/a", &[]), "plain");
    assert_eq!(taken("/a?debug", &[]), "debug");
    assert_eq!(taken("/a?x=1&debug=0", &[]), "debug");
    assert_eq!(taken("/a?Debug=1", &[]), "plain", "case counts in names");
    assert_eq!(taken("/a?api+version=2", &[]), "second");
    assert_eq!(taken("/a?api%20version=%32", &[]), "second", "decoded as upstreams do");
    assert_eq!(taken("/a?api+version=12", &[]), "later");
    assert_eq!(taken("/a?api+version=120", &[]), "plain", "an expression matches whole values");
    assert_eq!(taken("/a?debug", &[("x-version", "v12")]), "both");
    assert_eq!(taken("/a?debug", &[("x-version", "v12-beta")]), "debug");
}

#[test]
fn each_tenant_that_a_path_names_has_a_bucket_of_its_own() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ per-tenant: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ path_segment: tenant }} }} }}
routes:
  - {{ name: all, match: {{ path: \"/v1/{{tenant}}/**\" }}, upstream: origin, limits: [per-tenant] }}
  - {{ name: users, match: {{ path: \"/v1/*/users/{{tenant}}\" }}, upstream: origin, limits: [per-tenant] }}
",
        origin.upstream()
    ));
    let mut client = gateway.client();
    let mut status = |path: &str| client.round_trip("GET", path, &[]).status;
    assert_eq!([status("/v1/acme"), status("/v1/acme/orders/7?x=1"), status("/v1/acme/orders")], [200, 200, 429]);
    assert_eq!([status("/v1/x/../%61cme/"), status("//v1//acme")], [429; 2], "other spellings of the same path");
    assert_eq!([status("/v1/initech"), status("/v1/initech"), status("/v1/initech")], [200, 200, 429]);
    // in this route the third segment is the tenant
    assert_eq!([status("/v1/initech/users/globex"), status("/v1/acme/users/globex")], [200, 200]);
    assert_eq!(status("/v1/globex"), 429);
}

#[test]
fn an_unknown_host_or_path_is_not_found_and_counted() {
    let origin = Origin::start();
    let gateway = gateway(&origin, &[("only", "hosts: [api.test], path: /v1/**")]);
    let mut client = gateway.client();
    for (host, path) in [("api.test", "/v2"), ("other.test", "/v1/x"), ("api.test", "/admin?secret=1")] {
        let response = client.round_trip("GET", path, &[("host", host)]);
        assert_eq!(response.status, 404);
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
        let problem = response.json();
        assert_eq!((problem["status"].as_u64(), problem["title"].as_str()), (Some(404), Some("Not Found")));
        assert_eq!(response.field("ratelimit"), None);
    }
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "none"), ("code", "404")], 3.0);
}

#[test]
fn the_paths_of_the_admin_interface_are_nothing_on_the_port_for_clients() {
    let origin = Origin::start();
    let gateway = gateway(&origin, &[("api", "path: /api/**")]);
    let admin = gateway.admin.to_string();
    for path in ["/metrics", "/healthz", "/readyz", "/status"] {
        assert_eq!(gateway.get(path, &[]).status, 404, "{path}");
        assert_eq!(gateway.get(path, &[("host", &admin)]).status, 404, "{path}");
        let absolute = format!("http://{admin}{path}");
        assert_eq!(gateway.get(&absolute, &[("host", &admin)]).status, 404, "{absolute}");
    }
    assert_eq!(origin.count(), 0);
    let everything = self::gateway(&origin, &[("all", "path: /**")]);
    assert_eq!(everything.get("/metrics", &[]).text(), "ok\n", "the upstream's own");
}
