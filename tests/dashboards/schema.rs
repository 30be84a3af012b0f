//! Grafana's own types read the dashboards without a loss.

use serde_json::Value;

use crate::panels;

/// The schema that `scripts/install-needs.sh` fetches.
const WHEEL: &str = "target/python/grafana_foundation_sdk-0.0.21-py3-none-any.whl";

fn lost(files: &[String]) -> String {
    assert!(std::fs::exists(WHEEL).unwrap(), "{WHEEL} is not there; `make needs` fetches it");
    let mut arguments = vec!["tests/dashboards/schema.py", WHEEL];
    arguments.extend(files.iter().map(String::as_str));
    let (content, said) = crate::run("python3", &arguments);
    assert!(content, "{said}");
    said
}

#[test]
fn grafana_knows_everything_in_the_dashboards() {
    let files: Vec<String> = panels::all().iter().map(|dashboard| format!("dashboards/{}", dashboard.file)).collect();
    assert_eq!(lost(&files), "");
}

#[test]
fn fields_unknown_to_grafana_are_found() {
    let mut dashboard = panels::all().remove(0).json;
    let panels = dashboard["panels"].as_array_mut().unwrap();
    let panel = panels.iter_mut().find(|panel| panel["type"] == "timeseries").unwrap();
    panel["targets"][0]["legendFromat"] = Value::from("x");
    panel["fieldConfig"]["defaults"]["unitt"] = Value::from("s");
    let folder = crate::folder("schema");
    let file = folder.join("bad.json");
    std::fs::write(&file, dashboard.to_string()).unwrap();
    let lost = lost(&[file.display().to_string()]);
    assert_eq!(lost.lines().count(), 2, "{lost}");
    assert!(lost.contains("legendFromat") && lost.contains("unitt"), "{lost}");
    std::fs::remove_dir_all(folder).unwrap();
}
