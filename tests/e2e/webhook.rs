//! The webhook: operators learn of keys at the marks of `warn_at`, even if the receiver is unavailable for a while.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{HMAC_SHA256, Key, verify};
use serde_json::{Value, json};

use crate::admin_api;
use crate::support::gateway::proxied;
use crate::support::origin::ReceivedRequest;
use crate::support::redis::Redis;
use crate::support::shared::wait_for_breaker;
use crate::support::tls::Authority;
use crate::support::{Gateway, Origin, RefusingNode, SetOnDrop, free_port, wait_until};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

fn config(origin: &Origin, receiver: SocketAddr, webhook: &str) -> String {
    format!(
        "upstreams: {{ origin: {{ nodes: [{}] }}, hooks: {{ nodes: [\"{receiver}\"] }} }}
limits:
  guard: {{ key: {{ header: x-account }}, algorithm: gcra, rate: 1/50h, burst: 20, warn_at: [80, 95] }}
  watched: {{ key: all, algorithm: gcra, rate: 1/h, burst: 1, shadow: true, warn_at: [50] }}
routes: [{{ name: all, upstream: origin, limits: [guard, watched] }}]
webhook: {{ upstream: hooks, path: /told, secret_file: secret, queue: queue, {webhook} }}\n",
        origin.node(),
    )
}

fn start(origin: &Origin, receiver: SocketAddr, webhook: &str) -> Gateway {
    Gateway::start_with(&config(origin, receiver, webhook), &[("secret", SECRET)], &[])
}

fn nowhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Sends requests of this key until its quota is used up.
fn use_up(gateway: &Gateway, key: &str) {
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.round_trip("GET", "/", &[("x-account", key)]).status, 200);
    }
}

fn field<'s>(seen: &'s ReceivedRequest, name: &str) -> &'s str {
    seen.head.all(name)[0]
}

fn body(seen: &ReceivedRequest) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

/// The key and mark in a message; checks the signature.
fn told(seen: &ReceivedRequest, secret: &str) -> (String, u64) {
    let content = format!(
        "{}.{}.{}",
        field(seen, "webhook-id"),
        field(seen, "webhook-timestamp"),
        String::from_utf8_lossy(&seen.body)
    );
    let key = Key::new(HMAC_SHA256, &STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap());
    let mut signatures =
        field(seen, "webhook-signature").split(' ').map(|signature| signature.strip_prefix("v1,").unwrap());
    let good = |signature: &str| verify(&key, content.as_bytes(), &STANDARD.decode(signature).unwrap()).is_ok();
    assert!(signatures.any(good), "{seen:?}");
    let data = &body(seen)["data"];
    (data["key"]["header x-account"].as_str().unwrap().to_owned(), data["at_percent"].as_u64().unwrap())
}

fn queued(gateway: &Gateway) -> f64 {
    gateway.metrics().value("tollgate_webhook_queue_messages", &[]).unwrap()
}

fn ended(gateway: &Gateway, result: &str, count: f64) {
    gateway.wait_for_metric("tollgate_webhook_messages_total", &[("result", result)], count);
}

#[test]
fn each_mark_of_a_key_is_told_once_with_a_signature() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let gateway = start(&origin, receiver.address, "");
    for key in ["acme", "globex", "acme"] {
        let mut client = gateway.client();
        for _ in 0..10 {
            client.round_trip("GET", "/", &[("x-account", key)]);
        }
    }
    use_up(&gateway, "initech");
    ended(&gateway, "delivered", 4.0);
    let seen = receiver.received();
    let messages: Vec<_> = seen.iter().map(|seen| told(seen, SECRET)).collect();
    let expected = ["acme", "initech"].map(|key| [80, 95].map(|mark| (key.to_owned(), mark)));
    assert_eq!(messages, expected.as_flattened());
    let first = body(&seen[0]);
    let data = &first["data"];
    assert_eq!((first["type"].as_str(), data["limit"].as_str()), (Some("limit.warning"), Some("guard")));
    assert_eq!(
        [&data["used_percent"], &data["quota"], &data["remaining"]].map(Value::as_u64),
        [Some(80), Some(20), Some(4)]
    );
    assert_eq!((seen[0].target(), field(&seen[0], "content-type")), ("/told", "application/json"));
    let ids: BTreeSet<_> = seen.iter().map(|seen| field(seen, "webhook-id")).collect();
    assert_eq!(ids.len(), 4);

    gateway.folder.write("secret", format!("{OTHER}\n{SECRET}\n"));
    assert_eq!(gateway.reload().status, 200);
    use_up(&gateway, "umbrella");
    ended(&gateway, "delivered", 6.0);
    for secret in [SECRET, OTHER] {
        assert_eq!(told(&receiver.received()[5], secret), ("umbrella".to_owned(), 95));
    }
    assert_eq!(queued(&gateway), 0.0);
}

