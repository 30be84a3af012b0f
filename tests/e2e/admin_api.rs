//! The operator's questions to a running gateway and the changes that an operator makes: every call under `/v1/`, and the
//! commands that use them.

mod elsewhere;
mod programs;

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::gateway::limited;
use crate::support::{Client, Gateway, Origin, Response, wait_until};

const TOKEN: &str = "canary-token-0123456789";
const SECRET: &str = "canary-4c1d9b7e-of-a-customer";
pub const HOST: (&str, &str) = ("host", "127.0.0.1");
pub const BEARER: (&str, &str) = ("authorization", "Bearer canary-token-0123456789");

/// A gateway whose admin API accepts changes.
pub fn started(config: &str, files: &[(&str, &str)]) -> Gateway {
    started_with(config, files, &[])
}

/// The same with environment variables.
pub fn started_with(config: &str, files: &[(&str, &str)], environment: &[(&str, &str)]) -> Gateway {
    let gateway = Gateway::start_with(config, &[files, &[("admin.token", TOKEN)]].concat(), environment);
    gateway.folder.write("tollgate.yaml", with_admin(&gateway, config, "token_file: admin.token"));
    let reloaded = gateway.reload();
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    gateway
}

fn with_admin(gateway: &Gateway, config: &str, more: &str) -> String {
    let address = format!("address: \"{}\"", gateway.admin);
    gateway.complete_config(config).replacen(&address, &format!("{address}, {more}"), 1)
}

pub fn post(gateway: &Gateway, path: &str, fields: &[(&str, &str)], body: &Value) -> Response {
    let fields = [&[("connection", "close")], fields].concat();
    Client::connect(gateway.admin).post(path, &fields, body.to_string().as_bytes())
}

pub fn get(gateway: &Gateway, path: &str) -> Value {
    let response = Client::connect(gateway.admin).round_trip("GET", path, &[HOST, ("connection", "close")]);
    assert_eq!((response.status, response.field("content-type")), (200, Some("application/json")), "{path}");
    response.json()
}

#[track_caller]
fn done(gateway: &Gateway, verb: &str, question: &Value) -> Value {
    let response = post(gateway, &format!("/v1/keys/{verb}"), &[HOST, BEARER], question);
    assert_eq!(response.status, 200, "{verb} {question}: {response:?}");
    response.json()
}

fn remaining(answer: &Value) -> u64 {
    answer["standing"]["remaining"].as_u64().unwrap_or_else(|| panic!("{answer:#}"))
}

fn by_customer(origin: &Origin) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free, pro, gold]
limits:
  guard: {{ algorithm: gcra, key: customer, plans: {{ free: {{ rate: 1/d, burst: 2 }}, pro: {{ rate: 1/d, burst: 5 }}, gold: unlimited }} }}
  logins: {{ algorithm: sliding_log, limit: 3, window: 1d, key: [client_address, {{ header: x-user }}, route] }}
  session: {{ algorithm: quota_reset, limit: 9, window: 1d, key: {{ cookie: session }}, missing_key: skip }}
routes:
  - {{ name: login, match: {{ path: /login }}, upstream: origin, limits: [logins, session] }}
  - {{ name: rest, upstream: origin, limits: [guard] }}\n",
        origin.upstream()
    )
}

fn customers() -> String {
    format!(
        "credential,customer,plan,overrides\n{SECRET},acme,free,\nk2,globex,pro,\nk3,umbrella,gold,\nk4,initech,free,{{guard: {{burst: 7}}}}\n"
    )
}

