//! A replay of the access log of a gateway that served real requests denies the same requests.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;

use crate::admin_api::{BEARER, HOST, post, started};
use crate::support::redis::Redis;
use crate::support::{Client, Gateway, Origin, together, wait_for};

/// Windows so long that the time between a request and its log line does not matter.
const RULES: &str = "access_log: full
customers:
  identify: [{ header: x-api-key }]
  directory: { file: customers.csv }
  anonymous: { plan: few }
plans: [few, many]
limits:
  daily: { key: customer, algorithm: quota_reset, window: 1d, plans: { few: { limit: 9 }, many: { limit: 25 } } }
  posts: { key: [customer, route], algorithm: gcra, rate: 1/d, burst: 12, cost: { by_method: { POST: 3 } } }
  failures:
    key: customer
    algorithm: sliding_log
    limit: 4
    window: 1d
    charge: { when: response, if_status: [404] }
routes:
  - { name: orders, match: { path: /orders/** }, upstream: origin, limits: [daily, posts] }
  - { name: all, upstream: origin, limits: [daily, failures] }
";

const CUSTOMERS: &str = "credential,customer,plan\nk-ann,ann,many\nk-bob,bob,many\nk-eve,eve,few\n";
const KEYS: [Option<&str>; 5] = [Some("k-ann"), Some("k-bob"), Some("k-eve"), None, Some("nobodys")];
const EACH: usize = 60;

#[test]
fn the_access_log_of_a_gateway_replayed_denies_what_the_gateway_denied() {
    let origin = Origin::with(|exchange| match exchange.head.word(1).contains("missing") {
        true => exchange.reply("404 Not Found", "", b"no"),
        false => exchange.reply("200 OK", "", b"yes"),
    });
    let config = format!("{}{RULES}", origin.upstream());
    let gateway = Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[]);
    // one connection for each customer, so that the requests of each have an order
    let statuses = together(KEYS.len(), |caller| {
        let mut client = Client::connect(gateway.address);
        let fields: Vec<_> = KEYS[caller].iter().map(|key| ("x-api-key", *key)).collect();
        let mut ask = |number: usize| {
            let place = ["orders", "missing", "other", "orders/x"][number * number % 7 % 4];
            let target = format!("/{place}/{caller}-{number}");
            match number % 3 {
                0 => client.post(&target, &fields, b"").status,
                _ => client.round_trip("GET", &target, &fields).status,
            }
        };
        (0..EACH).map(&mut ask).collect::<Vec<u16>>()
    });
    let lines = wait_for("all lines of the access log", || {
        let text = gateway.process.stdout();
        (text.lines().count() == KEYS.len() * EACH).then_some(text)
    });
    gateway.folder.write("access.log", &lines);
    let replayed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(gateway.folder.path())
        .args(["replay", "--config", "tollgate.yaml", "--decisions", "decisions.csv", "access.log"])
        .output()
        .unwrap();
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));

    let log: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut rows = csv::Reader::from_path(gateway.folder.path().join("decisions.csv")).unwrap();
    let rows: Vec<BTreeMap<String, String>> = rows.deserialize().map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), log.len());
    let mut denied = 0;
    for row in rows {
        let line = &log[row["line"].parse::<usize>().unwrap() - 1];
        let was_denied = line["answered"] == "limited";
        denied += usize::from(was_denied);
        assert_eq!(row["decision"] == "denied", was_denied, "{line}\n{row:?}");
        if was_denied {
            assert_eq!(line["limit"], row["limit"], "{line}");
        }
    }
    let answered: usize = statuses.iter().flatten().filter(|status| **status == 429).count();
    assert_eq!(denied, answered);
    assert!(denied > 100 && statuses.iter().take(4).all(|of_one| of_one.contains(&200)), "{statuses:?}");
}

/// The report of `tollgate replay` on the lines of this log.
fn replay(gateway: &Gateway, config: &str, log: &str) -> serde_json::Value {
    gateway.folder.write("access.log", log);
    let replayed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(gateway.folder.path())
        .args(["replay", "--config", config, "--format", "json", "access.log"])
        .output()
        .unwrap();
    serde_json::from_slice(&replayed.stdout).unwrap()
}

#[test]
fn questions_of_programs_that_fail_are_in_the_log_with_what_they_gave_back() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let config = format!(
        "{}store: {{ redis: \"{}\" }}
limits:
  daily: {{ algorithm: quota_reset, limit: 10, window: 1d, key: all }}
  calls: {{ algorithm: quota_reset, limit: 100, window: 1d, key: all, mode: shared }}
routes: [{{ name: all, upstream: origin, limits: [daily] }}]
access_log: full
",
        origin.upstream(),
        redis.url()
    );
    let gateway = started(&config, &[]);
    let charge = |charges: &[(&str, i64)]| {
        let charges: Vec<_> =
            charges.iter().map(|(limit, tokens)| json!({ "limit": limit, "tokens": tokens })).collect();
        post(&gateway, "/v1/charge", &[HOST, BEARER], &json!({ "charges": charges })).status
    };
    assert_eq!(charge(&[("daily", 10)]), 200);
    drop(redis);
    assert_eq!(charge(&[("daily", -1), ("calls", -1)]), 503);
    assert_eq!((charge(&[("dayly", 1)]), charge(&[])), (404, 400));
    assert_eq!([(); 2].map(|()| gateway.get("/", &[]).status), [200, 429], "one token was given back");
    gateway.wait_for_metric("tollgate_decisions_total", &[("serves", "charge"), ("result", "refused")], 3.0);
    let lines = wait_for("all lines of the access log", || {
        let text = gateway.process.stdout();
        (text.lines().count() == 6).then_some(text)
    });
    let rules = &replay(&gateway, "tollgate.yaml", &lines)["rules"];
    let fates = json!({ "admitted": 2, "bypassed": 1, "denied": 1 });
    assert_eq!((&rules["decisions"], &rules["refused"]), (&fates, &json!({ "unknown_charge": 2 })), "{lines}");
}

#[test]
fn charges_of_programs_are_replayed_between_requests() {
    const DAILY: &str = "limits:
  daily: { algorithm: quota_reset, limit: 10, window: 1d, key: customer }
  calls: { algorithm: quota_reset, limit: 100, window: 1d, key: all }
customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }
plans: [many]
routes: [{ name: all, upstream: origin, limits: [daily] }]
access_log: full
";
    let origin = Origin::start();
    let customers = [("customers.csv", "credential,customer,plan\nk-ann,ann,many\n")];
    let gateway = started(&format!("{}{DAILY}", origin.upstream()), &customers);
    let charge = |tokens: i64| {
        let daily = json!({ "limit": "daily", "key": { "customer": "ann" }, "tokens": tokens });
        let question = json!({ "charges": [daily, { "limit": "calls", "tokens": tokens.signum() }] });
        post(&gateway, "/v1/charge", &[HOST, BEARER], &question).json()["admitted"].as_bool().unwrap()
    };
    let mut client = Client::connect(gateway.address);
    let mut ask = || client.round_trip("GET", "/", &[("x-api-key", "k-ann")]).status == 200;
    // 6 and 3 of 10 are used, so 2 more are denied; 4 are refunded and used again
    let decided = [charge(6), ask(), ask(), ask(), charge(2), charge(0), charge(-4), charge(5), ask(), charge(0)];
    assert_eq!(decided, [true, true, true, true, false, true, true, true, false, false]);
    let lines = wait_for("all lines of the access log", || {
        let text = gateway.process.stdout();
        (text.lines().count() == decided.len()).then_some(text)
    });
    let replay = |config: &str, log: String| replay(&gateway, config, &log);
    let played = replay("tollgate.yaml", lines.clone());
    let fates = json!({ "admitted": 6, "bypassed": 1, "denied": 3 });
    assert_eq!((&played["rules"]["decisions"], &played["rules"]["refused"]), (&fates, &json!({})), "{lines}");
    // without the charges that programs made, no request is denied
    let requests: String =
        lines.lines().filter(|line| !line.contains("charges")).map(|line| format!("{line}\n")).collect();
    assert_eq!(replay("tollgate.yaml", requests)["rules"]["denied"], 0);
    let text = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write("other.yaml", text.replace("calls:", "others:"));
    assert_eq!(replay("other.yaml", lines)["rules"]["refused"]["unknown_charge"], 6);
}
