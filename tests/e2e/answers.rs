//! The answer to a request over a limit, as limits and routes set it.

use crate::support::gateway::limited;
use crate::support::{Gateway, Origin, Response};

/// A gateway that admits one request per hour and denies the others with this response.
fn answering(origin: &Origin, deny: &str, more: &str) -> Gateway {
    let limit = format!("{{ algorithm: gcra, rate: 1/h, burst: 1, key: all, over_limit: {{ deny: {deny} }} }}");
    let gateway = Gateway::start_with(
        &format!("{}{more}", limited(origin, &limit)),
        &[],
        &[("TEAM", "the {{ limit }} team"), ("BRACE", "{")],
    );
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway
}

fn denied(gateway: &Gateway, accept: &str) -> Response {
    let fields: &[(&str, &str)] = if accept.is_empty() { &[] } else { &[("accept", accept)] };
    gateway.get("/", fields)
}

const BODIES: &str = r#"{ body: {
    html: "<p>{{ title }}</p>",
    json: '{"limit": "{{ limit }}", "retry_after": {{ retry_after }}}',
    text: "{{ title }}\n" } }"#;

#[test]
fn the_body_is_of_the_type_that_the_client_likes_best() {
    let origin = Origin::start();
    let gateway = answering(&origin, BODIES, "");
    let (html, json, text) = ("text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8");
    for (accept, content_type) in [
        ("", html),
        ("*/*", html),
        ("application/json", json),
        ("text/plain", text),
        ("text/*;q=0.9, application/json;q=0.5", html),
        ("text/html;q=0.1, text/plain;q=0.2, */*;q=0.05", text),
        ("text/html;q=0, application/*", json),
        ("*/*;q=0.1, text/plain", text),
        ("image/webp", html),
        ("application/problem+json", "application/problem+json"),
    ] {
        let response = denied(&gateway, accept);
        assert_eq!((response.status, response.field("content-type")), (429, Some(content_type)), "{accept}");
        assert_eq!(response.field("vary"), Some("accept"), "{accept}");
        assert_eq!(response.number("content-length"), Some(response.body.len() as u64), "{accept}");
    }
    assert_eq!(denied(&gateway, "text/html").text(), "<p>Request quota exceeded</p>");
    assert_eq!(denied(&gateway, "text/plain").text(), "Request quota exceeded\n");
    let response = denied(&gateway, "application/json");
    let told = response.json();
    assert_eq!(told["limit"], "guard");
    assert_eq!(told["retry_after"].as_u64(), response.number("retry-after"));
}

#[test]
fn without_a_json_body_those_who_ask_for_json_get_the_problem() {
    let origin = Origin::start();
    let gateway = answering(&origin, "{ body: { html: \"<p>{{ limit }}</p>\" } }", "");
    assert_eq!(denied(&gateway, "text/html").text(), "<p>guard</p>");
    let problem = denied(&gateway, "application/json, text/html;q=0.9");
    assert_eq!(problem.field("content-type"), Some("application/problem+json"));
    assert_eq!(problem.json()["violated-policies"], serde_json::json!(["guard"]));
    let plain = answering(&origin, "{ body: \"{{ limit }}\" }", "");
    for accept in ["", "application/json", "text/html"] {
        let response = denied(&plain, accept);
        assert_eq!((response.text().as_str(), response.field("vary")), ("guard", None), "one body for everybody");
    }
}

#[test]
fn the_numbers_of_the_body_are_those_of_the_headers() {
    let origin = Origin::start();
    let json = r#"{ body: { json: '{ "limit": "{{ limit }}", "plan": "{{ plan }}", "route": "{{ route }}",
        "customer": "{{ customer }}", "quota": {{ quota }}, "window": {{ window }}, "remaining": {{ remaining }},
        "retry_after": {{ retry_after }}, "reset": {{ reset }}, "status": {{ status }}, "detail": "{{ detail }}" }' },
        headers: { x-retry: "in {{ retry_after }} s", x-nothing: "{{ plan and 'x' }}" } }"#;
    let customers = "customers:
  identify: [{ header: x-api-key }]
  directory: { file: customers.csv }
plans: [free]
";
    let limits = format!(
        "limits:
  per-customer: {{ key: customer, algorithm: gcra, rate: 3/h, burst: 2, over_limit: {{ deny: {json} }} }}
routes: [{{ name: orders, upstream: origin, limits: [per-customer] }}]
"
    );
    let name = "\"A\\C</script>ME\u{e9}\"";
    let directory = format!("credential,customer,plan\nk,\"{}\",free\n", name.replace('"', "\"\""));
    let config = format!("{}{customers}{limits}", origin.upstream());
    let gateway = Gateway::start_with(&config, &[("customers.csv", &directory)], &[]);
    let ask = || gateway.get("/", &[("x-api-key", "k"), ("accept", "application/json")]);
    assert_eq!([ask().status, ask().status], [200, 200]);
    let response = ask();
    assert_eq!(response.status, 429, "{response:?}");
    let told = response.json();
    assert_eq!(told["customer"], name);
    assert_eq!((&told["limit"], &told["plan"]), (&"per-customer".into(), &"free".into()));
    assert_eq!((&told["route"], &told["status"]), (&"orders".into(), &429.into()));
    for (number, field) in [
        ("quota", "x-ratelimit-limit"),
        ("remaining", "x-ratelimit-remaining"),
        ("reset", "x-ratelimit-reset"),
        ("retry_after", "retry-after"),
    ] {
        assert_eq!(told[number].as_u64(), response.number(field), "{number}: {response:?}");
    }
    let seconds = told["retry_after"].as_u64().unwrap();
    assert!((1100..=1200).contains(&seconds), "{seconds}");
    assert_eq!(told["window"], 2400);
    assert_eq!(told["detail"], format!("Retry in {seconds} seconds."));
    assert_eq!(response.field("x-retry"), Some(format!("in {seconds} s").as_str()));
    assert_eq!(response.field("x-nothing"), Some("x"));
}

