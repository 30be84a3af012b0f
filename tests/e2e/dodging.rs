//! No request evades a limit: however a client spells the target, whatever address it claims and whatever it adds, the same
//! limit applies or the gateway refuses the request.

use crate::support::client::request;
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::http2::Http2;
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
        client.round_trip("GET", "/", &fields).status
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
    // All unreadable addresses count as one client.
    let long = "x".repeat(7000);
    let junk = ["unknown", "", "999.1.1.1", "1.2.3.4,", "_hidden", "a b", "1.2.3.4:", "[2001:db8::1]:99999", &long];
    assert_eq!(admitted(&|number| line(junk[number % junk.len()].to_owned())), 5);
    assert_eq!(admitted(&|number| line(format!("198.51.100.{number}, 999.1.1.{number}"))), 0);
    // Two spellings of one address.
    let spellings = ["::ffff:198.51.100.9", "198.51.100.9", "::FFFF:c633:6409"];
    assert_eq!(admitted(&|number| line(spellings[number % spellings.len()].to_owned())), 5);
    // A network of 64 bits.
    assert_eq!(admitted_of(1000, &|number| line(format!("2001:db8:1:2:{number:x}::{number:x}"))), 5);
    assert_eq!(admitted(&|number| line(format!("2001:DB8:1:2:0:{number:X}:192.0.2.{number}"))), 0);
    assert_eq!(admitted(&|number| line(format!("2001:db8:1:3::{number:x}"))), 5);
    // IPv4 addresses in IPv6 form do not count as one network.
    for last in 20..24 {
        assert_eq!(admitted(&|_| line(format!("::ffff:198.51.100.{last}"))), 5, "{last}");
    }
}

