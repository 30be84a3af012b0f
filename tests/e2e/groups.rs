//! Groups of customers: the members that share a limit, and changes of groups while requests run.

use ring::digest;
use serde_json::{Value, json};

use crate::support::redis::Redis;
use crate::support::tokens::{Issuer, key_set, seconds_from_now};
use crate::support::{Client, Gateway, Origin, wait_until};

fn config(origin: &Origin) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}, {{ jwt: {{ jwks_file: keys.jwks, plan: free, group_claims: {{ organisation: org.id, team: team }} }} }}]
  directory: {{ file: customers.csv }}
  groups: {{ levels: [organisation, team], file: groups.yaml }}
plans: [free, pro]
limits:
  organisation:
    key: {{ group: organisation }}
    missing_key: skip
    algorithm: fixed_window
    window: 1d
    limit: 5
    plans: {{ pro: {{ limit: 8 }} }}
  customer: {{ key: customer, algorithm: fixed_window, window: 1d, limit: 100 }}
routes: [{{ name: all, upstream: origin, limits: [organisation, customer] }}]
usage: {{}}
",
        origin.upstream()
    )
}

const GROUPS: &str = "\
- { level: organisation, group: acme }
- { level: organisation, group: globex, plan: pro, overrides: { organisation: { limit: 3 } } }
- { level: team, group: search, groups: { organisation: acme } }
";
const CUSTOMERS: &str =
    "credential,customer,plan,organisation,team\nk1,one,free,,search\nk2,two,free,acme,\nk3,three,pro,,\n";

fn started(origin: &Origin) -> Gateway {
    let keys = key_set(&[Issuer::ed25519()]);
    let files = [("keys.jwks", keys.as_str()), ("customers.csv", CUSTOMERS), ("groups.yaml", GROUPS)];
    Gateway::start_with(&config(origin), &files, &[])
}

fn statuses(gateway: &Gateway, count: usize, field: (&str, &str)) -> Vec<u16> {
    (0..count).map(|_| gateway.get("/", &[field]).status).collect()
}

fn bearer(claims: &Value) -> String {
    let mut claims = claims.clone();
    claims["exp"] = json!(seconds_from_now(600));
    format!("Bearer {}", Issuer::ed25519().sign(&claims))
}

/// The remaining quota of a limit for the customer with this key.
fn left(gateway: &Gateway, key: &str, limit: &str) -> Option<u64> {
    let usage = gateway.get("/.tollgate/usage", &[("x-api-key", key)]).json();
    let line = usage["limits"].as_array()?.iter().find(|line| line["limit"] == limit)?.clone();
    line["remaining"].as_u64()
}

#[test]
fn members_of_a_group_are_charged_together_by_key_and_by_token() {
    let origin = Origin::start();
    let gateway = started(&origin);
    assert_eq!(statuses(&gateway, 2, ("x-api-key", "k1")), [200, 200]);
    assert_eq!(statuses(&gateway, 2, ("x-api-key", "k2")), [200, 200]);
    let token = bearer(&json!({ "sub": "four", "team": "search" }));
    assert_eq!(statuses(&gateway, 2, ("authorization", &token)), [200, 429], "a team belongs to its organisation");
    assert_eq!(statuses(&gateway, 1, ("x-api-key", "k2")), [429]);
    assert_eq!(left(&gateway, "k2", "customer"), Some(98), "what the organisation denies costs the customer nothing");
    assert_eq!(statuses(&gateway, 9, ("x-api-key", "k3")), [200; 9], "who has no organisation is under no such limit");
    let token = bearer(&json!({ "sub": "five", "org": { "id": "unlisted" } }));
    assert_eq!(statuses(&gateway, 6, ("authorization", &token)), [200, 200, 200, 200, 200, 429]);
    let token = bearer(&json!({ "sub": "six", "org": { "id": "globex" }, "team": null }));
    assert_eq!(statuses(&gateway, 4, ("authorization", &token)), [200, 200, 200, 429], "an override wins over a plan");
    let token = bearer(&json!({ "sub": "seven", "org": { "id": "globex" }, "team": "search" }));
    assert_eq!(statuses(&gateway, 1, ("authorization", &token)), [401], "the team is acme's");
    for unfit in [json!(["globex"]), json!(["globex", "acme"]), json!({ "globex": {} })] {
        let token = bearer(&json!({ "sub": "eight", "org": { "id": unfit } }));
        assert_eq!(statuses(&gateway, 1, ("authorization", &token)), [401], "a claim of a group is a text");
    }
    let labels: Vec<String> =
        gateway.metrics().all("tollgate_limit_tokens_total").iter().map(|line| format!("{line:?}")).collect();
    assert!(
        !labels.is_empty() && !labels.iter().any(|line| line.contains("acme") || line.contains("globex")),
        "{labels:?}"
    );
}

