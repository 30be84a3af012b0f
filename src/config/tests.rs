use super::*;
use crate::algorithm::{AlgorithmName, Parameter, ParameterKind};
use crate::charge::Mode;
use crate::ruleset::overrides::OverridesReader;

/// A valid text for a parameter.
fn example(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Rate => "10/s".to_owned(),
        ParameterKind::Duration | ParameterKind::DurationOr(_) => "1d".to_owned(),
        ParameterKind::Whole => "5".to_owned(),
        ParameterKind::Decimal => "2.5".to_owned(),
        ParameterKind::Flag => "true".to_owned(),
        ParameterKind::Choice(words) => words[0].to_owned(),
        ParameterKind::TimeZone => "Europe/Berlin".to_owned(),
    }
}

fn limit(algorithm: AlgorithmName, parameters: impl Iterator<Item = Parameter>) -> String {
    let parameters: String = parameters.map(|one| format!(", {}: {}", one.name, example(&one))).collect();
    format!("limits: {{ l: {{ algorithm: {}{parameters} }} }}", algorithm.as_str())
}

fn check(text: &str) -> Result<Limits, Problems> {
    load_limits(text, "f", &|_| None)
}

#[test]
fn every_algorithm_can_be_configured_with_what_it_requires() {
    for algorithm in AlgorithmName::ALL {
        let parameters = algorithm.parameters().iter().copied();
        let limits = check(&limit(*algorithm, parameters.clone().filter(|one| one.required))).unwrap();
        let spec = &limits.limits[0];
        assert_eq!((spec.algorithm, spec.name.as_str()), (*algorithm, "l"));
        assert!(parameters.filter(|one| one.required).all(|one| spec.base.has(one.name)));
    }
}

#[test]
fn a_default_of_warn_at_is_left_out_where_no_quota_is_fixed() {
    for algorithm in AlgorithmName::ALL {
        let required = algorithm.parameters().iter().copied().filter(|one| one.required);
        let text = format!("defaults: {{ limits: {{ warn_at: [80] }} }}\n{}", limit(*algorithm, required));
        assert!(check(&text).is_ok(), "{text}: {}", check(&text).unwrap_err());
    }
}

/// Defaults of which each item below takes over what suits its own settings.
const DEFAULTS: &str = r#"
listeners: [{ address: 127.0.0.1:8080 }]
client_address: { trusted_proxies: [10.0.0.5] }
store: { redis: "redis://127.0.0.1:6379/0", nodes: 3 }
defaults:
  upstreams: { balance: consistent_hash, hash_on: client_address }
  routes: { split_by: client_address }
  limits:
    mode: shared
    consistency: leased
    strict: true
    on_store_down: deny
    warn_at: [80]
    ban: { after: 20 denials in 1m, for: 1h }
    request_overrides: { limit: { header: x-limit, max: 50 } }
upstreams:
  hashed: { nodes: ["10.0.0.1:80"] }
  in-turn: { nodes: ["10.0.0.2:80"], balance: round_robin }
limits:
  leased: { key: client_address, algorithm: quota_reset, limit: 100, window: 1h }
  exact: { key: client_address, algorithm: quota_reset, limit: 100, window: 1h, consistency: exact }
  sticky: { key: client_address, algorithm: quota_reset, limit: 100, window: 1h, mode: sticky }
  several: { key: client_address, algorithm: quota_reset, windows: [{ limit: 5, window: 1s }, { limit: 100, window: 1h }] }
  watches: { key: client_address, algorithm: quota_reset, limit: 100, window: 1h, shadow: true }
  queue: { key: client_address, algorithm: leaky_queue, rate: 1/s, capacity: 5, mode: sticky, request_overrides: {} }
routes:
  - { name: split, upstream: [{ name: hashed, weight: 1 }, { name: in-turn, weight: 1 }], limits: [leased, exact, sticky] }
  - { name: one, match: { path: /one }, upstream: in-turn, limits: [several, watches, queue] }
"#;

