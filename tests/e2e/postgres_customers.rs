//! Customers in a PostgreSQL database: a real server that is changed, killed, stopped and replaced.

use std::os::unix::fs::PermissionsExt;

use crate::support::postgres::Postgres;
use crate::support::tls::Authority;
use crate::support::{Gateway, Origin, Process, Response, now, wait_until};

const QUERY: &str = "SELECT credential, customer, plan, overrides, valid_until, suspended, updated_at FROM api_keys";

const SCHEMA: &str = "CREATE TABLE api_keys (id serial, credential text PRIMARY KEY, customer text NOT NULL, plan text,
        overrides jsonb, valid_until timestamptz, suspended boolean NOT NULL DEFAULT false,
        updated_at timestamptz NOT NULL DEFAULT now());
    GRANT SELECT ON api_keys TO gate;
    INSERT INTO api_keys (credential, customer, plan) VALUES ('key-canary-1', 'acme', 'free'), ('key-canary-2', 'globex', 'pro');";

/// A database server with two customers.
fn database() -> Postgres {
    let database = Postgres::start("pass-canary-1");
    database.run_sql(SCHEMA);
    database
}

/// A configuration whose customers come from `query`; `options` are further settings.
fn config(origin: &Origin, query: &str, options: &str) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory:
    postgres: {{ url_file: url, query: {query:?}, snapshot_file: customers.snapshot{options} }}
plans: [free, pro]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 10000, plans: {{ pro: {{ burst: 20000 }} }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    )
}

fn gateway(origin: &Origin, url: &str, options: &str) -> Gateway {
    Gateway::start_with(&config(origin, QUERY, options), &[("url", url)], &[])
}

#[track_caller]
fn ask(gateway: &Gateway, key: &str) -> Response {
    gateway.get("/", &[("x-api-key", key)])
}

#[track_caller]
fn status(gateway: &Gateway, key: &str) -> u16 {
    ask(gateway, key).status
}

/// The quota for a key, which shows the plan.
#[track_caller]
fn quota(gateway: &Gateway, key: &str) -> Option<u64> {
    ask(gateway, key).number("x-ratelimit-limit")
}

fn attempts(gateway: &Gateway, result: &str) -> f64 {
    let labels = [("source", "postgres"), ("result", result)];
    gateway.metrics().value("tollgate_source_refreshes_total", &labels).unwrap_or_default()
}

