//! Every sample of the cookbook does what its first lines promise.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{Exchange, Gateway, Origin, together};

/// The sample `name` with these upstreams in place of those on ports 9000, 9001, ...
fn sample(name: &str, origins: &[&Origin]) -> Gateway {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/cookbook");
    let read = |file: String| fs::read_to_string(folder.join(&file)).ok().map(|text| (file, text));
    let (_, text) = read(format!("{name}.yaml")).expect("the sample is there");
    // The gateway of a test listens on its own ports.
    let own_ports = |line: &&str| !line.starts_with("listeners:") && !line.starts_with("admin:");
    let mut text: String = text.lines().filter(own_ports).flat_map(|line| [line, "\n"]).collect();
    for (number, origin) in origins.iter().enumerate() {
        let fixed = format!("\"127.0.0.1:{}\"", 9000 + number);
        assert!(text.contains(&fixed), "{name}: {fixed}");
        text = text.replace(&fixed, &origin.node());
    }
    let csv = [read(format!("{name}.csv")), read(format!("{name}-groups.csv"))];
    let files: Vec<(&str, &str)> = csv.iter().flatten().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    Gateway::start_with(&text, &files, &[])
}

fn statuses(gateway: &Gateway, count: usize, target: &str, fields: &[(&str, &str)]) -> Vec<u16> {
    let mut client = gateway.client();
    (0..count).map(|_| client.round_trip("GET", target, fields).status).collect()
}