#[test]
fn a_key_is_found_by_its_parts_and_by_a_request_and_peeking_takes_nothing() {
    let origin = Origin::start();
    let gateway = Gateway::start_with(&by_customer(&origin), &[("customers.csv", &customers())], &[]);
    let peek = |question: Value| {
        let response = post(&gateway, "/v1/keys/peek", &[HOST], &question);
        assert_eq!(response.status, 200, "{question}: {response:?}");
        response.json()
    };
    let acme = || peek(json!({ "limit": "guard", "key": { "customer": "acme" } }));
    for left in [2, 1, 0] {
        for _ in 0..3 {
            assert_eq!(remaining(&acme()), left);
        }
        let request = json!({ "url": "http://localhost/", "headers": { "x-api-key": SECRET }, "client": "127.0.0.1" });
        let by_request = peek(json!({ "limit": "guard", "request": request }));
        assert_eq!((remaining(&by_request), &by_request["plan"]), (left, &json!("free")));
        assert_eq!(gateway.get("/", &[("x-api-key", SECRET)]).status, if left > 0 { 200 } else { 429 });
    }
    assert_eq!(acme()["standing"]["decision"], "denied");
    // other customers have their own keys and their own parameters
    for (customer, quota) in [("globex", 5), ("initech", 7), ("127.0.0.9", 2)] {
        let answer = peek(json!({ "limit": "guard", "key": { "customer": customer } }));
        assert_eq!((remaining(&answer), answer["quota"].as_u64()), (quota, Some(quota)), "{customer}");
    }
    let initech = peek(json!({ "limit": "guard", "key": { "customer": "initech" }, "plan": "free" }));
    assert_eq!(remaining(&initech), 7, "its own parameters apply, not those of its plan");
    assert_eq!(gateway.get("/", &[]).status, 200);
    let anonymous = peek(json!({ "limit": "guard", "key": { "customer": "127.0.0.1" } }));
    assert_eq!(remaining(&anonymous), 1, "callers without a credential are named by their address");
    // keys with all kinds of parts
    assert_eq!(gateway.get("/login", &[("x-user", "bob"), ("cookie", "session=1")]).status, 200);
    let bob = |part: &str| json!({ "client_address": "127.0.0.1", part: "bob", "route": "login" });
    for part in ["header x-user", "header:x-user", "header: X-User"] {
        assert_eq!(remaining(&peek(json!({ "limit": "logins", "key": bob(part) }))), 2, "{part}");
    }
    let session = peek(json!({ "limit": "session", "key": { "cookie session": "1" } }));
    assert_eq!(remaining(&session), 8);
}

#[test]
fn questions_without_a_key_are_refused_with_a_reason() {
    let origin = Origin::start();
    let gateway = Gateway::start_with(&by_customer(&origin), &[("customers.csv", &customers())], &[]);
    for (question, status, says) in [
        (json!([]), 400, "expected an object at line 1 column 2; a key is named like"),
        (json!({ "limit": "guard", "key": { "customer": 1 } }), 400, "is not a text"),
        (json!({ "limit": "gard" }), 404, "there are: guard, logins, session"),
        (json!({ "limit": "guard" }), 400, "\"customer\" has to be named"),
        (json!({ "limit": "guard", "key": { "client": "acme" } }), 400, "made of: customer"),
        (json!({ "limit": "guard", "key": { "customer": "nobody" } }), 400, "the directory has no customer named"),
        (
            json!({ "limit": "guard", "key": { "customer": "nobody" }, "plan": "fre" }),
            400,
            "there are: free, pro, gold",
        ),
        (json!({ "limit": "guard", "key": { "customer": "umbrella" } }), 404, "the plan gold is unlimited"),
        (
            json!({ "limit": "guard", "key": { "customer": "acme" }, "plan": "pro" }),
            400,
            "the plan of this key's owner is free, not pro",
        ),
        (
            json!({ "limit": "logins", "key": { "client_address": "x", "header x-user": "b", "route": "login" } }),
            400,
            "is not an IP address",
        ),
        (
            json!({ "limit": "logins", "key": { "client_address": "::1", "header x-user": "b", "route": "l" } }),
            400,
            "no such route",
        ),
        (
            json!({ "limit": "logins", "request": { "url": "http://a/x", "headers": { "x-api-key": SECRET } } }),
            404,
            "the route rest does not have it",
        ),
        (
            json!({ "limit": "guard", "request": { "url": "http://a/x", "headers": { "x-api-key": "canary" } } }),
            404,
            "tollgate answers 401 itself",
        ),
        (json!({ "limit": "session", "request": { "url": "http://a/login" } }), 404, "lacks its cookie session"),
    ] {
        let response = post(&gateway, "/v1/keys/peek", &[HOST], &question);
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(response.status == status && error.contains(says), "{question}: {response:?}");
        assert!(!error.contains("canary"), "{error}");
    }
    for (key, is_shown) in
        [("{\"customer\": \"acme\", \"customer\": \"globex\"}", "names each part once"), ("\"canary\"", "object")]
    {
        let question = format!("{{\"limit\": \"guard\", \"key\": {key}}}");
        let response = Client::connect(gateway.admin).post("/v1/keys/peek", &[HOST], question.as_bytes());
        let error = response.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(response.status == 400 && error.contains(is_shown) && !error.contains("canary"), "{error}");
    }
}

