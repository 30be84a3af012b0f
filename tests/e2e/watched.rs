//! Monitoring: a real Prometheus with the rules of the repository, on gateways with the configuration, the customers and
//! the traffic of docker-compose.yml, including an outage of Redis.

use std::path::Path;
use std::process::{Command, Stdio};

use tollgate::telemetry::names;

use crate::support::prometheus::Prometheus;
use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, Process, wait_for, wait_until};

#[path = "../dashboards/panels.rs"]
mod panels;

/// Customers that send requests at a steady rate; dropping this stops them.
struct Traffic(Process);

impl Traffic {
    fn start(gateways: &[&Gateway]) -> Self {
        let gateways: Vec<String> = gateways.iter().map(|gateway| gateway.address.to_string()).collect();
        let mut arguments = vec!["config/compose/traffic.sh"];
        arguments.extend(gateways.iter().map(String::as_str));
        Self(Process::program("sh", &arguments, Path::new(env!("CARGO_MANIFEST_DIR"))))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.signal("TERM");
        wait_until("the customers to stop", || self.0.has_ended());
    }
}

/// The configuration of the gateways of docker-compose.yml with other addresses.
fn configuration(origin: &Origin, redis: &Redis) -> String {
    let read = include_str!("../../config/docker.yaml");
    let changes = [
        ("listeners:\n  - address: 0.0.0.0:8080\n", ""),
        ("admin: { address: 0.0.0.0:9090 }\n", ""),
        // a long timeout, so that a slow machine does not look like an outage
        ("\"redis://redis:6379/0\"", &format!("\"{}\", timeout: 1s", redis.url())),
        ("\"upstream:9000\"", &format!("\"{}\"", origin.address)),
    ];
    changes.iter().fold(read.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

fn gateway(config: &str) -> Gateway {
    Gateway::start_with(config, &[("customers.csv", include_str!("../../config/customers.csv"))], &[])
}

/// The empty panels that are not marked as possibly empty, among those that `wanted` selects by title and mark.
fn empty_panels(prometheus: &Prometheus, wanted: impl Fn(&str, bool) -> bool) -> Vec<String> {
    let now = prometheus.query_api("query", &[("query", "time()")])["result"][1].as_str().unwrap().to_owned();
    let start = format!("{}", now.parse::<f64>().unwrap() - 10.0);
    let range = [("start", start.as_str()), ("end", now.as_str()), ("step", "1s")];
    let mut empty = Vec::new();
    for dashboard in panels::all() {
        for panel in dashboard.panels() {
            let title = panel["title"].as_str().unwrap();
            let may_be_empty = panel["description"].as_str().unwrap().contains("Empty ");
            for expression in panels::expressions(panel) {
                let expression = panels::filled(expression);
                let found = prometheus.query_api("query_range", &[&range[..], &[("query", &expression)]].concat());
                let series = found["result"].as_array().unwrap();
                let values = series.iter().flat_map(|series| series["values"].as_array().unwrap());
                let has_numbers = values.into_iter().any(|value| value[1] != "NaN");
                if !has_numbers && wanted(title, may_be_empty) {
                    empty.push(format!("{}: {title}: {expression}", dashboard.file));
                }
            }
        }
    }
    empty
}

/// Waits until no wanted panel is empty.
fn wait_for_panels(prometheus: &Prometheus, wanted: impl Fn(&str, bool) -> bool) {
    let mut empty = Vec::new();
    let deadline = crate::support::now() + crate::support::PATIENCE;
    while crate::support::now() < deadline {
        empty = empty_panels(prometheus, &wanted);
        if empty.is_empty() {
            return;
        }
    }
    panic!("these panels stay empty: {empty:#?}");
}

fn wait_for_alerts(prometheus: &Prometheus, alerts: &[&str]) {
    for alert in alerts {
        wait_for(&format!("{alert} to fire"), || prometheus.firing().iter().any(|name| name == alert).then_some(()));
    }
}

fn wait_for_silence(prometheus: &Prometheus, alerts: &[&str]) {
    for alert in alerts {
        wait_for(&format!("{alert} to be over"), || {
            (!prometheus.firing().iter().any(|name| name == alert)).then_some(())
        });
    }
}

const OUTAGE: [&str; 3] = ["TollgateStoreBreakerOpen", "TollgateFallbackActive", "TollgateErrorAdmissions"];

#[test]
fn prometheus_sees_what_happens_and_says_so() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let config = configuration(&origin, &redis);
    let (one, mut other) = (gateway(&config), gateway(&config));
    let traffic = Traffic::start(&[&one, &other]);
    let prometheus = Prometheus::start(&[one.admin, other.admin]);
    wait_until("both gateways to be scraped", || {
        let targets = prometheus.query_api("targets", &[("state", "active")]);
        let up = targets["activeTargets"].as_array().unwrap().iter().filter(|target| target["health"] == "up");
        up.count() == 2
    });
    assert_tidy(&one);
    wait_for_panels(&prometheus, |_, may_be_empty| !may_be_empty);
    // panels that may be empty elsewhere have data here, because these gateways use Redis, delay requests and watch a limit
    let also = ["Redis", "Waits", "In place of denials"];
    wait_for_panels(&prometheus, |title, _| also.contains(&title));
    assert_knows_the_catalogue(&prometheus);
    assert_no_rule_fails(&prometheus);
    let firing = prometheus.firing();
    assert!(!firing.iter().any(|name| OUTAGE.contains(&name.as_str())), "{firing:?}");

    redis.signal("STOP");
    wait_for_alerts(&prometheus, &OUTAGE);
    wait_for_panels(&prometheus, |title, _| ["Calls that failed", "Passed or refused unseen"].contains(&title));
    let unsynced = prometheus.query_api("query", &[("query", "sum(tollgate_limit_unsynced_tokens) > 0")]);
    assert_ne!(unsynced["result"], serde_json::json!([]), "something is to be handed in");
    redis.signal("CONT");
    wait_for_silence(&prometheus, &OUTAGE);

    one.rewrite(&format!("{config}nonsense: true\n"));
    wait_for_alerts(&prometheus, &["TollgateConfigReloadFailed"]);
    one.rewrite(&format!("{config}# another hash\n"));
    wait_for_alerts(&prometheus, &["TollgateConfigDrift"]);
    wait_for_silence(&prometheus, &["TollgateConfigReloadFailed"]);
    one.rewrite(&config);
    other.end("KILL");
    wait_for_alerts(&prometheus, &["TollgateDown"]);
    other.start_again();
    wait_for_silence(&prometheus, &["TollgateConfigDrift", "TollgateDown"]);
    drop(traffic);
}

/// Asserts that promtool finds no problem in the metrics.
fn assert_tidy(gateway: &Gateway) {
    let text = gateway.admin_get("/metrics").body;
    let file = gateway.folder.write("metrics", text);
    let command = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::from(std::fs::File::open(file).unwrap()))
        .output()
        .unwrap();
    let said = String::from_utf8([command.stdout, command.stderr].concat()).unwrap();
    assert!(command.status.success() && said.is_empty(), "{said}");
}

