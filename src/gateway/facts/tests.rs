use super::*;
use std::num::NonZeroUsize;

use crate::ruleset::TrustedPeers;
use crate::units::Prefixes;

fn headers(lines: &[(&'static str, &str)]) -> Fields {
    let mut map = Fields::default();
    for (name, value) in lines {
        map.push(name, value);
    }
    map
}

fn target(raw: &str, headers: &Fields, secure: bool) -> Result<Target, Refused> {
    Target::new(&Head {
        method: "GET",
        raw_target: raw.as_bytes(),
        headers,
        peer: None,
        secure,
        tls_info: None,
        streams_body: false,
    })
}

fn path(raw: &str) -> Option<String> {
    target(raw, &headers(&[("host", "a")]), false).ok().map(|target| target.path)
}

#[test]
fn spellings_of_a_path_become_one_or_are_refused() {
    for raw in [
        "/login", "//login", "/./login", "/x/../login", "/%6cogin", "/%6Cogin", "http://a/login", "http://A:80/login",
        "HTTP://a/login", "/login?x",
    ] {
        assert_eq!(path(raw).as_deref(), Some("/login"), "{raw}");
    }
    for raw in [
        "/login%2f", "/login%00", "/../login", "login", "/login#y", "\\login", "/%zz", "/%4", "/a b", "http://b/login",
        "http://a:81/login", "",
    ] {
        assert_eq!(path(raw), None, "{raw}");
    }
    assert_eq!(path("/login/.").as_deref(), Some("/login/"));
    assert_eq!(path("/a/b/..").as_deref(), Some("/a/"));
    assert_eq!(path("/a%c3%a9").as_deref(), Some("/a%C3%A9"));
    assert_eq!(path("/").as_deref(), Some("/"));
    assert_eq!(path("http://a").as_deref(), Some("/"));
    let at_port = |raw| target(raw, &headers(&[("host", "a:443")]), false).is_ok();
    assert_eq!(["https://a/", "http://a:443/", "http://a/"].map(at_port), [true, true, false]);
}

#[test]
fn spellings_of_a_host_become_one_or_are_refused() {
    let over = |secure: bool, raw: &str| {
        target("/", &headers(&[("host", raw)]), secure).map(|target| (target.host().to_owned(), target.authority))
    };
    let host = |raw: &str| over(false, raw);
    for raw in ["A.example", "a.example.", "a.example:80"] {
        assert_eq!(host(raw), Ok(("a.example".to_owned(), "a.example".to_owned())), "{raw}");
    }
    assert_eq!(over(true, "a.example:443"), Ok(("a.example".to_owned(), "a.example".to_owned())));
    assert_eq!(over(true, "a.example:80"), Ok(("a.example".to_owned(), "a.example:80".to_owned())));
    assert_eq!(host("a.example:443"), Ok(("a.example".to_owned(), "a.example:443".to_owned())));
    assert_eq!(host("a.example:8080"), Ok(("a.example".to_owned(), "a.example:8080".to_owned())));
    for raw in ["[::1]:8080", "[0::0:1]:08080"] {
        assert_eq!(host(raw), Ok(("[::1]".to_owned(), "[::1]:8080".to_owned())), "{raw}");
    }
    for raw in [
        "", "u@a", "a:b", "a b", ".", "a..", "a..b", ".a", "a,b", "a%41", "[v1.x]", "[::1", "[::1]a", "a:1:2", "a:+1",
        "a:65536",
    ] {
        assert!(host(raw).is_err(), "{raw}");
    }
    assert!(target("/", &headers(&[]), false).is_err());
    assert!(target("/", &headers(&[("host", "a"), ("host", "a")]), false).is_err());
}

#[test]
fn forwarded_addresses_are_believed_from_the_right_and_from_trusted_hops_only() {
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let trusting = |unix| ClientAddress {
        trusted_proxies: TrustedPeers { networks: networks.clone(), unix },
        ..ClientAddress::default()
    };
    let of = |peer: Option<&str>, lines: &[(&'static str, &str)], unix| {
        let peer = peer.map(|peer| peer.parse().unwrap());
        client_address(peer, &headers(lines), &trusting(unix)).map(|address| address.to_string())
    };
    let client = |peer: &str, lines: &[(&'static str, &str)]| of(Some(peer), lines, false);
    let forwarded = |value| [("x-forwarded-for", value)];
    assert_eq!(client("192.0.2.1", &forwarded("1.2.3.4")).as_deref(), Some("192.0.2.1"));
    assert_eq!(client("10.0.0.1", &forwarded("9.9.9.9, 198.51.100.7")).as_deref(), Some("198.51.100.7"));
    assert_eq!(client("10.0.0.1", &forwarded("9.9.9.9, 198.51.100.7, 10.2.2.2")).as_deref(), Some("198.51.100.7"));
    let two_lines = [("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "198.51.100.7")];
    assert_eq!(client("10.0.0.1", &two_lines).as_deref(), Some("198.51.100.7"));
    assert_eq!(client("10.0.0.1", &[]).as_deref(), Some("10.0.0.1"));
    for unusable in ["unknown", "1.2.3.4, ", "1.2.3.4:", "1.2.3.4:99999", "999.1.1.1"] {
        assert_eq!(client("10.0.0.1", &forwarded(unusable)), None, "{unusable}");
    }
    // over a Unix socket
    assert_eq!(of(None, &forwarded("198.51.100.7, 10.2.2.2"), true).as_deref(), Some("198.51.100.7"));
    assert_eq!(of(None, &forwarded("198.51.100.7"), false), None);
    assert_eq!(of(None, &[], true), None);
}

#[test]
fn other_fields_are_believed_from_trusted_peers_only_and_never_from_their_left() {
    let of = |header: &AddressHeader, hops, peer: &str, lines: &[(&'static str, &str)]| {
        let trusted_proxies = TrustedPeers { networks: vec!["10.0.0.0/8".parse().unwrap()], unix: false };
        let hops = NonZeroUsize::new(hops);
        let rules = ClientAddress { trusted_proxies, header: header.clone(), hops, ..ClientAddress::default() };
        client_address(Some(peer.parse().unwrap()), &headers(lines), &rules).map(|address| address.to_string())
    };
    let single = AddressHeader::Single(http::HeaderName::from_static("x-real-ip"));
    let real = |peer, lines: &[_]| of(&single, 0, peer, lines);
    assert_eq!(real("10.0.0.1", &[("x-real-ip", "1.2.3.4")]).as_deref(), Some("1.2.3.4"));
    assert_eq!(real("192.0.2.1", &[("x-real-ip", "1.2.3.4")]).as_deref(), Some("192.0.2.1"));
    assert_eq!(real("10.0.0.1", &[]).as_deref(), Some("10.0.0.1"));
    assert_eq!(real("10.0.0.1", &[("x-real-ip", "1.2.3.4"), ("x-real-ip", "1.2.3.5")]), None);
    assert_eq!(real("10.0.0.1", &[("x-real-ip", "1.2.3.4, 1.2.3.5")]), None);

    let deep = |hops, value| of(&AddressHeader::XForwardedFor, hops, "10.0.0.1", &[("x-forwarded-for", value)]);
    assert_eq!(deep(1, "9.9.9.9, 10.0.0.7").as_deref(), Some("10.0.0.7"));
    assert_eq!(deep(2, "9.9.9.9, 8.8.8.8, 7.7.7.7").as_deref(), Some("8.8.8.8"));
    assert_eq!(deep(3, "8.8.8.8, 7.7.7.7"), None);

    let forwarded = |value| of(&AddressHeader::Forwarded, 0, "10.0.0.1", &[("forwarded", value)]);
    for value in [
        "for=1.2.3.4",
        "For=\"1.2.3.4:80\"",
        "for=9.9.9.9;proto=http, FOR=1.2.3.4;by=10.0.0.1,for=10.0.0.2",
        "for=\"_a,b\\\"c\", for=1.2.3.4",
    ] {
        assert_eq!(forwarded(value).as_deref(), Some("1.2.3.4"), "{value}");
    }
    assert_eq!(forwarded("for=\"[2001:db8::1]:443\"").as_deref(), Some("2001:db8::1"));
    for value in [
        "", "for", "for=", "for=1.2.3.4:80", "for=\"2001:db8::1\"", "for=[2001:db8::1]", "for=unknown", "for=_hidden",
        "for=1.2.3.4;for=5.6.7.8", "for =1.2.3.4", "for=1.2.3.4;", "for=1.2.3.4,", "for=\"1.2.3.4", "for=1.2.3.4 by=a",
        "proto=http", "for=\"\"1.2.3.4\"\"", "for=9.9.9.9\", for=1.2.3.4",
    ] {
        assert_eq!(forwarded(value), None, "{value}");
    }
    let hop = |others| (0..others).map(|number| format!("p{number}=1;")).collect::<String>() + "for=1.2.3.4";
    let (readable, too_long) = (hop(15), hop(16));
    assert_eq!(forwarded(&readable).as_deref(), Some("1.2.3.4"));
    assert_eq!(forwarded(&too_long), None);
}

#[test]
fn networks_of_ipv4_are_counted_as_one_client() {
    let prefixes = Prefixes { ipv4: 24, ipv6: 64 };
    let network = |address: &str| prefixes.network(address.parse().unwrap()).to_string();
    assert_eq!(network("192.0.2.77"), "192.0.2.0");
    assert_eq!(network("2001:db8::1:2:3:4"), "2001:db8::");
    let whole = Prefixes { ipv4: 32, ipv6: 128 };
    assert_eq!(whole.network("192.0.2.77".parse().unwrap()).to_string(), "192.0.2.77");
}

#[test]
fn addresses_are_read_as_the_library_reads_them() {
    for text in [
        "0.0.0.0", "255.255.255.255", "192.0.2.10", "2001:db8::1", "::ffff:192.0.2.1", "256.0.0.1", "1000.0.0.1",
        "01.2.3.4", "1.00.3.4", "1.2.3", "1.2.3.", "1..3.4", ".1.2.3", "1.2.3.4.", "1.2.3.4.5", " 1.2.3.4", "1.2.3.a",
        "",
    ] {
        assert_eq!(read_address(text.as_bytes()), text.parse().ok(), "{text}");
    }
    assert_eq!(read_address(b"1.2.3.\xff"), None);
}

#[test]
fn an_address_may_have_a_port_brackets_and_quotes() {
    let (v4, v6) = ("192.0.2.1".parse().ok(), "2001:db8::1".parse().ok());
    for text in ["192.0.2.1:80", "192.0.2.1:0", "192.0.2.1:65535", "\"192.0.2.1\"", "\"192.0.2.1:80\""] {
        assert_eq!(read_address(text.as_bytes()), v4, "{text}");
    }
    for text in ["[2001:db8::1]", "[2001:db8::1]:443", "\"2001:DB8::1\"", "\"[2001:db8::1]\"", "\"[2001:db8::1]:443\""]
    {
        assert_eq!(read_address(text.as_bytes()), v6, "{text}");
    }
    for text in [
        "192.0.2.1:", "192.0.2.1:65536", "192.0.2.1:x", "192.0.2.1:+1", "192.0.2.1:80:80", "192.0.2.1 :80", ":80",
        "[192.0.2.1]", "[192.0.2.1]:80", "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]443", "[2001:db8::1]:", "[]",
        "[]:80", "[2001:db8::1%1]", "\"192.0.2.1", "192.0.2.1\"", "\"\"", "\"", "\"\"192.0.2.1\"\"", "unknown:80",
    ] {
        assert_eq!(read_address(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn a_query_begins_at_the_first_question_mark() {
    for (raw, expected) in [
        ("/a", ("/a", None)),
        ("/a?", ("/a", Some(""))),
        ("/a?b?c=/../", ("/a", Some("b?c=/../"))),
        ("/a/../b?c", ("/b", Some("c"))),
        ("/a:b?c", ("/a:b", Some("c"))),
        ("http://h?c", ("/", Some("c"))),
    ] {
        let (path, query) = path_and_query("GET", raw.as_bytes(), "h").unwrap();
        assert_eq!((&*path, query), expected, "{raw}");
    }
    for raw in ["/a?b c", "/a?b#c", "/a?\u{e9}", "?a"] {
        assert!(path_and_query("GET", raw.as_bytes(), "h").is_err(), "{raw}");
    }
}

#[test]
fn an_ipv6_client_is_its_network_and_a_mapped_one_is_ipv4() {
    let client = |peer: &str| {
        let peer = Some(peer.parse().unwrap());
        let address = client_address(peer, &Fields::default(), &ClientAddress::default());
        address.map(|address| ClientAddress::default().prefixes.network(address))
    };
    assert_eq!(client("2001:db8:1:2::1"), client("2001:DB8:1:2:ffff::2"));
    assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
    assert_eq!(client("::ffff:1.2.3.4"), client("1.2.3.4"));
    assert_ne!(client("::ffff:1.2.3.4"), client("::ffff:1.2.3.5"));
}
