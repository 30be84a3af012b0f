//! Other proxies that ask the gateway over HTTP about the requests that they handle (`serves: forward_auth`).

use crate::support::{Client, Gateway, Response, wait_until};

const SERVES: &str = "serves: forward_auth";

/// A gateway without an upstream that trusts the proxies 127.0.0.1 and 127.0.0.2.
fn start(listener: &str, config: &str) -> Gateway {
    let trusted = "client_address: { trusted_proxies: [127.0.0.1, 127.0.0.2] }\n";
    Gateway::start_listening(listener, &format!("{trusted}{config}"), &[])
}

/// The answer about a request of 192.0.2.1.
#[track_caller]
fn ask(client: &mut Client, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
    let about = [
        ("x-forwarded-method", method),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "api.example.com"),
        ("x-forwarded-uri", target),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    client.round_trip("GET", "/ask", &[fields, &about].concat())
}

fn decisions(gateway: &Gateway, result: &str) -> Option<f64> {
    gateway.metrics().value("tollgate_decisions_total", &[("serves", "forward_auth"), ("result", result)])
}

const TWO_ROUTES: &str = "limits:
  two: { algorithm: gcra, rate: 2/d, burst: 2, key: client_address }
  one: { algorithm: gcra, rate: 1/d, burst: 1, key: client_address }
routes:
  - { name: writes, match: { hosts: [api.example.com], path: /v1/**, methods: [POST] }, limits: [one] }
  - { name: reads, match: { hosts: [api.example.com], path: /v1/** }, limits: [two] }
";

#[test]
fn a_subrequest_is_answered_as_the_request_would_be() {
    let gateway = start(SERVES, TWO_ROUTES);
    let mut client = gateway.client();
    let first = ask(&mut client, "GET", "/v1/orders?all", &[]);
    assert_eq!(
        (first.status, first.field("ratelimit"), first.text()),
        (200, Some("\"two\";r=1;t=43200"), String::new())
    );
    assert_eq!(ask(&mut client, "POST", "/v1/orders", &[]).status, 200);
    let denied = ask(&mut client, "POST", "/v1/%6frders", &[]);
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("86400")));
    assert_eq!(denied.json()["violated-policies"][0], "one");
    assert_eq!(ask(&mut client, "GET", "/v2", &[]).status, 404);
    // the described request is malformed, not the question: the connection stays open
    assert_eq!(ask(&mut client, "GET", "/v1/%zz", &[]).status, 400);
    assert_eq!(ask(&mut client, "GET", "/v1/orders", &[]).status, 200);
    assert_eq!(ask(&mut client, "GET", "/v1/orders", &[]).status, 429);
    for (result, count) in [("admitted", 3.0), ("denied", 2.0), ("refused", 2.0)] {
        assert_eq!(decisions(&gateway, result), Some(count), "{result}");
    }
    let denied = [("route", "writes"), ("limit", "one"), ("plan", "none"), ("outcome", "denied")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &denied, 1.0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "reads"), ("code", "429")], 1.0);
}

#[test]
fn nobody_but_a_trusted_proxy_is_answered() {
    let gateway = start(SERVES, TWO_ROUTES);
    for (last, status) in [(2, 200), (3, 403), (4, 403)] {
        assert_eq!(ask(&mut gateway.client_from(last), "GET", "/v1/orders", &[]).status, status, "127.0.0.{last}");
    }
    let says = "not in client_address.trusted_proxies";
    wait_until("the log to tell", || gateway.process.stderr().contains(says));
}

#[test]
fn a_subrequest_that_does_not_say_what_it_is_about_is_refused() {
    let gateway = start(SERVES, TWO_ROUTES);
    let mut client = gateway.client();
    for missing in ["x-forwarded-method", "x-forwarded-uri", "x-forwarded-host"] {
        let all =
            [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/v1/a"), ("x-forwarded-host", "api.example.com")];
        let others: Vec<_> = all.into_iter().filter(|(name, _)| *name != missing).collect();
        let twice = [&all[..], &[(missing, "/v1/b")]].concat();
        for fields in [others, twice] {
            let refused = client.round_trip("GET", "/v1/a", &fields);
            assert_eq!(refused.status, 400, "{missing}: {fields:?}");
            assert!(refused.text().to_ascii_lowercase().contains(missing), "{}", refused.text());
        }
    }
}

#[test]
fn callers_are_identified_and_slots_are_free_at_once() {
    let config = "customers:
  identify: [{ header: x-api-key }]
  directory: { file: customers.csv }
  anonymous: { plan: free }
plans: [free, pro]
limits:
  rate:
    algorithm: gcra
    key: customer
    plans: { free: { rate: 1/d, burst: 1 }, pro: { rate: 3/d, burst: 3 } }
  slots: { algorithm: concurrency, limit: 1, key: all }
usage: {}
routes: [{ name: all, limits: [rate, slots] }]
";
    let trusted = "client_address: { trusted_proxies: [127.0.0.1] }\n";
    let customers = [("customers.csv", "credential,customer,plan\nsecret-of-acme,acme,pro\n")];
    let gateway = Gateway::start_listening(SERVES, &format!("{trusted}{config}"), &customers);
    let mut client = gateway.client();
    let mut statuses = |key: &str| [(); 4].map(|()| ask(&mut client, "GET", "/", &[("x-api-key", key)]).status);
    assert_eq!(statuses("secret-of-acme"), [200, 200, 200, 429]);
    assert_eq!(statuses("made-up"), [401; 4]);
    // a page with status 200 would let the request pass
    assert_eq!(ask(&mut client, "GET", "/.tollgate/usage", &[("x-api-key", "secret-of-acme")]).status, 429);
}

#[test]
fn a_denied_status_stands_for_all_others_and_changes_with_a_reload() {
    let gateway = start("serves: forward_auth, denied_status: 403", TWO_ROUTES);
    let mut client = gateway.client();
    let answers: Vec<_> = ["/v1", "/v1", "/v1", "/v2"].map(|target| ask(&mut client, "GET", target, &[])).into();
    let told: Vec<_> = answers.iter().map(|answer| (answer.status, answer.number("x-tollgate-status"))).collect();
    assert_eq!(told, [(200, None), (200, None), (403, Some(429)), (403, Some(404))]);
    // questions that are refused before they are read
    for (fields, status) in [(vec![("x-a", "\x01")], 400), (vec![("x-a", "b"); 255], 431)] {
        let refused = ask(&mut gateway.client(), "GET", "/v1", &fields);
        assert_eq!((refused.status, refused.number("x-tollgate-status")), (403, Some(status)));
    }
    let text = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write("tollgate.yaml", text.replace("denied_status: 403", "denied_status: 401"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(ask(&mut client, "GET", "/v1", &[]).status, 401);
}
