//! Nothing dodges a limit: however a client spells what it wants, whom it claims to be and what it adds, it meets the
//! limit that it would meet otherwise, or is refused.

use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::origin::by_path;
use crate::support::{Gateway, Origin, wait_until};

const FIVE: &str = "{ algorithm: gcra, rate: 1/h, burst: 5, key: client_address }";

#[test]
fn a_made_up_client_address_buys_nothing_from_an_untrusted_peer() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, FIVE));
    let mut client = gateway.client();
    let made_up = |number: usize| format!("10.{number}.{}.7, 192.0.2.{number}", number * 2);
    let statuses = (0..100).map(|number| {
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
    let client = std::cell::RefCell::new(gateway.client());
    let admitted_of = |count: usize, forwarded: &dyn Fn(usize) -> String| {
        let statuses: Vec<u16> = (0..count)
            .map(|number| {
                let lines = forwarded(number);
                let mut client = client.borrow_mut();
                client.send(format!("GET / HTTP/1.1\r\nhost: test\r\n{lines}\r\n"));
                client.receive().status
            })
            .collect();
        statuses.iter().filter(|status| **status == 200).count()
    };
    let admitted = |forwarded: &dyn Fn(usize) -> String| admitted_of(100, forwarded);
    let line = |value: String| format!("x-forwarded-for: {value}\r\n");
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}, 198.51.100.7"))), 5);
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}, 198.51.100.7, 10.1.1.{number}"))), 0);
    assert_eq!(admitted(&|number| line(format!("9.9.9.{number}")) + &line("198.51.100.7".to_owned())), 0);
    assert_eq!(admitted(&|number| line(format!("198.51.100.8, 10.0.0.{number}"))), 5);
    assert_eq!(admitted(&|number| line(format!("198.51.100.{number}, 198.51.100.6, 10.0.0.1, 10.0.0.{number}"))), 5);
    // What cannot be read is one client, whatever it is.
    let long = "x".repeat(7000);
    let junk = ["unknown", "", "1.2.3.4:99", "[2001:db8::1]:443", "999.1.1.1", "1.2.3.4,", "_hidden", "a b", &long];
    assert_eq!(admitted(&|number| line(junk[number % junk.len()].to_owned())), 5);
    assert_eq!(admitted(&|number| line(format!("198.51.100.{number}, 999.1.1.{number}"))), 0);
    // Two spellings of one address.
    let spellings = ["::ffff:198.51.100.9", "198.51.100.9", "::FFFF:c633:6409"];
    assert_eq!(admitted(&|number| line(spellings[number % spellings.len()].to_owned())), 5);
    // A network of 64 bits.
    assert_eq!(admitted_of(1000, &|number| line(format!("2001:db8:1:2:{number:x}::{number:x}"))), 5);
    assert_eq!(admitted(&|number| line(format!("2001:DB8:1:2:0:{number:X}:192.0.2.{number}"))), 0);
    assert_eq!(admitted(&|number| line(format!("2001:db8:1:3::{number:x}"))), 5);
    // Addresses of IPv4 that are written as of IPv6 are no network.
    for last in 20..24 {
        assert_eq!(admitted(&|_| line(format!("::ffff:198.51.100.{last}"))), 5, "{last}");
    }
}

