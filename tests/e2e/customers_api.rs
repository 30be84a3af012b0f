//! Changes of customers over the admin API, in a file and in a PostgreSQL database, and the audit log of these changes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

mod database;

use self::database::{SCHEMA, on_database};
use crate::admin_api::{BEARER, HOST, started_with};
use crate::restarts::Lineage;
use crate::support::client::request;
use crate::support::postgres::Postgres;
use crate::support::process::signal;
use crate::support::{Client, Exchange, Gateway, Origin, Response, together, wait_until};

const FILE: &str = "directory: { file: customers.csv, writable: true }";
const CUSTOMERS: &str = "credential, customer, plan\n# no comment,but a key,free\n\nkey-canary-1,acme,free\n  key-canary-2 , globex,pro\r\n";

fn config(origin: &Origin, directory: &str) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  {directory}
plans: [free, pro]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 10000, plans: {{ pro: {{ burst: 20000 }} }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    )
}

/// A gateway that accepts changes, with debug logging.
fn started(config: &str, files: &[(&str, &str)]) -> Gateway {
    started_with(config, files, &[("RUST_LOG", "debug")])
}

/// A gateway with its customers in this file.
fn on_file(origin: &Origin, name: &str, text: &str) -> Gateway {
    started(&config(origin, &FILE.replace("customers.csv", name)), &[(name, text)])
}

#[track_caller]
fn ask(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let fields = [HOST, BEARER, ("connection", "close")];
    Client::connect(gateway.admin).round_trip_with_body(
        method,
        &format!("/v1/customers{path}"),
        &fields,
        body.as_bytes(),
    )
}

/// The answer to a change that succeeds and is in force.
#[track_caller]
fn done(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Value {
    let response = ask(gateway, method, path, body);
    assert!(matches!(response.status, 200 | 201), "{method} {path} {body}: {response:?}");
    let answer = response.json();
    assert!(method == "GET" || answer["in_force"] == true, "{answer:#}");
    answer
}

#[track_caller]
fn refused(gateway: &Gateway, (method, path, body): (&str, &str, &Value), status: u16, says: &str) {
    let response = ask(gateway, method, path, body);
    assert_eq!(response.status, status, "{method} {path} {body}: {response:?}");
    let error = response.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains(says), "{error}");
}

/// The status and the quota for a key; the quota shows the plan.
#[track_caller]
fn met(gateway: &Gateway, key: &str) -> (u16, Option<u64>) {
    let response = gateway.get("/", &[("x-api-key", key)]);
    (response.status, response.number("x-ratelimit-limit"))
}

fn key_of(answer: &Value) -> String {
    answer["key"].as_str().unwrap_or_else(|| panic!("{answer:#}")).to_owned()
}

fn ids(answer: &Value) -> Vec<String> {
    let keys = answer["keys"].as_array().unwrap();
    keys.iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect()
}

