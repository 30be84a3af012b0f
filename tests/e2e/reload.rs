//! Reloads while requests run: the ways to trigger one, the state that stays, and the reports.

use std::process::Command;

use serde_json::json;

use crate::support::gateway::{ALL_GUARDED, limited, proxied};
use crate::support::redis::Redis;
use crate::support::wire::Framing;
use crate::support::{Client, Gateway, Origin, wait_for, wait_until};

const SIGHUP: u32 = 1;

/// A limit so slow that no token refills during a test.
fn burst(origin: &Origin, burst: u32) -> String {
    limited(origin, &format!("{{ algorithm: gcra, rate: 1/d, burst: {burst}, key: {{ header: x-key }} }}"))
}

/// The number of requests that a new key may send.
fn fresh_burst(gateway: &Gateway, key: &str) -> usize {
    let mut client = gateway.client();
    let statuses = std::iter::repeat_with(|| client.round_trip("GET", "/", &[("x-key", key)]).status);
    statuses.take_while(|status| *status == 200).count()
}

fn status_of(gateway: &Gateway, key: &str) -> u16 {
    gateway.get("/", &[("x-key", key)]).status
}

fn last_attempt(gateway: &Gateway) -> serde_json::Value {
    gateway.admin_get("/status").json()["reload"]["last_attempt"].clone()
}

fn wait_for_reloads(gateway: &Gateway, result: &str, count: f64) {
    gateway.wait_for_metric("tollgate_config_reloads_total", &[("result", result)], count);
}

#[test]
fn a_change_comes_into_force_by_itself_on_a_signal_and_on_request() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 2));
    assert_eq!(fresh_burst(&gateway, "a"), 2);

    gateway.rewrite(&burst(&origin, 4));
    wait_for_reloads(&gateway, "success", 2.0);
    assert_eq!(fresh_burst(&gateway, "b"), 4);
    assert_eq!(last_attempt(&gateway)["trigger"], "file");

    gateway.rewrite(&burst(&origin, 6));
    let answer = gateway.reload();
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("applied")), "{answer:?}");
    assert_eq!(answer.json()["in_force"]["limits"], 1);
    assert_eq!(fresh_burst(&gateway, "c"), 6);

    wait_until("the handler", || gateway.process.catches(SIGHUP));
    let unchanged = || gateway.metrics().value("tollgate_config_reloads_total", &[("result", "unchanged")]);
    let in_force_since =
        || gateway.metrics().value("tollgate_config_last_reload_success_timestamp_seconds", &[]).unwrap();
    let before = (unchanged(), in_force_since());
    gateway.process.signal("HUP");
    wait_until("the signal to be heard", || unchanged() > before.0);
    assert_eq!(in_force_since(), before.1);
    assert_eq!(status_of(&gateway, "a"), 429, "spent under the first configuration");
}

#[test]
fn a_request_for_a_reload_tells_every_error_and_changes_nothing() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 2));
    let hash = || gateway.metrics().all("tollgate_config_info")[0].labels["hash"].clone();
    let good = hash();
    gateway.rewrite(&format!("{}nonsense: 1\nroutes_: 2\n", burst(&origin, 9)));
    let answer = gateway.reload();
    assert_eq!(answer.status, 422);
    let report = answer.json();
    assert_eq!((&report["result"], &report["error_count"]), (&json!("refused"), &json!(2)), "{report}");
    let errors = report["errors"].to_string();
    assert!(
        errors.contains("nonsense") && errors.contains("routes_") && errors.contains("tollgate.yaml:6:1"),
        "{errors}"
    );
    let metrics = gateway.metrics();
    assert_eq!(metrics.value("tollgate_config_last_reload_successful", &[]), Some(0.0));
    assert_eq!((hash(), metrics.all("tollgate_config_info").len()), (good.clone(), 1));
    assert_eq!(last_attempt(&gateway)["error_count"], 2);
    assert_eq!(fresh_burst(&gateway, "a"), 2);
    wait_until("both errors in the log", || {
        let said = gateway.process.stderr();
        said.contains("nonsense: is unknown") && said.contains("routes_: is unknown")
    });

    gateway.rewrite(&burst(&origin, 2));
    gateway.wait_for_metric("tollgate_config_last_reload_successful", &[], 1.0);
    assert_eq!((hash(), last_attempt(&gateway)["result"].clone()), (good, json!("unchanged")));
    let admin = gateway.admin_get("/-/reload");
    assert_eq!(admin.status, 405);
}

