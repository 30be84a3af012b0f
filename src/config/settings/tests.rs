use std::collections::BTreeSet;

use super::*;
use crate::config::load;

/// For each table, a file with `@` where a setting of the table may stand.
const FILES: [(&Table, &str); 55] = [
    (
        &FILE,
        "customers: { identify: [{ header: k }], directory: { http: { url: \"https://h/v\" } } }\nlimits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all } }\nroutes: [{ name: r, upstream: a, limits: [l] }]\n@",
    ),
    (&LISTENER, "listeners: [{ address: \"unix:/run/t.sock\", @ }]"),
    (&LISTENER_TLS, "listeners: [{ address: \"127.0.0.1:1\", tls: { certificates: [{ cert: a, key: b }], @ } }]"),
    (
        &CLIENT_CERTIFICATES,
        "listeners: [{ address: \"127.0.0.1:1\", tls: { certificates: [{ cert: a, key: b }], client_certificates: { ca: c, @ } } }]",
    ),
    (&ADMIN, "admin: { @ }"),
    (&CONNECTIONS, "connections: { @ }"),
    (
        &USAGE,
        "usage: { @ }\ncustomers: { identify: [{ header: k }], directory: { file: c }, anonymous: { plan: p } }\nplans: [p]",
    ),
    (&HEADERS, "headers: { @ }"),
    (&REQUEST_HEAD, "request_head: { @ }"),
    (&REQUEST_BODY, "request_body: { @ }"),
    (&UPSTREAM, "upstreams: { a: { nodes: [\"n:1\"], @ } }"),
    (&UPSTREAM, "upstreams: { a: { nodes: [\"n:1\"], max_requests: 9, @ } }"),
    (&NODE, "upstreams: { a: { nodes: [{ address: \"n:1\", @ }] } }"),
    (&HEALTH_CHECK, "upstreams: { a: { nodes: [\"n:1\"], health_check: { path: /, @ } } }"),
    (&TIMEOUTS, "upstreams: { a: { nodes: [\"n:1\"], timeouts: { @ } } }"),
    (&RETRIES, "upstreams: { a: { nodes: [\"n:1\"], retries: { @ } } }"),
    (&ROUTE, "routes: [{ name: r, upstream: a, @ }]"),
    (&MATCH, "routes: [{ name: r, upstream: a, match: { @ } }]"),
    (&HEADER_EDITS, "routes: [{ name: r, upstream: a, request_headers: { @ } }]"),
    (&DENIED, "routes: [{ name: r, upstream: a, denied: { @ } }]"),
    (&CUSTOMERS, "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { file: c }, @ }"),
    (&JWT, "plans: [p]\ncustomers: { identify: [{ jwt: { jwks_file: j, plan: p, @ } }] }"),
    (&JWKS, "plans: [p]\ncustomers: { identify: [{ jwt: { jwks: { url: \"https://h/j\", @ }, plan: p } }] }"),
    (
        &DIRECTORY,
        "plans: [p]\nstore: { redis: \"redis://h:1\" }\ncustomers: { identify: [{ header: k }], directory: { redis: h, @ } }",
    ),
    (&DIRECTORY, "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { file: c, @ } }"),
    (
        &DIRECTORY_HTTP,
        "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { http: { url: \"https://h/v\", @ } } }",
    ),
    (
        &DIRECTORY_POSTGRES,
        "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { postgres: { url_file: u, query: q, snapshot_file: s, @ } } }",
    ),
    (
        &ANONYMOUS,
        "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { file: c }, anonymous: { plan: p, @ } }",
    ),
    (
        &PLAN_FROM,
        "plans: [p]\ncustomers: { identify: [{ header: k }], directory: { file: c }, plan_from: { header: h, @ } }",
    ),
    (&CLIENT_ADDRESS, "client_address: { @ }"),
    (&CLIENT_ADDRESS, "client_address: { trusted_proxies: [10.0.0.5], @ }"),
    (&CORS, "cors: { origins: [\"https://a.example\"], @ }"),
    (&STORE, "store: { redis: \"redis://h:1\", @ }"),
    (&STATE, "state: { file: f, @ }"),
    (&WEBHOOK, "webhook: { upstream: a, secret_file: s, queue: q, @ }"),
    (
        &USAGE_EVENTS,
        "customers: { identify: [{ bearer: true }], directory: { file: f } }\nplans: [p]\nusage_events: { upstream: a, queue: q, @ }",
    ),
    (&TRACES, "traces: { upstream: a, @ }"),
    (&CLUSTER, "cluster: { self: \"10.0.0.1:1\", peers: [\"10.0.0.1:1\"], secret_file: s, @ }"),
    (&CLUSTER_PEER, "cluster: { self: \"10.0.0.1:1\", peers: [{ address: \"10.0.0.1:1\", @ }], secret_file: s }"),
    (&CLUSTER_NAME, "cluster: { self: \"10.0.0.1:1\", peers: { dns: n, @ }, secret_file: s }"),
    (
        &LIMIT,
        "store: { redis: \"redis://h:1\" }\nlimits:\n  s: { algorithm: gcra, rate: 1/s, burst: 1, key: all, mode: shared, @ }",
    ),
    (&LIMIT, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all, @ } }"),
    (&NAMED_PART, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: { header: h, @ } } }"),
    (&CHARGE, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all, charge: { @ } } }"),
    (
        &COST_RULE,
        "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, cost: { by_method: { GET: 2 }, @ } } }",
    ),
    (&COST_RULE, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, cost: { header: h, max: 3, @ } } }"),
    (
        &COST_PART,
        "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, charge: { when: response }, cost: { sum: [{ response_field: a, @ }], max: 9 } } }",
    ),
    (
        &DESCRIPTOR,
        "listeners: [{ address: \"127.0.0.1:1\", serves: rate_limit_service }]\nclient_address: { trusted_proxies: [10.0.0.5] }\nlimits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all } }\ndomains: { d: { descriptors: [{ key: k, limits: [l], @ }] } }",
    ),
    (
        &DESCRIPTOR,
        "listeners: [{ address: \"127.0.0.1:1\", serves: rate_limit_service }]\nclient_address: { trusted_proxies: [10.0.0.5] }\nlimits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all } }\ndomains: { d: { descriptors: [{ key: k, descriptors: [{ key: l, limits: [l] }], @ }] } }",
    ),
    (
        &MODEL,
        "prices: { m: { output: 1 } }\nlimits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, charge: { when: response }, cost: { sum: [{ response_field: a, price: output }], model: { request_field: m, @ } } } }",
    ),
    (
        &RESERVE,
        "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, charge: { when: response, reserve: { request_field: a, max: 9, @ } } } }",
    ),
    (
        &REQUEST_OVERRIDE,
        "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, request_overrides: { burst: { jwt_claim: c, max: 9, @ } } } }",
    ),
    (&GRAPHQL, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, cost: { graphql: { max: 9, @ } } } }"),
    (&EJECT, "upstreams: { a: { nodes: [\"n:1\"], eject: { @ } } }"),
    (&OVER_LIMIT, "limits: { l: { algorithm: gcra, rate: 1/s, burst: 9, key: all, over_limit: { deny: {}, @ } } }"),
];

