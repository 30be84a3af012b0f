//! Imports of proxies' configurations: the lines that are written, and the notes about settings that are not carried over.

use crate::config;
use crate::config::import::Import;

struct Imported {
    /// The written configuration without its comments.
    yaml: String,
    /// The notes, a line each.
    notes: String,
}

#[track_caller]
fn imported(text: &str) -> Imported {
    let mut import = Import::default();
    import.add(text, "proxy.conf").unwrap();
    let written = import.to_yaml();
    if let Err(problems) = config::load(&written, "written.yaml", &|_| None) {
        panic!("{problems}\n{written}");
    }
    let yaml = written.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let note = |note: &config::problem::Warning| format!("{}: {}\n", note.place.path, note.message);
    Imported { yaml, notes: import.notes().iter().map(note).collect() }
}

impl Imported {
    #[track_caller]
    fn writes(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.yaml.contains(part), "no {part} in:\n{}", self.yaml);
        }
    }

    #[track_caller]
    fn omits(&self, part: &str) {
        assert!(!self.yaml.contains(part), "{part} in:\n{}", self.yaml);
    }

    #[track_caller]
    fn notes(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.notes.contains(part), "no {part} in:\n{}", self.notes);
        }
    }

    /// The lines of a route.
    #[track_caller]
    fn route(&self, name: &str) -> &str {
        let routes = self.yaml.split("  - name: ");
        routes.into_iter().find(|route| route.lines().next() == Some(name)).unwrap_or_else(|| panic!("{}", self.yaml))
    }
}

fn nginx(zones: &str, location: &str) -> Imported {
    imported(&format!(
        "{zones}\nserver {{ listen 80; proxy_set_header Host $host; \
         location / {{ {location} proxy_pass http://10.0.0.1; }} }}\n"
    ))
}

#[test]
fn nginx_key_of_one_field_alone_exempts_requests_without_it() {
    let limit = |key: &str| {
        nginx(&format!("limit_req_zone \"{key}\" zone=z:1m rate=5r/s;"), "limit_req zone=z burst=5 nodelay;")
    };
    for key in ["$http_x_device", "${arg_user}"] {
        let one = limit(key);
        one.writes(&["missing_key: skip"]);
        assert_eq!(one.notes, "", "{key}");
    }
    for key in ["$binary_remote_addr$http_x_device", "$http_x_device$cookie_user", "device:$http_x_device"] {
        let mixed = limit(key);
        mixed.omits("missing_key: skip");
        mixed.notes(&["limit_req_zone: requests without a field of the key share one count"]);
    }
}

#[test]
fn nginx_network_that_is_limited_inside_an_exempt_one_is_noted() {
    let zones = |inner: &str| {
        format!(
            "geo $limited {{ default 1; 10.0.0.0/8 0; {inner} }}\n\
             map $limited $address {{ 0 \"\"; 1 $binary_remote_addr; }}\n\
             limit_req_zone $address zone=z:1m rate=5r/s;"
        )
    };
    let nested = nginx(&zones("10.66.0.0/16 1;"), "limit_req zone=z;");
    nested.omits("10.0.0.0/8");
    nested.notes(&["limit_req_zone: the limits of this zone are left out"]);
    let apart = nginx(&zones("192.0.2.0/24 1;"), "limit_req zone=z;");
    apart.writes(&["bypass: { addresses: [\"10.0.0.0/8\"] }"]);
    let composite = zones("").replace("limit_req_zone $address", "limit_req_zone $address$http_x_key");
    nginx(&composite, "limit_req zone=z;").notes(&["the limits of this zone are left out"]);
}

#[test]
fn nginx_server_name_in_a_key_counts_each_server_apart() {
    let server = |name: &str| {
        format!("server {{ server_name {name}; location / {{ limit_req zone=z; proxy_pass http://10.0.0.1; }} }}\n")
    };
    let text = format!("limit_req_zone $server_name zone=z:1m rate=5r/s;\n{}{}", server("a.test"), server("b.test"));
    let both = imported(&text);
    both.omits("key: host");
    both.writes(&["z: { algorithm: gcra, rate: 5/s, burst: 1, key: all }", "z-2: { algorithm: gcra"]);
    assert!(both.route("b.test.root").contains("limits: [z-2]"), "{}", both.yaml);
}

