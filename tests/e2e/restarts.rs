//! A process takes over from another while clients send requests without a pause: no request fails, and spent limits stay
//! spent.
//!
//! Some clients open a connection for each request. Others keep theirs, and repeat a request on a new connection if the old
//! one ends before any byte of a response: HTTP asks clients for that (RFC 9112, section 9.3.1), because a server may close
//! a connection while a request is on its way.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use serde_json::json;

use crate::admin_api;
use crate::support::client::request;
use crate::support::cluster::{Nodes, keys, members, wait_for_members};
use crate::support::gateway::{ALL_GUARDED, is_ready};
use crate::support::process::{Process, signal};
use crate::support::{Client, Folder, Gateway, Origin, SetOnDrop, free_port, now, wait_for, wait_until};

fn config(origin: &Origin) -> String {
    format!(
        "{}limits:
  guard: {{ algorithm: gcra, rate: 1000000/s, burst: 1000000, key: client_address }}
  few: {{ algorithm: quota_reset, limit: 5, window: 1d, key: {{ header: x-key }}, missing_key: skip }}
{}state: {{ file: tollgate.state, every: 1s }}\n",
        origin.upstream(),
        ALL_GUARDED.replace("[guard]", "[guard, few]"),
    )
}

/// The numbers of 200 responses while `work` runs, on new and on kept connections. Any other response fails the test.
fn under_load(address: SocketAddr, work: impl FnOnce()) -> [usize; 2] {
    let over = AtomicBool::new(false);
    let (new, kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..2 {
            threads.push(scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let answer = Client::connect(address).round_trip("GET", "/", &[("connection", "close")]);
                    assert_eq!((answer.status, answer.whole), (200, true), "{}", answer.text());
                    new.fetch_add(1, Ordering::Relaxed);
                }
            }));
            threads.push(scope.spawn(|| {
                let mut client = Client::connect(address);
                let mut is_new = true;
                while !over.load(Ordering::Relaxed) {
                    let answer = client.wire.send(request("GET", "/", &[])).ok().and_then(|()| client.next());
                    match answer {
                        Some(answer) => {
                            assert_eq!((answer.status, answer.whole), (200, true), "{}", answer.text());
                            kept.fetch_add(1, Ordering::Relaxed);
                            is_new = answer.field("connection") == Some("close");
                        }
                        None => {
                            assert!(!is_new, "a new connection ended without an answer");
                            is_new = true;
                        }
                    }
                    if is_new {
                        client = Client::connect(address);
                    }
                }
            }));
        }
        let at_end = SetOnDrop(&over);
        work();
        drop(at_end);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    [new.into_inner(), kept.into_inner()]
}

fn spend(address: SocketAddr) {
    let mut client = Client::connect(address);
    wait_until("the key to be spent", || client.round_trip("GET", "/", &[("x-key", "spent")]).status == 429);
}

#[track_caller]
fn is_spent(address: SocketAddr) {
    let answer = Client::connect(address).round_trip("GET", "/", &[("x-key", "spent"), ("connection", "close")]);
    assert_eq!(answer.status, 429, "{}", answer.text());
}

/// Prints a figure, which `--nocapture` shows.
#[expect(clippy::print_stderr, reason = "figures for whoever runs the tests")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// As with systemd: the parent of the processes keeps the socket open, and connections wait in it.
#[test]
fn fifty_restarts_fail_no_request_where_the_socket_is_kept() {
    const COUNT: usize = 50;
    let origin = Origin::start();
    let folder = Folder::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, admin) = (socket.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    let text = config(&origin);
    folder.write(
        "t.yaml",
        format!("listeners: [{{ address: \"{address}\" }}]\nadmin: {{ address: \"{admin}\" }}\n{text}"),
    );
    let start = || Process::tollgate_on(socket.try_clone().unwrap(), &["run", "--config", "t.yaml"], folder.path());
    let mut process = start();
    spend(address);
    let began = now();
    let [new, kept] = under_load(address, || {
        for round in 0..COUNT {
            wait_until("readiness", || is_ready(admin));
            process.signal("TERM");
            assert_eq!(process.wait().code(), Some(0), "round {round}: {}", process.stderr());
            process = start();
            is_spent(address);
        }
    });
    say(&format!("{COUNT} restarts in {:?}: {new} requests on new connections, {kept} on kept ones", now() - began));
    assert!(new > COUNT && kept > COUNT, "{new} {kept}");
    assert!(!process.stderr().contains("no address of the configuration"), "{}", process.stderr());
}

