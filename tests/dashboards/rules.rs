//! Recorded series and alerts, checked with Prometheus's own tool, and their documentation.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::panels::{self, expressions, filled};
use crate::{each, folder, read, run, yaml};

const RULES: &str = "dashboards/prometheus/rules/tollgate.yml";
const ALERT_TESTS: &str = "dashboards/prometheus/tests/alerts.yml";
const RECORD_TESTS: &str = "dashboards/prometheus/tests/recorded.yml";

fn promtool(arguments: &[&str]) {
    let (content, said) = run("promtool", arguments);
    assert!(content, "promtool {arguments:?}: {said}");
}

fn rules() -> Vec<Value> {
    let groups = yaml(RULES);
    each(&groups["groups"], "rules").flat_map(|rules| rules.as_array().unwrap().clone()).collect()
}

fn names(kind: &str) -> Vec<String> {
    rules().iter().filter_map(|rule| rule[kind].as_str().map(str::to_owned)).collect()
}

#[test]
fn prometheus_accepts_configuration_and_rules() {
    promtool(&["check", "config", "dashboards/prometheus/prometheus.yml"]);
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", RULES]);
}

#[test]
fn every_rule_does_what_its_test_says() {
    promtool(&["test", "rules", ALERT_TESTS, RECORD_TESTS]);
}

#[test]
fn every_alert_is_seen_off_on_held_and_gone() {
    let tests = yaml(ALERT_TESTS);
    let mut seen = BTreeMap::<String, Vec<bool>>::new();
    for test in each(&tests["tests"], "alert_rule_test").flat_map(|tests| tests.as_array().unwrap()) {
        let fires = test["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
        seen.entry(test["alertname"].as_str().unwrap().to_owned()).or_default().push(fires);
    }
    let mut alerts = names("alert");
    alerts.sort();
    assert_eq!(seen.keys().collect::<Vec<_>>(), alerts.iter().collect::<Vec<_>>());
    for (alert, fires) in seen {
        assert_eq!(fires, [false, false, true, true, false], "{alert}");
    }
}

#[test]
fn every_recorded_series_has_a_test() {
    let tests = read(RECORD_TESTS);
    for record in names("record") {
        assert!(tests.contains(&format!("- expr: {record}")), "{record}");
    }
}

#[test]
fn the_runbook_has_a_text_for_every_alert() {
    let runbook = read("docs/runbook.md");
    let sections: BTreeMap<&str, &str> =
        runbook.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
    let mut known = Vec::new();
    let rules = rules();
    for rule in rules.iter().filter(|rule| rule["alert"].is_string()) {
        let name = rule["alert"].as_str().unwrap();
        let section = sections.get(name).unwrap_or_else(|| panic!("{name} is not in the runbook"));
        for part in ["**Means.** ", "**Look at.** ", "**Do.** "] {
            assert!(section.contains(&format!("\n{part}")), "{name}: {part}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["page", "ticket"].contains(&severity), "{name}");
        let anchor = name.to_lowercase();
        assert!(runbook.contains(&format!("| [{name}](#{anchor}) | {severity} |")), "{name} is not in the table");
        assert_eq!(rule["annotations"]["runbook_url"], format!("docs/runbook.md#{anchor}"));
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
        known.push(name);
    }
    known.sort_unstable();
    let of_alerts = sections.keys().copied().filter(|title| title.starts_with("Tollgate"));
    assert_eq!(of_alerts.collect::<Vec<_>>(), known, "the runbook has no text for an alert that is gone");
    for title in runbook.match_indices('*').filter_map(|(at, _)| runbook.get(at + 1..)?.split_once('*')) {
        let name = title.0;
        // text in plain italics is the title of a dashboard, a row or a panel
        let is_title = !name.is_empty() && name.starts_with(char::is_alphabetic) && name.len() < 40;
        let is_bold = name.ends_with('.') || name.contains(['\n', '(', ',', ':', ';', '|']) || name.starts_with(' ');
        if is_title && !is_bold {
            assert!(is_on_a_dashboard(name), "*{name}* is on no dashboard");
        }
    }
}

fn is_on_a_dashboard(title: &str) -> bool {
    panels::all().iter().any(|dashboard| {
        let titles = dashboard.json["panels"].as_array().unwrap().iter();
        dashboard.json["title"] == format!("tollgate: {title}")
            || titles.into_iter().any(|panel| panel["title"] == title)
    })
}

#[test]
fn prometheus_understands_every_query_of_the_dashboards() {
    let mut text = String::from("groups:\n  - name: queries\n    rules:\n");
    let mut count = 0;
    for dashboard in panels::all() {
        let annotations = dashboard.json["annotations"]["list"].as_array().unwrap();
        for expression in dashboard.panels().chain(annotations).flat_map(expressions) {
            count += 1;
            let quoted = Value::from(filled(expression));
            write!(text, "      - record: asked:{count}\n        expr: {quoted}\n").unwrap();
        }
    }
    assert!(count > 50, "{count}");
    let folder = folder("queries");
    let file = folder.join("queries.yml");
    std::fs::write(&file, &text).unwrap();
    promtool(&["check", "rules", &file.display().to_string()]);
    std::fs::write(&file, text.replacen("sum(", "sum((", 1)).unwrap();
    assert!(!run("promtool", &["check", "rules", &file.display().to_string()]).0, "it would find a fault");
    std::fs::remove_dir_all(folder).unwrap();
}
