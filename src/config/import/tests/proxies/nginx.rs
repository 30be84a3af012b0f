//! Imports of nginx's configurations.

use super::{Imported, imported};
use crate::config::import::Import;

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
        one.notes(&["limit_req_zone: requests with an empty field share one count: nginx does not limit them"]);
    }
    for key in ["$binary_remote_addr$http_x_device", "$http_x_device$cookie_user", "device:$http_x_device"] {
        let mixed = limit(key);
        mixed.omits("missing_key: skip");
        mixed.notes(&["limit_req_zone: requests without a field of the key share one count"]);
    }
}

#[test]
fn nginx_keys_that_differ_by_case_or_port_are_named() {
    let notes = |key: &str| nginx(&format!("limit_req_zone {key} zone=z:1m rate=5r/s;"), "limit_req zone=z;").notes;
    for key in ["$arg_user", "$cookie_sid", "$host$cookie_sid"] {
        let notes = notes(key);
        assert!(notes.contains("names of parameters and cookies are compared with case"), "{notes}");
    }
    let host = notes("$http_host");
    assert!(host.contains("counts by the host without its port, in lower case"), "{host}");
    assert_eq!(notes("$host"), "");
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
    nested.notes(&["limit_req_zone: the limits of the zone `z` are left out"]);
    let apart = nginx(&zones("192.0.2.0/24 1;"), "limit_req zone=z;");
    apart.writes(&["bypass: { addresses: [\"10.0.0.0/8\"] }"]);
    let of_address = |variable: &str| zones("").replace("geo $limited", &format!("geo {variable} $limited"));
    nginx(&of_address("$remote_addr"), "limit_req zone=z;").writes(&["bypass: { addresses: [\"10.0.0.0/8\"] }"]);
    nginx(&of_address("$arg_ip"), "limit_req zone=z;").omits("10.0.0.0/8");
    let composite = zones("").replace("limit_req_zone $address", "limit_req_zone $address$http_x_key");
    nginx(&composite, "limit_req zone=z;").notes(&["the limits of the zone `z` are left out"]);
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
    let unnamed = nginx("limit_req_zone $server_name zone=z:1m rate=5r/s;", "limit_req zone=z;");
    unnamed.writes(&["limits: {}"]);
    unnamed.notes(&["limit_req: is left out: its key is empty in a server without a name"]);
}

#[test]
fn nginx_limits_of_connections_answer_with_their_own_status() {
    let zones =
        "limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;\nlimit_conn_zone $binary_remote_addr zone=c:1m;";
    let both = nginx(zones, "limit_req zone=z; limit_conn c 3; limit_req_status 503; limit_conn_status 429;");
    both.writes(&["limit: 3, key: client_address, over_limit: { deny: { status: 429 } }", "denied: { status: 503 }"]);
    both.notes(&[
        "limit_conn: requests that it refuses take nothing from the limits of `limit_req`: nginx charges them",
    ]);
    nginx(zones, "limit_conn c 3;").lacks_note("limit_conn");
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
        "location: is never reached: a rule before it takes the same requests",
    ]);
    let named = imported(&format!("{}{}", server(8080, "server_name a.test;"), server(8081, "server_name b.test;")));
    named.notes(&[
        "server: has routes that listeners of other servers take, too: tell them apart by hosts",
        "server: is the default at an address of its own: here it takes only the hosts that it names",
    ]);
    named.route("b.test.root");
}

/// What `nginx -T` prints for these files, of which the first is the main file.
fn dump(files: &[(&str, &str)]) -> String {
    files.iter().map(|(name, text)| format!("# configuration file /etc/nginx/{name}:\n{text}\n\n")).collect()
}

#[test]
fn nginx_includes_that_include_themselves_are_refused() {
    let text = dump(&[("nginx.conf", "include a.conf;"), ("a.conf", "server { listen 80; include a.conf; }")]);
    let refused = Import::default().add(&text, "all.conf").unwrap_err();
    assert!(refused.to_string().contains("is deeper than includes may be"), "{refused}");
}

