//! What browsers are told, so that scripts of other sites can read answers.

use crate::support::gateway::ALL_GUARDED;
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

/// What a script needs to read the response.
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
    let gateway = gateway(&origin, "{ origins: [https://app.example.com, \"https://*.example.org\"] }", "");
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
fn what_a_limit_says_of_other_sites_is_not_said_twice() {
    let origin = Origin::start();
    let own = ", over_limit: { deny: { headers: { access-control-allow-origin: \"https://own.example\" } } }";
    let gateway = gateway(&origin, "{ origins: \"*\" }", own);
    assert_eq!(gateway.get("/", &APP).status, 200);
    assert_eq!(gateway.get("/", &APP).field("access-control-allow-origin"), Some("https://own.example"));
}

#[test]
fn what_the_upstream_lets_others_read_they_can_read_with_its_numbers() {
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
