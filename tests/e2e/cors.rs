//! CORS: the fields that browsers need, so that scripts of other sites can read responses.

use bytes::Bytes;
use http::Method;

use crate::support::gateway::ALL_GUARDED;
use crate::support::http2::{Http2, read};
use crate::support::{Gateway, Origin, Response};

const APP: [(&str, &str); 1] = [("origin", "https://app.example.com")];

fn gateway(origin: &Origin, cors: &str, over_limit: &str) -> Gateway {
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: c.csv }}, anonymous: {{ plan: free }} }}
plans: [free]
cors: {cors}
limits: {{ guard: {{ key: all, algorithm: gcra, rate: 1/h, burst: 1{over_limit} }} }}
{ALL_GUARDED}",
        origin.upstream()
    );
    Gateway::start_with(&config, &[("c.csv", "credential,customer,plan\n")], &[])
}

/// The fields that let a script read the response.
fn shared(response: &Response) -> [Option<&str>; 4] {
    [
        response.field("access-control-allow-origin"),
        response.field("access-control-allow-credentials"),
        response.field("vary"),
        response.field("access-control-expose-headers"),
    ]
}

const NUMBERS: &str =
    "ratelimit-policy, ratelimit, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, retry-after";

#[test]
fn a_site_that_is_listed_can_read_what_the_gateway_answers() {
    let origin = Origin::start();
    let sites = "{ origins: [https://app.example.com, \"https://*.example.org\"] }";
    let gateway = gateway(&origin, sites, ", charge: { when: identified }");
    assert_eq!(gateway.get("/", &APP).status, 200);
    let denied = gateway.get("/", &APP);
    assert_eq!(denied.status, 429);
    assert_eq!(shared(&denied), [Some("https://app.example.com"), None, Some("Origin"), Some(NUMBERS)]);
    let unknown = gateway.get("/", &[APP[0], ("x-api-key", "nobodys")]);
    assert_eq!(unknown.status, 401);
    assert_eq!(shared(&unknown), [Some("https://app.example.com"), None, Some("Origin"), None]);
    let malformed = gateway.get("/%zz", &[("origin", "https://a.b.example.org")]);
    assert_eq!(malformed.status, 400);
    assert_eq!(shared(&malformed), [Some("https://a.b.example.org"), None, Some("Origin"), None]);
    for other in ["https://evil.test", "null", "http://app.example.com", "https://app.example.com.evil.test"] {
        assert_eq!(shared(&gateway.get("/", &[("origin", other)])), [None, None, Some("Origin"), None], "{other}");
    }
    assert_eq!(shared(&gateway.get("/", &[])), [None, None, Some("Origin"), None]);
    let twice = gateway.get("/", &[APP[0], ("origin", "https://evil.test")]);
    assert_eq!(shared(&twice), [None, None, Some("Origin"), None]);
}

#[test]
fn every_site_can_be_admitted_without_credentials() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "{ origins: \"*\" }", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    assert_eq!(shared(&gateway.get("/", &APP)), [Some("*"), None, None, Some(NUMBERS)]);
    assert_eq!(shared(&gateway.get("/", &[("origin", "null")])), [Some("*"), None, None, Some(NUMBERS)]);
    assert_eq!(shared(&gateway.get("/", &[])), [None; 4]);
}

#[test]
fn credentials_are_for_sites_by_name() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "{ origins: [https://app.example.com], credentials: true }", "");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let denied = gateway.get("/", &APP);
    assert_eq!(shared(&denied), [Some("https://app.example.com"), Some("true"), Some("Origin"), Some(NUMBERS)]);
}

#[test]
fn cors_fields_of_a_limit_are_not_repeated() {
    let origin = Origin::start();
    let own = ", over_limit: { deny: { headers: { access-control-allow-origin: \"https://own.example\" } } }";
    let gateway = gateway(&origin, "{ origins: \"*\" }", own);
    assert_eq!(gateway.get("/", &APP).status, 200);
    assert_eq!(gateway.get("/", &APP).field("access-control-allow-origin"), Some("https://own.example"));
}

