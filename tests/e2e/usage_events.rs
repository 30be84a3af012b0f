//! Usage events: billing receives the exact usage of each customer, even if the receiver is unavailable for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use parking_lot::Mutex;
use serde_json::Value;

use crate::restarts::Lineage;
use crate::support::client::request;
use crate::support::origin::ReceivedRequest;
use crate::support::wire::chunk;
use crate::support::{Client, Gateway, Origin, SetOnDrop, free_port, wait_until};

const TOKEN: &str = "canary-of-billing-7f31";

/// Tokens and requests by customer and limit.
type Sums = BTreeMap<(String, String), (u64, u64)>;

/// The usage at the upstream by customer: tokens and requests.
type Used = Arc<Mutex<BTreeMap<String, (u64, u64)>>>;

/// An upstream whose streamed responses report their cost at the end, and its own count of the costs.
fn metered() -> (Origin, Used) {
    let used = Used::default();
    let counting = Arc::clone(&used);
    let origin = Origin::with(move |exchange| {
        let customer = exchange.head.all("x-customer")[0].to_owned();
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        exchange.send(chunk(b"data: {\"delta\": \"a\", \"usage\": null}\n\n"))?;
        let cost = {
            let mut used = counting.lock();
            let (tokens, requests) = used.entry(customer).or_default();
            // costs both below and above the reserve
            let cost = 1 + *requests * 37 % 230;
            (*tokens, *requests) = (*tokens + cost, *requests + 1);
            cost
        };
        let last = format!("data: {{\"usage\": {{\"total_tokens\": {cost}}}}}\n\ndata: [DONE]\n\n");
        exchange.send(chunk(last.as_bytes()))?;
        exchange.send(chunk(b""))
    });
    (origin, used)
}

fn config(origin: &Origin, receiver: SocketAddr, usage: &str) -> String {
    format!(
        "upstreams: {{ origin: {{ nodes: [{}] }}, billing: {{ nodes: [\"{receiver}\"] }} }}
plans: [free, tiny]
customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }}, unknown: anonymous, anonymous: {{ plan: free }} }}
limits:
  calls: {{ key: customer, algorithm: gcra, plans: {{ free: {{ rate: 1000000/s, burst: 1000000 }}, tiny: {{ rate: 1/50h, burst: 5 }} }} }}
  tokens: {{ key: customer, algorithm: quota_reset, limit: 100000000, window: 1000h, cost: {{ response_field: usage.total_tokens, max: 1000 }}, charge: {{ when: response, reserve: 100 }} }}
  soft: {{ key: customer, algorithm: gcra, rate: 1/50h, burst: 3, over_limit: {{ mark: x-over }} }}
  running: {{ key: customer, algorithm: concurrency, limit: 1000 }}
routes: [{{ name: all, upstream: origin, limits: [calls, tokens, soft, running] }}]
usage_events: {{ upstream: billing, path: /api/v1/events, token_file: token, source: \"https://eu\", queue: queue, {usage} }}
state: {{ file: tollgate.state }}\n",
        origin.node(),
    )
}

/// A gateway with `count` customers; only the last has the plan `tiny`.
fn start(origin: &Origin, receiver: SocketAddr, count: usize, usage: &str) -> Gateway {
    let row =
        |number| format!("key-{number},customer-{number},{}\n", if number + 1 == count { "tiny" } else { "free" });
    let rows: String = (0..count).map(row).collect();
    let files = [("customers.csv", &*format!("credential,customer,plan\n{rows}")), ("token", TOKEN)];
    Gateway::start_with(&config(origin, receiver, usage), &files, &[])
}

fn nowhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Starts a receiver at this address, once the address is free.
fn receiver_at(address: SocketAddr) -> Origin {
    wait_until("the address of the receiver", || TcpListener::bind(address).is_ok());
    Origin::at(address)
}

/// Lets customers send requests without a pause, each on its own connection, while `work` runs.
fn under_load(address: SocketAddr, customers: usize, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for customer in 0..customers {
            let over = &over;
            scope.spawn(move || {
                let mut client = Client::connect(address);
                while !over.load(Ordering::Relaxed) {
                    if ask(&mut client, customer).is_none_or(|status| status == 0) {
                        client = Client::connect(address);
                    }
                }
            });
        }
        let at_end = SetOnDrop(&over);
        work();
        drop(at_end);
    });
}

