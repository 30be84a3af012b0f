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
fn traefik_routers_take_requests_before_more_specific_ones_behind_them() {
    let ours = |api: &str, writes: &str| {
        traefik(
            &format!("    api: {{ {api}, service: api }}\n    writes: {{ {writes}, service: api }}"),
            "    x: {}",
            "",
        )
    };
    let own = "rule: Method(`POST`) && (Path(`/api/new`) || PathPrefix(`/api/`))";
    ours("rule: PathPrefix(`/api/`)", own).lacks_note("is never reached");
    let first = ours("rule: PathPrefix(`/api/`), priority: 99", own);
    first.notes(&["http.routers.writes: is never reached: a rule before it takes all that it would"]);
    let partly = ours("rule: \"Header(`X-A`, `1`)\", priority: 99", own);
    let expected = "match: { path: /api/new, methods: [POST], headers: { x-a: \"1\" } }";
    assert!(partly.route("api-3").contains(expected), "{}", partly.yaml);
}

#[test]
fn traefik_priorities_below_zero_are_read() {
    let routers = "    login: { rule: Path(`/a`), service: api }
    rest: { rule: PathPrefix(`/`), priority: -1, service: api }
    last: { rule: PathPrefix(`/`) || Path(`/b`), priority: -2, service: api }
    usual: { rule: Path(`/b`), priority: 0, service: api }";
    let one = traefik(routers, "    x: {}", "");
    let names: Vec<&str> = one.yaml.lines().filter_map(|line| line.strip_prefix("  - name: ")).collect();
    assert_eq!(names, ["login", "usual", "rest"], "{}", one.yaml);
    one.notes(&["http.routers.last: is never reached: a rule before it takes all that it would"]);
}

#[test]
fn traefik_rules_for_get_leave_head_to_the_next_router() {
    let heads = |routers: &str| {
        let middlewares = "    limit: { rateLimit: { average: 1000 } }";
        let one = traefik(routers, middlewares, "");
        let routes = one.yaml.split("  - name: ").filter(|route| route.contains("[HEAD]")).map(str::to_owned);
        (routes.collect::<Vec<_>>(), one)
    };
    let all = "    all: { rule: PathPrefix(`/`), middlewares: [limit], service: api }\n";
    let (routes, one) = heads(&format!("    reads: {{ rule: PathPrefix(`/`) && Method(`GET`), service: api }}\n{all}"));
    assert!(routes.len() == 1 && routes[0].contains("path: \"/**\", methods: [HEAD]"), "{}", one.yaml);
    assert!(routes[0].contains("limits: [limit.all]"), "{}", one.yaml);
    // the next router for HEAD is not that of the next path
    let below = "    below: { rule: PathPrefix(`/v1/a/`) && Method(`GET`), service: api }
    posts: { rule: PathPrefix(`/v1/`) && Method(`POST`), service: api }
    keys: { rule: \"PathPrefix(`/v1/`) && Header(`X-A`, `1`)\", service: api }\n";
    let (routes, one) = heads(&format!("{below}{all}"));
    assert_eq!(routes.len(), 2, "{}", one.yaml);
    assert!(routes[0].contains("path: \"/v1/a/**\", methods: [HEAD], headers: { x-a: \"1\" }"), "{}", one.yaml);
    assert!(routes[1].contains("limits: [limit.all]"), "{}", one.yaml);
    // another router takes HEAD there, or in front
    let first = "    reads: { rule: PathPrefix(`/v1/`) && Method(`GET`), service: api }
    heads: { rule: PathPrefix(`/v1/`) && Method(`HEAD`), service: api }\n";
    let (routes, one) = heads(&format!("{first}{all}"));
    assert!(routes.len() == 1 && routes[0].starts_with("heads\n"), "{}", one.yaml);
    let slash = "    reads: { rule: Path(`/v1`) && Method(`GET`), service: api }
    dir: { rule: PathPrefix(`/v1/`), service: api }\n";
    let (routes, one) = heads(&format!("{slash}{all}"));
    assert!(routes.len() == 1 && routes[0].starts_with("all"), "{}", one.yaml);
    // a router that listens elsewhere
    let elsewhere = all.replace("all: {", "all: { entryPoints: [internal],");
    let (routes, one) =
        heads(&format!("    reads: {{ rule: PathPrefix(`/`) && Method(`GET`), service: api }}\n{elsewhere}"));
    assert_eq!(routes, [] as [String; 0], "{}", one.yaml);
    one.notes(&["http.routers.reads: requests with HEAD go with GET here: rules of other listeners take them"]);
}