/// Asserts that no output and no file of tollgate contains a password or a credential.
#[track_caller]
fn assert_no_canary(gateway: &Gateway) {
    let snapshot = std::fs::read_to_string(gateway.folder.path().join("customers.snapshot")).unwrap_or_default();
    let said = [gateway.process.stderr(), gateway.process.stdout(), snapshot];
    let shown = ["/metrics", "/status"].map(|target| gateway.admin_get(target).text());
    for text in said.iter().chain(&shown) {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn a_notification_has_a_changed_plan_in_force_at_once() {
    let (origin, database) = (Origin::start(), database());
    let gateway = gateway(&origin, &database.url(), ", channel: customers, interval: 1h, full_every: 1h");
    assert_eq!((quota(&gateway, "key-canary-1"), quota(&gateway, "key-canary-2")), (Some(10_000), Some(20_000)));
    assert_eq!(status(&gateway, "key-3"), 401);
    wait_until("the connection that stays", || {
        database.run_sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'gate'") == "1"
    });
    database.run_sql("UPDATE api_keys SET plan = 'pro', updated_at = now() WHERE customer = 'acme'; NOTIFY customers");
    // without the notification it would take an hour
    wait_until("the other plan", || quota(&gateway, "key-canary-1") == Some(20_000));
    // only a query of all rows notices deleted rows
    database.run_sql("DELETE FROM api_keys WHERE customer = 'globex'; NOTIFY customers, 'full'");
    wait_until("the row to be gone", || status(&gateway, "key-canary-2") == 401);
    gateway.wait_for_metric("tollgate_source_entries", &[("source", "postgres")], 1.0);
    assert_no_canary(&gateway);
}

#[test]
fn changes_are_found_within_an_interval_and_deletions_by_a_look_at_all_rows() {
    let (origin, database) = (Origin::start(), database());
    let gateway = gateway(&origin, &database.url(), ", interval: 200ms, full_every: 3s");
    database.run_sql("INSERT INTO api_keys (credential, customer, plan) VALUES ('key-canary-3', 'initech', 'pro')");
    wait_until("the new customer", || quota(&gateway, "key-canary-3") == Some(20_000));
    // every poll returns the changes of the last minute again; the snapshot records each only once
    let attempted = attempts(&gateway, "success");
    wait_until("more looks", || attempts(&gateway, "success") >= attempted + 2.0);
    let snapshot = std::fs::read_to_string(gateway.folder.path().join("customers.snapshot")).unwrap();
    assert_eq!(snapshot.matches("acme").count(), 1, "{snapshot}");
    database.run_sql("UPDATE api_keys SET suspended = true, updated_at = now() WHERE customer = 'acme'");
    wait_until("the suspension", || status(&gateway, "key-canary-1") == 403);
    database.run_sql(
        "UPDATE api_keys SET valid_until = now() - interval '1 day', updated_at = now() WHERE customer = 'globex'",
    );
    wait_until("the end", || status(&gateway, "key-canary-2") == 401);
    database.run_sql(
        "UPDATE api_keys SET overrides = '{\"guard\": \"unlimited\"}', updated_at = now() WHERE customer = 'initech'",
    );
    wait_until("the overrides", || quota(&gateway, "key-canary-3").is_none());
    // a time of change that no number stands for
    database.run_sql(
        "INSERT INTO api_keys (credential, customer, plan, updated_at) VALUES ('key-5', 'old', 'free', '-infinity')",
    );
    wait_until("the old row", || status(&gateway, "key-5") == 200);
    // a transaction that begins before others and commits after them
    database.run_sql("INSERT INTO api_keys (credential, customer, plan, updated_at) VALUES ('key-4', 'late', 'free', now() - interval '30 s')");
    wait_until("the late row", || status(&gateway, "key-4") == 200);
    database.run_sql("DELETE FROM api_keys WHERE customer = 'late'");
    wait_until("the row to be gone", || status(&gateway, "key-4") == 401);
}

#[test]
fn customers_stay_known_while_the_database_is_dead_and_change_when_it_is_back() {
    let (origin, mut database) = (Origin::start(), database());
    let gateway = gateway(&origin, &database.url(), ", interval: 200ms");
    database.kill();
    wait_until("a failure", || attempts(&gateway, "failure") > 0.0);
    for _ in 0..20 {
        assert_eq!((status(&gateway, "key-canary-1"), status(&gateway, "key-3")), (200, 401));
    }
    assert_eq!(gateway.admin_get("/readyz").status, 200);
    database.run();
    database.run_sql("UPDATE api_keys SET plan = 'pro' WHERE customer = 'acme'");
    // the row's timestamp has not changed, but the gateway reads all rows after it connects
    wait_until("the other plan", || quota(&gateway, "key-canary-1") == Some(20_000));
    assert_no_canary(&gateway);
}

#[test]
fn a_database_that_hangs_holds_nobody_up_and_another_takes_its_place() {
    let (origin, first) = (Origin::start(), database());
    let second = database();
    second.run_sql("UPDATE api_keys SET plan = 'pro'");
    let both = format!("postgres://gate:pass-canary-1@127.0.0.1:{},127.0.0.1:{}/postgres", first.port, second.port);
    let gateway = gateway(&origin, &both, ", interval: 200ms, timeout: 500ms");
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_000));
    let began = now();
    (0..20).for_each(|_| assert_eq!(status(&gateway, "key-canary-1"), 200));
    let usual = now() - began;
    first.signal("STOP");
    let began = now();
    for _ in 0..20 {
        assert_eq!((status(&gateway, "key-canary-1"), status(&gateway, "key-3")), (200, 401));
    }
    assert!(now() - began < usual * 40, "requests wait for nobody");
    wait_until("the second server", || quota(&gateway, "key-canary-1") == Some(20_000));
    assert_no_canary(&gateway);
}

#[test]
fn a_changed_password_is_taken_from_the_file() {
    let (origin, database) = (Origin::start(), database());
    let gateway = gateway(&origin, &database.url(), ", interval: 200ms");
    database.run_sql("ALTER ROLE gate PASSWORD 'pass-canary-2'");
    wait_until("the old password to be refused", || {
        database.run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gate'");
        gateway.process.stderr().contains("password authentication failed")
    });
    assert_eq!(status(&gateway, "key-canary-1"), 200);
    gateway.folder.write("url", database.url().replace("pass-canary-1", "pass-canary-2"));
    database.run_sql("UPDATE api_keys SET plan = 'pro', updated_at = now() WHERE customer = 'acme'");
    wait_until("the other plan", || quota(&gateway, "key-canary-1") == Some(20_000));
    assert_no_canary(&gateway);
}

