//! Secrets of every kind go through every part of the gateway that handles them: nothing that the gateway prints, stores or
//! sends elsewhere contains one.

use std::collections::BTreeSet;
use std::process::Command;

use base64::Engine;
use bytes::Bytes;
use serde_json::json;

use crate::support::client::request;
use crate::support::cluster::{Nodes, wait_for_members};
use crate::support::http2::Http2;
use crate::support::redis::Redis;
use crate::support::tls::{Authority, connect};
use crate::support::tokens::{Issuer, key_set};
use crate::support::{Client, Gateway, Origin, Response, wait_until};

/// All secrets begin alike, so that the test also finds a part of one.
const CANARY: &str = "canary-5f0e";
const HEADER: &str = "canary-5f0e-in-a-header";
const QUERY: &str = "canary-5f0e-in-a-query";
const COOKIE: &str = "canary-5f0e-in-a-cookie";
const BEARER: &str = "canary-5f0e-as-a-bearer";
const SUBJECT: &str = "canary-5f0e of a certificate";
const ADMIN: &str = "canary-5f0e-of-operators";
const CLUSTER: &str = "canary-5f0e-of-the-cluster";
const KEYS: &str = "canary-5f0e-of-the-names-of-keys";
const REDIS: &str = "canary-5f0e-of-redis";
const COLLECTOR: &str = "canary-5f0e-of-the-collector";
const BROKEN: &str = "canary-5f0e-where-it-does-not-belong";

/// The collected texts, each with the name of its source.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn hear(&mut self, who: &str, text: impl Into<String>) {
        self.0.push((who.to_owned(), text.into()));
    }

    fn answer(&mut self, who: &str, answer: &Response) {
        self.hear(who, String::from_utf8_lossy(&answer.head.raw).into_owned() + &answer.text());
    }

    /// Collects the output of a command.
    fn command(&mut self, gateway: &Gateway, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output =
            command.current_dir(gateway.folder.path()).args(arguments).env("RUST_LOG", "debug").output().unwrap();
        self.hear(
            arguments[0],
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat(),
        );
    }

    #[track_caller]
    fn holds_none_of(&self, secrets: &[&str]) {
        for (who, text) in &self.0 {
            for secret in secrets {
                let found = text.lines().find(|line| line.contains(secret));
                assert_eq!(found, None, "{secret} in what is said by {who}");
            }
        }
    }
}

