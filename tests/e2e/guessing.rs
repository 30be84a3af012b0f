//! Guessed credentials: the gateway charges each guess before the look-up, under the limits that need no customer, and
//! denies guesses over these limits without a look-up.

use serde_json::json;

use crate::support::redis::Redis;
use crate::support::tokens::{Issuer, key_set};
use crate::support::{Client, Gateway, Origin, Response, together};

const CUSTOMERS: &str = "credential,customer,plan\nkey-1,acme,free\nkey-2,globex,free\nkey-3,friend,free\n";

/// The SHA-256 of `key-1`, `key-2` and `key-3`.
const FIELDS: [&str; 3] = [
    "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44",
    "sha256:7c36b0a9dedde119c75165957c6c9c187e65df1ee5db87c4c58ad503ad88cbe3",
    "sha256:d9ef8196557c9da69806fb5d777f4e5ad6d5c18593039e0ff62f9fdf003b0198",
];

const BY_ADDRESS: &str = "{ key: client_address, algorithm: gcra, rate: 1/h, burst: 5 }";
const BY_CUSTOMER: &str = "{ key: customer, algorithm: gcra, rate: 1/h, burst: 2 }";

/// Customers with credentials in `directory`; one of them is exempt from limits. `more` holds further settings.
fn config(origin: &Origin, directory: &str, by_address: &str, more: &str) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}, {{ jwt: {{ jwks_file: keys.jwks, plan: free }} }}]
  directory: {directory}
plans: [free]
usage: {{}}
bypass: {{ customers: [friend] }}
limits:
  by-address: {by_address}
  by-customer: {BY_CUSTOMER}
routes: [{{ name: all, upstream: origin, limits: [by-customer, by-address] }}]
{more}",
        origin.upstream()
    )
}

fn start(config: &str) -> Gateway {
    start_with(config, CUSTOMERS)
}

fn start_with(config: &str, customers: &str) -> Gateway {
    Gateway::start_with(config, &[("customers.csv", customers), ("keys.jwks", &key_set(&[Issuer::p256()]))], &[])
}

fn with_file(origin: &Origin, by_address: &str) -> Gateway {
    start(&config(origin, "{ file: customers.csv }", by_address, ""))
}

fn with_redis(origin: &Origin, redis: &Redis, by_address: &str) -> Gateway {
    for (field, customer) in FIELDS.iter().zip(["acme", "globex"]) {
        let value = json!({ "customer": customer, "plan": "free" }).to_string();
        redis.command(&["HSET", "tollgate:customers", field, &value]);
    }
    let store = format!("store: {{ redis: \"{}\" }}\n", redis.url());
    start(&config(origin, "{ redis: \"tollgate:customers\" }", by_address, &store))
}

fn ask(client: &mut Client, key: &str) -> Response {
    client.round_trip("GET", "/", &[("x-api-key", key)])
}

/// The statuses of ten different guesses.
fn guesses(client: &mut Client, guess: impl Fn(usize) -> (&'static str, String)) -> Vec<u16> {
    let guesses = (0..10).map(|number| {
        let (field, value) = guess(number);
        client.round_trip("GET", "/", &[(field, value.as_str())]).status
    });
    guesses.collect()
}

fn a_key(number: usize) -> (&'static str, String) {
    ("x-api-key", format!("guess-{number}"))
}

const FIVE_THEN_DENIED: [u16; 10] = [401, 401, 401, 401, 401, 429, 429, 429, 429, 429];

#[test]
fn guesses_of_keys_are_charged_to_their_address_and_denied_over_its_limit() {
    let origin = Origin::start();
    let gateway = with_file(&origin, BY_ADDRESS);
    let mut guesser = gateway.client();
    assert_eq!(guesses(&mut guesser, a_key), FIVE_THEN_DENIED);
    let right = ask(&mut guesser, "key-1");
    assert_eq!(right.status, 429, "whether a guess is right is not told over the limit");
    assert!(right.number("retry-after").is_some_and(|seconds| seconds > 600), "{right:?}");
    assert_eq!(right.json()["violated-policies"], json!(["by-address"]));
    assert_eq!(gateway.client().get("/").status, 429, "no credential at all");
    assert_eq!(ask(&mut gateway.client_from(7), "key-1").status, 200, "others are not held up");
    assert_eq!(origin.count(), 1);
    let labels = |outcome| [("route", "all"), ("limit", "by-address"), ("plan", "none"), ("outcome", outcome)];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("admitted"), 5.0);
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels("denied"), 6.0);
}

