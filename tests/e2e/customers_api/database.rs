//! Changes of customers in a PostgreSQL database.

use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};

use super::{a_life, ask, assert_untold, config, done, key_of, met, refused, started};
use crate::support::postgres::Postgres;
use crate::support::{Gateway, Origin, wait_until};

/// The table of the PostgreSQL sample.
pub(super) const SCHEMA: &str = include_str!("../../../config/postgres.sql");
/// A part of the sample's `put` statement.
const OVERRIDES: &str = "overrides = EXCLUDED.overrides,";

/// The sample's directory with more settings.
fn of_database(options: &[&str]) -> String {
    let sample = include_str!("../../../config/postgres.yaml");
    let (_, rest) = sample.split_once("\n  directory:").unwrap();
    let (directory, _) = rest.split_once("\n\nplans:").unwrap();
    let options: String = options.iter().map(|option| format!("\n      {option}")).collect();
    format!("directory:{directory}{options}")
}

pub(super) fn on_database(origin: &Origin, database: &Postgres, options: &[&str]) -> Gateway {
    started(&config(origin, &of_database(options)), &[("postgres.url", &database.url())])
}

#[test]
fn a_customer_of_a_database_is_made_changed_suspended_and_deleted() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let gateway = on_database(&origin, &database, &["interval: 1h", "full_every: 1h"]);
    a_life(&gateway);
    let kept = fs::read_to_string(gateway.folder.path().join("customers.snapshot")).unwrap();
    assert!(!kept.contains("tg_"), "{kept}");
    assert_eq!(database.run_sql("SELECT count(*) FROM api_keys"), "0");
}

#[test]
fn a_key_of_a_database_expires_at_the_end_of_the_given_day() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let gateway = on_database(&origin, &database, &[]);
    done(&gateway, "PUT", "/acme", &json!({ "plan": "free", "time_zone": "Europe/Berlin" }));
    for end in ["2099-12-31", "2099-12-31T18:00:00.1234567Z"] {
        done(&gateway, "POST", "/acme/keys", &json!({ "valid_until": end }));
    }
    let ends = "SELECT valid_until AT TIME ZONE 'UTC' FROM api_keys WHERE valid_until IS NOT NULL ORDER BY 1";
    assert_eq!(database.run_sql(ends), "2099-12-31 18:00:00.123456\n2099-12-31 23:00:00");
}

#[test]
fn a_customer_with_spaces_around_its_name_in_the_database_is_changed() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    database.run_sql(
        "INSERT INTO api_keys (credential, customer, plan)
        VALUES ('sha256:' || encode(sha256('key-canary-1'), 'hex'), E' acme\t', 'free')",
    );
    let gateway = on_database(&origin, &database, &[]);
    assert_eq!(done(&gateway, "GET", "/acme", &Value::Null)["plan"], "free");
    done(&gateway, "PATCH", "/acme", &json!({ "plan": "pro" }));
    assert_eq!(met(&gateway, "key-canary-1"), (200, Some(20_000)));
}

#[test]
fn a_credential_that_is_replaced_in_the_database_ends_at_once() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    database.run_sql("INSERT INTO api_keys (credential, customer, plan) VALUES ('key-canary-1', 'acme', 'free')");
    let gateway = on_database(&origin, &database, &["interval: 1h", "full_every: 1h"]);
    wait_until("the connection that listens", || {
        database.run_sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'gate'") == "1"
    });
    database.run_sql("UPDATE api_keys SET credential = 'key-canary-2', updated_at = now()");
    wait_until("the new key", || met(&gateway, "key-canary-2").0 == 200);
    wait_until("the end of the old one", || met(&gateway, "key-canary-1").0 == 401);
}

