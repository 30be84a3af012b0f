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
fn kong_routes_with_more_kinds_of_conditions_take_requests_before_those_with_longer_paths() {
    let posts = kong("3.0", "paths: [/], methods: [POST]", "");
    assert!(posts.route("r-2").contains("match: { path: \"/plain/**\", methods: [POST] }"), "{}", posts.yaml);
}

#[test]
fn kong_expressions_for_a_header_match_a_part_of_its_value() {
    kong("3.0", "paths: [/], headers: { x-v: ['~*^v[23]$'] }", "")
        .writes(&["headers: { x-v: { regex: \"(?i).*(?:^v[23]$).*\" } }"]);
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
fn kong_protocols_of_a_plugin_are_named() {
    const NOTE: &str = "plugins[0].protocols: is not carried over: the plugin holds for all requests here";
    let of = |protocols: &str| {
        let plugin = format!("{{ name: rate-limiting, config: {{ minute: 5 }}, protocols: {protocols} }}");
        kong("3.0", "paths: [/]", &plugin)
    };
    of("[https]").notes(&[NOTE]);
    of("[grpc, http]").notes(&[NOTE]);
    of("[grpc, grpcs, http, https]").lacks_note("protocols");
}

#[test]
fn head_goes_with_get_only_where_it_does_in_the_proxy() {
    let closed = |path: &str| {
        format!(
            "match: {{ path: {path}, methods: [HEAD] }}\n    upstream: UP\n    access: {{ deny: {{ addresses: [\"0.0.0.0/0\""
        )
    };
    let one = kong("3.0", "paths: [/plain/x], methods: [GET]", "");
    one.writes(&["match: { path: \"/plain/x/**\", methods: [HEAD] }\n    upstream: \"10.0.0.1-80\"\n    rewrite: { strip_prefix: /plain }"]);
    one.lacks_note("HEAD");
    let refused = kong("3.0", "paths: [/own], methods: [GET, POST]", "");
    refused.writes(&[&closed("\"/own/**\"").replace("UP", "\"10.0.0.1-80\"")]);
    refused.notes(&["routes[1]: requests with HEAD that no rule takes are refused with 403 here"]);
    kong("3.0", "paths: [/own], methods: [GET, HEAD]", "").lacks_note("HEAD");
    kong("3.0", "paths: [/own], methods: [POST]", "").omits("HEAD");

    let get = "              - { name: get, match: { prefix: /, headers: [{ name: ':method', string_match: { exact: GET } }] }, route: { cluster: a } }";
    let one = envoy("", get, "");
    assert!(one.route("rest").contains("match: { path: \"/**\" }"), "{}", one.yaml);
    assert!(one.route("rest-2").contains("methods: [HEAD] }\n    upstream: a"), "{}", one.yaml);
}

#[test]
fn kong_paths_and_methods_of_former_versions_are_read() {
    for path in [r"/users/\d+/profile", "/v[0-9]+/login$"] {
        let former = kong("1.1", &format!("paths: ['{path}', /users/], methods: [get]"), "");
        former.writes(&["match: { path: \"/users/**\", methods: [GET] }"]);
        former.notes(&[&format!("the path {path} is left out: only beginnings of paths are carried over")]);
    }
}