/// The status of the response; 0 if the connection ends with it.
fn ask(client: &mut Client, customer: usize) -> Option<u16> {
    let (key, name) = (format!("key-{customer}"), format!("customer-{customer}"));
    client.wire.send(request("GET", "/", &[("x-api-key", &key), ("x-customer", &name)])).ok()?;
    let answer = client.next()?;
    Some(if answer.field("connection") == Some("close") { 0 } else { answer.status })
}

/// All received events by their identifiers; a repeated event must have the same content.
fn events(seen: &[ReceivedRequest]) -> BTreeMap<String, Value> {
    let mut events = BTreeMap::<String, Value>::new();
    for seen in seen {
        assert_eq!(seen.target(), "/api/v1/events");
        assert_eq!(seen.head.all("content-type"), ["application/cloudevents-batch+json"]);
        assert_eq!(seen.head.all("authorization"), [format!("Bearer {TOKEN}")]);
        // the receiver did not acknowledge a batch that it did not read whole
        let Ok(batch) = serde_json::from_slice::<Vec<Value>>(&seen.body) else { continue };
        for event in batch {
            let id = event["id"].as_str().unwrap().to_owned();
            let before = events.entry(id).or_insert_with(|| event.clone());
            assert_eq!(*before, event, "twice, and not the same");
        }
    }
    events
}