fn admitted(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

#[test]
fn saas_tiers() {
    let origin = Origin::start();
    let gateway = sample("saas-tiers", &[&origin]);
    let free = statuses(&gateway, 40, "/v1/things", &[("x-api-key", "free-key")]);
    assert!((20..40).contains(&admitted(&free)), "20 at once, then ten a second: {free:?}");
    assert_eq!(admitted(&statuses(&gateway, 100, "/v1/things", &[("x-api-key", "pro-key")])), 100);
    let contract = gateway.get("/v1/things", &[("authorization", "Bearer contract-key")]);
    assert_eq!(contract.number("x-ratelimit-limit"), Some(3000), "what the contract says: {contract:?}");

    let origin_of_browser = ("origin", "https://app.example.com");
    let mut client = gateway.client();
    let denied = loop {
        let response = client.round_trip("GET", "/v1/things", &[("x-api-key", "trial-key"), origin_of_browser]);
        if response.status == 429 {
            break response;
        }
    };
    assert_eq!(denied.field("access-control-allow-origin"), Some("https://app.example.com"));
    let usage = gateway.get("/.tollgate/usage", &[("x-api-key", "trial-key")]).json();
    assert_eq!((usage["customer"].as_str(), usage["plan"].as_str()), (Some("hooli"), Some("free")));
    let day = usage["limits"].as_array().unwrap().iter().find(|line| line["limit"] == "per-day").unwrap();
    assert_eq!(day["quota"], 50, "an override wins over the plan: {day}");
}

/// An upstream that rejects every password except `right`.
fn accounts(exchange: &mut Exchange<'_>) -> std::io::Result<()> {
    let right = exchange.body()? == b"right";
    exchange.reply(if right { "200 OK" } else { "401 Unauthorized" }, "", b"")
}

#[test]
fn login_protection() {
    let origin = Origin::with(accounts);
    let gateway = sample("login-protection", &[&origin]);
    let login = |user: &str, password: &str| gateway.client().post("/login", &[("x-user", user)], password.as_bytes());
    assert!((0..20).all(|_| login("ada", "right").status == 200), "who knows the password is never limited");
    let guesses = together(25, |guess| login("ada", &format!("guess-{guess}")).status);
    assert_eq!(guesses.iter().filter(|status| **status == 401).count(), 5, "{guesses:?}");
    assert_eq!(origin.count(), 25);
    let locked = login("ada", "right");
    assert_eq!(locked.status, 429);
    assert_eq!(gateway.client().post("/login/", &[("x-user", "ada")], b"guess").status, 429, "a slash is no way in");
    assert_eq!(gateway.client().post("/LogIn", &[("x-user", "ada")], b"guess").status, 429, "nor is another case");
    assert!((800..=900).contains(&locked.number("retry-after").unwrap()), "{locked:?}");
    assert_eq!(login("grace", "right").status, 200, "others are not locked out");
    let reached = origin.count();
    let evasions = together(40, |guess| {
        let path = ["/login;a=1", "/login%3Ba", "/x/..;/login", "/login;"][guess % 4];
        gateway.client().post(path, &[("x-user", "ada")], b"guess").status
    });
    assert_eq!((origin.count() - reached, evasions), (0, vec![400; 40]), "no other spelling of the path is a way in");
}

#[test]
fn key_guessing() {
    let origin = Origin::start();
    let gateway = sample("key-guessing", &[&origin]);
    let ask = |from: u8, key: &str| gateway.client_from(from).round_trip("GET", "/", &[("x-api-key", key)]);
    assert!((0..12).all(|_| ask(1, "right-key").status == 200), "right keys do not count");
    let guesses = together(25, |guess| ask(1, &format!("guess-{guess}")).status);
    let refused = guesses.iter().filter(|status| **status == 401).count();
    assert_eq!((refused, origin.count()), (10, 12), "{guesses:?}");
    assert!(guesses.iter().all(|status| matches!(status, 401 | 429)), "{guesses:?}");
    let locked = ask(1, "right-key");
    assert!((800..=900).contains(&locked.number("retry-after").unwrap()), "{locked:?}");
    assert_eq!(ask(2, "right-key").status, 200, "others are not locked out");
}

/// A model that reports the cost given in the request's `x-tokens`, as JSON or as events.
fn model(exchange: &mut Exchange<'_>) -> std::io::Result<()> {
    exchange.body()?;
    let tokens = exchange.head.field("x-tokens").unwrap_or("0").to_owned();
    let usage = format!("{{\"id\":\"x\",\"usage\":{{\"prompt_tokens\":1,\"total_tokens\":{tokens}}}}}");
    match exchange.path() {
        "/v1/chat/stream" => {
            let events = format!("data: {{\"delta\":\"hi\"}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
            exchange.reply("200 OK", "content-type: text/event-stream\r\n", events.as_bytes())
        }
        _ => exchange.reply("200 OK", "content-type: application/json\r\n", usage.as_bytes()),
    }
}

#[test]
fn llm_token_budget() {
    let origin = Origin::with(model);
    let gateway = sample("llm-token-budget", &[&origin]);
    let ask = |path: &str, tokens: &str| {
        gateway.client().round_trip("GET", path, &[("authorization", "Bearer hobby-key"), ("x-tokens", tokens)])
    };
    assert_eq!(ask("/v1/chat/completions", "10").status, 200);
    assert_eq!(ask("/v1/chat/stream", "6000").status, 200);
    let labels = [("limit", "tokens"), ("plan", "hobby"), ("outcome", "debited")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, 5000.0);
    let third = ask("/v1/chat/stream", "60000");
    assert_eq!(third.status, 200, "{third:?}");
    assert!(third.field("ratelimit").is_some());
    gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, 64_000.0);
    let denied = ask("/v1/chat/completions", "10");
    assert_eq!(denied.status, 429, "in debt: {denied:?}");
    let wait = denied.number("retry-after").unwrap();
    assert!((500..=580).contains(&wait), "56010 tokens and the next 1000 at 100 a second: {wait}");
}

/// A model that reports 10 prompt tokens, and as many completion tokens as the request's `x-tokens` says.
fn priced_model(exchange: &mut Exchange<'_>) -> std::io::Result<()> {
    exchange.body()?;
    let tokens = exchange.head.field("x-tokens").unwrap_or("0").to_owned();
    let usage = format!("{{\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{tokens}}}}}");
    if exchange.path().ends_with("/stream") {
        let events = format!("data: {{\"delta\":\"hi\",\"usage\":null}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
        return exchange.reply("200 OK", "content-type: text/event-stream\r\n", events.as_bytes());
    }
    exchange.reply("200 OK", "content-type: application/json\r\n", usage.as_bytes())
}

#[test]
fn ai_gateway() {
    let origin = Origin::with(priced_model);
    let gateway = sample("ai-gateway", &[&origin]);
    let ask = |key: &str, path: &str, (model, most): (&str, u32), tokens: &str| {
        let (authorization, body) =
            (format!("Bearer {key}"), json!({ "model": model, "max_tokens": most }).to_string());
        let fields = [("authorization", authorization.as_str()), ("x-tokens", tokens)];
        gateway.client().post(path, &fields, body.as_bytes())
    };
    let wait_for_plan = |plan: &str, outcome: &str, tokens: f64| {
        let labels = [("limit", "budget"), ("plan", plan), ("outcome", outcome)];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, tokens);
    };
    let wait_for = |outcome: &str, tokens: f64| wait_for_plan("starter", outcome, tokens);
    assert_eq!(ask("starter-key", "/v1/chat", ("large", 2000), "1000").status, 200);
    wait_for("refunded", 20_000.0 - (25.0 + 10_000.0));
    assert_eq!(ask("starter-key", "/v1/stream", ("large", 16_000), "498000").status, 200);
    wait_for("debited", 25.0 + 4_980_000.0 - 160_000.0);
    let denied = ask("starter-key", "/v1/chat", ("large", 2000), "10");
    assert_eq!(denied.status, 429, "there is no room for what it may cost: {denied:?}");
    assert_eq!(
        ask("starter-key", "/v1/chat", ("another", 2000), "10").status,
        429,
        "nor for a model that is not listed"
    );
    assert_eq!(ask("starter-key", "/v1/stream", ("small", 2000), "1000").status, 200, "the other model costs less");
    wait_for("refunded", 20_000.0 - 10_025.0 + 1_200.0 - 602.0);
    let usage = gateway.get("/.tollgate/usage", &[("authorization", "Bearer starter-key")]).json();
    let budget = usage["limits"].as_array().unwrap().iter().find(|line| line["limit"] == "budget").unwrap();
    assert_eq!(budget["remaining"], 5_000_000 - 10_025 - 4_980_025 - 602, "{usage}");
    // three levels: the usage of a team counts for all its members, the usage of an organisation for all its teams
    let denied_by = |key: &str| {
        let denied = ask(key, "/v1/chat", ("large", 16_000), "10");
        (denied.status, denied.json()["violated-policies"].clone())
    };
    let mut debited = 0.0;
    for (key, dollars) in [("business-key", 95), ("second-key", 26), ("third-key", 25)] {
        let tokens = format!("{dollars}00000");
        assert_eq!(ask(key, "/v1/stream", ("large", 16_000), &tokens).status, 200, "{key}");
        debited += 25.0 + f64::from(dollars) * 1_000_000.0 - 160_000.0;
        wait_for_plan("business", "debited", debited);
        if key == "second-key" {
            assert_eq!(denied_by(key), (429, json!(["team-budget"])), "121 of 120 dollars");
        }
    }
    assert_eq!(denied_by("third-key"), (429, json!(["organisation-budget"])), "151 of 150 dollars");
    assert_eq!(origin.count(), 6);
}

#[test]
fn mcp_server() {
    let origin = Origin::start();
    let gateway = sample("mcp-server", &[&origin]);
    let say = |key: &str, body: serde_json::Value| {
        let authorization = format!("Bearer {key}");
        gateway.client().post("/mcp", &[("authorization", &authorization)], body.to_string().as_bytes()).status
    };
    let call = |key: &str, method: &str, tool: &str, count: usize| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "name": tool, "arguments": {} } });
        admitted(&(0..count).map(|_| say(key, body.clone())).collect::<Vec<_>>())
    };
    assert_eq!(call("free-key", "tools/call", "search", 14), 10);
    assert_eq!(call("free-key", "tools/call", "fetch", 4), 4, "another tool");
    assert_eq!(call("free-key", "prompts/get", "search", 4), 4, "no tool");
    assert_eq!(say("free-key", json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })), 200);
    assert_eq!(call("free-key", "tools/call", "write", 10), 10);
    assert_eq!(call("free-key", "tools/call", "read", 10), 1, "30 in a day");
    assert_eq!(call("team-key", "tools/call", "search", 40), 40);
    assert_eq!(origin.count(), 70);
}

