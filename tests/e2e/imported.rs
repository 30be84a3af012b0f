//! Configurations of other proxies: the real program and what `tollgate import` makes of its file decide alike on the same traffic.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::process::Process;
use crate::support::{Client, Folder, Origin, free_port, together, wait_until};

/// Rates so low that the time between requests does not matter, and one at which they wait.
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
    location /paced/ { limit_req zone=paced burst=2; proxy_pass http://api; }
    location /files/ { limit_req zone=keys burst=100 nodelay; limit_conn downloads 2; proxy_pass http://api; }
}
server {
    listen OWN;
    server_name b.test *.b.test;
    location / { limit_req zone=keys burst=1 nodelay; proxy_pass http://api/b/; }
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
    http-request track-sc1 req.hdr(x-api-key) table keys if { path_beg /v1/ }
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 6 } !office
    http-request deny deny_status 503 if !office { sc_http_req_rate(1) ge 4 }
    use_backend b if { hdr(host) -i b.test } or { hdr_end(host) .b.test }
    use_backend writes if { path_beg /w/ } || { path /written }
    use_backend writes if METH_POST
    default_backend api
backend keys
    stick-table type string len 32 size 1k expire 1d store http_req_rate(1d)
backend api
    server a ORIGIN
backend b
    stick-table type string len 32 size 1k expire 1d store http_req_rate(1d)
    http-request track-sc2 url_param(user)
    http-request deny if { sc_http_req_rate(2) gt 2 }
    server b ORIGIN
backend writes
    stick-table type ip size 1k expire 1d store gpc0_rate(1d)
    http-request track-sc2 src
    http-request deny deny_status 429 if { sc_gpc0_rate(2) gt 2 } !{ src 127.0.0.3 }
    http-request sc-inc-gpc0(2)
    server w ORIGIN
";

/// The address of the listener where a configuration names none.
const PLACEHOLDER: &str = "0.0.0.0:8080";

/// What became of a request: its status, and the target that the upstream saw.
type Outcome = (u16, String);

/// A client by the end of its address, the host, the target, and the key that it shows.
fn ask(own: SocketAddr, (from, host, target, key): (u8, &str, &str, Option<&str>)) -> Outcome {
    let mut client = Client::connect_from(from, own);
    let key = key.map(|key| ("x-api-key", key));
    let fields: Vec<_> = [("host", host), ("connection", "close")].into_iter().chain(key).collect();
    let response = client.exchange("GET", target, &fields);
    (response.status, if response.status == 200 { response.text() } else { String::new() })
}

/// All of the traffic, in order; and of what comes at once, how much passes.
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

/// What a proxy, and what is imported of its configuration, do with the same traffic; and what was written of it. `config`
/// makes the configuration for an address, and `start` the process of the proxy.
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

/// Starts a program that may be where a path for users alone does not lead.
fn run(folder: &Folder, arguments: &[&str]) -> Process {
    let path = format!("PATH={}:/usr/sbin", std::env::var("PATH").unwrap());
    Process::program("env", &[&[path.as_str()], arguments].concat(), folder.path())
}

#[test]
fn nginx_and_what_is_imported_of_it_decide_alike() {
    let denied = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&denied);
    let origin = Origin::with(move |exchange| {
        let target = exchange.head.word(1).to_owned();
        if target.starts_with("/files/") {
            // both slots are taken until the others are denied
            wait_until("three to be denied", || seen.load(Ordering::Relaxed) == 3);
        }
        exchange.reply("200 OK", "", target.as_bytes())
    });
    let config =
        |own: SocketAddr| NGINX.replace("OWN", &own.to_string()).replace("ORIGIN", &origin.address.to_string());
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path t;\n"));
    let start = |folder: &Folder, own| {
        let head = "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {}";
        let config = format!("{head}\nhttp {{\naccess_log off;\n{}{}}}", temporary.concat(), config(own));
        folder.write("nginx.conf", config);
        run(folder, &["nginx", "-e", "stderr", "-p", ".", "-c", "nginx.conf"])
    };
    let ([theirs, ours], written) = both("api.conf", config, start, |own| outcomes(own, &denied));
    assert_eq!(ours, theirs, "{written}");
    assert_eq!(theirs.1, [3, 2]);
    let statuses = |status| theirs.0.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 5 && statuses(503) > 0 && statuses(200) > 20, "{theirs:?}");
}

#[test]
fn haproxy_and_what_is_imported_of_it_decide_alike() {
    let origin = Origin::with(|exchange| {
        let target = exchange.head.word(1).to_owned();
        exchange.reply("200 OK", "", target.as_bytes())
    });
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
        go(4, (8, "a.test", "/w/1", None));
        go(1, (8, "a.test", "/written", None));
        go(1, (8, "a.test", "/", None));
        all
    };
    let ([theirs, ours], written) = both("haproxy.cfg", config, start, traffic);
    assert_eq!(ours, theirs, "{written}");
    let statuses = |status| theirs.iter().filter(|outcome| outcome.0 == status).count();
    assert!(statuses(429) > 5 && statuses(503) > 2 && statuses(403) > 1 && statuses(200) > 20, "{theirs:?}");
}
