//! Imports of HAProxy's configurations.

use super::{GUARD, Imported, imported};

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
fn haproxy_backends_deny_by_the_counters_of_their_frontend() {
    let tracked = |frontend: &str, own: &str| {
        imported(&format!(
            "defaults\n  mode http\nfrontend fe\n  bind :80\n  stick-table type ip size 1k store http_req_rate(10s)
  http-request track-sc0 src\n{frontend}  default_backend web\nbackend web\n  server w 10.0.0.1:80
  stick-table type string size 1k store http_req_rate(60s)\n{own}  \
             http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 2 }}\nbackend other\n  server o 10.0.0.2:80\n"
        ))
    };
    let alone = tracked("", "");
    assert!(alone.route("fe.web").contains("limits: [fe.http_req_rate]"), "{}", alone.yaml);
    alone.lacks_note("http-request");
    let among_others = tracked("  use_backend other if { path_beg /other/ }\n", "");
    among_others.notes(&["http-request deny: counts the requests that it may deny: HAProxy counts all that it tracks"]);
    assert!(!among_others.route("fe.other").contains("limits"), "{}", among_others.yaml);
    let twice = tracked("", "  http-request track-sc0 url_param(user)\n");
    assert!(twice.route("fe.web").contains("limits: [fe.http_req_rate]"), "{}", twice.yaml);
    twice.notes(&["http-request track-sc0: tracks nothing: a line before it takes its slot"]);
}

#[test]
fn haproxy_trackers_behind_a_denial_are_named() {
    const NOTE: &str = "http-request deny: counts requests that rules in front of its `track-sc` line deny";
    let denial = |slot: u8| format!("  http-request deny deny_status 429 if {{ sc_http_req_rate({slot}) gt 20 }}\n");
    let tracker = |slot: u8, table: &str| format!("  http-request track-sc{slot} src table {table}\n");
    let (first, second) = (tracker(0, "addresses"), tracker(1, "keys"));
    haproxy(&format!("{first}{}{second}{}", denial(0), denial(1)), "").notes(&[NOTE]);
    haproxy(&format!("{first}{second}{}{}", denial(0), denial(1)), "").lacks_note(NOTE);
    haproxy(&format!("{first}{}", denial(0)), &format!("{second}{}", denial(1))).notes(&[NOTE]);
}