#[test]
fn nginx_burst_that_is_too_large_is_noted() {
    let zone = "limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;";
    let large = nginx(zone, "limit_req zone=z burst=2000000 nodelay;");
    large.writes(&["burst: 1000000"]);
    large.notes(&["limit_req: burst=2000000 is carried over as burst=999999"]);
}

#[test]
fn nginx_limits_of_connections_answer_with_their_own_status() {
    let zones =
        "limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;\nlimit_conn_zone $binary_remote_addr zone=c:1m;";
    let both = nginx(zones, "limit_req zone=z; limit_conn c 3; limit_req_status 503; limit_conn_status 429;");
    both.writes(&["limit: 3, key: client_address, over_limit: { deny: { status: 429 } }", "denied: { status: 503 }"]);
}

#[test]
fn nginx_default_server_alone_takes_any_host() {
    let server = |listen: &str, name: &str, rest: &str| format!("server {{ listen {listen}; {name} {rest} }}\n");
    let proxies = "location / { proxy_pass http://10.0.0.1; }";
    let second = imported(&format!(
        "{}{}",
        server("80", "server_name a.test;", proxies),
        server("80 default_server", "server_name b.test;", proxies)
    ));
    assert!(second.route("a.test.root").contains("hosts: [a.test]"), "{}", second.yaml);
    assert!(second.route("all.root").contains("match: { path: \"/**\" }"), "{}", second.yaml);

    let refusing = imported(&format!(
        "{}{}",
        server("80", "server_name a.test;", proxies),
        server("80 default_server", "", "return 444;")
    ));
    assert!(refusing.route("a.test.root").contains("hosts: [a.test]"), "{}", refusing.yaml);
    refusing.omits("all.root");
    refusing.notes(&["server: is left out: no location of it proxies"]);

    let redirecting = imported(&format!(
        "{}{}",
        server("80", "server_name a.test;", "return 301 https://a.test;"),
        server("443 ssl", "server_name a.test; ssl_certificate a; ssl_certificate_key b;", proxies)
    ));
    redirecting.omits("0.0.0.0:80");
    assert!(redirecting.route("all.root").contains("match: { path: \"/**\" }"), "{}", redirecting.yaml);
}

#[test]
fn nginx_servers_that_differ_by_their_ports_are_noted() {
    let server = |port: u16, name: &str| {
        format!("server {{ listen {port}; {name} location / {{ proxy_pass http://10.0.0.1; }} }}\n")
    };
    let unnamed = imported(&format!("{}{}", server(8080, ""), server(8081, "")));
    unnamed.notes(&[
        "server: has routes that listeners of other servers take, too: tell them apart by hosts",
        "location: is never reached: a location before it takes the same requests",
    ]);
    let named = imported(&format!("{}{}", server(8080, "server_name a.test;"), server(8081, "server_name b.test;")));
    named.notes(&[
        "server: has routes that listeners of other servers take, too: tell them apart by hosts",
        "server: is the default at an address of its own: here it takes only the hosts that it names",
    ]);
    named.route("b.test.root");
}

fn haproxy(frontend: &str, backends: &str) -> Imported {
    imported(&format!(
        "defaults\n  mode http\nfrontend fe\n  bind :80\n{frontend}\n  default_backend web\nbackend web\n  \
         server w 10.0.0.1:80\n{backends}\nbackend addresses\n  \
         stick-table type ip size 1k store http_req_rate(10s)\nbackend keys\n  \
         stick-table type string size 1k store http_req_rate(60s)\n"
    ))
}

#[test]
fn haproxy_trackers_of_one_slot_have_a_limit_each() {
    let apart = haproxy(
        "  http-request track-sc0 src table addresses if { path_beg /login/ }
  http-request track-sc0 hdr(x-api-key) table keys if { path_beg /api/ }
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }",
        "",
    );
    apart.writes(&[
        "addresses.http_req_rate: { algorithm: sliding_window, limit: 20, window: 10s, key: client_address",
        "keys.http_req_rate: { algorithm: sliding_window, limit: 20, window: 60s, key: { header: x-api-key }",
        "match: { path: \"/login/**\" }\n    upstream: web\n    limits: [addresses.http_req_rate]",
        "match: { path: \"/api/**\" }\n    upstream: web\n    limits: [keys.http_req_rate]",
    ]);
    let shared = haproxy(
        "  http-request track-sc0 src table addresses
  http-request track-sc0 hdr(x-api-key) table keys if { path_beg /api/ }
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }",
        "",
    );
    shared.notes(&["http-request track-sc0: tracks nothing: a line before it takes its slot"]);
    shared.omits("keys.http_req_rate");
    let overlapping = haproxy(
        "  http-request track-sc0 src table addresses if { path_beg /api/ }
  http-request track-sc0 hdr(x-api-key) table keys
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }",
        "",
    );
    overlapping.notes(&["http-request track-sc0: counts requests that a line before it tracks, too"]);
    overlapping.writes(&["limits: [addresses.http_req_rate, keys.http_req_rate]"]);
}