#[test]
fn a_default_that_does_not_suit_an_item_is_left_out_of_it() {
    let loaded = load(DEFAULTS, "f", &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    let limit = |name: &str| loaded.ruleset.limits.iter().find(|limit| limit.name == name).unwrap();
    for name in ["sticky", "queue"] {
        assert_eq!(limit(name).mode, Mode::Sticky, "{name}");
    }
    assert_eq!(limit("leased").mode.on_store_down(), limit("exact").mode.on_store_down());
    assert!(limit("leased").mode != limit("exact").mode && limit("leased").ban.is_some());
    assert!(limit("watches").ban.is_none() && limit("queue").warn_at.is_empty());
    assert!(limit("several/1h").request_overrides.is_empty() && !limit("sticky").request_overrides.is_empty());
}

#[test]
fn a_strict_limit_tells_what_of_its_burst_is_admitted() {
    let loaded = load(DEFAULTS, "f", &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    let limit = |name: &str| loaded.ruleset.limits.iter().find(|limit| limit.name == name).unwrap().describe(None);
    let more = "; of the 100 only 88 are admitted at once (`strict`)";
    assert_eq!(limit("leased"), format!("{}{more}", limit("exact")));
}

#[test]
fn an_override_of_a_limit_with_windows_is_told_the_names_of_the_windows() {
    let loaded = load(DEFAULTS, "f", &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    let refused = loaded.customers.overrides.terms(None, None, None, "several: { limit: 5 }").unwrap_err();
    let hint = "`several` has windows: name `several/1s` or `several/1h`";
    assert_eq!((&*refused[0].path, refused[0].hint.as_deref()), ("several", Some(hint)));
    let refused = loaded.customers.overrides.terms(None, None, None, "severel: { limit: 5 }").unwrap_err();
    assert_eq!(refused[0].hint, None, "{refused:?}");
}

#[test]
fn every_parameter_is_read_by_its_kind() {
    for algorithm in AlgorithmName::ALL {
        for parameter in algorithm.parameters() {
            let others = algorithm.parameters().iter().copied().filter(|one| one.required || one == parameter);
            if let Err(problems) = check(&limit(*algorithm, others)) {
                // the algorithm itself may refuse such a value
                for problem in &problems.errors {
                    assert_eq!(problem.expected, None, "{problem}");
                }
            }
            let text = format!("limits: {{ l: {{ algorithm: {}, {}: [] }} }}", algorithm.as_str(), parameter.name);
            let problems = check(&text).unwrap_err();
            let path = format!("limits.l.{}", parameter.name);
            assert!(problems.errors.iter().any(|one| one.place.path == path && one.found.as_deref() == Some("a list")));
        }
    }
}

#[test]
fn every_parameter_that_is_missing_is_named() {
    for algorithm in AlgorithmName::ALL {
        let problems = check(&limit(*algorithm, std::iter::empty())).unwrap_err();
        let [problem] = problems.errors.as_slice() else { panic!("{problems}") };
        for parameter in algorithm.parameters().iter().filter(|one| one.required) {
            assert!(problem.message.contains(&format!("`{}`", parameter.name)), "{problem}");
        }
    }
}

#[test]
fn findings_are_told_in_the_order_of_the_text_and_counted_beyond_a_thousand() {
    let text: String = (0..1_500).map(|number| format!("k{number}: 1\n")).collect();
    let problems = check(&text).unwrap_err();
    assert_eq!((problems.errors.len(), problems.more), (1_000, 501));
    assert!(problems.errors.is_sorted_by_key(|problem| problem.place.mark));
    assert!(problems.to_string().ends_with("and 501 more"));
}

#[test]
fn an_error_after_a_thousand_warnings_is_told() {
    let queue = |number| format!("  l{number}: {{ algorithm: leaky_queue, rate: 1/s, capacity: 5 }}\n");
    let queues: String = (0..1_100).map(queue).collect();
    assert_eq!(check(&format!("limits:\n{queues}")).unwrap().warnings.len(), 1_000);
    let problems = check(&format!("limits:\n{queues}  late: {{ algorithm: gcra }}\n")).unwrap_err();
    let errors: Vec<&str> = problems.errors.iter().map(|problem| problem.place.path.as_str()).collect();
    assert_eq!((errors, problems.more), (vec!["limits.late"], 0));
}

/// The names of the routes that take requests of `method` for the hosts `a.test` and `b.test`; routes are written without
/// their upstream.
fn taken(routes: &[&str], method: &str) -> [String; 2] {
    let routes: String = routes.iter().map(|route| format!("  - {{ upstream: u, {route} }}\n")).collect();
    let text = format!(
        "listeners: [{{ address: 127.0.0.1:8080 }}]\nupstreams: {{ u: {{ nodes: [\"n:1\"] }} }}\nroutes:\n{routes}"
    );
    let loaded = load(&text, "f", &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    ["a.test", "b.test"].map(|host| {
        let route = loaded.ruleset.matcher.find_bare(method, host, "/report");
        route.map(|route| route.name.clone()).unwrap_or_default()
    })
}

#[test]
fn a_route_for_get_takes_head_unless_another_names_it() {
    const OTHERS: &str = "name: others";
    let get = "name: get, match: { path: /report, methods: [GET] }";
    let get_of = "name: get, match: { hosts: [a.test, b.test], path: /report, methods: [GET] }";
    for (routes, expected) in [
        ([get, OTHERS, "name: post, match: { path: /report, methods: [POST] }"], ["get", "get"]),
        ([get, OTHERS, "name: head, match: { path: /report, methods: [HEAD] }"], ["head", "head"]),
        ([get, OTHERS, "name: both, match: { path: /report, methods: [HEAD, GET] }"], ["both", "both"]),
        ([get, OTHERS, "name: head, match: { path: /other, methods: [HEAD] }"], ["get", "get"]),
        // a more specific route takes its requests first, and leaves the others to the route for GET
        (
            [get, OTHERS, "name: head, match: { path: /report, methods: [HEAD], headers: { x-a: true } }"],
            ["get", "get"],
        ),
        ([get, OTHERS, "name: head, match: { hosts: [a.test], path: /report, methods: [HEAD] }"], ["head", "get"]),
        // a route that names HEAD for one host leaves it to the route for GET at the other
        (["name: head, match: { hosts: [a.test], path: /report, methods: [HEAD] }", get_of, OTHERS], ["head", "get"]),
        (
            [get_of, OTHERS, "name: head, match: { hosts: [a.test, b.test], path: /report, methods: [HEAD] }"],
            ["head", "head"],
        ),
        (
            [
                get_of,
                "name: x, match: { hosts: [a.test], path: /report, methods: [HEAD] }",
                "name: y, match: { hosts: [b.test], path: /report, methods: [HEAD] }",
            ],
            ["x", "y"],
        ),
    ] {
        assert_eq!(taken(&routes, "HEAD"), expected, "{routes:?}");
        assert!(taken(&routes, "GET").iter().all(|route| route == "get"), "{routes:?}");
    }
    assert_eq!(taken(&["name: post, match: { methods: [POST] }"], "HEAD"), ["", ""]);
}