#[test]
fn tokens_are_given_back_and_keys_start_afresh_under_every_algorithm() {
    let origin = Origin::start();
    let day = "limit: 5, window: 1d";
    let algorithms = [
        ("token_bucket", "rate: 1/d, burst: 5"),
        ("leaky_bucket", "rate: 1/d, capacity: 5"),
        ("gcra", "rate: 1/d, burst: 5"),
        ("fixed_window", day),
        ("quota_reset", day),
        ("quota_linear", day),
        ("sliding_log", day),
        ("sliding_window", day),
        ("sliding_counters", day),
        ("cycle", "limit: 5, period: 1d"),
    ];
    let limits: String = algorithms
        .iter()
        .map(|(name, terms)| format!("  {name}: {{ algorithm: {name}, {terms}, key: {{ header: x-user }} }}\n"))
        .collect();
    let routes: String = algorithms
        .iter()
        .map(|(name, _)| {
            format!("  - {{ name: {name}, match: {{ path: /{name} }}, upstream: origin, limits: [{name}] }}\n")
        })
        .collect();
    let gateway = started(&format!("{}limits:\n{limits}routes:\n{routes}", origin.upstream()), &[]);
    for (name, _) in algorithms {
        let ask = || gateway.get(&format!("/{name}"), &[("x-user", "bob")]).status;
        let of_bob = json!({ "limit": name, "key": { "header x-user": "bob" } });
        let mut grant = of_bob.clone();
        grant["tokens"] = json!(2);
        assert_eq!((0..6).map(|_| ask()).collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429], "{name}");
        let granted = done(&gateway, "grant", &grant);
        assert_eq!((&granted["before"]["remaining"], remaining(&granted)), (&json!(0), 2), "{name}");
        assert_eq!((0..3).map(|_| ask()).collect::<Vec<_>>(), [200, 200, 429], "{name}");
        grant["tokens"] = json!(1_000_000);
        assert_eq!(remaining(&done(&gateway, "grant", &grant)), 5, "{name}: no more than a fresh key has");
        assert_eq!((0..6).map(|_| ask()).collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429], "{name}");
        assert_eq!(remaining(&done(&gateway, "reset", &of_bob)), 5, "{name}");
        assert_eq!(ask(), 200, "{name}");
        let metrics = gateway.metrics();
        assert_eq!(metrics.value("tollgate_limit_keys", &[("limit", name)]), Some(1.0), "{name}: nobody else's key");
    }
}

#[test]
fn slots_in_flight_are_not_given_back_by_hand() {
    let origin = Origin::start();
    let gateway = started(&limited(&origin, "{ algorithm: concurrency, limit: 2, key: all }"), &[]);
    assert_eq!(remaining(&done(&gateway, "peek", &json!({ "limit": "guard" }))), 2);
    for (verb, question) in
        [("reset", json!({ "limit": "guard" })), ("grant", json!({ "limit": "guard", "tokens": 1 }))]
    {
        let response = post(&gateway, &format!("/v1/keys/{verb}"), &[HOST, BEARER], &question);
        assert!(response.status == 409 && response.text().contains("it counts requests in flight"), "{response:?}");
    }
    let without = post(&gateway, "/v1/keys/grant", &[HOST, BEARER], &json!({ "limit": "guard" }));
    assert!(without.status == 400 && without.text().contains("how many tokens"), "{without:?}");
}