#[test]
fn haproxy_sections_have_the_defaults_that_they_name() {
    let named = imported(
        "defaults limited
  mode http
  http-request deny if { src 192.0.2.1 }
defaults plain
  mode tcp
frontend fe from limited
  bind :80
  default_backend web
backend web from limited
  server w 10.0.0.1:80
",
    );
    named.notes(&["http-request deny: is not carried over: write it into the sections that use these defaults"]);
}

#[test]
fn haproxy_denials_by_address_hold_for_the_routes_of_their_section() {
    let admin = "backend admin\n  http-request deny unless { src 10.0.0.0/8 }\n  server a 10.0.0.2:80\n";
    let one = haproxy("  use_backend admin if { path_beg /admin/ }", admin);
    assert!(one.route("fe.admin").contains("access: { allow: { addresses: [\"10.0.0.0/8\"] } }"), "{}", one.yaml);
    assert!(!one.route("fe.web").contains("access"), "{}", one.yaml);
    assert_eq!(one.yaml.matches("access:").count(), 1, "{}", one.yaml);

    let denies =
        "  http-request deny if { src 192.0.2.1 }\n  http-request deny unless { src 10.1.0.0/16 10.2.0.0/16 }\n";
    let both = haproxy(&format!("{denies}  use_backend admin if {{ path_beg /admin/ }}"), admin);
    let access = |allow: &str| {
        format!("access: {{ allow: {{ addresses: [{allow}] }}, deny: {{ addresses: [\"192.0.2.1\"] }} }}")
    };
    assert!(both.route("fe.web").contains(&access("\"10.1.0.0/16\", \"10.2.0.0/16\"")), "{}", both.yaml);
    assert!(both.route("fe.admin").contains(&access("\"10.1.0.0/16\", \"10.2.0.0/16\"")), "{}", both.yaml);
}

#[test]
fn haproxy_connections_of_clients_are_bounded_once() {
    let bounded = |second: u64| {
        let frontend = |name: &str, most: u64| {
            format!(
                "frontend {name}\n  bind :{most}\n  stick-table type ip size 1k store conn_cur\n  tcp-request connection track-sc0 src\n  \
                 tcp-request connection reject if {{ src_conn_cur gt {most} }}\n  default_backend web\n"
            )
        };
        imported(&format!(
            "defaults\n  mode http\n{}{}backend web\n  server w 10.0.0.1:80\n",
            frontend("a", 10),
            frontend("b", second)
        ))
    };
    bounded(10).writes(&["connections: { max_per_client: 10 }"]);
    let other = bounded(20);
    other.writes(&["connections: { max_per_client: 10 }", "0.0.0.0:10\" }", "0.0.0.0:20\" }"]);
    other.notes(&["tcp-request connection: is left out: `connections.max_per_client` is 10 already"]);
}

#[test]
fn haproxy_binds_have_all_their_certificates_and_peers_are_noted() {
    let several = imported(
        "defaults
  mode http
frontend fe
  bind :443 ssl crt /etc/a.pem crt /etc/b.pem
  stick-table type ip size 1k store http_req_rate(10s) peers others
  default_backend web
backend web
  server w 10.0.0.1:80
",
    );
    several.writes(&["{ cert: /etc/a.pem, key: /etc/a.pem }, { cert: /etc/b.pem, key: /etc/b.pem }"]);
    several.notes(&["stick-table: is carried over without peers"]);
}

fn traefik(routers: &str, middlewares: &str, more: &str) -> Imported {
    imported(&format!(
        "http:\n  routers:\n{routers}\n  middlewares:\n{middlewares}\n  services:\n    \
         api: {{ loadBalancer: {{ servers: [{{ url: \"http://10.0.0.1:80\" }}] }} }}\n{more}\n"
    ))
}

