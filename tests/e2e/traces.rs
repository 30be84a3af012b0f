//! A collector that decodes the received spans finds one span per request, in the trace that the upstream sees.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use http::Response;
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::http2::{Http2, http2_upstream};
use crate::support::origin::ReceivedRequest;
use crate::support::redis::Redis;
use crate::support::{Client, Gateway, Origin, RefusingNode, free_port, wait_for, wait_until};

const TOKEN: &str = "canary-of-the-collector-51c0";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The part of `opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest` that the tests read. The messages are
/// declared again here: with tollgate's own declarations, the tests would not notice a wrong tag.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// A value; one field is set. A field with its default value looks like an absent one.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(int64, tag = "3")]
    whole: i64,
    #[prost(double, tag = "4")]
    number: f64,
}

fn pairs(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |value: &AnyValue| match value {
        AnyValue { text, whole: 0, number: 0.0 } => json!(text),
        AnyValue { whole, number: 0.0, .. } => json!(whole),
        AnyValue { number, .. } => json!(number),
    };
    attributes.iter().map(|pair| (pair.key.clone(), value(pair.value.as_ref().unwrap()))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Span {
    fn attribute(&self, name: &str) -> Value {
        pairs(&self.attributes).remove(name).unwrap_or(Value::Null)
    }

    fn ids(&self) -> [String; 3] {
        [hex(&self.trace_id), hex(&self.span_id), hex(&self.parent_span_id)]
    }
}

fn collector() -> Origin {
    answering("200 OK", "")
}

fn answering(status: &'static str, fields: &'static str) -> Origin {
    Origin::with(move |exchange| {
        exchange.body()?;
        exchange.reply(status, fields, b"")
    })
}

/// The decoded exports that arrived whole.
fn posted(seen: &[ReceivedRequest]) -> Vec<Export> {
    let whole = seen.iter().filter(|seen| seen.head.field("content-length") == Some(&*seen.body.len().to_string()));
    let read = |seen: &ReceivedRequest| {
        assert_eq!((seen.head.word(0), seen.target()), ("POST", "/v1/traces"));
        assert_eq!(seen.head.field("content-type"), Some("application/x-protobuf"));
        assert_eq!(seen.head.field("authorization"), Some(&*format!("Bearer {TOKEN}")));
        Export::decode(&*seen.body).unwrap()
    };
    whole.map(read).collect()
}

/// All received spans.
fn spans(collector: &Origin) -> Vec<Span> {
    let resources = posted(&collector.received()).into_iter().flat_map(|export| export.resource_spans);
    resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

fn wait_for_span(collector: &Origin, path: &str) -> Span {
    wait_for(&format!("the span of {path}"), || {
        spans(collector).into_iter().find(|span| span.attribute("url.path") == path)
    })
}

/// A gateway with `origin` for all requests under a limit of two, and more settings.
fn config(origin: &Origin, collector: SocketAddr, traces: &str, more: &str) -> String {
    format!(
        "upstreams: {{ origin: {{ nodes: [{}] }}, collector: {{ nodes: [\"{collector}\"] }} }}
limits: {{ two: {{ key: {{ header: x-user }}, missing_key: skip, algorithm: gcra, rate: 1/h, burst: 2 }} }}
routes: [{{ name: all, upstream: origin, limits: [two] }}]
access_log: full
traces: {{ upstream: collector, token_file: token, {traces} }}\n{more}",
        origin.node()
    )
}

fn start(config: &str) -> Gateway {
    Gateway::start_with(config, &[("token", TOKEN)], &[])
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn nowhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

#[test]
fn a_span_says_what_the_access_log_says_and_the_upstream_is_told_of_it() {
    let (origin, collector, redis, refusing) = (Origin::start(), collector(), Redis::start(), RefusingNode::new());
    let gateway = Gateway::start_with(
        &format!(
            "upstreams:
  origin: {{ nodes: [{}] }}
  refusing: {{ nodes: [{}] }}
  collector: {{ nodes: [{}] }}
store: {{ redis: \"{}\", timeout: 1s }}
plans: [free]
customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: free }} }}
limits:
  two: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 2 }}
  common: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 9, mode: shared }}
routes:
  - {{ name: orders, match: {{ path: \"/orders/{{id}}\" }}, upstream: origin, limits: [two] }}
  - {{ name: common, match: {{ path: /common/** }}, upstream: origin, limits: [common] }}
  - {{ name: refused, match: {{ path: /refused }}, upstream: refusing }}
access_log: full
traces: {{ upstream: collector, token_file: token, sample: 1, service: edge }}\n",
            origin.node(),
            refusing.node(),
            collector.node(),
            redis.url()
        ),
        &[("token", TOKEN), ("customers.csv", "credential,customer,plan\nkey-of-acme,acme,free\n")],
        &[],
    );
    let key = ("x-api-key", "key-of-acme");
    for (target, status) in
        [("/orders/1?secret=of-a-query", 200), ("/orders/2", 200), ("/orders/3", 429), ("/common/4", 200)]
    {
        let fields = [key, ("traceparent", &*parent("00")), ("tracestate", "vendor=1")];
        assert_eq!(gateway.get(target, &fields).status, status, "{target}");
    }
    assert_eq!(gateway.get("/refused", &[("tracestate", "vendor=1")]).status, 502);
    assert_eq!(gateway.get("/nowhere", &[]).status, 404);

    let mut found = wait_for("six spans", || <[Span; 6]>::try_from(spans(&collector)).ok());
    found.sort_by_key(|span| span.start_time_unix_nano);
    let words = ["orders/1\"", "orders/2\"", "orders/3\"", "common/4\"", "refused\"", "\"status\":404"];
    for (word, span) in words.iter().zip(&found) {
        let line = gateway.process.wait_for_access(word);
        for (attribute, field) in [
            ("http.request.method", "method"),
            ("url.path", "path"),
            ("server.address", "host"),
            ("http.response.status_code", "status"),
            ("client.address", "client"),
            ("tollgate.route", "route"),
            ("tollgate.customer", "customer"),
            ("tollgate.plan", "plan"),
            ("tollgate.outcome", "decision"),
            ("tollgate.limit", "limit"),
            ("tollgate.upstream_node", "upstream"),
            ("tollgate.answered", "answered"),
        ] {
            assert_eq!(span.attribute(attribute), line[field], "{attribute} of {word}: {span:?}");
        }
        assert_eq!(line["trace_id"], span.ids()[0], "{word}");
        assert_eq!((span.kind, span.attribute("url.scheme")), (2, json!("http")));
        let took = span.end_time_unix_nano - span.start_time_unix_nano;
        let logged = line["duration_seconds"].as_f64().unwrap();
        assert!((took as f64 / 1e9 - logged).abs() < 1e-6, "{word}: {took} ns and {logged} s");
    }
    let [first, _, denied, common, refused, nowhere] = &found;
    let names = found.each_ref().map(|span| span.name.as_str());
    let orders = "GET /orders/{id}";
    assert_eq!(names, [orders, orders, orders, "GET /common/**", "GET /refused", "GET"]);
    assert_eq!(first.attribute("http.route"), "/orders/{id}");
    let sources = found.each_ref().map(|span| span.attribute("tollgate.decision_source"));
    let nothing = Value::Null;
    let local = json!("local");
    assert_eq!(sources, [local.clone(), local.clone(), local, json!("store"), nothing.clone(), nothing.clone()]);
    assert_eq!(denied.attribute("tollgate.outcome"), "denied");
    assert_eq!(
        (denied.attribute("tollgate.upstream"), first.attribute("tollgate.upstream")),
        (nothing, json!("origin"))
    );
    let statuses = found.each_ref().map(|span| span.status.as_ref().map(|status| status.code));
    assert_eq!(statuses, [None, None, None, None, Some(2), None]);
    assert_eq!(refused.attribute("error.type"), "502");

    // a request without a trace starts one; a request with a trace continues it, and the upstream's parent is the gateway's
    // span
    for span in [first, denied, common] {
        let [trace, id, above] = span.ids();
        assert_eq!((&*trace, &*above, id.len(), span.flags), (TRACE, PARENT, 16, 0x301));
    }
    for span in [refused, nowhere] {
        let [trace, _, above] = span.ids();
        assert!(trace.len() == 32 && trace != TRACE && above.is_empty() && span.flags == 0x101, "{span:?}");
    }
    for (seen, span) in origin.received().iter().zip([first, &found[1], common]) {
        let [trace, id, _] = span.ids();
        assert_eq!(seen.head.field("traceparent"), Some(&*format!("00-{trace}-{id}-01")));
        assert_eq!(seen.head.field("tracestate"), Some("vendor=1"));
    }
    let posted = posted(&collector.received());
    let about = pairs(&posted[0].resource_spans[0].resource.as_ref().unwrap().attributes);
    assert_eq!(
        (&about["service.name"], &about["service.version"]),
        (&json!("edge"), &json!(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(about["service.instance.id"].as_str().unwrap().len(), 36);
    let said = format!("{posted:?}{}{}", gateway.process.stdout(), gateway.process.stderr());
    assert!(!said.contains("key-of-acme") && !said.contains("of-a-query") && !said.contains(TOKEN), "{said}");
    gateway.wait_for_metric("tollgate_trace_spans_total", &[("result", "sent")], 6.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_the_upstream_is_told_of_the_span_too() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let upstream = http2_upstream(move |request, mut respond| {
        let field = |name: &str| request.headers().get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
        telling.lock().push([field("traceparent").collect::<Vec<_>>(), field("tracestate").collect()]);
        respond.send_response(Response::new(()), true).unwrap();
    })
    .await;
    let collector = collector();
    let config = format!(
        "upstreams: {{ origin: {{ nodes: [\"{upstream}\"], http2: true }}, collector: {{ nodes: [{}] }} }}
routes: [{{ name: all, upstream: origin }}]
traces: {{ upstream: collector, token_file: token, sample: 1 }}\n",
        collector.node()
    );
    let gateway = Gateway::start_listening("http2: true", &config, &[("token", TOKEN)]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let whole = parent("01");
    let nonsense = whole.to_uppercase();
    for (path, field) in [("told", &whole), ("nonsense", &nonsense)] {
        let fields = [("traceparent", &**field), ("tracestate", "vendor=1")];
        assert_eq!(client.get(&format!("http://test/{path}"), &fields).await.unwrap().status, 200);
    }
    let [first, second] =
        tokio::task::block_in_place(|| ["/told", "/nonsense"].map(|path| wait_for_span(&collector, path)));
    let [trace, id, above] = first.ids();
    assert_eq!((&*trace, &*above), (TRACE, PARENT));
    assert_eq!(first.attribute("network.protocol.version"), "2");
    let [other, second_id, above] = second.ids();
    assert!(other != TRACE && above.is_empty(), "{second:?}");
    let state = vec!["vendor=1".to_owned()];
    let expected = [
        [vec![format!("00-{trace}-{id}-01")], state],
        // the gateway drops `tracestate`, because it cannot tell which trace it belongs to
        [vec![format!("00-{other}-{second_id}-01")], Vec::new()],
    ];
    assert_eq!(*told.lock(), expected);
}

#[test]
fn only_trusted_proxies_decide_which_requests_have_spans() {
    let (origin, collector) = (Origin::start(), collector());
    let more = "client_address: { trusted_proxies: [127.0.0.2] }\n";
    let gateway = start(&config(&origin, collector.address, "sample: 0", more));
    let ask = |last: u8, target: &str, flags: &str| {
        let fields = [("traceparent", &*parent(flags)), ("tracestate", "vendor=1")];
        assert_eq!(gateway.client_from(last).round_trip("GET", target, &fields).status, 200);
    };
    ask(1, "/stranger", "01");
    ask(2, "/unsampled", "00");
    ask(2, "/sampled", "01");
    let span = wait_for_span(&collector, "/sampled");
    assert_eq!(spans(&collector).len(), 1, "nobody else has one");
    let told = |target: &str| {
        let seen = origin.received();
        let seen = seen.iter().find(|seen| seen.target() == target).unwrap();
        assert_eq!(seen.head.field("tracestate"), Some("vendor=1"));
        seen.head.field("traceparent").unwrap().to_owned()
    };
    assert_eq!([told("/stranger"), told("/unsampled")], [parent("01"), parent("00")], "as they came");
    assert_eq!(told("/sampled"), format!("00-{TRACE}-{}-01", span.ids()[1]));
}

#[test]
fn of_strangers_requests_a_share_has_spans_whatever_they_ask_for() {
    const REQUESTS: usize = 1000;
    let (origin, collector) = (Origin::start(), collector());
    let gateway = start(&config(&origin, collector.address, "sample: 0.2", ""));
    let mut client = gateway.client();
    for number in 0..REQUESTS {
        let flags = parent(["00", "01"][number % 2]);
        assert_eq!(client.round_trip("GET", "/", &[("traceparent", &flags)]).status, 200);
    }
    let told = |seen: &ReceivedRequest| seen.head.field("traceparent").is_some_and(|told| !told.contains(PARENT));
    let sampled = origin.received().iter().filter(|seen| told(seen)).count();
    // ten standard deviations to either side
    assert!((75..325).contains(&sampled), "{sampled} of {REQUESTS}");
    wait_until("all spans", || spans(&collector).len() == sampled);
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_requests() {
    const MAX_SPANS: usize = 512;
    let (origin, address) = (Origin::start(), nowhere());
    let gateway = start(&config(&origin, address, "sample: 1, max_spans: 512", ""));
    let mut client = gateway.client();
    for _ in 0..MAX_SPANS + 100 {
        assert_eq!(client.get("/").status, 200);
    }
    let ended = |result| gateway.metrics().value("tollgate_trace_spans_total", &[("result", result)]).unwrap();
    wait_until("spans to be dropped", || ended("dropped") >= 100.0);
    wait_until("spans to be given up", || ended("failed") == MAX_SPANS as f64);
    let failed = [("to", "traces"), ("result", "failure")];
    assert!(gateway.metrics().value("tollgate_delivery_attempts_total", &failed).unwrap() >= 4.0);
    let log = || gateway.process.stderr();
    wait_until("the log to say so", || log().contains("cannot send spans to the collector"));
    assert!(!log().contains(TOKEN), "{}", log());

    wait_until("the address of the collector", || TcpListener::bind(address).is_ok());
    let collector = Origin::at(address);
    assert_eq!(client.get("/again").status, 200);
    wait_for_span(&collector, "/again");
    gateway.wait_for_metric("tollgate_trace_spans_total", &[("result", "sent")], 1.0);
}

#[test]
fn a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let origin = Origin::start();
    let busy = Origin::with(|exchange| {
        exchange.body()?;
        let status = if exchange.received_count() == 1 { "429 Too Many Requests" } else { "200 OK" };
        exchange.reply(status, "retry-after: 1\r\n", b"")
    });
    let gateway = start(&config(&origin, busy.address, "sample: 1", ""));
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway.wait_for_metric("tollgate_trace_spans_total", &[("result", "sent")], 1.0);
    let [first, second] = [&spans(&busy)[0], &spans(&busy)[1]];
    assert_eq!((first, busy.count()), (second, 2));

    let refusing = answering("400 Bad Request", "");
    gateway.rewrite(&config(&origin, refusing.address, "sample: 1", ""));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway.wait_for_metric("tollgate_trace_spans_total", &[("result", "refused")], 1.0);
    assert_eq!(refusing.count(), 1);
}

#[test]
fn a_reload_turns_traces_off_and_on_and_the_end_of_the_process_sends_the_rest() {
    let (origin, collector) = (Origin::start(), collector());
    let on = config(&origin, collector.address, "sample: 1", "");
    let off: String = on.lines().filter(|line| !line.starts_with("traces:")).flat_map(|line| [line, "\n"]).collect();
    let mut gateway = start(&off);
    let nonsense = parent("01").to_uppercase();
    let ask = |gateway: &Gateway, target: &str| {
        let mut client = Client::connect(gateway.address);
        client.send(request("GET", target, &[("traceparent", &nonsense), ("tracestate", "vendor=1")]));
        assert_eq!(client.receive().status, 200);
        let seen = origin.received();
        seen.iter().find(|seen| seen.target() == target).unwrap().head.field("traceparent").unwrap().to_owned()
    };
    assert_eq!(ask(&gateway, "/off"), nonsense, "as it came");
    gateway.rewrite(&on);
    assert_eq!(gateway.reload().status, 200);
    assert_ne!(ask(&gateway, "/on"), nonsense);
    wait_for_span(&collector, "/on");
    gateway.rewrite(&off);
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(ask(&gateway, "/off-again"), nonsense);
    gateway.rewrite(&on);
    assert_eq!(gateway.reload().status, 200);
    assert_ne!(ask(&gateway, "/last"), nonsense);
    gateway.end("TERM");
    let paths: Vec<Value> = spans(&collector).iter().map(|span| span.attribute("url.path")).collect();
    assert_eq!(paths, ["/on", "/last"]);
}
