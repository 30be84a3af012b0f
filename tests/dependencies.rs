//! What the program is made of comes from the registry, under licences that let it be given away. `deny.toml` lists them,
//! for `make audit`, which also looks for known faults.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let text = std::fs::read_to_string("deny.toml").unwrap();
    let (_, rest) = text.split_once("allow = [").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression (SPDX) is met by licences that are `allowed`: one of those that `OR` joins (or, in old
/// ones, a slash), all of those that `AND` joins.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    let plain = expression.replace(['(', ')'], " ");
    // no expression here needs more than that: parentheses only where all must be met anyway
    plain
        .split(" AND ")
        .all(|part| part.split(" OR ").any(|licence| allowed.iter().any(|known| known == licence.trim())))
}

/// The packages that are built for this platform.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().clone();
    assert!(packages.len() > 100);
    packages
}

#[test]
fn no_crate_comes_in_two_versions_but_those_that_are_listed() {
    let text = std::fs::read_to_string("deny.toml").unwrap();
    let listed: BTreeSet<String> =
        text.split("crate = \"").skip(1).map(|rest| rest.split('"').next().unwrap().into()).collect();
    let mut versions: BTreeMap<String, Vec<Vec<u64>>> = BTreeMap::new();
    for package in packages() {
        let version = package["version"].as_str().unwrap();
        let numbers = version.split(['.', '-', '+']).take(3).map(|number| number.parse().unwrap()).collect();
        versions.entry(package["name"].as_str().unwrap().to_owned()).or_default().push(numbers);
    }
    let mut twice = BTreeSet::new();
    for (name, versions) in &mut versions {
        versions.sort_unstable();
        for older in &versions[..versions.len() - 1] {
            // what may change together, as cargo sees it
            let version = if older[0] > 0 { older[0].to_string() } else { format!("0.{}", older[1]) };
            twice.insert(format!("{name}@{version}"));
        }
    }
    assert_eq!(twice, listed, "the list in deny.toml");
}

#[test]
fn dependencies_come_from_the_registry_under_licences_that_are_allowed() {
    let allowed = allowed();
    assert!(allowed.len() > 5 && is_met("(MIT OR X) AND Unicode-3.0", &allowed) && !is_met("GPL-3.0", &allowed));
    assert!(!is_met("MIT AND GPL-3.0", &allowed) && is_met("GPL-2.0/MIT", &allowed));
    for package in packages().iter().filter(|package| package["name"] != "tollgate") {
        let name = package["name"].as_str().unwrap();
        assert_eq!(package["source"].as_str(), Some(REGISTRY), "{name}");
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_met(licence, &allowed), "{name}: {licence}");
    }
}