#[test]
fn traefik_entry_points_of_a_router_are_noted() {
    const POINTS: &str = "entryPoints: { web: { address: \":80\" }, internal: { address: \"127.0.0.1:8082\" } }";
    let routers = "    all: { rule: PathPrefix(`/`), entryPoints: [internal, web], service: api }
    ops: { rule: PathPrefix(`/ops/`), entryPoints: [internal], service: api }";
    let told = traefik(routers, "    unused: { compress: {} }", POINTS);
    told.notes(&["http.routers.ops: is taken at all listeners, not only at its entryPoints"]);
    assert!(!told.notes.contains("http.routers.all: is taken"), "{}", told.notes);
    traefik(routers, "    unused: { compress: {} }", "")
        .notes(&["http.routers.all: is taken at all listeners", "http.routers.ops: is taken at all listeners"]);
}

#[test]
fn traefik_settings_of_middlewares_are_noted_and_lists_of_addresses_are_intersected() {
    let routers = "    all: { rule: PathPrefix(`/`), middlewares: [allow, inner, strip], service: api }";
    let middlewares =
        "    allow: { ipAllowList: { sourceRange: [10.0.0.0/8], ipStrategy: { depth: 1 }, rejectStatusCode: 404 } }
    inner: { ipAllowList: { sourceRange: [10.1.0.0/16, 192.0.2.7] } }
    strip: { stripPrefix: { prefixes: [/api], forceSlash: true } }";
    let one = traefik(routers, middlewares, "");
    one.writes(&["access: { allow: { addresses: [\"10.1.0.0/16\"] } }"]);
    one.notes(&[
        "ipAllowList.ipStrategy: is not carried over",
        "ipAllowList.rejectStatusCode: is not carried over",
        "stripPrefix.forceSlash: is not carried over",
    ]);
}

fn envoy(filter: &str, routes: &str, endpoints: &str) -> Imported {
    imported(&format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 0.0.0.0, port_value: 8080 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          http_filters: [{filter}]
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
{routes}
              - {{ name: rest, match: {{ prefix: / }}, route: {{ cluster: a }} }}
  clusters:
  - name: a
    load_assignment:
      endpoints:
      - lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 10.0.0.1, port_value: 80 }} }} }} }}]
{endpoints}
"
    ))
}

#[test]
fn envoy_conditions_that_are_not_read_leave_the_route_out() {
    let conditions = [
        "{ name: x-internal, present_match: true, invert_match: true }",
        "{ name: x-internal, string_match: { exact: a, ignore_case: true } }",
        "{ name: x-internal, present_match: true, treat_missing_header_as_empty: true }",
    ];
    for condition in conditions {
        let route = format!(
            "              - match: {{ prefix: /int/, headers: [{condition}] }}\n                route: {{ cluster: a }}"
        );
        let without = envoy("", &route, "");
        without.omits("/int/");
        without.notes(&["is left out: of `match`, only"]);
    }
}

#[test]
fn envoy_rewrites_of_prefixes_are_written_and_those_of_exact_paths_noted() {
    let routes = "              - { match: { path: /old }, route: { cluster: a, prefix_rewrite: /new } }
              - { name: v1, match: { path_separated_prefix: /v1 }, route: { cluster: a, prefix_rewrite: /api } }";
    let both = envoy("", routes, "");
    both.omits("/old");
    both.notes(&["prefix_rewrite: is left out with its route: of rewrites, only those of prefixes are carried over"]);
    assert!(both.route("v1").contains("rewrite: { strip_prefix: /v1, add_prefix: /api }"), "{}", both.yaml);
}

#[test]
fn envoy_endpoints_that_get_no_requests_are_noted() {
    let endpoints = "      - priority: 1
        lb_endpoints: [{ endpoint: { address: { socket_address: { address: 10.0.0.9, port_value: 80 } } } }]
      - lb_endpoints:
        - { endpoint: { address: { socket_address: { address: 10.0.0.8, port_value: 80 } } }, health_status: UNHEALTHY }
        - { endpoint: { address: { socket_address: { address: 10.0.0.7, port_value: 80 } } }, health_status: HEALTHY }";
    let one = envoy("", "", endpoints);
    one.writes(&["nodes: [\"10.0.0.1:80\", \"10.0.0.7:80\"]"]);
    assert_eq!(one.notes.matches("is left out: it gets no requests while others are up").count(), 2, "{}", one.notes);
}