#[test]
fn nginx_options_of_a_listener_hold_for_all_servers_at_its_address() {
    let rest = "ssl_certificate a.crt; ssl_certificate_key a.key; location / { proxy_pass http://10.0.0.1; }";
    let other = "ssl_certificate b.crt; ssl_certificate_key b.key; location / { proxy_pass http://10.0.0.2; }";
    let one = imported(&format!(
        "server {{ listen 8443 quic reuseport; listen 8443 ssl; server_name a.test; {rest} }}
server {{ listen 8443 default_server ipv6only=off; server_name b.test; {other} }}
server {{ listen 80 proxy_protocol; server_name a.test; location / {{ proxy_pass http://10.0.0.1; }} }}\n"
    ));
    one.writes(&[
        "0.0.0.0:8443\", tls: { certificates: [{ cert: b.crt, key: b.key }, { cert: a.crt, key: a.key }] }",
        "0.0.0.0:80\", proxy_protocol: [\"0.0.0.0/0\", \"::/0\"] }",
    ]);
    one.notes(&[
        "listen: is left out: HTTP/3 is not carried over",
        "listen: is carried over without ipv6only=off",
        "listen: takes the PROXY protocol from every address: name the balancers in `proxy_protocol`",
    ]);
    let inherited = imported(
        "http { ssl_certificate c.crt; ssl_certificate_key c.key;
  server { listen 443 ssl; location / { proxy_pass http://10.0.0.1; } } }\n",
    );
    inherited.writes(&["tls: { certificates: [{ cert: c.crt, key: c.key }] }"]);
}

#[test]
fn nginx_listeners_that_cannot_be_had_at_once_are_settled() {
    let server = |listen: &str| format!("server {{ listen {listen}; location / {{ proxy_pass http://10.0.0.1; }} }}\n");
    let both = imported(&format!("{}{}", server("127.0.0.1:80"), server("80")));
    both.omits("127.0.0.1:80");
    both.notes(&["listen: takes the connections of listeners with its port: they are left out"]);
    let other = imported(&format!("{}{}", server("80"), server("127.0.0.1:80")));
    other.omits("127.0.0.1:80");
    other.notes(&["listen: is left out: 0.0.0.0:80 takes its connections"]);
    let admin = imported(&format!("{}{}", server("9090"), server("127.0.0.1:9091")));
    admin.writes(&["admin: { address: \"127.0.0.1:9092\" }"]);
    admin.notes(&["a listener has the port of the admin interface: that is at 127.0.0.1:9092 here"]);
}

#[test]
fn nginx_locations_with_other_times_have_upstreams_of_their_own() {
    let one = imported(
        "server { listen 80; proxy_read_timeout 1m30s;
location / { proxy_pass http://b; }
location /slow/ { proxy_connect_timeout 500ms; proxy_read_timeout \"1h 1m\"; proxy_pass http://b; }
location /quick/ { proxy_read_timeout 5; proxy_pass http://b; }
location /week/ { proxy_read_timeout 1w; proxy_pass http://b; } }
upstream b { server 10.0.0.1; }\n",
    );
    one.writes(&[
        "  b: { nodes: [\"10.0.0.1:80\"], timeouts: { first_byte: 90s } }",
        "  b-2: { nodes: [\"10.0.0.1:80\"], timeouts: { connect: 500ms, first_byte: 61m } }",
        "  b-3: { nodes: [\"10.0.0.1:80\"], timeouts: { first_byte: 5s } }",
    ]);
    one.notes(&["proxy_read_timeout: is not carried over"]);
}

#[test]
fn nginx_names_and_addresses_become_valid_names() {
    let one = imported(
        "server { listen 80; server_name *.example.com; location / { proxy_pass http://[::1]:3000; } }
server { listen 80; server_name b.test; location / { proxy_pass http://b; } }
upstream b { server 10.0.0.1 weight=5000; server 10.0.0.2; }
upstream idle { server 10.0.0.3; }\n",
    );
    one.writes(&[
        "  \"1--3000\": { nodes: [\"[::1]:3000\"], timeouts: { first_byte: 60s } }",
        "{ address: \"10.0.0.1:80\", weight: 1000 }, \"10.0.0.2:80\"",
    ]);
    one.omits("10.0.0.3");
    one.notes(&[
        "the weights of b are scaled down: 1000 is the largest",
        "upstream: is left out: no location leads to it",
    ]);
    let second = imported(
        "server { listen 80; server_name a.test; location / { proxy_pass http://10.0.0.1; } }
server { listen 80; server_name *.example.com; location / { proxy_pass http://10.0.0.1; } }\n",
    );
    second.route("example.com.root");
}

#[test]
fn nginx_locations_that_refuse_requests_stay_closed_or_are_told() {
    const NOBODY: &str = "access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }";
    imported("server { location /inside/ { internal; } location / { proxy_pass http://10.0.0.1; } }\n")
        .notes(&["location: refuses requests with 403 here"]);
    let one = imported(
        "server { listen 80; auth_basic staff;
  location / { proxy_pass http://10.0.0.1; }
  location /admin/ { deny all; }
  location = /old { return 410; }
  location /inside/ { internal; proxy_pass http://10.0.0.1; }
  location ~ /\\.git { deny all; }
  location /office/ { deny 10.0.0.9; allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }
  location /mixed/ { allow 10.0.0.9; deny 10.0.0.0/8; proxy_pass http://10.0.0.1; }
}
server { listen 80; server_name closed.test; return 403; }\n",
    );
    for route in ["all.admin", "all.old", "all.inside", "closed.test.root"] {
        assert!(one.route(route).contains(NOBODY), "{route}: {}", one.yaml);
    }
    assert!(
        one.route("all.office").contains("allow: { addresses: [\"10.0.0.0/8\"] }, deny: { addresses: [\"10.0.0.9\"] }"),
        "{}",
        one.yaml
    );
    assert!(!one.route("all.mixed").contains("access"), "{}", one.yaml);
    one.notes(&[
        "location: refuses requests with 403 here",
        "location: is left out: only prefixes and exact paths are carried over: its requests pass here without `deny all`",
        "deny: is not carried over: requests that it refuses pass here",
        "auth_basic: is not carried over: requests that it refuses pass here",
    ]);
}

#[test]
fn nginx_locations_that_are_left_out_name_what_they_refused() {
    let zones = "limit_req_zone $binary_remote_addr zone=z:1m rate=5r/s;";
    let one = |locations: &str| {
        imported(&format!("{zones}\nserver {{ {locations} location / {{ proxy_pass http://10.0.0.1; }} }}\n")).notes
    };
    let nested = one("location /a/ { root /srv; location /a/api/ { proxy_pass http://b; } }");
    assert!(nested.contains("location: is left out: it stands in another location\n"), "{nested}");
    for (location, expected) in [
        (
            "location ~ ^/admin { allow 10.0.0.0/8; deny all; proxy_pass http://a; }",
            "carried over: its requests pass here without `deny all`",
        ),
        (
            "location ~* \\.php$ { auth_basic x; limit_req zone=z; proxy_pass http://a; }",
            "here without `auth_basic x`, `limit_req zone=z`",
        ),
        (
            "location /outer/ { proxy_pass http://a; location /outer/admin/ { deny all; } }",
            "another location: its requests pass here without `deny all`",
        ),
        (
            "location /login { limit_req zone=z; proxy_pass http://a/; }",
            "do not, are carried over: its requests pass here without `limit_req zone=z`",
        ),
        (
            "location /a/ { limit_req zone=z; proxy_pass http://$host; }",
            "only URLs without variables are carried over: its requests pass here without `limit_req zone=z`",
        ),
        (
            "location /files/ { root /srv; location ~ x { deny all; } }",
            "another location: its requests pass here without `deny all`",
        ),
        (
            "location ~ x { root /srv; location /a/ { location /a/b/ { limit_req zone=z; proxy_pass http://b; } } }",
            "another location: its requests pass here without `limit_req zone=z`",
        ),
    ] {
        let notes = one(location);
        assert!(notes.contains(expected), "no {expected} in:\n{notes}");
    }
    let notes = one("location ~ x { auth_basic off; proxy_pass http://a; }");
    assert!(!notes.contains("pass here"), "{notes}");
}

#[test]
fn nginx_limits_in_dry_run_never_deny() {
    let zone = "limit_conn_zone $binary_remote_addr zone=c:1m;";
    let one = nginx(zone, "limit_conn c 3; limit_conn_dry_run on;");
    one.writes(&["limit: 3, key: client_address, over_limit: { deny: { status: 503 } }, shadow: true"]);
    one.lacks_note("dry_run");
    nginx(zone, "limit_conn c 3; limit_req_dry_run on;").omits("shadow");
}

#[test]
fn nginx_proxies_that_name_the_client_are_believed_where_all_locations_do() {
    const COUNTED: &str = "limits and access rules take the proxy for the client until `client_address";
    let written = |settings: &str| nginx(settings, "");
    let networks = "set_real_ip_from 10.0.0.0/8; set_real_ip_from unix:;";
    for (more, expected) in [
        ("", "header: x-real-ip }"),
        ("real_ip_header X-Forwarded-For;", "header: x-forwarded-for, hops: 1 }"),
        ("real_ip_header X-Forwarded-For; real_ip_recursive on;", "header: x-forwarded-for }"),
    ] {
        let one = written(&format!("{networks} {more}"));
        one.writes(&[&format!("{{ ipv6_prefix: 128, trusted_proxies: [\"10.0.0.0/8\", unix], {expected}")]);
        assert_eq!(one.notes, "");
    }
    let named = written("set_real_ip_from balancer.test; set_real_ip_from 10.0.0.1;");
    named.writes(&["trusted_proxies: [\"10.0.0.1\"]"]);
    named.notes(&[&format!("set_real_ip_from: is not carried over: {COUNTED}")]);
    let balanced = written("set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol;");
    balanced.omits("trusted_proxies");
    balanced.notes(&["set_real_ip_from: is carried over as `proxy_protocol` of the listeners"]);
    let location = |path: &str, more: &str| format!("location {path} {{ {more} proxy_pass http://10.0.0.1; }}");
    let some = format!("server {{ {} {} }}\n", location("/", ""), location("/a/", "set_real_ip_from 10.0.0.1;"));
    let some = imported(&some);
    some.omits("trusted_proxies");
    some.notes(&[&format!("set_real_ip_from: is not carried over, as it does not hold for all locations: {COUNTED}")]);
}

#[test]
fn nginx_requests_that_no_location_takes_go_to_no_other_server() {
    const NOBODY: &str = "access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }";
    let server =
        |listen: &str, name: &str, rest: &str| format!("server {{ listen {listen}; server_name {name}; {rest} }}\n");
    let all = server("80 default_server", "b.test", "location / { proxy_pass http://10.0.0.1; }");
    for rest in
        ["location /api/ { proxy_pass http://10.0.0.1; }", "return 301 https://$host;", "location / { root /srv; }"]
    {
        let named = imported(&format!("{all}{}", server("80", "a.test", rest)));
        assert!(named.route("a.test.root").contains(NOBODY), "{}", named.yaml);
        named.notes(&["server: requests for its hosts that no rule takes are refused with 403 here"]);
        let elsewhere = imported(&format!("{all}{}", server("81", "a.test", "return 301 https://$host;")));
        elsewhere.omits(NOBODY);
    }
    let limited = format!(
        "limit_req_zone $binary_remote_addr zone=z:1m rate=5r/s;\n{}{}{}",
        server("80", "b.test", "limit_req zone=z; location / { proxy_pass http://10.0.0.1; }"),
        server("81 default_server", "_", "return 444;"),
        server("81", "a.test", "location /api/ { proxy_pass http://10.0.0.1; }")
    );
    assert!(!imported(&limited).route("a.test.root").contains("limits"));
    let tls = "ssl_certificate a; ssl_certificate_key b; location / { proxy_pass http://10.0.0.2; }";
    let both = imported(&format!(
        "{all}{}{}",
        server("80", "a.test", "location /api/ { proxy_pass http://10.0.0.1; }"),
        server("443 ssl", "a.test", tls)
    ));
    both.omits(NOBODY);
}

#[test]
fn nginx_networks_of_satisfy_any_decide_alone() {
    for (rules, access) in [
        ("allow 10.0.0.0/8; deny all;", "access: { allow: { addresses: [\"10.0.0.0/8\"] } }"),
        ("deny all;", "access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }"),
    ] {
        let one = imported(&format!(
            "server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; }}
location /staff/ {{ satisfy any; {rules} auth_basic staff; add_header x y; proxy_pass http://10.0.0.1; }} }}\n"
        ));
        assert!(one.route("all.staff").contains(access), "{}", one.yaml);
        one.notes(&["satisfy: is carried over as `all`: networks that", "add_header: is not carried over"]);
    }
}

#[test]
fn nginx_ignores_a_name_that_another_server_has_at_the_address() {
    let servers = |first: &str, second: &str| {
        imported(&format!(
            "limit_req_zone $binary_remote_addr zone=z:1m rate=5r/s;
server {{ listen 80 default_server; return 444; }}
server {{ {first}; location / {{ proxy_pass http://10.0.0.1; }} }}
server {{ {second}; limit_req zone=z; location / {{ proxy_pass http://10.0.0.2; }} }}\n"
        ))
    };
    const NOTE: &str =
        "server: the name a.test is left out: nginx ignores it, because a server before has it at the same address";
    let named = |name: &str| format!("listen 80; server_name {name}");
    let same = servers(&named("a.test"), &named("A.test"));
    same.omits("limits: [z]");
    same.omits("10.0.0.2");
    same.notes(&[&NOTE.replace("a.test", "A.test")]);
    let both = servers(&named("a.test"), &named("a.test b.test"));
    both.notes(&[NOTE]);
    both.writes(&["match: { hosts: [b.test], path: \"/**\" }\n    upstream: \"10.0.0.2\"\n    limits: [z]"]);
    for (first, second) in
        [(".a.test", "*.a.test"), ("a.test", ".a.test"), ("*.a.test", ".a.test"), (".a.test", "a.test")]
    {
        let one = servers(&named(first), &named(second));
        one.omits("10.0.0.2");
        one.notes(&[&NOTE.replace("a.test", second)]);
    }
    let elsewhere = servers(&named("a.test"), "listen 80; listen 81; server_name a.test");
    elsewhere.writes(&["limits: [z]"]);
    elsewhere.lacks_note("nginx ignores");
    let apart = servers("listen 81; server_name b.test", "listen 81 default_server; server_name b.test");
    assert!(apart.route("all.root").contains("match: { path: \"/**\" }\n    upstream: \"10.0.0.2\""), "{}", apart.yaml);
}
