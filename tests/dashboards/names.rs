//! The catalogue of metrics: every metric in rules, dashboards and documents is in it, and all of it is documented.

use std::fmt::Write;
use std::path::PathBuf;

use tollgate::telemetry::names;

use crate::expressions::{labels, metrics, wrong_names};
use crate::{each, files, read, yaml};

#[test]
fn rules_name_metrics_and_labels_that_exist() {
    for file in files("dashboards/prometheus/rules", "yml") {
        let groups = yaml(&file);
        let rules = each(&groups["groups"], "rules").flat_map(|rules| rules.as_array().unwrap());
        for rule in rules {
            let expression = rule["expr"].as_str().unwrap();
            // the names of recorded series contain the labels that they are grouped by
            let recorded = expression.contains(":tollgate_");
            let wrong: Vec<String> = wrong_names(expression).into_iter().filter(|_| !recorded).collect();
            assert_eq!(wrong, [""; 0], "{expression}");
        }
    }
}

#[test]
fn documents_and_tests_of_rules_name_metrics_that_exist() {
    let documents = files("docs", "md").into_iter().chain(files("dashboards/prometheus/tests", "yml"));
    let others = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "scripts/compose-test.sh"];
    for file in documents.chain(others.map(PathBuf::from)) {
        for metric in metrics(&read(&file)) {
            assert!(labels(metric).is_some(), "{}: {metric}", file.display());
        }
    }
}

/// The code takes the names of series from the catalogue only; tests may spell the names that they look for.
#[test]
fn the_code_takes_names_from_the_catalogue() {
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("telemetry/names.rs") {
                let text = read(&path);
                let code = text.split("#[cfg(test)]").next().unwrap();
                let found = names::ALL.iter().find(|name| code.contains(&format!("\"{}", name.name)));
                assert_eq!(found.map(|name| name.name), None, "{}", path.display());
            }
        }
    }
}

/// The units at the end of names; a metric that counts things has no unit.
const UNITS: &[&str] = &["seconds", "bytes", "tokens", "ratio", "info", "tokens_per_second"];

const IS_OR_IS_NOT: [&str; 5] = [
    names::CONFIG_LAST_RELOAD_SUCCESSFUL.name,
    names::LIMIT_MODE.name,
    names::PEER_UP.name,
    names::STATE_LAST_SNAPSHOT_SUCCESSFUL.name,
    names::STORE_BREAKER_STATE.name,
];

fn unit(name: &str) -> &'static str {
    let base = name.strip_suffix("_total").unwrap_or(name);
    let known = UNITS.iter().filter(|unit| base.ends_with(&format!("_{unit}")));
    match known.max_by_key(|unit| unit.len()).copied() {
        Some("tokens_per_second") => "tokens per second",
        Some("info") => "always 1",
        Some("ratio") => "a share, 0 to 1",
        Some(unit) => unit,
        None if name.contains("_tokens_") => "tokens",
        None if name.contains("timestamp") => "seconds",
        None if IS_OR_IS_NOT.contains(&name) => "0 or 1",
        None => "a number",
    }
}

#[test]
fn the_page_about_metrics_lists_the_catalogue() {
    const PAGE: &str = "docs/metrics.md";
    const START: &str = "| metric | labels | unit | meaning |\n|---|---|---|---|\n";
    let mut table = String::from(START);
    for name in names::ALL {
        let labels = name.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let help = name.help.replace('|', "\\|");
        writeln!(table, "| `{}` | {labels} | {} | {help} |", name.name, unit(name.name)).unwrap();
    }
    let page = read(PAGE);
    let (before, rest) = page.split_once(START).expect("the table is there");
    let (_, after) = rest.split_once("\n\n").expect("something follows the table");
    let wanted = format!("{before}{table}\n{after}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(PAGE, wanted).unwrap();
    } else {
        assert!(page == wanted, "{PAGE}: run UPDATE_GOLDEN=1 cargo test --test dashboards");
    }
}
