//! Imports of proxies' configurations: the lines that are written, and the notes about settings that are not carried over.

use crate::config;
use crate::config::import::Import;
use crate::config::import::front::GUARD;

mod haproxy;
mod nginx;
mod traefik;

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

    #[track_caller]
    fn lacks_note(&self, part: &str) {
        assert!(!self.notes.contains(part), "{part} in:\n{}", self.notes);
    }

    /// The lines of a route.
    #[track_caller]
    fn route(&self, name: &str) -> &str {
        let routes = self.yaml.split("  - name: ");
        routes.into_iter().find(|route| route.lines().next() == Some(name)).unwrap_or_else(|| panic!("{}", self.yaml))
    }
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

#[test]
fn kong_routes_and_services_without_a_name_have_limits_of_their_own() {
    let limit =
        |minute: u8| format!("plugins: [{{ name: rate-limiting, config: {{ minute: {minute}, limit_by: ip }} }}]");
    let found = imported(&format!(
        "_format_version: '3.0'
services:
- {{ url: 'http://10.0.0.1', {}, routes: [{{ paths: [/a/] }}] }}
- {{ url: 'http://10.0.0.2', routes: [{{ paths: [/b/], {} }}, {{ paths: [/c/], {} }}] }}
",
        limit(5),
        limit(7),
        limit(7)
    ));
    found.writes(&[
        "match: { path: \"/a/**\" }\n    upstream: \"10.0.0.1\"\n    limits: [rate-limiting.services_0_]",
        "match: { path: \"/b/**\" }\n    upstream: \"10.0.0.2\"\n    limits: [rate-limiting.services_1_.routes_0_]",
        "match: { path: \"/c/**\" }\n    upstream: \"10.0.0.2\"\n    limits: [rate-limiting.services_1_.routes_1_]",
    ]);
}

#[test]
fn kong_values_of_a_header_have_a_route_each_and_upstreams_differ_by_scheme_and_port() {
    let found = imported(
        "_format_version: '3.0'
services:
- { name: a, url: 'http://10.0.0.1', routes: [{ name: a, paths: [/a/], headers: { x-version: [v1, 2] } }] }
- { name: b, url: 'https://10.0.0.1', routes: [{ name: b, paths: [/b/] }], plugins: [{ name: request-termination }] }
- { name: c, host: pool, port: 81, routes: [{ name: c, paths: [/c/] }] }
upstreams: [{ name: pool, targets: [{ target: '10.0.0.2:80', weight: 2000 }, { target: '10.0.0.3:80', weight: 1000 }] }]
",
    );
    assert!(found.route("a").contains("headers: { x-version: { regex: \"(?i)v1\" } }"), "{}", found.yaml);
    assert!(found.route("a-2").contains("headers: { x-version: \"2\" }"), "{}", found.yaml);
    assert!(found.route("b").contains("access: { deny:"), "{}", found.yaml);
    found.writes(&[
        "  \"10.0.0.1-2\": { nodes: [\"10.0.0.1:443\"], tls: {} }",
        "[{ address: \"10.0.0.2:80\", weight: 1000 }, { address: \"10.0.0.3:80\", weight: 500 }]",
    ]);
}

#[test]
fn kong_routes_with_more_kinds_of_conditions_are_named_beside_those_with_longer_paths() {
    let posts = kong("3.0", "paths: [/], methods: [POST]", "");
    posts.notes(&["routes[1]: shares requests with plain: here the more specific route takes them"]);
}

#[test]
fn kong_expressions_for_a_header_match_a_part_of_its_value() {
    kong("3.0", "paths: [/], headers: { x-v: ['~*^v[23]$'] }", "")
        .writes(&["headers: { x-v: { regex: \"(?i).*(?:^v[23]$).*\" } }"]);
}