#[test]
fn workers_are_as_many_as_the_file_says_and_stay_so() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("workers: 3\n{}", burst(&origin, 2)));
    assert_eq!(gateway.process.threads("worker "), 3);
    gateway.rewrite(&format!("workers: 2\n{}", burst(&origin, 4)));
    let refused = gateway.reload();
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("workers: cannot change while tollgate runs"), "{}", refused.text());
    assert_eq!((gateway.process.threads("worker "), fresh_burst(&gateway, "a")), (3, 2));
}

#[test]
fn addresses_cannot_change_and_nothing_beside_them_does() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 2));
    let moved = gateway.complete_config(&burst(&origin, 5)).replace(&gateway.address.to_string(), "127.0.0.1:1");
    gateway.folder.write("tollgate.yaml", &moved);
    let answer = gateway.reload();
    assert_eq!(answer.status, 422);
    let error = answer.json()["errors"][0].as_str().unwrap().to_owned();
    assert!(error.contains("tollgate.yaml: listeners: cannot change") && error.contains("SIGUSR2"), "{error}");
    assert!(error.contains("found: 127.0.0.1:1") && error.contains(&gateway.address.to_string()), "{error}");
    let shown = last_attempt(&gateway);
    assert_eq!((&shown["result"], &shown["errors"][0]), (&json!("refused"), &json!(error)));
    gateway.wait_for_metric("tollgate_config_last_reload_successful", &[], 0.0);
    wait_until("the log to tell it", || {
        let said = gateway.process.stderr();
        said.contains("listeners: cannot change while tollgate runs")
            && said.contains("the former configuration stays in force")
    });
    assert_eq!(fresh_burst(&gateway, "a"), 2);

    let moved = gateway.complete_config(&burst(&origin, 5)).replace(&gateway.admin.to_string(), "127.0.0.1:1");
    gateway.folder.write("tollgate.yaml", &moved);
    let error = gateway.reload().json()["errors"][0].as_str().unwrap().to_owned();
    assert!(error.contains("admin.address: cannot change"), "{error}");
    gateway.rewrite(&burst(&origin, 5));
    assert_eq!(gateway.reload().status, 200, "as soon as the addresses are the old ones, the rest is taken up");
}

#[test]
fn a_check_against_what_is_in_force_says_what_the_reload_then_says() {
    let origin = Origin::start();
    let config = |burst: u32, key: &str, algorithm: &str| {
        format!(
            "{}limits:
  carry: {{ algorithm: gcra, rate: 1/d, burst: {burst}, key: all }}
  reset: {{ algorithm: gcra, rate: 1/d, burst: {burst}, key: all, on_change: reset }}
  key: {{ algorithm: gcra, rate: 1/d, burst: 2, key: {key} }}
  algorithm: {{ algorithm: {algorithm}: 2, rate: 1/d, key: all }}
  same: {{ algorithm: gcra, rate: 1/d, burst: 2, key: all }}
routes: [{{ name: all, upstream: origin, limits: [carry, reset, key, algorithm, same] }}]\n",
            origin.upstream()
        )
    };
    let gateway = Gateway::start(&config(2, "host", "gcra, burst"));
    let before = gateway.folder.write("before.yaml", gateway.complete_config(&config(2, "host", "gcra, burst")));
    gateway.rewrite(&config(3, "method", "leaky_bucket, capacity"));
    let notes = gateway.reload().json()["notes"].clone();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let file = gateway.folder.path().join("tollgate.yaml");
    let checked = check.arg("check").arg(file).arg("--against").arg(before).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.contains("4 changes; 1 limit untouched"), "{checked}");
    assert_eq!(notes.as_array().unwrap().len(), 4, "{notes}");
    for note in notes.as_array().unwrap() {
        let (name, words) = note.as_str().unwrap().strip_prefix("limit `").unwrap().split_once("` ").unwrap();
        assert!(checked.contains(&format!("limit {name}: {words}\n")), "{note} not in {checked}");
    }
}

