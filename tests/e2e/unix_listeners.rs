//! Listeners on Unix sockets: the addresses of their clients, and the socket file.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::restarts::{Lineage, has_ended};
use crate::support::client::request;
use crate::support::gateway::{ALL_GUARDED, is_ready, limited, proxied};
use crate::support::process::{Process, signal};
use crate::support::{Folder, Gateway, Origin, PATIENCE, wait_until};

/// A limit of two requests a day.
const TWO: &str = "{ algorithm: gcra, rate: 2/d, burst: 2, key: client_address }";

/// The settings of an additional listener at `path`, beside the test gateway's own.
fn beside(path: &Path, more: &str) -> String {
    format!("http2: false }}, {{ address: \"unix:{}\"{more}", path.display())
}

fn start(config: &str, more: &str) -> (Gateway, Folder, PathBuf) {
    let folder = Folder::new();
    let path = folder.path().join("t.sock");
    (Gateway::start_listening(&beside(&path, more), config, &[]), folder, path)
}

/// The status of one request on the socket `path`; `None` if the connection ends without a response.
fn ask(path: &Path, first: &str, fields: &[(&str, &str)]) -> Option<u16> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields = [fields, &[("connection", "close")]].concat();
    stream.write_all((first.to_owned() + &request("GET", "/", &fields)).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn clients_over_a_path_have_no_address_and_cannot_invent_one() {
    let origin = Origin::start();
    let config = format!("connections: {{ max_per_client: 1 }}\n{}", limited(&origin, TWO));
    let (gateway, _folder, path) = start(&config, "");
    assert_eq!(mode(&path), 0o660);
    // all clients of the socket have one address
    let _held = [(); 3].map(|()| UnixStream::connect(&path).unwrap());
    let statuses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|from| ask(&path, "", &[("x-forwarded-for", from)]));
    assert_eq!(statuses, [Some(200), Some(200), Some(429)]);
    assert!(origin.received().iter().all(|seen| seen.head.field("x-forwarded-for").is_none()));
    assert_eq!(gateway.get("/", &[]).status, 200, "others are others");
}

#[test]
fn proxies_over_a_path_are_believed_if_trusted() {
    let origin = Origin::start();
    let config = format!("client_address: {{ trusted_proxies: [unix] }}\n{}", limited(&origin, TWO));
    let (gateway, _folder, path) = start(&config, ", mode: 600");
    assert_eq!(mode(&path), 0o600);
    for from in ["192.0.2.1", "192.0.2.2"] {
        let of = || ask(&path, "", &[("x-forwarded-for", from)]);
        assert_eq!([of(), of(), of()], [Some(200), Some(200), Some(429)]);
    }
    let seen = origin.received();
    let named: Vec<Option<&str>> = seen.iter().map(|seen| seen.head.field("x-forwarded-for")).collect();
    assert_eq!(named, [Some("192.0.2.1"), Some("192.0.2.1"), Some("192.0.2.2"), Some("192.0.2.2")]);
    for from in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        let expected = if from == "192.0.2.3" { 429 } else { 200 };
        assert_eq!(gateway.get("/", &[("x-forwarded-for", from)]).status, expected, "who has an address is not");
    }
}

#[test]
fn whom_a_connection_over_a_path_is_for_is_said_in_front_of_it() {
    let origin = Origin::start();
    let config = format!("connections: {{ max_per_client: 5 }}\n{}", limited(&origin, TWO));
    let (_gateway, _folder, path) = start(&config, ", proxy_protocol: [unix]");
    for client in ["192.0.2.1", "192.0.2.2"] {
        let line = format!("PROXY TCP4 {client} 10.0.0.1 1 2\r\n");
        let of = || ask(&path, &line, &[]);
        assert_eq!([of(), of(), of()], [Some(200), Some(200), Some(429)]);
    }
    assert_eq!(ask(&path, "", &[]), None, "it has to be");
}

#[test]
fn the_path_comes_with_the_process_and_goes_with_it() {
    let origin = Origin::start();
    let (mut gateway, _folder, path) = start(&proxied(&origin, ""), "");
    assert_eq!(ask(&path, "", &[]), Some(200));
    gateway.end("KILL");
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "nobody was there to take it away");
    gateway.start_again();
    assert_eq!(ask(&path, "", &[]), Some(200));
    gateway.end("TERM");
    assert!(!path.exists());
}

#[test]
fn a_socket_of_a_supervisor_stays_as_it_is_and_the_gateways_own_goes() {
    let origin = Origin::start();
    let (mut gateway, folder, kept) = start(&proxied(&origin, ""), ", mode: 600");
    gateway.end("TERM");
    let (socket, own) = (UnixListener::bind(&kept).unwrap(), folder.path().join("own.sock"));
    std::fs::set_permissions(&kept, Permissions::from_mode(0o640)).unwrap();
    let another = format!("mode: 600 }}, {{ address: \"unix:{}\"", own.display());
    let both = gateway.complete_config(&proxied(&origin, "")).replacen("mode: 600", &another, 1);
    gateway.folder.write("tollgate.yaml", both);
    gateway.process = Process::tollgate_on(socket, &["run", "--config", "tollgate.yaml"], gateway.folder.path());
    wait_until("readiness", || is_ready(gateway.admin));
    let mut lineage = Lineage::of(gateway);
    lineage.upgrade();
    assert!(own.exists());
    signal(lineage.current, "TERM");
    wait_until("the end of the last process", || has_ended(lineage.current));
    assert_eq!((mode(&kept), own.exists()), (0o640, false));
}

/// The error of a gateway that cannot start.
fn failure(origin: &Origin, path: &Path) -> String {
    let folder = Folder::new();
    let config = format!(
        "listeners: [{{ address: \"unix:{}\" }}]\nadmin: {{ address: \"127.0.0.1:0\" }}\n{}",
        path.display(),
        proxied(origin, "")
    );
    folder.write("t.yaml", config);
    let mut process = Process::tollgate(&["run", "--config", "t.yaml"], folder.path(), &[]);
    assert_eq!(process.wait().code(), Some(1));
    let said = process.stderr();
    assert!(said.contains(&path.display().to_string()) && said.trim().lines().count() == 1, "{said}");
    said
}

#[test]
fn a_path_that_cannot_be_listened_on_ends_the_process_and_is_named() {
    let origin = Origin::start();
    let folder = Folder::new();
    assert!(failure(&origin, &folder.path().join("none/t.sock")).contains("there is no directory"));
    let file = folder.write("file", "important");
    assert!(failure(&origin, &file).contains("not a socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"important");
    let held = folder.path().join("held.sock");
    let _holder = UnixListener::bind(&held).unwrap();
    assert!(failure(&origin, &held).contains("in use"));
    assert!(failure(&origin, folder.path()).contains("not a socket"));
}

#[test]
fn idle_connections_over_a_path_make_room() {
    let origin = Origin::start();
    let config = format!("connections: {{ max: 3 }}\n{}{ALL_GUARDED}", origin.upstream());
    let config = format!("{config}limits: {{ guard: {{ algorithm: gcra, rate: 100/s, burst: 100, key: all }} }}\n");
    let (gateway, _folder, path) = start(&config, "");
    let _idle = [(); 10].map(|()| UnixStream::connect(&path).unwrap());
    wait_until("a place", || ask(&path, "", &[]) == Some(200));
    assert_eq!(gateway.get("/", &[]).status, 200);
}
