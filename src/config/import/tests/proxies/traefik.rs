//! Imports of Traefik's configurations.

use super::{Imported, imported};

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

#[test]
fn traefik_services_that_contain_themselves_end() {
    let routers = "    all: { rule: PathPrefix(`/`), service: api }\n    loop: { rule: Path(`/loop`), service: loop }";
    let one =
        traefik(routers, "    unused: { compress: {} }", "    loop: { weighted: { services: [{ name: loop }] } }");
    one.omits("/loop");
    one.notes(&["is left out: its service loop contains itself"]);
    let chain = traefik(
        "    all: { rule: PathPrefix(`/`), middlewares: [round], service: api }",
        "    round: { chain: { middlewares: [round] } }",
        "",
    );
    chain.notes(&["goes on without round, which contains itself"]);
}

#[test]
fn traefik_routers_without_servers_stay_closed() {
    let routers = "    all: { rule: PathPrefix(`/`), service: api }
    none: { rule: PathPrefix(`/none/`), middlewares: [allow], service: none }
    shares: { rule: PathPrefix(`/shares/`), service: shares }";
    let allow = "    allow: { ipAllowList: { sourceRange: [10.0.0.0/8] } }";
    let services = "    none: { loadBalancer: { servers: [{ url: 'h2c://10.0.0.1:80' }] } }
    shares: { weighted: { services: [{ name: none }] } }";
    let one = traefik(routers, allow, services);
    for router in ["none", "shares"] {
        assert!(
            one.route(router).contains("access: { deny: { addresses: [\"0.0.0.0/0\", \"::/0\"] } }"),
            "{}",
            one.yaml
        );
        one.notes(&[&format!(
            "http.routers.{router}: refuses requests with 403 here: its service has no servers that are carried over"
        )]);
    }
}

#[test]
fn traefik_prefix_is_stripped_from_the_paths_that_begin_with_it() {
    let routers = "    all: { rule: Host(`a.test`) && (PathPrefix(`/api`) || PathPrefix(`/v2`)), middlewares: [strip], service: api }";
    let one = traefik(routers, "    strip: { stripPrefix: { prefixes: [/api] } }", "");
    assert!(one.route("all").contains("rewrite: { strip_prefix: /api }"), "{}", one.yaml);
    assert!(!one.route("all-2").contains("rewrite"), "{}", one.yaml);
}

#[test]
fn traefik_times_of_several_units_and_the_smallest_bound_on_bodies_are_written() {
    let checked = |name: &str, settings: &str| {
        format!(
            "    {name}: {{ loadBalancer: {{ servers: [{{ url: 'http://10.0.0.2:80' }}], healthCheck: {{ {settings} }} }} }}\n"
        )
    };
    let services = [checked("a", "interval: 10, timeout: 1m30s"), checked("b", "interval: soon")].concat();
    let routers = "    a: { rule: PathPrefix(`/a/`), middlewares: [large, small, slow], service: a }
    b: { rule: PathPrefix(`/b/`), service: b }";
    let middlewares = "    large: { buffering: { maxRequestBodyBytes: 2000 } }
    small: { buffering: { maxRequestBodyBytes: 1000 } }
    slow: { rateLimit: { average: 1, period: 1m30s } }";
    let one = traefik(routers, middlewares, &services);
    one.writes(&["health_check: { path: /, every: 10s, timeout: 90s }", "max_request_body: 1000B", "rate: 1/90s"]);
    one.omits("2000B");
    one.notes(&["healthCheck.interval: is left out: soon is no length of time"]);
}

#[test]
fn traefik_limits_and_routers_without_a_number_or_a_rule_are_told() {
    let routers = "    all: { rule: PathPrefix(`/`), middlewares: [rate, none, zero], service: api }
    lost: { service: api }\n    vague: { rule: Path(`/vague`) }";
    let middlewares = "    rate: { rateLimit: { average: 5, period: 0 } }\n    none: { inFlightReq: {} }
    zero: { inFlightReq: { amount: 0 } }";
    let one = traefik(routers, middlewares, "");
    one.writes(&["rate: 5/s", "limits: [rate.all]"]);
    one.notes(&[
        "none.inFlightReq: is left out: it has no amount above 0: requests that it refuses pass here",
        "zero.inFlightReq: is left out: it has no amount above 0: requests that it refuses pass here",
        "http.routers.lost: is left out: it has no rule, or no service",
        "http.routers.vague: is left out: it has no rule, or no service",
    ]);
}

#[test]
fn traefik_middlewares_rewrite_paths_one_behind_the_other() {
    let middlewares =
        "    strip: { stripPrefix: { prefixes: [/api] } }\n    strip-b: { stripPrefix: { prefixes: [/v1/b] } }
    add: { addPrefix: { prefix: /v1 } }\n    tenant: { addPrefix: { prefix: /tenant } }";
    for (used, expected) in [
        ("strip, add, tenant", "rewrite: { strip_prefix: /api, add_prefix: /tenant/v1 }"),
        ("add, tenant, strip", "rewrite: { add_prefix: /tenant/v1 }"),
        ("add, strip-b", "rewrite: { strip_prefix: /b }"),
        ("strip, strip-b", "rewrite: { strip_prefix: /api/v1/b }"),
    ] {
        let router = format!("    all: {{ rule: PathPrefix(`/`), middlewares: [{used}], service: api }}");
        let one = traefik(&router, middlewares, "");
        one.writes(&[expected]);
        let note = "stripPrefix: changes only paths that begin with";
        assert_eq!(one.notes.contains(note), used.ends_with("strip-b"), "{}", one.notes);
    }
}

#[test]
fn traefik_protocols_of_entry_points_are_read() {
    let points = "entryPoints: { web: { address: ':80/tcp' }, dns: { address: ':53/udp' } }";
    let one = traefik("    all: { rule: PathPrefix(`/`), service: api }", "    unused: { compress: {} }", points);
    one.writes(&["  - { address: \"0.0.0.0:80\" }"]);
    one.omits(":53");
    one.notes(&["entryPoints.dns: is left out: only TCP is carried over"]);
}

#[test]
fn traefik_routers_are_named_where_the_more_specific_one_is_not_the_first() {
    let ours = |api: &str, writes: &str| {
        traefik(
            &format!("    api: {{ {api}, service: api }}\n    writes: {{ {writes}, service: api }}"),
            "    x: {}",
            "",
        )
    };
    let own = "rule: Method(`POST`) && (Path(`/api/new`) || PathPrefix(`/api/`))";
    ours("rule: PathPrefix(`/api/`)", own).lacks_note("shares requests");
    ours("rule: PathPrefix(`/api/`), priority: 99", own)
        .notes(&["http.routers.writes: shares requests with api: here the more specific route takes them"]);
}