#[test]
fn a_mark_of_a_group_is_told_once_with_the_plan_of_the_group() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let customers = "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv },
  groups: { levels: [organisation], file: groups.csv } }
plans: [free, pro]\n";
    let by_group = "guard: { key: { group: organisation }, algorithm: fixed_window, window: 1d, warn_at: [50],
    plans: { free: { limit: 4 }, pro: { limit: 10 } } }";
    let guard = "guard: { key: { header: x-account }, algorithm: gcra, rate: 1/50h, burst: 20, warn_at: [80, 95] }";
    let config = customers.to_owned() + &config(&origin, receiver.address, "").replace(guard, by_group);
    let keys = "credential,customer,plan,organisation\na,a,free,acme\nb,b,pro,acme\nc,c,pro,globex\n";
    let groups = "level,group,plan\norganisation,acme,pro\norganisation,globex,free\n";
    let gateway =
        Gateway::start_with(&config, &[("secret", SECRET), ("customers.csv", keys), ("groups.csv", groups)], &[]);
    for key in ["a", "a", "a", "a", "a", "b", "c", "c"] {
        assert_eq!(gateway.get("/", &[("x-api-key", key)]).status, 200);
    }
    ended(&gateway, "delivered", 2.0);
    let told = receiver.received().iter().map(|seen| body(seen)["data"].clone()).collect::<Vec<_>>();
    let told = told.iter().map(|data| [&data["key"]["group organisation"], &data["plan"]]).collect::<Vec<_>>();
    assert_eq!(told, [["acme", "pro"], ["globex", "free"]]);
}

#[test]
fn a_request_is_told_of_once_its_body_has_decided() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let config = config(&origin, receiver.address, "")
        .replace("burst: 20, warn_at: [80, 95]", "burst: 4, warn_at: [25]")
        .replace("shadow: true, warn_at: [50]", "over_limit: { mark: x-over }")
        .replace("routes:", "  size: { key: all, algorithm: gcra, rate: 1/50h, burst: 5, cost: { request_field: n, max: 10 } }\nroutes:")
        .replace("watched]", "watched, size]");
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    let post = |account: &str, body: &str| {
        let mut client = gateway.client();
        let length = body.len();
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\nx-account: {account}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"));
        assert_eq!(client.receive().status, 100, "the limits that go by the head have decided");
        client.send(body);
        client.receive()
    };
    let denied = post("acme", "{\"n\": 9}");
    assert_eq!(denied.status, 429);
    assert!(denied.field("ratelimit").unwrap().contains("\"guard\";r=4"), "it is not charged: {denied:?}");
    for account in ["globex", "acme"] {
        assert_eq!(post(account, "{\"n\": 1}").status, 200);
    }
    ended(&gateway, "delivered", 2.0);
    let messages: Vec<_> = receiver.received().iter().map(|seen| told(seen, SECRET)).collect();
    assert_eq!(messages, [("globex".to_owned(), 25), ("acme".to_owned(), 25)]);
    let decisions = admin_api::get(&gateway, "/v1/decisions");
    let outcomes: Vec<_> = decisions["decisions"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["marked", "denied"]);
}