/// Metrics that a gateway has only with special settings.
const SPECIAL: [&str; 12] = [
    "tollgate_certificate_", "tollgate_customer_lookups_", "tollgate_decisions_", "tollgate_limit_bans_",
    "tollgate_limit_cost_invalid_", "tollgate_limit_candidate_", "tollgate_limit_top_denied_", "tollgate_peer_",
    "tollgate_source_", "tollgate_cluster_", "tollgate_upstream_ejections_", "tollgate_upstream_requests_",
];

fn assert_knows_the_catalogue(prometheus: &Prometheus) {
    let metadata = prometheus.query_api("metadata", &[]);
    let known = metadata.as_object().unwrap();
    for name in names::ALL {
        let Some(told) = known.get(name.name) else {
            assert!(SPECIAL.iter().any(|special| name.name.starts_with(special)), "{} is not exported", name.name);
            continue;
        };
        assert_eq!(told.as_array().unwrap().len(), 1, "{}: {told}", name.name);
        assert_eq!(told[0]["help"], name.help);
        assert_eq!(told[0]["type"] == "counter", name.name.ends_with("_total"), "{}: {told}", name.name);
    }
    let unknown: Vec<&String> = known
        .keys()
        .filter(|known| known.starts_with("tollgate_") && !names::ALL.iter().any(|name| name.name == **known))
        .collect();
    assert_eq!(unknown, [""; 0]);
}

fn assert_no_rule_fails(prometheus: &Prometheus) {
    let groups = prometheus.query_api("rules", &[]);
    let rules: Vec<_> =
        groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() > 20, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
