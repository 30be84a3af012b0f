//! The samples of `config/proxies`, run with the real proxies in front of a real upstream: requests obey the limits that
//! tollgate decides, and an outage of tollgate does what docs/decisions.md says.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::support::process::Process;
use crate::support::{Client, Folder, Gateway, Origin, Response, free_port, together, wait_until};

const NGINX: &str = include_str!("../../config/proxies/nginx.conf");
const CADDY: &str = include_str!("../../config/proxies/Caddyfile");
const HAPROXY: &str = include_str!("../../config/proxies/haproxy.cfg");
const HAPROXY_SCRIPT: &str = include_str!("../../config/proxies/haproxy.lua");
const ENVOY: &str = include_str!("../../config/proxies/envoy.yaml");
const TRAEFIK: &str = include_str!("../../config/proxies/traefik-dynamic.yaml");

/// The text of a sample in which `addresses` replace the addresses with these ports, with its settings for marks, which are
/// comments without a blank.
fn placed(sample: &str, addresses: &[(u16, SocketAddr)]) -> String {
    let with_setting = |line: &str| {
        let is_setting =
            |sign: &str| line.trim_start().strip_prefix(sign).is_some_and(|setting| !setting.starts_with(' '));
        let sign = ["#", "--"].into_iter().find(|sign| is_setting(sign));
        sign.map_or_else(|| line.to_owned(), |sign| line.replacen(sign, "", 1)) + "\n"
    };
    let sample: String = sample.lines().map(with_setting).collect();
    addresses.iter().fold(sample, |text, (port, address)| {
        let (own, envoys) = (format!("127.0.0.1:{port}"), format!("address: 127.0.0.1, port_value: {port} "));
        let envoys_address = format!("address: {}, port_value: {} ", address.ip(), address.port());
        text.replace(&own, &address.to_string()).replace(&envoys, &envoys_address)
    })
}

fn own_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// A gateway that serves decisions and trusts the proxy 127.0.0.1.
fn start(serves: &str, config: &str) -> Gateway {
    let trusted = "client_address: { trusted_proxies: [127.0.0.1] }\n";
    Gateway::start_listening(&format!("serves: {serves}"), &format!("{trusted}{config}"), &[])
}