#[test]
fn a_slot_in_flight_is_not_shown_as_unused() {
    let (_command, origin) = Origin::on_command();
    let gateway = started(&limited(&origin, "{ algorithm: concurrency, limit: 2, key: all }"), &[]);
    let peek = || done(&gateway, "peek", &json!({ "limit": "guard" }))["standing"].clone();
    let shown = || {
        let output = tollgate(&gateway, &["keys", "peek", "--limit", "guard"], &[]);
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(peek()["full_in_seconds"], 0.0);
    assert!(shown().contains("now: 2 left, nothing is used"), "{}", shown());
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    assert_eq!((&peek()["remaining"], &peek()["full_in_seconds"]), (&json!(1), &Value::Null));
    assert!(shown().contains("now: 1 left, comes back when requests end"), "{}", shown());
}

#[test]
fn changes_take_the_token_and_other_sites_get_nothing() {
    let origin = Origin::start();
    let config = limited(&origin, "{ algorithm: gcra, rate: 1/d, burst: 2, key: all }");
    let gateway = Gateway::start(&config);
    let question = json!({ "limit": "guard" });
    let changes = ["/v1/keys/reset", "/v1/keys/grant", "/v1/charge", "/v1/reload"];
    for path in changes {
        let response = post(&gateway, path, &[HOST, BEARER], &question);
        assert!(response.status == 403 && response.text().contains("token_file"), "{path}: {response:?}");
    }
    assert_eq!(get(&gateway, "/v1/status")["takes_changes"], false);
    gateway.folder.write("admin.token", format!("{TOKEN}\n"));
    gateway
        .folder
        .write("tollgate.yaml", with_admin(&gateway, &config, "token_file: admin.token, hosts: [gate.internal]"));
    assert_eq!(gateway.reload().status, 200);
    for path in changes {
        for fields in [&[HOST] as &[_], &[HOST, ("authorization", "Bearer canary-token-012345678")]] {
            let response = post(&gateway, path, fields, &question);
            assert_eq!((response.status, response.field("www-authenticate")), (401, Some("Bearer")), "{path}");
        }
    }
    assert_eq!(post(&gateway, "/v1/reload", &[HOST, BEARER], &json!({})).json()["result"], "unchanged");
    // a new token is valid as soon as its file changes
    gateway.folder.write("admin.token", "another-token-0123456789");
    wait_until("the other token to be taken", || {
        post(&gateway, "/v1/reload", &[HOST, BEARER], &json!({})).status == 401
    });
    gateway.folder.write("admin.token", TOKEN);
    wait_until("the token to be taken", || post(&gateway, "/v1/reload", &[HOST, BEARER], &json!({})).status == 200);

    let asked = |method: &str, path: &str, fields: &[(&str, &str)]| {
        let fields = [fields, &[("connection", "close"), ("content-length", "0")]].concat();
        Client::connect(gateway.admin).round_trip(method, path, &fields).status
    };
    for path in ["/", "/page/page.js", "/v1/status", "/v1/limits", "/v1/offenders", "/v1/decisions", "/v1/routes"] {
        assert_eq!(asked("GET", path, &[("host", "rebound.example:9090")]), 403, "{path}");
        assert_eq!(asked("GET", path, &[("host", "gate.internal:9090")]), 200, "{path}");
        assert_eq!(asked("GET", path, &[HOST, ("origin", "http://evil.example")]), 403, "{path}");
        assert_eq!(asked("DELETE", path, &[HOST]), 405, "{path}");
    }
    for path in ["/-/reload", "/explain", "/v1/explain", "/v1/keys/peek", "/v1/keys/reset", "/v1/reload"] {
        let cross_site = [HOST, BEARER, ("sec-fetch-site", "cross-site")];
        assert_eq!(asked("POST", path, &cross_site), 403, "{path}");
        assert_eq!(asked("POST", path, &[HOST, BEARER, ("origin", "http://evil.example")]), 403, "{path}");
        assert_eq!(asked("GET", path, &[HOST]), 405, "{path}");
    }
    let answer = |method: &str, path: &str| {
        let fields = [HOST, ("connection", "close"), ("content-length", "0")];
        Client::connect(gateway.admin).round_trip(method, path, &fields)
    };
    for (method, path, status, allowed) in [
        ("POST", "/v1/nosuch", 405, Some("GET, HEAD")),
        ("GET", "/v1/nosuch", 404, None),
        ("GET", "/v1/reload", 405, Some("POST")),
        ("GET", "/v1/keys/peek", 405, Some("POST")),
        ("DELETE", "/v1/limits", 405, Some("GET, HEAD")),
    ] {
        let refused = answer(method, path);
        assert_eq!((refused.status, refused.field("allow")), (status, allowed), "{method} {path}");
        assert!(refused.json()["error"].is_string(), "{method} {path}: {}", refused.text());
    }
    assert_eq!(answer("GET", "/-/reload").text(), "GET is not served here, only POST\n");
    assert_eq!(answer("HEAD", "/healthz").field("content-length"), Some("3"), "as of GET");
    let page = gateway.admin_round_trip_raw("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(page.field("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
    assert_eq!(page.field("x-content-type-options"), Some("nosniff"));
    let log = gateway.process.stderr();
    assert!(!log.contains("canary") && !gateway.admin_get("/metrics").text().contains("canary"), "{log}");
}

#[test]
fn rates_are_reported_by_route_limit_and_key() {
    let origin = Origin::start();
    let gateway = Gateway::start_with(&by_customer(&origin), &[("customers.csv", &customers())], &[]);
    wait_until("the first look", || {
        get(&gateway, "/v1/routes")["routes"][0]["rates"]["minute"]["over_seconds"].as_f64() > Some(0.0)
    });
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.get("/", &[("x-api-key", SECRET)]).status, status);
    }
    for user in ["bob", "bob", "bob", "bob", "eve"] {
        gateway.get("/login", &[("x-user", user), ("cookie", &format!("session={SECRET}"))]);
    }
    let sum = |series: &Value| series.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>();
    wait_until("the requests to be looked at", || {
        sum(&get(&gateway, "/v1/routes")["routes"][0]["series"]["requests"]) == 5
    });
    let limits = get(&gateway, "/v1/limits");
    let guard = &limits["limits"][0];
    assert_eq!(
        (&guard["name"], &guard["algorithm"], &guard["mode"]),
        (&json!("guard"), &json!("gcra"), &json!("sticky"))
    );
    assert_eq!((&guard["key"], &guard["routes"], &guard["keys"]), (&json!(["customer"]), &json!(["rest"]), &json!(1)));
    assert_eq!((sum(&guard["series"]["admitted"]), sum(&guard["series"]["over"])), (2, 3), "{guard:#}");
    assert!(guard["rates"]["minute"]["over_per_second"].as_f64() > Some(0.0), "{guard:#}");
    assert_eq!(guard["plans"][1]["plan"], "pro");
    assert_eq!((&guard["plans"][0]["quota"], &guard["plans"][2]["terms"]), (&json!(2), &json!("unlimited")));
    let routes = get(&gateway, "/v1/routes");
    assert_eq!(sum(&routes["routes"][1]["series"]["denied"]), 3);
    assert_eq!(routes["routes"][0]["limits"], json!(["logins", "session"]));

    let offenders = get(&gateway, "/v1/offenders");
    assert_eq!((&offenders["denied"], &offenders["error"]), (&json!(4), &json!(0)));
    let first = &offenders["offenders"][0];
    assert_eq!(first["key"], json!([{ "part": "customer", "value": "acme" }]));
    assert_eq!((&first["limit"], &first["denied"], &first["error"]), (&json!("guard"), &json!(3), &json!(0)));
    assert_eq!(offenders["offenders"][1]["key"][1], json!({ "part": "header x-user", "value": "bob" }));

    let decisions = get(&gateway, "/v1/decisions");
    let last = &decisions["decisions"][0];
    assert_eq!(
        (&last["outcome"], &last["route"], &last["limit"]),
        (&json!("denied"), &json!("login"), &json!("logins"))
    );
    assert!(last["retry_after_seconds"].as_f64() > Some(80_000.0), "{last:#}");
    assert_eq!(decisions["decisions"][1]["plan"], "free");
    assert_eq!(get(&gateway, "/v1/status")["config_hash"], gateway.admin_get("/status").json()["config_hash"]);

    // a key that contains a credential is shown by its beginning only
    for _ in 0..10 {
        gateway.get("/login", &[("x-user", "mallory"), ("cookie", &format!("session={SECRET}"))]);
    }
    wait_until("the session to be spent", || {
        gateway
            .get("/login", &[("x-user", &origin.count().to_string()), ("cookie", &format!("session={SECRET}"))])
            .status
            == 429
    });
    let told = get(&gateway, "/v1/offenders").to_string() + &get(&gateway, "/v1/decisions").to_string();
    assert!(told.contains("cana... (") && !told.contains(SECRET), "{told}");

    // a reload ends no stream, and new series begin at zero
    gateway.rewrite(&by_customer(&origin).replace("name: login,", "name: sign-in,"));
    assert_eq!(gateway.reload().status, 200);
    wait_until("the new route", || get(&gateway, "/v1/routes")["routes"][0]["name"] == "sign-in");
    assert_eq!(get(&gateway, "/v1/routes")["routes"][0]["series"]["requests"], json!([]));
    assert!(sum(&get(&gateway, "/v1/limits")["limits"][0]["series"]["over"]) >= 3);
}