fn sums(seen: &[ReceivedRequest]) -> Sums {
    let mut sums = Sums::new();
    for event in events(seen).values() {
        let data = &event["data"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (tokens, requests) = sums.entry((text(&event["subject"]), text(&data["limit"]))).or_default();
        *tokens += data["tokens"].as_u64().unwrap();
        *requests += data["requests"].as_u64().unwrap();
    }
    sums
}

/// The events that billing should get for the usage at the upstream.
fn expected(used: &Used) -> Sums {
    let mut sums = Sums::new();
    for (customer, (tokens, requests)) in used.lock().iter().filter(|(customer, _)| *customer != "customer-x") {
        for (limit, tokens) in [("calls", *requests), ("tokens", *tokens), ("soft", *requests)] {
            sums.insert((customer.clone(), limit.to_owned()), (tokens, *requests));
        }
    }
    sums
}

fn queued(gateway: &Gateway) -> f64 {
    gateway.metrics().value("tollgate_usage_queue_events", &[]).unwrap()
}

#[test]
fn events_sum_up_to_what_was_admitted_through_restarts_handovers_and_a_receiver_that_dies() {
    const CUSTOMERS: usize = 6;
    let (origin, used) = metered();
    // the receiver accepts every other batch, and answers 503 to the rest, although it has read them
    let flaky = Origin::with(|exchange| {
        exchange.body()?;
        let status = if exchange.received_count() % 2 == 1 { "503 Service Unavailable" } else { "204 No Content" };
        exchange.reply(status, "", b"")
    });
    let address = flaky.address;
    let mut gateway = start(&origin, address, CUSTOMERS, "every: 1s");
    let served = gateway.address;
    under_load(served, CUSTOMERS, || wait_until("events", || flaky.count() >= 4));
    let mut seen = flaky.received();
    let ids = |seen: &[ReceivedRequest]| -> usize {
        let batches = seen.iter().filter_map(|seen| serde_json::from_slice::<Vec<Value>>(&seen.body).ok());
        batches.map(|batch| batch.len()).sum()
    };
    assert!(ids(&seen) > events(&seen).len(), "some came twice");

    // the receiver stops, and the usage of this time survives a restart of the gateway
    seen = flaky.stop();
    under_load(served, CUSTOMERS, || wait_until("events to wait", || queued(&gateway) > 20.0));
    let mut log = gateway.process.stderr();
    gateway.restart("TERM");
    wait_until("events to be found", || queued(&gateway) > 20.0);

    // a process hands over while the receiver is down, and another after it has returned
    let mut lineage = Lineage::of(gateway);
    let mut upgrade = || {
        lineage.upgrade();
        let before = origin.count();
        wait_until("the new process to be used", || origin.count() > before + 100);
    };
    under_load(served, CUSTOMERS, &mut upgrade);
    let receiver = receiver_at(address);
    under_load(served, CUSTOMERS, upgrade);
    // anonymous callers cause no usage events
    let anonymous = [("x-customer", "customer-x")];
    assert_eq!(Client::connect(served).round_trip("GET", "/", &anonymous).status, 200);
    let expected = expected(&used);
    assert_eq!(expected[&(format!("customer-{}", CUSTOMERS - 1), "calls".to_owned())], (5, 5), "it has a small plan");
    let all = || [seen.clone(), receiver.received()].concat();
    let requests = |sums: &Sums| sums.values().map(|(_, requests)| requests).sum::<u64>();
    wait_until("all to be told", || requests(&sums(&all())) >= requests(&expected));
    assert_eq!(sums(&all()), expected);
    wait_until("the queue to be empty", || queued(&lineage.gateway) == 0.0);
    assert_eq!(sums(&all()), expected, "and nothing comes after it");

    let told = events(&all());
    let event = told.values().find(|event| event["data"]["limit"] == "tokens").unwrap();
    for (name, value) in [("specversion", "1.0"), ("source", "https://eu"), ("type", "tollgate.usage")] {
        assert_eq!(event[name], value);
    }
    assert!(event["data"]["interval_start"].as_str() <= event["data"]["interval_end"].as_str(), "{event}");
    let plans: BTreeSet<_> = told.values().map(|event| event["data"]["plan"].as_str().unwrap()).collect();
    assert_eq!(plans, BTreeSet::from(["free", "tiny"]));
    log += &lineage.gateway.process.stderr();
    assert!(log.contains("cannot deliver to the receiver") && !log.contains(TOKEN), "{log}");
}

/// The sums that the gateway has saved beside the queue.
fn saved(gateway: &Gateway) -> String {
    let files = std::fs::read_dir(gateway.folder.path().join("queue")).unwrap().flatten();
    let sums = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sums"));
    sums.filter_map(|file| std::fs::read(file.path()).ok())
        .map(|sums| String::from_utf8_lossy(&sums).into_owned())
        .collect()
}

#[test]
fn usage_of_requests_that_end_while_the_process_stops_is_saved_before_the_others_end() {
    let (finish, finished) = channel::<()>();
    let finished = Mutex::new(finished);
    let origin = Origin::with(move |exchange| {
        if exchange.path() == "/stall" {
            return exchange.wait_for_end();
        }
        finished.lock().recv().unwrap_or_default();
        exchange.reply("200 OK", "content-type: application/json\r\n", b"{\"usage\": {\"total_tokens\": 7}}")
    });
    let gateway = start(&origin, nowhere(), 1, "every: 1h");
    let [mut stalled, mut client] = [gateway.client(), gateway.client()];
    stalled.send_request("GET", "/stall", &[("x-api-key", "key-0")]);
    client.send_request("GET", "/", &[("x-api-key", "key-0")]);
    origin.wait_for_count(2);
    gateway.process.signal("TERM");
    wait_until("the end to begin", || TcpStream::connect(gateway.address).is_err());
    finish.send(()).unwrap();
    assert_eq!(client.receive().status, 200);
    wait_until("its usage on disk", || saved(&gateway).contains("\"tokens\":7}"));
    drop(stalled);
}

#[test]
fn events_that_wait_for_the_queue_of_another_process_are_shown() {
    let (origin, _) = metered();
    let first = start(&origin, nowhere(), 1, "every: 1s");
    let queue = format!("queue: \"{}\"", first.folder.path().join("queue").display());
    let config = config(&origin, nowhere(), "every: 1s").replace("queue: queue", &queue);
    let files = [("customers.csv", "credential,customer,plan\nkey-0,customer-0,free\n"), ("token", TOKEN)];
    let second = Gateway::start_with(&config, &files, &[]);
    assert_eq!(ask(&mut second.client(), 0), Some(200));
    wait_until("an event in memory", || queued(&second) > 0.0);
    assert!(second.process.stderr().contains("another process has the queue on disk open"));
}

#[test]
fn a_killed_process_loses_nothing_that_it_had_saved() {
    let ((origin, used), address) = (metered(), nowhere());
    let mut gateway = start(&origin, address, 2, "every: 1h");
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(ask(&mut client, 0), Some(200));
    }
    wait_until("sums on disk", || saved(&gateway).matches("\"requests\":20,").count() == 3);
    assert_eq!(queued(&gateway), 0.0, "the interval is not over");
    gateway.restart("KILL");
    let receiver = receiver_at(address);
    wait_until("what was saved to be told", || !sums(&receiver.received()).is_empty());
    assert_eq!(sums(&receiver.received()), expected(&used));
    gateway.restart("KILL");
    wait_until("the queue to be open", || gateway.metrics().value("tollgate_usage_queue_bytes", &[]) == Some(0.0));
    assert_eq!(ask(&mut gateway.client(), 0), Some(200));
    // a shutdown sends the sums of the unfinished interval
    gateway.end("TERM");
    gateway.start_again();
    wait_until("the rest to be told", || sums(&receiver.received()) == expected(&used));
}