#[test]
fn guesses_that_are_sent_at_once_are_no_more() {
    let origin = Origin::start();
    let redis = Redis::start();
    let gateway = with_redis(&origin, &redis, BY_ADDRESS);
    let statuses = together(40, |guess| ask(&mut gateway.client(), &format!("guess-{guess}")).status);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 35, "{statuses:?}");
    // Redis may answer late
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429 | 503)), "{statuses:?}");
    assert!((1..=5).contains(&redis.calls("hget")), "over the limit nobody is asked");
}

#[test]
fn tokens_full_of_garbage_are_charged_before_they_are_verified() {
    let origin = Origin::start();
    let gateway = with_file(&origin, BY_ADDRESS);
    let token = Issuer::p256().token("tess");
    let (signed, signature) = token.rsplit_once('.').unwrap();
    // differs from the signature's first letter, so each guess is wrong
    let wrong = if signature.starts_with('A') { 'B' } else { 'A' };
    let garbage = |number| ("authorization", format!("Bearer {signed}.{wrong}{number}{}", signature.get(2..).unwrap()));
    assert_eq!(guesses(&mut gateway.client(), garbage), FIVE_THEN_DENIED);
    let genuine = ("authorization", format!("Bearer {token}"));
    let ask = |from: u8| gateway.client_from(from).round_trip("GET", "/", &[(genuine.0, genuine.1.as_str())]);
    assert_eq!([ask(1), ask(7), ask(7), ask(7)].map(|response| response.status), [429, 200, 200, 429]);
}

#[test]
fn a_right_credential_is_charged_once_under_all_limits_or_none() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for gateway in [with_file(&origin, BY_ADDRESS), with_redis(&origin, &redis, BY_ADDRESS)] {
        let mut client = gateway.client();
        // the first request looks the key up, later ones find it in the cache
        assert_eq!([(); 4].map(|()| ask(&mut client, "key-1").status), [200, 200, 429, 429]);
        let left = ask(&mut client, "key-2");
        assert_eq!(left.status, 200);
        let limits = left.field("ratelimit").unwrap();
        assert!(limits.contains("\"by-address\";r=2"), "what the limit by customer denied was not taken: {limits}");
        assert!(limits.find("by-customer") < limits.find("by-address"), "in the order of the route: {limits}");
    }
}

#[test]
fn a_denial_gives_back_what_was_charged_before_the_look_up() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = with_redis(&origin, &redis, BY_ADDRESS);
    let spend = |from: u8| ask(&mut gateway.client_from(from), "key-1").status;
    assert_eq!([spend(7), spend(7)], [200, 200]);
    let before = redis.calls("hget");
    // a configuration without a cache drops the cached answer
    gateway.rewrite(&config(
        &origin,
        "{ redis: \"tollgate:customers\", ttl: 1ms }",
        BY_ADDRESS,
        &format!("store: {{ redis: \"{}\" }}\n", redis.url()),
    ));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!([(); 9].map(|()| spend(8)), [429; 9], "denied by the limit by customer");
    assert!(redis.calls("hget") > before, "it was looked up again");
    let other = ask(&mut gateway.client_from(8), "key-2");
    assert_eq!(other.status, 200);
    assert!(other.field("ratelimit").unwrap().contains("\"by-address\";r=4"), "{other:?}");
}

#[test]
fn bypasses_and_overrides_apply_to_early_charges() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let customers =
        "credential,customer,plan,overrides\nkey-3,friend,free,\nkey-1,acme,free,{by-address: {burst: 100}}\n";
    let config = config(&origin, "{ file: customers.csv }", BY_ADDRESS, "");
    let from_file = start_with(&config, customers);
    let from_redis = with_redis(&origin, &redis, BY_ADDRESS);
    let own = json!({ "customer": "acme", "plan": "free", "overrides": { "by-address": { "burst": 100 } } });
    let friend = json!({ "customer": "friend", "plan": "free" });
    redis.command(&["HSET", "tollgate:customers", FIELDS[0], &own.to_string(), FIELDS[2], &friend.to_string()]);
    for gateway in [from_file, from_redis] {
        assert!((0..20).all(|_| ask(&mut gateway.client(), "key-3").status == 200), "a bypass takes nothing");
        let response = ask(&mut gateway.client(), "key-1");
        let fields = ["ratelimit-policy", "ratelimit"].map(|name| response.field(name).unwrap());
        assert!(fields[0].contains("\"by-address\";q=100"), "{fields:?}");
        assert!(
            fields[1].contains("\"by-address\";r=99"),
            "what was charged by others' parameters is back: {fields:?}"
        );
    }
}