#[test]
fn a_changed_group_is_taken_up_while_requests_run() {
    let origin = Origin::start();
    let gateway = started(&origin);
    assert_eq!(statuses(&gateway, 6, ("x-api-key", "k1")), [200, 200, 200, 200, 200, 429]);
    gateway.folder.write(
        "groups.yaml",
        GROUPS.replace("acme }\n- { level: organisation", "acme, plan: pro }\n- { level: organisation"),
    );
    wait_until("the plan of the group", || left(&gateway, "k1", "organisation") == Some(3));
    gateway.folder.write("customers.csv", CUSTOMERS.replace("one,free,,search", "one,free,globex,"));
    wait_until("the other group", || {
        let usage = gateway.get("/.tollgate/usage", &[("x-api-key", "k1")]).json();
        usage["groups"] == json!({ "organisation": "globex" })
    });
    assert_eq!(statuses(&gateway, 4, ("x-api-key", "k1")), [200, 200, 200, 429], "the override of globex");
    assert_eq!(left(&gateway, "k2", "organisation"), Some(3), "acme is not charged any more");
    let token = bearer(&json!({ "sub": "six", "org": { "id": "acme" } }));
    assert_eq!(statuses(&gateway, 1, ("authorization", &token)), [200]);
    gateway.folder.write("groups.yaml", GROUPS.replace("group: acme }", "group: acme, suspended: true }"));
    wait_until("the suspension", || gateway.get("/", &[("x-api-key", "k2")]).status == 403);
    wait_until("that of its members with a token", || gateway.get("/", &[("authorization", &token)]).status == 403);
}

#[test]
fn a_row_that_names_groups_overrides_the_groups_of_a_token() {
    let origin = Origin::start();
    let gateway = started(&origin);
    gateway.folder.write("groups.yaml", GROUPS.replace("group: globex,", "group: globex, suspended: true,"));
    assert_eq!(gateway.reload().status, 200);
    let status = |customer: &str| {
        let token = bearer(&json!({ "sub": customer, "org": { "id": "globex" } }));
        gateway.get("/", &[("authorization", &token)]).status
    };
    assert_eq!(["one", "three", "four"].map(status), [200, 403, 403], "only the row of one names groups");
}

#[test]
fn a_group_that_is_gone_is_refused_as_long_as_customers_name_it() {
    let origin = Origin::start();
    let gateway = started(&origin);
    gateway.folder.write("groups.yaml", "- { level: organisation, group: globex }\n");
    wait_until("the refusal", || {
        let attempt = gateway.admin_get("/status").json()["reload"]["last_attempt"].clone();
        let errors = attempt["errors"].as_array().cloned().unwrap_or_default();
        let says = |text: &str| errors.iter().any(|error| error.as_str().is_some_and(|error| error.starts_with(text)));
        says("customers.csv:2:1: the team \"search\" is not in the file of groups")
            && says("customers.csv:3:1: the organisation \"acme\" is not in the file of groups")
    });
    assert_eq!(statuses(&gateway, 6, ("x-api-key", "k1")), [200, 200, 200, 200, 200, 429], "the former groups go on");
}

#[test]
fn operators_ask_about_a_group_by_its_name() {
    let origin = Origin::start();
    let gateway = started(&origin);
    assert_eq!(statuses(&gateway, 2, ("x-api-key", "k1")), [200, 200]);
    let asked = |path: &str, question: Value| {
        Client::connect(gateway.admin)
            .post(path, &[("host", "localhost"), ("connection", "close")], question.to_string().as_bytes())
            .json()
    };
    let peek = |key: Value| asked("/v1/keys/peek", json!({ "limit": "organisation", "key": key }));
    let unplanned = peek(json!({ "group:organisation": "acme" }));
    assert!(unplanned["error"].as_str().is_some_and(|error| error.contains("which plan's parameters")), "{unplanned}");
    let acme = asked(
        "/v1/keys/peek",
        json!({ "limit": "organisation", "key": { "group organisation": "acme" }, "plan": "free" }),
    );
    assert_eq!(acme["standing"]["remaining"], 3, "{acme}");
    let globex = peek(json!({ "group organisation": "globex" }));
    assert_eq!((&globex["quota"], &globex["plan"]), (&json!(3), &json!("pro")), "{globex}");
    let told = asked("/explain", json!({ "method": "GET", "url": "http://a/", "headers": { "x-api-key": "k1" } }));
    let groups = &told["caller"]["groups"];
    assert_eq!(
        (&groups[0]["group"], &groups[1]["group"], &groups[2]),
        (&json!("acme"), &json!("search"), &Value::Null),
        "{told}"
    );
    assert_eq!(told["limits"][0]["key"], json!([{ "part": "group organisation", "value": "acme" }]));
}