/// Limits in this process and in Redis, with two algorithms that share one state.
#[test]
fn token_bucket_and_gcra_go_on_with_the_same_state() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let config = |algorithm: &str, burst: u32| {
        format!(
            "{}store: {{ redis: \"{}\", timeout: 1s }}
customers: {{ identify: [{{ header: x-key }}], directory: {{ file: customers.csv }} }}
plans: [free]
state: {{ file: tollgate.state, every: 1h }}
limits:
  here: {{ algorithm: {algorithm}, rate: 1/d, burst: {burst}, key: customer }}
  there: {{ algorithm: {algorithm}, rate: 1/d, burst: {burst}, key: customer, mode: shared }}
routes:
  - {{ name: here, match: {{ path: /here }}, upstream: origin, limits: [here] }}
  - {{ name: there, match: {{ path: /there }}, upstream: origin, limits: [there] }}\n",
            origin.upstream(),
            redis.url(),
        )
    };
    const CUSTOMERS: &str = "credential,customer,plan,overrides\nk-ann,ann,free,\nk-own,own,free,\"{here: {burst: 4}, there: {burst: 4}}\"\n";
    let mut gateway = Gateway::start_with(&config("token_bucket", 4), &[("customers.csv", CUSTOMERS)], &[]);
    let ask = |gateway: &Gateway| {
        let all =
            ["/here", "/there"].map(|path| ["k-ann", "k-own"].map(|key| gateway.get(path, &[("x-key", key)]).status));
        all.as_flattened().to_vec()
    };
    assert_eq!(ask(&gateway), [200; 4]);
    gateway.rewrite(&config("gcra", 4));
    let answer = gateway.reload();
    assert_eq!((answer.status, &answer.json()["notes"]), (200, &json!([])), "{answer:?}");
    assert_eq!(ask(&gateway), [200; 4]);
    // the state also survives a restart, through the snapshot
    gateway.rewrite(&config("token_bucket", 4));
    gateway.restart("TERM");
    assert_eq!(ask(&gateway), [200; 4]);
    // and a change of parameters: used tokens stay used
    gateway.rewrite(&config("gcra", 2));
    let notes = gateway.reload().json()["notes"].to_string();
    assert!(notes.contains("`here` has other parameters: what is used stays used"), "{notes}");
    assert_eq!(ask(&gateway), [429, 200, 429, 200], "three are used, and the overrides still are 4");
    assert_eq!(ask(&gateway), [429; 4]);
}