#[test]
fn a_database_with_tls_is_believed_by_its_certificate() {
    let (origin, database, authority) = (Origin::start(), database(), Authority::new());
    database.secure(&authority.sign(&["127.0.0.1"]));
    // channel binding: both ends have to prove that they share the connection
    let url = format!("{}?sslmode=verify-full&channel_binding=require", database.url());
    let config = config(&origin, QUERY, ", interval: 200ms, tls: { ca: ca.pem }");
    let gateway = Gateway::start_with(&config, &[("url", &url), ("ca.pem", &authority.pem())], &[]);
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_000));
    let secured = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'gate'";
    wait_until("a connection with TLS", || database.run_sql(secured) == "t");
    gateway.folder.write("ca.pem", Authority::new().pem());
    assert_eq!(gateway.reload().status, 200);
    database.run_sql("UPDATE api_keys SET plan = 'pro', updated_at = now() WHERE customer = 'acme'");
    wait_until("a certificate that is not believed", || gateway.process.stderr().contains("invalid peer certificate"));
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_000));
    gateway.folder.write("ca.pem", authority.pem());
    assert_eq!(gateway.reload().status, 200);
    wait_until("the other plan", || quota(&gateway, "key-canary-1") == Some(20_000));
    assert_no_canary(&gateway);
}

#[test]
fn a_start_without_the_database_goes_on_with_the_snapshot() {
    let (origin, mut database) = (Origin::start(), database());
    let mut gateway = gateway(&origin, &database.url(), ", interval: 200ms, timeout: 500ms");
    let snapshot = gateway.folder.path().join("customers.snapshot");
    assert_eq!(std::fs::metadata(&snapshot).unwrap().permissions().mode() & 0o777, 0o600);
    // a change that was recorded after the last read of all rows: the gateway reconnects soon after its start
    wait_until("the connection that stays", || attempts(&gateway, "success") >= 2.0);
    database.run_sql("UPDATE api_keys SET suspended = true, updated_at = now() WHERE customer = 'globex'");
    wait_until("the suspension", || status(&gateway, "key-canary-2") == 403);
    wait_until("it to be written down", || std::fs::read_to_string(&snapshot).unwrap().lines().count() > 3);
    database.kill();
    gateway.end("KILL");
    // a row that was only partly written when the machine stopped
    let whole = std::fs::read_to_string(&snapshot).unwrap();
    std::fs::write(&snapshot, whole + "sha256:0123").unwrap();
    gateway.start_again();
    assert_eq!([1, 2, 3].map(|key| status(&gateway, &format!("key-canary-{key}"))), [200, 403, 401]);
    // a changed configuration uses the same rows
    gateway
        .rewrite(&config(&origin, QUERY, ", interval: 200ms, timeout: 500ms").replace("burst: 10000", "burst: 10001"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_001));
    // and a configuration that does not fit the rows is refused
    let unknown = config(&origin, QUERY, ", interval: 200ms").replace("free", "gratis");
    gateway.rewrite(&unknown);
    let refused = gateway.reload();
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("more rows that are wrong"), "{refused:?}");
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_001));
    assert_no_canary(&gateway);
    // the snapshot is a directory file, too
    database.run();
    wait_until("the database", || attempts(&gateway, "success") > 0.0);
}

#[test]
fn a_first_start_without_the_database_is_not_ready_until_it_is_there() {
    let (origin, mut database) = (Origin::start(), database());
    let running = gateway(&origin, &database.url(), ", interval: 200ms, timeout: 500ms");
    let folder = &running.folder;
    database.kill();
    std::fs::remove_file(folder.path().join("customers.snapshot")).unwrap();
    let mut checked = Process::tollgate(&["check", "tollgate.yaml"], folder.path(), &[]);
    assert!(checked.wait().success());
    let said = checked.stdout() + &checked.stderr();
    assert!(said.contains("no snapshot of customers yet") && !said.contains("canary"), "{said}");
    let mut running = running;
    running.end("TERM");
    running.process = Process::tollgate(&["run", "--config", "tollgate.yaml"], running.folder.path(), &[]);
    wait_until("the admin port", || std::net::TcpStream::connect(running.admin).is_ok());
    wait_until("it to say what it waits for", || running.admin_get("/readyz").text().contains("waiting for customers"));
    let response = ask(&running, "key-canary-1");
    assert_eq!((response.status, response.number("retry-after")), (503, Some(1)), "{response:?}");
    // one reload waits for a database that never answers, later ones do not
    database.run();
    database.signal("STOP");
    let took = |query: &str, burst: &str| {
        let config = config(&origin, query, ", interval: 200ms, timeout: 60s").replace("burst: 10000", burst);
        running.rewrite(&config);
        let report = running.reload().json();
        assert_eq!(report["result"], "applied", "{report}");
        report["duration_seconds"].as_f64().unwrap()
    };
    let query = format!("{QUERY} WHERE true");
    let (waited, later) = (took(&query, "burst: 10000"), took(&query, "burst: 10001"));
    assert!(later < waited / 2.0, "{later} s after {waited} s");
    database.signal("CONT");
    wait_until("it to be ready", || running.admin_get("/readyz").status == 200);
    assert_eq!(status(&running, "key-canary-1"), 200);
    assert_no_canary(&running);
}