#[test]
fn a_database_that_is_away_or_refuses_is_told_of_and_nothing_changes() {
    let (origin, mut database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let gateway = on_database(&origin, &database, &["interval: 200ms", "timeout: 2s"]);
    let key = key_of(&done(&gateway, "PUT", "/acme", &json!({ "plan": "free" })));
    // another client's transaction that commits in between
    std::thread::scope(|scope| {
        scope.spawn(|| {
            database.run_sql("UPDATE api_keys SET time_zone = 'UTC', updated_at = now(); SELECT pg_sleep(1)")
        });
        let running = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_until("the other transaction", || database.run_sql(running) == "1");
        refused(
            &gateway,
            ("PATCH", "/acme", &json!({ "plan": "pro" })),
            409,
            "another client is changing the same rows",
        );
    });
    // a statement that omits a column
    let text = fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    assert!(text.contains(OVERRIDES), "{text}");
    gateway.folder.write("tollgate.yaml", text.replace(OVERRIDES, ""));
    assert_eq!(gateway.reload().status, 200);
    let unlimited = json!({ "plan": "pro", "overrides": { "guard": "unlimited" } });
    refused(&gateway, ("PATCH", "/acme", &unlimited), 409, "does not return the requested rows");
    assert_eq!(database.run_sql("SELECT plan, overrides FROM api_keys"), "free|");
    database.run_sql("REVOKE UPDATE ON api_keys FROM gate");
    refused(&gateway, ("PATCH", "/acme", &json!({ "plan": "pro" })), 409, "permission denied");
    database.run_sql("ALTER TABLE api_keys ADD CHECK (plan = 'free'); GRANT UPDATE ON api_keys TO gate");
    refused(&gateway, ("PATCH", "/acme", &json!({ "plan": "pro" })), 409, "SQLSTATE 23514");
    database.kill();
    refused(&gateway, ("PATCH", "/acme", &json!({ "plan": "pro" })), 503, "cannot query the database");
    refused(&gateway, ("GET", "/acme", &Value::Null), 503, "cannot query the database");
    assert_eq!(met(&gateway, &key), (200, Some(10_000)));
    database.run();
    database.signal("STOP");
    refused(&gateway, ("PATCH", "/acme", &json!({ "suspended": true })), 503, "no answer within 2s");
    assert_eq!(met(&gateway, &key), (200, Some(10_000)));
    database.signal("CONT");
    wait_until("a change to go through", || {
        ask(&gateway, "PATCH", "/acme", &json!({ "suspended": true })).status == 200
    });
    assert_eq!(met(&gateway, &key).0, 403);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("{},127.0.0.1", silent.local_addr().unwrap());
    gateway.folder.write("postgres.url", database.url().replace("127.0.0.1", &both));
    let changed = ask(&gateway, "PATCH", "/acme", &json!({ "suspended": false }));
    assert!(matches!(changed.status, 200 | 202), "the second server takes it: {changed:?}");
    assert_untold(&gateway, &[&key, "pass-canary-1"]);
}

#[test]
fn a_key_is_told_although_nobody_knows_whether_it_is_in_force() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let gateway = on_database(&origin, &database, &["interval: 200ms", "timeout: 1s"]);
    // a commit waits for a standby that does not exist, so its result stays unknown
    database.run_sql("ALTER ROLE gate SET synchronous_commit = on");
    database.run_sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    database.run_sql("SELECT pg_reload_conf()");
    wait_until("the setting", || database.run_sql("SHOW synchronous_standby_names") == "nobody");
    let response = ask(&gateway, "PUT", "/acme", &json!({ "plan": "free" }));
    let answer = response.json();
    assert!(response.status == 503 && answer["error"].as_str().unwrap().contains("it is unknown whether"), "{answer}");
    let key = key_of(&answer);
    database.run_sql("ALTER SYSTEM RESET synchronous_standby_names");
    database.run_sql("SELECT pg_reload_conf()");
    wait_until("the key to be in force", || met(&gateway, &key) == (200, Some(10_000)));
    let log = gateway.process.stderr();
    assert!(log.contains("\"result\":\"unknown\""), "{log}");
    assert_untold(&gateway, &[&key, "pass-canary-1"]);
}

#[test]
fn a_change_that_the_query_does_not_show_in_time_is_told_of() {
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(SCHEMA);
    let directory = of_database(&["interval: 1h", "full_every: 1h", "timeout: 1s"]);
    let silent = directory.replace("updated_at = now()", "updated_at = '2020-01-01'");
    assert_ne!(silent, directory);
    let gateway = started(&config(&origin, &silent), &[("postgres.url", &database.url())]);
    done(&gateway, "PUT", "/acme", &json!({ "plan": "free" }));
    let late = ask(&gateway, "PATCH", "/acme", &json!({ "plan": "pro" }));
    assert_eq!((late.status, &late.json()["in_force"]), (202, &json!(false)), "{late:?}");
    assert_eq!(database.run_sql("SELECT plan FROM api_keys"), "pro");
}