#[test]
fn an_event_that_the_receiver_does_not_want_does_not_hold_up_the_others() {
    let (origin, used) = metered();
    let receiver = Origin::with(|exchange| {
        let body = exchange.body()?;
        let is_wrong = String::from_utf8_lossy(&body).contains("\"subject\":\"customer-1\"");
        exchange.reply(if is_wrong { "400 Bad Request" } else { "200 OK" }, "", b"")
    });
    let gateway = start(&origin, receiver.address, 4, "every: 1s, limits: [tokens]");
    for customer in 0..4 {
        assert_eq!(ask(&mut gateway.client(), customer), Some(200));
    }
    gateway.wait_for_metric("tollgate_usage_events_total", &[("result", "refused")], 1.0);
    gateway.wait_for_metric("tollgate_usage_events_total", &[("result", "delivered")], 3.0);
    let told = sums(&receiver.received());
    assert_eq!(told.keys().map(|(_, limit)| limit.as_str()).collect::<BTreeSet<_>>(), BTreeSet::from(["tokens"]));
    assert_eq!(told.len(), used.lock().len());
    // the log has the data to book the event by hand
    let log = gateway.process.stderr();
    assert!(
        log.contains("removed from the queue without delivery")
            && log.contains(r#""result":"refused""#)
            && log.contains("customer-1")
            && !log.contains(TOKEN),
        "{log}"
    );
}

#[test]
fn requests_that_end_before_their_body_decides_are_in_no_event() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let by_body = "soft: { key: customer, cost: { request_field: n, max: 9 }";
    let config =
        config(&origin, receiver.address, "every: 1s, limits: [calls]").replace("soft: { key: customer", by_body);
    let files = [("customers.csv", "credential,customer,plan\nkey-0,customer-0,free\n"), ("token", TOKEN)];
    let gateway = Gateway::start_with(&config, &files, &[]);
    for _ in 0..3 {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: key-0\r\ncontent-length: 99\r\n\r\n{\"n\": 1");
        client.wire.close();
    }
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "499")], 3.0);
    assert_eq!(gateway.client().post("/", &[("x-api-key", "key-0")], b"{\"n\": 1}").status, 200);
    wait_until("the event", || !sums(&receiver.received()).is_empty());
    assert_eq!(sums(&receiver.received()), Sums::from([(("customer-0".into(), "calls".into()), (1, 1))]));
}

/// The recipe of docs/usage-events.md.
#[test]
fn a_shadow_limit_meters_customers_whose_plan_is_unlimited() {
    let (origin, receiver) = (Origin::start(), Origin::start());
    let meter = "  meter: { key: customer, algorithm: fixed_window, limit: 1, window: 1d, shadow: true }\nroutes:";
    let config = config(&origin, receiver.address, "every: 1s, limits: [calls, meter]")
        .replace("tiny: { rate: 1/50h, burst: 5 }", "tiny: unlimited")
        .replace("routes:", meter)
        .replace("[calls, tokens, soft, running]", "[calls, meter]");
    let customers = "credential,customer,plan\nkey-0,customer-0,free\nkey-1,customer-1,tiny\n";
    let gateway = Gateway::start_with(&config, &[("customers.csv", customers), ("token", TOKEN)], &[]);
    for customer in [0, 1, 1, 0, 1] {
        assert_eq!(ask(&mut gateway.client(), customer), Some(200));
    }
    let expected = [(0, "calls", 2), (0, "meter", 2), (1, "meter", 3)];
    let expected = expected.map(|(of, limit, count)| ((format!("customer-{of}"), limit.to_owned()), (count, count)));
    wait_until("the events of both", || sums(&receiver.received()) == Sums::from(expected.clone()));
}

#[test]
fn a_full_queue_makes_intervals_longer_and_loses_nothing() {
    const CUSTOMERS: usize = 100;
    let ((origin, used), address) = (metered(), nowhere());
    let gateway = start(&origin, address, CUSTOMERS, "every: 1s, max_queue: 64KiB");
    let ask_all = || (0..CUSTOMERS).for_each(|customer| assert!(ask(&mut gateway.client(), customer).is_some()));
    let bytes = || gateway.metrics().value("tollgate_usage_queue_bytes", &[]).unwrap();
    wait_until("the queue to be full", || {
        ask_all();
        bytes() > 65_000.0
    });
    ask_all();
    assert!(bytes() <= 65_536.0);
    let receiver = receiver_at(address);
    wait_until("all to be told", || sums(&receiver.received()) == expected(&used));
    assert_eq!(gateway.metrics().value("tollgate_usage_events_total", &[("result", "lost")]), Some(0.0));
}