#[test]
fn a_denial_lets_scripts_read_the_fields_of_the_limit_too() {
    let origin = Origin::start();
    let own = ", over_limit: { deny: { headers: { link: \"<https://a.example/upgrade>\", cache-control: no-cache } } }";
    let gateway = gateway(&origin, "{ origins: \"*\" }", own);
    assert_eq!(gateway.get("/", &APP).status, 200);
    let denied = gateway.get("/", &APP);
    assert_eq!(denied.field("access-control-expose-headers"), Some(&*format!("{NUMBERS}, link, cache-control")));
}

#[test]
fn sites_read_rate_limit_fields_where_the_upstream_lets_them_read() {
    let origin = Origin::with(|exchange| {
        let fields = match exchange.path() {
            "/shared" => "access-control-allow-origin: *\r\naccess-control-expose-headers: x-own\r\n",
            _ => "",
        };
        exchange.reply("200 OK", fields, b"ok\n")
    });
    let config = |cors: &str| {
        format!(
            "{}{cors}limits: {{ guard: {{ key: all, algorithm: gcra, rate: 1/h, burst: 9 }} }}\n{ALL_GUARDED}",
            origin.upstream()
        )
    };
    let with = Gateway::start(&config("cors: { origins: [https://app.example.com] }\n"));
    let shared = with.get("/shared", &APP);
    assert_eq!(shared.field("access-control-allow-origin"), Some("*"), "the upstream's own word");
    let numbers = NUMBERS.strip_suffix(", retry-after").unwrap();
    assert_eq!(shared.head.all("access-control-expose-headers"), ["x-own", numbers]);
    let alone = with.get("/alone", &APP);
    assert_eq!(alone.field("access-control-allow-origin"), None, "what the upstream shares is its own business");
    assert_eq!(alone.field("access-control-expose-headers"), None);
    let without = Gateway::start(&config(""));
    assert_eq!(without.get("/shared", &APP).field("access-control-expose-headers"), Some("x-own"));
}

const PREFLIGHT: [(&str, &str); 3] =
    [APP[0], ("access-control-request-method", "PUT"), ("access-control-request-headers", "content-type, x-api-key")];

/// A gateway whose route `orders` serves `PUT` alone; `everywhere` holds settings of the file, `orders` those of the route.
fn with_preflights(origin: &Origin, everywhere: &str, orders: &str) -> Gateway {
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: c.csv }} }}
plans: [free]
{everywhere}
limits: {{ guard: {{ key: host, algorithm: gcra, rate: 1/h, burst: 1 }} }}
access: {{ deny: {{ addresses: [127.0.0.13] }} }}
routes:
  - {{ name: orders, match: {{ path: /orders, methods: [PUT, OPTIONS] }}, upstream: origin, limits: [guard]{orders} }}
  - {{ name: put, match: {{ path: /put, methods: [PUT] }}, upstream: origin, limits: [guard] }}
access_log: full
",
        origin.upstream()
    );
    Gateway::start_listening("http2: true", &config, &[("c.csv", "credential,customer,plan\nk1,acme,free\n")])
}

fn options(gateway: &Gateway, target: &str, fields: &[(&str, &str)]) -> Response {
    gateway.client().round_trip("OPTIONS", target, fields)
}

#[test]
fn without_cors_a_preflight_is_a_request_like_others() {
    let origin = Origin::start();
    let gateway = with_preflights(&origin, "", "");
    assert_eq!(options(&gateway, "/orders", &PREFLIGHT).status, 401);
    assert_eq!(origin.count(), 0, "nothing reaches the upstream without a credential");
    let key = [&PREFLIGHT[..], &[("x-api-key", "k1")]].concat();
    let fresh = with_preflights(&origin, "", "");
    assert_eq!(options(&fresh, "/orders", &key).status, 200);
    assert_eq!(options(&fresh, "/orders", &key).status, 429);
}

