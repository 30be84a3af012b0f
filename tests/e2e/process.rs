//! The life of the process: start, failures at the start, signals, end.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::gateway::{ALL, is_ready, proxied};
use crate::support::metrics::Metrics;
use crate::support::origin::upstream;
use crate::support::process::Process;
use crate::support::servers::{Kind, Server};
use crate::support::wire::Framing;
use crate::support::{Client, Folder, Gateway, Origin, free_port, now, together, wait_for_time, wait_until};

const SIGHUP: u32 = 1;
const SIGUSR2: u32 = 12;
const SIGTERM: u32 = 15;

#[test]
fn it_serves_soon_after_its_start() {
    let origin = Origin::start();
    let config = proxied(&origin, "");
    let folder = Folder::new();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let text = format!("listeners: [{{ address: \"{address}\" }}]\nadmin: {{ address: \"{admin}\" }}\n{config}");
    folder.write("t.yaml", &text);
    let began = now();
    let process = Process::tollgate(&["run", "--config", "t.yaml"], folder.path(), &[]);
    wait_until("the first connection", || TcpStream::connect(address).is_ok());
    assert_eq!(Client::connect(address).get("/").status, 200);
    let (took, computed) = (now() - began, process.processor_time());
    let node = Server::start(Kind::Node, false).process.processor_time();
    say(&format!(
        "from the start of the process to the first 200: {took:?}, {computed:?} of it computing; Node {node:?}"
    ));
    // A busy machine may delay the process for any time, so the test compares CPU times.
    assert!(computed < node, "{computed:?}, and Node's server {node:?}");
}

