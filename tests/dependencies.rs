//! The program's dependencies come from the registry, except the stand-in in `patches`, under licences that allow
//! distribution. `deny.toml` lists the licences for `make audit`, which also looks for known vulnerabilities.

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

/// Whether the `allowed` licences satisfy a licence expression (SPDX): one of those that `OR` joins (or, in old
/// expressions, a slash), and all of those that `AND` joins.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    let plain = expression.replace(['(', ')'], " ");
    // enough for all expressions here: their parentheses never change the result
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
            // the part of the version that identifies compatible releases for cargo
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
    // tollgate itself, and the stand-in in `patches`
    let is_own = |package: &&Value| package["name"] == "tollgate" || package["name"] == "tokio-test";
    for package in packages().iter().filter(|package| !is_own(package)) {
        let name = package["name"].as_str().unwrap();
        assert_eq!(package["source"].as_str(), Some(REGISTRY), "{name}");
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_met(licence, &allowed), "{name}: {licence}");
    }
}

/// The tables of ICU, which idna takes unless Cargo.lock says otherwise, are 20 crates for one hint.
#[test]
fn host_names_are_mapped_without_the_tables_of_icu() {
    let names: Vec<String> = packages().iter().map(|package| package["name"].as_str().unwrap().to_owned()).collect();
    assert!(names.iter().any(|name| name == "idna_mapping") && !names.iter().any(|name| name.starts_with("icu_")));
}

/// With `test-util` tokio takes a lock whenever it reads the time.
#[test]
fn the_program_is_built_without_the_test_features_of_tokio() {
    let tree = |more: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--invert", "tokio", "--edges"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(tree(&["features"]).contains("tokio feature \"test-util\""), "the tests use it");
    assert!(!tree(&["features,no-dev"]).contains("tokio feature \"test-util\""));
}