#[test]
fn limits_that_start_afresh_do_and_others_do_not() {
    let origin = Origin::start();
    let config = |burst: u32, key: &str| {
        let limit =
            |more: &str| format!("{{ algorithm: gcra, rate: 1/d, burst: {burst}, key: {{ header: x-{key} }}{more} }}");
        format!(
            "{}limits: {{ carry: {}, reset: {}, same: {{ algorithm: gcra, rate: 1/d, burst: 1, key: all, on_change: reset }} }}
routes:
  - {{ name: carry, match: {{ path: /carry }}, upstream: origin, limits: [carry] }}
  - {{ name: reset, match: {{ path: /reset }}, upstream: origin, limits: [reset] }}
  - {{ name: same, match: {{ path: /same }}, upstream: origin, limits: [same] }}
",
            origin.upstream(),
            limit(""),
            limit(", on_change: reset")
        )
    };
    let gateway = Gateway::start(&config(1, "a"));
    let ask = |path: &str| gateway.get(path, &[("x-a", "k"), ("x-b", "k")]).status;
    let all = || ["/carry", "/reset", "/same"].map(ask);
    assert_eq!(all(), [200; 3]);
    assert_eq!(all(), [429; 3]);
    gateway.rewrite(&config(2, "a"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(all(), [429, 200, 429], "only what changed and says so starts afresh");
    assert_eq!(gateway.reload().json()["result"], "unchanged");
    assert_eq!(ask("/reset"), 200);
    assert_eq!(all(), [429; 3]);

    gateway.rewrite(&config(2, "b"));
    let notes = gateway.reload().json()["notes"].to_string();
    assert!(notes.contains("limit `carry` counts by another key"), "{notes}");
    assert_eq!(all(), [200, 200, 429]);
    gateway.rewrite(&config(2, "a"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(all(), [429; 3], "what was used before the detour is still used");
}

#[test]
fn a_change_that_is_rolled_back_keeps_what_was_used() {
    let origin = Origin::start();
    let guarded = |limit: &str| limited(&origin, &format!("{{ key: all, on_change: reset, {limit} }}"));
    let gcra = |burst: u32| guarded(&format!("algorithm: gcra, rate: 1/d, burst: {burst}"));
    let other = guarded("algorithm: fixed_window, limit: 1, window: 1d");
    let gateway = Gateway::start(&gcra(1));
    let ask = || gateway.get("/", &[]).status;
    let reload = |config: &str| {
        gateway.rewrite(config);
        gateway.reload().json()["notes"].to_string()
    };
    assert_eq!([ask(), ask()], [200, 429]);
    assert!(reload(&other).contains("starts afresh, or goes on from what that algorithm kept before"));
    assert_eq!(ask(), 200);
    reload(&gcra(1));
    assert_eq!(ask(), 429);
    for gone in [&other, &proxied(&origin, "")] {
        reload(gone);
        reload(&gcra(2));
        assert_eq!(
            [ask(), ask(), ask()],
            [200, 200, 429],
            "it comes back with other parameters, and is to start afresh then"
        );
        reload(&gcra(1));
        assert_eq!([ask(), ask()], [200, 429]);
    }
}

#[test]
fn a_customer_s_plan_changes_without_a_fresh_bucket() {
    let origin = Origin::start();
    let config = format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: free }} }}
plans: [free, pro]
limits:
  guard: {{ algorithm: gcra, key: customer, plans: {{ free: {{ rate: 1/d, burst: 2 }}, pro: {{ rate: 1/d, burst: 10 }} }} }}
{ALL_GUARDED}",
        origin.upstream()
    );
    let customers = |plan: &str| format!("credential,customer,plan\nk,acme,{plan}\n");
    let gateway = Gateway::start_with(&config, &[("customers.csv", &customers("free"))], &[]);
    let mut client = gateway.client();
    let mut ask = || client.round_trip("GET", "/", &[("x-api-key", "k")]);
    assert_eq!([ask().status, ask().status, ask().status], [200, 200, 429]);
    gateway.folder.write("customers.csv", customers("pro"));
    let refused = wait_for("the new plan", || {
        let answer = ask();
        answer.field("ratelimit-policy").unwrap().contains("q=10").then_some(answer.status)
    });
    assert_eq!(refused, 429, "all of the old quota is used, so is all of the new one");

    gateway.folder.write("customers.csv", "credential,customer,plan\nk,acme,gold\n");
    wait_for_reloads(&gateway, "failure", 1.0);
    assert!(last_attempt(&gateway)["errors"][0].as_str().unwrap().contains("customers.csv:2"));
    assert_eq!(ask().status, 429);
    gateway.folder.write("customers.csv", "credential,customer,plan\nk,acme,pro\nl,globex,pro\n");
    gateway.wait_for_metric("tollgate_config_last_reload_successful", &[], 1.0);
    assert_eq!(gateway.get("/", &[("x-api-key", "l")]).status, 200);
}