#[test]
fn with_cors_preflights_are_answered_here_and_are_free() {
    let origin = Origin::start();
    let gateway = with_preflights(&origin, "cors: { origins: [https://app.example.com], max_age: 5m }", "");
    for target in ["/orders", "/put", "/put"] {
        let response = options(&gateway, target, &PREFLIGHT);
        assert_eq!((response.status, response.text()), (204, String::new()), "{response:?}");
        assert_eq!(response.field("access-control-allow-origin"), Some("https://app.example.com"));
        assert_eq!(response.field("access-control-allow-methods"), Some("PUT"));
        assert_eq!(response.field("access-control-allow-headers"), Some("content-type, x-api-key"));
        assert_eq!(response.field("access-control-max-age"), Some("300"));
        assert_eq!(response.field("vary"), Some("Origin"));
        assert_eq!(response.field("content-type"), None);
        assert_eq!(response.field("content-length"), None, "a 204 has none");
    }
    let other = options(&gateway, "/put", &[&[("origin", "https://evil.test")], &PREFLIGHT[1..]].concat());
    assert_eq!((other.status, shared(&other)), (204, [None, None, Some("Origin"), None]));
    assert_eq!(other.field("access-control-allow-methods"), None);
    let get = [APP[0], ("access-control-request-method", "GET")];
    assert_eq!(options(&gateway, "/put", &get).status, 404, "no route takes what it asks about");
    assert_eq!(options(&gateway, "/nowhere", &PREFLIGHT).status, 404);
    assert_eq!(gateway.client_from(13).round_trip("OPTIONS", "/put", &PREFLIGHT).status, 403);
    // an `OPTIONS` request with a body is no preflight
    let mut client = gateway.client();
    let head = "OPTIONS /orders HTTP/1.1\r\nhost: test\r\norigin: https://app.example.com\r\n\
                access-control-request-method: PUT\r\ncontent-length: 4\r\n\r\nbody";
    client.send(head);
    assert_eq!(client.receive().status, 401);
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "put"), ("code", "204")], 3.0);
    let seen = gateway.process.stdout() + &gateway.process.stderr();
    assert!(seen.contains("\"answered\":\"preflight\""), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_over_http_2_makes_a_preflight_a_request_like_others() {
    let origin = Origin::start();
    let gateway = with_preflights(&origin, "cors: { origins: [https://app.example.com], preflight: forward }", "");
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for (has_body, status) in [(false, 200), (true, 401)] {
        let url = "http://test/orders";
        let (answer, mut sending) = client.begin(Method::OPTIONS, url, &PREFLIGHT, !has_body).await.unwrap();
        if has_body {
            // the response may have closed the stream already
            drop(sending.send_data(Bytes::from_static(b"body"), true));
        }
        assert_eq!(read(answer).await.unwrap().status, status);
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn preflights_are_forwarded_where_the_upstream_answers_them() {
    let origin = Origin::start();
    let everywhere = "cors: { origins: [https://app.example.com], preflight: forward }";
    for (everywhere, orders) in [(everywhere, ""), ("", ", cors: { preflight: forward }")] {
        let gateway = with_preflights(&origin, everywhere, orders);
        let before = origin.count();
        for _ in 0..3 {
            assert_eq!(options(&gateway, "/orders", &PREFLIGHT).status, 200);
        }
        assert_eq!(origin.count() - before, 3);
        let labels = [("route", "orders"), ("limit", "guard"), ("plan", "none"), ("outcome", "bypassed")];
        gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 3.0);
        assert_eq!(options(&gateway, "/orders", &PREFLIGHT[..1]).status, 401);
    }
    let answered = with_preflights(&origin, everywhere, ", cors: { preflight: answer }");
    assert_eq!(options(&answered, "/orders", &PREFLIGHT).status, 204, "the route's word counts");
}

#[test]
fn a_forwarded_preflight_brings_the_upstream_no_credential_and_no_other_method() {
    let origin = Origin::start();
    let everywhere = "cors: { origins: [https://app.example.com], preflight: forward }";
    let gateway = with_preflights(&origin, everywhere, "");
    let claims = [
        ("x-api-key", "k1"),
        ("authorization", "Basic YTpi"),
        ("Cookie", "session=1"),
        ("x-http-method-override", "PUT"),
        ("X-HTTP-Method", "PUT"),
        ("x-method-override", "PUT"),
    ];
    let fields = [&PREFLIGHT[..], &claims].concat();
    assert_eq!(options(&gateway, "/orders", &fields).status, 200);
    let preflight = origin.received().pop().unwrap().head;
    assert!(claims.iter().all(|(name, _)| preflight.field(name).is_none()), "{preflight:?}");
    assert!(PREFLIGHT.iter().all(|(name, value)| preflight.field(name) == Some(*value)), "{preflight:?}");
    // any other request keeps them
    assert_eq!(gateway.client().round_trip("PUT", "/orders", &claims).status, 200);
    let other = origin.received().pop().unwrap().head;
    assert!(claims.iter().all(|(name, value)| other.field(name) == Some(*value)), "{other:?}");
}