/// A gateway and the successors that it hands over to; dropping this ends the last one.
pub struct Lineage {
    pub gateway: Gateway,
    /// The process ID of the serving gateway.
    pub current: u32,
    seen: String,
}

impl Lineage {
    fn start(config: &str) -> Self {
        Self::of(Gateway::start(config))
    }

    pub fn of(gateway: Gateway) -> Self {
        let current = gateway.process.id();
        Self { gateway, current, seen: String::new() }
    }

    pub fn serving(&self) -> Option<u32> {
        let mut client = Client { wire: crate::support::wire::Wire::new(TcpStream::connect(self.gateway.admin).ok()?) };
        client.wire.send(request("GET", "/status", &[("connection", "close")])).ok()?;
        // a process that shuts down does not wait until operators have read its answer
        let status = client.next().filter(|status| status.whole)?;
        status.json()["process"].as_u64()?.try_into().ok()
    }

    /// Makes another process take over. Returns the process ID of the old one.
    pub fn hand_over(&mut self) -> u32 {
        let before = self.current;
        signal(before, "USR2");
        self.current = wait_for("another process", || self.serving().filter(|serving| *serving != before));
        before
    }

    /// Makes another process take over, and waits until the old one has ended.
    pub fn upgrade(&mut self) {
        let before = self.hand_over();
        wait_until("the end of the one before", || match before == self.gateway.process.id() {
            true => self.gateway.process.has_ended(),
            false => has_ended(before),
        });
    }

    /// The log lines since the last call.
    fn logged(&mut self) -> String {
        let all = self.gateway.process.stderr();
        let new = all.strip_prefix(&self.seen).unwrap_or(&all).to_owned();
        self.seen = all;
        new
    }
}

impl Drop for Lineage {
    fn drop(&mut self) {
        // a test that fails may not know of the last one
        let last = self.serving().unwrap_or(self.current);
        if last != self.gateway.process.id() && !has_ended(last) {
            signal(last, "KILL");
        }
    }
}

/// Whether a process has ended; it may be a zombie that no parent has waited for.
pub fn has_ended(process: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

#[test]
fn twenty_upgrades_fail_no_request_and_spent_tokens_stay_spent() {
    const COUNT: usize = 20;
    let origin = Origin::start();
    let mut lineage = Lineage::start(&config(&origin));
    let address = lineage.gateway.address;
    spend(address);
    let began = now();
    let [new, kept] = under_load(address, || {
        for _ in 0..COUNT {
            lineage.upgrade();
            is_spent(address);
        }
    });
    say(&format!("{COUNT} upgrades in {:?}: {new} requests on new connections, {kept} on kept ones", now() - began));
    assert!(new > COUNT && kept > COUNT, "{new} {kept}");
    let recovery = lineage.gateway.admin_get("/status").json()["state"]["recovery"]["result"].clone();
    assert_eq!(recovery, "handed_over");
    // The last process writes the state file.
    signal(lineage.current, "TERM");
    wait_until("its end", || has_ended(lineage.current));
    lineage.gateway.start_again();
    lineage.current = lineage.gateway.process.id();
    is_spent(address);
}

#[test]
fn a_socket_in_the_file_system_is_handed_over_and_goes_with_the_last_process() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let path = folder.path().join("t.sock");
    let listener = format!("http2: false }}, {{ address: \"unix:{}\"", path.display());
    let mut lineage = Lineage::of(Gateway::start_listening(&listener, &config(&origin), &[]));
    let is_served = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(request("GET", "/", &[("connection", "close")]).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.starts_with("HTTP/1.1 200 ")
    };
    for _ in 0..2 {
        assert!(is_served());
        lineage.upgrade();
    }
    assert!(is_served());
    signal(lineage.current, "TERM");
    wait_until("the end of the last process", || has_ended(lineage.current));
    assert!(!path.exists());
}