#[test]
fn envoy_direct_responses_that_refuse_requests_stay_closed() {
    let routes = "              - { name: closed, match: { prefix: /admin/ }, direct_response: { status: 403 } }
              - { match: { safe_regex: { regex: x } }, direct_response: { status: 404 } }
              - { match: { prefix: / }, route: { cluster: a } }";
    let one = envoy("", routes, "");
    assert!(one.route("closed").contains("access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }"), "{}", one.yaml);
    one.notes(&["exact headers are carried over: requests that it refuses pass here"]);
}

#[test]
fn guards_are_named_with_the_remark_that_requests_pass() {
    let tls = "              - { name: open, match: { prefix: / }, route: { cluster: a } }
            - name: tls
              domains: [a.test]
              require_tls: ALL
              routes:";
    envoy("", tls, "").notes(&["require_tls: is not carried over: requests that it refuses pass here"]);
    for kind in ["oauth2", "csrf", "admission_control", "rate_limit_quota"] {
        let named = format!(
            "{{ name: own, typed_config: {{ '@type': type.googleapis.com/envoy.extensions.filters.http.{kind}.v3.X }} }}"
        );
        envoy(&named, "", "").notes(&[&format!("envoy.filters.http.{kind} {GUARD}")]);
    }
    for kind in ["rate-limiting-advanced", "key-auth-enc", "opa"] {
        kong("3.0", "paths: [/]", &format!("{{ name: {kind} }}")).notes(&[&format!("plugins[0]: {kind} {GUARD}")]);
    }
    let plugin = "{ name: rate-limiting, config: { minute: 5, error_message: slower } }";
    kong("3.0", "paths: [/], protocols: [https]", plugin).notes(&[
        "routes[1].protocols: is not carried over: requests that it refuses pass here",
        "config.error_message: is not carried over",
    ]);
    kong("3.0", "paths: [/], protocols: [http, https]", "").lacks_note("protocols");
    imported(
        "defaults\n  mode http\nfrontend fe\n  bind :443 ssl crt /etc/a.pem ca-file /etc/ca.pem verify required\n  \
         http-request auth unless { src 10.0.0.0/8 }\n  default_backend web\nbackend web\n  server w 10.0.0.1:80\n",
    )
    .notes(&[
        "bind: is carried over without ca-file, verify: requests that it refuses pass here",
        "http-request auth: is not carried over: requests that it refuses pass here",
    ]);
}

const LOCAL: &str = "name: envoy.filters.http.local_ratelimit";

/// The settings of a `local_ratelimit` filter with a bucket of so many tokens.
fn bucket(most: u8, more: &str) -> String {
    format!(
        "token_bucket: {{ max_tokens: {most}, fill_interval: 1s }}, filter_enabled: {{ default_value: {{ numerator: 100 }} }}, \
         filter_enforced: {{ default_value: {{ numerator: 100 }} }}{more}"
    )
}

#[test]
fn envoy_buckets_of_several_filters_hold_and_those_of_disabled_filters_or_connections_do_not() {
    let filter = |most: u8, more: &str, config: &str| {
        format!("{{ {LOCAL}{more}, typed_config: {{ {} }} }}", bucket(most, config))
    };
    let both = envoy(&format!("{}, {}", filter(5, "", ""), filter(9, "", "")), "", "");
    assert!(both.route("rest").contains("limits: [local, local-2]"), "{}", both.yaml);
    let disabled = envoy(&filter(5, ", disabled: true", ""), "", "");
    disabled.omits("burst: 5");
    disabled.notes(&["http_filters[0]: is left out: it is disabled"]);
    let apart = envoy(&filter(5, "", ", local_rate_limit_per_downstream_connection: true"), "", "");
    apart.omits("burst: 5");
    apart.notes(&["is left out: it limits each connection by itself"]);
}