/// The sections that every file needs, for files that lack them.
const NEEDED: [&str; 3] = [
    "listeners: [{ address: \"127.0.0.1:1\" }]",
    "upstreams: { a: { nodes: [\"n:1\"] } }",
    "routes: [{ name: r, upstream: a }]",
];

/// The result of reading `file` with `setting` in it; `Err` if the file is refused.
fn read(file: &str, setting: &str) -> Result<String, String> {
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let there: Vec<String> = file.lines().map(name).collect();
    let needed = NEEDED.iter().filter(|line| !there.contains(&name(line)));
    let text: String = needed.chain([&file.replace('@', setting).as_str()]).flat_map(|part| [part, "\n"]).collect();
    let loaded = load(&text, "test.yaml", &|_| None);
    loaded.map(|loaded| format!("{loaded:?}")).map_err(|problems| format!("{problems}\n{text}"))
}

#[test]
fn a_default_says_what_leaving_the_setting_out_says() {
    let mut held = BTreeSet::new();
    for (table, file) in FILES {
        for setting in table.settings {
            let Presence::Default(default) = setting.presence else { continue };
            // the loaded values hold positions in the text, so both texts get the same length
            let written = format!("{}: {default}", setting.name);
            let left_out = read(file, &" ".repeat(written.len())).unwrap();
            // some settings are only valid beside another one
            if let Ok(set) = read(file, &written) {
                assert_eq!(set, left_out, "{}.{}", table.name, setting.name);
                held.insert((table.name, setting.name));
            }
        }
    }
    for table in all_tables() {
        for setting in table.settings.iter().filter(|setting| matches!(setting.presence, Presence::Default(_))) {
            assert!(held.contains(&(table.name, setting.name)), "{}.{} is in no file above", table.name, setting.name);
        }
    }
}

#[test]
fn the_schema_takes_an_empty_value_where_the_reader_does() {
    for (table, file) in FILES {
        for setting in table.settings {
            let empty = match setting.kind {
                Kind::List(_) | Kind::Set(_) => "[]",
                Kind::Named(..) | Kind::Section(_) => "{}",
                _ => continue,
            };
            let is_refused = match read(file, &format!("{}: {empty}", setting.name)) {
                Ok(_) => false,
                Err(problems) if problems.contains(&format!("{}: is empty", setting.name)) => true,
                // the file has the setting already, or it needs another one
                Err(_) => continue,
            };
            let schema = schema::described(setting, &mut serde_json::Map::new());
            let needs_content = ["minItems", "minProperties"].iter().any(|bound| schema.get(bound).is_some());
            assert_eq!(needs_content, is_refused, "{}.{}", table.name, setting.name);
        }
    }
}

fn all_tables() -> Vec<&'static Table> {
    fn add(kind: &'static Kind, tables: &mut Vec<&'static Table>) {
        match kind {
            Kind::Section(table) => add_table(table, tables),
            Kind::List(kind) | Kind::Set(kind) | Kind::Named(_, kind) => add(kind, tables),
            Kind::OneOf(kinds) => kinds.iter().for_each(|kind| add(kind, tables)),
            Kind::Limit => add_table(&LIMIT, tables),
            _ => {}
        }
    }
    fn add_table(table: &'static Table, tables: &mut Vec<&'static Table>) {
        if !tables.iter().any(|known| std::ptr::eq(*known, table)) {
            tables.push(table);
            table.settings.iter().for_each(|setting| add(&setting.kind, tables));
        }
    }
    let mut tables = Vec::new();
    add_table(&FILE, &mut tables);
    tables
}

#[test]
fn every_table_has_a_name_of_its_own() {
    let tables = all_tables();
    let names: BTreeSet<&str> = tables.iter().map(|table| table.name).collect();
    assert_eq!(names.len(), tables.len());
}
