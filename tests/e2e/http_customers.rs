//! Customers in an HTTP service: looked up, cached, and still known while the service is unavailable.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::admin_api::{BEARER, HOST, post, started};
use crate::support::gateway::is_ready;
use crate::support::http2::{Http2, all};
use crate::support::{Exchange, Folder, Gateway, Origin, Process, Response, free_port, together, wait_until};

/// The SHA-256 of `key-1`.
const FIELD: &str = "sha256:be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44";

/// A service that gives every request the same answer, and records the requests.
struct Service {
    origin: Origin,
    says: Arc<Mutex<Option<(&'static str, String)>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The field `authorization` and the body of a request.
type Asked = (Option<String>, Value);

impl Service {
    fn start(status: &'static str, body: &Value) -> Self {
        let (says, asked) = (Arc::new(Mutex::new(Some((status, body.to_string())))), Arc::new(Mutex::default()));
        let (said, noted): (_, Arc<Mutex<Vec<Asked>>>) = (Arc::clone(&says), Arc::clone(&asked));
        let origin = Origin::with(move |exchange: &mut Exchange<'_>| {
            assert_eq!((exchange.method(), exchange.path()), ("POST", "/verify"));
            let token = exchange.head.field("authorization").map(str::to_owned);
            let question = serde_json::from_slice(&exchange.body()?).unwrap();
            noted.lock().push((token, question));
            let says = said.lock().clone();
            match says {
                Some((status, body)) => exchange.reply(status, "", body.as_bytes()),
                None => exchange.wait_for_end(),
            }
        });
        Self { origin, says, asked }
    }

    fn say(&self, status: &'static str, body: &Value) {
        *self.says.lock() = Some((status, body.to_string()));
    }

    /// Makes the service accept requests and answer none.
    fn hang(&self) {
        *self.says.lock() = None;
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

/// A gateway with its customers in `service`. `http` is added to the settings of `http`, `options` to those of the
/// directory.
fn gateway(origin: &Origin, service: &Service, http: &str, options: &str) -> Gateway {
    Gateway::start_with(&config(origin, service, http, options), &[("token", "canary-7c2e\n")], &[])
}

fn config(origin: &Origin, service: &Service, http: &str, options: &str) -> String {
    format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ http: {{ url: \"http://{}/verify\", token_file: token{http} }}{options} }}
plans: [free, pro]
limits: {{ guard: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 10000, plans: {{ pro: {{ burst: 20000 }} }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
        service.origin.address
    )
}

#[track_caller]
fn ask(gateway: &Gateway, key: &str) -> Response {
    gateway.get("/", &[("x-api-key", key)])
}

/// The status and the quota; the quota shows the plan.
fn told(response: &Response) -> (u16, Option<u64>) {
    (response.status, response.number("x-ratelimit-limit"))
}

#[test]
fn a_customer_is_asked_for_once_by_a_hash_and_remembered() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({ "customer": "acme", "plan": "pro" }));
    let gateway = gateway(&origin, &service, ", timeout: 10s", "");
    // concurrent requests with the same key share one look-up
    assert!(together(20, |_| told(&ask(&gateway, "key-1"))).iter().all(|told| *told == (200, Some(20_000))));
    let token = Some("Bearer canary-7c2e".to_owned());
    assert_eq!(service.asked(), [(token, json!({ "credential": FIELD }))]);
    gateway.wait_for_metric("tollgate_customer_lookups_total", &[("result", "found")], 1.0);
    // the gateway caches unknown credentials, too
    service.say("404 Not Found", &json!({ "error": "nobody" }));
    assert_eq!((ask(&gateway, "key-2").status, ask(&gateway, "key-2").status), (401, 401));
    assert_eq!(service.asked().len(), 2);
    // from then on the gateway sends the new token
    gateway.folder.write("token", "canary-another");
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(ask(&gateway, "key-3").status, 401);
    assert_eq!(service.asked().pop().unwrap().0.as_deref(), Some("Bearer canary-another"));
    let said = gateway.process.stderr() + &gateway.admin_get("/metrics").text();
    assert!(!said.contains("canary") && !said.contains("key-1"), "{said}");
}

#[test]
fn a_program_is_charged_at_the_time_at_which_the_customer_is_known() {
    let origin = Origin::start();
    let known = Arc::new(AtomicBool::new(false));
    let (says, asked) = (Arc::clone(&known), Arc::new(AtomicBool::new(false)));
    let noted = Arc::clone(&asked);
    let service = Origin::with(move |exchange: &mut Exchange<'_>| {
        exchange.body()?;
        noted.store(true, Ordering::Relaxed);
        wait_until("the answer to be wanted", || says.load(Ordering::Relaxed));
        exchange.reply("200 OK", "", br#"{"customer": "acme", "plan": "free"}"#)
    });
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ http: {{ url: \"http://{}/verify\", timeout: 10s }} }}
plans: [free]
limits: {{ guard: {{ key: all, algorithm: gcra, rate: 5/s, burst: 1 }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
        service.address
    );
    let gateway = started(&config, &[]);
    let charge = &|mut charge: Value| {
        charge["limit"] = json!("guard");
        charge["tokens"] = json!(1);
        post(&gateway, "/v1/charge", &[HOST, BEARER], &json!({ "charges": [charge] })).json()
    };
    std::thread::scope(|scope| {
        let request = json!({ "url": "http://localhost/", "headers": { "x-api-key": "key-1" } });
        let waiting = scope.spawn(move || charge(json!({ "request": request })));
        wait_until("the look-up", || asked.load(Ordering::Relaxed));
        assert_eq!(charge(json!({}))["admitted"], true);
        wait_until("the token to be there again", || {
            post(&gateway, "/v1/keys/peek", &[HOST], &json!({ "limit": "guard" })).json()["standing"]["remaining"] == 1
        });
        known.store(true, Ordering::Relaxed);
        assert_eq!(waiting.join().unwrap()["admitted"], true);
    });
}

#[test]
fn a_changed_plan_and_a_suspension_are_taken_up_when_the_answer_is_old() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({ "customer": "acme", "plan": "free" }));
    let gateway = gateway(&origin, &service, ", timeout: 10s", ", ttl: 100ms");
    assert_eq!(told(&ask(&gateway, "key-1")), (200, Some(10_000)));
    service.say("200 OK", &json!({ "customer": "acme", "plan": "pro" }));
    wait_until("the other plan", || told(&ask(&gateway, "key-1")) == (200, Some(20_000)));
    service.say("200 OK", &json!({ "customer": "acme", "plan": "pro", "suspended": true }));
    wait_until("the suspension", || ask(&gateway, "key-1").status == 403);
}

#[test]
fn an_answer_stays_good_whatever_the_service_says_afterwards() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({ "customer": "acme", "plan": "free" }));
    let gateway = gateway(&origin, &service, "", ", ttl: 1ms, negative_ttl: 1ms");
    wait_until("an answer in time", || ask(&gateway, "key-1").status == 200);
    let bad = [
        ("500 Internal Server Error", json!("canary")),
        ("200 OK", json!({ "customer": "acme", "plan": "gold" })),
        ("200 OK", json!({ "customer": "x".repeat(100_000), "plan": "free" })),
        ("302 Found", json!({})),
    ];
    for (status, body) in bad {
        let before = service.asked().len();
        service.say(status, &body);
        wait_until("a call", || {
            assert_eq!(told(&ask(&gateway, "key-1")), (200, Some(10_000)));
            service.asked().len() > before
        });
        let response = ask(&gateway, "stranger");
        assert_eq!((response.status, response.number("retry-after")), (503, Some(1)), "{response:?}");
    }
    service.say("200 OK", &json!({ "customer": "acme", "plan": "pro" }));
    wait_until("the other plan", || told(&ask(&gateway, "key-1")) == (200, Some(20_000)));
    let said = gateway.process.stderr();
    assert!(said.contains("answers with status 500") && !said.contains("canary"), "{said}");
}

#[test]
fn a_service_that_hangs_or_dies_holds_nobody_up() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({ "customer": "acme", "plan": "free" }));
    let gateway = gateway(&origin, &service, ", timeout: 200ms", ", ttl: 1ms");
    wait_until("an answer in time", || ask(&gateway, "key-1").status == 200);
    service.hang();
    // an unknown client gets 503, and concurrent requests wait for one look-up together
    assert!(together(10, |_| ask(&gateway, "stranger").status).iter().all(|status| *status == 503));
    gateway.wait_for_metric("tollgate_customer_lookups_total", &[("result", "timeout")], 1.0);
    assert_eq!(ask(&gateway, "another").status, 503);
    drop(service);
    for _ in 0..20 {
        assert_eq!(ask(&gateway, "key-1").status, 200);
    }
}

#[test]
fn requests_that_go_away_during_a_look_up_are_counted_as_charged() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({}));
    service.hang();
    let by_address = "limits: { by-address: { key: client_address, algorithm: gcra, rate: 1/h, burst: 9 }, ";
    let config = config(&origin, &service, ", timeout: 10s", "").replace("limits: { ", by_address);
    let config = config.replace("[guard]", "[by-address, guard]");
    let gateway = Gateway::start_with(&config, &[("token", "canary-7c2e\n")], &[]);
    let mut client = gateway.client();
    client.send_request("GET", "/", &[("x-api-key", "key-1")]);
    service.origin.wait_for_count(1);
    client.wire.close();
    let admitted = [("limit", "by-address"), ("plan", "none"), ("outcome", "admitted")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &admitted, 1.0);
}

#[test]
fn unkey_is_asked_for_the_key_without_spending_its_credits() {
    let origin = Origin::start();
    let answer = |code: &str, plan: &str| {
        let identity = json!({ "id": "id_1", "externalId": "acme", "meta": { "plan": plan } });
        json!({ "meta": { "requestId": "req_1" }, "data": { "valid": code == "VALID", "code": code, "keyId": "key_1", "identity": identity } })
    };
    let service = Service::start("200 OK", &answer("VALID", "pro"));
    let gateway = gateway(&origin, &service, ", contract: unkey, timeout: 10s", ", ttl: 50ms, negative_ttl: 50ms");
    assert_eq!(told(&ask(&gateway, "key-1")), (200, Some(20_000)));
    assert_eq!(service.asked()[0].1, json!({ "key": "key-1", "credits": { "cost": 0 } }));
    for (code, status) in [("DISABLED", 403), ("NOT_FOUND", 401), ("USAGE_EXCEEDED", 200), ("FORBIDDEN", 401)] {
        service.say("200 OK", &answer(code, "free"));
        wait_until(code, || ask(&gateway, "key-1").status == status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_keys_on_many_streams_leave_descriptors_for_others() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let service = Service::start("200 OK", &json!({}));
    service.hang();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let rest = config(&origin, &service, ", timeout: 1s", "");
    folder.write(
        "t.yaml",
        format!("listeners: [{{ address: \"{address}\", http2: true }}]\nadmin: {{ address: \"{admin}\" }}\n{rest}"),
    );
    folder.write("token", "canary-7c2e");
    let process = Process::tollgate_within(256, &["run", "--config", "t.yaml"], folder.path());
    wait_until("readiness", || is_ready(admin));
    let mut asking = Vec::new();
    for connection in 0..4 {
        let client = Http2::connect_cleartext(address).await;
        asking.extend((0..90).map(|stream| {
            let mut client = Http2::same_connection(&client);
            async move {
                client
                    .get("http://a/", &[("x-api-key", format!("{connection}-{stream}").as_str())])
                    .await
                    .unwrap()
                    .status
            }
        }));
    }
    assert_eq!(all(asking.into_iter()).await, [503; 360]);
    assert!(!process.stderr().contains("Too many open files"), "{}", process.stderr());
}

#[test]
fn answers_stay_known_when_the_terms_of_look_ups_change() {
    let origin = Origin::start();
    let service = Service::start("200 OK", &json!({ "customer": "acme", "plan": "free" }));
    let gateway = gateway(&origin, &service, ", timeout: 10s", "");
    assert_eq!(told(&ask(&gateway, "key-1")), (200, Some(10_000)));
    service.say("503 Service Unavailable", &json!({}));
    let terms = [(", timeout: 9s", ""), ("", ", ttl: 1h, negative_ttl: 1h"), ("", ", ttl: 1h, max_cached: 5000")];
    for (http, options) in terms {
        gateway.rewrite(&config(&origin, &service, http, options));
        assert_eq!(gateway.reload().status, 200);
        assert_eq!(told(&ask(&gateway, "key-1")), (200, Some(10_000)), "{http}{options}");
    }
    // a shorter time is also that of earlier answers
    service.say("200 OK", &json!({ "customer": "acme", "plan": "pro" }));
    gateway.rewrite(&config(&origin, &service, ", timeout: 10s", ", ttl: 1ms, negative_ttl: 1ms"));
    assert_eq!(gateway.reload().status, 200);
    wait_until("the other plan", || told(&ask(&gateway, "key-1")) == (200, Some(20_000)));
}
