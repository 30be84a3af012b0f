//! Decision listeners work like other listeners, and their limits are kept like other limits: TLS, paths, reloads, shutdown
//! and successor, Redis, cluster.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use prost::Message;
use tokio::net::UnixStream;
use tokio::task::block_in_place;

use crate::decisions_grpc::{CHECK, GRPC, framed, message, refused, start};
use crate::decisions_rate_limits::{
    Descriptor, Envoy, Hits, LIMIT, OK, OVER, RateLimitResponse, descriptor, of_domain,
};
use crate::http2_abuse::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame};
use crate::restarts::Lineage;
use crate::support::cluster::{Nodes, SECRET, wait_for_members};
use crate::support::http2::{Http2, read};
use crate::support::redis::Redis;
use crate::support::tls::{Authority, connect};
use crate::support::{Folder, Gateway, PATIENCE, wait_until};

const SERVES: &str = "serves: rate_limit_service";
const TRUSTED: &str = "client_address: { trusted_proxies: [127.0.0.1] }\n";

/// A limit of `limit` requests a day for each user.
fn per_user(limit: u32, more: &str) -> String {
    format!(
        "{TRUSTED}limits: {{ users: {{ algorithm: gcra, rate: {limit}/d, burst: {limit}, key: {{ descriptor: user }}{more} }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [users] }}] }} }}\n"
    )
}

fn listening(listener: &str, config: &str, files: &[(&str, &str)]) -> Gateway {
    block_in_place(|| Gateway::start_listening(listener, config, files))
}

async fn code(envoy: &mut Envoy, user: &str) -> i32 {
    envoy.codes(vec![descriptor(&format!("user={user}"))]).await.0
}

