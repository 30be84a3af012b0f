//! What the upstream gets, and what comes back through: fields added, changed and taken away, canonical paths.

use crate::support::client::request;
use crate::support::gateway::{ALL, ALL_GUARDED, limited, proxied};
use crate::support::origin::{Seen, by_path};
use crate::support::{Gateway, Origin, wait_until};

/// What one request looked like at the upstream.
fn seen(gateway: &Gateway, origin: &Origin, bytes: &str) -> Seen {
    let before = origin.count();
    let response = gateway.say(bytes).unwrap();
    assert_eq!(response.status, 200, "{bytes:?}: {response:?}");
    assert_eq!(origin.count(), before + 1);
    origin.seen().pop().unwrap()
}

#[test]
fn the_upstream_is_told_who_asked_for_what() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    gateway.client_from(9).exchange("GET", "/a/b?c=d&e", &[("host", "Api.Example:8080"), ("x-own", "kept")]);
    let head = origin.only().head;
    assert_eq!(head.first_line, "GET /a/b?c=d&e HTTP/1.1");
    assert_eq!(head.field("host"), Some("api.example:8080"));
    assert_eq!(head.field("x-forwarded-for"), Some("127.0.0.9"));
    assert_eq!(head.field("x-forwarded-proto"), Some("http"));
    assert_eq!(head.field("x-forwarded-host"), Some("api.example:8080"));
    assert_eq!(head.field("via"), Some("1.1 tollgate"));
    assert_eq!(head.field("x-own"), Some("kept"));
}

#[test]
fn what_an_untrusted_client_claims_of_earlier_hops_is_replaced() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let claims = "x-forwarded-for: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nx-forwarded-proto: https\r\n\
                  x-forwarded-host: evil\r\nforwarded: for=1.2.3.4\r\n";
    let head = seen(&gateway, &origin, &format!("GET / HTTP/1.1\r\nhost: test\r\n{claims}\r\n")).head;
    assert_eq!(head.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(head.field("x-forwarded-proto"), Some("http"));
    assert_eq!(head.field("x-forwarded-host"), Some("test"));
    assert_eq!(head.field("forwarded"), None);
}

#[test]
fn what_a_trusted_proxy_says_of_earlier_hops_is_passed_on() {
    let origin = Origin::start();
    let trusted = "client_address: { trusted_proxies: [127.0.0.1] }\n";
    let gateway = Gateway::start(&(proxied(&origin, "") + trusted));
    let claims = "x-forwarded-for: 1.2.3.4\r\nx-forwarded-for: 5.6.7.8\r\nx-forwarded-proto: https\r\n\
                  x-forwarded-host: shown.example\r\n";
    let head = seen(&gateway, &origin, &format!("GET / HTTP/1.1\r\nhost: test\r\n{claims}\r\n")).head;
    assert_eq!(head.field("x-forwarded-for"), Some("1.2.3.4, 5.6.7.8, 127.0.0.1"));
    assert_eq!(head.field("x-forwarded-proto"), Some("https"));
    assert_eq!(head.field("x-forwarded-host"), Some("shown.example"));
}

#[test]
fn a_connection_is_not_turned_into_a_tunnel() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n";
    let head = seen(&gateway, &origin, &format!("GET / HTTP/1.1\r\nhost: test\r\n{upgrade}\r\n")).head;
    assert_eq!(head.field("upgrade"), None);
}

const FIVE: &str = "{ algorithm: gcra, rate: 1/h, burst: 5, key: client_address }";

#[test]
fn a_made_up_client_address_buys_nothing_from_an_untrusted_peer() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, FIVE));
    let mut client = gateway.client();
    let made_up = |number: usize| format!("10.{number}.{}.7, 192.0.2.{number}", number * 2);
    let statuses = (0..30).map(|number| {
        let address = made_up(number);
        let fields = [("x-forwarded-for", address.as_str()), ("x-real-ip", &address), ("forwarded", "for=1.1.1.1")];
        client.exchange("GET", "/", &fields).status
    });
    assert_eq!(statuses.filter(|status| *status == 200).count(), 5);
}

