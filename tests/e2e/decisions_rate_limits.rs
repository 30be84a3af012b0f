//! Envoy's gRPC questions about descriptors (`serves: rate_limit_service`).

use std::io::{Read, Write};
use std::net::TcpStream;

use prost::Message;

use crate::decisions_grpc::{CHECK, GRPC, Header, framed, message, refused, start};
use crate::support::http2::Http2;
use crate::support::{Client, Gateway, PATIENCE, wait_until};

pub const LIMIT: &str = "http://test/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub const OK: i32 = 1;
pub const OVER: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Header>,
    #[prost(message, optional, tag = "2")]
    pub limit: Option<Brought>,
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<Hits>,
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Brought {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Hits {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers: Vec<Header>,
    #[prost(message, repeated, tag = "4")]
    pub request_headers: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<Brought>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Seconds>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Seconds {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// A descriptor of the usual form: one hit, with entries written as `key=value` with commas between them.
pub fn descriptor(entries: &str) -> Descriptor {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        Header { key: key.to_owned(), value: value.to_owned() }
    };
    Descriptor { entries: entries.split(',').map(entry).collect(), ..Descriptor::default() }
}

pub fn of_domain(domain: &str, descriptors: Vec<Descriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

pub struct Envoy(pub Http2);

impl Envoy {
    pub async fn connect(gateway: &Gateway) -> Self {
        Self(Http2::connect_cleartext(gateway.address).await)
    }

    pub async fn ask(&mut self, question: &RateLimitRequest) -> RateLimitResponse {
        let answer = self.0.post(LIMIT, GRPC, framed(question)).await.unwrap();
        message(&answer)
    }

    /// The codes for these descriptors in the domain `edge`: the overall code, and each descriptor's code and remaining
    /// quota.
    pub async fn codes(&mut self, descriptors: Vec<Descriptor>) -> (i32, Vec<(i32, u32)>) {
        let answer = self.ask(&of_domain("edge", descriptors)).await;
        let each = answer.statuses.iter().map(|status| (status.code, status.limit_remaining));
        (answer.overall_code, each.collect())
    }
}

const DOMAINS: &str = "plans: [free, pro]
limits:
  per-address: { algorithm: fixed_window, limit: 3, window: 1m, key: { descriptor: remote_address } }
  writes: { algorithm: gcra, rate: 1/d, burst: 1, key: all }
  tokens: { algorithm: gcra, rate: 100/d, burst: 100, key: { descriptor: user } }
  double: { algorithm: gcra, rate: 3/d, burst: 3, cost: 2, key: all }
  budget: { algorithm: gcra, rate: 10/d, burst: 10, key: { descriptor: user }, charge: { denied: true } }
  tiers:
    algorithm: gcra
    key: { descriptor: user }
    rate: 1/d
    burst: 1
    plans: { pro: { rate: 5/d, burst: 5 } }
  watched: { algorithm: gcra, rate: 1/d, burst: 1, key: all, over_limit: { mark: x-over } }
  monthly: { algorithm: fixed_window, limit: 2, window: month, align: calendar, key: all }
  smooth: { algorithm: smooth_bursty, rate: 1/d, max_burst: 1s, key: all }
  off: { algorithm: gcra, rate: 1/d, burst: 1, key: all, enabled_percent: 0 }
domains:
  edge:
    plan: tier
    descriptors:
      - { key: remote_address, limits: [per-address] }
      - key: path
        descriptors:
          - { key: method, value: POST, limits: [writes] }
      - { key: path, value: /watched/*, limits: [watched] }
      - { key: month, limits: [monthly] }
      - { key: smooth, limits: [smooth] }
      - { key: off, limits: [off] }
      - { key: user, limits: [tokens] }
      - { key: user, value: double, limits: [double] }
      - { key: user, value: spender*, limits: [budget] }
      - { key: tier, descriptors: [{ key: user, limits: [tiers] }] }
";

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_are_charged_all_or_none_and_each_is_told_where_it_stands() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    let both = || vec![descriptor("remote_address=192.0.2.1"), descriptor("path=/v1,method=POST")];
    assert_eq!(envoy.codes(both()).await, (OK, vec![(OK, 2), (OK, 0)]));
    // the second limit denies, so the first is not charged: envoyproxy/ratelimit would charge it
    for _ in 0..5 {
        assert_eq!(envoy.codes(both()).await, (OVER, vec![(OK, 2), (OVER, 0)]));
    }
    let denied = envoy.ask(&of_domain("edge", both())).await;
    let (status, header) =
        (&denied.statuses[1], |name: &str| denied.response_headers.iter().find(|one| one.key == name));
    assert_eq!(status.current_limit, Some(Brought { requests_per_unit: 1, unit: 4 }));
    assert!((86_300..=86_400).contains(&status.duration_until_reset.as_ref().unwrap().seconds));
    assert!(header("retry-after").is_some() && header("content-type").is_some());
    let body: serde_json::Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!((&body["status"], &body["violated-policies"][0]), (&429.into(), &"writes".into()));
    let fine = envoy.ask(&of_domain("edge", vec![descriptor("remote_address=192.0.2.1")])).await;
    assert_eq!(fine.statuses[0].current_limit, Some(Brought { requests_per_unit: 3, unit: 2 }));
    assert!(fine.response_headers.iter().any(|header| header.key == "x-ratelimit-remaining" && header.value == "1"));
    // another value has another bucket; a descriptor that matches nothing is not limited
    assert_eq!(envoy.codes(vec![descriptor("remote_address=192.0.2.2")]).await, (OK, vec![(OK, 2)]));
    for nowhere in ["path=/v1", "path=/v1,method=GET", "path=/v1,method=POST,more=1", "other=1"] {
        assert_eq!(envoy.codes(vec![descriptor(nowhere)]).await, (OK, vec![(OK, 0)]), "{nowhere}");
    }
    let unknown = envoy.ask(&of_domain("unknown", both())).await;
    assert_eq!((unknown.overall_code, unknown.statuses.len(), unknown.statuses[1].code), (OK, 2, OK));
    let marked = [(); 2].map(|()| descriptor("path=/watched/a"));
    for (descriptor, marks) in marked.into_iter().zip([0, 1]) {
        let answer = envoy.ask(&of_domain("edge", vec![descriptor])).await;
        assert_eq!((answer.overall_code, answer.request_headers.len()), (OK, marks));
    }
    let over = [("route", "edge"), ("limit", "writes"), ("plan", "none"), ("outcome", "denied")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &over, 6.0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "edge"), ("code", "429")], 6.0);
    let denied = [("serves", "rate_limit_service"), ("result", "denied")];
    gateway.wait_for_metric("tollgate_decisions_total", &denied, 6.0);
    let recent = tokio::task::block_in_place(|| {
        Client::connect(gateway.admin).round_trip(
            "GET",
            "/v1/decisions",
            &[("host", "localhost"), ("connection", "close")],
        )
    });
    assert!(recent.text().contains("\"edge\""), "{}", recent.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_limit_may_be_charged_for_several_keys_and_hits_add_up() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    let of = |last: u8| descriptor(&format!("remote_address=192.0.2.{last}"));
    assert_eq!(envoy.codes(vec![of(1), of(2)]).await, (OK, vec![(OK, 2), (OK, 2)]));
    assert_eq!(envoy.codes(vec![of(1), of(1)]).await, (OK, vec![(OK, 0), (OK, 0)]), "two hits of one bucket");
    // the last one denies: the charges of the others are refunded
    for _ in 0..3 {
        assert_eq!(envoy.codes(vec![of(2), of(3), of(1)]).await.0, OVER);
    }
    assert_eq!(envoy.codes(vec![of(2), of(3)]).await, (OK, vec![(OK, 1), (OK, 2)]));
    let hits = |value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor("user=a") };
    assert_eq!(envoy.codes(vec![hits(90)]).await, (OK, vec![(OK, 10)]));
    assert_eq!(envoy.codes(vec![hits(0)]).await, (OK, vec![(OK, 10)]), "a peek takes nothing");
    assert_eq!(envoy.codes(vec![hits(11)]).await, (OVER, vec![(OVER, 10)]));
    let all = RateLimitRequest { hits_addend: 10, ..of_domain("edge", vec![descriptor("user=a")]) };
    assert_eq!(envoy.ask(&all).await.overall_code, OK);
    assert_eq!(envoy.codes(vec![hits(0)]).await, (OVER, vec![(OVER, 0)]), "a peek at what is spent");
    // a refund, which never exceeds the burst
    let back = |value| Descriptor { is_negative_hits: true, ..hits(value) };
    assert_eq!(envoy.codes(vec![back(30)]).await.0, OK);
    assert_eq!(envoy.codes(vec![hits(0)]).await, (OK, vec![(OK, 30)]));
    // it is made beside a descriptor that is denied, too
    let nothing = Some(Brought { requests_per_unit: 0, unit: 1 });
    let denied = [hits(1_000), Descriptor { limit: nothing, ..of(9) }];
    for (denied, left) in denied.into_iter().zip([35, 40]) {
        assert_eq!(envoy.codes(vec![denied, back(5)]).await.0, OVER);
        assert_eq!(envoy.codes(vec![hits(0)]).await, (OK, vec![(OK, left)]));
    }
    assert_eq!(envoy.codes(vec![back(1_000_000)]).await.0, OK);
    assert_eq!(envoy.codes(vec![hits(0)]).await, (OK, vec![(OK, 100)]));
    assert_eq!(envoy.codes(vec![hits(u64::MAX)]).await, (OVER, vec![(OVER, 100)]));
    // each hit costs two under this limit
    let double = |value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor("user=double") };
    assert_eq!(envoy.codes(vec![double(0)]).await, (OK, vec![(OK, 3)]));
    assert_eq!(envoy.codes(vec![double(1)]).await, (OK, vec![(OK, 1)]));
    assert_eq!(envoy.codes(vec![double(0)]).await, (OVER, vec![(OVER, 1)]));
    // hits of a denied call count where the limit has `charge: { denied: true }`
    let spends = |value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor("user=spender-1") };
    assert_eq!((envoy.codes(vec![spends(25)]).await.0, envoy.codes(vec![spends(0)]).await.0), (OVER, OVER));
}

/// The output of `tollgate import` for a file of envoyproxy/ratelimit is served with the meaning of that file.
#[tokio::test(flavor = "multi_thread")]
async fn an_imported_configuration_denies_bans_watches_and_lets_pass() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/import/first-example.yaml");
    let imported = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["import", FILE]).output().unwrap();
    let text = String::from_utf8(imported.stdout).unwrap();
    let (_, sections) = text.split_once("\nlimits:").unwrap();
    let gateway = start("rate_limit_service", &format!("limits:{sections}"));
    let mut envoy = Envoy::connect(&gateway).await;
    let mut ask = async |descriptors: Vec<&str>| {
        let answer = envoy.ask(&of_domain("rl", descriptors.into_iter().map(descriptor).collect())).await;
        (answer.overall_code, answer.statuses.iter().map(|status| status.code).collect::<Vec<_>>())
    };
    // a banned value is denied at once, and the descriptors beside it are not charged
    for _ in 0..3 {
        assert_eq!(ask(vec!["header=a", "header=a,second=banned"]).await, (OVER, vec![OK, OVER]));
    }
    assert_eq!(ask(vec!["header=a"]).await.0, OK);
    assert_eq!(ask(vec!["header=a"]).await.0, OK);
    assert_eq!(ask(vec!["header=a"]).await.0, OVER);
    assert_eq!(ask(vec!["header=b"]).await.0, OK, "another value has a count of its own");
    for _ in 0..5 {
        assert_eq!(ask(vec!["header=c,third=suspect"]).await, (OK, vec![OK]), "shadow mode");
        assert_eq!(ask(vec!["header=c,free=1"]).await, (OK, vec![OK]), "unlimited");
        assert_eq!(ask(vec!["anything=1", "from=elsewhere", "unknown=1"]).await, (OK, vec![OK; 3]));
    }
    assert_eq!(ask(vec!["from=proxy,to=orders"]).await.0, OK);
    assert_eq!(ask(vec!["from=proxy,to=orders"]).await.0, OVER);
    let refused = [("serves", "rate_limit_service"), ("result", "refused")];
    gateway.wait_for_metric("tollgate_decisions_total", &refused, 3.0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "rl"), ("code", "429")], 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_banned_that_is_denied_again_and_again() {
    let rules = "limits:
  per-user: { algorithm: fixed_window, limit: 1, window: 1m, key: { descriptor: user }, ban: { after: 2 denials in 1h, for: 10h } }
domains: { edge: { descriptors: [{ key: user, limits: [per-user] }] } }
";
    let gateway = start("rate_limit_service", rules);
    let mut envoy = Envoy::connect(&gateway).await;
    let mut ask = async |user: &str| {
        let answer = envoy.ask(&of_domain("edge", vec![descriptor(user)])).await;
        (answer.overall_code, answer.statuses[0].duration_until_reset.as_ref().map_or(0, |reset| reset.seconds))
    };
    assert_eq!(ask("user=a").await.0, OK);
    let (code, reset) = ask("user=a").await;
    assert!(code == OVER && reset <= 60, "{reset}");
    // the denial that bans the key, and one by the ban
    for _ in 0..2 {
        let (code, reset) = ask("user=a").await;
        assert!(code == OVER && reset > 35_000, "{reset}");
    }
    assert_eq!(ask("user=b").await.0, OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_hits_is_answered_at_once_and_takes_no_place_in_the_queue() {
    let rules = "limits:
  paced: { algorithm: leaky_queue, rate: 1/h, capacity: 5, key: { descriptor: user },
    over_limit: { delay: { max_wait: 5h, max_waiting: 1 } } }
  plain: { algorithm: gcra, rate: 1/d, burst: 5, key: all }
domains: { edge: { descriptors: [{ key: user, limits: [paced] }, { key: plain, limits: [plain] }] } }
";
    let gateway = start("rate_limit_service", rules);
    let (mut envoy, mut other) = (Envoy::connect(&gateway).await, Envoy::connect(&gateway).await);
    let without_hits = |entries| Descriptor { hits_addend: Some(Hits { value: 0 }), ..descriptor(entries) };
    let mut peek = async |others: &[Descriptor]| {
        let question = [&[without_hits("user=a")], others].concat();
        tokio::time::timeout(PATIENCE, envoy.codes(question)).await.expect("an answer at once")
    };
    assert_eq!(other.codes(vec![descriptor("user=a")]).await.0, OK);
    assert_eq!((peek(&[]).await.0, peek(&[]).await.0), (OK, OK));
    let waiting = tokio::spawn(async move { other.codes(vec![descriptor("user=a")]).await });
    let delayed = [("route", "edge"), ("limit", "paced"), ("plan", "none"), ("outcome", "delayed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &delayed, 1.0);
    assert_eq!(peek(&[]).await.0, OVER, "the queue is full");
    for _ in 0..3 {
        let (code, statuses) = peek(&[descriptor("plain=1")]).await;
        assert_eq!((code, statuses[1]), (OVER, (OK, 5)), "what was charged is given back");
    }
    let (_, statuses) = peek(&[without_hits("plain=1")]).await;
    assert_eq!(statuses[1], (OK, 5), "the answer is a denial, so no limit is charged");
    waiting.abort();
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "edge")], 0.0);
    assert_eq!(peek(&[]).await.0, OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_and_limits_may_come_with_a_descriptor() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    for (entries, admitted) in [("tier=free,user=a", 1), ("tier=pro,user=b", 5), ("tier=unknown,user=c", 1)] {
        for _ in 0..admitted {
            assert_eq!(envoy.codes(vec![descriptor(entries)]).await.0, OK, "{entries}");
        }
        assert_eq!(envoy.codes(vec![descriptor(entries)]).await.0, OVER, "{entries}");
    }
    let with = |requests_per_unit, unit| {
        let limit = Some(Brought { requests_per_unit, unit });
        of_domain("edge", vec![Descriptor { limit, ..descriptor("remote_address=192.0.2.9") }])
    };
    let answer = envoy.ask(&with(20, 3)).await;
    let status = &answer.statuses[0];
    assert_eq!(
        (status.current_limit.clone(), status.limit_remaining),
        (Some(Brought { requests_per_unit: 20, unit: 3 }), 19)
    );
    for unit in [4, 7, 5, 6] {
        let limit = Brought { requests_per_unit: 5_000, unit };
        let monthly = Descriptor { limit: Some(limit.clone()), ..descriptor("month=1") };
        let answer = envoy.ask(&of_domain("edge", vec![monthly])).await;
        assert_eq!((answer.overall_code, answer.statuses[0].current_limit.clone()), (OK, Some(limit)));
    }
    let none = envoy.ask(&with(0, 3)).await;
    assert_eq!((none.overall_code, none.statuses[0].code), (OVER, OVER));
    let off = Descriptor { limit: Some(Brought { requests_per_unit: 0, unit: 3 }), ..descriptor("off=1") };
    assert_eq!(envoy.codes(vec![off]).await.0, OK, "the limit applies to no key");
    let most = Some(Brought { requests_per_unit: u32::MAX, unit: 1 });
    let smooth = || Descriptor { limit: most.clone(), ..descriptor("smooth=1") };
    for _ in 0..3 {
        assert_eq!(envoy.codes(vec![smooth()]).await.0, OK, "the highest rate of the algorithm holds");
    }
    for (requests, unit) in [(20, 0), (20, 99)] {
        let refused_call = envoy.0.post(LIMIT, GRPC, framed(&with(requests, unit))).await.unwrap();
        assert_eq!(refused(&refused_call).0, 3, "{requests} in {unit}");
    }
    // more different overrides than any real client sends
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    for requests in 1..=1_000 {
        let answer = envoy.ask(&with(requests, 3)).await;
        assert_eq!(answer.statuses[0].current_limit, Some(Brought { requests_per_unit: requests, unit: 3 }));
    }
    for requests in [1_001, 1_002] {
        let answer = envoy.ask(&with(requests, 3)).await;
        assert_eq!(answer.statuses[0].current_limit, Some(Brought { requests_per_unit: 3, unit: 2 }), "as configured");
    }
    let warnings = || gateway.process.stderr().matches("too many different limits").count();
    wait_until("a warning", || warnings() > 0);
    assert_eq!(warnings(), 1);
}

/// Envoy lets a request pass after an error, so no client may be able to cause one.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_no_text_or_very_long_are_limited_like_others() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    for value in ["~", "^", &"x".repeat(1_000_000)] {
        let question = framed(&of_domain("edge", vec![descriptor(&format!("tier=free,user={value}"))]));
        let bytes = question.iter().map(|byte| match byte {
            b'~' => 0xff,
            b'^' => 0xfe,
            byte => *byte,
        });
        let question: bytes::Bytes = bytes.collect();
        for code in [OK, OVER] {
            let answer = envoy.0.post(LIMIT, GRPC, question.clone()).await.unwrap();
            assert_eq!(message::<RateLimitResponse>(&answer).overall_code, code);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_the_rate_limit_service_that_is_none_is_refused_and_the_limit_stays_exact() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    let one = || descriptor("tier=pro,user=a");
    let too_long = || descriptor(&format!("remote_address={}", "x".repeat(2_000_000)));
    let asked = |domain: &str, descriptors| framed(&of_domain(domain, descriptors));
    let whole = asked("edge", vec![one()]).to_vec();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes.into()
    };
    let cases: [(&str, bytes::Bytes, u16); 13] = [
        ("no domain", asked("", vec![one()]), 3),
        ("no descriptors", asked("edge", vec![]), 3),
        ("no entries", asked("edge", vec![one(), Descriptor::default()]), 3),
        ("no key", asked("edge", vec![one(), descriptor("=a")]), 3),
        ("too many descriptors", asked("edge", vec![one(); 10_000]), 3),
        ("too many entries", asked("edge", vec![one(), descriptor(&["a=b"; 33].join(","))]), 3),
        ("a message that is too long", asked("edge", vec![one(), too_long()]), 8),
        ("no frame", bytes::Bytes::new(), 3),
        ("a compressed frame", with(0, 1), 3),
        ("a longer frame", with(4, whole[4] + 1), 3),
        ("a field that ends behind the message", with(6, 0x7f), 3),
        ("no text", with(7, 0xff), 3),
        ("two frames", [&whole[..], &whole].concat().into(), 3),
    ];
    for (what, question, status) in cases {
        let answer = envoy.0.post(LIMIT, GRPC, question).await.unwrap();
        assert_eq!(refused(&answer).0, status, "{what}");
    }
    let other = envoy.0.post(CHECK, GRPC, whole.clone().into()).await.unwrap();
    assert_eq!(refused(&other).0, 12, "another service");
    // a connection that sends invalid HTTP/2 is closed
    let garbage = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 64]].concat();
    tokio::task::block_in_place(|| {
        let mut stranger = TcpStream::connect(gateway.address).unwrap();
        stranger.write_all(&garbage).unwrap();
        // a reset counts as an end, too
        _ = stranger.read_to_end(&mut Vec::new());
    });
    for left in (0..5).rev() {
        assert_eq!(envoy.codes(vec![one()]).await, (OK, vec![(OK, left)]));
    }
    assert_eq!(envoy.codes(vec![one()]).await.0, OVER);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_and_go_away_cost_what_they_asked_and_no_more() {
    let gateway = start("rate_limit_service", DOMAINS);
    let mut envoy = Envoy::connect(&gateway).await;
    let question = framed(&of_domain("edge", vec![descriptor("user=a"); 100]));
    let mut unread = Vec::new();
    for _ in 0..50 {
        let (response, mut sending) = envoy.0.begin(http::Method::POST, LIMIT, GRPC, false).await.unwrap();
        sending.send_data(question.clone(), true).unwrap();
        unread.push(response);
    }
    let mut other = Envoy::connect(&gateway).await;
    assert_eq!(other.codes(vec![descriptor("user=b")]).await, (OK, vec![(OK, 99)]));
    let admitted = [("serves", "rate_limit_service"), ("result", "admitted")];
    gateway.wait_for_metric("tollgate_decisions_total", &admitted, 2.0);
    drop(unread);
    drop(envoy);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "edge")], 0.0);
    assert_eq!(other.codes(vec![descriptor("user=a")]).await, (OVER, vec![(OVER, 0)]), "the first took all");
    assert_eq!(other.codes(vec![descriptor("user=b")]).await, (OK, vec![(OK, 98)]));
}