#[test]
fn the_order_of_the_plans_has_no_mark_told_again_and_none_forgotten() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let by_customer = "guard: { key: customer, algorithm: fixed_window, window: 1d, warn_at: [50],
    plans: { free: { limit: 4 }, pro: { limit: 10 } } }";
    let guard = "guard: { key: { header: x-account }, algorithm: gcra, rate: 1/50h, burst: 20, warn_at: [80, 95] }";
    let config = "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }
plans: [free, pro]\n"
        .to_owned()
        + &config(&origin, receiver.address, "").replace(guard, by_customer);
    let keys = "credential,customer,plan\na,a,free\n";
    let gateway = Gateway::start_with(&config, &[("secret", SECRET), ("customers.csv", keys)], &[]);
    let ask = |count| (0..count).for_each(|_| assert_eq!(gateway.get("/", &[("x-api-key", "a")]).status, 200));
    ask(2);
    ended(&gateway, "delivered", 1.0);
    gateway.rewrite(&config.replace("[free, pro]", "[pro, free]"));
    assert_eq!(gateway.reload().status, 200);
    ask(1);
    gateway.folder.write("customers.csv", keys.replace("free", "pro"));
    assert_eq!(gateway.reload().status, 200);
    ask(3);
    ended(&gateway, "delivered", 2.0);
    let told = receiver.received().iter().map(|seen| body(seen)["data"]["plan"].clone()).collect::<Vec<_>>();
    assert_eq!(told, ["free", "pro"]);
}

/// A limit of a day's window in place of the one that refills.
fn daily(config: &str, limit: &str) -> String {
    config.replace("algorithm: gcra, rate: 1/50h, burst: 20", &format!("algorithm: fixed_window, window: 1d, {limit}"))
}

#[test]
fn a_larger_quota_has_its_marks_told_anew() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let config = config(&origin, receiver.address, "");
    let gateway = Gateway::start_with(&daily(&config, "limit: 10"), &[("secret", SECRET)], &[]);
    let ask = |count| {
        let mut client = gateway.client();
        (0..count).for_each(|_| drop(client.round_trip("GET", "/", &[("x-account", "acme")])));
    };
    ask(8);
    ended(&gateway, "delivered", 1.0);
    gateway.rewrite(&daily(&config, "limit: 100"));
    assert_eq!(gateway.reload().status, 200);
    ask(100);
    ended(&gateway, "delivered", 3.0);
    let seen = receiver.received();
    let messages: Vec<_> =
        seen.iter().map(|seen| (body(seen)["data"]["quota"].as_u64(), told(seen, SECRET).1)).collect();
    assert_eq!(messages, [(Some(10), 80), (Some(100), 80), (Some(100), 95)]);
    assert_eq!(seen.iter().map(|seen| field(seen, "webhook-id")).collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn a_denial_is_told_once_if_the_cost_jumps_past_the_marks() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let limit = "limit: 100, cost: { header: x-cost, max: 150 }";
    let config = daily(&config(&origin, receiver.address, ""), limit);
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    let ask = |key: &str, cost: &str| gateway.get("/", &[("x-account", key), ("x-cost", cost)]).status;
    assert_eq!([ask("acme", "60"), ask("acme", "45"), ask("acme", "45"), ask("acme", "38")], [200, 429, 429, 200]);
    assert_eq!(ask("globex", "150"), 429, "no quota of this size could admit it");
    assert_eq!([ask("initech", "80"), ask("initech", "21"), ask("initech", "21")], [200, 429, 429]);
    ended(&gateway, "delivered", 3.0);
    let seen = receiver.received();
    let messages: Vec<_> = seen.iter().map(|seen| told(seen, SECRET)).collect();
    assert_eq!(messages, [("acme", 95), ("initech", 80), ("initech", 95)].map(|(key, mark)| (key.to_owned(), mark)));
    let numbers = seen.iter().map(|seen| {
        let data = &body(seen)["data"];
        [&data["used_percent"], &data["quota"], &data["remaining"]].map(|number| number.as_u64().unwrap())
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [[100, 100, 40], [80, 100, 20], [100, 100, 20]]);
}

#[test]
fn a_share_of_the_limit_in_an_outage_has_no_mark_told() {
    let (origin, receiver, port) = (Origin::start(), Origin::start(), free_port());
    let redis = Redis::start_on(port, None);
    let store = format!("store: {{ redis: \"redis://127.0.0.1:{port}\", nodes: 5, timeout: 1s }}\n");
    let config = store + &daily(&config(&origin, receiver.address, ""), "mode: shared, limit: 20");
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    let ask = |count| {
        (0..count).for_each(|_| assert_eq!(gateway.get("/", &[("x-account", "acme")]).status, 200));
    };
    ask(1);
    drop(redis);
    // a fifth of the limit admits four, and one more is denied
    ask(3);
    assert_eq!(gateway.get("/", &[("x-account", "acme")]).status, 429);
    wait_for_breaker(&gateway, "open");
    let _redis = Redis::start_on(port, None);
    wait_for_breaker(&gateway, "closed");
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 0.0);
    ask(15);
    ended(&gateway, "delivered", 2.0);
    let seen = receiver.received();
    let numbers = seen.iter().map(|seen| (told(seen, SECRET).1, body(seen)["data"]["remaining"].as_u64().unwrap()));
    assert_eq!(numbers.collect::<Vec<_>>(), [(80, 4), (95, 1)]);
    for seen in &seen {
        let ends = body(seen)["data"]["whole_at"].as_str().unwrap().to_owned();
        assert!(ends.ends_with("T00:00:00.000Z"), "the end of the day by the clock of Redis: {ends}");
    }
}