#[test]
fn a_forwarded_address_with_a_port_or_brackets_is_that_address() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {FIVE} }}
client_address: {{ trusted_proxies: [127.0.0.0/8] }}
access: {{ allow: {{ addresses: [192.0.2.0/24, \"2001:db8:7::/48\"] }} }}
{ALL_GUARDED}",
        origin.upstream()
    ));
    let statuses = |spellings: &[&str]| -> Vec<u16> {
        let mut client = gateway.client();
        let status = |spelling: &&str| client.round_trip("GET", "/", &[("x-forwarded-for", spelling)]).status;
        spellings.iter().map(status).collect()
    };
    let (limited, unknown) = ([200, 200, 200, 200, 200, 429], [403; 6]);
    let v4 = ["192.0.2.1:99", "192.0.2.1:65535", "\"192.0.2.1:1\"", "\"192.0.2.1\"", "192.0.2.1", "192.0.2.1:7"];
    assert_eq!(statuses(&v4), limited);
    let v6 = [
        "[2001:db8:7::1]:443", "[2001:db8:7::2]", "\"[2001:db8:7::3]:443\"", "\"[2001:db8:7::4]\"", "2001:db8:7::5",
        "[2001:DB8:7:0::6]:1",
    ];
    assert_eq!(statuses(&v6), limited);
    assert_eq!(statuses(&["192.0.2.2:99"]), [200], "each address has a bucket of its own");
    let bad_ports =
        ["192.0.2.3:99999", "192.0.2.3:", "192.0.2.3:x", "192.0.2.3:-1", "[2001:db8:7::1]:", "[2001:db8:7::1]443"];
    assert_eq!(statuses(&bad_ports), unknown);
    let bad_signs = [
        "[192.0.2.3]", "[2001:db8:7::1", "\"192.0.2.3", "2001:db8:7::1]:443", "\"\"192.0.2.3\"\"",
        "[2001:db8:7::1%1]:443",
    ];
    assert_eq!(statuses(&bad_signs), unknown);
}

/// Spellings of `/login` that a handler might take for it.
const SPELLINGS: [&[u8]; 34] = [
    b"/login", b"//login", b"/./login", b"/x/../login", b"/%6cogin", b"/%6Cogin", b"/login/", b"/login/.",
    b"/login;a=1", b"/login;", b"/login;a=1/", b"/login%3Ba=1", b"/login%3bjsessionid=1", b"/x/..;/login",
    b"/x/%2e%2E;a=1/login", b"/x/..%3b/login", b"/.;/login", b"/;a=1/login", b"http://test/login;a=1", b"/login?",
    b"/login?x#y", b"/login%2f", b"/login%00", b"/LOGIN", b"login", b"?x", b"/login%20", b"\\login", b"/login%c0%af",
    b"http://test/login", b"http://test:80/login", b"/login#x", b"/login\xff", b"/login ",
];

/// The path as a server sees it that strips path parameters: before it decodes the path, as Tomcat does, or after.
fn without_parameters(path: &str) -> [String; 2] {
    let resolved = |segments: Vec<String>| {
        let mut path: Vec<String> = Vec::new();
        for segment in segments {
            match segment.as_str() {
                "" | "." => {}
                ".." => drop(path.pop()),
                _ => path.push(segment),
            }
        }
        format!("/{}", path.join("/"))
    };
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let stripped = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    [
        resolved(path.split('/').map(|segment| decoded(&stripped(segment))).collect()),
        resolved(path.split('/').map(|segment| stripped(&decoded(segment))).collect()),
    ]
}

/// Sends every spelling of `/login` twenty times; returns the targets that reached the origin.
fn logins_sent(settings: &str) -> Vec<String> {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {FIVE} }}
routes:
  - {{ name: login, match: {{ path: /login }}, upstream: origin, limits: [guard]{settings} }}
  - {{ name: login_, match: {{ path: /login/ }}, upstream: origin, limits: [guard]{settings} }}
  - {{ name: other, upstream: origin{settings} }}
",
        origin.upstream()
    ));
    let mut sent = 0;
    for spelling in SPELLINGS {
        for _ in 0..20 {
            let bytes = [b"GET ", spelling, b" HTTP/1.1\r\nhost: test\r\n\r\n"].concat();
            let before = origin.count();
            let response = gateway.round_trip_raw(&bytes).unwrap();
            assert!(matches!(response.status, 200 | 400 | 429), "{}: {response:?}", spelling.escape_ascii());
            assert_eq!(origin.count() - before, usize::from(response.status == 200));
            sent += 1;
        }
    }
    wait_until(&format!("{sent} to be counted"), || {
        let metrics = gateway.metrics();
        let total: f64 = metrics.all("tollgate_http_requests_total").iter().map(|sample| sample.value).sum();
        f64::from(sent) - total == 0.0
    });
    origin.received().iter().map(|seen| seen.target().to_owned()).collect()
}

#[test]
fn no_spelling_of_a_path_gets_around_its_limit() {
    for settings in ["", ", path_parameters: allow"] {
        let reached = logins_sent(settings);
        let paths = reached.iter().map(|target| target.split('?').next().unwrap_or_default());
        let at_login = paths.filter(|path| without_parameters(path).contains(&"/login".to_owned()));
        assert_eq!(at_login.collect::<Vec<_>>().len(), 5, "{reached:?}");
        // No target reaches the upstream that one more decoding would turn into the path.
        for target in &reached {
            assert!(target.starts_with('/') && !target.contains("//") && !target.contains("/."), "{target}");
            assert!(!target.contains("%6") && !target.contains("%2f") && !target.contains("%00"), "{target}");
            assert!(!settings.is_empty() || !target.contains(';') && !target.contains("%3"), "{target}");
        }
    }
}