/// A descriptor that refunds this many hits.
fn back(user: &str, value: u64) -> Descriptor {
    Descriptor { hits_addend: Some(Hits { value }), is_negative_hits: true, ..descriptor(&format!("user={user}")) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_shows_its_certificate_where_it_has_to() {
    let (authority, strangers) = (Authority::new(), Authority::new());
    let (signed, ca) = (authority.sign(&["a.test"]), authority.pem());
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key), ("ca.pem", &*ca)];
    let listener = format!(
        "{SERVES}, tls: {{ certificates: [{{ cert: a.pem, key: a.key }}], client_certificates: {{ ca: ca.pem, required: true }} }}"
    );
    let gateway = listening(&listener, &per_user(1, ""), &files);
    let (known, stranger) = (authority.sign_client("envoy"), strangers.sign_client("envoy"));
    let question = framed(&of_domain("edge", vec![descriptor("user=a")]));
    for (shows, lets_in) in [(None, false), (Some(&stranger), false), (Some(&known), true)] {
        // a TLS 1.3 client learns of the refusal when it reads
        let Ok(stream) = connect(gateway.address, authority.client_config(&["h2"], shows), "a.test").await else {
            assert!(!lets_in, "{shows:?}");
            continue;
        };
        let Ok((requests, connection)) = h2::client::handshake(stream).await else {
            assert!(!lets_in, "{shows:?}");
            continue;
        };
        let driver = tokio::spawn(connection);
        let mut client = Http2 { requests, driver: Some(driver) };
        let answer = client.post(&LIMIT.replace("http:", "https:"), GRPC, question.clone()).await;
        assert_eq!(answer.is_ok(), lets_in, "{shows:?}");
        if let Ok(answer) = answer {
            assert_eq!(message::<RateLimitResponse>(&answer).overall_code, OK);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_asks_over_a_path_and_others_are_refused() {
    let folder = Folder::new();
    let path = folder.path().join("t.sock");
    let listener = format!("{SERVES} }}, {{ address: \"unix:{}\", {SERVES}", path.display());
    let config = per_user(1, "").replace("[127.0.0.1]", "[unix]");
    let gateway = listening(&listener, &config, &[]);
    let mut envoy = Envoy(Http2::on(UnixStream::connect(&path).await.unwrap()).await);
    assert_eq!([code(&mut envoy, "a").await, code(&mut envoy, "a").await], [OK, OVER]);
    let mut other = Http2::connect_cleartext(gateway.address).await;
    let question = framed(&of_domain("edge", vec![descriptor("user=b")]));
    assert_eq!(refused(&other.post(LIMIT, GRPC, question).await.unwrap()).0, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_what_is_asked_and_forgets_nothing() {
    let gateway = listening(SERVES, &per_user(2, ""), &[]);
    let mut envoy = Envoy::connect(&gateway).await;
    assert_eq!([code(&mut envoy, "a").await, code(&mut envoy, "a").await, code(&mut envoy, "a").await], [OK, OK, OVER]);
    let more = per_user(3, "").replace("descriptors: [", "descriptors: [{ key: user, value: b, deny: true }, ");
    gateway.rewrite(&more);
    assert_eq!(block_in_place(|| gateway.reload()).status, 200);
    assert_eq!(code(&mut envoy, "b").await, OVER);
    assert_eq!([code(&mut envoy, "c").await, code(&mut envoy, "c").await, code(&mut envoy, "c").await], [OK; 3]);
    assert_eq!(code(&mut envoy, "a").await, OVER, "what was used stays used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_has_begun_is_answered_while_the_gateway_ends() {
    let mut gateway = listening(SERVES, &per_user(5, ""), &[]);
    let mut envoy = Envoy::connect(&gateway).await;
    let (response, mut sending) = envoy.0.begin(http::Method::POST, LIMIT, GRPC, false).await.unwrap();
    assert_eq!(code(&mut envoy, "a").await, OK, "the one before has come as well");
    gateway.process.signal("TERM");
    let refuses = || TcpStream::connect(gateway.address).is_err();
    block_in_place(|| wait_until("the listener to be closed", refuses));
    let question = framed(&of_domain("edge", vec![descriptor("user=a")]));
    sending.send_data(question, true).unwrap();
    let answer: RateLimitResponse = message(&read(response).await.unwrap());
    assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (OK, 3));
    drop(envoy);
    assert_eq!(block_in_place(|| gateway.process.wait()).code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_goes_on_counting() {
    let gateway = listening(SERVES, &per_user(3, ""), &[]);
    let mut envoy = Envoy::connect(&gateway).await;
    assert_eq!([code(&mut envoy, "a").await, code(&mut envoy, "a").await], [OK; 2]);
    drop(envoy);
    let mut lineage = Lineage::of(gateway);
    block_in_place(|| lineage.upgrade());
    let mut envoy = Envoy::connect(&lineage.gateway).await;
    assert_eq!([code(&mut envoy, "a").await, code(&mut envoy, "a").await], [OK, OVER]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_share_a_limit_answer_as_one_and_hits_given_back_clear_a_remembered_denial() {
    let redis = block_in_place(Redis::start);
    let store = format!("store: {{ redis: \"{}\", timeout: 1s, nodes: 2 }}\n", redis.url());
    let config = format!("{store}{}", per_user(5, ", mode: shared"));
    let gateways = [listening(SERVES, &config, &[]), listening(SERVES, &config, &[])];
    let mut envoys = [Envoy::connect(&gateways[0]).await, Envoy::connect(&gateways[1]).await];
    for turn in 0..5 {
        assert_eq!(code(&mut envoys[turn % 2], "a").await, OK);
    }
    for turn in 0..6 {
        assert_eq!(code(&mut envoys[turn % 2], "a").await, OVER);
    }
    // the gateway caches the denial, and drops it on a refund
    let calls = redis.calls("evalsha");
    assert_eq!(code(&mut envoys[0], "a").await, OVER);
    assert_eq!(redis.calls("evalsha"), calls, "a denial that is remembered asks nobody");
    assert_eq!(envoys[0].codes(vec![back("a", 2)]).await.0, OK);
    assert_eq!([code(&mut envoys[0], "a").await, code(&mut envoys[0], "a").await], [OK; 2]);
    assert_eq!(code(&mut envoys[0], "a").await, OVER);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_of_a_cluster_answer_as_one_and_the_owner_gives_back() {
    let nodes = Nodes::new(2);
    let files = [("cluster.key", SECRET)];
    let start = |position| {
        let config = format!("{}{}", nodes.section(position, "timeout: 1s"), per_user(2, ""));
        listening(SERVES, &config, &files)
    };
    let gateways = [start(0), start(1)];
    block_in_place(|| wait_for_members(&gateways, 2));
    let mut envoys = [Envoy::connect(&gateways[0]).await, Envoy::connect(&gateways[1]).await];
    let mut gave_back = [0, 0];
    for user in 0..16 {
        let user = format!("u{user}");
        let mut codes = Vec::new();
        for turn in 0..4 {
            codes.push(code(&mut envoys[turn % 2], &user).await);
        }
        assert_eq!(codes, [OK, OK, OVER, OVER], "{user}");
        // one of the two gateways owns the key; the other one charges nothing beside it
        let beside = format!("user=beside-{user}");
        let question = framed(&of_domain("edge", vec![descriptor(&beside), back(&user, 1)]));
        for (position, envoy) in envoys.iter_mut().enumerate() {
            let answer = envoy.0.post(LIMIT, GRPC, question.clone()).await.unwrap();
            if answer.is_head_alone {
                let (status, message) = refused(&answer);
                assert!(status == 14 && message.contains("the gateway that owns their key"), "{status} {message}");
            } else {
                gave_back[position] += 1;
            }
        }
        let peek = || vec![Descriptor { hits_addend: Some(Hits { value: 0 }), ..descriptor(&beside) }];
        let charged_once = async { while envoys[0].codes(peek()).await != (OK, vec![(OK, 1)]) {} };
        tokio::time::timeout(PATIENCE, charged_once).await.expect("the charge of the question that failed comes back");
    }
    assert!(gave_back[0] > 0 && gave_back[1] > 0 && gave_back[0] + gave_back[1] == 16, "{gave_back:?}");
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheck {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[tokio::test(flavor = "multi_thread")]
async fn health_checks_are_answered_beside_decisions_and_are_none() {
    const HEALTH: &str = "http://test/grpc.health.v1.Health/Check";
    for (serves, config) in [
        ("rate_limit_service", per_user(1, "").replace(TRUSTED, "")),
        ("ext_authz", "routes: [{ name: all, limits: [] }]\nlimits: {}\n".to_owned()),
    ] {
        let gateway = start(serves, &config);
        let mut proxy = Http2::connect_cleartext(gateway.address).await;
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
            let question = framed(&HealthCheck { service: service.to_owned() });
            let answer = proxy.post(HEALTH, GRPC, question).await.unwrap();
            assert_eq!(message::<Health>(&answer).status, 1, "{serves} {service}");
        }
        let garbage = proxy.post(HEALTH, GRPC, bytes::Bytes::from_static(b"\0\0\0\0\x01\xff")).await.unwrap();
        assert_eq!(refused(&garbage).0, 3);
        let metrics = gateway.metrics();
        assert!(metrics.all("tollgate_decisions_total").iter().all(|sample| sample.value == 0.0), "{serves}");
        // a listener serves one service only
        let other = if serves == "ext_authz" { LIMIT } else { CHECK };
        let question = framed(&HealthCheck::default());
        assert_eq!(refused(&proxy.post(other, GRPC, question).await.unwrap()).0, 12);
    }
}

/// Sends `cancelled` requests, each with its cancellation behind it, and one more at once. Returns whether that is answered.
fn is_answered_after(cancelled: u32, address: SocketAddr) -> bool {
    /// `GET http://test/` in HPACK.
    const GET: &[u8] = b"\x82\x86\x84\x01\x04test";
    const RST_STREAM: u8 = 3;
    let head = |stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, GET);
    let pair = |number| [head(2 * number + 1), frame(RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8])].concat();
    let (pairs, last) = ((0..cancelled).flat_map(pair).collect::<Vec<u8>>(), 2 * cancelled + 1);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let all = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(SETTINGS, 0, 0, b""), &*pairs, &*head(last)].concat();
    // a gateway that closes the connection takes no more
    _ = stream.write_all(&all);
    let mut next = || {
        let mut header = [0; 9];
        stream.read_exact(&mut header).ok()?;
        let [a, b, c, kind, _, number @ ..] = header;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
        stream.read_exact(&mut payload).ok()?;
        Some((kind, u32::from_be_bytes(number)))
    };
    std::iter::from_fn(&mut next).any(|seen| seen == (HEADERS, last))
}

/// All clients of a proxy share its connection, and those that go away must not end it for the others.
#[test]
fn a_proxy_may_cancel_any_number_of_requests_and_others_200() {
    let [trusted, stranger] = ["127.0.0.1", "192.0.2.1"].map(|proxy| {
        let config = per_user(1, "").replace("127.0.0.1", proxy);
        Gateway::start_listening(SERVES, &config, &[])
    });
    assert!(is_answered_after(5_000, trusted.address));
    assert!(is_answered_after(200, stranger.address));
    assert!(!is_answered_after(5_000, stranger.address));
}
