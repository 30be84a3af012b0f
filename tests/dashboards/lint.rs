//! Own rules for dashboards, which find faults that neither Prometheus nor Grafana's types find.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::expressions::wrong_names;
use crate::panels::{self, Dashboard, expressions};

const UNITS: &[&str] = &["none", "short", "percentunit", "s", "bytes", "reqps", "ops", "suffix: tokens/s"];
const KINDS: &[&str] = &["timeseries", "stat", "table", "heatmap", "state-timeline"];
/// The valid words of settings that Grafana does not check when it reads a file.
const WORDS: &[(&str, &[&str])] = &[
    ("drawStyle", &["line", "bars", "points"]),
    ("showPoints", &["auto", "never", "always"]),
    ("mode", &["none", "normal", "percent", "absolute", "fixed", "scheme", "single", "multi"]),
    ("displayMode", &["list", "table", "hidden"]),
    ("placement", &["bottom", "right"]),
    ("sort", &["none", "asc", "desc"]),
    ("colorMode", &["none", "value", "background"]),
    ("graphMode", &["none", "area"]),
    ("textMode", &["auto", "value", "name"]),
    ("format", &["time_series", "table", "heatmap"]),
    ("repeatDirection", &["h", "v"]),
    ("color", &["red", "yellow", "green", "blue", "text"]),
    ("fixedColor", &["red", "yellow", "green", "blue", "text"]),
];
/// The valid values of labels in queries.
const VALUES: &[(&str, &[&str])] = &[
    (
        "outcome",
        &[
            "admitted", "delayed", "denied", "banned", "shadow_denied", "diverted", "marked", "bypassed",
            "error_admitted", "error_denied", "refunded", "debited",
        ],
    ),
    ("source", &["local", "lease", "store", "denial_cache", "fallback", "owner"]),
    ("state", &["closed", "open", "half_open"]),
    (
        "result",
        &[
            "ok", "error", "refused", "invalid", "timeout", "success", "failure", "cut", "unreachable", "unknown",
            "delivered", "sent",
        ],
    ),
    ("live", &["admitted", "delayed", "denied"]),
    ("candidate", &["admitted", "delayed", "denied"]),
];

/// All faults of a dashboard.
fn faults(dashboard: &Dashboard) -> Vec<String> {
    let mut faults = Vec::new();
    let json = &dashboard.json;
    let all: Vec<&Value> = json["panels"].as_array().unwrap().iter().collect();
    for panel in dashboard.panels() {
        faults.extend(of_panel(panel).into_iter().map(|fault| format!("{}: {fault}", panel["title"])));
    }
    let ids: BTreeSet<u64> = all.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    if ids.len() != all.len() {
        faults.push("identifiers of panels are not unique".to_owned());
    }
    for (number, one) in all.iter().enumerate() {
        for other in &all[number + 1..] {
            if overlap(&one["gridPos"], &other["gridPos"]) {
                faults.push(format!("{} lies on {}", one["title"], other["title"]));
            }
        }
    }
    faults.extend(of_words(json));
    faults.extend(of_variables(json));
    for annotation in json["annotations"]["list"].as_array().unwrap() {
        faults.extend(of_source(annotation));
        faults.extend(expressions(annotation).flat_map(wrong_names));
    }
    faults
}

