//! Forwarding: the fields that the gateway adds, changes and removes in both directions, and canonical paths.

use crate::support::client::request;
use crate::support::gateway::{ALL, proxied};
use crate::support::origin::ReceivedRequest;
use crate::support::{Gateway, Origin};

/// One request as the upstream saw it.
fn seen(gateway: &Gateway, origin: &Origin, bytes: &str) -> ReceivedRequest {
    let before = origin.count();
    let response = gateway.round_trip_raw(bytes).unwrap();
    assert_eq!(response.status, 200, "{bytes:?}: {response:?}");
    assert_eq!(origin.count(), before + 1);
    origin.received().pop().unwrap()
}

#[test]
fn the_upstream_is_told_who_asked_for_what() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    gateway.client_from(9).round_trip("GET", "/a/b?c=d&e", &[("host", "Api.Example:8080"), ("x-own", "kept")]);
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
fn forwarding_fields_of_an_untrusted_client_are_replaced() {
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
fn forwarding_fields_of_a_trusted_proxy_are_passed_on() {
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
    let response = gateway.round_trip_raw(request).unwrap();
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
fn the_version_in_which_a_message_came_is_told() {
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.send("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n")
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let response = gateway.round_trip_raw("GET / HTTP/1.0\r\nhost: test\r\n\r\n").unwrap();
    assert_eq!(response.field("via"), Some("1.0 tollgate"));
    assert_eq!(origin.only().head.field("via"), Some("1.0 tollgate"));
}

#[test]
fn a_client_cannot_have_our_fields_dropped() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for name in ["X-Forwarded-For", "x-forwarded-proto", "via", "host", "close, x-forwarded-for"] {
        let before = origin.count();
        let response = gateway.get("/", &[("connection", name)]);
        let reached = origin.received().split_off(before);
        assert!(matches!((response.status, reached.len()), (400, 0) | (200, 1)), "{name}: {response:?}");
        for seen in reached {
            assert_eq!(seen.head.field("x-forwarded-for"), Some("127.0.0.1"), "{name}");
            assert_eq!(seen.head.field("x-forwarded-proto"), Some("http"), "{name}");
            assert_eq!(seen.head.field("via"), Some("1.1 tollgate"), "{name}");
            assert_eq!(seen.head.field("host"), Some("test"), "{name}");
        }
    }
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
        ("http://test", "/"),
    ] {
        assert_eq!(seen(&gateway, &origin, &request("GET", asked, &[])).target(), sent, "{asked}");
    }
    for asked in ["*", "http://test"] {
        assert_eq!(seen(&gateway, &origin, &request("OPTIONS", asked, &[])).target(), "*", "{asked}");
    }
}

#[test]
fn a_question_about_the_whole_server_stays_one_under_any_rewrite() {
    let origin = Origin::start();
    for rewrite in ["{ add_prefix: /v1 }", "{ path: /fixed }"] {
        let gateway = routed(&origin, &format!("rewrite: {rewrite}"));
        assert_eq!(seen(&gateway, &origin, &request("OPTIONS", "*", &[])).target(), "*", "{rewrite}");
    }
}

#[test]
fn a_host_that_a_route_sets_is_the_only_one() {
    let origin = Origin::start();
    let gateway = routed(&origin, "request_headers: { set: { Host: \"internal.example:81\" } }");
    let head = seen(&gateway, &origin, &request("GET", "/", &[])).head;
    assert_eq!((head.all("host"), head.field("x-forwarded-host")), (vec!["internal.example:81"], Some("test")));
}
