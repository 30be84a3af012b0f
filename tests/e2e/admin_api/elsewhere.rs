//! Keys whose states are not in the gateway that an operator asks: in Redis, or in another gateway of the cluster.

use serde_json::json;

use super::{BEARER, HOST, TOKEN, done, get, post, remaining, started, tollgate};
use crate::support::cluster::{Nodes, SECRET, wait_for_members};
use crate::support::gateway::limited;
use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, wait_until};

#[test]
fn a_key_in_redis_is_set_right_there() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for (consistency, terms) in [
        ("exact", "algorithm: gcra, rate: 1/d, burst: 5"),
        ("exact", "algorithm: sliding_log, limit: 5, window: 1d"),
        ("exact", "algorithm: fixed_window, limit: 5, window: 1d"),
        ("leased", "algorithm: gcra, rate: 1/d, burst: 5"),
        ("eventual", "algorithm: fixed_window, limit: 5, window: 1d"),
    ] {
        let limit = format!("{{ {terms}, key: {{ header: x-user }}, mode: shared, consistency: {consistency} }}");
        let store = format!("store: {{ redis: \"{}\", timeout: 1s, prefix: \"{}\" }}\n", redis.url(), terms.len());
        let gateway = started(&format!("{store}{}", limited(&origin, &limit)), &[]);
        let what = format!("{consistency} {terms}");
        let of_bob = json!({ "limit": "guard", "key": { "header x-user": "bob" } });
        let ask = || gateway.get("/", &[("x-user", "bob")]).status;
        wait_until("Redis to be asked", || done(&gateway, "peek", &of_bob)["decided"] == "store");
        wait_until("the tokens to be spent", || ask() == 429);
        let mut grant = of_bob.clone();
        grant["tokens"] = json!(2);
        let granted = done(&gateway, "grant", &grant);
        assert_eq!((remaining(&granted), &granted["decided"]), (2, &json!("store")), "{what}");
        if consistency != "leased" {
            // leased tokens that are not spent in time expire
            assert_eq!((0..3).map(|_| ask()).collect::<Vec<_>>(), [200, 200, 429], "{what}");
        }
        assert_eq!(remaining(&done(&gateway, "reset", &of_bob)), 5, "{what}");
        for _ in 0..20 {
            assert_eq!(remaining(&done(&gateway, "peek", &of_bob)), 5, "{what}: asking takes nothing");
        }
        assert_eq!(ask(), 200, "{what}");
        drop(gateway);
        redis.command_raw(&["FLUSHALL"]);
    }
    let limit = "{ algorithm: gcra, rate: 1/d, burst: 5, key: all, mode: shared }";
    let store = format!("store: {{ redis: \"{}\" }}\n", redis.url());
    let gateway = started(&format!("{store}{}", limited(&origin, limit)), &[]);
    drop(redis);
    wait_until("Redis to be missed", || {
        gateway.get("/", &[]).status > 0 && get(&gateway, "/v1/status")["store"]["breaker"] == "open"
    });
    let response = post(&gateway, "/v1/keys/reset", &[HOST, BEARER], &json!({ "limit": "guard" }));
    let error = "the key is kept in Redis, and calls to it fail; /v1/status says why (`store.servers`)";
    assert_eq!((response.status, response.json()), (503, json!({ "error": error })));
    let failure = get(&gateway, "/v1/status")["store"]["servers"][0]["failure"].clone();
    assert!(failure.as_str().is_some_and(|failure| failure.contains("Connection refused")), "{failure}");
}

#[test]
fn corrections_by_one_gateway_are_not_undone_by_another() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for terms in [
        "algorithm: gcra, rate: 1/d, burst: 6",
        "algorithm: fixed_window, limit: 6, window: 1d",
        "algorithm: cycle, limit: 6, period: 1d",
        "algorithm: sliding_log, limit: 6, window: 1d",
    ] {
        let limit = format!("{{ {terms}, key: {{ header: x-user }}, mode: shared, consistency: exact }}");
        let store = format!("store: {{ redis: \"{}\", timeout: 1s, prefix: \"{}\" }}\n", redis.url(), terms.len());
        let config = format!("{store}{}", limited(&origin, &limit));
        let (one, other) = (started(&config, &[]), started(&config, &[]));
        let of_bob = json!({ "limit": "guard", "key": { "header x-user": "bob" } });
        wait_until("Redis to be asked", || {
            [&one, &other].iter().all(|gateway| done(gateway, "peek", &of_bob)["decided"] == "store")
        });
        let ask = || other.get("/", &[("x-user", "bob")]).status;
        assert_eq!((0..4).map(|_| ask()).collect::<Vec<_>>(), [200; 4], "{terms}");
        let mut grant = of_bob.clone();
        grant["tokens"] = json!(2);
        assert_eq!(remaining(&done(&one, "grant", &grant)), 4, "{terms}");
        assert_eq!((0..3).map(|_| ask()).collect::<Vec<_>>(), [200; 3], "{terms}");
        assert_eq!(remaining(&done(&one, "reset", &of_bob)), 6, "{terms}");
        assert_eq!((0..6).map(|_| ask()).collect::<Vec<_>>(), [200; 6], "{terms}");
        assert_eq!(ask(), 429, "{terms}");
    }
}

#[test]
fn a_key_is_set_right_by_the_gateway_that_owns_it_and_the_others_say_which_one_that_is() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let limits = "limits: { guard: { key: { header: x-key }, algorithm: gcra, rate: 1/d, burst: 2 } }
routes: [{ name: all, upstream: origin, limits: [guard] }]
";
    let start = |node| {
        let config = format!("{}{}{limits}", nodes.section(node, "timeout: 1s"), origin.upstream());
        started(&config, &[("cluster.key", SECRET)])
    };
    let gateways = [start(0), start(1)];
    wait_for_members(&gateways, 2);
    let token = [("TOLLGATE_ADMIN_TOKEN", TOKEN)];
    for key in 0..8 {
        let key = key.to_string();
        let ask = |gateway: &Gateway| gateway.get("/", &[("x-key", &key)]).status;
        assert_eq!([ask(&gateways[0]), ask(&gateways[1]), ask(&gateways[0])], [200, 200, 429]);
        let part = format!("header:x-key={key}");
        let run = |gateway: &Gateway, verb: &str| {
            let output = tollgate(gateway, &["keys", verb, "--limit", "guard", &part], &token);
            let [text, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            (output.status.code(), text, error)
        };
        // every gateway answers questions about the key
        for gateway in &gateways {
            let (status, text, error) = run(gateway, "peek");
            assert!(status == Some(0) && text.contains("now: 0 left, denied for"), "{text}{error}");
        }
        let (owners, others): (Vec<_>, Vec<_>) =
            (0..2).map(|node| (node, run(&gateways[node], "reset"))).partition(|(_, (status, ..))| *status == Some(0));
        let ([(owner, (_, text, _))], [(_, (status, _, error))]) = (&*owners, &*others) else {
            panic!("{owners:?} {others:?}")
        };
        assert!(text.contains("now: 2 left, nothing is used"), "{text}");
        let told = format!("its key belongs to the gateway at {}: use the admin port of that gateway", nodes.0[*owner]);
        assert!(*status == Some(1) && error.contains(&told), "{error}");
        let question = json!({ "limit": "guard", "key": { "header: x-key": key } });
        let refused = post(&gateways[1 - owner], "/v1/keys/reset", &[HOST, BEARER], &question);
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.text().contains(&told), "{refused:?}");
        assert_eq!([ask(&gateways[*owner]), ask(&gateways[*owner]), ask(&gateways[*owner])], [200, 200, 429]);
    }
}
