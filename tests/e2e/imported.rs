//! Configurations of other proxies: the real program, and tollgate with the output of `tollgate import`, decide alike on
//! the same traffic.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::process::Process;
use crate::support::{Client, Folder, Origin, free_port, together, wait_until};

/// Rates so low that the time between requests does not matter, and one rate at which requests wait.
const NGINX: &str = "
geo $limited { default 1; 127.0.0.3 0; }
map $limited $address { 0 \"\"; 1 $binary_remote_addr; }
limit_req_zone $address zone=api:1m rate=1r/m;
limit_req_zone $http_x_api_key zone=keys:1m rate=1r/m;
limit_req_zone \"$host:$arg_user\" zone=users:1m rate=1r/m;
limit_req_zone $binary_remote_addr zone=paced:1m rate=1r/s;
limit_conn_zone $binary_remote_addr zone=downloads:1m;
upstream api { server ORIGIN; }
server {
    listen OWN;
    server_name a.test;
    limit_req_status 429;
    proxy_set_header Host $host;
    limit_req zone=api burst=4 nodelay;
    location / { proxy_pass http://api; }
    location = /exact { limit_req zone=keys; proxy_pass http://api; }
    location /v1/ { limit_req zone=api burst=4 nodelay; limit_req zone=keys burst=2 nodelay; proxy_pass http://api/internal/; }
    location ^~ /v2/ { limit_req zone=users burst=1 nodelay; proxy_pass http://api; }
    location /both { proxy_pass http://api/one; }
    location /both/ { proxy_pass http://api/two/; }
    location = /same { proxy_pass http://api/other; }
    location /paced/ { limit_req zone=paced burst=2; proxy_pass http://api; }
    location /files/ { limit_req zone=keys burst=100 nodelay; limit_conn downloads 2; proxy_pass http://api; }
}
server {
    listen OWN;
    server_name b.test *.b.test;
    location / { limit_req zone=keys burst=1 nodelay; proxy_pass http://api/b/; }
}
server {
    listen OWN;
    server_name b.test;
    location / { limit_req zone=keys; proxy_pass http://api/ignored/; }
}
server {
    listen OWN;
    server_name c.test;
    root .;
    location /only/ { proxy_pass http://api; }
}
server {
    listen OWN;
    server_name d.test;
    location / { root .; }
}
";

const HAPROXY: &str = "
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend own
    bind OWN
    stick-table type ip size 1k expire 1d store http_req_rate(1d)
    acl office src 127.0.0.3
    http-request track-sc0 src
    http-request track-sc1 req.fhdr(x-api-key) table keys if { path_beg /v1/ }
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 6 } !office
    http-request deny deny_status 503 if !office { sc_http_req_rate(1) ge 4 }
    http-request deny if { req.hdr(x-api-key) blocked }
    http-request deny if { path /guarded/login } { src 127.0.0.13 }
    use_backend closed if { path_beg /closed/ }
    use_backend guarded if { path_beg /guarded/ }
    use_backend api if { req.hdr(x-api-key) canary }
    use_backend b if { hdr(host) -i b.test } or { hdr_end(host) .b.test }
    use_backend writes if { path_beg /w/ } || { path /written }
    use_backend writes if METH_POST
    use_backend forms if { path_beg /login/ /signup/ }
    default_backend api
backend keys
    stick-table type string len 32 size 1k expire 1d store http_req_rate(1d)
backend api
    server a ORIGIN
backend closed
    http-request deny
backend guarded
    http-request deny unless { src 127.0.0.3 }
    server g ORIGIN
backend b
    stick-table type string len 32 size 1k expire 1d store http_req_rate(1d)
    http-request track-sc2 url_param(user)
    http-request deny if { sc_http_req_rate(2) gt 2 }
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 5 }
    server b ORIGIN
backend writes
    stick-table type ip size 1k expire 1d store gpc0_rate(1d)
    http-request track-sc2 src
    http-request deny deny_status 429 if { sc_gpc0_rate(2) gt 2 } !{ src 127.0.0.3 }
    http-request sc-inc-gpc0(2)
    server w ORIGIN
backend forms
    stick-table type ip size 1k expire 1d store gpc0_rate(1d)
    http-request track-sc2 src
    http-request sc-inc-gpc0(2) if { path_beg /login/ } !{ src 127.0.0.3 }
    http-request sc-inc-gpc0(2) if { path_beg /signup/ }
    http-request deny deny_status 429 if { path_beg /login/ /signup/ } { sc_gpc0_rate(2) gt 2 }
    server f ORIGIN
";

const TRAEFIK: &str = "
http:
  routers:
    ready: { rule: Path(`/ready-for-requests`), service: api }
    all: { rule: PathPrefix(`/`), middlewares: [per-address], service: api }
    v1:
      rule: Host(`a.test`) && PathPrefix(`/v1/`)
      middlewares: [per-address, per-key, inside]
      service: api
    login: { rule: (Path(`/login`) || Path(`/v1/login`)) && Method(`GET`), middlewares: [both], service: api }
  middlewares:
    per-address: { rateLimit: { average: 1, period: 24h, burst: 4 } }
    per-key: { rateLimit: { average: 1, period: 24h, burst: 2, sourceCriterion: { requestHeaderName: X-Api-Key } } }
    by-host: { rateLimit: { average: 1, period: 24h, sourceCriterion: { requestHost: true } } }
    inside: { stripPrefix: { prefixes: [/v1] } }
    both: { chain: { middlewares: [per-address, by-host] } }
  services:
    api: { loadBalancer: { servers: [{ url: \"http://ORIGIN\" }] } }
";

const ENVOY: &str = "
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: OWN } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: own
                http_filters:
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      '@type': LOCAL
                      stat_prefix: all
                      token_bucket: { max_tokens: 6, tokens_per_fill: 1, fill_interval: 86400s }
                      filter_enabled: &always { default_value: { numerator: 100 } }
                      filter_enforced: *always
                  - name: envoy.filters.http.router
                    typed_config: { '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
                route_config:
                  virtual_hosts:
                    - name: a
                      domains: [a.test]
                      routes:
                        - match: { path: /login }
                          route: { cluster: api }
                          typed_per_filter_config:
                            envoy.filters.http.local_ratelimit:
                              '@type': LOCAL
                              stat_prefix: logins
                              token_bucket: { max_tokens: 2, fill_interval: 86400s }
                              filter_enabled: *always
                              filter_enforced: *always
                              status: { code: 503 }
                        - { match: { prefix: /v1/ }, route: { cluster: api, prefix_rewrite: /internal/ } }
                        - match: { prefix: /watched/, headers: [{ name: x-api-key, string_match: { exact: one } }] }
                          route: { cluster: api }
                          typed_per_filter_config:
                            envoy.filters.http.local_ratelimit:
                              '@type': LOCAL
                              stat_prefix: watched
                              token_bucket: { max_tokens: 1, fill_interval: 86400s }
                              filter_enabled: *always
                        - { match: { prefix: / }, route: { cluster: api } }
                    - { name: b, domains: ['*.b.test'], routes: [{ match: { prefix: /only/ }, route: { cluster: api } }] }
  clusters:
    - name: api
      connect_timeout: 5s
      load_assignment:
        cluster_name: api
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: ORIGIN } } } }] }]
";

/// The address that an imported listener has if the file names none.
const PLACEHOLDER: &str = "0.0.0.0:8080";

/// The outcome of a request: its status, and the target that the upstream saw.
type Outcome = (u16, String);

/// Sends one request: the last byte of the client's address, the host, the target, and the key.
fn ask(own: SocketAddr, request: (u8, &str, &str, Option<&str>)) -> Outcome {
    ask_by("GET", own, request)
}

fn ask_by(method: &str, own: SocketAddr, (from, host, target, key): (u8, &str, &str, Option<&str>)) -> Outcome {
    let mut client = Client::connect_from(from, own);
    let key = key.map(|key| ("x-api-key", key));
    let fields: Vec<_> = [("host", host), ("connection", "close")].into_iter().chain(key).collect();
    let response = client.round_trip(method, target, &fields);
    (response.status, if response.status == 200 { response.text() } else { String::new() })
}

/// The outcomes of the sequential traffic in its order, and the number of admitted requests in each of two bursts.
fn outcomes(own: SocketAddr, denied: &AtomicUsize) -> (Vec<Outcome>, [usize; 2]) {
    let mut all = Vec::new();
    let mut go = |times: usize, request| (0..times).for_each(|_| all.push(ask(own, request)));
    go(7, (1, "a.test", "/", None));
    go(2, (2, "a.test", "/v1/orders?a=b", None));
    go(4, (2, "a.test", "/v1/orders", Some("one")));
    go(2, (4, "a.test", "/v1/orders", Some("one")));
    go(4, (3, "a.test", "/", None));
    go(8, (3, "a.test", "/elsewhere", None));
    go(3, (5, "a.test", "/exact", Some("two")));
    go(3, (5, "a.test", "/exact", None));
    go(3, (6, "a.test", "/v2/x?user=ann", None));
    go(3, (6, "a.test", "/v2/x?user=bob", None));
    go(1, (6, "unknown.test", "/v2/x?user=ann", None));
    go(3, (7, "b.test", "/path/x?q", Some("three")));
    go(2, (7, "x.b.test", "/", Some("three")));
    go(3, (7, "x.b.test", "/", None));
    for (host, target) in [("c.test", "/only/x"), ("c.test", "/"), ("d.test", "/")] {
        go(1, (7, host, target, None));
    }
    for target in ["/both", "/both/", "/both/x", "/same"] {
        go(1, (9, "a.test", target, None));
    }
    let at_once = |count, target: &str| {
        let outcomes = together(count, |_| {
            let status = ask(own, (8, "a.test", target, None)).0;
            denied.fetch_add(usize::from(status != 200), Ordering::Relaxed);
            status
        });
        outcomes.iter().filter(|status| **status == 200).count()
    };
    let paced = at_once(6, "/paced/x");
    denied.store(0, Ordering::Relaxed);
    (all, [paced, at_once(5, "/files/x")])
}

/// The results of the same traffic at a proxy and at tollgate with the imported configuration, and the output of the
/// import. `config` makes the configuration for an address, and `start` starts the proxy.
fn both<T>(
    file: &str,
    config: impl Fn(SocketAddr) -> String,
    start: impl FnOnce(&Folder, SocketAddr) -> Process,
    traffic: impl Fn(SocketAddr) -> T,
) -> ([T; 2], String) {
    let folder = Folder::new();
    let own = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let (theirs, ours, admin) = (own(), own(), own());
    folder.write(file, config(ours));
    let imported = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(folder.path())
        .args(["import", file])
        .output()
        .unwrap();
    let written = String::from_utf8(imported.stdout).unwrap();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let written = written.replace(PLACEHOLDER, &ours.to_string());
    folder.write("tollgate.yaml", format!("{written}\nadmin: {{ address: \"{admin}\" }}\n"));
    let _proxy = start(&folder, theirs);
    let _tollgate = Process::tollgate(&["run", "--config", "tollgate.yaml"], folder.path(), &[]);
    wait_until("both to listen", || [theirs, ours].iter().all(|own| TcpStream::connect(own).is_ok()));
    ([theirs, ours].map(traffic), written)
}

/// Starts nginx with these settings of its `http` block.
fn start_nginx(folder: &Folder, config: &str) -> Process {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path t;\n"));
    let head = "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {}";
    let config = format!("{head}\nhttp {{\naccess_log off;\n{}{config}}}", temporary.concat());
    folder.write("nginx.conf", config);
    run(folder, &["nginx", "-e", "stderr", "-p", ".", "-c", "nginx.conf"])
}

/// Starts a program that may be in a directory that is not on a normal user's path.
fn run(folder: &Folder, arguments: &[&str]) -> Process {
    let path = format!("PATH={}:/usr/sbin", std::env::var("PATH").unwrap());
    Process::program("env", &[&[path.as_str()], arguments].concat(), folder.path())
}

#[test]
fn nginx_and_its_import_decide_alike() {
    let denied = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&denied);
    let origin = Origin::with(move |exchange| {
        let target = exchange.head.word(1).to_owned();
        if target.starts_with("/files/") {
            // holds both slots until the other requests are denied
            wait_until("three to be denied", || seen.load(Ordering::Relaxed) == 3);
        }
        exchange.reply("200 OK", "", target.as_bytes())
    });
    let config =
        |own: SocketAddr| NGINX.replace("OWN", &own.to_string()).replace("ORIGIN", &origin.address.to_string());
    let start = |folder: &Folder, own| start_nginx(folder, &config(own));
    let ([theirs, ours], written) = both("api.conf", config, start, |own| outcomes(own, &denied));
    assert_eq!(ours, theirs, "{written}");
    assert_eq!(theirs.1, [3, 2]);
    let statuses = |status| theirs.0.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 5 && statuses(503) > 0 && statuses(200) > 20, "{theirs:?}");
}

#[test]
fn nginx_and_its_import_believe_the_same_proxies() {
    let origin = echo();
    for header in ["", "real_ip_header X-Forwarded-For;", "real_ip_header X-Forwarded-For; real_ip_recursive on;"] {
        let config = |own: SocketAddr| {
            format!(
                "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m; limit_req zone=z burst=1 nodelay;
set_real_ip_from 127.0.0.9; set_real_ip_from 127.0.0.16/28; {header}
server {{ listen {own}; proxy_set_header Host $host; location / {{ proxy_pass http://{}; }} }}\n",
                origin.address
            )
        };
        let start = |folder: &Folder, own| start_nginx(folder, &config(own));
        let traffic = |own| {
            let mut all = Vec::new();
            let mut go = |from, times: usize, fields: &[(&str, &str)]| {
                for _ in 0..times {
                    let fields = [&[("host", "a.test"), ("connection", "close")][..], fields].concat();
                    all.push(Client::connect_from(from, own).round_trip("GET", "/", &fields).status);
                }
            };
            for field in ["x-real-ip", "x-forwarded-for"] {
                go(9, 3, &[(field, "192.0.2.1")]);
                go(17, 1, &[(field, "192.0.2.1")]);
                go(8, 3, &[(field, "192.0.2.2")]);
            }
            go(9, 3, &[]);
            go(9, 3, &[("x-forwarded-for", "192.0.2.3, 127.0.0.17")]);
            go(17, 2, &[("x-forwarded-for", "192.0.2.3, 192.0.2.4")]);
            go(8, 1, &[]);
            all
        };
        let ([theirs, ours], written) = both("api.conf", config, start, traffic);
        assert_eq!(ours, theirs, "{header}: {written}");
        assert!(theirs.contains(&200) && theirs.contains(&503), "{theirs:?}");
    }
}

#[test]
fn haproxy_and_its_import_decide_alike() {
    let origin = echo();
    let config =
        |own: SocketAddr| HAPROXY.replace("OWN", &own.to_string()).replace("ORIGIN", &origin.address.to_string());
    let start = |folder: &Folder, own| {
        folder.write("haproxy.cfg", config(own));
        run(folder, &["haproxy", "-db", "-f", "haproxy.cfg"])
    };
    let traffic = |own| {
        let mut all = Vec::new();
        let mut go = |times: usize, request| (0..times).for_each(|_| all.push(ask(own, request)));
        go(9, (1, "a.test", "/", None));
        go(9, (3, "a.test", "/", None));
        go(5, (4, "a.test", "/v1/orders?a=b", Some("one")));
        go(3, (4, "a.test", "/elsewhere", Some("one")));
        go(2, (5, "a.test", "/v1/orders", Some("one")));
        go(4, (5, "a.test", "/v1/orders", None));
        go(2, (5, "a.test", "/v1/orders", Some("two")));
        go(3, (6, "b.test", "/path/x?user=ann", None));
        go(2, (6, "x.b.test", "/?user=bob", None));
        go(2, (7, "b.test", "/?user=bob", None));
        go(2, (7, "b.test", "/", None));
        go(7, (12, "b.test", "/", None));
        go(4, (8, "a.test", "/w/1", None));
        go(1, (8, "a.test", "/written", None));
        go(1, (8, "a.test", "/", None));
        go(4, (3, "a.test", "/login/x", None));
        go(3, (3, "a.test", "/signup/x", None));
        go(2, (9, "a.test", "/login/x", None));
        go(2, (9, "a.test", "/signup/x", None));
        go(2, (10, "a.test", "/v1/orders", Some("1,three")));
        go(4, (10, "a.test", "/v1/orders", Some("2,three")));
        go(1, (14, "a.test", "/closed/x", Some("canary")));
        for from in [3, 13, 14] {
            go(1, (from, "a.test", "/guarded/login", Some("canary")));
        }
        for key in ["blocked", "a, blocked ,b", "Blocked", "blocked b"] {
            go(1, (11, "a.test", "/v1/orders", Some(key)));
        }
        all
    };
    let ([theirs, ours], written) = both("haproxy.cfg", config, start, traffic);
    assert_eq!(ours, theirs, "{written}");
    let statuses = |status| theirs.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 5 && statuses(503) > 2 && statuses(403) > 1 && statuses(200) > 20, "{theirs:?}");
}

/// An upstream that echoes the request's target.
fn echo() -> Origin {
    Origin::with(|exchange| {
        let target = exchange.head.word(1).to_owned();
        exchange.reply("200 OK", "", target.as_bytes())
    })
}

/// The path of a program from the wheels of `scripts/install-needs.sh`.
fn fetched(program: &str) -> String {
    format!("{}/target/python/{program}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn traefik_and_its_import_decide_alike() {
    let origin = echo();
    let config = |_| TRAEFIK.replace("ORIGIN", &origin.address.to_string());
    let start = |folder: &Folder, own: SocketAddr| {
        folder.write("dynamic.yaml", config(own));
        let address = format!("--entryPoints.web.address={own}");
        run(folder, &[&fetched("traefik"), &address, "--providers.file.filename=dynamic.yaml"])
    };
    let traffic = |own| {
        wait_until("routes", || ask(own, (1, "a.test", "/ready-for-requests", None)).0 == 200);
        let mut all = Vec::new();
        let mut go = |times: usize, request| (0..times).for_each(|_| all.push(ask(own, request)));
        go(6, (1, "a.test", "/", None));
        go(3, (1, "a.test", "/v1/orders?a=b", Some("one")));
        go(2, (2, "a.test", "/v1/orders", Some("one")));
        go(3, (2, "a.test", "/v1/orders", Some("two")));
        go(4, (3, "a.test", "/v1/orders", None));
        go(2, (3, "c.test", "/v1/orders", None));
        go(2, (4, "a.test", "/login", None));
        go(1, (5, "a.test", "/login", None));
        go(2, (5, "c.test", "/v1/login", None));
        all.extend((0..7).map(|_| ask_by("HEAD", own, (6, "a.test", "/login", None))));
        all
    };
    let ([theirs, ours], written) = both("dynamic.yaml", config, start, traffic);
    assert_eq!(ours, theirs, "{written}");
    let statuses = |status| theirs.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 5 && statuses(200) > 10, "{theirs:?}");
}

#[test]
fn envoy_and_its_import_decide_alike() {
    const LOCAL: &str = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
    let origin = echo();
    let config = |own: SocketAddr| {
        let ports = [("OWN", own), ("ORIGIN", origin.address)].map(|(name, of)| (name, of.port().to_string()));
        ports.iter().fold(ENVOY.replace("LOCAL", LOCAL), |text, (name, port)| text.replace(name, port))
    };
    let start = |folder: &Folder, own| {
        folder.write("envoy.yaml", config(own));
        let options = ["-c", "envoy.yaml", "--concurrency", "2", "--disable-hot-restart", "--log-level", "error"];
        run(folder, &[&[fetched("envoy/_bin/envoy").as_str()], &options[..]].concat())
    };
    let traffic = |own| {
        let mut all = Vec::new();
        let mut go = |times: usize, request| (0..times).for_each(|_| all.push(ask(own, request)));
        go(4, (1, "a.test", "/login", None));
        go(3, (1, "a.test", "/watched/x", Some("one")));
        go(2, (1, "a.test", "/v1/orders?a=b", None));
        go(2, (2, "x.b.test", "/only/this", None));
        go(4, (3, "a.test", "/", None));
        go(1, (3, "a.test", "/watched/x", Some("two")));
        all
    };
    let ([theirs, ours], written) = both("envoy.yaml", config, start, traffic);
    assert_eq!(ours, theirs, "{written}");
    let statuses = |status| theirs.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 2 && statuses(503) == 2 && statuses(200) > 8, "{theirs:?}");
}