#[test]
fn a_successor_sets_the_mode_of_a_socket_and_removes_one_that_is_not_configured() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let [stays, goes] = ["stays.sock", "goes.sock"].map(|name| folder.path().join(name));
    let other = format!(" }}, {{ address: \"unix:{}\"", goes.display());
    let listener = format!("http2: false }}, {{ address: \"unix:{}\", mode: 600{other}", stays.display());
    let mut lineage = Lineage::of(Gateway::start_listening(&listener, &config(&origin), &[]));
    let mode = || std::fs::metadata(&stays).unwrap().permissions().mode() & 0o777;
    assert!(mode() == 0o600 && goes.exists());
    let changed =
        lineage.gateway.complete_config(&config(&origin)).replace(&other, "").replace("mode: 600", "mode: 660");
    lineage.gateway.folder.write("tollgate.yaml", changed);
    lineage.upgrade();
    assert_eq!(mode(), 0o660);
    wait_until("the end of the socket", || !goes.exists());
}

#[test]
fn a_successor_that_needs_the_port_of_the_old_process_says_so() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin));
    let (address, port) = (gateway.address.to_string(), gateway.address.port());
    let text = gateway.complete_config(&config(&origin)).replace(&address, &format!("0.0.0.0:{port}"));
    gateway.folder.write("tollgate.yaml", text);
    gateway.process.signal("USR2");
    let reason = format!("cannot listen on 0.0.0.0:{port}: the inherited socket on {address} has this port");
    wait_until("the reason", || gateway.process.stderr().contains(&reason));
    wait_until("the end of the attempt", || gateway.process.stderr().contains("the handover failed"));
    assert_eq!(gateway.get("/", &[]).status, 200);
}

/// For systemd, the service ends when its main process ends.
#[test]
fn the_main_process_of_a_systemd_service_hands_over_to_none() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin));
    gateway.end("TERM");
    let service = "SYSTEMD_EXEC_PID=$$ exec \"$0\" run --config tollgate.yaml";
    let program = env!("CARGO_BIN_EXE_tollgate");
    gateway.process = Process::program("sh", &["-c", service, program], gateway.folder.path());
    wait_until("the gateway to be ready", || is_ready(gateway.admin));
    gateway.process.signal("USR2");
    wait_until("the refusal", || gateway.process.stderr().contains("use `systemctl restart`"));
    assert!(is_ready(gateway.admin) && !gateway.process.stderr().contains("the new process"));
}