#[test]
fn tokens_that_are_only_reserved_have_no_mark_told() {
    let receiver = Origin::start();
    let origin = Origin::with(|exchange| {
        let cost = exchange.path().trim_start_matches('/').to_owned();
        exchange.reply("200 OK", &format!("x-cost: {cost}\r\n"), b"")
    });
    let limit = "limit: 100, cost: { response_header: x-cost }, charge: { when: response, reserve: 90 }";
    let config = daily(&config(&origin, receiver.address, ""), limit).replace("[80, 95]", "[5]");
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    for (cost, refunded) in [(3, 87.0), (4, 173.0), (0, 263.0)] {
        assert_eq!(gateway.get(&format!("/{cost}"), &[("x-account", "acme")]).status, 200);
        let labels = [("limit", "guard"), ("plan", "none"), ("outcome", "refunded")];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, refunded);
    }
    ended(&gateway, "delivered", 1.0);
    let seen = receiver.received();
    let data = &body(&seen[0])["data"];
    assert_eq!([&data["used_percent"], &data["remaining"]].map(Value::as_u64), [Some(7), Some(93)]);
}

#[test]
fn the_bucket_of_requests_without_a_key_names_no_customer() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    for (part, lacking) in
        [("{ header: x-team }", "header x-team"), ("{ request_field: model }", "readable request field model")]
    {
        let by_both = format!("key: [{{ header: x-account }}, {part}]");
        let config = config(&origin, receiver.address, "").replace("key: { header: x-account }", &by_both);
        let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
        let before = receiver.count();
        let ask = |account: usize| {
            let fields = [("x-account", &*account.to_string()), ("content-type", "application/json")];
            gateway.client().post("/", &fields, b"{").status
        };
        assert_eq!([17, 19, 20].map(|last| (1..=last).map(ask).filter(|status| *status == 200).count()), [17, 3, 0]);
        ended(&gateway, "delivered", 2.0);
        let seen: Vec<Value> =
            receiver.received()[before..].iter().map(|seen| body(seen)["data"]["key"].clone()).collect();
        assert_eq!(seen, [json!({ lacking: null }), json!({ lacking: null })]);
        let offenders = admin_api::get(&gateway, "/v1/offenders")["offenders"].take();
        assert_eq!(offenders.as_array().unwrap().len(), 1, "{offenders}");
        assert_eq!(offenders[0]["key"], json!([{ "part": lacking, "value": null }]));
    }
}

