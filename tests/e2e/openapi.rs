//! The OpenAPI description of the admin API is valid, lists exactly the served paths, and matches the answers.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::admin_api::{BEARER, HOST, started};
use crate::support::{Client, Gateway, Origin, Response};

const FILE: &str = "src/admin/openapi.json";

fn gateway(origin: &Origin) -> Gateway {
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  groups: {{ levels: [team] }}
  directory: {{ file: customers.csv, writable: true }}
plans: [free]
limits: {{ guard: {{ algorithm: gcra, rate: 1/d, burst: 2, key: customer }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    );
    started(&config, &[("customers.csv", "credential,customer,plan,team\nk1,acme,free,red\n")])
}

fn described() -> Value {
    serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap()
}

fn ask(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let fields = [HOST, BEARER, ("connection", "close")];
    Client::connect(gateway.admin).round_trip_with_body(method, path, &fields, body.as_bytes())
}

/// The answers that do not match the description, as text. Each answer is a path as the description writes it, a method, a
/// status and a body.
pub fn misfits(answers: &Value) -> String {
    let mut checker = Command::new("python3")
        .args(["tests/e2e/openapi.py", FILE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    checker.stdin.take().unwrap().write_all(answers.to_string().as_bytes()).unwrap();
    let output = checker.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n`make needs` fetches what checks descriptions");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_description_is_served_and_names_all_that_is_served() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let description = described();
    assert_eq!(ask(&gateway, "GET", "/v1/openapi.json", &Value::Null).json(), description);
    assert_eq!(misfits(&json!([])), "");
    let paths = description["paths"].as_object().unwrap();
    for (path, operations) in paths {
        let target = path.replace("{name}", "acme").replace("{id}", "0123");
        // no path has an operation with this method, so the answer lists the allowed methods
        let allowed = ask(&gateway, "TRACE", &target, &Value::Null);
        let allowed: BTreeSet<String> = match (allowed.status, allowed.field("allow")) {
            (405, Some(methods)) => methods.split(", ").map(str::to_ascii_lowercase).collect(),
            _ => panic!("{path}: {allowed:?}"),
        };
        let mut named: BTreeSet<String> =
            operations.as_object().unwrap().keys().filter(|name| *name != "parameters").cloned().collect();
        if named.contains("get") {
            named.insert("head".to_owned());
            let served = ask(&gateway, "GET", &target, &Value::Null);
            assert_eq!(served.status, 200, "{path}: {served:?}");
        }
        assert_eq!(allowed, named, "{path}");
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let fields = [HOST, ("connection", "close")];
            let method = method.to_ascii_uppercase();
            let stranger = Client::connect(gateway.admin).round_trip_with_body(&method, &target, &fields, b"{}");
            let takes_token = operation["security"] != json!([]);
            assert_eq!(stranger.status == 401, takes_token, "{method} {path}: {stranger:?}");
            assert!(!stranger.text().contains("here are / (the page)"), "{method} {path} is not served");
        }
    }
    // the other direction: the paths in the code, and the paths that the 404 answer lists
    let code = std::fs::read_to_string("src/admin.rs").unwrap();
    let literals = code.split('"').filter(|text| text.starts_with("/v1/") && *text != "/v1/");
    let missing = ask(&gateway, "GET", "/v1/nothing", &Value::Null);
    let listed = missing.json()["error"].as_str().unwrap().split_once("under /v1/: ").unwrap().1.to_owned();
    let listed = listed.replace(", which describes them", "").replace(" and ", ", ");
    let listed: Vec<String> = listed.split(", ").map(|name| format!("/v1/{}", name.trim())).collect();
    for served in literals.map(str::to_owned).chain(listed.iter().cloned()).filter(|path| !path.ends_with('/')) {
        assert!(paths.contains_key(&served), "{served} is not described");
    }
    let tops = paths.keys().filter(|path| !path.contains('{'));
    assert_eq!(tops.collect::<BTreeSet<_>>(), listed.iter().collect());
}

#[test]
fn answers_are_as_they_are_described() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    (0..3).for_each(|_| drop(gateway.get("/", &[("x-api-key", "k1")])));
    let key = json!({ "limit": "guard", "key": { "customer": "acme" } });
    let granted = json!({ "limit": "guard", "key": { "customer": "acme" }, "tokens": 1 });
    let question = json!({ "url": "http://localhost/", "headers": { "x-api-key": "k1" } });
    let charged =
        |tokens: i32| json!({ "charges": [{ "limit": "guard", "key": { "customer": "acme" }, "tokens": tokens }] });
    let none = Value::Null;
    let mut answers = Vec::new();
    let mut hear = |path: &str, method: &str, body: &Value, status: u16| {
        let target = path.replace("{name}", "hooli").replace("{id}", "0123");
        let response = ask(&gateway, method, &target, body);
        assert_eq!(response.status, status, "{method} {path}: {response:?}");
        let path = path.split('?').next().unwrap();
        answers.push(json!([path, method, status, response.json()]));
    };
    for path in ["status", "routes", "limits", "offenders", "decisions", "openapi.json"] {
        hear(&format!("/v1/{path}"), "GET", &none, 200);
    }
    hear("/v1/explain", "POST", &question, 200);
    hear("/v1/explain", "POST", &json!({}), 400);
    hear("/v1/keys/peek", "POST", &key, 200);
    hear("/v1/keys/grant", "POST", &granted, 200);
    hear("/v1/keys/reset", "POST", &key, 200);
    hear("/v1/keys/unban", "POST", &key, 404);
    hear("/v1/charge", "POST", &charged(1), 200);
    hear("/v1/charge", "POST", &charged(100), 200);
    hear("/v1/reload", "POST", &none, 200);
    hear("/v1/customers", "GET", &none, 200);
    hear("/v1/customers?limit=0", "GET", &none, 400);
    let terms = json!({ "plan": "free", "overrides": { "guard": { "burst": 7 } }, "groups": { "team": "red" } });
    hear("/v1/customers/{name}", "PUT", &terms, 201);
    hear("/v1/customers/{name}", "PUT", &json!({ "plan": "free" }), 200);
    hear("/v1/customers/{name}", "PATCH", &json!({ "plan": "gold" }), 422);
    hear("/v1/customers/{name}", "PATCH", &json!({ "suspended": true, "groups": { "team": "blue" } }), 200);
    hear(
        "/v1/customers/{name}/keys",
        "POST",
        &json!({ "valid_until": "2099-12-31", "groups": { "team": "red" } }),
        201,
    );
    hear("/v1/customers/{name}/rotate", "POST", &json!({ "keep_old_seconds": 60 }), 201);
    hear("/v1/customers/{name}/keys/{id}", "PATCH", &json!({ "valid_until": "2099-12-31" }), 404);
    hear("/v1/customers/{name}/keys/{id}", "DELETE", &none, 404);
    hear("/v1/customers/{name}", "GET", &none, 200);
    hear("/v1/customers/{name}", "DELETE", &none, 200);
    hear("/v1/customers/{name}", "DELETE", &none, 404);
    gateway.folder.write("tollgate.yaml", "nonsense");
    hear("/v1/reload", "POST", &none, 422);
    hear("/v1/customers/{name}", "PUT", &json!({ "plan": "free" }), 202);
    assert_eq!(misfits(&Value::from(answers)), "");
}

#[test]
fn undescribed_fields_are_found() {
    let found = misfits(&json!([
        ["/v1/customers", "GET", 200, { "customers": [1], "next": null }],
        ["/v1/customers", "GET", 418, {}],
        ["/v1/other", "GET", 200, {}],
        ["/v1/reload", "POST", 401, { "error": 1 }],
    ]));
    assert_eq!(found.lines().count(), 4, "{found}");
}