#[test]
fn changed_parameters_beside_a_broken_directory_change_nothing() {
    let origin = Origin::start();
    let config = |burst: u32| {
        format!(
            "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: free }} }}
plans: [free]
limits:
  guard: {{ algorithm: gcra, rate: 1/d, burst: {burst}, key: customer }}
{ALL_GUARDED}",
            origin.upstream()
        )
    };
    let customers = |burst: &str| {
        format!("credential,customer,plan,overrides\nk,acme,free,{{guard: {{burst: {burst}}}}}\nl,globex,free,\n")
    };
    let gateway = Gateway::start_with(&config(2), &[("customers.csv", &customers("7"))], &[]);
    let has_burst = |key: &str, burst: u32| {
        let answer = gateway.get("/", &[("x-api-key", key)]);
        answer.field("ratelimit-policy").unwrap().contains(&format!("q={burst};"))
    };
    assert!(has_burst("k", 7) && has_burst("l", 2));

    gateway.folder.write("customers.csv", customers("lots"));
    gateway.rewrite(&config(3));
    let answer = gateway.reload();
    assert_eq!(answer.status, 422);
    let errors = answer.json()["errors"].to_string();
    assert!(errors.contains("customers.csv:2") && errors.contains("guard.burst"), "{errors}");
    assert!(has_burst("k", 7) && has_burst("l", 2));

    gateway.folder.write("customers.csv", customers("8"));
    gateway.wait_for_metric("tollgate_config_last_reload_successful", &[], 1.0);
    assert!(has_burst("k", 8) && has_burst("l", 3), "both come into force together");
}

#[test]
fn a_route_that_is_gone_is_not_found_while_its_request_ends_as_it_began() {
    let (command, origin) = Origin::on_command();
    let route = |name: &str| {
        format!(
            "{}limits: {{ guard: {{ algorithm: concurrency, limit: 1, key: all }} }}
routes: [{{ name: {name}, match: {{ path: /{name} }}, upstream: origin, limits: [guard] }}]\n",
            origin.upstream()
        )
    };
    let gateway = Gateway::start(&route("old"));
    let mut client = gateway.client();
    client.send_request("GET", "/old", &[]);
    command.send(b"before").unwrap();
    let head = client.wire.head().unwrap().unwrap();
    let mut framing = Framing::of_response(&head, false);
    assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), b"before");

    gateway.rewrite(&route("new"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.get("/old", &[]).status, 404);
    assert_eq!(gateway.get("/new", &[]).status, 429, "the slot is taken by a request of the old route");
    let in_flight = || gateway.metrics().value("tollgate_http_requests_in_flight", &[("route", "old")]);
    assert_eq!(in_flight(), Some(1.0));
    command.send(b"after").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), b"after");
    command.send(b"").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap(), None);
    wait_until("the series of the old route to go", || in_flight().is_none());
    let left = gateway.admin_get("/metrics").text();
    assert!(!left.contains("route=\"old\""), "{left}");
    command.send(b"").unwrap();
    assert_eq!(gateway.get("/new", &[]).status, 200, "the slot is free");
}

/// A request that goes on under the first configuration keeps the series of its route.
#[test]
fn a_route_that_comes_back_shows_no_request_a_second_time() {
    let (command, origin) = Origin::on_command();
    let routes = |more: &str| {
        let upstream = origin.upstream();
        format!("{upstream}routes: [{more}{{ name: all, upstream: origin }}]\n")
    };
    let gateway = Gateway::start(&routes("{ name: r, match: { path: /r }, upstream: origin }, "));
    let counts = |name: &str| -> Vec<u64> {
        let fields = [("host", "localhost"), ("connection", "close")];
        let answer = Client::connect(gateway.admin).round_trip("GET", "/v1/routes", &fields).json();
        let route = answer["routes"].as_array().unwrap().iter().find(|route| route["name"] == name).cloned();
        let series = route.map(|route| route["series"]["requests"].clone()).unwrap_or_default();
        series.as_array().into_iter().flatten().map(|count| count.as_u64().unwrap()).collect()
    };
    let ask = |target: &str| {
        command.send(b"").unwrap();
        assert_eq!(gateway.get(target, &[]).status, 200);
    };
    // the first look only begins
    wait_until("a look", || {
        ask("/");
        !counts("all").is_empty()
    });
    (0..3).for_each(|_| ask("/r"));
    wait_until("the requests to show", || counts("r").iter().sum::<u64>() == 3);
    let (mut client, before) = (gateway.client(), origin.count());
    client.send_request("GET", "/r", &[]);
    origin.wait_for_count(before + 1);
    for more in ["", "{ name: r, match: { path: /r }, upstream: origin }, "] {
        gateway.rewrite(&routes(more));
        assert_eq!(gateway.reload().status, 200);
        let looks = counts("all").len();
        wait_until("two looks", || counts("all").len() >= looks + 2);
    }
    command.send(b"").unwrap();
    assert_eq!(client.receive().status, 200);
    ask("/r");
    let shown = || counts("r").iter().sum::<u64>();
    wait_until("both requests to show", || shown() >= 5);
    assert_eq!(shown(), 5);
}