#[test]
fn a_key_of_a_group_has_the_plan_of_the_group_also_by_a_request() {
    let origin = Origin::start();
    let gateway = started(&origin);
    gateway.folder.write("customers.csv", format!("{CUSTOMERS}k4,four,free,globex,\n"));
    wait_until("the customer", || statuses(&gateway, 1, ("x-api-key", "k4")) == [200]);
    let request = json!({ "method": "GET", "url": "http://a/", "headers": { "x-api-key": "k4" } });
    for name in [json!({ "key": { "group organisation": "globex" } }), json!({ "request": request })] {
        let mut question = name.clone();
        question["limit"] = json!("organisation");
        let peeked = Client::connect(gateway.admin)
            .post("/v1/keys/peek", &[("host", "localhost"), ("connection", "close")], question.to_string().as_bytes())
            .json();
        assert_eq!((&peeked["plan"], &peeked["quota"]), (&json!("pro"), &json!(3)), "by {name}: {peeked}");
    }
}

#[test]
fn a_customer_is_suspended_if_the_groups_of_all_its_keys_are() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let groups =
        GROUPS.replace("plan: pro,", "plan: pro, suspended: true,") + "- { level: organisation, group: initech }\n";
    gateway.folder.write("groups.yaml", groups);
    let more = "k4,four,free,globex,\nk5,four,free,initech,\nk6,six,free,globex,\n";
    gateway.folder.write("customers.csv", CUSTOMERS.to_owned() + more);
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(["k4", "k5", "k6"].map(|key| gateway.get("/", &[("x-api-key", key)]).status), [403, 200, 403]);
    let refused = |limit: &str, key: Value| {
        let question = json!({ "limit": limit, "key": key }).to_string();
        let fields = [("host", "localhost"), ("connection", "close")];
        Client::connect(gateway.admin).post("/v1/keys/peek", &fields, question.as_bytes()).json()["refused"].take()
    };
    assert_eq!(
        ["four", "six"].map(|name| refused("customer", json!({ "customer": name }))),
        [Value::Null, json!("suspended")]
    );
    assert_eq!(refused("organisation", json!({ "group organisation": "globex" })), "suspended");
}

#[test]
fn a_customer_without_a_group_sees_the_bucket_that_it_shares() {
    let origin = Origin::start();
    let config = config(&origin).replace("    missing_key: skip\n", "");
    let keys = key_set(&[Issuer::ed25519()]);
    let files = [("keys.jwks", keys.as_str()), ("customers.csv", CUSTOMERS), ("groups.yaml", GROUPS)];
    let gateway = Gateway::start_with(&config, &files, &[]);
    assert_eq!(left(&gateway, "k3", "organisation"), Some(8));
    assert_eq!(statuses(&gateway, 9, ("x-api-key", "k3")), [200, 200, 200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(left(&gateway, "k3", "organisation"), Some(0), "of the common bucket of those without an organisation");
}

#[test]
fn customers_in_redis_belong_to_groups_too() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let put = |key: &str, value: &str| {
        let field = format!("sha256:{}", key_hash(key));
        redis.command(&["HSET", "customers", &field, value]);
    };
    put("k1", r#"{"customer": "one", "plan": null, "groups": {"team": "search", "organisation": null}}"#);
    put("k2", r#"{"customer": "two", "plan": "free", "groups": {"organisation": "acme"}}"#);
    put("k3", r#"{"customer": "three", "plan": "free", "groups": {"squad": "search"}}"#);
    put("k4", r#"{"customer": "four", "plan": "free", "overrides": null, "valid_until": null, "groups": null}"#);
    let config = config(&origin).replace("file: customers.csv", "redis: customers, ttl: 1s");
    let config = format!("{config}store: {{ redis: \"{}\" }}\n", redis.url());
    let keys = key_set(&[Issuer::ed25519()]);
    let groups = GROUPS.replace("group: acme }", "group: acme, plan: free }");
    let gateway = Gateway::start_with(&config, &[("keys.jwks", &keys), ("groups.yaml", &groups)], &[]);
    assert_eq!(statuses(&gateway, 3, ("x-api-key", "k1")), [200; 3]);
    assert_eq!(statuses(&gateway, 3, ("x-api-key", "k2")), [200, 200, 429]);
    assert_eq!(statuses(&gateway, 1, ("x-api-key", "k3")), [503], "there is no such level");
    assert_eq!(statuses(&gateway, 6, ("x-api-key", "k4")), [200; 6], "null stands for nothing");
    gateway.folder.write("groups.yaml", groups.replace("plan: free", "plan: pro"));
    wait_until("the plan of the group", || left(&gateway, "k1", "organisation") == Some(3));
    // a change of groups needs no Redis
    drop(redis);
    gateway.folder.write("groups.yaml", groups.replace("plan: free", "plan: free, suspended: true"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(statuses(&gateway, 1, ("x-api-key", "k1")), [403]);
    assert_eq!(statuses(&gateway, 1, ("x-api-key", "k2")), [403]);
}

fn key_hash(key: &str) -> String {
    digest::digest(&digest::SHA256, key.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