#[test]
fn a_successor_that_fails_leaves_a_socket_as_it_is() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let path = folder.path().join("t.sock");
    let listener = format!("http2: false }}, {{ address: \"unix:{}\", mode: 600", path.display());
    let mut gateway = Gateway::start_listening(&listener, &config(&origin), &[]);
    let program = env!("CARGO_BIN_EXE_tollgate");
    replace_program(&mut gateway, &format!("export TOLLGATE_FAILPOINTS=.\nexec {program} \"$@\""));
    gateway.folder.write("server_thread", "");
    gateway.folder.write("tollgate.yaml", gateway.complete_config(&config(&origin)).replace("mode: 600", "mode: 660"));
    gateway.process.signal("USR2");
    let said = |text| gateway.process.stderr().contains(text);
    wait_until("the failure", || said("a test wants a panic here") && said("the handover failed"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_process_that_is_ended_while_it_hands_over_leaves_the_state_to_somebody() {
    let origin = Origin::start();
    // With this interval, only the shutdown writes the file again.
    let mut lineage = Lineage::start(&config(&origin).replace("every: 1s", "every: 1h"));
    let address = lineage.gateway.address;
    spend(address);
    // The handover waits for this silent connection.
    let silent = Client::connect(address);
    signal(lineage.current, "USR2");
    wait_until("handing over", || lineage.gateway.process.stderr().contains("connections wait"));
    signal(lineage.current, "TERM");
    wait_until("its end", || lineage.gateway.process.has_ended());
    drop(silent);
    lineage.current = wait_for("another process", || lineage.serving());
    is_spent(address);
}

#[test]
fn a_quota_that_is_being_spent_is_handed_over_to_the_last_token() {
    const QUOTA: usize = 400;
    const CLIENTS: usize = 4;
    let origin = Origin::start();
    let config = config(&origin).replace("limit: 5", &format!("limit: {QUOTA}"));
    let mut lineage = Lineage::start(&config);
    let address = lineage.gateway.address;
    let admitted = AtomicUsize::new(0);
    let mut upgrades = 0;
    std::thread::scope(|scope| {
        let client = || {
            while Client::connect(address).round_trip("GET", "/", &[("x-key", "spent")]).status == 200 {
                admitted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        while clients.iter().any(|client| !client.is_finished()) {
            lineage.upgrade();
            upgrades += 1;
        }
    });
    let admitted = admitted.into_inner();
    say(&format!("{admitted} of {QUOTA} admitted over {upgrades} upgrades"));
    // On a slow machine, a connection that was accepted just before the handover may send its request only after the state
    // was handed over: the old process charges it, and the new one does not know of that.
    assert!((QUOTA..=QUOTA + CLIENTS * upgrades).contains(&admitted), "{admitted} over {upgrades} upgrades");
    is_spent(address);
}

#[test]
fn a_request_in_flight_is_finished_by_the_process_that_began_it() {
    let (command, origin) = Origin::on_command();
    let mut lineage = Lineage::start(&format!("{}{ALL}", origin.upstream(), ALL = crate::support::gateway::ALL));
    let mut client = lineage.gateway.client();
    client.send_request("GET", "/", &[]);
    command.send(b"before").unwrap();
    let head = client.wire.head().unwrap().unwrap();
    let mut framing = crate::support::wire::Framing::of_response(&head, false);
    assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), b"before");
    lineage.hand_over();
    assert!(!lineage.gateway.process.has_ended(), "a request is in flight");
    command.send(b"after").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), b"after");
    command.send(b"").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap(), None, "the stream came to its end");
    wait_until("the end of the one before", || lineage.gateway.process.has_ended());
}

#[test]
fn a_process_that_cannot_start_takes_nothing_over() {
    let origin = Origin::start();
    let mut lineage = Lineage::start(&config(&origin));
    let (address, folder) = (lineage.gateway.address, lineage.gateway.folder.path().to_owned());
    spend(address);
    let failures = |lineage: &Lineage| lineage.gateway.metrics().value("tollgate_upgrade_failures_total", &[]).unwrap();
    let good = lineage.gateway.complete_config(&config(&origin));
    // Only the next process reads this file, so it does not affect the running one.
    std::fs::write(folder.join("tollgate.yaml"), "limits: [nonsense\n").unwrap();
    let mut kept = lineage.gateway.client();
    for count in 1..=2 {
        signal(lineage.current, "USR2");
        wait_until("the failure", || failures(&lineage) >= f64::from(count));
    }
    assert_eq!(kept.round_trip("GET", "/", &[]).status, 200);
    is_spent(address);
    let said = lineage.logged();
    assert!(said.contains("the handover failed; this process continues to serve"), "{said}");
    assert!(said.contains("\ntollgate.yaml:2:1: is not valid YAML"), "the new process says what is wrong: {said}");
    std::fs::write(folder.join("tollgate.yaml"), good).unwrap();
    lineage.upgrade();
    is_spent(address);
}

/// Starts the gateway again from a path where its successors then find a script in place of the program. The script writes
/// its process ID to a file.
fn replace_program(gateway: &mut Gateway, script: &str) {
    let folder = gateway.folder.path().to_owned();
    let program = folder.join("tollgate");
    symlink(env!("CARGO_BIN_EXE_tollgate"), &program).unwrap();
    gateway.end("TERM");
    gateway.process = Process::program(program.to_str().unwrap(), &["run", "--config", "tollgate.yaml"], &folder);
    wait_until("readiness", || is_ready(gateway.admin));
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, format!("#!/bin/sh\necho $$ > successor\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

/// Waits for the process ID of the script.
fn successor(gateway: &Gateway) -> u32 {
    let written = || std::fs::read_to_string(gateway.folder.path().join("successor")).ok()?.trim().parse().ok();
    wait_for("the new process", written)
}

#[test]
fn a_process_that_is_ended_while_its_successor_starts_takes_it_along() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin));
    replace_program(&mut gateway, "exec sleep 60");
    gateway.process.signal("USR2");
    let successor = successor(&gateway);
    gateway.process.signal("HUP");
    wait_until("a reload meanwhile", || gateway.admin_get("/status").text().contains("\"signal\""));
    gateway.process.signal("TERM");
    wait_until("the end of both processes", || gateway.process.has_ended() && has_ended(successor));
}