fn of_panel(panel: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let kind = panel["type"].as_str().unwrap_or_default();
    if !KINDS.contains(&kind) {
        faults.push(format!("unknown kind {kind}"));
    }
    let unit = &panel["fieldConfig"]["defaults"]["unit"];
    let columns = panel["fieldConfig"]["overrides"].as_array().into_iter().flatten();
    let of_columns = columns.flat_map(|over| over["properties"].as_array().into_iter().flatten());
    let of_columns = of_columns.filter(|property| property["id"] == "unit").map(|property| &property["value"]);
    for unit in of_columns.chain([unit]) {
        if !unit.as_str().is_some_and(|unit| UNITS.contains(&unit)) {
            faults.push(format!("unknown unit {unit}"));
        }
    }
    if !panel["description"].as_str().is_some_and(|tells| tells.ends_with('.')) {
        faults.push("no description".to_owned());
    }
    faults.extend(of_source(panel));
    let targets = panel["targets"].as_array().unwrap();
    let refs: BTreeSet<&str> = targets.iter().filter_map(|target| target["refId"].as_str()).collect();
    if targets.is_empty() || refs.len() != targets.len() {
        faults.push("no queries, or two of one name".to_owned());
    }
    for target in targets {
        faults.extend(of_source(target));
        let expression = target["expr"].as_str().unwrap_or_default();
        faults.extend(of_expression(expression, target["instant"] == true));
    }
    faults
}

fn of_expression(expression: &str, at_once: bool) -> Vec<String> {
    let mut faults = wrong_names(expression);
    let windows = expression.split('[').skip(1).filter_map(|rest| rest.split(']').next());
    // a query for a single time has no step that its window could follow
    faults.extend(windows.filter(|window| !at_once && *window != "$__rate_interval").map(str::to_owned));
    if !expression.contains("job=~\"$job\"") || !expression.contains("instance=~\"$instance\"") {
        faults.push(format!("asks beyond what is chosen: {expression}"));
    }
    // without traffic a rate is 0, and a quotient by it no number
    if expression.split(" / ").skip(1).any(|divisor| divisor.contains("rate(") && !divisor.contains(" > 0)")) {
        faults.push(format!("divides by zero without traffic: {expression}"));
    }
    for (label, values) in VALUES {
        for (at, _) in
            expression.match_indices(&format!("{label}=")).chain(expression.match_indices(&format!("{label}!=")))
        {
            let (before, after) = expression.split_at(at);
            let chosen = after.split('"').nth(1).unwrap_or_default();
            let whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let unknown = chosen.split('|').filter(|value| whole && !values.contains(value) && !value.starts_with('$'));
            faults.extend(unknown.map(|value| format!("{label} is never {value}")));
        }
    }
    faults
}

fn of_source(asked: &Value) -> Option<String> {
    let variable = json!({ "type": "prometheus", "uid": "${datasource}" });
    (asked["datasource"] != variable).then(|| format!("its source is not the variable: {}", asked["datasource"]))
}

/// All unknown words, wherever a setting accepts only certain words.
fn of_words(json: &Value) -> Vec<String> {
    match json {
        Value::Object(members) => {
            let here = members.iter().filter_map(|(key, value)| {
                let known = WORDS.iter().find(|(name, _)| name == key).map(|(_, known)| *known)?;
                let word = value.as_str()?;
                (!known.contains(&word)).then(|| format!("unknown {key} {word}"))
            });
            here.chain(members.values().flat_map(of_words)).collect()
        }
        Value::Array(members) => members.iter().flat_map(of_words).collect(),
        _ => Vec::new(),
    }
}

/// Variables that are offered and not used, or used and not offered.
fn of_variables(json: &Value) -> Vec<String> {
    let offered: Vec<&Value> = json["templating"]["list"].as_array().unwrap().iter().collect();
    let mut text = json.clone();
    text["templating"] = Value::Null;
    let text = text.to_string();
    let names: Vec<&str> = offered.iter().filter_map(|variable| variable["name"].as_str()).collect();
    let mut faults: Vec<String> =
        offered.iter().filter(|one| one["type"] == "query").filter_map(|one| of_source(one)).collect();
    let used: BTreeSet<&str> = text
        .split('$')
        .skip(1)
        .map(|after| {
            after.trim_start_matches('{').split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap()
        })
        .filter(|name| !name.starts_with("__"))
        .collect();
    faults.extend(names.iter().filter(|name| !used.contains(*name)).map(|name| format!("nothing uses ${name}")));
    faults.extend(used.iter().filter(|name| !names.contains(name)).map(|name| format!("nobody offers ${name}")));
    faults
}