/// The spellings of `/login` that a handler might take for it.
const SPELLINGS: [&[u8]; 24] = [
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
    b"/login#x",
    b"/login\xff",
    b"/login ",
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
    for spelling in SPELLINGS {
        for _ in 0..20 {
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

#[test]
fn a_host_that_nobody_knows_is_not_found_and_not_forwarded() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {FIVE} }}
routes: [{{ name: api, match: {{ hosts: [api.example] }}, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    ));
    for host in ["other.example", "api.example.evil", "xapi.example", "127.0.0.1", "[::1]"] {
        assert_eq!(gateway.get("/", &[("host", host)]).status, 404, "{host}");
    }
    let statuses = ["api.example", "API.example", "api.example.", "api.example:80", "api.example.:80", "api.Example"]
        .map(|host| gateway.get("/", &[("host", host)]).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(origin.count(), 5);
}

#[test]
fn a_key_in_a_field_is_its_whole_value_and_neither_its_case_nor_its_length_makes_another() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 2, key: { header: x-api-key }, missing_key: share }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let admitted = |lines: &[&[u8]]| {
        let statuses = [(); 4].map(|()| {
            let lines: Vec<u8> = lines.iter().flat_map(|line| [*line, b"\r\n"].concat()).collect();
            gateway.say([&b"GET / HTTP/1.1\r\nhost: test\r\n"[..], &lines, b"\r\n"].concat()).unwrap().status
        });
        statuses.iter().filter(|status| **status == 200).count()
    };
    let (long, longer) = (b"k".repeat(7000), b"k".repeat(7001));
    let line = |value: &[u8]| [b"x-api-key: ", value].concat();
    for value in [&b"a"[..], b"b", b"A", b"\xff", b"\xfe", b"a\tb", b"{}", b"a:b", b"", &long, &longer] {
        assert_eq!(admitted(&[&line(value)]), 2, "{}", value.escape_ascii());
        assert_eq!(admitted(&[&[b"X-API-KEY:  ", value, b" "].concat()]), 0, "{}", value.escape_ascii());
    }
    assert_eq!(admitted(&[]), 2, "none is one more");
    assert_eq!(admitted(&[b"x_api_key: c"]), 0, "which has no name for itself");
    // several are one key, in their order
    assert_eq!(admitted(&[b"x-api-key: d", b"x-api-key: e"]), 2);
    assert_eq!(admitted(&[b"x-api-key: d", b"X-Api-Key: e"]), 0);
}

#[test]
fn limits_of_two_routes_on_the_same_key_share_nothing() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits:
  wide: {{ algorithm: gcra, rate: 1/h, burst: 1000, key: client_address }}
  narrow: {{ algorithm: gcra, rate: 1/h, burst: 10, key: client_address }}
routes:
  - {{ name: wide, match: {{ path: /wide }}, upstream: origin, limits: [wide] }}
  - {{ name: narrow, match: {{ path: /narrow }}, upstream: origin, limits: [narrow] }}
",
        origin.upstream()
    ));
    let mut client = gateway.client();
    let mut admitted = |count: usize, target: &str| (0..count).filter(|_| client.get(target).status == 200).count();
    assert_eq!([admitted(6, "/narrow"), admitted(700, "/wide")], [6, 700]);
    assert_eq!([admitted(14, "/narrow"), admitted(350, "/wide")], [4, 300]);
}

#[test]
fn nothing_of_a_client_becomes_a_field_of_a_response() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 1, key: { header: x-user }, missing_key: deny,
        over_limit: { deny: { headers: { x-said: \"{{ route }} {{ detail }}\" } } } }";
    let cors = "cors: { origins: \"*\" }\n";
    let gateway = Gateway::start(&(limited(&origin, limit) + cors));
    let hostile: &[&[u8]] = &[
        b"GET /%0d%0aevil:%201 HTTP/1.1\r\nhost: test\r\nx-user: a\r\n\r\n",
        b"GET /?%0d%0aevil:%201 HTTP/1.1\r\nhost: test\r\nx-user: \xe5\x98\x8a\xe5\x98\x8devil: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: test\r\norigin: https://a%0d%0aevil:1\r\nx-user: b%0d%0aevil: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: test\r\norigin: \xff\xfeevil\r\nx-user: \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: test\r\ntraceparent: evil\r\nx-user: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: test\r\ncontent-type: application/grpc\r\norigin: evil\r\n\r\n",
        b"GET /%zz\x0b HTTP/1.1\r\nhost: test\r\n\r\n",
    ];
    for bytes in hostile.iter().chain(hostile) {
        let response = gateway.say(bytes).unwrap();
        for (name, value) in &response.head.fields {
            assert!(!name.contains("evil"), "{}: {response:?}", bytes.escape_ascii());
            let plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            assert!(plain && !value.contains("evil: 1"), "{}: {name}: {value}", bytes.escape_ascii());
        }
        assert!(response.head.raw.iter().all(|byte| matches!(byte, b'\r' | b'\n' | b' '..=b'~')), "{response:?}");
    }
}
