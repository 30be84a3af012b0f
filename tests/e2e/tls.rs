//! TLS on a listener: the certificate that the gateway shows, the certificates of clients, and new files while requests
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::HandshakeKind;

use crate::support::gateway::{ALL, limited, proxied};
use crate::support::http2::Http2;
use crate::support::process::Process;
use crate::support::tls::{Authority, Signed, ask, connect, shown};
use crate::support::{Folder, Gateway, Origin, PATIENCE, SetOnDrop, wait_until};

/// A limit that no test reaches.
const PLENTY: &str = "{ algorithm: gcra, rate: 100000/s, burst: 100000, key: all }";
const TWO: &str = "tls: { certificates: [{ cert: a.pem, key: a.key }, { cert: b.pem, key: b.key }] }";

/// The certificate files of `a` and `b`.
fn files<'s>(a: &'s Signed, b: &'s Signed) -> [(&'static str, &'s str); 4] {
    [("a.pem", &a.certificate), ("a.key", &a.key), ("b.pem", &b.certificate), ("b.key", &b.key)]
}

fn start(listener: &str, origin: &Origin, files: &[(&str, &str)]) -> Gateway {
    Gateway::start_listening(listener, &proxied(origin, ""), files)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_follows_the_name_that_is_asked_for() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (a, b) = (authority.sign(&["a.test", "*.a.test", "127.0.0.1"]), authority.sign(&["b.test", "c.test"]));
    let gateway = start(TWO, &origin, &files(&a, &b));
    for (name, host, of) in [
        ("a.test", "a.test", "a"),
        ("X.A.test", "x.a.test", "a"),
        ("b.test", "b.test", "b"),
        // the client sends no server name (SNI), so the gateway shows the first certificate
        ("127.0.0.1", "127.0.0.1", "a"),
        // the certificate is valid for both names
        ("b.test", "c.test:443", "b"),
    ] {
        let mut stream = connect(gateway.address, authority.client_config(&[], None), name).await.unwrap();
        let is_shown = |signed: &Signed| pem::parse(&signed.certificate) == shown(&stream);
        assert_eq!((is_shown(&a), is_shown(&b)), (of == "a", of == "b"), "{name}");
        let response = ask(&mut stream, "/", host).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{name}, {host}: {response}");
    }
    let seen = origin.received();
    assert!(seen.iter().all(|request| request.head.field("x-forwarded-proto") == Some("https")));
    assert_eq!(seen.last().unwrap().head.field("host"), Some("c.test"));

    // For an unknown name the gateway shows the first certificate, which the client rejects.
    let error = connect(gateway.address, authority.client_config(&[], None), "nobody.test").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_certificate_is_misdirected() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (a, b) = (authority.sign(&["a.test"]), authority.sign(&["b.test"]));
    let gateway = start(TWO, &origin, &files(&a, &b));
    for (name, host, misdirected) in
        [("a.test", "b.test", true), ("b.test", "a.test", true), ("a.test", "d.test", false)]
    {
        let mut stream = connect(gateway.address, authority.client_config(&[], None), name).await.unwrap();
        let response = ask(&mut stream, "/", host).await.unwrap();
        assert_eq!(response.starts_with("HTTP/1.1 421 "), misdirected, "{name}, {host}: {response}");
        let config = authority.client_config(&["h2"], None);
        let mut client = Http2::on(connect(gateway.address, config, name).await.unwrap()).await;
        let status = client.get(&format!("https://{host}/"), &[]).await.unwrap().status;
        assert_eq!(status == 421, misdirected, "{name}, {host}: {status}");
    }
    assert_eq!(origin.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_certificates_come_into_force_and_no_request_notices() {
    const RELOADS: usize = 12;
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed: Vec<Signed> = (0..RELOADS).map(|_| authority.sign(&["a.test"])).collect();
    let listener = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let gateway = Gateway::start_listening(
        listener,
        &limited(&origin, PLENTY),
        &[("a.pem", &signed[0].certificate), ("a.key", &signed[0].key)],
    );
    let (over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let connecting = async {
        while !over.load(Ordering::Relaxed) {
            let mut stream = connect(gateway.address, authority.client_config(&[], None), "a.test").await.unwrap();
            let response = ask(&mut stream, "/", "a.test").await.unwrap();
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let staying = async {
        let config = authority.client_config(&["h2"], None);
        let mut client = Http2::on(connect(gateway.address, config, "a.test").await.unwrap()).await;
        while !over.load(Ordering::Relaxed) {
            assert_eq!(client.get("https://a.test/", &[]).await.unwrap().status, 200);
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let reloading = async {
        let _end = SetOnDrop(&over);
        for (number, next) in signed.iter().enumerate().skip(1) {
            gateway.folder.write("a.pem", &next.certificate);
            gateway.folder.write("a.key", &next.key);
            let before = served.load(Ordering::Relaxed);
            let answer = tokio::task::block_in_place(|| gateway.reload());
            assert!(matches!(answer.status, 200), "{number}: {answer:?}");
            let stream = connect(gateway.address, authority.client_config(&[], None), "a.test").await.unwrap();
            assert_eq!(shown(&stream), pem::parse(&next.certificate), "{number}");
            while served.load(Ordering::Relaxed) < before + 4 {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::join!(connecting, staying, reloading);
    assert!(served.load(Ordering::Relaxed) > RELOADS);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_followed_and_a_pair_that_does_not_match_changes_nothing() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (first, second) = (authority.sign(&["a.test"]), authority.sign(&["a.test"]));
    let listener = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let gateway = start(listener, &origin, &[("a.pem", &first.certificate), ("a.key", &first.key)]);
    let now_shown = async || {
        let stream = connect(gateway.address, authority.client_config(&[], None), "a.test").await.unwrap();
        shown(&stream)
    };
    let refused = || gateway.metrics().value("tollgate_config_reloads_total", &[("result", "failure")]);

    gateway.folder.write("a.pem", &second.certificate);
    wait_until("the half of a pair to be refused", || refused() >= Some(1.0));
    assert_eq!(now_shown().await, pem::parse(&first.certificate));
    gateway.folder.write("a.key", &second.key);
    wait_until("the pair", || {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(now_shown()))
            == pem::parse(&second.certificate)
    });
    let before = refused();
    std::fs::remove_file(gateway.folder.path().join("a.key")).unwrap();
    wait_until("a missing file to be refused", || refused() > before);
    assert_eq!(now_shown().await, pem::parse(&second.certificate));
}

#[test]
fn the_end_of_each_certificate_is_a_metric() {
    const START_OF_2021: f64 = 1_609_459_200.0;
    let (origin, authority) = (Origin::start(), Authority::new());
    let (a, b) = (authority.sign(&["a.test", "*.a.test"]), authority.sign_expired(&["b.test"]));
    let gateway = start(TWO, &origin, &files(&a, &b));
    let ends = |names| {
        gateway.metrics().value("tollgate_certificate_not_after_timestamp_seconds", &[("certificate", names)]).unwrap()
    };
    assert_eq!(ends("b.test"), START_OF_2021);
    assert!(ends("a.test,*.a.test") > START_OF_2021);

    let renewed = authority.sign(&["b.test"]);
    gateway.folder.write("b.pem", &renewed.certificate);
    gateway.folder.write("b.key", &renewed.key);
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(ends("b.test"), ends("a.test,*.a.test"));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_certificates_where_they_have_to() {
    let (origin, authority, strangers) = (Origin::start(), Authority::new(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let ca = authority.pem();
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key), ("ca.pem", &*ca)];
    let (known, stranger) = (authority.sign_client("acme"), strangers.sign_client("acme"));
    for (required, without) in [(true, false), (false, true)] {
        let listener = format!(
            "tls: {{ certificates: [{{ cert: a.pem, key: a.key }}], client_certificates: {{ ca: ca.pem, required: {required} }} }}"
        );
        let gateway = start(&listener, &origin, &files);
        for (shows, lets_in) in [(Some(&known), true), (Some(&stranger), false), (None, without)] {
            // A TLS 1.3 client learns of the refusal when it reads.
            let answered = async {
                let mut stream = connect(gateway.address, authority.client_config(&[], shows), "a.test").await?;
                ask(&mut stream, "/", "a.test").await
            };
            let answered = answered.await.is_ok_and(|response| response.starts_with("HTTP/1.1 200 "));
            assert_eq!(answered, lets_in, "required: {required}, {shows:?}");
        }
    }
}

/// A resumed session would have the certificate of its first handshake, also when that has expired.
#[tokio::test(flavor = "multi_thread")]
async fn each_connection_of_a_client_shows_its_certificate() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (signed, ca, client) = (authority.sign(&["a.test"]), authority.pem(), authority.sign_client("acme"));
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key), ("ca.pem", &*ca)];
    let asking = "client_certificates: { ca: ca.pem }";
    for (asks, second) in [("", HandshakeKind::Resumed), (asking, HandshakeKind::Full)] {
        let listener = format!("tls: {{ certificates: [{{ cert: a.pem, key: a.key }}], {asks} }}");
        let gateway = start(&listener, &origin, &files);
        let (config, mut kinds) = (authority.client_config(&[], Some(&client)), Vec::new());
        for _ in 0..2 {
            let mut stream = connect(gateway.address, config.clone(), "a.test").await.unwrap();
            let response = ask(&mut stream, "/", "a.test").await.unwrap();
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            kinds.extend(stream.get_ref().1.handshake_kind());
        }
        assert_eq!(kinds, [HandshakeKind::Full, second], "{asks}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_tells_which_customer_calls() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (signed, ca) = (authority.sign(&["a.test"]), authority.pem());
    let listener =
        "tls: { certificates: [{ cert: a.pem, key: a.key }], client_certificates: { ca: ca.pem, required: false } }";
    let config = format!(
        "{}customers: {{ identify: [{{ client_certificate: true }}], directory: {{ file: customers.csv }}, anonymous: {{ plan: free, key: client_address }} }}
plans: [free, pro]
limits: {{ guard: {{ algorithm: gcra, key: customer, plans: {{ free: {{ rate: 1/d, burst: 1 }}, pro: {{ rate: 1/d, burst: 2 }} }} }} }}
{}",
        origin.upstream(),
        crate::support::gateway::ALL_GUARDED
    );
    let files = [
        ("a.pem", &*signed.certificate),
        ("a.key", &*signed.key),
        ("ca.pem", &*ca),
        ("customers.csv", "credential,customer,plan\nacme.example,acme,pro\n"),
    ];
    let gateway = Gateway::start_listening(listener, &config, &files);
    let statuses = async |shows: Option<&Signed>| {
        let mut statuses = Vec::new();
        for protocol in ["http/1.1", "h2", "h2"] {
            let stream = connect(gateway.address, authority.client_config(&[protocol], shows), "a.test").await.unwrap();
            statuses.push(match protocol {
                "h2" => Http2::on(stream).await.get("https://a.test/", &[]).await.unwrap().status,
                _ => {
                    let mut stream = stream;
                    let response = ask(&mut stream, "/", "a.test").await.unwrap();
                    response.split(' ').nth(1).unwrap().parse().unwrap()
                }
            });
        }
        statuses
    };
    assert_eq!(statuses(Some(&authority.sign_client("acme.example"))).await, [200, 200, 429]);
    assert_eq!(statuses(None).await, [200, 429, 429]);
    assert_eq!(statuses(Some(&authority.sign_client("somebody"))).await, [401, 401, 401]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshakes_are_cut_off_and_delay_nobody() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let gateway = Gateway::start_listening(
        "tls: { certificates: [{ cert: a.pem, key: a.key }] }",
        &format!("request_head: {{ timeout: 500ms }}\n{}", proxied(&origin, "")),
        &[("a.pem", &signed.certificate), ("a.key", &signed.key)],
    );
    let mut slow = Vec::new();
    for beginning in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"].iter().cycle().take(40)
    {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        slow.push(stream);
    }
    let mut stream = connect(gateway.address, authority.client_config(&[], None), "a.test").await.unwrap();
    assert!(ask(&mut stream, "/", "a.test").await.unwrap().starts_with("HTTP/1.1 200 "));
    for mut stream in slow {
        let mut said = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
        assert!(ended.is_ok(), "a connection outlives its deadline");
        assert!(!said.starts_with(b"HTTP"), "{said:?}");
    }
}

/// The output of `check` for a configuration beside these files, and whether it succeeded.
fn checked(folder: &Folder, config: &str) -> (bool, String) {
    folder.write("t.yaml", config);
    let mut process = Process::tollgate(&["check", "t.yaml"], folder.path(), &[]);
    let fine = process.wait().success();
    (fine, format!("{}{}", process.stdout(), process.stderr()))
}

#[test]
fn the_documented_configuration_is_fine() {
    let page = std::fs::read_to_string("docs/edge.md").unwrap();
    let config = page.split("```").find_map(|part| part.strip_prefix("yaml\n")).unwrap();
    let (authority, folder) = (Authority::new(), Folder::new());
    for (name, host) in [("api", "api.test"), ("partners", "partners.test"), ("gateway", "gateway.test")] {
        let signed = authority.sign(&[host]);
        folder.write(&format!("{name}.pem"), &signed.certificate);
        let key = folder.write(&format!("{name}.key"), &signed.key);
        std::fs::set_permissions(key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    for name in ["clients.pem", "internal.pem"] {
        folder.write(name, authority.pem());
    }
    let (fine, said) = checked(&folder, config);
    assert!(fine && !said.contains("warning"), "{said}");
}

#[test]
fn check_tells_what_is_wrong_with_the_files() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (good, expired) = (authority.sign(&["a.test"]), authority.sign_expired(&["b.test"]));
    for (name, text) in [
        ("good.pem", &good.certificate),
        ("good.key", &good.key),
        ("old.pem", &expired.certificate),
        ("old.key", &expired.key),
        ("locked.key", &good.key.replace("PRIVATE", "ENCRYPTED PRIVATE")),
        ("reversed.pem", &(authority.pem() + &good.certificate)),
    ] {
        let path = folder.write(name, text);
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let check = |certificates: &str| {
        let listener = format!("{{ address: \"127.0.0.1:1\", tls: {{ certificates: [{certificates}] }} }}");
        let upstreams = "upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }";
        checked(&folder, &format!("listeners: [{listener}]\n{upstreams}\n{ALL}"))
    };
    let good = "{ cert: good.pem, key: good.key }";
    let (fine, said) = check(good);
    assert!(fine && !said.contains("warning"), "{said}");
    for (certificates, fine, says) in [
        (format!("{good}, {{ cert: old.pem, key: old.key }}"), true, "names a certificate that expired at 2021-01-01T"),
        ("{ cert: good.pem, key: old.key }".to_owned(), false, "names a file that is not the key of the certificate"),
        ("{ cert: good.pem, key: gone.key }".to_owned(), false, "names a file that cannot be read: No such file"),
        ("{ cert: good.key, key: good.key }".to_owned(), false, "names a file that holds no certificate in PEM"),
        ("{ cert: good.pem, key: good.pem }".to_owned(), false, "names a file that holds no private key in PEM"),
        ("{ cert: good.pem, key: locked.key }".to_owned(), false, "`openssl pkey -in KEY"),
        ("{ cert: reversed.pem, key: good.key }".to_owned(), false, "the certificate itself comes first"),
    ] {
        let (was_fine, said) = check(&certificates);
        assert!(was_fine == fine && said.contains(says), "{certificates}: {said}");
    }
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(folder.path().join("good.key"), readable).unwrap();
    let (fine, said) = check(good);
    assert!(fine && said.contains("names a private key that others than its owner may read"), "{said}");
}

mod pem {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    /// The first certificate, in DER.
    pub(super) fn parse(text: &str) -> Vec<u8> {
        CertificateDer::from_pem_slice(text.as_bytes()).unwrap().to_vec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_event_reaches_a_slow_client_while_its_origin_pauses() {
    const LENGTH: usize = 300_000;
    let ((command, origin), authority) = (Origin::on_command(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let listener = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key)];
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(listener, &proxied(&origin, ""), &files));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(gateway.address).await.unwrap();
    let config = Arc::new(authority.client_config(&["http/1.1"], None));
    let mut stream = TlsConnector::from(config).connect("a.test".try_into().unwrap(), stream).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n").await.unwrap();
    command.send(vec![b'_'; LENGTH].leak()).unwrap();
    let (mut received, mut part) = (0, [0; 1000]);
    while received < LENGTH {
        let reading = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await;
        let length = reading.unwrap_or_else(|_| panic!("the gateway keeps the end from {received} on")).unwrap();
        received += part[..length].iter().filter(|byte| **byte == b'_').count();
    }
    command.send(b"").unwrap();
}