#[test]
fn envoy_names_of_statuses_are_read() {
    let filter = |code: &str| {
        format!(
            "{{ name: envoy.filters.http.local_ratelimit, typed_config: {{ token_bucket: {{ max_tokens: 1, fill_interval: 1s }}, \
             status: {{ code: {code} }}, filter_enabled: {{ default_value: {{ numerator: 100 }} }}, \
             filter_enforced: {{ default_value: {{ numerator: 100 }} }} }} }}"
        )
    };
    envoy(&filter("ServiceUnavailable"), "", "").writes(&["over_limit: { deny: { status: 503 } }"]);
    envoy(&filter("Strange"), "", "").notes(&["status.code: is not carried over: denials are answered 429"]);
}

#[test]
fn kong_plugins_find_their_service_by_id_and_by_name() {
    let text = "_format_version: '3.0'
services:
- { id: 37b1af03, name: orders, url: 'http://10.0.0.1:80' }
- { id: 37b1af04, name: idle, enabled: false, url: 'http://10.0.0.2:80', routes: [{ name: idle, paths: [/idle/] }] }
routes:
- { id: 41c1af03, name: orders-r, service: { id: 37b1af03 }, paths: [/orders/], preserve_host: true }
- { name: others-r, service: orders, paths: [/others/], preserve_host: true }
- { name: lost, service: missing, paths: [/lost/] }
plugins:
- { name: rate-limiting, service: 37b1af03, config: { minute: 5, policy: local, limit_by: ip } }
- { name: rate-limiting, route: { id: 41c1af03 }, config: { minute: 7, policy: local, limit_by: ip } }
- { name: rate-limiting, route: missing, config: { minute: 9, policy: local, limit_by: ip } }
";
    let found = imported(text);
    assert!(found.route("orders-r").contains("limits: [rate-limiting.orders-r]"), "{}", found.yaml);
    assert!(found.route("others-r").contains("limits: [rate-limiting.orders]"), "{}", found.yaml);
    found.omits("idle");
    found.notes(&[
        "services[1]: is left out: it is not enabled",
        "routes[2]: is left out: its service is not in this file",
        "plugins[2]: is left out: its service or route is not in this file",
    ]);
}

#[test]
fn kong_keys_are_read_at_the_places_of_all_plugins() {
    let service = |name: &str, config: &str| {
        format!(
            "- {{ name: {name}, url: 'http://10.0.0.1:80', routes: [{{ name: {name}, paths: [/{name}/] }}], \
             plugins: [{{ name: key-auth, config: {{ {config} }} }}] }}\n"
        )
    };
    let users = service("users", "key_names: [x-users-key], anonymous: guest");
    let items = service("items", "key_names: [x-items-key]");
    let both = imported(&format!("_format_version: '3.0'\nservices:\n{users}{items}"));
    both.writes(&["{ header: x-users-key }", "{ query: x-items-key }"]);
    both.notes(&[
        "config.anonymous: is not carried over: requests without a key are refused, until `customers.anonymous` says otherwise",
        "its key-auth takes keys under its own names only: here all routes take those of all plugins",
    ]);
}

#[test]
fn kong_limits_by_service_count_each_service_apart() {
    let service = |name: &str| {
        format!("- {{ name: {name}, url: 'http://10.0.0.1:80', routes: [{{ name: {name}, paths: [/{name}/] }}] }}\n")
    };
    let both = imported(&format!(
        "_format_version: '3.0'\nservices:\n{}{}plugins:\n- {{ name: rate-limiting, config: {{ minute: 9, limit_by: service }} }}\n",
        service("a"),
        service("b")
    ));
    assert!(both.route("a").contains("limits: [rate-limiting.a]"), "{}", both.yaml);
    assert!(both.route("b").contains("limits: [rate-limiting.b]"), "{}", both.yaml);
}

#[test]
fn kong_former_names_of_lists_and_hosts_of_no_route_are_read() {
    let text = "_format_version: '3.0'
services:
- name: orders
  url: http://10.0.0.1:80
  routes:
  - { name: some, paths: [/o/], hosts: [a.test, 'example.*'] }
  - { name: none, paths: [/n/], hosts: ['example.*'] }
  plugins:
  - { name: ip-restriction, config: { whitelist: [10.0.0.0/8] } }
";
    let some = imported(text);
    assert!(some.route("some").contains("hosts: [a.test]"), "{}", some.yaml);
    some.writes(&["access: { allow: { addresses: [\"10.0.0.0/8\"] } }"]);
    some.omits("name: none");
    some.notes(&["routes[0]: the host example.* is left out", "routes[1]: the host example.* is left out"]);
}