#[test]
fn names_that_come_and_go_leave_nothing_behind() {
    let origin = Origin::start();
    let config = |name: usize| {
        format!(
            "upstreams: {{ u{name}: {{ nodes: [{}] }} }}
customers: {{ identify: [{{ bearer: true }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: p{name} }} }}
plans: [p{name}]
limits: {{ l{name}: {{ algorithm: gcra, rate: 1/d, burst: 1, key: client_address }} }}
routes: [{{ name: r{name}, upstream: u{name}, limits: [l{name}] }}]\n",
            origin.node()
        )
    };
    let files = [("customers.csv", "credential,customer,plan\n")];
    let gateway = Gateway::start_with(&config(0), &files, &[]);
    let mut client = gateway.client();
    // Series that otherwise appear with their first count exist before it.
    assert_eq!([client.get("/").status, client.get("/").status], [200, 429]);
    for code in ["200", "429"] {
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "r0"), ("code", code)], 1.0);
    }
    let before = gateway.admin_get("/metrics").text().lines().count();
    for name in 1..=150 {
        gateway.rewrite(&config(name));
        let answer = gateway.reload();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!([client.get("/").status, client.get("/").status], [200, 429]);
    }
    wait_until("the series of what is gone to go", || {
        let text = gateway.admin_get("/metrics").text();
        // The lines about evictions come later.
        text.lines().count() <= before + 2 && !text.contains("r149")
    });
    let tables = || gateway.admin_get("/status").json()["store"]["tables"].as_u64().unwrap();
    // The tables in force, and a bounded number of old ones that may return.
    wait_until("the tables of what is gone to go", || (1..=65).contains(&tables()));
}

#[test]
fn nodes_keep_their_health_and_new_ones_are_checked() {
    let (first, second) = (Origin::start(), Origin::start());
    first.set_healthy(false);
    let check = "health_check: { path: /healthz, every: 50ms, healthy_after: 1, unhealthy_after: 1 }";
    let config = |nodes: &[&Origin], more: &str| {
        let nodes: Vec<String> = nodes.iter().map(|origin| origin.node()).collect();
        format!(
            "{}routes: [{{ name: all, upstream: origin }}]\n",
            crate::support::origin::upstream(&nodes, &format!("{check}{more}"))
        )
    };
    let gateway = Gateway::start(&config(&[&first], ""));
    wait_until("the node to be found unhealthy", || gateway.get("/", &[]).status == 503);
    gateway.rewrite(&config(&[&first], ", slow_start: 1s"));
    assert_eq!(gateway.reload().status, 200);
    let nodes = gateway.admin_get("/status").json()["upstreams"][0]["nodes"].clone();
    assert_eq!(nodes[0]["healthy"], false);
    gateway.rewrite(&config(&[&first, &second], ""));
    assert_eq!(gateway.reload().status, 200);
    wait_until("health checks of the new node", || second.checks() > 2);
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway.rewrite(&config(&[&second], ""));
    assert_eq!(gateway.reload().status, 200);
    let (before, at_second) = (first.checks(), second.checks());
    wait_until("more checks of the node that stays", || second.checks() > at_second + 4);
    assert!(first.checks() <= before + 1, "the node that is gone is not checked any more");
}
