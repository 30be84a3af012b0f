//! The committed dashboards.

use std::path::Path;

use serde_json::Value;

/// One dashboard file.
pub struct Dashboard {
    pub file: String,
    pub json: Value,
}

/// The values of a dashboard's variables when a test asks a query without Grafana.
pub const CHOICES: [(&str, &str); 7] = [
    ("$__rate_interval", "20s"),
    ("$job", ".*"),
    ("$instance", ".*"),
    ("$route", ".*"),
    ("$limit", ".*"),
    ("$plan", ".*"),
    ("${datasource}", "prometheus"),
];

/// All dashboards.
pub fn all() -> Vec<Dashboard> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let mut all: Vec<Dashboard> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| Dashboard {
            file: path.file_name().unwrap().to_string_lossy().into_owned(),
            json: serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap(),
        })
        .collect();
    all.sort_by(|a, b| a.file.cmp(&b.file));
    all
}

impl Dashboard {
    /// The panels of the dashboard, without the titles of rows.
    pub fn panels(&self) -> impl Iterator<Item = &Value> {
        self.json["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
    }
}

/// The query of a panel or of an annotation.
pub fn expressions(of: &Value) -> impl Iterator<Item = &str> {
    let targets = of["targets"].as_array().into_iter().flatten();
    targets.chain([of]).filter_map(|asked| asked["expr"].as_str())
}

/// A query with the values of all variables.
pub fn filled(expression: &str) -> String {
    CHOICES.iter().fold(expression.to_owned(), |text, (choice, value)| text.replace(choice, value))
}
