//! The files for monitoring: dashboards, rules, the runbook, the stack of containers. The tests compare them with the
//! catalogue of metrics, with each other, and with Prometheus's and Grafana's own checks. They cannot show how Grafana
//! draws a dashboard.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]
#![allow(missing_docs, reason = "what helpers do is said where it is not plain")]
#![allow(unreachable_pub, reason = "nothing reaches into a program of tests")]

mod compose;
mod expressions;
mod lint;
mod names;
mod panels;
mod rules;
mod schema;

use std::path::{Path, PathBuf};
use std::process::Command;

/// All files of a folder with this extension, in order.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    assert!(!found.is_empty(), "nothing in {folder}");
    found.sort();
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: impl AsRef<Path>) -> serde_json::Value {
    let path = path.as_ref();
    serde_yaml::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboards-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Whether a program succeeds, and its output.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; `make needs` installs it"));
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// The values of `key` in all members of a list.
fn each<'a>(list: &'a serde_json::Value, key: &'a str) -> impl Iterator<Item = &'a serde_json::Value> {
    list.as_array().into_iter().flatten().map(move |member| &member[key])
}