fn tollgate(gateway: &Gateway, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let admin = format!("http://{}", gateway.admin);
    command
        .current_dir(gateway.folder.path())
        .args(arguments)
        .args(["--admin", &admin])
        .env_remove("TOLLGATE_ADMIN_TOKEN");
    command.envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn the_commands_look_and_change() {
    let origin = Origin::start();
    let gateway = started(&by_customer(&origin), &[("customers.csv", &customers())]);
    for _ in 0..4 {
        gateway.get("/", &[("x-api-key", SECRET)]);
    }
    let run = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = tollgate(&gateway, arguments, environment);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let token = [("TOLLGATE_ADMIN_TOKEN", TOKEN)];
    let (status, text, _) = run(&["keys", "peek", "--limit", "guard", "customer=acme"], &[]);
    assert_eq!(status, Some(0));
    assert!(text.contains("limit guard (gcra, sticky): 2 at once") && text.contains("key: customer = acme"), "{text}");
    assert!(text.contains("now: 0 left, denied for"), "{text}");
    let by_request =
        ["keys", "peek", "--limit", "guard", "--url", "http://localhost/", "-H", "x-api-key: k2", "--format", "json"];
    let (_, json, _) = run(&by_request, &[]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["key"][0]["value"], "globex");

    let grant = ["keys", "grant", "--limit", "guard", "customer=acme", "--tokens", "1"];
    let (status, _, error) = run(&grant, &[]);
    assert!(status == Some(1) && error.contains("--token-file") && error.contains("TOLLGATE_ADMIN_TOKEN"), "{error}");
    let (status, _, error) = run(&grant, &[("TOLLGATE_ADMIN_TOKEN", "canary-wrong")]);
    assert!(status == Some(1) && error.contains("admin.token_file") && !error.contains("canary"), "{error}");
    gateway.folder.write("two.token", format!("# of the gateway\n{TOKEN}\n"));
    let (status, _, error) = run(&[&grant[..], &["--token-file", "two.token"]].concat(), &[]);
    assert_eq!((status, &*error), (Some(1), "--token-file: two.token does not hold a token: one line is expected\n"));
    let (status, _, error) = run(&grant, &[("TOLLGATE_ADMIN_TOKEN", "canary\r\ncanary")]);
    assert_eq!((status, &*error), (Some(1), "TOLLGATE_ADMIN_TOKEN does not hold a token: one line is expected\n"));
    let (status, text, error) = run(&grant, &token);
    assert!(status == Some(0) && text.contains("before: 0 left") && text.contains("now: 1 left"), "{text}{error}");
    assert_eq!(gateway.get("/", &[("x-api-key", SECRET)]).status, 200);
    let reset = ["keys", "reset", "--limit", "guard", "customer=acme", "--token-file", "admin.token"];
    let (status, text, error) = run(&reset, &[]);
    assert!(status == Some(0) && text.contains("now: 2 left, nothing is used"), "{text}{error}");
    let twice =
        ["keys", "reset", "--limit", "guard", "customer=acme", "customer=globex", "--token-file", "admin.token"];
    let (status, _, error) = run(&twice, &[]);
    assert!(status == Some(1) && error.contains("\"customer\" of the key is given twice"), "{error}");
    let (status, _, error) = run(&["keys", "peek", "--limit", "gard"], &[]);
    assert!(status == Some(1) && error.contains("there is no limit \"gard\""), "{error}");

    let (status, text, _) = run(&["top", "--once"], &[]);
    assert_eq!(status, Some(0));
    assert!(text.contains("guard") && text.contains("2 denied in the last") && text.contains("acme"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let (_, line, _) = run(&["top", "--once", "--format", "json"], &[]);
    let look: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(look["offenders"]["offenders"][0]["denied"], 2);
    assert_eq!(look["limits"][0]["name"], "guard");

    let by_address = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["top", "--once", "--admin", &gateway.admin.to_string()])
        .output()
        .unwrap();
    assert!(by_address.status.success(), "an address will do: {}", String::from_utf8_lossy(&by_address.stderr));
    let nobody = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["top", "--once", "--admin", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(
        nobody.status.code() == Some(1) && error.contains("http://127.0.0.1:1") && error.contains("--admin"),
        "{error}"
    );
}