/// The successor says that it is ready, and never serves.
#[test]
fn the_others_of_a_cluster_find_a_gateway_again_whose_handover_failed() {
    let origin = Origin::start();
    let mut gateways = Nodes::new(2).start_all(&origin, "algorithm: gcra, rate: 1/h, burst: 2");
    replace_program(&mut gateways[1], "printf R >&0\nexec sleep 60");
    wait_for_members(&gateways, 2);
    gateways[1].process.signal("USR2");
    wait_until("the pause", || members(&gateways[0]).len() == 1);
    signal(successor(&gateways[1]), "KILL");
    wait_for_members(&gateways, 2);
    for key in 0..20 {
        let ask = |gateway: &Gateway| gateway.get("/", &[("x-key", &key.to_string())]).status;
        assert_eq!([0, 1, 0].map(|number: usize| ask(&gateways[number])), [200, 200, 429], "key {key}");
    }
}

/// What the request then settles with the other gateway is lost; the process does not wait for it.
#[test]
fn a_process_that_has_handed_over_its_place_in_a_cluster_ends_with_its_requests() {
    let (release, held) = std::sync::mpsc::channel();
    let held = Mutex::new(held);
    let origin = Origin::with(move |exchange| {
        if exchange.path() == "/held" {
            held.lock().recv().unwrap();
        }
        exchange.reply("200 OK", "x-cost: 5\r\n", b"")
    });
    let limit = "algorithm: gcra, rate: 1/h, burst: 100, cost: { response_header: x-cost }, \
                 charge: { when: response, reserve: 1 }";
    let mut gateways = Nodes::new(2).start_all(&origin, limit);
    let is_of_other = |key: &String| {
        let before = keys(&gateways[0]);
        assert_eq!(gateways[1].get("/", &[("x-key", key)]).status, 200);
        keys(&gateways[0]) > before
    };
    let key = (0..).map(|number| number.to_string()).find(is_of_other).unwrap();
    let mut lineage = Lineage::of(gateways.pop().unwrap());
    let mut client = lineage.gateway.client();
    client.send_request("GET", "/held", &[("x-key", &key)]);
    wait_until("the request", || origin.received().iter().any(|seen| seen.target() == "/held"));
    lineage.hand_over();
    release.send(()).unwrap();
    assert_eq!(client.receive().status, 200);
    wait_until("the end of the one before", || lineage.gateway.process.has_ended());
}

#[test]
fn a_change_on_a_connection_of_operators_from_before_a_handover_is_refused() {
    let (command, origin) = Origin::on_command();
    let mut lineage = Lineage::of(admin_api::started(&config(&origin), &[]));
    let mut client = lineage.gateway.client();
    client.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    let mut operator = Client::connect(lineage.gateway.admin);
    let key = json!({ "limit": "few", "key": { "header x-key": "spent" } });
    let fields = [admin_api::HOST, admin_api::BEARER];
    let mut reset = || operator.post("/v1/keys/reset", &fields, key.to_string().as_bytes());
    assert_eq!(reset().status, 200);
    lineage.hand_over();
    let refused = reset();
    assert_eq!((refused.status, refused.field("connection")), (503, Some("close")), "{}", refused.text());
    assert_eq!(admin_api::post(&lineage.gateway, "/v1/keys/reset", &fields, &key).status, 200);
    command.send(b"").unwrap();
    assert!(client.receive().whole);
    wait_until("the end of the one before", || lineage.gateway.process.has_ended());
}