#[test]
fn a_reload_that_the_database_prevents_is_tried_again() {
    let (origin, mut database) = (Origin::start(), database());
    let without = format!("{}routes: [{{ name: all, upstream: origin }}]\n", origin.upstream());
    let gateway = Gateway::start_with(&without, &[("url", &database.url())], &[]);
    database.kill();
    gateway.rewrite(&config(&origin, QUERY, ", timeout: 500ms"));
    wait_until("a refusal", || {
        let attempt = gateway.admin_get("/status").json()["reload"]["last_attempt"].clone();
        attempt["result"] == "refused" && attempt["errors"].to_string().contains("tollgate tries again")
    });
    database.run();
    wait_until("the customers", || quota(&gateway, "key-canary-1") == Some(10_000));
    assert_eq!(gateway.admin_get("/status").json()["reload"]["last_attempt"]["trigger"], "retry");
}

/// Measures a million customers in the database and in a file. `cargo nextest run --release --test e2e million_rows
/// --run-ignored only --no-capture` prints the figures.
#[test]
#[ignore = "measures, for minutes"]
#[expect(clippy::print_stderr, reason = "figures of the measurement")]
fn a_million_rows_beside_a_file() {
    const ROWS: &str = "SELECT 'sk_live_' || md5(n::text) AS credential, 'customer-' || n AS customer,
        CASE WHEN n % 10 = 0 THEN 'pro' ELSE 'free' END AS plan, now() - n * interval '1 second' AS updated_at
        FROM generate_series(1, 1000000) AS n";
    let (origin, database) = (Origin::start(), Postgres::start("pass-canary-1"));
    database.run_sql(&format!(
        "CREATE TABLE rows AS {ROWS};
        CREATE UNIQUE INDEX ON rows (credential); CREATE INDEX ON rows (updated_at); GRANT SELECT ON rows TO gate"
    ));
    let csv = database.run_sql("COPY (SELECT credential, customer, plan FROM rows) TO STDOUT (FORMAT csv, HEADER)");
    let of_database = config(&origin, "SELECT * FROM rows", ", channel: c, interval: 1h, full_every: 1h");
    let (callers, rest) = of_database.split_once("    postgres:").unwrap();
    let (_, rules) = rest.split_once("plans:").unwrap();
    let of_file = format!("{callers}    file: customers.csv\nplans:{rules}");
    let known = |gateway: &Gateway| gateway.admin_get("/status").json()["credentials"] == 1_000_000;
    let measured = |mut gateway: Gateway, name: &str| {
        gateway.end("TERM");
        let began = now();
        gateway.start_again();
        wait_until("all rows", || known(&gateway));
        let (took, memory, most) = (now() - began, gateway.process.memory() >> 20, gateway.process.peak_memory() >> 20);
        eprintln!("{name}: {took:.2?} until all are known, {memory} MiB resident, {most} MiB at most");
        gateway
    };
    drop(measured(Gateway::start_with(&of_file, &[("customers.csv", &csv)], &[]), "file"));
    let first = Gateway::start_with(&of_database, &[("url", &database.url())], &[]);
    wait_until("all rows", || known(&first));
    let gateway = measured(first, "snapshot");
    wait_until("the database", || attempts(&gateway, "success") > 0.0);
    let key = database.run_sql("SELECT credential FROM rows WHERE customer = 'customer-1'");
    database.run_sql("UPDATE rows SET plan = 'pro', updated_at = now() WHERE customer = 'customer-1'; NOTIFY c");
    let began = now();
    wait_until("the other plan", || quota(&gateway, &key) == Some(20_000));
    let (took, memory, most) = (now() - began, gateway.process.memory() >> 20, gateway.process.peak_memory() >> 20);
    eprintln!("a changed row is in force after {took:.2?}; {memory} MiB resident, {most} MiB at most");
}