/// Asserts that nothing that the gateway prints or stores contains one of these secrets, except the file of customers.
#[track_caller]
fn assert_untold(gateway: &Gateway, secrets: &[&str]) {
    let shown = ["/metrics", "/status"].map(|target| gateway.admin_get(target).text());
    let named = ask(gateway, "GET", "", &Value::Null).json()["customers"].as_array().unwrap().clone();
    let shown = shown.into_iter().chain(
        named.iter().map(|name| ask(gateway, "GET", &format!("/{}", name.as_str().unwrap()), &Value::Null).text()),
    );
    let audit = fs::read_to_string(gateway.folder.path().join("audit.log")).unwrap_or_default();
    let said = [gateway.process.stderr(), gateway.process.stdout(), audit];
    for text in said.into_iter().chain(shown) {
        for secret in secrets.iter().chain(&["canary"]) {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

/// All changes of a customer's life, in any kind of directory.
fn a_life(gateway: &Gateway) {
    let created = done(gateway, "PUT", "/initech", &json!({ "plan": "free", "time_zone": "Europe/Berlin" }));
    let first = key_of(&created);
    assert_eq!(met(gateway, &first), (200, Some(10_000)), "a key is good at once");
    let customer = done(gateway, "GET", "/initech", &Value::Null);
    assert_eq!(customer, created["customer"]);
    assert_eq!((&customer["plan"], &customer["suspended"]), (&json!("free"), &json!(false)));
    // a PATCH keeps what it does not name; a second PUT resets it
    let overrides = json!({ "guard": { "burst": 30_000 } });
    let patched = done(gateway, "PATCH", "/initech", &json!({ "plan": "pro", "overrides": overrides }));
    assert_eq!(patched["customer"]["time_zone"], "Europe/Berlin");
    assert_eq!((met(gateway, &first), &patched["customer"]["overrides"]), ((200, Some(30_000)), &overrides));
    let replaced = done(gateway, "PUT", "/initech", &json!({ "plan": "pro" }));
    assert_eq!((&replaced["customer"]["time_zone"], replaced.get("key")), (&Value::Null, None));
    assert_eq!(met(gateway, &first), (200, Some(20_000)));
    done(gateway, "PATCH", "/initech", &json!({ "suspended": true }));
    assert_eq!(met(gateway, &first).0, 403);
    done(gateway, "PATCH", "/initech", &json!({ "suspended": false }));
    assert_eq!(met(gateway, &first).0, 200);
    // keys
    let more = done(gateway, "POST", "/initech/keys", &json!({ "valid_until": "2099-01-01T00:00:00Z" }));
    let second = key_of(&more);
    assert_eq!(met(gateway, &second), (200, Some(20_000)));
    assert!(more["customer"]["keys"][1]["valid_until"].as_str().unwrap().starts_with("2099-01-01T00:00:00"));
    let listed = ids(&more["customer"]);
    // the end of a key moves, and goes
    let of_second = format!("/initech/keys/{}", listed[1]);
    for (end, status) in [(json!("2020-12-31"), 401), (json!("2098-12-31T00:00:00+01:00"), 200), (Value::Null, 200)] {
        let changed = done(gateway, "PATCH", &of_second, &json!({ "valid_until": end }));
        assert_eq!(changed["customer"]["keys"][1]["valid_until"].is_null(), end.is_null(), "{changed:#}");
        assert_eq!((met(gateway, &first).0, met(gateway, &second).0), (200, status), "{end}");
    }
    refused(gateway, ("PATCH", &of_second, &json!({ "valid_until": "soon" })), 422, "`valid_until` is neither");
    refused(gateway, ("PATCH", &of_second, &json!({ "plan": "pro" })), 400, "`plan`");
    refused(gateway, ("PATCH", "/initech/keys/0123", &json!({ "valid_until": null })), 404, "no key");
    done(gateway, "PATCH", &of_second, &json!({ "valid_until": "2099-01-01T00:00:00Z" }));
    done(gateway, "DELETE", &format!("/initech/keys/{}", listed[0]), &Value::Null);
    assert_eq!((met(gateway, &first).0, met(gateway, &second).0), (401, 200));
    refused(gateway, ("DELETE", &format!("/initech/keys/{}", listed[1]), &Value::Null), 409, "last key");
    refused(gateway, ("DELETE", &format!("/initech/keys/{}", listed[0]), &Value::Null), 404, "no key");
    let kept = done(gateway, "POST", "/initech/rotate", &json!({ "keep_old_seconds": 3600 }));
    let third = key_of(&kept);
    assert_eq!((met(gateway, &second).0, met(gateway, &third).0), (200, 200));
    let end = kept["customer"]["keys"].as_array().unwrap().iter().filter(|key| !key["valid_until"].is_null()).count();
    assert_eq!(end, 1, "{kept:#}");
    let rotated = done(gateway, "POST", "/initech/rotate", &Value::Null);
    let fourth = key_of(&rotated);
    assert_eq!([&second, &third, &fourth].map(|key| met(gateway, key).0), [401, 401, 200]);
    // a wrong request changes nothing
    for (body, says) in [
        (json!({ "plan": "gold" }), "plan: "),
        (json!({ "plan": "pro", "overrides": { "gard": {} } }), "overrides: gard"),
        (json!({ "plan": "pro", "time_zone": "Mars/Olympus" }), "time_zone: "),
    ] {
        refused(gateway, ("PATCH", "/initech", &body), 422, says);
    }
    refused(gateway, ("PATCH", "/initech", &json!({ "plann": "pro" })), 400, "`plann`");
    refused(gateway, ("PATCH", "/nobody", &json!({ "plan": "pro" })), 404, "no customer");
    refused(gateway, ("GET", "/nobody", &Value::Null), 404, "no customer");
    let fields = [HOST, BEARER, ("connection", "close"), ("if-none-match", "*")];
    let again = Client::connect(gateway.admin)
        .round_trip_with_body("PUT", "/v1/customers/initech", &fields, b"{\"plan\": \"pro\"}");
    assert_eq!(again.status, 412, "{again:?}");
    assert_eq!(done(gateway, "GET", "/initech", &Value::Null), rotated["customer"]);
    assert_eq!(done(gateway, "DELETE", "/initech", &Value::Null)["customer"], Value::Null);
    assert_eq!(met(gateway, &fourth).0, 401);
    assert_untold(gateway, &[&first, &second, &third, &fourth]);
}

#[test]
fn a_customer_of_a_file_is_made_changed_suspended_and_deleted() {
    let origin = Origin::start();
    let gateway = on_file(&origin, "customers.csv", CUSTOMERS);
    let file = gateway.folder.path().join("customers.csv");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    a_life(&gateway);
    // all old lines are kept as they were written, plus the columns that the changes need
    let text = fs::read_to_string(&file).unwrap();
    let expected = "credential, customer, plan,time_zone,overrides,suspended,valid_until\n\
        # no comment,but a key,free,,,,\n\nkey-canary-1,acme,free,,,,\n  key-canary-2 , globex,pro,,,,\r\n";
    assert_eq!(text, expected);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    done(&gateway, "PATCH", "/globex", &json!({ "plan": "free" }));
    assert_eq!(met(&gateway, "key-canary-2"), (200, Some(10_000)), "a key stays as it is written");
}

#[test]
fn a_customer_of_a_yaml_file_is_changed_and_comments_stay() {
    let origin = Origin::start();
    let yaml = "# whom we know\n- credential: key-canary-1 # from mail\n  customer: acme\n  plan: free\n\n# a partner\n- { credential: key-canary-2, customer: globex, plan: pro }\n";
    let gateway = on_file(&origin, "customers.yaml", yaml);
    a_life(&gateway);
    let file = gateway.folder.path().join("customers.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), yaml);
    done(&gateway, "PATCH", "/acme", &json!({ "plan": "pro", "overrides": { "guard": "unlimited" } }));
    let expected = "# whom we know\n- {credential: \"key-canary-1\", customer: \"acme\", overrides: {\"guard\":\"unlimited\"}, plan: \"pro\"}\n\n# a partner\n- { credential: key-canary-2, customer: globex, plan: pro }\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    done(&gateway, "DELETE", "/acme", &Value::Null);
    done(&gateway, "DELETE", "/globex", &Value::Null);
    a_life(&gateway);
    // a list on a single line has no lines that the gateway could change
    let on_one = "[{credential: key-canary-1, customer: acme, plan: free}, {credential: key-canary-2, customer: globex, plan: pro}]";
    fs::write(&file, on_one).unwrap();
    refused(&gateway, ("PATCH", "/acme", &json!({ "plan": "pro" })), 409, "lines of its own");
    assert_eq!(fs::read_to_string(&file).unwrap(), on_one);
}

#[test]
fn changes_that_are_made_at_once_are_all_there() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let names: BTreeSet<String> = (0..20).map(|n| format!("customer-{n:02}")).collect();
    for gateway in [on_file(&origin, "customers.csv", CUSTOMERS), on_database(&origin, &database, &[])] {
        let keys =
            together(20, |n| key_of(&done(&gateway, "PUT", &format!("/customer-{n:02}"), &json!({ "plan": "pro" }))));
        assert!(keys.iter().all(|key| met(&gateway, key) == (200, Some(20_000))));
        let listed = |query: &str| done(&gateway, "GET", query, &Value::Null);
        let all: BTreeSet<String> = serde_json::from_value(listed("")["customers"].clone()).unwrap();
        assert!(all.is_superset(&names), "{all:?}");
        let page = listed("?after=customer-03&limit=2");
        assert_eq!(page, json!({ "customers": ["customer-04", "customer-05"], "next": "customer-05" }));
        assert_eq!(listed("?after=customer-19")["next"], Value::Null);
        refused(&gateway, ("GET", "?limit=0", &Value::Null), 400, "`limit=N`");
    }
}

#[test]
fn a_file_that_is_written_by_hand_meanwhile_is_gone_on_from_or_refused() {
    let origin = Origin::start();
    let gateway = on_file(&origin, "customers.csv", CUSTOMERS);
    let file = gateway.folder.path().join("customers.csv");
    done(&gateway, "PUT", "/initech", &json!({ "plan": "free" }));
    let by_hand = fs::read_to_string(&file).unwrap() + "key-by-hand,hooli,pro\n";
    fs::write(&file, &by_hand).unwrap();
    done(&gateway, "PATCH", "/initech", &json!({ "plan": "pro" }));
    assert_eq!(met(&gateway, "key-by-hand"), (200, Some(20_000)), "what was written by hand is there");
    for broken in [by_hand.clone() + "half a row", by_hand.clone() + "key-9,vandelay,gold\n"] {
        fs::write(&file, &broken).unwrap();
        refused(
            &gateway,
            ("PATCH", "/initech", &json!({ "plan": "pro" })),
            409,
            "has errors that must be corrected first: line 8: ",
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), broken, "it is left alone");
    }
    // a symbolic link still points to the file
    let other = gateway.folder.write("other.csv", &by_hand);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    done(&gateway, "PATCH", "/initech", &json!({ "plan": "pro" }));
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    // a broken configuration keeps a change from coming into force, and the answer says so
    gateway.folder.write("tollgate.yaml", "nonsense");
    let late = ask(&gateway, "PATCH", "/initech", &json!({ "suspended": true }));
    assert_eq!((late.status, &late.json()["in_force"]), (202, &json!(false)), "{late:?}");
    assert!(late.json()["errors"][0].as_str().unwrap().contains("tollgate.yaml"), "{late:?}");
}

#[test]
fn a_gateway_that_is_killed_while_it_writes_leaves_a_whole_file() {
    let origin = Origin::start();
    let rows: String = (0..2_000).map(|n| format!("key-{n},customer-{n},free\n")).collect();
    let mut gateway = on_file(&origin, "customers.csv", &format!("credential,customer,plan\n{rows}"));
    let file = gateway.folder.path().join("customers.csv");
    for round in 0..5 {
        let before = fs::read(&file).unwrap();
        let body = format!("{{\"plan\": \"{}\"}}", ["pro", "free"][round % 2]);
        let length = body.len().to_string();
        let fields = [HOST, BEARER, ("content-length", &length)];
        let mut client = Client::connect(gateway.admin);
        client.send(request("PATCH", "/v1/customers/customer-7", &fields) + &body);
        let next = gateway.folder.path().join("customers.csv.new");
        wait_until("the file to be written", || next.exists() || fs::read(&file).unwrap() != before);
        gateway.end("KILL");
        gateway.start_again();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 2_001);
        assert_eq!(met(&gateway, "key-1999").0, 200);
    }
    done(&gateway, "PATCH", "/customer-7", &json!({ "plan": "pro" }));
    assert_eq!(met(&gateway, "key-7"), (200, Some(20_000)));
}

#[test]
fn nobody_changes_customers_without_the_token_and_the_setting() {
    let origin = Origin::start();
    let gateway = on_file(&origin, "customers.csv", CUSTOMERS);
    for (method, path) in [
        ("GET", "/v1/customers"),
        ("GET", "/v1/customers/acme"),
        ("PUT", "/v1/customers/acme"),
        ("PATCH", "/v1/customers/acme"),
        ("DELETE", "/v1/customers/acme"),
        ("POST", "/v1/customers/acme/keys"),
        ("POST", "/v1/customers/acme/rotate"),
        ("PATCH", "/v1/customers/acme/keys/0123"),
        ("DELETE", "/v1/customers/acme/keys/0123"),
    ] {
        for fields in [&[HOST][..], &[HOST, ("authorization", "Bearer canary-wrong-0123456789")]] {
            let fields = [fields, &[("connection", "close")]].concat();
            let response = Client::connect(gateway.admin).round_trip_with_body(method, path, &fields, b"{}");
            assert_eq!(response.status, 401, "{method} {path}: {response:?}");
        }
        let foreign = [HOST, BEARER, ("origin", "http://evil.example"), ("connection", "close")];
        let response = Client::connect(gateway.admin).round_trip_with_body(method, path, &foreign, b"{}");
        assert_eq!(response.status, 403, "{method} {path}: {response:?}");
        // the API is not on the clients' port
        let response = gateway.client().round_trip_with_body(method, path, &[BEARER, ("connection", "close")], b"{}");
        assert_eq!(response.status, 401, "{method} {path}: {response:?}");
    }
    assert_eq!(fs::read_to_string(gateway.folder.path().join("customers.csv")).unwrap(), CUSTOMERS);
    let gateway = started(&config(&origin, "directory: { file: customers.csv }"), &[("customers.csv", CUSTOMERS)]);
    for (method, path) in [("GET", ""), ("GET", "/acme"), ("DELETE", "/acme"), ("POST", "/acme/rotate")] {
        refused(&gateway, (method, path, &Value::Null), 409, "needs `writable: true`");
    }
    let response = ask(&gateway, "POST", "/acme", &Value::Null);
    assert_eq!((response.status, response.field("allow")), (405, Some("GET, HEAD, PUT, PATCH, DELETE")));
    for (path, status, says) in
        [("/x%C2%A0", 400, "end with a blank"), ("/%20x/keys", 400, "begin or"), ("/acme/foo", 404, "NAME/rotate")]
    {
        refused(&gateway, ("PUT", path, &json!({ "plan": "free" })), status, says);
    }
}

#[test]
fn the_log_has_every_request_for_a_change_where_there_is_no_audit_log() {
    const REQUESTS: usize = 40;
    let origin = Origin::start();
    let gateway = on_file(&origin, "customers.csv", CUSTOMERS);
    let mut client = Client::connect(gateway.admin);
    for _ in 0..REQUESTS {
        let body = br#"{"limit": "gard", "key": {"customer": "acme"}}"#;
        assert_eq!(client.round_trip_with_body("POST", "/v1/keys/reset", &[HOST, BEARER], body).status, 404);
    }
    wait_until("all lines", || {
        gateway.process.stderr().matches("change requested over the admin port").count() == REQUESTS
    });
}

#[test]
fn every_change_is_in_the_audit_log_and_nothing_is_changed_without_it() {
    let origin = Origin::start();
    let gateway = on_file(&origin, "customers.csv", CUSTOMERS);
    let config = fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write("tollgate.yaml", config.replacen("token_file:", "audit_log: audit.log, token_file:", 1));
    assert_eq!(gateway.reload().status, 200);
    let key = key_of(&done(&gateway, "PUT", "/initech", &json!({ "plan": "free" })));
    done(&gateway, "PATCH", "/initech", &json!({ "plan": "pro" }));
    refused(&gateway, ("PATCH", "/initech", &json!({ "plan": "gold" })), 422, "plan: ");
    done(&gateway, "GET", "/initech", &Value::Null);
    let post = |path: &str, fields: &[(&str, &str)], body: &Value| crate::admin_api::post(&gateway, path, fields, body);
    assert_eq!(post("/v1/reload", &[HOST, BEARER], &json!({})).status, 200);
    assert_eq!(post("/v1/reload", &[HOST, ("authorization", "Bearer canary-wrong")], &json!({})).status, 401);
    let wrong = json!({ "limit": "gard", "key": { "customer": "canary" } });
    assert_eq!(post("/v1/keys/reset", &[HOST, BEARER], &wrong).status, 404);
    let mut long = Client::connect(gateway.admin);
    let fields = [HOST, BEARER, ("content-length", "300000")];
    long.send(&(request("PUT", "/v1/customers/acme", &fields) + &"x".repeat((256 << 10) + 1)));
    assert_eq!(long.receive().status, 413);
    let file = gateway.folder.path().join("audit.log");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let lines: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let what =
        |line: &Value| ["method", "path", "result"].map(|name| line[name].as_str().unwrap().to_owned()).join(" ");
    assert_eq!(
        lines.iter().map(what).collect::<Vec<_>>(),
        [
            "PUT /v1/customers/initech done",
            "PATCH /v1/customers/initech done",
            "PATCH /v1/customers/initech refused",
            "POST /v1/reload done",
            "POST /v1/reload unauthorized",
            "POST /v1/keys/reset refused",
            "PUT /v1/customers/acme refused",
        ]
    );
    assert!(lines.iter().all(|line| line["peer"].as_str().unwrap().starts_with("127.0.0.1:")));
    assert!(lines.iter().all(|line| line["time"].as_str().unwrap().ends_with('Z')));
    assert_eq!((&lines[0]["before"], &lines[0]["after"]["plan"]), (&Value::Null, &json!("free")));
    assert_eq!((&lines[1]["before"]["plan"], &lines[1]["after"]["plan"]), (&json!("free"), &json!("pro")));
    assert!(lines[2]["reason"].as_str().unwrap().starts_with("plan: "));
    assert_untold(&gateway, &[&key]);
    // if the audit log cannot be written, nothing is changed
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&gateway, ("PATCH", "/initech", &json!({ "plan": "free" })), 503, "`admin.audit_log` cannot be written");
    assert_eq!(met(&gateway, &key), (200, Some(20_000)));
}