#[test]
fn the_hops_of_trusted_proxies_are_walked_from_the_right() {
    let origin = Origin::start();
    let trusted = "client_address: { trusted_proxies: [127.0.0.0/8, 10.0.0.0/8] }\n";
    let gateway = Gateway::start(&(limited(&origin, FIVE) + trusted));
    let mut client = gateway.client();
    let mut admitted = |forwarded: &dyn Fn(usize) -> String| {
        let statuses: Vec<u16> = (0..12)
            .map(|number| {
                let lines = forwarded(number);
                client.send(format!("GET / HTTP/1.1\r\nhost: test\r\n{lines}\r\n"));
                client.receive().status
            })
            .collect();
        statuses.iter().filter(|status| **status == 200).count()
    };
    let line = |value: String| format!("x-forwarded-for: {value}\r\n");
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}, 198.51.100.7"))), 5);
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}, 198.51.100.7, 10.1.1.{number}"))), 0);
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}")) + &line("198.51.100.7".to_owned())), 0);
    assert_eq!(admitted(&|number| line(format!("198.51.100.8, 10.0.0.{number}"))), 5);
    // What cannot be read is one client, whatever it is.
    let junk = ["unknown", "", "1.2.3.4:99", "[2001:db8::1]:443", "999.1.1.1", "1.2.3.4,", "_hidden", "a b"];
    assert_eq!(admitted(&|number| line(junk[number % junk.len()].to_owned())), 5);
    // Two spellings of one address.
    let spellings = ["::ffff:198.51.100.9", "198.51.100.9", "::FFFF:c633:6409"];
    assert_eq!(admitted(&|number| line(spellings[number % spellings.len()].to_owned())), 5);
    // A network of 64 bits.
    assert_eq!(admitted(&|number| line(format!("2001:db8:1:2::{number:x}"))), 5);
}

fn routed(origin: &Origin, route: &str) -> Gateway {
    Gateway::start(&format!("{}routes: [{{ name: all, upstream: origin, {route} }}]\n", origin.upstream()))
}

#[test]
fn the_beginning_of_a_path_can_be_changed() {
    let origin = Origin::start();
    let gateway =
        routed(&origin, "match: { path: /api/** }, rewrite: { strip_prefix: /api/v1, add_prefix: /internal }");
    for (asked, sent) in [
        ("/api/v1/orders?x=1", "/internal/orders?x=1"),
        ("/api/v1", "/internal"),
        ("/api/v1x/orders", "/internal/api/v1x/orders"),
        ("/api/./v1//orders/", "/internal/orders/"),
        ("/api/v1/a%2Cb?q=%2f", "/internal/a,b?q=%2f"),
    ] {
        assert_eq!(seen(&gateway, &origin, &request("GET", asked, &[])).target(), sent, "{asked}");
    }
}

#[test]
fn a_whole_path_can_be_changed_and_the_query_stays() {
    let origin = Origin::start();
    let gateway = routed(&origin, "rewrite: { path: /fixed }");
    assert_eq!(seen(&gateway, &origin, &request("GET", "/a/b?c", &[])).target(), "/fixed?c");
}

#[test]
fn header_fields_can_be_set_and_removed_both_ways() {
    let origin = Origin::with(|exchange| {
        let fields = "x-powered-by: php\r\nX-Powered-By: again\r\nserver: nginx\r\nx-frame-options: none\r\n";
        exchange.reply("200 OK", fields, b"")
    });
    let gateway = routed(
        &origin,
        "request_headers: { remove: [x-secret, cookie], set: { x-stage: live, x-forwarded-proto: https } },
         response_headers: { remove: [x-powered-by], set: { x-frame-options: DENY, x-new: here } }",
    );
    let fields = [("x-secret", "s"), ("Cookie", "a=1"), ("X-Stage", "spoofed"), ("x-kept", "k")];
    let response = gateway.get("/", &fields);
    assert_eq!(response.head.all("x-powered-by"), [""; 0]);
    assert_eq!(response.field("x-frame-options"), Some("DENY"));
    assert_eq!(response.field("x-new"), Some("here"));
    assert_eq!(response.field("server"), Some("nginx"), "the upstream's own word");
    let head = origin.only().head;
    assert_eq!((head.all("x-secret").len(), head.all("cookie").len()), (0, 0));
    assert_eq!(head.field("x-stage"), Some("live"));
    assert_eq!(head.field("x-kept"), Some("k"));
    assert_eq!(head.field("x-forwarded-proto"), Some("https"), "a route has the last word");
}