/// A configuration with every feature, for both gateways. `identify` lists the places of a credential.
fn config((origin, collector): (&Origin, &Origin), redis: &Redis, cluster: &str, identify: &str) -> String {
    format!(
        "upstreams: {{ origin: {{ nodes: [{}] }}, collector: {{ nodes: [{}] }} }}
traces: {{ upstream: collector, token_file: collector.token, sample: 1 }}
{cluster}store: {{ redis: \"redis://127.0.0.1:{}\", password_file: redis.password, key_file: keys.secret }}
state: {{ file: tollgate.state, every: 100ms }}
access_log: full
customers:
  identify: {identify}
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free]
usage: {{ path: /usage }}
limits:
  everybody: {{ algorithm: gcra, rate: 1000/s, burst: 1000, key: all }}
  callers: {{ algorithm: quota_reset, limit: 12, window: 1d, key: customer }}
  headers: {{ algorithm: sliding_log, limit: 8, window: 1d, key: {{ header: x-api-key }}, missing_key: skip }}
  cookies: {{ algorithm: gcra, rate: 1/d, burst: 100, mode: shared, key: {{ cookie: session }}, missing_key: skip }}
  queries: {{ algorithm: token_bucket, rate: 1/d, burst: 100, mode: shared, key: {{ query: api_key }}, missing_key: skip }}
routes:
  - {{ name: tunnels, match: {{ path: /tunnel }}, upstream: origin, limits: [everybody], upgrade: [websocket] }}
  - {{ name: all, upstream: origin, limits: [headers, cookies, queries, callers] }}
",
        origin.node(),
        collector.node(),
        redis.url().rsplit_once(':').unwrap().1.trim_end_matches(|c: char| !c.is_ascii_digit()),
    )
}

const DEBUG: [(&str, &str); 1] = [("RUST_LOG", "trace")];

const LOCAL: (&str, &str) = ("host", "127.0.0.1");

/// Collects all answers that `gateway` gives to operators.
fn ask_for_everything(gateway: &Gateway, said: &mut Said) {
    for page in ["/", "/metrics", "/status", "/v1/status", "/v1/routes", "/v1/limits", "/v1/offenders", "/v1/decisions"]
    {
        let answer = Client::connect(gateway.admin).round_trip("GET", page, &[LOCAL, ("connection", "close")]);
        assert_eq!(answer.status, 200, "{page}");
        said.answer(page, &answer);
    }
    let post = |path: &str, body: &serde_json::Value| {
        let fields = [LOCAL, ("connection", "close"), ("authorization", &*format!("Bearer {ADMIN}"))];
        Client::connect(gateway.admin).post(path, &fields, body.to_string().as_bytes())
    };
    let (plain, by_query) = ("http://a.test/", format!("http://a.test/?api_key={QUERY}"));
    let fields = [
        ("headers", plain, "x-api-key", HEADER.to_owned()),
        ("callers", plain, "x-api-key", HEADER.to_owned()),
        ("cookies", plain, "cookie", format!("session={COOKIE}")),
        ("queries", &by_query, "authorization", format!("Bearer {BEARER}")),
    ];
    for (limit, url, name, value) in fields {
        let request = json!({ "url": url, "headers": { name: value } });
        said.answer("explain", &post("/v1/explain", &request));
        for path in ["/v1/keys/peek", "/v1/keys/grant", "/v1/keys/reset"] {
            said.answer(path, &post(path, &json!({ "limit": limit, "tokens": 1, "request": request })));
        }
        let charges = [json!({ "limit": limit, "tokens": 1, "request": request })];
        said.answer("/v1/charge", &post("/v1/charge", &json!({ "charges": charges })));
        let field = format!("{name}: {value}");
        said.command(gateway, &["explain", "--config", "tollgate.yaml", "--url", url, "-H", &field]);
    }
}

const UPGRADE: &[(&str, &str)] = &[("connection", "upgrade"), ("upgrade", "websocket")];

#[test]
fn no_secret_is_in_anything_that_a_gateway_says_or_keeps() {
    let origin = Origin::with(|exchange| {
        match exchange.path() {
        "/drop" => Err(std::io::ErrorKind::ConnectionAborted.into()),
        "/nonsense" => exchange.send(format!("nonsense\r\nset-cookie: {COOKIE}\r\n\r\n")),
        "/tunnel" => exchange.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n",
        ),
        _ => exchange.reply("200 OK", &format!("set-cookie: session={COOKIE}\r\n"), HEADER.as_bytes()),
    }
    });
    let (collected, collecting) = std::sync::mpsc::channel();
    let collector = Origin::with(move |exchange| {
        collected.send(exchange.body()?).unwrap();
        exchange.reply("200 OK", "", b"")
    });
    let (redis, nodes, authority) = (Redis::start_with_password(REDIS), Nodes::new(2), Authority::new());
    let (server, client, issuer) = (authority.sign(&["a.test"]), authority.sign_client(SUBJECT), Issuer::secret());
    let unknown = authority.sign_client("canary-5f0e of nobody");
    let customers = format!("credential,customer,plan\n{HEADER},acme,free\n{SUBJECT},globex,free\n");
    let (keys, authorities) = (key_set(&[Issuer::secret()]), authority.pem());
    let files: [(&str, &str); 10] = [
        ("customers.csv", &customers),
        ("redis.password", REDIS),
        ("keys.secret", KEYS),
        ("cluster.key", CLUSTER),
        ("keys.jwks", &keys),
        ("a.pem", &server.certificate),
        ("a.key", &server.key),
        ("clients.pem", &authorities),
        ("admin.token", ADMIN),
        ("collector.token", COLLECTOR),
    ];
    let clear = "[{ header: x-api-key }, { query: api_key }, { cookie: session }, { bearer: true }, { basic: true }]";
    let clear = config((&origin, &collector), &redis, &nodes.section(0, ""), clear);
    let secured = "[{ client_certificate: true }, { jwt: { jwks_file: keys.jwks, plan: free } }]";
    let secured = config((&origin, &collector), &redis, &nodes.section(1, ""), secured);
    let tls = "tls: { certificates: [{ cert: a.pem, key: a.key }], client_certificates: { ca: clients.pem, required: false } }";
    let mut gateways = [
        Gateway::start_with_options("http2: true, proxy_protocol: [127.0.0.2]", &clear, &files, &DEBUG),
        Gateway::start_with_options(tls, &secured, &files, &DEBUG),
    ];
    wait_for_members(&gateways, 2);
    let mut said = Said::default();
    // from here on, operators have to send the token
    for (gateway, config) in gateways.iter().zip([&clear, &secured]) {
        let address = format!("address: \"{}\"", gateway.admin);
        let config = gateway.complete_config(config).replacen(
            &address,
            &format!("{address}, token_file: admin.token, top_denied_metrics: 20"),
            1,
        );
        gateway.folder.write("tollgate.yaml", config);
        said.answer("reload", &gateway.reload());
    }

    let [clear, secured] = &gateways;
    let mut seen = BTreeSet::new();
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("canary:{BEARER}")));
    let (bearer, cookie) = (format!("Bearer {BEARER}"), format!("session={COOKIE}"));
    let fields: [&[(&str, &str)]; 8] = [
        &[("x-api-key", HEADER)],
        &[("x-api-key", BROKEN)],
        &[("x-api-key", HEADER), ("x-api-key", HEADER)],
        &[("x-other", HEADER)],
        &[("cookie", &cookie)],
        &[("authorization", &bearer)],
        &[("authorization", &basic)],
        &[("proxy-authorization", &bearer), ("x-forwarded-for", HEADER), ("origin", "http://a.test")],
    ];
    for target in ["/", "/drop", "/nonsense", "/%zz", "/usage", "/tunnel"] {
        let is_tunnel = target == "/tunnel";
        for fields in fields {
            for target in [target.to_owned(), format!("{target}?api_key={QUERY}"), format!("{target}?a=b&x={QUERY}")] {
                let fields = [fields, if is_tunnel { UPGRADE } else { &[] }].concat();
                let answer = clear.client().round_trip("GET", &target, &fields);
                seen.insert(answer.status);
                // the upstream's own responses are not the gateway's texts
                if answer.status != 200 && answer.status != 101 {
                    said.answer(&target, &answer);
                }
            }
        }
    }
    for head in [
        format!("PROXY TCP4 {HEADER} 10.0.0.1 1 2\r\n"),
        format!("PROXY UNKNOWN {HEADER}\r\n")
            + &request("GET", &format!("/?api_key={QUERY}"), &[("x-api-key", BROKEN)]),
        format!("GET /{HEADER} nonsense\r\nx: {HEADER}\r\n\r\n"),
    ] {
        for from in [2, 3] {
            let mut client = clear.client_from(from);
            client.send(&head);
            if let Some(answer) = client.next() {
                said.answer("who begins oddly", &answer);
            }
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut http2 = runtime.block_on(Http2::connect_cleartext(clear.address));
    let target = format!("http://test/?api_key={QUERY}");
    for fields in fields {
        let fields: Vec<(&str, &str)> =
            fields.iter().copied().filter(|(name, _)| *name != "proxy-authorization").collect();
        let body = Bytes::from_static(HEADER.as_bytes());
        let asking = http2.post(&target, &fields, body);
        let answer = runtime.block_on(asking).unwrap();
        if answer.status != 200 {
            said.hear("HTTP/2", format!("{:?}{}", answer.headers, String::from_utf8_lossy(&answer.body)));
        }
    }

    wait_until("a denial", || {
        let denied = clear.client().round_trip("GET", "/", &[("x-api-key", HEADER)]);
        if denied.status == 429 {
            said.answer("a denial", &denied);
        }
        denied.status == 429
    });
    assert!([101, 200, 400, 401, 502].iter().all(|status| seen.contains(status)), "{seen:?}");

    let (token, forged) = (issuer.token("initech"), Issuer::other_rsa().token("initech"));
    let mut secured_seen = BTreeSet::new();
    for shows in [None, Some(&client), Some(&unknown)] {
        let stream =
            runtime.block_on(connect(secured.address, authority.client_config(&["h2"], shows), "a.test")).unwrap();
        let mut http2 = runtime.block_on(Http2::on(stream));
        for token in [&token, &forged, BEARER] {
            let bearer = format!("Bearer {token}");
            for fields in [&[("authorization", &*bearer)] as &[_], &[("x-other", HEADER)], &[("cookie", &cookie)]] {
                let answer = runtime.block_on(http2.get(&format!("https://a.test/?api_key={QUERY}"), fields)).unwrap();
                secured_seen.insert(answer.status);
                if answer.status != 200 {
                    said.hear("TLS", format!("{:?}{}", answer.headers, String::from_utf8_lossy(&answer.body)));
                }
            }
        }
    }
    assert!([200, 401].iter().all(|status| secured_seen.contains(status)), "{secured_seen:?}");
    // a client with another secret, or without one, at the cluster port
    let mut stranger = Client::connect(nodes.0[0]);
    stranger.send(CLUSTER);
    drop(stranger);

    for gateway in &gateways {
        ask_for_everything(gateway, &mut said);
        let good = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
        said.command(gateway, &["check", "tollgate.yaml"]);
        for (text, instead) in [
            ("redis://127", &*format!("redis://canary:{BROKEN}@127")),
            ("secret_file: cluster.key", &format!("secret: {BROKEN}")),
            ("secret_file: cluster.key", &format!("secret_file: {{ is: {BROKEN} }}")),
            ("token_file: admin.token", &format!("token: {BROKEN}")),
            ("password_file: redis.password", &format!("password: {BROKEN}")),
            ("key_file: keys.secret", &format!("key_file: [{BROKEN}]")),
            ("plans: [free]", &format!("plans: [free]\nsecret: {BROKEN}")),
            ("plans: [free]", &format!("plans: [free] {BROKEN}: {{")),
        ] {
            assert!(good.contains(text), "{text}");
            gateway.folder.write("tollgate.yaml", good.replacen(text, instead, 1));
            said.answer("reload", &gateway.reload());
            said.command(gateway, &["check", "tollgate.yaml"]);
        }
        gateway.folder.write("tollgate.yaml", &good);
        let broken_key = server.key.replacen("-----END", &format!("{BROKEN}\n-----END"), 1);
        for (file, content) in [
            ("customers.csv", format!("credential,customer,plan\n{BROKEN},acme,nobodys-plan\n{BROKEN},acme\n")),
            ("keys.jwks", format!("{{ \"keys\": [{{ \"kty\": \"oct\", \"k\": \"{BROKEN}!\" }}] }}")),
            ("admin.token", "canary-5f0e".to_owned()),
            ("cluster.key", "canary-5f0e".to_owned()),
            ("keys.secret", "canary-5f0e".to_owned()),
            ("a.key", broken_key.clone()),
            ("a.pem", broken_key),
        ] {
            let before = std::fs::read_to_string(gateway.folder.path().join(file)).unwrap();
            gateway.folder.write(file, content);
            said.answer("reload", &gateway.reload());
            said.command(gateway, &["check", "tollgate.yaml"]);
            gateway.folder.write(file, before);
        }
        assert_eq!(gateway.reload().status, 200);
        ask_for_everything(gateway, &mut said);

        let line = json!({
            "time": 1_700_000_000, "client": "192.0.2.1", "method": "GET", "status": 200, "host": "test",
            "path": format!("/?api_key={QUERY}"),
            "request": { "headers": { "X-Api-Key": [HEADER], "Cookie": [cookie], "Authorization": [bearer] } },
        });
        let log = format!("{line}\n").repeat(5) + &format!("{{\"time\": \"{BROKEN}\"}}\n{BROKEN}\n");
        gateway.folder.write("access.log", log);
        for format in ["table", "json", "csv"] {
            said.command(gateway, &["replay", "--config", "tollgate.yaml", "--format", format, "access.log"]);
        }
        said.command(gateway, &["replay", "--config", "tollgate.yaml", "--html", "report.html", "access.log"]);
        said.hear("report", std::fs::read_to_string(gateway.folder.path().join("report.html")).unwrap());
        let state = gateway.folder.path().join("tollgate.state");
        wait_until("a state file", || state.exists());
        said.hear("the state file", String::from_utf8_lossy(&std::fs::read(state).unwrap()));
    }
    redis.command(&["CONFIG", "SET", "requirepass", ""]);
    let names = redis.keys("*");
    assert!(names.len() >= 2, "the shared limits are in Redis: {names:?}");
    for name in &names {
        said.hear("Redis", name);
        for get in
            [&["GET", name] as &[&str], &["HGETALL", name], &["LRANGE", name, "0", "-1"], &["ZRANGE", name, "0", "-1"]]
        {
            said.hear("Redis", redis.try_command_raw(get).unwrap_or_default());
        }
    }
    for gateway in &mut gateways {
        gateway.end("TERM");
        said.hear("standard output", gateway.process.stdout());
        said.hear("standard error", gateway.process.stderr());
    }
    let (_, log) = said.0.last().unwrap();
    assert!(log.contains("configuration refused"), "the log is looked at: {log}");
    let spans: Vec<String> = collecting.try_iter().map(|body| String::from_utf8_lossy(&body).into_owned()).collect();
    assert!(spans.iter().any(|spans| spans.contains("url.path")), "{spans:?}");
    spans.into_iter().for_each(|spans| said.hear("the gateway's spans", spans));
    for (who, word) in [("explain", "cana... ("), ("/v1/keys/peek", "cana... ("), ("replay", "headers")] {
        let all: Vec<&str> = said.0.iter().filter(|(by, _)| by == who).map(|(_, text)| &**text).collect();
        assert!(all.iter().any(|text| text.contains(word)), "{who} is asked about secrets: {all:?}");
    }
    // any part of a private key or a token counts as a leak
    let key: String = server.key.lines().filter(|line| !line.starts_with("-----")).take(1).collect();
    let parts: Vec<&str> = token.split('.').skip(1).chain(forged.split('.').skip(1)).collect();
    said.holds_none_of(&[&[CANARY, &key, "Y2FuYXJ5"], &*parts].concat());
}