#[test]
fn graphql_api() {
    let origin = Origin::start();
    let gateway = sample("graphql-api", &[&origin]);
    let say = |key: &str, body: &str| {
        let authorization = format!("Bearer {key}");
        gateway.client().post("/graphql", &[("authorization", &authorization)], body.as_bytes())
    };
    let left = |body: &str| {
        let answer = say("free-key", body);
        (answer.status, answer.number("x-ratelimit-remaining").unwrap())
    };
    let listed = json!({ "query": "{ repositories(first: 50) { name issues(last: 10) { title } } }" }).to_string();
    let (status, after) = left(&listed);
    assert_eq!(status, 200);
    assert!((1399..1450).contains(&after), "601 of 2000: {after}");
    let unread = json!({ "query": "{ repositories(first: 50) { name" }).to_string();
    let (status, after) = left(&unread);
    assert!(status == 200 && (399..500).contains(&after), "the most, 1000: {after}");
    assert_eq!(say("free-key", &listed).status, 429);
    assert_eq!(say("free-key", &json!({ "query": "{ viewer { login } }" }).to_string()).status, 200);
    assert_eq!(say("free-key", "[]").status, 429, "a batch costs the most");
    assert_eq!(say("team-key", &listed).status, 200);
    assert_eq!(say("team-key", "{\"query\": \"{a}\", \"query\": \"{b}\"}").status, 400);
    assert_eq!(origin.count(), 4);
}