#[test]
fn haproxy_statuses_of_several_limits_are_named_where_they_differ() {
    const NOTE: &str = "http-request deny: above several limits, the one that denies longest answers";
    let limits = |first: u16, second: u16, path: &str| {
        let rule = |slot: u8, status: u16, path: &str| {
            format!("  http-request deny deny_status {status} if {{ sc_http_req_rate({slot}) gt 20 }} {path}\n")
        };
        let trackers = "  http-request track-sc0 src table addresses\n  http-request track-sc1 src table keys\n";
        haproxy(&format!("{trackers}{}{}", rule(0, first, "{ path_beg /a/ }"), rule(1, second, path)), "")
    };
    limits(429, 503, "").notes(&[NOTE]);
    limits(429, 503, "{ path_beg /b/ }").lacks_note(NOTE);
    limits(503, 503, "").lacks_note(NOTE);
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
fn haproxy_denials_by_path_close_these_paths() {
    const NOBODY: &str = "access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }";
    let one = haproxy(
        "  http-request return status 200 if { path /healthz }
  http-request deny if { path_beg /admin/ } !{ src 10.0.0.0/8 }
  http-request deny if { path /secret }",
        "",
    );
    assert!(!one.route("fe.web").contains("access"), "{}", one.yaml);
    one.writes(&[
        "match: { path: \"/admin/**\" }\n    upstream: web\n    access: { allow: { addresses: [\"10.0.0.0/8\"] } }",
        &format!("match: {{ path: /secret }}\n    upstream: web\n    {NOBODY}"),
    ]);
    one.omits("/healthz");
    one.lacks_note("403");
    for rule in ["deny deny_status 404", "return status 410", "silent-drop"] {
        let one = haproxy(&format!("  http-request {rule} if {{ path /old }}"), "");
        one.writes(&[NOBODY]);
        one.notes(&["refuses requests with 403 here"]);
    }
    let ordered = haproxy("  http-request allow if { src 10.0.0.0/8 }\n  http-request deny", "");
    ordered.notes(&["http-request deny: is left out: a denial behind an `allow`"]);
}

#[test]
fn haproxy_conditions_for_one_of_several_hosts_or_methods_have_routes_before_the_others() {
    for (all, test, whole, part) in [
        (
            "{ hdr(host) -i www.test shop.test }",
            "{ hdr(host) -i shop.test }",
            "match: { hosts: [www.test, shop.test], path: \"/**\" }",
            "match: { hosts: [shop.test], path: \"/**\" }",
        ),
        (
            "{ method GET POST }",
            "{ method POST }",
            "match: { path: \"/**\", methods: [GET, POST] }",
            "match: { path: \"/**\", methods: [POST] }",
        ),
    ] {
        let one = haproxy(
            &format!(
                "  stick-table type ip size 1m store http_req_rate(10s)\n  http-request track-sc0 src
  http-request deny deny_status 429 if {test} {{ sc_http_req_rate(0) gt 2 }}
  http-request deny if {test} !{{ src 10.0.0.0/8 }}
  use_backend web if {all}"
            ),
            "",
        );
        one.writes(&[&format!(
            "{part}\n    upstream: web\n    limits: [fe.http_req_rate]\n    access: {{ allow: {{ addresses: [\"10.0.0.0/8\"] }} }}"
        )]);
        assert!(one.yaml.find(part) < one.yaml.find(whole), "{}", one.yaml);
    }
}

#[test]
fn haproxy_increments_count_the_requests_of_all_their_lines() {
    let counted = |lines: &str| {
        haproxy(
            &format!(
                "  stick-table type ip size 1k store gpc0_rate(10s)\n  acl internal src 10.0.0.0/8\n  \
                 http-request track-sc0 src\n{lines}"
            ),
            "",
        )
    };
    let denial = "  http-request deny deny_status 429 if { sc_gpc0_rate(0) gt 3 }\n";
    let exempt = counted(&format!("  http-request sc-inc-gpc0(0) if !internal\n{denial}"));
    assert!(exempt.route("fe.web").contains("bypass: { addresses: [\"10.0.0.0/8\"] }"), "{}", exempt.yaml);
    let several = counted(&format!(
        "  http-request sc-inc-gpc0(0) if {{ path_beg /login/ }}\n  http-request sc-inc-gpc0(0) if {{ path_beg /signup/ }}\n  \
         http-request sc-inc-gpc0(0) if {{ path /signup/new }}\n{denial}"
    ));
    for path in ["/login/**", "/signup/**"] {
        several.writes(&[&format!("match: {{ path: \"{path}\" }}\n    upstream: web\n    limits: [fe.gpc0_rate]")]);
    }
    assert!(!several.route("fe.web").contains("limits"), "{}", several.yaml);
    several.notes(&[
        "http-request sc-inc-gpc0(0): counts requests that a line before it counts, too",
        "http-request deny: denies only requests that its counter counts: HAProxy denies all that it tracks",
    ]);
    let around = counted(&format!(
        "  http-request sc-inc-gpc0(0) if {{ path /a }}\n{denial}  http-request sc-inc-gpc0(0) if {{ path /b }}"
    ));
    around.notes(&["http-request deny: is left out: rules in front of it and behind it count gpc0"]);
}

#[test]
fn haproxy_keys_of_a_part_of_a_field_are_named() {
    let by = |key: &str| {
        haproxy(
            &format!(
                "  http-request track-sc0 {key} table keys\n  http-request deny if {{ sc_http_req_rate(0) gt 20 }}"
            ),
            "",
        )
    };
    for key in ["hdr(x-api-key)", "req.hdr(x-api-key)"] {
        by(key).notes(&["http-request track-sc0: counts by the whole field"]);
    }
    assert!(!by("req.fhdr(x-api-key)").notes.contains("track-sc0"));
    by("cook(sid)").notes(&["http-request track-sc0: requests with an empty cookie share one count"]);
    let forwarded = by("hdr(X-Forwarded-For)");
    forwarded.omits("x-forwarded-for");
    forwarded.notes(&["with `client_address: { trusted_proxies: [...] }`, `key: client_address` is like it"]);
}

#[test]
fn haproxy_rules_take_requests_before_more_specific_ones_behind_them() {
    let rules = |first: &str, second: &str| {
        haproxy(
            &format!("  use_backend api if {first}\n  use_backend web if {second}"),
            "backend api\n  server a 10.0.0.2:80\n",
        )
    };
    let (host, path) = ("{ hdr(host) -i a.test }", "{ path_beg /w/ }");
    rules(host, path).omits("fe.api-2");
    assert!(
        rules(path, host).route("fe.api-2").contains("match: { hosts: [a.test], path: \"/w/**\" }\n    upstream: api"),
        "{}",
        rules(path, host).yaml
    );
}

#[test]
fn haproxy_counters_of_a_named_table_are_those_of_its_trackers() {
    let counters = ["sc_http_req_rate(0,TABLE)", "sc0_http_req_rate(TABLE)"];
    for (counter, table) in counters.iter().flat_map(|counter| [(counter, "addresses"), (counter, "keys")]) {
        let counter = counter.replace("TABLE", table);
        let one = haproxy(
            &format!(
                "  http-request track-sc0 src table addresses if {{ path_beg /a/ }}
  http-request track-sc0 src table keys if {{ path_beg /b/ }}\n  http-request deny if {{ {counter} gt 20 }}"
            ),
            "",
        );
        let names = ["addresses", "keys"].map(|name| one.yaml.contains(&format!("limits: [{name}.http_req_rate]")));
        assert_eq!(names, [table == "addresses", table == "keys"], "{}", one.yaml);
    }
    let other = haproxy(
        "  http-request track-sc0 src table addresses\n  http-request deny if { sc_http_req_rate(0,keys) gt 20 }",
        "",
    );
    other.omits("http_req_rate");
    other.notes(&[
        "deny: is left out: nothing that is carried over tracks its counter: requests that it refuses pass here",
    ]);
}

#[test]
fn haproxy_rules_of_connections_come_before_those_of_requests() {
    let one = haproxy(
        "  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }
  tcp-request content track-sc0 src table addresses",
        "",
    );
    assert!(one.route("fe.web").contains("limits: [addresses.http_req_rate]"), "{}", one.yaml);
    one.lacks_note("tcp-request");
    let counted = haproxy(
        "  stick-table type ip size 1k store gpc0_rate(10s)\n  http-request deny if { sc_gpc0_rate(0) gt 3 }
  tcp-request content track-sc0 src\n  tcp-request content sc-inc-gpc0(0)",
        "",
    );
    counted.writes(&["limit: 3, window: 10s, key: client_address, charge: { denied: true }"]);
    let looked_up = haproxy(
        "  tcp-request connection reject if { src_conn_cur(addresses) gt 10 }\n  http-request track-sc0 src table addresses",
        "",
    );
    looked_up.writes(&["connections: { max_per_client: 10 }"]);
    let unlike = haproxy("  http-request track-sc0 src\n  http-request deny if { sc_get_gpc0(0) gt 0 }", "");
    unlike.notes(&["deny: is left out: no limit is like gpc0 > 0: requests that it refuses pass here"]);
}

#[test]
fn haproxy_balance_by_the_host_is_read() {
    haproxy("", "  balance hdr(Host)").writes(&["balance: consistent_hash, hash_on: host }"]);
}

#[test]
fn haproxy_health_checks_ask_for_the_path_of_http_check_send() {
    let checked = haproxy("", "  default-server check\n  option httpchk\n  http-check send meth GET uri /health");
    checked.writes(&["health_check: { path: /health }"]);
    checked.lacks_note("http-check");
}

#[test]
fn haproxy_limits_for_get_do_not_hold_for_head() {
    let frontend = "  http-request track-sc0 src table addresses
  http-request deny deny_status 429 if { method GET } { path_beg /a/ } { sc_http_req_rate(0) gt 2 }
  use_backend reads if { method GET }";
    let one = haproxy(frontend, "backend reads\n  server r 10.0.0.2:80\n");
    one.writes(&[
        "match: { path: \"/a/**\", methods: [GET] }\n    upstream: reads\n    limits: [addresses.http_req_rate]",
        "match: { path: \"/a/**\", methods: [HEAD] }\n    upstream: web\n",
        "match: { path: \"/**\", methods: [HEAD] }\n    upstream: web\n",
    ]);
    assert_eq!(one.yaml.matches("limits: [").count(), 1, "{}", one.yaml);
    let both = haproxy(&frontend.replace("{ method GET }", "METH_GET"), "backend reads\n  server r 10.0.0.2:80\n");
    both.writes(&[
        "match: { path: \"/a/**\", methods: [HEAD] }\n    upstream: reads\n    limits: [addresses.http_req_rate]",
    ]);
}

#[test]
fn haproxy_statistics_and_their_guards_are_named() {
    let one = haproxy(
        "  stats enable\n  stats uri /haproxy\n  stats auth admin:secret\n  stats http-request deny unless { src 10.0.0.0/8 }",
        "global\n  stats socket /run/haproxy.sock\n  stats timeout 30s\n",
    );
    let guard = |line: &str| format!("stats {line}: {GUARD}");
    one.notes(&[
        "stats uri: is not carried over: requests for the statistics go to upstreams here",
        &guard("auth"),
        &guard("http-request"),
    ]);
    for told_nowhere in ["socket", "timeout", "enable", "secret"] {
        one.lacks_note(told_nowhere);
    }
    haproxy("  stats enable", "").notes(&["stats enable: is not carried over: requests for the statistics"]);
    let apart = haproxy("", "listen stats\n  bind :8404\n  stats uri /\n  stats auth admin:secret\n");
    apart.notes(&["listen: is left out: it leads to no servers"]);
    apart.lacks_note("stats uri");
    apart.lacks_note("stats auth");
}

#[test]
fn haproxy_answers_to_denied_requests_are_named() {
    let denial = |action: &str| {
        haproxy(
            &format!(
                "  http-request track-sc0 src table addresses\n  http-request {action} if {{ sc_http_req_rate(0) gt 2 }}"
            ),
            "",
        )
    };
    denial("deny deny_status 429 content-type text/plain string slow hdr Retry-After 5")
        .notes(&["http-request deny: is carried over without content-type, string, hdr"]);
    denial("return status 429 content-type text/plain lf-file /etc/slow").notes(&["without content-type, lf-file"]);
    denial("deny deny_status 429").lacks_note("http-request deny");
    denial("deny deny_status 200").notes(&["http-request deny: denied requests are answered 429"]);
    haproxy("  http-request deny errorfile /etc/403.http if { path /old }", "").notes(&["without errorfile"]);
}
