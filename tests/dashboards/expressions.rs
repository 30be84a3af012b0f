//! The metrics and labels that a query names.

use tollgate::telemetry::names;

/// Metrics that are not tollgate's own.
const FOREIGN: &[(&str, &[&str])] =
    &[("up", &[]), ("process_cpu_seconds_total", &[]), ("process_resident_memory_bytes", &[])];

/// The labels of a metric; `None` if there is no such metric.
pub fn labels(metric: &str) -> Option<Vec<&'static str>> {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(metric);
    let own = names::ALL.iter().find(|name| name.name == base).map(|name| name.labels);
    let foreign = || FOREIGN.iter().find(|(name, _)| *name == base).map(|(_, labels)| *labels);
    let mut labels = own.or_else(foreign)?.to_vec();
    if metric.ends_with("_bucket") {
        labels.push("le");
    }
    Some(labels)
}

/// The metrics of an expression that do not exist, and the labels in it that none of its metrics has.
pub fn wrong_names(expression: &str) -> Vec<String> {
    let code = without_strings(expression);
    let metrics: Vec<&str> = metrics(&code).collect();
    let mut wrong = Vec::new();
    let mut known = vec!["job", "instance"];
    for metric in metrics {
        match labels(metric) {
            Some(labels) => known.extend(labels),
            None => wrong.push(metric.to_owned()),
        }
    }
    let groups = ["by", "without", "on", "ignoring", "group_left", "group_right"].into_iter().flat_map(|word| {
        let lists = code.match_indices(word).filter_map(|(at, _)| {
            let (before, after) = code.split_at(at);
            let alone = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let list = after.strip_prefix(word)?.trim_start().strip_prefix('(')?;
            list.split(')').next().filter(|_| alone)
        });
        lists.collect::<Vec<_>>()
    });
    let selectors = code.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let labels = groups.chain(selectors).flat_map(words).filter(|label| !known.contains(label));
    wrong.extend(labels.map(str::to_owned));
    wrong
}

/// A name that looks like one of our metrics; recorded series have names with a colon.
pub fn metrics(code: &str) -> impl Iterator<Item = &str> {
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("tollgate_"))
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The query without its quoted strings, which contain no metric names.
fn without_strings(expression: &str) -> String {
    expression.split('"').step_by(2).collect()
}

#[test]
fn names_that_do_not_exist_are_found() {
    assert_eq!(
        wrong_names("sum by (route) (rate(tollgate_http_requests_total{job=~\"a{b}\",code=\"200\"}[5m]))"),
        [""; 0]
    );
    assert_eq!(wrong_names("sum by (plan) (tollgate_http_requests_total)"), ["plan"]);
    assert_eq!(wrong_names("tollgate_limit_keys{limit=\"x\",le=\"1\"}"), ["le"]);
    assert_eq!(wrong_names("sum by (le) (tollgate_limit_wait_seconds_bucket)"), [""; 0]);
    assert_eq!(
        wrong_names("sum by (limit) (tollgate_limit_keys) / on (outcome) tollgate_nothing"),
        ["tollgate_nothing", "outcome"]
    );
}