#[test]
fn refusals_of_the_gateway_itself_can_be_what_is_charged() {
    let origin = Origin::start();
    let by_address = "{ key: client_address, algorithm: sliding_log, limit: 5, window: 1h,
        charge: { when: response, if_status: [401] } }";
    let redis = Redis::start();
    for gateway in [with_file(&origin, by_address), with_redis(&origin, &redis, by_address)] {
        let mut client = gateway.client();
        let statuses: Vec<u16> = (0..8).map(|_| ask(&mut client, "key-1").status).collect();
        assert_eq!(statuses, [200, 200, 429, 429, 429, 429, 429, 429], "by customer");
        assert_eq!(guesses(&mut client, a_key), FIVE_THEN_DENIED, "only guesses that were wrong were charged");
        assert_eq!(ask(&mut client, "key-2").status, 429);
    }
}

#[test]
fn a_limit_may_wait_until_the_caller_is_known() {
    let origin = Origin::start();
    let by_address = "{ key: client_address, algorithm: gcra, rate: 1/h, burst: 5, charge: { when: identified } }";
    let gateway = with_file(&origin, by_address);
    assert_eq!(guesses(&mut gateway.client(), a_key), [401; 10]);
    assert_eq!(ask(&mut gateway.client(), "key-1").status, 200);
}

#[test]
fn the_usage_page_is_no_way_around() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for gateway in [with_file(&origin, BY_ADDRESS), with_redis(&origin, &redis, BY_ADDRESS)] {
        let usage = |key: &str| gateway.get("/.tollgate/usage", &[("x-api-key", key)]).status;
        assert!((0..20).all(|_| usage("key-1") == 200), "who is known asks for free");
        let guesses: Vec<u16> = (0..10).map(|number| usage(&format!("guess-{number}"))).collect();
        assert_eq!(guesses, FIVE_THEN_DENIED);
        let right = ["key-1", "key-2", "key-3"].map(usage);
        assert_eq!(right, [429; 3], "whether a guess is right is not told over the limit, also of a key that is known");
    }
}

#[test]
fn the_usage_page_tells_no_right_key_from_a_wrong_one_during_a_ban() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let ban = "ban: { after: 1 denial in 1h, for: 10h }";
    let by_address = format!("{{ key: client_address, algorithm: fixed_window, window: 1s, limit: 1, {ban} }}");
    let store = format!("store: {{ redis: \"{}\", timeout: 1s }}\n", redis.url());
    let shared = "{ key: customer, mode: shared, algorithm: gcra, rate: 1/h, burst: 100 }";
    let config = config(&origin, "{ file: customers.csv }", &by_address, &store).replace(BY_CUSTOMER, shared);
    let gateway = start(&config);
    let usage = |key: &str| gateway.get("/.tollgate/usage", &[("x-api-key", key)]);
    let is_banned = |answer: &Response| answer.status == 429 && answer.text().contains("Too many requests were denied");
    assert_eq!(usage("key-1").status, 200);
    let banned = (0..100).any(|number| is_banned(&usage(&format!("guess-{number}"))));
    assert!(banned, "a hundred guesses are over the limit often enough");
    let calls = || gateway.metrics().value("tollgate_store_requests_total", &[("op", "charge"), ("result", "ok")]);
    let before = calls();
    assert!(["key-1", "guess", "key-2", "key-3"].iter().all(|key| is_banned(&usage(key))));
    assert_eq!(calls(), before, "the page asks Redis for nobody who is banned");
    assert_eq!(gateway.client_from(7).round_trip("GET", "/.tollgate/usage", &[("x-api-key", "key-1")]).status, 200);
}

#[test]
fn the_usage_page_charges_guesses_also_where_a_limit_lacks_its_key() {
    let origin = Origin::start();
    let config = config(&origin, "{ file: customers.csv }", BY_ADDRESS, "")
        .replace("limits:\n", "limits:\n  by-tenant: { key: { header: x-tenant }, missing_key: deny, algorithm: gcra, rate: 1/h, burst: 9 }\n")
        .replace("limits: [by-customer", "limits: [by-tenant, by-customer");
    let gateway = start(&config);
    let usage = |key: &str| gateway.get("/.tollgate/usage", &[("x-api-key", key)]).status;
    assert_eq!(usage("key-1"), 200);
    let guesses: Vec<u16> = (0..10).map(|number| usage(&format!("guess-{number}"))).collect();
    assert_eq!((guesses, usage("key-1")), (FIVE_THEN_DENIED.to_vec(), 429));
}