#[test]
fn b2b_organisations() {
    let origin = Origin::start();
    let gateway = sample("b2b-organisations", &[&origin]);
    let ask =
        |key: &'static str, count: usize| admitted(&statuses(&gateway, count, "/v1/things", &[("x-api-key", key)]));
    let left = |key: &str, limit: &str| {
        let usage = gateway.get("/.tollgate/usage", &[("x-api-key", key)]).json();
        let line = usage["limits"].as_array().unwrap().iter().find(|line| line["limit"] == limit).cloned();
        line.and_then(|line| line["remaining"].as_u64())
    };
    assert_eq!(ask("acme-search-1", 55), 50, "a key has 50");
    assert_eq!(ask("acme-search-2", 55), 10, "and its team 60");
    assert_eq!(left("acme-search-2", "key-budget"), Some(40), "what the team denies costs the key nothing");
    assert_eq!(left("acme-search-2", "organisation-budget"), Some(40), "nor the organisation");
    let passed = together(8, |_| {
        let key = [("x-api-key", "acme-crawler")];
        admitted(&(0..3).map(|_| gateway.get("/v1/things", &key).status).collect::<Vec<_>>())
    });
    assert_eq!(passed.into_iter().sum::<usize>(), 24);
    assert_eq!(ask("acme-admin", 50), 16, "and the organisation 100, whoever in it asks");
    assert_eq!((left("acme-crawler", "team-budget"), left("acme-admin", "team-budget")), (Some(36), None));
    assert_eq!(origin.count(), 100);
    let contract = gateway.get("/.tollgate/usage", &[("x-api-key", "globex-key")]).json();
    assert_eq!(
        (contract["plan"].as_str(), contract["groups"]["organisation"].as_str()),
        (Some("starter"), Some("globex"))
    );
    assert_eq!(
        left("globex-key", "organisation-budget"),
        Some(500),
        "an override of the organisation wins over its plan"
    );
    assert_eq!(
        gateway.get("/v1/things", &[("x-api-key", "umbrella-key")]).status,
        403,
        "its organisation is suspended"
    );
    assert_eq!(origin.count(), 100);
}