#[test]
fn rows_that_are_wrong_are_left_out_and_named() {
    let (origin, database) = (Origin::start(), database());
    let gateway = gateway(&origin, &database.url(), ", interval: 200ms, full_every: 1s");
    database.run_sql(
        "UPDATE api_keys SET plan = 'canary1234567890', updated_at = now() WHERE customer = 'acme';
        INSERT INTO api_keys (credential, customer, plan) VALUES ('sha256:key-canary', 'badhash', 'free'),
            ('key-canary-5', 'split', 'free'), ('key-canary-6', 'split', 'pro'), ('key-7', 'initech', 'pro')",
    );
    wait_until("the row that is right", || status(&gateway, "key-7") == 200);
    // a credential with a wrong row keeps its old data, and no unknown credential is admitted
    assert_eq!(quota(&gateway, "key-canary-1"), Some(10_000));
    assert_eq!((status(&gateway, "key-canary-5"), status(&gateway, "key-canary-6")), (401, 401));
    gateway.wait_for_metric("tollgate_directory_refused_rows", &[], 4.0);
    let log = gateway.process.stderr();
    for named in ["\"acme\"", "\"badhash\"", "\"split\"", "another plan in another row"] {
        assert!(log.contains(named), "{named}: {log}");
    }
    database.run_sql("DELETE FROM api_keys WHERE customer IN ('split', 'badhash'); UPDATE api_keys SET plan = 'pro' WHERE customer = 'acme'");
    gateway.wait_for_metric("tollgate_directory_refused_rows", &[], 0.0);
    assert_eq!(quota(&gateway, "key-canary-1"), Some(20_000));
    // a query with other columns changes nothing
    database.run_sql("ALTER TABLE api_keys RENAME COLUMN plan TO tariff");
    wait_until("the fault", || gateway.process.stderr().contains("column \\\"plan\\\" does not exist"));
    assert_eq!(quota(&gateway, "key-canary-1"), Some(20_000));
    assert_no_canary(&gateway);
}