#[test]
fn names_of_customers_cannot_break_out_of_a_page() {
    let origin = Origin::start();
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
plans: [free]
limits:
  guard:
    key: all
    algorithm: gcra
    rate: 1/h
    burst: 1
    over_limit: {{ deny: {{ body: \"<p title='{{{{ customer }}}}'>{{{{ customer }}}}</p>\", headers: {{ content-type: text/html, x-who: \"{{{{ customer }}}}\" }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    );
    let directory = "credential,customer,plan\nk,<script>'&,free\n";
    let gateway = Gateway::start_with(&config, &[("customers.csv", directory)], &[]);
    let [_, denied] = [(); 2].map(|()| gateway.get("/", &[("x-api-key", "k")]));
    assert_eq!((denied.status, denied.field("content-type")), (429, Some("text/html")));
    let text = denied.text();
    assert!(!text.contains("<script>") && text.matches('\'').count() == 2, "{text}");
    assert_eq!(text.matches("&lt;script&gt;").count(), 2, "{text}");
    assert_eq!(denied.field("x-who"), Some("<script>'&"));
}

#[test]
fn a_routes_answer_holds_where_the_limit_has_none() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  plain: {{ key: route, algorithm: gcra, rate: 1/h, burst: 1 }}
  own: {{ key: route, algorithm: gcra, rate: 1/h, burst: 1,
    over_limit: {{ deny: {{ status: 503, headers: {{ x-from: limit }} }} }} }}
routes:
  - {{ name: a, match: {{ path: /a }}, upstream: origin, limits: [plain], denied: &denied {{ status: 420,
      body: \"{{{{ route }}}}\", headers: {{ x-from: route }}, grpc_status: 14 }} }}
  - {{ name: b, match: {{ path: /b }}, upstream: origin, limits: [own], denied: *denied }}
  - {{ name: c, match: {{ path: /c }}, upstream: origin, limits: [plain] }}
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    let second = |path: &str| [(); 2].map(|()| gateway.get(path, &[])).into_iter().last().unwrap();
    let [a, b, c] = ["/a", "/b", "/c"].map(second);
    assert_eq!((a.status, a.text().as_str(), a.field("x-from")), (420, "a", Some("route")));
    assert_eq!((b.status, b.text().as_str(), b.field("x-from")), (503, "b", Some("limit")));
    assert_eq!((c.status, c.field("content-type")), (429, Some("application/problem+json")));
    let grpc = gateway.get("/b", &[("content-type", "application/grpc"), ("te", "trailers")]);
    assert_eq!((grpc.status, grpc.field("grpc-status")), (200, Some("14")));
    let grpc = gateway.get("/c", &[("content-type", "application/grpc"), ("te", "trailers")]);
    assert_eq!(grpc.field("grpc-status"), Some("8"));
}

#[test]
fn environment_variables_are_text_in_templates() {
    let origin = Origin::start();
    let gateway = answering(&origin, "{ body: \"${TEAM}, ${BRACE}{{ limit }}, $${TEAM}\" }", "");
    assert_eq!(denied(&gateway, "").text(), "the {{ limit }} team, {guard, ${TEAM}");
}

#[test]
fn retries_are_spread_but_never_too_early() {
    let origin = Origin::start();
    let field = r#"{ headers: { retry-after: "{{ retry_after }}" } }"#;
    for (jitter, most, deny) in [("10%", 360, "{}"), ("5s", 5, "{}"), ("10%", 360, field)] {
        let gateway = answering(&origin, deny, &format!("headers: {{ retry_after_jitter: {jitter} }}\n"));
        let mut added = std::collections::BTreeSet::new();
        for _ in 0..40 {
            let response = denied(&gateway, "");
            let seconds = response.number("retry-after").unwrap();
            let (_, exact) = response.field("ratelimit").unwrap().rsplit_once(";t=").unwrap();
            let exact: u64 = exact.parse().unwrap();
            assert!((3_540..=3_600).contains(&exact), "where the client stands is exact: {exact}");
            assert!(seconds >= exact && seconds <= exact + most, "{jitter}: {seconds}, exactly {exact}");
            assert_eq!(response.json()["detail"], format!("Retry in {seconds} seconds."), "{response:?}");
            added.insert(seconds - exact);
        }
        assert!(added.len() > 1, "{jitter}: {added:?}");
        let grpc = gateway.get("/", &[("content-type", "application/grpc"), ("te", "trailers")]);
        let message = grpc.field("grpc-message").unwrap();
        assert!(message.ends_with(&format!(" Retry in {} seconds.", grpc.field("retry-after").unwrap())), "{grpc:?}");
    }
}