#[test]
fn partner_monthly_quota() {
    let origin = Origin::start();
    let gateway = sample("partner-monthly-quota", &[&origin]);
    let reset = |key| {
        let response = gateway.get("/", &[("x-partner-key", key), ("accept", "application/json")]);
        assert_eq!(response.status, 200, "{response:?}");
        response.number("x-ratelimit-reset").unwrap()
    };
    let (tokyo, berlin) = (reset("tokyo-key"), reset("berlin-key"));
    // Tokyo is seven or eight hours ahead of Berlin; around the end of a month the two are in different months.
    let ahead = berlin.abs_diff(tokyo);
    assert!(ahead.abs_diff(8 * 3600) <= 3602 || ahead > 27 * 86_400, "{tokyo} {berlin}");
    let trial = [("x-partner-key", "trial-key"), ("accept", "application/json")];
    assert_eq!(statuses(&gateway, 4, "/", &trial), [200, 200, 200, 429]);
    let denied = gateway.get("/", &trial);
    assert_eq!(denied.field("content-type"), Some("application/json"));
    let body = denied.json();
    assert_eq!(body["quota"], 3);
    assert_eq!(body["retry_after_seconds"].as_u64(), denied.number("retry-after"));
    let text = gateway.get("/", &[("x-partner-key", "trial-key"), ("accept", "text/plain")]).text();
    assert!(text.starts_with("Your 3 requests of this month are spent"), "{text}");
}

#[test]
fn cold_backend() {
    let origin = Origin::start();
    let gateway = sample("cold-backend", &[&origin]);
    let answers = together(64, |_| statuses(&gateway, 3, "/", &[]));
    let answers = answers.concat();
    let passed = admitted(&answers);
    assert!(passed < 192 && answers.iter().all(|status| matches!(status, 200 | 429)), "{answers:?}");
    // a cold limit admits one request every 6 ms at first, a warm one every 2 ms
    let seen = origin.received();
    let took = seen.last().unwrap().at.duration_since(seen[0].at);
    assert!(took.as_millis() >= u128::try_from(seen.len() - 1).unwrap() * 4, "{took:?} for {}", seen.len());
    // the first request does not wait, nor does one that arrives after the machine has paused
    let waited = gateway.metrics().value("tollgate_limit_wait_seconds_count", &[("limit", "warm-up")]).unwrap();
    assert!(waited >= passed as f64 / 2.0 && waited < passed as f64, "{waited} of {passed}");
}

#[test]
fn quarantine() {
    let (shop, pen) = (Origin::start(), Origin::start());
    let gateway = sample("quarantine", &[&shop, &pen]);
    let answers = together(8, |_| statuses(&gateway, 60, "/", &[("x-suspicious", "forged")])).concat();
    assert_eq!(admitted(&answers), 480, "nobody is told");
    let marked = shop.received().iter().filter(|seen| seen.head.field("x-suspicious") == Some("suspicious")).count();
    let forged = shop.received().iter().filter(|seen| seen.head.field("x-suspicious") == Some("forged")).count();
    assert_eq!(forged, 0);
    assert!(marked > 0 && shop.count() - marked >= 20, "{marked} of {}", shop.count());
    assert!(pen.count() > 0 && shop.count() >= 100, "{} {}", shop.count(), pen.count());
    assert_eq!(shop.count() + pen.count(), 480);
    let labels = [("route", "shop"), ("limit", "stricter"), ("plan", "none"), ("outcome", "shadow_denied")];
    assert!(gateway.metrics().value("tollgate_limit_requests_total", &labels).unwrap() > 0.0, "the trial counts");
    let answer = gateway.get("/", &[]);
    assert!(answer.head.field("ratelimit").is_none() && answer.head.field("ratelimit-policy").is_none());
}