#[test]
fn a_credential_of_two_customers_stays_refused_after_a_reload_and_a_restart() {
    let (origin, mut database) = (Origin::start(), database());
    database.run_sql(
        "ALTER TABLE api_keys DROP CONSTRAINT api_keys_pkey;
        INSERT INTO api_keys (credential, customer, plan) VALUES ('key-canary-1', 'globex', 'pro')",
    );
    let options = ", interval: 200ms, timeout: 500ms";
    let mut gateway = gateway(&origin, &database.url(), options);
    wait_until("the connection that stays", || attempts(&gateway, "success") >= 2.0);
    database.run_sql(
        "INSERT INTO api_keys (credential, customer, plan) VALUES ('key-3', 'split', 'free'), ('key-3', 'globex', 'pro')",
    );
    gateway.wait_for_metric("tollgate_directory_refused_rows", &[], 2.0);
    let statuses = |gateway: &Gateway| ["key-canary-1", "key-canary-2", "key-3"].map(|key| status(gateway, key));
    assert_eq!(statuses(&gateway), [401, 200, 401]);
    // from here on all rows come from the snapshot
    database.kill();
    gateway.rewrite(&config(&origin, QUERY, options).replace("burst: 10000", "burst: 10001"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(statuses(&gateway), [401, 200, 401]);
    gateway.end("TERM");
    gateway.start_again();
    assert_eq!(statuses(&gateway), [401, 200, 401]);
    assert_no_canary(&gateway);
}

#[test]
fn a_customer_that_is_changed_in_part_stays_as_it_was_until_its_rows_agree() {
    let (origin, database) = (Origin::start(), database());
    database.run_sql("INSERT INTO api_keys (credential, customer, plan) VALUES ('key-canary-5', 'acme', 'free')");
    let gateway = gateway(&origin, &database.url(), ", interval: 200ms, full_every: 1h");
    let quotas = || ["key-canary-1", "key-canary-5"].map(|key| quota(&gateway, key));
    let set_plan = |plan: &str, key: &str| {
        database
            .run_sql(&format!("UPDATE api_keys SET plan = '{plan}', updated_at = now() WHERE credential = '{key}'"));
    };
    wait_until("the connection that stays", || attempts(&gateway, "success") >= 2.0);
    set_plan("pro", "key-canary-1");
    gateway.wait_for_metric("tollgate_directory_refused_rows", &[], 2.0);
    assert_eq!(quotas(), [Some(10_000); 2]);
    set_plan("pro", "key-canary-5");
    wait_until("the other plan", || quotas() == [Some(20_000); 2]);
    gateway.wait_for_metric("tollgate_directory_refused_rows", &[], 0.0);
    assert_no_canary(&gateway);
}

#[test]
fn groups_that_rows_name_cannot_go_from_the_file_of_groups() {
    let (origin, database) = (Origin::start(), database());
    database.run_sql("ALTER TABLE api_keys ADD team text; UPDATE api_keys SET team = 'search' WHERE customer = 'acme'");
    let config = config(&origin, &QUERY.replace("updated_at", "team, updated_at"), "");
    let config = config.replace("plans: [free", "  groups: { levels: [team], file: groups.csv }\nplans: [free");
    let url = database.url();
    let files = [("url", url.as_str()), ("groups.csv", "level,group\nteam,search\nteam,other\n")];
    let gateway = Gateway::start_with(&config, &files, &[]);
    assert_eq!(status(&gateway, "key-canary-1"), 200);
    gateway.folder.write("groups.csv", "level,group\nteam,other\n");
    let refused = gateway.reload();
    assert!(refused.status == 422 && refused.text().contains("more rows that are wrong"), "{refused:?}");
    assert_eq!(status(&gateway, "key-canary-1"), 200);
    gateway.folder.write("groups.csv", "level,group,suspended\nteam,search,true\n");
    assert_eq!(gateway.reload().status, 200);
    assert_eq!((status(&gateway, "key-canary-1"), status(&gateway, "key-canary-2")), (403, 200));
    assert_no_canary(&gateway);
}

#[test]
fn a_reload_brings_no_snapshot_back_that_lacks_changes() {
    let (origin, mut database) = (Origin::start(), database());
    let options = ", interval: 200ms, full_every: 1s, timeout: 500ms";
    let gateway = gateway(&origin, &database.url(), options);
    // the new snapshot is written beside the old one
    std::fs::create_dir(gateway.folder.path().join("customers.snapshot.new")).unwrap();
    wait_until("a failure", || gateway.process.stderr().contains("cannot write the snapshot of customers"));
    database.run_sql("UPDATE api_keys SET suspended = true, updated_at = now() WHERE customer = 'acme'");
    wait_until("the suspension", || status(&gateway, "key-canary-1") == 403);
    database.kill();
    gateway.rewrite(&config(&origin, QUERY, options).replace("burst: 10000", "burst: 10001"));
    let refused = gateway.reload();
    assert!(refused.status == 422 && refused.text().contains("tollgate tries again"), "{refused:?}");
    assert_eq!(status(&gateway, "key-canary-1"), 403);
    database.run();
    wait_until("the changed configuration", || gateway.reload().status == 200);
    assert_eq!(status(&gateway, "key-canary-1"), 403);
    assert_no_canary(&gateway);
}

#[test]
fn a_reload_that_is_refused_leaves_no_customers_behind_for_later_ones() {
    let (origin, mut database) = (Origin::start(), database());
    let config = config(&origin, QUERY, ", interval: 200ms, timeout: 500ms");
    let gateway = Gateway::start_with(&config, &[("url", &database.url())], &[]);
    database.kill();
    gateway.rewrite(&config.replace("customers.snapshot", "other.snapshot"));
    let refused = gateway.reload();
    assert!(refused.status == 422 && refused.text().contains("tollgate tries again"), "{refused:?}");
    gateway.rewrite(&config);
    assert_eq!(gateway.reload().status, 200);
    database.run();
    database.run_sql(
        "INSERT INTO api_keys (credential, customer, plan) VALUES ('key-3', 'initech', 'free');
        UPDATE api_keys SET plan = 'pro', updated_at = now() WHERE customer = 'acme'",
    );
    wait_until("the new customer", || status(&gateway, "key-3") == 200);
    database.kill();
    gateway.rewrite(&format!("{config}access_log: full\n"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!((status(&gateway, "key-3"), quota(&gateway, "key-canary-1")), (200, Some(20_000)));
    assert_no_canary(&gateway);
}