#[test]
fn head_is_under_the_limits_of_a_route_for_get() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {FIVE} }}
routes:
  - {{ name: report, match: {{ path: /report/**, methods: [GET] }}, upstream: origin, limits: [guard] }}
  - {{ name: others, upstream: origin }}
",
        origin.upstream()
    ));
    let mut client = gateway.client();
    let statuses = [(); 10].map(|()| {
        client.send(request("HEAD", "/report/7", &[]));
        client.next_to("HEAD").unwrap().status
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5);
    assert_eq!(gateway.get("/report/7", &[]).status, 429);
}

#[test]
fn another_case_of_a_path_is_the_same_route_where_the_file_says_so() {
    let origin = Origin::with(by_path);
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ path_segment: tenant }} }} }}
path_case: ignore
routes:
  - {{ name: api, match: {{ path: \"/Api/{{tenant}}/a+b\" }}, upstream: origin, limits: [guard], rewrite: {{ strip_prefix: /api }} }}
  - {{ name: other, upstream: origin }}
",
        origin.upstream()
    ));
    let spellings = ["/api/acme/a+b", "/API/acme/A%2bB", "/aPI/acme/a%2BB", "/%41pi/acme/a+b", "/api/Acme/a+b"];
    // the key keeps the case of the path
    assert_eq!(spellings.map(|path| gateway.get(path, &[]).status), [200, 200, 429, 429, 200]);
    assert_eq!(gateway.get("/Other/Path", &[]).status, 200);
    let targets: Vec<String> = origin.received().iter().map(|seen| seen.target().to_owned()).collect();
    assert_eq!(targets, ["/acme/a+b", "/acme/A%2BB", "/Acme/a+b", "/Other/Path"]);
}

#[test]
fn path_parameters_are_forwarded_where_a_route_allows_them_and_refused_elsewhere() {
    let origin = Origin::with(by_path);
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {{ algorithm: gcra, rate: 1/h, burst: 3, key: route_pattern }} }}
routes:
  - {{ name: maps, match: {{ path: /maps/* }}, upstream: origin, limits: [guard], path_parameters: allow }}
  - {{ name: old, match: {{ path: /old/** }}, upstream: origin, path_parameters: allow,
      rewrite: {{ strip_prefix: /old/v1, add_prefix: /new }} }}
  - {{ name: other, upstream: origin }}
",
        origin.upstream()
    ));
    let status = |path: &str| gateway.get(path, &[]).status;
    let maps = ["/maps/a;x=1;y=2", "/maps;v=7/a", "/maps/b%3bx", "/maps/c;x=/../c"].map(status);
    assert_eq!(maps, [200, 200, 200, 429]);
    for path in ["/a;x", "/maps;v=7", "/maps/a/b;x", "/a%3Bx", "/a%3bx/b"] {
        let refused = gateway.get(path, &[]);
        assert_eq!(refused.status, 400, "{path}");
        assert!(refused.text().contains("path parameters"), "{refused:?}");
    }
    for path in
        ["/maps/..;/admin", "/maps/.;x", "/maps/%2e%2e;x=1/admin", "/maps/..%3B/admin", "/;a/maps/a", "/maps/..;"]
    {
        assert_eq!(status(path), 400, "{path}");
    }
    assert_eq!(["/old;a/v1;b/c;d", "/old/v1;b", "/old/;b"].map(status), [200, 200, 200]);
    let targets: Vec<String> = origin.received().iter().map(|seen| seen.target().to_owned()).collect();
    let expected = ["/maps/a;x=1;y=2", "/maps;v=7/a", "/maps/b%3Bx", "/new/c;d", "/new", "/new/old/;b"];
    assert_eq!(targets, expected);
}

#[test]
fn spellings_of_brackets_and_signs_are_one_route_and_one_key() {
    let origin = Origin::with(by_path);
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ path_segment: tenant }} }} }}
routes:
  - {{ name: a, match: {{ path: \"/a+b/{{tenant}}\" }}, upstream: origin, limits: [guard], rewrite: {{ strip_prefix: /a+b }} }}
  - {{ name: other, upstream: origin }}
",
        origin.upstream()
    ));
    let status = |path: &str| gateway.get(path, &[]).status;
    for [one, other] in [["[1]", "%5B1%5d"], ["x+y", "x%2by"], ["x*y", "x%2Ay"], ["*", "%2a"]] {
        let paths =
            [format!("/a+b/{one}"), format!("/a%2Bb/{other}"), format!("/a+b/{other}"), format!("/a%2bb/{one}")];
        assert_eq!(paths.map(|path| status(&path)), [200, 200, 429, 429], "{one}");
    }
    let targets: Vec<String> = origin.received().iter().map(|seen| seen.target().to_owned()).collect();
    // the upstream gets signs as they were sent, and brackets encoded
    assert_eq!(targets, ["/%5B1%5D", "/%5B1%5D", "/x+y", "/x%2By", "/x*y", "/x%2Ay", "/*", "/%2A"]);
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
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 2, key: { header: x-api-key }, missing_key: shared_bucket }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let admitted = |lines: &[&[u8]]| {
        let statuses = [(); 4].map(|()| {
            let lines: Vec<u8> = lines.iter().flat_map(|line| [*line, b"\r\n"].concat()).collect();
            gateway.round_trip_raw([&b"GET / HTTP/1.1\r\nhost: test\r\n"[..], &lines, b"\r\n"].concat()).unwrap().status
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
    // each combination of several fields would be another key
    assert_eq!(admitted(&[b"x-api-key: d", b"X-Api-Key: e"]), 0);
}

#[test]
fn a_field_that_no_upstream_gets_is_no_key_and_chooses_no_route() {
    let origin = Origin::start();
    let by = |name: &str| {
        format!("{{ algorithm: gcra, rate: 1/h, burst: 2, key: {{ header: {name} }}, missing_key: shared_bucket }}")
    };
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {}, real: {} }}
routes:
  - {{ name: real, match: {{ path: /real }}, upstream: origin, limits: [real] }}
  - {{ name: beta, match: {{ headers: {{ x-beta: true }} }}, upstream: origin }}
  - {{ name: secure, match: {{ headers: {{ x-forwarded-proto: https }} }}, upstream: origin }}
  - {{ name: other, upstream: origin, limits: [guard] }}
",
        origin.upstream(),
        by("x-api-key"),
        by("x-real-ip"),
    ));
    let statuses = |target: &str, fields: &[(&str, &str)]| {
        ["1", "2", "3"].map(|made_up| {
            gateway.get(target, &[fields, &[("x-api-key", made_up), ("x-real-ip", made_up)]].concat()).status
        })
    };
    assert_eq!(statuses("/", &[("connection", "close, X-Api-Key")]), [200, 200, 429]);
    assert_eq!(statuses("/", &[("connection", "x-beta, x-api-key"), ("x-beta", "1")]), [429; 3]);
    assert_eq!(statuses("/", &[("connection", "x-api-key"), ("x-forwarded-proto", "https")]), [429; 3]);
    assert_eq!(statuses("/real", &[]), [200, 200, 429]);
    assert_eq!(statuses("/", &[("x-beta", "1")]), [200; 3]);
}

/// A gateway with routes whose limits use a header, a query parameter and a cookie as the key, each with this `repeated`
/// setting.
fn by_fields(origin: &Origin, repeated: &str) -> Gateway {
    let of = |kind: &str| match repeated {
        "" => format!("{{ {kind}: user }}"),
        word => format!("{{ {kind}: user, repeated: {word} }}"),
    };
    let kinds = ["header", "query", "cookie"];
    let limits = kinds.map(|kind| format!("  {kind}: {{ algorithm: gcra, rate: 1/h, burst: 2, key: {} }}\n", of(kind)));
    let routes = kinds.map(|kind| {
        format!("  - {{ name: {kind}, match: {{ path: /{kind} }}, upstream: origin, limits: [{kind}] }}\n")
    });
    Gateway::start_listening(
        "http2: true",
        &format!("{}limits:\n{}routes:\n{}", origin.upstream(), limits.concat(), routes.concat()),
        &[],
    )
}

/// The number of admitted requests of ten that carry `first` and `last` as the user, for each of the three places.
fn let_through(gateway: &Gateway, first: impl Fn(usize) -> String, last: impl Fn(usize) -> String) -> [usize; 3] {
    ["header", "query", "cookie"].map(|kind| {
        let statuses = (0..10).map(|number| {
            let (first, last) = (first(number), last(number));
            let (target, fields) = match kind {
                "header" => (format!("/{kind}"), vec![("user", first), ("User", last)]),
                "query" => (format!("/{kind}?user={first}&x&us%65r={last}"), vec![]),
                _ => (format!("/{kind}"), vec![("cookie", format!("user={first}; a=b; user={last}"))]),
            };
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let response = gateway.get(&target, &fields);
            if response.status == 400 {
                assert_eq!(response.json()["detail"], format!("The request carries its {kind} user more than once."));
            }
            assert!(matches!(response.status, 200 | 400 | 429), "{response:?}");
            response.status
        });
        statuses.filter(|status| *status == 200).count()
    })
}

#[test]
fn a_part_of_a_key_that_comes_twice_gives_no_fresh_bucket() {
    let origin = Origin::start();
    let gateway = by_fields(&origin, "");
    let (me, other) = (|_| "me".to_owned(), |number| format!("random-{number}"));
    assert_eq!(let_through(&gateway, me, other), [0; 3]);
    assert_eq!(let_through(&gateway, other, me), [0; 3]);
    assert_eq!(let_through(&gateway, me, me), [0; 3], "nobody knows what the upstream makes of it");
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "cookie"), ("code", "400")], 30.0);
    let first = by_fields(&origin, "first");
    assert_eq!(let_through(&first, me, other), [2; 3]);
    let last = by_fields(&origin, "last");
    assert_eq!(let_through(&last, other, me), [2; 3]);
}

#[test]
fn spellings_of_a_cookie_and_of_a_credential_are_one_key() {
    let origin = Origin::start();
    let gateway = by_fields(&origin, "");
    let statuses = |values: [&str; 5]| values.map(|value| gateway.get("/cookie", &[("cookie", value)]).status);
    let spellings = ["user=me", "a=b; user= me", "user=\"me\"", "user =me ;a=b", "user\t=\t\"me\""];
    assert_eq!(statuses(spellings), [200, 200, 429, 429, 429]);
    assert_eq!(
        statuses(["user=", "user= ", "user=\"\"", "user=me; user =\"me\"", "user=ME"]),
        [200, 200, 429, 400, 200]
    );
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 2, key: { header: authorization } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let values = ["Bearer k", "bearer k", "BEARER   k", "Bearer\tk", "Bearer K", "k", "K"];
    let statuses = values.map(|value| gateway.get("/", &[("authorization", value)]).status);
    assert_eq!(statuses, [200, 200, 429, 429, 200, 200, 200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn crumbs_of_a_cookie_over_http2_are_looked_at_together() {
    let origin = Origin::start();
    let gateway = by_fields(&origin, "");
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let url = "http://test/cookie";
    let crumbs = client.get(url, &[("cookie", "a=b"), ("cookie", "user=me")]).await.unwrap();
    assert_eq!(crumbs.status, 200);
    let twice = client.get(url, &[("cookie", "user=me"), ("cookie", "user=random")]).await.unwrap();
    assert_eq!(twice.status, 400);
}

#[test]
fn repeated_hash_fields_are_refused_and_a_shadow_limit_refuses_nobody() {
    let origin = Origin::start();
    let watches = "{ algorithm: gcra, rate: 1/h, burst: 2, key: { header: x-user }, shadow: true }";
    let balance = "balance: consistent_hash, hash_on: { header: x-node }";
    let gateway =
        Gateway::start(&format!("{}limits: {{ guard: {watches} }}\n{ALL_GUARDED}", origin.upstream_with(balance)));
    assert_eq!(gateway.get("/", &[("x-node", "a")]).status, 200);
    assert_eq!(gateway.get("/", &[("x-node", "a"), ("x-node", "b")]).status, 400);
    assert_eq!(gateway.get("/", &[("x-user", "a"), ("x-user", "b")]).status, 200);
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
        let response = gateway.round_trip_raw(bytes).unwrap();
        for (name, value) in &response.head.fields {
            assert!(!name.contains("evil"), "{}: {response:?}", bytes.escape_ascii());
            let plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            assert!(plain && !value.contains("evil: 1"), "{}: {name}: {value}", bytes.escape_ascii());
        }
        assert!(response.head.raw.iter().all(|byte| matches!(byte, b'\r' | b'\n' | b' '..=b'~')), "{response:?}");
    }
}
