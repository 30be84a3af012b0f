//! A running gateway and the command `explain` describe what happens to a request; the question changes nothing and reveals
//! no secret.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::gateway::limited;
use crate::support::redis::Redis;
use crate::support::{Client, Gateway, Origin, Response, wait_for, wait_until};

const SECRET: &str = "canary-4c1d9b7e-of-a-customer";
const USAGE: &str = "/.tollgate/usage";

fn config(origin: &Origin) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}, {{ query: api_key }}, {{ basic: true }}, {{ bearer: true }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free, pro]
usage: {{}}
limits:
  guard: {{ algorithm: gcra, key: customer, warn_at: [80, 95], plans: {{ free: {{ rate: 1/d, burst: 2 }}, pro: unlimited }} }}
  session: {{ algorithm: quota_reset, limit: 3, window: 1d, key: {{ cookie: session }}, missing_key: skip, cost: {{ by_method: {{ POST: 2 }} }} }}
  tenant: {{ algorithm: fixed_window, limit: 1, window: 1d, key: [{{ header: x-tenant }}, upstream_node], missing_key: deny }}
access: {{ deny: {{ addresses: [192.0.2.0/24] }} }}
bypass: {{ paths: [/open/free] }}
cors: {{ origins: \"*\" }}
client_address: {{ trusted_proxies: [127.0.0.0/8] }}
routes:
  - {{ name: posts, match: {{ path: /v1/**, methods: [POST] }}, upstream: origin, limits: [guard, session], response_headers: {{ set: {{ x-route: posts }} }} }}
  - {{ name: v1, match: {{ path: /v1/** }}, upstream: origin, limits: [guard, session], response_headers: {{ set: {{ x-route: v1 }} }} }}
  - {{ name: tenants, match: {{ path: /tenants/* }}, upstream: origin, limits: [tenant], response_headers: {{ set: {{ x-route: tenants }} }} }}
  - {{ name: other, match: {{ hosts: [\"*.example.com\"] }}, upstream: origin, limits: [guard], access: {{ deny: {{ customers: [acme] }} }}, response_headers: {{ set: {{ x-route: other }} }} }}
  - {{ name: open, match: {{ path: /open/** }}, upstream: origin, limits: [guard], response_headers: {{ set: {{ x-route: open }} }} }}\n",
        origin.upstream()
    )
}

fn started(origin: &Origin) -> Gateway {
    let customers = format!(
        "credential,customer,plan,overrides,suspended\n{SECRET},acme,free,{{guard: {{burst: 3}}}},\nk2,globex,pro,,\nk3,initech,pro,,true\n"
    );
    Gateway::start_with(&config(origin), &[("customers.csv", &customers)], &[])
}

fn ask(gateway: &Gateway, question: &str) -> Response {
    Client::connect(gateway.admin).post("/explain", &[("connection", "close")], question.as_bytes())
}

/// A request: method, target, fields.
type Asked<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn explained(gateway: &Gateway, (method, target, fields): Asked<'_>) -> Value {
    let mut headers: serde_json::Map<String, Value> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    headers.entry("host").or_insert(json!("localhost"));
    let question = json!({ "method": method, "url": target, "headers": headers, "client": "127.0.0.1" });
    let answer = ask(gateway, &question.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The explanation of the command, which knows only the configuration.
fn explained_alone(gateway: &Gateway, (method, target, fields): Asked<'_>) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(gateway.folder.path()).args(["explain", "--config", "tollgate.yaml", "--format", "json"]);
    command.args(["--client", "127.0.0.1", "--method", method, "--url", target]);
    if !fields.iter().any(|(name, _)| *name == "host") {
        command.args(["-H", "host: localhost"]);
    }
    for (name, value) in fields {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// An explanation without the parts that only a running gateway knows.
fn without_state(mut explanation: Value) -> Value {
    explanation["now"] = Value::Null;
    for limit in explanation["limits"].as_array_mut().unwrap() {
        limit["standing"] = Value::Null;
    }
    if explanation["upstream"].is_object() {
        explanation["upstream"]["healthy_nodes"] = Value::Null;
    }
    explanation
}

#[test]
fn the_clients_address_is_whole_and_its_key_is_cut() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let explanation = explained(&gateway, ("GET", "/v1/a", &[("x-forwarded-for", "2001:db8:1:2::7")]));
    assert_eq!(explanation["request"]["client"], "2001:db8:1:2::7");
    assert_eq!(explanation["limits"][0]["key"][0]["value"], "2001:db8:1:2::");
}

#[test]
fn explanations_match_decisions() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let basic = "Basic azI6"; // `k2:`
    let requests: &[Asked<'_>] = &[
        ("GET", "/v1/a", &[("x-api-key", SECRET), ("cookie", "session=1")]),
        ("POST", "/v1/a", &[("x-api-key", SECRET), ("cookie", "session=1")]),
        ("GET", "/v1/b/../a", &[("x-api-key", SECRET), ("cookie", "session=1")]),
        ("GET", "/v1/a", &[("x-api-key", SECRET)]),
        ("GET", "/v1/a", &[("x-api-key", SECRET)]),
        ("GET", "/v1/a", &[]),
        ("GET", "/v1/a", &[("x-forwarded-for", "198.51.100.7"), ("cookie", "session=1; session=2")]),
        ("OPTIONS", "/v1/a", &[("origin", "https://app.test"), ("access-control-request-method", "POST")]),
        ("GET", "/v1/a", &[("x-forwarded-for", "198.51.100.7")]),
        ("GET", "/v1/a", &[("x-forwarded-for", "192.0.2.7")]),
        ("GET", "/v1/a", &[("x-api-key", "nobody-s")]),
        ("GET", "/v1/a?api_key=k2", &[]),
        ("GET", "/v1/a", &[("authorization", basic)]),
        ("GET", "/tenants/a", &[]),
        ("GET", "/tenants/a", &[("x-tenant", "t")]),
        ("GET", "/tenants/a", &[("x-tenant", "t")]),
        ("GET", "/tenants/a/b", &[("x-tenant", "t")]),
        ("GET", "/tenants/a", &[("x-tenant", "t"), ("connection", "x-tenant")]),
        ("GET", "/x", &[("host", "a.example.com"), ("x-api-key", SECRET)]),
        ("GET", "/x", &[("host", "a.example.com"), ("x-api-key", "k2")]),
        ("GET", "/x", &[("host", "example.com")]),
        ("GET", "/open/free", &[]),
        ("GET", "/open/%2f", &[]),
        ("TRACE", "/open/free", &[]),
        ("get", "/open/free", &[]),
        ("GET", USAGE, &[("x-api-key", SECRET)]),
        ("PUT", USAGE, &[("x-api-key", SECRET)]),
        ("OPTIONS", USAGE, &[("origin", "https://app.test"), ("access-control-request-method", "POST")]),
        ("GET", USAGE, &[("x-api-key", SECRET), ("x-forwarded-for", "192.0.2.7")]),
        ("GET", USAGE, &[("x-api-key", "k3")]),
        ("GET", USAGE, &[("x-api-key", "nobody-s"), ("cookie", "session=2")]),
        ("GET", USAGE, &[]),
    ];
    for request in requests {
        let explanation = explained(&gateway, *request);
        assert_eq!(without_state(explanation.clone()), explained_alone(&gateway, *request), "{request:?}");
        let (method, target, fields) = request;
        let response = gateway.client().round_trip(method, target, fields);
        let expected = match (explanation["answer"]["status"].as_u64(), explanation["now"]["outcome"].as_str()) {
            (Some(status), None) => status,
            (None, Some("denied")) => 429,
            (None, Some("admitted" | "unlimited" | "bypassed")) => 200,
            _ => panic!("{explanation:#}"),
        };
        assert_eq!(u64::from(response.status), expected, "{request:?}: {explanation:#}");
        if let Some(route) = response.field("x-route") {
            assert_eq!(explanation["route"]["name"], route, "{request:?}");
        }
        // the state before the request, so it shows one token more than after it
        let standing = &explanation["limits"][0]["standing"];
        if let (200, Some(left)) = (response.status, response.number("x-ratelimit-remaining"))
            && request.0 == "GET"
            && explanation["now"]["tightest"] == explanation["limits"][0]["limit"]
        {
            assert_eq!(standing["remaining"], left + 1, "{request:?}: {explanation:#}");
        }
    }
}

#[test]
fn a_refused_caller_is_told_what_is_charged_before_it_is_known() {
    let origin = Origin::start();
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free]
usage: {{}}
limits:
  by-customer: {{ key: customer, algorithm: gcra, rate: 1/d, burst: 9 }}
  by-address: {{ key: client_address, algorithm: gcra, rate: 1/d, burst: 2 }}
routes: [{{ name: all, upstream: origin, limits: [by-customer, by-address] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start_with(&config, &[("customers.csv", "credential,customer,plan\nk1,acme,free\n")], &[]);
    let guess: Asked<'_> = ("GET", "/", &[("x-api-key", "guess")]);
    for left in [2, 1] {
        let explanation = explained(&gateway, guess);
        assert_eq!((&explanation["answer"]["status"], &explanation["now"]), (&json!(401), &Value::Null));
        let limits = explanation["limits"].as_array().unwrap();
        assert_eq!((limits.len(), &limits[0]["limit"]), (1, &json!("by-address")), "{explanation:#}");
        assert_eq!(limits[0]["charged"], "before the credential is looked up");
        assert_eq!(limits[0]["standing"]["remaining"], left);
        assert_eq!(without_state(explanation), explained_alone(&gateway, guess));
        assert_eq!(gateway.get("/", guess.2).status, 401);
    }
    let spent = explained(&gateway, guess);
    assert_eq!((&spent["answer"], &spent["now"]["outcome"]), (&Value::Null, &json!("denied")));
    assert_eq!(gateway.get("/", guess.2).status, 429);
    assert_eq!(explained(&gateway, ("GET", USAGE, guess.2))["now"]["outcome"], "denied");
    assert_eq!(gateway.get(USAGE, guess.2).status, 429);
    let page = ("GET", USAGE, &[("x-api-key", "k1")][..]);
    assert_eq!(explained(&gateway, page)["now"]["outcome"], "denied", "a right key as well");
    assert_eq!(gateway.get(USAGE, page.2).status, 429);
    let known = explained(&gateway, ("GET", "/", &[("x-api-key", "k1")]));
    assert_eq!(known["limits"][0]["charged"], Value::Null);
    assert_eq!((&known["limits"][1]["applies"], &known["now"]["tightest"]), (&json!(true), &json!("by-address")));
}

#[test]
fn reasons_are_given() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let of = |request| explained(&gateway, request);

    let taken = of(("GET", "/v1/a", &[("x-api-key", SECRET)]));
    let route = &taken["route"];
    assert_eq!(route["name"], "v1");
    assert_eq!(route["passed_over"][0], json!({ "route": "posts", "why": "the method is not POST" }), "{route:#}");
    let others = route["passed_over"].to_string();
    assert!(others.contains("the host is not *.example.com") && !others.contains("tenants"), "{others}");
    assert_eq!(taken["caller"]["customer"], "acme");
    assert_eq!(taken["limits"][0]["why"], "the customer's own parameters");
    assert_eq!(taken["limits"][0]["key"], json!([{ "part": "customer", "value": "acme" }]));
    assert_eq!(taken["limits"][0]["warns"], "clients from 80 % and 95 % of the quota on");
    assert_eq!(taken["limits"][1]["applies"], false);
    assert!(taken["limits"][1]["why"].as_str().unwrap().contains("lacks its cookie session"), "{taken:#}");
    assert_eq!(of(("POST", "/v1/a", &[("cookie", "session=1")]))["limits"][1]["cost"], 2);
    assert_eq!(of(("GET", "/v1/a", &[("x-api-key", "k2")]))["limits"][0]["why"], "the plan pro is unlimited");

    let kept_out = of(("GET", "/x", &[("host", "a.example.com"), ("x-api-key", SECRET)]));
    assert!(kept_out["answer"]["detail"].as_str().unwrap().contains("the `access` of the route"), "{kept_out:#}");
    let kept_out = of(("GET", "/x", &[("host", "a.example.com"), ("x-forwarded-for", "192.0.2.1")]));
    assert!(kept_out["answer"]["detail"].as_str().unwrap().ends_with("by `access`"), "{kept_out:#}");
    assert_eq!(of(("GET", "/open/free", &[]))["bypassed"], "by its path");
    let node = of(("GET", "/tenants/a", &[("x-tenant", "t")]))["limits"][0]["key"][1].clone();
    assert_eq!(node["part"], "upstream_node");
    assert_eq!(format!("\"{}\"", node["value"].as_str().unwrap()), origin.node());
}

#[test]
fn parameters_are_of_every_request_only_where_all_plans_have_the_same() {
    let origin = Origin::start();
    let gateway = Gateway::start_with(
        &format!(
            "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: anon }} }}
plans: [anon, free, pro]
limits:
  all: {{ key: all, algorithm: gcra, rate: 1/s, burst: 5 }}
  known: {{ key: customer, algorithm: gcra, rate: 1/s, burst: 5, plans: {{ anon: unlimited }} }}
  pressed: {{ key: all, algorithm: fixed_window, window: 1d, limit: 10, priority: {{ free: 50 }} }}
routes: [{{ name: all, upstream: origin, limits: [all, known, pressed] }}]
",
            origin.upstream()
        ),
        &[("customers.csv", "credential,customer,plan\nk1,one,free\nk2,two,pro\n")],
        &[],
    );
    let whys = |key| {
        let explanation = explained(&gateway, ("GET", "/", &[("x-api-key", key)]));
        [0, 1, 2].map(|limit: usize| explanation["limits"][limit]["why"].as_str().unwrap().to_owned())
    };
    let every = "the parameters of every request";
    for (key, of_plan) in [("k1", "the parameters of the plan free"), ("k2", "the parameters of the plan pro")] {
        assert_eq!(whys(key), [every, of_plan, of_plan]);
    }
}

#[test]
fn asking_takes_nothing_and_shows_where_a_key_stands() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let asked: Asked<'_> = ("GET", "/v1/a", &[("x-api-key", SECRET)]);
    let standing = || explained(&gateway, asked)["limits"][0]["standing"].clone();
    for _ in 0..20 {
        assert_eq!(standing()["remaining"], 3);
    }
    let keys = gateway.metrics().value("tollgate_limit_keys", &[("limit", "guard")]);
    assert_eq!(keys, Some(0.0), "not even a key is remembered");
    for left in [2, 1, 0] {
        assert_eq!(gateway.get("/v1/a", &[("x-api-key", SECRET)]).status, 200);
        assert_eq!(standing()["remaining"], left);
    }
    let explanation = explained(&gateway, asked);
    assert_eq!(explanation["now"]["outcome"], "denied");
    let after = explanation["now"]["retry_after_seconds"].as_f64().unwrap();
    assert!(after > 80_000.0 && after <= 86_400.0, "{explanation:#}");
    assert_eq!(explanation["upstream"]["healthy_nodes"], 1);
    let requests = gateway.metrics().value(
        "tollgate_limit_requests_total",
        &[("route", "v1"), ("limit", "guard"), ("plan", "free"), ("outcome", "denied")],
    );
    assert!(requests.is_none_or(|count| count == 0.0), "questions are not counted as requests");
}

#[test]
fn the_denial_that_begins_a_ban_is_explained_with_the_length_of_the_ban() {
    let origin = Origin::start();
    let limit = "{ key: all, algorithm: gcra, rate: 1/h, burst: 1, ban: { after: 2 denials in 1h, for: 10h } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    for most in [3_600.0, 36_000.0] {
        let explanation = explained(&gateway, ("GET", "/", &[]));
        let told = explanation["now"]["retry_after_seconds"].as_f64().unwrap();
        assert!(explanation["now"]["outcome"] == "denied" && told > most / 2.0 && told <= most, "{explanation:#}");
        let denied = gateway.get("/", &[]).number("retry-after").unwrap() as f64;
        assert!(denied > most / 2.0 && denied <= most, "{denied}");
    }
}

#[test]
fn a_request_that_finds_no_place_in_a_full_queue_is_denied() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/100s, burst: 1000, delay_after: 0, key: all,
           over_limit: { delay: { max_wait: 1h, max_waiting: 1 } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let decided = || {
        let explanation = explained(&gateway, ("GET", "/", &[]));
        [&explanation["now"]["outcome"], &explanation["limits"][0]["standing"]["decision"]].map(Value::clone)
    };
    assert_eq!(decided(), ["delayed", "delayed"]);
    let mut waiting = gateway.client();
    waiting.send_request("GET", "/", &[]);
    let delayed = [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", "delayed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &delayed, 1.0);
    assert_eq!(decided(), ["denied", "denied"]);
    assert_eq!(gateway.get("/", &[]).status, 429);
}

#[test]
fn a_body_costs_its_length_as_if_it_were_sent() {
    let origin = Origin::start();
    let limit = "{ algorithm: token_bucket, rate: 1/30d, burst: 100, key: all, cost: { request_bytes: 1KiB } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    let body = "x".repeat(10 << 10);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(gateway.folder.path()).args(["explain", "--config", "tollgate.yaml", "--format", "json"]);
    let output = command.args(["-X", "POST", "--url", "http://localhost/", "-d", &body]).output().unwrap();
    let alone: Value = serde_json::from_slice(&output.stdout).unwrap();
    let running = ask(&gateway, &json!({ "method": "POST", "url": "http://localhost/", "body": body }).to_string());
    for explanation in [alone, running.json()] {
        assert_eq!(explanation["limits"][0]["cost"], 10, "{explanation:#}");
    }
    assert_eq!(gateway.client().post("/", &[], body.as_bytes()).number("x-ratelimit-remaining"), Some(90));
}

#[test]
fn the_healthy_nodes_of_a_split_are_those_of_all_its_upstreams() {
    let (one, other) = (Origin::start(), Origin::start());
    let gateway = Gateway::start(&format!(
        "upstreams: {{ a: {{ nodes: [{}] }}, b: {{ nodes: [{}] }} }}
routes: [{{ name: all, upstream: [{{ name: a, weight: 90 }}, {{ name: b, weight: 10 }}] }}]\n",
        one.node(),
        other.node()
    ));
    let upstream = explained(&gateway, ("GET", "/", &[]))["upstream"].clone();
    assert_eq!((&upstream["name"], &upstream["healthy_nodes"]), (&json!("a (90) or b (10)"), &json!(2)));
}

#[test]
fn a_limit_that_nodes_share_is_asked_where_it_is_kept() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let config = format!(
        "store: {{ redis: \"{}\", timeout: 1s }}\n{}",
        redis.url(),
        limited(&origin, "{ algorithm: gcra, rate: 1/d, burst: 3, key: method, mode: shared, on_store_down: deny }")
    );
    let gateway = Gateway::start(&config);
    let asked: Asked<'_> = ("GET", "/", &[]);
    wait_until("Redis to be reached", || explained(&gateway, asked)["now"]["decided"] == "store");
    for _ in 0..5 {
        assert_eq!(explained(&gateway, asked)["limits"][0]["standing"]["remaining"], 3, "asking takes nothing");
    }
    assert_eq!(redis.keys("*:gcra:*"), [] as [String; 0], "nothing is written");
    // a call that takes too long is answered 503, and its charge is refunded when the call ends
    let explanation = wait_for("the limit to be spent", || {
        let status = gateway.get("/", &[]).status;
        Some(explained(&gateway, asked)).filter(|now| status == 429 && now["now"]["outcome"] == "denied")
    });
    drop(redis);
    let other: Asked<'_> = ("POST", "/", &[]);
    wait_until("Redis to be missed", || explained(&gateway, other)["answer"]["status"] == 503);
    assert_eq!(without_state(explanation), explained_alone(&gateway, asked));
}

#[test]
fn no_explanation_shows_a_credential() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let bearer = format!("Bearer {SECRET}");
    let target = format!("/v1/a?api_key={SECRET}");
    let requests: &[Asked<'_>] = &[
        ("GET", "/v1/a", &[("x-api-key", SECRET), ("cookie", "session=canary-cookie-of-a-browser")]),
        ("GET", "/v1/a", &[("authorization", &bearer)]),
        ("GET", "/v1/a", &[("authorization", "Basic Y2FuYXJ5LXVzZXI6Y2FuYXJ5LXBhc3N3b3Jk")]),
        ("GET", &target, &[]),
        ("GET", "/v1/a", &[("x-api-key", "canary-unknown-credential")]),
    ];
    for request in requests {
        let explanation = explained(&gateway, *request).to_string();
        assert!(explanation.contains("cana... ("), "{explanation}");
        assert!(!explanation.contains("canary"), "{explanation}");
        assert_eq!(explained_alone(&gateway, *request).to_string().matches("canary").count(), 0);
    }
    let broken =
        ask(&gateway, &format!(r#"{{"url": "http://a/", "headers": {{"x-api-key": "{SECRET}"}}, "clients": 1}}"#));
    assert_eq!(broken.status, 400);
    assert!(!broken.text().contains("canary") && !gateway.process.stderr().contains("canary"), "{broken:?}");
}

#[test]
fn questions_that_cannot_be_answered_are_told_what_is_wrong() {
    let origin = Origin::start();
    let gateway = started(&origin);
    for (question, says) in [
        ("", "a question is like"),
        ("[1]", "a question is like"),
        (r#"{"url": "/v1"}"#, "names no host"),
        (r#"{"url": "http://a/", "method": "G T"}"#, "not an HTTP method"),
        (r#"{"url": "http://a/", "client": "somebody"}"#, "not an IP address"),
    ] {
        let answer = ask(&gateway, question);
        assert_eq!((answer.status, answer.field("content-type")), (400, Some("application/json")), "{question}");
        assert!(answer.json()["error"].as_str().unwrap().contains(says), "{question}: {answer:?}");
    }
    let long = format!(r#"{{"url": "http://a/{}"}}"#, "a".repeat(300 << 10));
    assert_eq!(ask(&gateway, &long).status, 413);
    assert_eq!(gateway.admin_get("/explain").status, 405);
    let longer_than_served = format!(r#"{{"url": "http://a/{}"}}"#, "a".repeat(20 << 10));
    assert_eq!(ask(&gateway, &longer_than_served).json()["answer"]["status"], 414);
}