fn overlap(one: &Value, other: &Value) -> bool {
    let number = |place: &Value, key: &str| place[key].as_u64().unwrap();
    let apart = |from: &str, size: &str| {
        number(one, from) + number(one, size) <= number(other, from)
            || number(other, from) + number(other, size) <= number(one, from)
    };
    assert!(number(one, "x") + number(one, "w") <= 24, "{one}");
    !apart("x", "w") && !apart("y", "h")
}

#[test]
fn dashboards_keep_our_rules() {
    let all = panels::all();
    assert_eq!(all.len(), 3);
    let mut uids = BTreeSet::new();
    for dashboard in &all {
        assert_eq!(faults(dashboard), [""; 0], "{}", dashboard.file);
        assert!(uids.insert(dashboard.json["uid"].to_string()), "{}", dashboard.file);
        assert_eq!(dashboard.json["templating"]["list"][0]["type"], "datasource", "{}", dashboard.file);
        assert_eq!(dashboard.json["annotations"]["list"][0]["name"], "Reload", "{}", dashboard.file);
    }
}

#[test]
fn the_dashboards_are_what_their_source_makes() {
    let folder = crate::folder("made");
    let (made, said) = crate::run("python3", &["dashboards/make.py", &folder.display().to_string()]);
    assert!(made, "{said}");
    for dashboard in panels::all() {
        let text = crate::read(folder.join(&dashboard.file));
        let is_same = text == crate::read(format!("dashboards/{}", dashboard.file));
        assert!(is_same, "{}: run python3 dashboards/make.py", dashboard.file);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The faults of a dashboard after `change` of the panel with this title.
fn changed(title: &str, change: impl Fn(&mut Value)) -> Vec<String> {
    let mut dashboard = panels::all().remove(0);
    assert_eq!(dashboard.file, "overview.json");
    let panels = dashboard.json["panels"].as_array_mut().unwrap();
    change(panels.iter_mut().find(|panel| panel["title"] == title).unwrap());
    faults(&dashboard)
}

#[test]
fn panels_that_break_a_rule_are_found() {
    const TITLE: &str = "Requests by route";
    let finds = |what: &str, faults: Vec<String>| {
        assert!(faults.iter().any(|fault| fault.contains(what)), "{what}: {faults:?}");
    };
    let place = |panel: &mut Value, key: &str, value: Value| panel[key] = value;
    finds("unknown unit", changed(TITLE, |panel| panel["fieldConfig"]["defaults"]["unit"] = "reqqps".into()));
    finds(
        "unknown drawStyle",
        changed(TITLE, |panel| {
            panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "lines".into();
        }),
    );
    finds("no description", changed(TITLE, |panel| place(panel, "description", "".into())));
    finds("its source", changed(TITLE, |panel| panel["targets"][0]["datasource"]["uid"] = "prometheus".into()));
    finds("lies on", changed(TITLE, |panel| panel["gridPos"]["w"] = 9.into()));
    finds("not unique", changed(TITLE, |panel| place(panel, "id", 1.into())));
    let asks = |expression: &str| {
        let expression = expression.replace('#', "job=~\"$job\",instance=~\"$instance\"");
        changed(TITLE, |panel| panel["targets"][0]["expr"] = expression.clone().into())
    };
    finds("tollgate_nothing", asks("tollgate_nothing{#}"));
    finds("1m", asks("rate(tollgate_http_requests_total{#}[1m])"));
    let requests = "rate(tollgate_http_requests_total{#}[$__rate_interval])";
    finds("divides by zero", asks(&format!("sum({requests}) / sum({requests})")));
    finds("outcome is never refused", asks("tollgate_limit_requests_total{#,outcome=~\"denied|refused\"}"));
    finds("beyond what is chosen", asks("tollgate_http_requests_total"));
    finds("nobody offers $route", asks("tollgate_http_requests_total{#,route=~\"$route\"}"));
}