#[test]
fn the_usage_page_is_no_way_around_where_no_route_matches_it() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for gateway in [with_file(&origin, BY_ADDRESS), with_redis(&origin, &redis, BY_ADDRESS)] {
        let config = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
        let (open, all) = ("{ name: open, match: { path: /open }, upstream: origin }, ", "{ name: all, upstream");
        let guarded = "{ name: all, match: { hosts: [api.test], path: /v1/** }, upstream";
        gateway.folder.write("tollgate.yaml", config.replace(all, &format!("{open}{guarded}")));
        assert_eq!(gateway.reload().status, 200);
        for host in ["other.test", "api.test"] {
            let mut client = gateway.client_from(if host == "api.test" { 7 } else { 1 });
            let mut usage = |key: &str| {
                let fields = [("host", host), ("x-api-key", key)];
                client.round_trip("GET", "/.tollgate/usage", &fields).status
            };
            assert!((0..20).all(|_| usage("key-1") == 200), "who is known asks for free");
            let guesses: Vec<u16> = (0..10).map(|number| usage(&format!("guess-{number}"))).collect();
            assert_eq!(guesses, FIVE_THEN_DENIED, "{host}");
        }
    }
}

#[test]
fn a_denial_at_the_usage_page_has_the_limits_own_answer_and_operators_see_it() {
    let own = "over_limit: { deny: { status: 403, body: gone } }";
    let by_address = format!("{{ key: client_address, algorithm: gcra, rate: 1/h, burst: 1, {own} }}");
    let gateway = with_file(&Origin::start(), &by_address);
    let answers = [(); 2].map(|()| gateway.get("/.tollgate/usage", &[("x-api-key", "guess")]));
    assert_eq!((answers[0].status, answers[1].status, &*answers[1].text()), (401, 403, "gone"));
    for page in ["/v1/offenders", "/v1/decisions"] {
        let shown = Client::connect(gateway.admin).round_trip("GET", page, &[("host", "localhost")]).text();
        assert!(shown.contains("\"by-address\""), "{page}: {shown}");
    }
}

#[test]
fn guesses_that_claim_to_be_grpc_calls_are_charged_by_what_their_answers_mean() {
    let origin = Origin::start();
    let wrong_keys = "{ key: client_address, algorithm: sliding_log, limit: 5, window: 15m, \
                      charge: { when: response, if_status: [401] } }";
    let gateway = with_file(&origin, wrong_keys);
    let mut client = gateway.client();
    let mut guess = |number: usize| {
        let fields = [("x-api-key", format!("guess-{number}")), ("content-type", "application/grpc".to_owned())];
        let answer = client.round_trip("POST", "/", &fields.each_ref().map(|(name, value)| (*name, value.as_str())));
        (answer.status, answer.number("grpc-status"))
    };
    for number in 0..10 {
        assert_eq!(guess(number), (200, Some(if number < 5 { 16 } else { 8 })), "guess {number}");
    }
}

#[test]
fn limits_in_redis_are_asked_once_where_nothing_has_to_be_looked_up() {
    let (origin, redis) = (Origin::start(), Redis::start());
    redis.command(&[
        "HSET",
        "tollgate:customers",
        FIELDS[0],
        &json!({ "customer": "acme", "plan": "free" }).to_string(),
    ]);
    let shared = |key: &str| format!("{{ key: {key}, mode: shared, algorithm: gcra, rate: 1/h, burst: 100 }}");
    let store = format!("store: {{ redis: \"{}\", timeout: 1s }}\n", redis.url());
    for (directory, first) in [("{ file: customers.csv }", 1.0), ("{ redis: \"tollgate:customers\" }", 2.0)] {
        let config = config(&origin, directory, &shared("client_address"), &store);
        let gateway = start(&config.replace(BY_CUSTOMER, &shared("customer")));
        let charged = |calls: f64| {
            let labels = [("op", "charge"), ("result", "ok")];
            gateway.wait_for_metric("tollgate_store_requests_total", &labels, calls);
        };
        let ask = |key: &str| ask(&mut gateway.client(), key).status;
        assert_eq!(ask("key-1"), 200);
        charged(first);
        assert_eq!([(); 5].map(|()| ask("key-1")), [200; 5]);
        charged(first + 5.0);
        assert_eq!(ask("guess"), 401);
        charged(first + 6.0);
    }
}