#[test]
fn a_receiver_with_tls_is_told_once_its_certificate_is_good() {
    let (origin, receiver, authority) = (Origin::start(), Origin::start(), Authority::new());
    let signed = authority.sign(&["localhost"]);
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key)];
    let tls = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let secured = Gateway::start_listening(tls, &proxied(&receiver, ""), &files);
    let node = format!("hooks: {{ nodes: [\"localhost:{}\"]", secured.address.port());
    let in_the_clear = format!("hooks: {{ nodes: [\"{}\"]", receiver.address);
    let config = config(&origin, receiver.address, "");
    let trusting = |ca: &str| config.replace(&in_the_clear, &format!("{node}, tls: {{ ca: {ca} }}"));
    let (good, other) = (authority.pem(), Authority::new().pem());
    let files = [("secret", SECRET), ("good.pem", &good), ("other.pem", &other)];
    let gateway = Gateway::start_with(&trusting("other.pem"), &files, &[]);
    use_up(&gateway, "acme");
    let failed = [("to", "webhook"), ("result", "failure")];
    wait_until("an attempt that fails", || {
        gateway.metrics().value("tollgate_delivery_attempts_total", &failed).is_some_and(|count| count > 0.0)
    });
    assert_eq!(receiver.count(), 0);
    gateway.rewrite(&trusting("good.pem"));
    assert_eq!(gateway.reload().status, 200);
    ended(&gateway, "delivered", 2.0);
    assert_eq!(receiver.received().iter().map(|seen| told(seen, SECRET).1).collect::<Vec<_>>(), [80, 95]);
}

#[test]
fn messages_outlive_the_gateway_and_the_receivers_absence_and_keep_their_identifiers() {
    let (origin, receiver) = (Origin::start(), nowhere());
    let mut gateway = start(&origin, receiver, "");
    use_up(&gateway, "acme");
    wait_until("both messages on disk", || queued(&gateway) == 2.0);
    gateway.restart("KILL");
    wait_until("both messages to be found", || queued(&gateway) == 2.0);
    // the counts are lost, so the same marks are reported again
    use_up(&gateway, "acme");
    wait_until("four messages on disk", || queued(&gateway) == 4.0);
    let receiver = Origin::at(receiver);
    ended(&gateway, "delivered", 4.0);
    let seen = receiver.received();
    let messages: Vec<_> = seen.iter().map(|seen| (told(seen, SECRET).1, field(seen, "webhook-id"))).collect();
    assert_eq!(messages.iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), [80, 95, 80, 95]);
    assert_eq!(messages[..2], messages[2..], "a receiver knows them again");

    drop(receiver);
    gateway.end("TERM");
    gateway.start_again();
    assert_eq!(queued(&gateway), 0.0, "what is delivered stays so");
}

#[test]
fn a_receiver_that_fails_is_asked_again_until_a_message_is_too_old() {
    let origin = Origin::start();
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answers);
    let receiver = Origin::with(move |exchange| {
        exchange.body()?;
        match counted.fetch_add(1, Ordering::Relaxed) {
            0 => exchange.reply("503 Service Unavailable", "", b""),
            _ => exchange.reply("204 No Content", "", b""),
        }
    });
    let gateway = start(&origin, receiver.address, "");
    use_up(&gateway, "acme");
    ended(&gateway, "delivered", 2.0);
    let seen = receiver.received();
    let tries: Vec<_> = seen.iter().map(|seen| (field(seen, "webhook-id"), told(seen, SECRET).1)).collect();
    assert_eq!((tries.len(), tries[0]), (3, tries[1]));

    let refusing = RefusingNode::new();
    let address = refusing.node().trim_matches('"').parse().unwrap();
    gateway.rewrite(&config(&origin, address, "keep: 1s"));
    assert_eq!(gateway.reload().status, 200);
    use_up(&gateway, "globex");
    ended(&gateway, "expired", 2.0);
    assert_eq!(queued(&gateway), 0.0);
}