#[test]
fn the_audit_log_tells_which_key_was_corrected_and_how() {
    let origin = Origin::start();
    let by_header =
        "key: [customer, { header: x-api-key }], missing_key: skip, ban: { after: 1 denial in 1m, for: 1h }";
    let config = config(&origin, FILE).replace("key: customer", by_header);
    let gateway = started(&config, &[("customers.csv", CUSTOMERS)]);
    let text = fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write("tollgate.yaml", text.replacen("token_file:", "audit_log: audit.log, token_file:", 1));
    assert_eq!(gateway.reload().status, 200);
    let mut question = json!({ "limit": "guard", "tokens": 3,
        "request": { "url": "http://test/", "headers": { "x-api-key": "key-canary-1" } } });
    for (path, status) in [("/v1/keys/grant", 200), ("/v1/keys/reset", 200), ("/v1/keys/unban", 404)] {
        assert_eq!(crate::admin_api::post(&gateway, path, &[HOST, BEARER], &question).status, status, "{path}");
        question["tokens"] = Value::Null;
    }
    let audit = fs::read_to_string(gateway.folder.path().join("audit.log")).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |line: &Value| ["limit", "key", "tokens", "status"].map(|name| line[name].clone());
    let key = json!("customer=acme, header x-api-key=key... (12 bytes)");
    assert_eq!(told(&lines[0]), [json!("guard"), key.clone(), json!(3), json!(200)]);
    assert_eq!(told(&lines[1]), [json!("guard"), key, Value::Null, json!(200)]);
    assert_eq!(told(&lines[2]), [Value::Null, Value::Null, Value::Null, json!(404)], "nothing was changed");
    assert_untold(&gateway, &[]);
}