#[test]
fn envoy_filters_are_known_by_their_types_and_routes_may_wrap_or_disable_them() {
    const TYPE: &str = "'@type': type.googleapis.com/envoy";
    let local = |most: u8| bucket(most, &format!(", {TYPE}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"));
    let filter = |name: &str, most: u8| format!("{{ name: {name}, typed_config: {{ {} }} }}", local(most));
    let route = |name: &str, of: &str, settings: &str| {
        let own = format!("typed_per_filter_config: {{ {of}: {{ {settings} }} }}");
        format!("              - {{ name: {name}, match: {{ path: /{name} }}, route: {{ cluster: a }}, {own} }}\n")
    };
    let wrap = |settings: &str| format!("{TYPE}.config.route.v3.FilterConfig, {settings}");
    let routes = [
        route("own", "x", &local(2)),
        route("wrapped", "x", &wrap(&format!("config: {{ {} }}", local(3)))),
        route("free", "y", &wrap("disabled: true")),
        route("lost", "z", &local(4)),
    ];
    let one = envoy(&[filter("x", 5), filter("y", 9)].join(", "), &routes.concat(), "");
    one.writes(&["local: {", "rate: 1/1s, burst: 5", "local-2: {", "rate: 1/1s, burst: 9", "rate: 1/1s, burst: 3"]);
    for (route, limits) in [
        ("rest", "limits: [local, local-2]"),
        ("own", "limits: [local-3, local-2]"),
        ("wrapped", "limits: [local-4, local-2]"),
        ("free", "limits: [local]"),
        ("lost", "limits: [local, local-2]"),
    ] {
        assert!(one.route(route).contains(limits), "{route}: {}", one.yaml);
    }
    one.lacks_note("is not carried over");
    one.notes(&["typed_per_filter_config.z: is left out: no HTTP filter has its name"]);
}

#[test]
fn envoy_endpoints_over_pipes_are_read_and_others_are_told() {
    let endpoints = "      - load_balancing_weight: 3
        lb_endpoints:
        - { endpoint: { hostname: b.test, address: { pipe: { path: /run/b.sock } } } }
        - { endpoint: { address: { envoy_internal_address: { server_listener_name: own } } } }
      policy: { overprovisioning_factor: 140 }";
    let one = envoy("", "              - { match: { prefix: /by/ }, route: { cluster_header: x-to } }", endpoints);
    one.writes(&["nodes: [\"10.0.0.1:80\", \"unix:/run/b.sock\"]"]);
    one.notes(&[
        "load_assignment.policy: is not carried over",
        "endpoints[1].load_balancing_weight: is not carried over",
        "endpoint.hostname: is not carried over",
        "lb_endpoints[1]: is left out: it has no socket_address or pipe",
        "routes[0]: is left out: it names no `cluster` or `weighted_clusters`",
    ]);
}