#[test]
fn fields_about_one_connection_stay_on_it() {
    let origin = Origin::with(|exchange| {
        let fields = "connection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\nproxy-connection: keep-alive\r\n\
                      proxy-authenticate: Basic\r\nte: x\r\nupgrade: h2c\r\nx-hop: one\r\nx-end: to-end\r\n";
        exchange.reply("200 OK", fields, b"")
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let request = "GET / HTTP/1.1\r\nhost: test\r\nconnection: keep-alive, x-mine\r\nkeep-alive: timeout=9\r\n\
                   proxy-connection: keep-alive\r\nproxy-authorization: Basic eA==\r\nte: gzip\r\nx-mine: 1\r\n\
                   upgrade: foo\r\nx-end: to-end\r\n\r\n";
    let response = gateway.say(request).unwrap();
    assert_eq!(response.status, 200);
    for gone in ["keep-alive", "proxy-connection", "proxy-authenticate", "te", "upgrade", "x-hop"] {
        assert_eq!(response.field(gone), None, "{gone} in the response");
    }
    assert_eq!(response.field("x-end"), Some("to-end"));
    assert_eq!(response.field("via"), Some("1.1 tollgate"));
    let head = origin.only().head;
    for gone in ["keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade", "x-mine"] {
        assert_eq!(head.field(gone), None, "{gone} in the request");
    }
    assert_eq!(head.field("x-end"), Some("to-end"));
}

#[test]
fn a_client_cannot_have_our_fields_dropped() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for name in ["X-Forwarded-For", "x-forwarded-proto", "via", "host", "close, x-forwarded-for"] {
        let before = origin.count();
        let response = gateway.get("/", &[("connection", name)]);
        let reached = origin.seen().split_off(before);
        assert!(matches!((response.status, reached.len()), (400, 0) | (200, 1)), "{name}: {response:?}");
        for seen in reached {
            assert_eq!(seen.head.field("x-forwarded-for"), Some("127.0.0.1"), "{name}");
            assert_eq!(seen.head.field("x-forwarded-proto"), Some("http"), "{name}");
            assert_eq!(seen.head.field("via"), Some("1.1 tollgate"), "{name}");
            assert_eq!(seen.head.field("host"), Some("test"), "{name}");
        }
    }
}

/// The spellings of `/login` that a handler might take for it.
const SPELLINGS: [&[u8]; 21] = [
    b"/login",
    b"//login",
    b"/./login",
    b"/x/../login",
    b"/%6cogin",
    b"/%6Cogin",
    b"/login/",
    b"/login/.",
    b"/login;a=1",
    b"/login?",
    b"/login?x#y",
    b"/login%2f",
    b"/login%00",
    b"/LOGIN",
    b"login",
    b"?x",
    b"/login%20",
    b"\\login",
    b"/login%c0%af",
    b"http://test/login",
    b"http://test:80/login",
];

#[test]
fn no_spelling_of_a_path_gets_around_its_limit() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {FIVE} }}
routes:
  - {{ name: login, match: {{ path: /login }}, upstream: origin, limits: [guard] }}
  - {{ name: other, upstream: origin }}
",
        origin.upstream()
    ));
    let (mut sent, mut counted) = (0, 0);
    for spelling in SPELLINGS.iter().copied().chain([&b"/login\xff"[..]]) {
        for _ in 0..6 {
            let bytes = [b"GET ", spelling, b" HTTP/1.1\r\nhost: test\r\n\r\n"].concat();
            let before = origin.count();
            let response = gateway.say(&bytes).unwrap();
            assert!(matches!(response.status, 200 | 400 | 429), "{}: {response:?}", spelling.escape_ascii());
            assert_eq!(origin.count() - before, usize::from(response.status == 200));
            sent += 1;
            counted += usize::from(matches!(response.status, 200 | 429));
        }
    }
    let reached = origin.seen();
    let at_login = reached.iter().filter(|seen| seen.target().split('?').next() == Some("/login")).count();
    assert_eq!(at_login, 5);
    // What the upstream might still take for the path, after one more decoding, does not reach it either.
    for seen in &reached {
        let target = seen.target();
        assert!(target.starts_with('/') && !target.contains("//") && !target.contains("/."), "{target}");
        assert!(!target.contains("%6") && !target.contains("%2f") && !target.contains("%00"), "{target}");
    }
    wait_until(&format!("{sent} to be counted, {counted} of them let through or denied"), || {
        let metrics = gateway.metrics();
        let total: f64 = metrics.all("tollgate_http_requests_total").iter().map(|sample| sample.value).sum();
        f64::from(sent) - total == 0.0
    });
}

#[test]
fn a_target_is_made_canonical_for_the_upstream_too() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("{}{ALL}", origin.upstream()));
    for (asked, sent) in [
        ("//a///b", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/%41%2d%7e%7E", "/A-~~"),
        ("/a%c3%a9", "/a%C3%A9"),
        ("http://test/x?y=//z/../%zz", "/x?y=//z/../%zz"),
        ("/a?", "/a?"),
        ("/a;b=c/d", "/a;b=c/d"),
        ("http://test", "/"),
    ] {
        assert_eq!(seen(&gateway, &origin, &request("GET", asked, &[])).target(), sent, "{asked}");
    }
    assert_eq!(seen(&gateway, &origin, &request("OPTIONS", "*", &[])).target(), "*");
}

#[test]
fn spellings_of_a_host_are_one_key() {
    let origin = Origin::with(by_path);
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 3, key: host }";
    let gateway = Gateway::start(&format!("{}limits: {{ guard: {limit} }}\n{ALL_GUARDED}", origin.upstream()));
    let hosts = ["a.example", "A.Example", "a.example.", "a.example:80", "a.example:8080"];
    let statuses = hosts.map(|host| gateway.get("/", &[("host", host)]).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(gateway.get("http://A.example./", &[("host", "A.example.")]).status, 429);
    assert_eq!(gateway.get("/", &[("host", "b.example")]).status, 200);
}