#[test]
fn the_demo_does_what_it_says() {
    let folder = Folder::new();
    let [listen, admin, upstream] =
        [free_port(), free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let [a, b, c] = [listen, admin, upstream].map(|address| address.to_string());
    let arguments = ["demo", "--listen", &a, "--admin", &b, "--upstream", &c];
    let process = Process::tollgate(&arguments, folder.path(), &[]);
    for address in [listen, upstream] {
        wait_until("the demo to listen", || TcpStream::connect(address).is_ok());
    }
    wait_until("what to try", || process.stdout().contains(&format!("http://{listen}/v1/orders")));
    for (fields, burst, per_second) in [(&[][..], 5, 1.0), (&[("x-api-key", "free-key")][..], 20, 10.0)] {
        let began = now();
        let statuses = together(3 * burst, |_| Client::connect(listen).round_trip("GET", "/v1/orders", fields).status);
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        // Some tokens refill meanwhile.
        let back = (now() - began).mul_f64(per_second).as_secs();
        assert!((burst..=burst + 1 + usize::try_from(back).unwrap()).contains(&admitted), "{statuses:?}");
    }
    let metrics = Client::connect(admin).get("/metrics").text();
    assert!(metrics.contains("plan=\"free\",route=\"orders\"} "), "{metrics}");
    assert_eq!(Client::connect(listen).get("/v2").status, 404);
}

/// Prints a figure, which `--nocapture` shows.
#[expect(clippy::print_stderr, reason = "a figure for whoever runs the tests")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// Runs the program until it ends with a failure, and returns its error.
fn failure(folder: &Folder, config: &str) -> String {
    let mut process = Process::tollgate(&["run", "--config", config], folder.path(), &[]);
    assert_eq!(process.wait().code(), Some(1));
    assert_eq!(process.stdout(), "");
    let said = process.stderr();
    assert!(!said.trim().is_empty() && !said.contains("panicked"), "{said}");
    said
}

fn config_on(address: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "listeners: [{{ address: \"{address}\" }}]\nadmin: {{ address: \"{admin}\" }}
upstreams: {{ origin: {{ nodes: [\"127.0.0.1:1\"] }} }}\nroutes: [{{ name: all, upstream: origin }}]\n"
    )
}

#[test]
fn an_address_that_is_taken_ends_the_process_and_is_named() {
    let folder = Folder::new();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, free) = (holder.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    for (address, admin) in [(taken, free), (free, taken)] {
        folder.write("t.yaml", config_on(address, admin));
        let said = failure(&folder, "t.yaml");
        assert!(said.contains(&taken.to_string()) && said.contains("in use"), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }
}

#[test]
fn two_gateways_cannot_share_a_port() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let folder = Folder::new();
    folder.write("t.yaml", config_on(gateway.address, SocketAddr::from(([127, 0, 0, 1], free_port()))));
    assert!(failure(&folder, "t.yaml").contains(&gateway.address.to_string()));
    assert_eq!(gateway.get("/", &[]).status, 200);
}

/// A target that the gateway answers without an upstream.
const MALFORMED: &str = "/%zz";

#[test]
fn a_gateway_that_is_ready_refuses_no_connection() {
    let folder = Folder::new();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    folder.write("t.yaml", config_on(address, admin));
    for _ in 0..10 {
        let _process = Process::tollgate(&["run", "--config", "t.yaml"], folder.path(), &[]);
        wait_until("the admin listener", || TcpStream::connect(admin).is_ok());
        // The gateway opens its sockets one after the other, that of the admin listener last.
        let mut early = Client::connect(address);
        early.send_request("GET", MALFORMED, &[]);
        wait_until("readiness", || is_ready(admin));
        assert_eq!(Client::connect(address).get(MALFORMED).status, 400);
        assert_eq!(early.receive().status, 400);
    }
}

#[test]
fn out_of_descriptors_connections_wait_and_are_served_when_some_are_free() {
    const COUNT: usize = 400;
    let folder = Folder::new();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    // more connections than descriptors; the gateway logs a warning
    folder.write("t.yaml", format!("connections: {{ max: 1000000 }}\n{}", config_on(address, admin)));
    let process = Process::tollgate_within(256, &["run", "--config", "t.yaml"], folder.path());
    wait_until("readiness", || is_ready(admin));
    assert!(process.stderr().contains("connections.max: is more than there are descriptors for"));
    let began = now();
    let clients: Vec<Client> = (0..COUNT).map(|_| Client::connect(address)).collect();
    let console_errors = || process.stderr().matches("cannot accept connections").count();
    wait_until("a complaint", || console_errors() > 0);
    let (began_waiting, used) = (now(), process.processor_time());
    wait_until("another complaint", || console_errors() > 2);
    let (waited, used) = (now() - began_waiting, process.processor_time() - used);
    assert!(used < waited / 2, "it waited {waited:?} and used the processor for {used:?}");
    // At most one warning per second, the first at once.
    assert!(console_errors() <= 2 + usize::try_from((now() - began).as_secs()).unwrap(), "{}", process.stderr());
    // Half of the clients disconnect; now there are descriptors for the others.
    let mut clients: Vec<Client> = clients.into_iter().skip(COUNT / 2).collect();
    for client in &mut clients {
        client.send_request("GET", MALFORMED, &[("connection", "close")]);
    }
    for client in &mut clients {
        assert_eq!(client.receive().status, 400);
    }
}

#[test]
fn descriptors_are_left_for_who_asks_however_many_clients_do_not() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let config = proxied(&origin, "health_check: { path: /healthz, every: 100ms }");
    let (process, address, admin) = start_within(256, &folder, &config);
    let mut idle: Vec<Client> = (0..900).map(|_| Client::connect(address)).collect();
    let (began, used) = (now(), process.processor_time());
    for number in 0..100 {
        let mut good = Client::connect(address);
        assert_eq!(good.get("/").status, 200, "{number}");
        assert!(is_ready(admin));
        idle.push(good);
    }
    // the gateway continues its other work: ten health checks take a second
    let checks = origin.checks();
    wait_until("health checks", || origin.checks() >= checks + 10);
    let (waited, used) = (now() - began, process.processor_time() - used);
    assert!(used < waited / 2, "it used the processor for {used:?} of {waited:?}");
}

#[test]
fn no_node_is_blamed_when_the_gateway_lacks_descriptors() {
    let (origins, folder) = ([Origin::start(), Origin::start()], Folder::new());
    let watched = "health_check: { path: /healthz, every: 50ms, unhealthy_after: 1 }, eject: { after: 1, for: 1h }";
    let upstream = upstream(&origins.each_ref().map(Origin::node), watched);
    let (process, address, admin) =
        start_within(256, &folder, &format!("connections: {{ max: 1000000 }}\n{upstream}{ALL}"));
    let mut clients: Vec<Client> = (0..400).map(|_| Client::connect(address)).collect();
    wait_until("no descriptor to be left", || process.stderr().matches("cannot accept connections").count() > 2);
    // some health checks later
    wait_for_time(now() + Duration::from_millis(300));
    for client in clients.iter_mut().take(10) {
        assert_eq!(client.get("/").status, 502, "{}", process.stderr());
    }
    drop(clients);
    wait_until("descriptors to be free", || process.descriptors() < 100);
    for _ in 0..4 {
        assert_eq!(Client::connect(address).get("/").status, 200);
    }
    let metrics = Metrics::parse(&Client::connect(admin).get("/metrics").text());
    assert_eq!(metrics.value("tollgate_upstream_ejections_total", &[("upstream", "origin")]), Some(0.0));
    assert!(!process.stderr().contains("unhealthy"), "{}", process.stderr());
}

#[test]
fn no_file_is_blamed_when_the_gateway_lacks_descriptors() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let state = "state: { file: t.state, every: 100ms }";
    let config = format!("connections: {{ max: 1000000 }}\n{state}\n{}", proxied(&origin, ""));
    let (process, address, _) = start_within(256, &folder, &config);
    wait_until("a snapshot", || folder.path().join("t.state").exists());
    let said = |text| process.stderr().contains(text);
    let clients: Vec<Client> = (0..400).map(|_| Client::connect(address)).collect();
    wait_until("no descriptor to be left", || said(r#""after_restart":"limits continue from the last snapshot""#));
    process.signal("HUP");
    wait_until("the reload to fail", || said("there are too many open files to read all; tollgate tries again"));
    drop(clients);
    wait_until("another reload", || said("configuration read again: nothing changed"));
    assert!(!said("move it away") && !said(r#""after_restart":"every key starts afresh""#), "{}", process.stderr());
}

/// A gateway with this number of descriptors, and its client and admin addresses.
fn start_within(descriptors: u32, folder: &Folder, config: &str) -> (Process, SocketAddr, SocketAddr) {
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    folder.write(
        "t.yaml",
        format!("listeners: [{{ address: \"{address}\" }}]\nadmin: {{ address: \"{admin}\" }}\n{config}"),
    );
    let process = Process::tollgate_within(descriptors, &["run", "--config", "t.yaml"], folder.path());
    wait_until("readiness", || is_ready(admin));
    (process, address, admin)
}

#[test]
fn a_start_with_too_few_descriptors_says_so() {
    let folder = Folder::new();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    folder.write("t.yaml", config_on(address, admin));
    for descriptors in [12, 16, 20] {
        let mut process = Process::tollgate_within(descriptors, &["run", "--config", "t.yaml"], folder.path());
        let code = process.wait().code();
        let said = process.stderr();
        let last = said.lines().last().unwrap_or_default();
        assert!(code == Some(1) && last.contains("is too low") && last.contains("`ulimit -n`"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_start_with_room_for_few_clients_warns() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let (process, address, _) = start_within(100, &folder, &proxied(&origin, ""));
    assert_eq!(Client::connect(address).get("/").status, 200);
    wait_until("the warning", || process.stderr().contains("leaves room for 1 clients; raise `ulimit -n`"));
}

#[test]
fn idle_admin_connections_shut_out_neither_clients_nor_scrapes() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let (process, address, admin) = start_within(1024, &folder, &proxied(&origin, ""));
    // a head without its body is a running request, which keeps its connection
    let mut asking = Client::connect(admin);
    asking.send("POST /explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n");
    let mut kept = Client::connect(admin);
    assert_eq!(kept.get("/healthz").status, 200);
    let idle: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(admin).unwrap()).collect();
    let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(address)).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").status, 200);
    }
    let metrics = Metrics::parse(&Client::connect(admin).get("/metrics").text());
    assert!(process.descriptors() < 500, "{}", process.descriptors());
    let shed = metrics.value("tollgate_connections_shed_total", &[("reason", "admin")]).unwrap();
    assert!(shed >= 900.0, "{shed}");
    assert!(!process.stderr().contains("leaves room"), "there is room for more than a hundred clients");
    assert!(kept.is_ended(), "the connections that are idle for longest go first");
    asking.send("{}");
    assert_eq!(asking.receive().status, 400, "the question lacks its url");
    drop(idle);
}

#[test]
fn a_gateway_that_was_stopped_says_for_how_long_it_stood_still() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    gateway.process.signal("STOP");
    wait_for_time(now() + Duration::from_secs(4));
    gateway.process.signal("CONT");
    wait_until("the warning", || gateway.process.stderr().contains("this gateway stood still"));
    let log = gateway.process.stderr();
    let line = log.lines().find(|line| line.contains("this gateway stood still")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert!(line["seconds"].as_f64().unwrap() >= 4.0, "{line}");
}

#[test]
fn a_server_thread_that_panics_ends_the_process_as_failed() {
    let (folder, points) = (Folder::new(), Folder::new());
    let addresses = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    folder.write("t.yaml", config_on(addresses[0], addresses[1]));
    points.write("server_thread", "");
    let environment = [("TOLLGATE_FAILPOINTS", points.path().to_str().unwrap())];
    let mut process = Process::tollgate(&["run", "--config", "t.yaml"], folder.path(), &environment);
    assert_eq!(process.wait().code(), Some(1), "{}", process.stderr());
    let said = process.stderr();
    let line = said.lines().find(|line| line.contains("server thread panicked")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("a test wants a panic here"), "{line}");
}

#[test]
fn a_missing_configuration_ends_the_process_and_is_named() {
    let said = failure(&Folder::new(), "nowhere.yaml");
    assert!(said.contains("nowhere.yaml") && said.contains("No such file"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

#[test]
fn a_bad_configuration_ends_the_process_with_every_error_in_its_place() {
    let folder = Folder::new();
    folder.write("bad.yaml", "listeners: [{ address: \"127.0.0.1:1\" }]\nlisteners_: 1\nroutes: []\nupstreams: 7\n");
    let said = failure(&folder, "bad.yaml");
    for wanted in ["bad.yaml:2:1", "listeners_", "bad.yaml:3", "bad.yaml:4"] {
        assert!(said.contains(wanted), "no {wanted}: {said}");
    }
    folder.write("broken.yaml", "listeners: [\n  {");
    assert!(failure(&folder, "broken.yaml").contains("broken.yaml"), "a file that is no YAML");
}

#[test]
fn customers_that_cannot_be_read_end_the_process_and_are_named() {
    let folder = Folder::new();
    let addresses = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let customers =
        "customers: { identify: [{ header: x-api-key }], directory: { file: people.csv } }\nplans: [free]\n";
    folder.write("t.yaml", &(config_on(addresses[0], addresses[1]) + customers));
    let missing = failure(&folder, "t.yaml");
    assert!(missing.contains("people.csv") && missing.contains("No such file"), "{missing}");

    folder.write("people.csv", "credential,customer,plan\nsecret-key-1,acme,free\nsecret-key-2,globex,gold\n");
    let bad = failure(&folder, "t.yaml");
    assert!(bad.contains("people.csv"), "{bad}");
    assert!(!bad.contains("secret-key"), "{bad}");
}

#[test]
fn an_idle_gateway_ends_promptly_when_told_to() {
    let origin = Origin::start();
    for signal in ["TERM", "INT"] {
        let mut gateway = Gateway::start(&proxied(&origin, ""));
        wait_until("the handler", || gateway.process.catches(SIGTERM));
        // An idle connection does not delay the shutdown.
        let mut kept = gateway.client();
        assert_eq!(kept.get("/").status, 200);
        gateway.process.signal(signal);
        // The test waits for less time than requests in flight would get.
        assert_eq!(gateway.process.wait().code(), Some(0), "{signal}: {}", gateway.process.stderr());
        assert!(kept.is_ended());
        assert!(gateway.process.stderr().contains("stopped"), "{}", gateway.process.stderr());
    }
}

#[test]
fn a_head_that_does_not_come_does_not_hold_the_end() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&(proxied(&origin, "") + "request_head: { timeout: 10m }\n"));
    wait_until("the handler", || gateway.process.catches(SIGTERM));
    let [mut new, mut kept] = [(); 2].map(|()| gateway.client());
    new.send("GET / HTTP/1.1\r\n");
    assert_eq!(kept.get("/").status, 200);
    kept.send("GET / HT");
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway.process.signal("TERM");
    assert_eq!(gateway.process.wait().code(), Some(0), "{}", gateway.process.stderr());
}

#[test]
fn requests_in_flight_finish_before_the_end() {
    let (command, origin) = Origin::on_command();
    let mut gateway = Gateway::start(&proxied(&origin, ""));
    wait_until("the handler", || gateway.process.catches(SIGTERM));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    command.send(b"before").unwrap();
    let head = client.wire.head().unwrap().unwrap();
    let mut framing = Framing::of_response(&head, false);
    assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), b"before");

    gateway.process.signal("TERM");
    wait_until("readiness to fail", || !is_ready(gateway.admin));
    wait_until("the end of accepting", || TcpStream::connect(gateway.address).is_err());
    assert!(gateway.process.exit_status().is_none(), "a request is in flight");
    // the admin port answers until the end
    let readiness = gateway.admin_get("/readyz");
    assert_eq!((readiness.status, readiness.text().as_str()), (503, "stopping\n"));
    let in_flight = gateway.metrics().value("tollgate_http_requests_in_flight", &[("route", "all")]);
    assert_eq!(in_flight, Some(1.0));
    for part in [&b"after"[..], b"the signal"] {
        command.send(part).unwrap();
        assert_eq!(client.wire.part(&mut framing).unwrap().unwrap(), part);
    }
    assert!(gateway.process.exit_status().is_none(), "a request is in flight");
    command.send(b"").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap(), None, "the stream came to its end");
    assert_eq!(gateway.process.wait().code(), Some(0));
}

#[test]
fn no_request_of_many_is_lost_at_the_end() {
    const COUNT: usize = 64;
    let gate = std::sync::Arc::new(parking_lot::RwLock::new(()));
    let opened = std::sync::Arc::clone(&gate);
    let origin = Origin::with(move |exchange| {
        drop(opened.read());
        exchange.reply("200 OK", "", b"done\n")
    });
    let mut gateway = Gateway::start(&proxied(&origin, ""));
    wait_until("the handler", || gateway.process.catches(SIGTERM));
    let closed = gate.write();
    let mut clients: Vec<Client> = (0..COUNT).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send_request("GET", "/", &[]);
    }
    origin.wait_for_count(COUNT);
    gateway.process.signal("TERM");
    wait_until("the end of accepting", || TcpStream::connect(gateway.address).is_err());
    drop(closed);
    for client in &mut clients {
        assert_eq!(client.receive().text(), "done\n");
    }
    assert_eq!(gateway.process.wait().code(), Some(0), "{}", gateway.process.stderr());
}

#[test]
fn a_second_signal_does_not_wait() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&proxied(&origin, ""));
    wait_until("the handler", || gateway.process.catches(SIGTERM));
    let mut client = gateway.client();
    client.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    gateway.process.signal("TERM");
    wait_until("readiness to fail", || !is_ready(gateway.admin));
    assert!(gateway.process.exit_status().is_none(), "a request is in flight");
    gateway.process.signal("TERM");
    gateway.process.wait();
    let said = gateway.process.stderr();
    let broken_off = said.lines().find(|line| line.contains("breaks off requests")).unwrap_or(&said);
    assert!(broken_off.contains(r#""requests":1"#), "{broken_off}");
}

#[test]
fn a_hangup_during_the_start_is_handled_after_it() {
    let folder = Folder::new();
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    // the start waits for a while, because this name has no address
    folder.write("t.yaml", config_on(address, admin).replace("127.0.0.1:1\"]", "nowhere.invalid:1\"]"));
    let mut process = Process::tollgate(&["run", "--config", "t.yaml"], folder.path(), &[]);
    wait_until("the sockets", || TcpStream::connect(admin).is_ok());
    process.signal("HUP");
    assert!(process.catches(SIGUSR2));
    let reloads = || Metrics::parse(&Client::connect(admin).get("/metrics").text());
    wait_until("readiness", || {
        assert_eq!(process.exit_status(), None, "{}", process.stderr());
        is_ready(admin)
    });
    wait_until("the reload", || {
        reloads().value("tollgate_config_reloads_total", &[("result", "unchanged")]) == Some(1.0)
    });
}

#[test]
fn a_hangup_does_not_end_it() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&proxied(&origin, ""));
    wait_until("the handler", || gateway.process.catches(SIGHUP));
    let before = gateway.process.stderr().len();
    for _ in 0..3 {
        gateway.process.signal("HUP");
    }
    wait_until("word of the signal", || gateway.process.stderr().len() > before);
    assert_eq!(gateway.get("/", &[]).status, 200);
    assert!(gateway.process.exit_status().is_none());
}