#[test]
fn conditions_and_keys_of_forwarding_fields_are_told_without_proxies_that_send_them() {
    let told = |one: &Imported, what: &str, field: &str| {
        one.notes(&[&format!(
            "{what} goes by {field}, which no request has here until `client_address: {{ trusted_proxies:"
        )]);
    };
    let nginx = |more: &str| {
        imported(&format!(
            "limit_req_zone $http_x_forwarded_for zone=z:1m rate=5r/s;
server {{ {more} location / {{ limit_req zone=z; proxy_pass http://10.0.0.1; }} }}\n"
        ))
    };
    told(&nginx(""), "the limit z", "x-forwarded-for");
    nginx("set_real_ip_from 10.0.0.1;").lacks_note("goes by");
    let by_header = "{ name: rate-limiting, config: { minute: 5, limit_by: header, header_name: X-Real-IP } }";
    let one = kong("3.0", "paths: [/], headers: { X-Forwarded-Proto: [https] }", by_header);
    told(&one, "the limit rate-limiting.s", "x-real-ip");
    told(&one, "routes[1]: a condition", "x-forwarded-proto");
    let one = imported(
        "defaults\n  mode http\nfrontend fe\n  bind :80\n  http-request deny if { hdr(x-real-ip) 192.0.2.6 }
  stick-table type ip size 1k store http_req_rate(10s)\n  http-request track-sc0 src if { hdr(X-Forwarded-For) -m found }
  http-request deny if { sc_http_req_rate(0) gt 5 }\n  use_backend web if { hdr(X-Forwarded-Host) a.test }
  default_backend web\nbackend web\n  server w 10.0.0.1:80\n",
    );
    told(&one, "default_backend: a condition", "x-real-ip");
    told(&one, "default_backend: a condition", "x-forwarded-for");
    told(&one, "use_backend: a condition", "x-forwarded-host");
}

#[test]
fn empty_files_are_told_the_formats_that_are_read() {
    for text in ["", "# nothing\n\n"] {
        let refused = Import::default().add(text, "empty.conf").unwrap_err().to_string();
        assert!(refused.contains("the file is empty") && refused.contains("nginx's `server` blocks"), "{refused}");
    }
}

#[test]
fn routes_that_let_nobody_in_have_no_warning_of_check() {
    let mut import = Import::default();
    import.add("server { location / { proxy_pass http://a; } location /x/ { deny all; } }\n", "nginx.conf").unwrap();
    let loaded = config::load(&import.to_yaml(), "written.yaml", &|_| None).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

fn kong(version: &str, route: &str, plugins: &str) -> Imported {
    imported(&format!(
        "_format_version: '{version}'\nservices:\n- name: s\n  url: http://10.0.0.1:80\n  routes:\n  \
         - {{ name: plain, paths: [/plain/] }}\n  - {{ name: r, {route} }}\n  plugins: [{plugins}]\n"
    ))
}

#[test]
fn kong_plugins_for_some_requests_are_not_for_all() {
    let route = "paths: [/]";
    let group = kong("3.0", route, "{ name: rate-limiting, consumer_group: gold, config: { minute: 5 } }");
    group.omits("fixed_window");
    group.notes(&["plugins[0]: is left out: what holds for one group of consumers is a plan of its own here"]);
    let trigger = kong("3.0", route, "{ name: request-termination, config: { trigger: maintenance } }");
    trigger.omits("access:");
    trigger.notes(&["is left out: it goes by a header field or a parameter: requests that it refuses pass here"]);
    let always = kong(
        "3.0",
        route,
        "{ name: request-termination, config: { trigger: null, body: null }, tags: null, instance_name: null }",
    );
    assert!(always.route("r").contains("access: { deny: {"), "{}", always.yaml);
    always.lacks_note("is not carried over");
    let by_consumer = kong("3.0", route, "{ name: jwt }, { name: rate-limiting, config: { minute: 5 } }");
    by_consumer.writes(&["key: client_address"]);
    by_consumer.notes(&["counts by address: Kong counts by the consumers that jwt finds"]);
    let by_address = kong("3.0", route, "{ name: jwt }, { name: rate-limiting, config: { minute: 5, limit_by: ip } }");
    assert!(!by_address.notes.contains("counts by address"), "{}", by_address.notes);
}

#[test]
fn kong_paths_and_methods_of_former_versions_are_read() {
    for path in [r"/users/\d+/profile", "/v[0-9]+/login$"] {
        let former = kong("1.1", &format!("paths: ['{path}', /users/], methods: [get]"), "");
        former.writes(&["match: { path: \"/users/**\", methods: [GET] }"]);
        former.notes(&[&format!("the path {path} is left out: only beginnings of paths are carried over")]);
    }
}

#[test]
fn envoy_requests_that_no_route_of_a_virtual_host_takes_go_to_no_other() {
    let api = "              - { name: open, match: { prefix: /open/ }, route: { cluster: a } }
            - name: a.test
              domains: [a.test]
              routes:
              - { name: api, match: { prefix: /api/ }, route: { cluster: a } }
            - name: rest
              domains: ['*']
              routes:";
    let one = envoy("", api, "");
    assert!(one.route("a.test").contains("match: { hosts: [a.test], path: \"/**\" }"), "{}", one.yaml);
    assert!(one.route("a.test").contains("access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }"), "{}", one.yaml);
    one.notes(&["requests for its hosts that no rule takes are refused with 403 here"]);
}