#[test]
fn a_full_queue_loses_what_comes_and_no_request_waits() {
    let (origin, receiver) = (Origin::start(), nowhere());
    let gateway = start(&origin, receiver, "max_queue: 64KiB");
    let keys = 150;
    for key in 0..keys {
        use_up(&gateway, &format!("customer-{key}"));
    }
    let result = |result| gateway.metrics().value("tollgate_webhook_messages_total", &[("result", result)]).unwrap();
    wait_until("all to be written or lost", || queued(&gateway) + result("no_room") == f64::from(2 * keys));
    let kept = queued(&gateway);
    assert!(kept > 50.0 && result("no_room") > 50.0, "{kept}");
    assert!(gateway.metrics().value("tollgate_webhook_queue_bytes", &[]).unwrap() <= 65_536.0);
    let receiver = Origin::at(receiver);
    ended(&gateway, "delivered", kept);
    assert_eq!(told(&receiver.received()[0], SECRET), ("customer-0".to_owned(), 80));
    // and the queue has room again
    use_up(&gateway, "later");
    ended(&gateway, "delivered", kept + 2.0);
}

#[test]
fn a_queue_that_cannot_be_opened_counts_as_failing_to_deliver() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let files = [("secret", SECRET), ("queue", "a file in place of a directory")];
    let gateway = Gateway::start_with(&config(&origin, receiver.address, ""), &files, &[]);
    use_up(&gateway, "acme");
    let failures =
        || gateway.metrics().value("tollgate_delivery_attempts_total", &[("to", "webhook"), ("result", "failure")]);
    wait_until("a failure to be counted", || failures() >= Some(1.0));
}

#[test]
fn a_queue_that_a_reload_puts_out_of_use_counts_no_messages() {
    let origin = Origin::start();
    let config = config(&origin, nowhere(), "");
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    use_up(&gateway, "acme");
    wait_until("both marks on disk", || queued(&gateway) == 2.0);
    let messages = |count| gateway.wait_for_metric("tollgate_webhook_queue_messages", &[], count);
    gateway.rewrite(config.split("webhook:").next().unwrap());
    assert_eq!(gateway.reload().status, 200);
    messages(0.0);
    assert_eq!(gateway.metrics().value("tollgate_webhook_queue_bytes", &[]), Some(0.0));
    wait_until("a line about the records", || gateway.process.stderr().contains("its records stay there"));
    gateway.rewrite(&config);
    assert_eq!(gateway.reload().status, 200);
    messages(2.0);
}

/// The settings change while a batch is being written.
#[test]
fn a_reload_of_the_webhook_loses_no_message() {
    let (origin, receiver) = (Origin::start(), nowhere());
    let config = config(&origin, receiver, "").replace("burst: 20, warn_at: [80, 95]", "burst: 2, warn_at: [50]");
    let gateway = Gateway::start_with(&config, &[("secret", SECRET)], &[]);
    let over = AtomicBool::new(false);
    let keys = std::thread::scope(|scope| {
        let ends = SetOnDrop(&over);
        let clients = ["a", "b"].map(|name| {
            let (mut client, over) = (gateway.client(), &over);
            scope.spawn(move || {
                let keys = (0..).take_while(|_| !over.load(Ordering::Relaxed));
                keys.map(|key| client.round_trip("GET", "/", &[("x-account", &format!("{name}-{key}"))])).count()
            })
        });
        for turn in 0..40 {
            gateway.folder.write("secret", if turn % 2 == 0 { OTHER } else { SECRET });
            assert_eq!(gateway.reload().status, 200);
        }
        drop(ends);
        clients.map(|client| client.join().unwrap()).iter().sum::<usize>()
    });
    let keys = f64::from(u32::try_from(keys).unwrap());
    wait_until("a message about each key on disk", || queued(&gateway) == keys);
}
