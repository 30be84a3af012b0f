//! The section `store`: TLS, the settings that a reload may change, and those that it may not.

use crate::support::redis::{Redis, RedisTls};
use crate::support::tls::Authority;
use crate::support::{Folder, Gateway, Origin, wait_until};

/// The SHA-256 of `key-1` and of `key-2`.
const FIELDS: [&str; 2] = [
    "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",
    "sha256:7c36b0a9dedde119c75165957c6c9c187e65df1ee5db87c4c58ad503ad88cbe3",
];

fn config(origin: &Origin, store: &str) -> String {
    format!(
        "{}store: {store}
customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ redis: \"tollgate:customers\", ttl: 1ms, negative_ttl: 1ms }}
plans: [free]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 1000 }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    )
}

fn put(redis: &Redis, number: usize) {
    redis.command(&["HSET", "tollgate:customers", FIELDS[number - 1], r#"{"customer": "acme", "plan": "free"}"#]);
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.get("/", &[("x-api-key", key)]).status
}

#[test]
fn redis_is_spoken_to_over_tls_and_shown_a_certificate_that_may_be_replaced() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let (authority, stranger) = (Authority::new(), Authority::new());
    let redis = Redis::start_with_tls(&RedisTls::of(&authority, &folder));
    put(&redis, 1);
    put(&redis, 2);
    let store = format!("{{ redis: \"{}\", tls: {{ ca: ca.pem, cert: client.pem, key: client.key }} }}", redis.url());
    let (wrong, ca) = (stranger.sign(&["tollgate"]), authority.pem());
    let files = [("ca.pem", &*ca), ("client.pem", &wrong.certificate), ("client.key", &wrong.key)];
    let gateway = Gateway::start_with(&config(&origin, &store), &files, &[]);
    assert_eq!(status(&gateway, "key-1"), 503, "Redis does not know who signed the certificate");

    let right = authority.sign(&["tollgate"]);
    gateway.folder.write("client.pem", &right.certificate);
    gateway.folder.write("client.key", &right.key);
    wait_until("the other certificate to be shown", || status(&gateway, "key-1") == 200);
    assert_eq!(gateway.reload().status, 200);
}

#[test]
fn a_password_that_is_replaced_is_taken_up_without_a_restart() {
    let (origin, redis) = (Origin::start(), Redis::start_with_password("open-sesame"));
    put(&redis, 1);
    put(&redis, 2);
    let store = format!("{{ redis: \"{}\", password_file: redis.password }}", redis.url());
    let gateway = Gateway::start_with(&config(&origin, &store), &[("redis.password", "open-sesame\n")], &[]);
    assert_eq!(status(&gateway, "key-1"), 200);

    redis.command(&["CONFIG", "SET", "requirepass", "close-sesame"]);
    let redis = redis.with_password("close-sesame");
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    wait_until("the old password to be refused", || status(&gateway, "key-2") == 503);
    gateway.folder.write("redis.password", "close-sesame\n");
    wait_until("the new password to be taken", || status(&gateway, "key-2") == 200);
    let log = gateway.process.stderr();
    assert!(!log.contains("sesame"), "{log}");
}

#[test]
fn a_refused_reload_leaves_the_password_as_it_is() {
    let (origin, redis) = (Origin::start(), Redis::start_with_password("open-sesame"));
    put(&redis, 1);
    put(&redis, 2);
    let config = config(&origin, &format!("{{ redis: \"{}\", password_file: redis.password }}", redis.url()));
    let files = [("redis.password", "open-sesame"), ("url", "postgres://gate@127.0.0.1:1/keys")];
    let gateway = Gateway::start_with(&config, &files, &[]);
    assert_eq!(status(&gateway, "key-1"), 200);

    let unreachable = "postgres: { url_file: url, query: \"SELECT * FROM keys\", snapshot_file: keys, timeout: 500ms }";
    gateway.rewrite(&config.replace("redis: \"tollgate:customers\", ttl: 1ms, negative_ttl: 1ms", unreachable));
    gateway.folder.write("redis.password", "close-sesame");
    let refused = gateway.reload();
    assert!(refused.status == 422 && refused.text().contains("tollgate tries again"), "{refused:?}");
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    wait_until("a new connection", || status(&gateway, "key-2") == 200);
}

#[test]
fn another_store_is_refused_whole_until_a_restart() {
    let (origin, redis) = (Origin::start(), Redis::start_with_password("first"));
    put(&redis, 1);
    let at = format!("127.0.0.1:{}", redis.port);
    let store = format!("redis: \"redis://:first@{at}\"");
    let gateway = Gateway::start_with(&config(&origin, &format!("{{ {store} }}")), &[("keys", &"k".repeat(16))], &[]);
    assert_eq!(status(&gateway, "key-1"), 200);

    let hint = "hint: restart tollgate for another store; nothing of this file is in force before";
    let others = [
        (
            "{ redis: \"rediss://:first@127.0.0.1:1/2\" }".to_owned(),
            format!("store: cannot change while tollgate runs\\n  found: rediss://127.0.0.1:1/2\\n  expected: redis://{at}/0, as at the start\\n  {hint}"),
        ),
        (
            "{ sentinel: { master: mymaster, nodes: [\"10.0.0.1\"] } }".to_owned(),
            format!("found: `mymaster` of the sentinels 10.0.0.1:26379\\n  expected: redis://{at}/0, as at the start"),
        ),
        (
            "{ cluster: [\"redis://10.0.0.1\", \"redis://10.0.0.2:7000\"] }".to_owned(),
            format!("found: the cluster of redis://10.0.0.1:6379, 10.0.0.2:7000\\n  expected: redis://{at}/0, as at the start"),
        ),
        (
            format!("{{ redis: \"redis://canary:first@{at}\" }}"),
            "store.username: cannot change while tollgate runs\\n  found: a user\\n  expected: the default user, as at the start".to_owned(),
        ),
        (
            format!("{{ {store}, prefix: other, timeout: 20ms, sync_every: 1s, nodes: 3, key_file: keys }}"),
            "store.key_file: cannot change while tollgate runs\\n  found: a secret\\n  expected: no secret, as at the start".to_owned(),
        ),
        (
            format!("{{ {store}, timeout: 20ms }}"),
            "store.timeout: cannot change while tollgate runs\\n  found: 20ms\\n  expected: 10ms, as at the start".to_owned(),
        ),
    ];
    for (other, says) in others {
        gateway.rewrite(&config(&origin, &other));
        let answer = gateway.reload();
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(answer.text().contains(&says), "{}\n{says}", answer.text());
        assert!(!answer.text().contains("canary"), "{}", answer.text());
        assert_eq!(status(&gateway, "key-1"), 200);
    }
    let without = config(&origin, "")
        .replace("store: \n", "")
        .replace("redis: \"tollgate:customers\", ttl: 1ms, negative_ttl: 1ms", "file: none.csv");
    gateway.rewrite(&without);
    let answer = gateway.reload();
    assert!(answer.text().contains("found: no store"), "{}", answer.text());

    // a different spelling of the same store
    gateway.rewrite(&config(&origin, &format!("{{ redis: \"redis://{at}/0\", password_file: keys, timeout: 10ms }}")));
    assert_eq!(gateway.reload().status, 200);
}