/// A route with `limit` requests a day for each client, of which all but the first are marked, one without limits, and one that
/// refuses the requests for `closed.test`.
fn routed(limit: u32) -> String {
    format!(
        "limits:
  five: {{ algorithm: gcra, rate: {limit}/d, burst: {limit}, key: client_address }}
  first: {{ algorithm: gcra, rate: 1/d, burst: 1, key: client_address, over_limit: {{ mark: x-over-limit }}, headers: hidden }}
routes:
  - {{ name: orders, match: {{ path: /v1/** }}, limits: [five, first] }}
  - {{ name: open, match: {{ path: /open }}, limits: [] }}
  - {{ name: closed, match: {{ hosts: [closed.test] }}, limits: [], access: {{ deny: {{ addresses: [0.0.0.0/0] }} }} }}\n"
    )
}

/// Starts a program, and waits until it accepts connections.
fn run(program: &str, arguments: &[&str], folder: &Folder, own: SocketAddr) -> Process {
    let path = format!("PATH={}:/usr/sbin", std::env::var("PATH").unwrap());
    let process = Process::program("env", &[&[path.as_str(), program], arguments].concat(), folder.path());
    wait_until(&format!("{program} to listen"), || TcpStream::connect(own).is_ok());
    process
}

fn status(proxy: SocketAddr) -> u16 {
    Client::connect(proxy).round_trip("GET", "/v1/orders", &[("x-over-limit", "forged")]).status
}

/// The statuses of two requests: the target of one names `closed.test`, and the `host` field of the other.
fn statuses_by_target_and_field(proxy: SocketAddr) -> [u16; 2] {
    let hosts = [("closed.test", "a.test"), ("a.test", "closed.test")];
    hosts.map(|(target, field)| {
        Client::connect(proxy).round_trip("GET", &format!("http://{target}/v2"), &[("host", field)]).status
    })
}

/// Sends ten requests at once, and then one: checks the clients' statuses and the number of requests at the upstream.
fn hold_exactly(proxy: SocketAddr, origin: &Origin) -> Response {
    let before = origin.count();
    let statuses = together(10, |_| status(proxy));
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    let denied = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!((admitted, denied, origin.count() - before), (5, 5, 5), "{statuses:?}");
    let denied = Client::connect(proxy).get("/v1/orders");
    assert_eq!((denied.status, denied.field("retry-after").is_some(), origin.count() - before), (429, true, 5));
    let marks = |mark| origin.received().iter().filter(|seen| seen.head.field("x-over-limit") == Some(mark)).count();
    assert!(marks("first") >= 4 && marks("forged") == 0, "{:?}", origin.received());
    denied
}

#[test]
fn nginx_holds_a_limit_that_tollgate_decides() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let callers = "plans: [free]
customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv }, anonymous: { plan: free } }\n";
    let trusted = "client_address: { trusted_proxies: [127.0.0.1] }\n";
    let paid = "  paid: { algorithm: gcra, rate: 1/d, burst: 1, key: all, over_limit: { deny: { status: 402 } } }
routes:
  - { name: paid, match: { path: /paid }, limits: [paid] }\n";
    let config = format!("{trusted}{callers}{}", routed(5).replace("routes:\n", paid));
    let files = [("customers.csv", "credential,customer,plan\nsecret-of-acme,acme,free\n")];
    let gateway = Gateway::start_listening("serves: forward_auth, denied_status: 403", &config, &files);
    let own = own_address();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path t;\n"));
    let config = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{}\n{}\n}}",
        temporary.concat(),
        placed(NGINX, &[(8080, own), (8082, gateway.address), (9000, origin.address)]),
    );
    folder.write("nginx.conf", config);
    let _nginx = run("nginx", &["-e", "stderr", "-p", ".", "-c", "nginx.conf"], &folder, own);
    let denied = hold_exactly(own, &origin);
    assert!(denied.field("ratelimit").is_some_and(|told| told.starts_with("\"five\";r=0")), "{denied:?}");
    assert_eq!(Client::connect(own).get("/v2").status, 404);
    assert_eq!(statuses_by_target_and_field(own), [403, 404], "nginx chooses the server by the target");
    assert_eq!(["/paid", "/paid"].map(|path| Client::connect(own).get(path).status), [200, 402]);
    let seen = origin.count();
    let unknown = Client::connect(own).round_trip("GET", "/open", &[("x-api-key", "made-up")]);
    assert!(unknown.status == 401 && unknown.field("www-authenticate").is_some(), "{unknown:?}");
    assert_eq!(Client::connect(own).round_trip("GET", "/open", &[("x-a", "b"); 255]).status, 431);
    // during an outage nginx fails closed: it answers 500
    gateway.process.signal("STOP");
    assert_eq!((status(own), origin.count()), (500, seen), "stalled");
    gateway.process.signal("CONT");
    drop(gateway);
    assert_eq!((status(own), origin.count()), (500, seen), "down");
}

#[test]
fn caddy_holds_a_limit_that_tollgate_decides() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let gateway = start("forward_auth", &routed(5));
    let own = own_address();
    let sample = CADDY.replace(":8080", &format!(":{}", own.port()));
    let config = placed(&sample, &[(8081, gateway.address), (9000, origin.address)]);
    folder.write("Caddyfile", format!("{{\n admin off\n auto_https off\n}}\n{config}"));
    let arguments = ["XDG_DATA_HOME=.", "XDG_CONFIG_HOME=.", "caddy", "run", "--config", "Caddyfile"];
    let _caddy = run("env", &arguments, &folder, own);
    let denied = hold_exactly(own, &origin);
    assert_eq!(denied.json()["violated-policies"][0], "five");
    assert_eq!(statuses_by_target_and_field(own), [403, 404]);
    gateway.process.signal("STOP");
    assert_eq!((status(own), origin.count()), (504, 5), "stalled");
    gateway.process.signal("CONT");
    drop(gateway);
    assert_eq!((status(own), origin.count()), (502, 5), "down");
}

#[test]
fn traefik_holds_a_limit_that_tollgate_decides() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let gateway = start("forward_auth", &routed(5));
    let own = own_address();
    folder.write("traefik-dynamic.yaml", placed(TRAEFIK, &[(8081, gateway.address), (9000, origin.address)]));
    let address = format!("--entryPoints.web.address={own}");
    let _traefik = run_fetched("traefik", &[&address, "--providers.file.filename=traefik-dynamic.yaml"], &folder, own);
    wait_until("traefik to read its routes", || {
        Client::connect(own)
            .get("/v2")
            .field("content-type")
            .is_some_and(|kind| kind.starts_with("application/problem"))
    });
    let claims = [("x-forwarded-uri", "/v2"), ("x-forwarded-for", "192.0.2.1"), ("x-forwarded-method", "POST")];
    let denied = hold_exactly(own, &origin);
    assert_eq!(denied.json()["violated-policies"][0], "five");
    assert_eq!(statuses_by_target_and_field(own), [403, 404]);
    assert_eq!(Client::connect(own).round_trip("GET", "/v1/orders?all", &claims).status, 429);
    drop(gateway);
    assert_eq!((status(own), origin.count()), (500, 5));
}

#[test]
fn haproxy_holds_a_limit_that_tollgate_decides() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let gateway = start("forward_auth", &routed(5));
    let own = own_address();
    folder.write("haproxy.cfg", placed(HAPROXY, &[(8080, own), (9000, origin.address)]));
    folder.write("haproxy.lua", placed(HAPROXY_SCRIPT, &[(8081, gateway.address)]));
    let _haproxy = run("haproxy", &["-db", "-f", "haproxy.cfg"], &folder, own);
    // the gateway ignores these fields when a client sends them
    let claims = [("x-forwarded-uri", "/v2"), ("x-forwarded-for", "192.0.2.1"), ("x-forwarded-method", "POST")];
    let denied = hold_exactly(own, &origin);
    assert_eq!(denied.json()["violated-policies"][0], "five");
    assert_eq!(Client::connect(own).round_trip("GET", "/v1/orders?all", &claims).status, 429);
    assert_eq!(Client::connect(own).get("/v2").status, 404);
    assert_eq!(statuses_by_target_and_field(own), [400, 400]);
    // each host between commas chooses a backend
    let hosts = Client::connect(own).round_trip("GET", "/open", &[("host", "closed.test,a.test")]);
    assert_eq!(hosts.status, 400);
    // with the fields that the script adds, a question with 97 fields or more would end HAProxy itself
    for (fields, status) in [(95, 200), (96, 431), (97, 431), (99, 431), (1, 200)] {
        let fields = vec![("x-a", "b"); fields];
        assert_eq!(Client::connect(own).round_trip("GET", "/open", &fields).status, status, "{} fields", fields.len());
    }
    let seen = origin.count();
    gateway.process.signal("STOP");
    assert_eq!((status(own), origin.count()), (504, seen));
    gateway.process.signal("CONT");
    drop(gateway);
    assert_eq!((status(own), origin.count()), (503, seen));
}

/// Starts a program from the wheels of `scripts/install-needs.sh`.
fn run_fetched(program: &str, arguments: &[&str], folder: &Folder, own: SocketAddr) -> Process {
    let program = format!("{}/target/python/{program}", env!("CARGO_MANIFEST_DIR"));
    assert!(std::path::Path::new(&program).exists(), "{program} is missing: `make needs` fetches it");
    run(&program, arguments, folder, own)
}

fn envoy(config: String, own: SocketAddr, folder: &Folder) -> Process {
    folder.write("envoy.yaml", config);
    let options = ["-c", "envoy.yaml", "--concurrency", "2", "--disable-hot-restart", "--log-level", "error"];
    run_fetched("envoy/_bin/envoy", &options, folder, own)
}

/// Envoy's two filters ask the gateways, and one of the two limits is the tighter one.
fn envoy_holds_a_limit(by_route: u32, by_descriptor: u32) -> Response {
    let (origin, folder) = (Origin::start(), Folder::new());
    let (routes, domain) =
        (start("ext_authz", &routed(by_route)), start("rate_limit_service", &described(by_descriptor)));
    let own = own_address();
    let addresses = [(8080, own), (8083, routes.address), (8084, domain.address), (9000, origin.address)];
    // with timeouts that are long enough for a machine under load
    let patient =
        placed(ENVOY, &addresses).replace("timeout: 0.02s", "timeout: 30s").replace("timeout: 0.2s", "timeout: 30s");
    assert_eq!(patient.matches("timeout: 30s").count(), 2);
    let _envoy = envoy(patient, own, &folder);
    assert_eq!(statuses_by_target_and_field(own), [403, 404]);
    hold_exactly(own, &origin)
}

fn described(limit: u32) -> String {
    format!(
        "limits: {{ five: {{ algorithm: gcra, rate: {limit}/d, burst: {limit}, key: {{ descriptor: remote_address }} }} }}
domains: {{ edge: {{ descriptors: [{{ key: remote_address, limits: [five] }}] }} }}\n"
    )
}

#[test]
fn envoy_holds_a_limit_that_tollgate_decides_by_routes() {
    let denied = envoy_holds_a_limit(5, 1_000);
    assert_eq!(denied.json()["violated-policies"][0], "five");
}

#[test]
fn envoy_holds_a_limit_that_tollgate_decides_by_descriptors() {
    let denied = envoy_holds_a_limit(1_000, 5);
    assert_eq!(denied.field("x-envoy-ratelimited"), Some("true"));
    assert_eq!(denied.json()["violated-policies"][0], "five");
}

#[test]
fn a_field_that_envoy_sends_twice_is_no_key_of_its_own() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let by_user = "limits: { guard: { algorithm: gcra, rate: 1/d, burst: 1, key: { header: x-user } } }
routes: [{ name: all, limits: [guard] }]\n";
    let (routes, domain) = (start("ext_authz", by_user), start("rate_limit_service", &described(1_000)));
    let own = own_address();
    let addresses = [(8080, own), (8083, routes.address), (8084, domain.address), (9000, origin.address)];
    let _envoy = envoy(placed(ENVOY, &addresses).replace("timeout: 0.2s", "timeout: 30s"), own, &folder);
    let status = |users: &[(&str, &str)]| Client::connect(own).round_trip("GET", "/", users).status;
    assert_eq!([(); 2].map(|()| status(&[("x-user", "ada")])), [200, 429]);
    for other in ["1", "2", "ada"] {
        assert_eq!(status(&[("x-user", "ada"), ("x-user", other)]), 400, "{other}");
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn envoy_lets_requests_pass_without_the_rate_limit_service_and_refuses_them_without_ext_authz() {
    let (origin, folder) = (Origin::start(), Folder::new());
    let (routes, domain) = (start("ext_authz", &routed(1_000)), start("rate_limit_service", &described(1)));
    let own = own_address();
    let addresses = [(8080, own), (8083, routes.address), (8084, domain.address), (9000, origin.address)];
    // one filter at a time keeps the timeout of the sample
    let sample = placed(ENVOY, &addresses).replace("timeout: 0.2s", "timeout: 30s");
    let proxy = envoy(sample, own, &folder);
    domain.process.signal("STOP");
    assert_eq!([(); 3].map(|()| status(own)), [200; 3], "stalled");
    domain.process.signal("CONT");
    drop(domain);
    assert_eq!([(); 3].map(|()| status(own)), [200; 3], "down");
    drop(proxy);
    let seen = origin.count();
    assert_eq!(seen, 6);
    let _proxy = envoy(placed(ENVOY, &addresses), own, &folder);
    routes.process.signal("STOP");
    assert_eq!(status(own), 403, "stalled");
    routes.process.signal("CONT");
    drop(routes);
    assert_eq!((status(own), origin.count()), (403, seen), "down");
}