#[test]
fn a_key_that_ends_during_an_upgrade_is_not_good_afterwards() {
    let (origin, holds) = (Origin::start(), Arc::new(AtomicBool::new(false)));
    let held = Arc::clone(&holds);
    // an issuer for which the new process waits once it has read the file of customers
    let issuer = Origin::with(move |exchange: &mut Exchange<'_>| {
        wait_until("the answer to be wanted", || !held.load(Ordering::Relaxed));
        exchange.reply("503 Service Unavailable", "", b"")
    });
    let identify = format!(
        "{{ header: x-api-key }}, {{ jwt: {{ jwks: {{ url: \"http://{}/\" }}, plan: free }} }}",
        issuer.address
    );
    let config = config(&origin, FILE)
        .replace("{ header: x-api-key }", &identify)
        .replace("burst: 10000,", "burst: 10000, enabled_percent: 0,");
    let mut lineage = Lineage::of(started(&config, &[("customers.csv", CUSTOMERS)]));
    let key = key_of(&done(&lineage.gateway, "POST", "/acme/keys", &json!({})));
    let id = ids(&done(&lineage.gateway, "GET", "/acme", &Value::Null)).pop().unwrap();
    assert_eq!(met(&lineage.gateway, &key).0, 200);
    holds.store(true, Ordering::Relaxed);
    let warnings = |lineage: &Lineage| lineage.gateway.process.stderr().matches("applies to no key").count();
    let before = warnings(&lineage);
    signal(lineage.current, "USR2");
    wait_until("the new process to have read its files", || warnings(&lineage) > before);
    done(&lineage.gateway, "DELETE", &format!("/acme/keys/{id}"), &Value::Null);
    holds.store(false, Ordering::Relaxed);
    let old = lineage.current;
    wait_until("another process", || {
        assert_eq!(met(&lineage.gateway, &key).0, 401);
        lineage.current = lineage.serving().unwrap_or(old);
        lineage.current != old
    });
    assert_eq!(met(&lineage.gateway, &key).0, 401);
}
