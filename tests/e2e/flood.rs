//! A flood of keys: each request has another key. The memory stays within the table's bound, and a key that has spent its
//! limit before stays denied.

use serde_json::json;

use crate::admin_api::{self, BEARER, HOST};
use crate::support::gateway::limited;
use crate::support::{Gateway, Origin, together};

const CLIENTS: usize = 4;

/// Sends requests with `keys` different keys to a limit that keeps `kept` of them. Returns the growth of the process in
/// bytes after the table was full.
fn flood(keys: usize, kept: usize) -> u64 {
    let origin = Origin::start();
    let limit = format!("{{ algorithm: gcra, rate: 1/d, burst: 1, key: {{ header: x-key }}, max_keys: {kept} }}");
    let gateway = Gateway::start(&limited(&origin, &limit));
    for spent in ["spent", ""] {
        assert_eq!(gateway.get("/", &[("x-key", spent)]).status, 200, "{spent:?}");
        assert_eq!(gateway.get("/", &[("x-key", spent)]).status, 429, "{spent:?}");
    }
    let ask = |keys: std::ops::Range<usize>| {
        let statuses = together(CLIENTS, |client| {
            let mut wire = gateway.client();
            let mine = keys.clone().filter(|key| key % CLIENTS == client);
            mine.fold([0, 0], |[admitted, denied], key| {
                match wire.round_trip("GET", "/", &[("x-key", &format!("key-{key}"))]).status {
                    200 => [admitted + 1, denied],
                    429 => [admitted, denied + 1],
                    other => panic!("{key}: {other}"),
                }
            })
        });
        statuses.into_iter().fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
    };
    let [admitted, denied] = ask(0..kept);
    assert!(admitted + 2 >= kept, "{admitted} admitted, {denied} denied");
    let before = gateway.process.memory();
    let [more, _] = ask(kept..keys);
    // the bucket that all keys without a place share has one token, too
    assert!(admitted + more <= kept, "{more} more were admitted");
    for spent in ["spent", "", "key-0", "key-1"] {
        assert_eq!(gateway.get("/", &[("x-key", spent)]).status, 429, "{spent:?}");
    }
    gateway.process.memory().saturating_sub(before)
}

#[test]
fn a_key_of_a_full_table_is_not_made_to_count_in_the_common_bucket() {
    let origin = Origin::start();
    let limit = "{ key: { header: x-key }, algorithm: fixed_window, limit: 3, window: 1d, max_keys: 20 }";
    let gateway = admin_api::started(&limited(&origin, limit), &[]);
    (1..=26).for_each(|key| drop(gateway.get("/", &[("x-key", &format!("k{key}"))])));
    let ask = |verb: &str, key: &str, tokens: Option<u64>| {
        let mut question = json!({ "limit": "guard", "key": { "header x-key": key } });
        if let Some(tokens) = tokens {
            question["tokens"] = json!(tokens);
        }
        admin_api::post(&gateway, &format!("/v1/keys/{verb}"), &[HOST, BEARER], &question)
    };
    for (verb, key, tokens) in [("grant", "k5", Some(1)), ("reset", "k5", None), ("reset", "k25", None)] {
        let response = ask(verb, key, tokens);
        assert!(response.status == 409 && response.text().contains("raise `max_keys`"), "{verb} {key}: {response:?}");
    }
    let given_back = json!({ "charges": [{ "limit": "guard", "key": { "header x-key": "k5" }, "tokens": -1 }] });
    assert_eq!(admin_api::post(&gateway, "/v1/charge", &[HOST, BEARER], &given_back).status, 200);
    assert_eq!([0; 3].map(|_| gateway.get("/", &[("x-key", "k5")]).status), [200, 200, 429]);
    let granted = ask("grant", "k5", Some(1)).json();
    assert_eq!((&granted["before"]["remaining"], &granted["standing"]["remaining"]), (&json!(0), &json!(1)));
}

#[test]
fn a_flood_of_keys_through_the_gateway_takes_no_memory_and_frees_nobody() {
    let grown = flood(12_000, 2_000);
    assert!(grown < 10 << 20, "{grown} bytes");
}

/// `cargo test --release --test e2e -- --ignored --nocapture a_million_keys`
#[test]
#[ignore = "takes minutes"]
fn a_million_keys_through_the_gateway_take_no_memory_and_free_nobody() {
    let grown = flood(1_000_000, 100_000);
    tell(&format!("from 100,000 keys on, 900,000 more made the process grow by {} KiB", grown >> 10));
    assert!(grown < 10 << 20, "{grown} bytes");
}

#[expect(clippy::print_stderr, reason = "a figure for whoever runs the tests")]
fn tell(text: &str) {
    eprintln!("{text}");
}
