//! The files beside the code are correct: samples pass `check`, and the commands of documents print the documented output.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use tollgate::algorithm::{self, Algorithm, AlgorithmName, Core};

mod commands;

use commands::{folder_with_the_sample, printed};

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    assert!(!found.is_empty(), "nothing in {folder}");
    found
}

#[test]
fn every_sample_configuration_passes_the_check() {
    for file in files("config", "yaml")
        .into_iter()
        .chain(files("config/cookbook", "yaml"))
        .chain([PathBuf::from("config/proxies/tollgate.yaml")])
    {
        let checked = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&file).output().unwrap();
        let says = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{says}");
        // the gateways of docker-compose.yml are in a network of their own, and a gateway writes the snapshot
        let known = ["admin.address: lets other machines in", "snapshot_file: is no snapshot of customers yet"];
        let is_known = |line: &&str| known.iter().any(|known| line.contains(known));
        let warnings: Vec<&str> = says.lines().filter(|line| line.contains(": warning: ") && !is_known(line)).collect();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn the_readme_shows_the_sample_configuration_as_it_is() {
    let readme = fs::read_to_string("README.md").unwrap();
    assert!(readme.contains(&fs::read_to_string("config/tollgate.yaml").unwrap()));
}

/// The fenced blocks of this kind in a page.
fn blocks(page: &Path, kind: &str) -> Vec<String> {
    let (text, begins) = (fs::read_to_string(page).unwrap(), format!("```{kind}\n"));
    text.split(&begins).skip(1).map(|block| block.split_once("\n```").unwrap().0.to_owned()).collect()
}

/// The anchors of a page's headings.
fn anchors(page: &str) -> Vec<String> {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let slug = |heading: &str| heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-");
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.filter_map(|line| line.split_once(' ')).map(|(_, heading)| slug(heading.trim())).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from);
    for page in files("docs", "md").into_iter().chain(others) {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|after| Some(after.split_once(')')?.0)) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() && target.extension().is_some_and(|end| end == "md") {
                let known = anchors(&fs::read_to_string(&target).unwrap());
                assert!(known.iter().any(|known| known == anchor), "{}: {link} of {known:?}", page.display());
            }
        }
    }
}

#[test]
fn every_command_of_the_documentation_exists() {
    let help = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let known: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(known.contains(&"simulate"), "{known:?}");
    for page in files("docs", "md").into_iter().chain([PathBuf::from("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        // Commands are in code: after a backtick, or after a prompt.
        for start in ["`tollgate ", "$ tollgate "] {
            for after in text.split(start).skip(1) {
                let word: String = after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
                assert!(word.starts_with('-') || known.contains(&word.as_str()), "{}: `{word}`", page.display());
            }
        }
    }
}

macro_rules! define_state_bytes {
    ($($Variant:ident $module:ident,)*) => {
        /// The bytes of an algorithm's state in memory, without the heap memory of a log.
        fn state_bytes(name: &str) -> usize {
            match name {
                $(<algorithm::$module::$Variant as Algorithm>::NAME => {
                    size_of::<<<algorithm::$module::$Variant as Algorithm>::Core as Core>::State>()
                })*
                _ => panic!("no algorithm `{name}`"),
            }
        }
    };
}
tollgate::for_each_algorithm!(define_state_bytes);

#[test]
fn the_table_of_memory_has_the_size_of_every_state() {
    let page = fs::read_to_string("docs/algorithms.md").unwrap();
    let (_, table) = page.split_once("\n## Memory\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut listed = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let bytes: usize = cells[2].split(' ').next().unwrap().parse().unwrap();
        for name in cells[1].split(", ").map(|name| name.trim_matches('`')) {
            assert_eq!(state_bytes(name), bytes, "{name}");
            listed.push(name.to_owned());
        }
    }
    listed.sort();
    let mut known: Vec<String> = AlgorithmName::ALL.iter().map(|name| name.as_str().to_owned()).collect();
    known.sort();
    assert_eq!(listed, known);
}

#[test]
fn the_recipes_name_every_sample_of_the_cookbook() {
    let recipes = fs::read_to_string("docs/recipes.md").unwrap();
    for file in files("config/cookbook", "yaml") {
        assert!(recipes.contains(&format!("(../{})", file.display())), "{}", file.display());
    }
}

#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string("docs/SUMMARY.md").unwrap();
    for page in files("docs", "md") {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name}");
    }
}

/// The parts of `value` that violate the JSON Schema of configurations, checked by its keywords for shapes.
fn refused(schema: &Value, value: &Value, root: &Value) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        return refused(&root["$defs"][name.rsplit('/').next().unwrap()], value, root);
    }
    let any = |of: &Value| of.as_array().unwrap().iter().map(|one| refused(one, value, root)).collect::<Vec<_>>();
    if schema["anyOf"].is_array() && any(&schema["anyOf"]).iter().all(Option::is_some) {
        return Some(format!("nothing takes {value}: {:?}", any(&schema["anyOf"])));
    }
    if schema["oneOf"].is_array() && any(&schema["oneOf"]).iter().filter(|refused| refused.is_none()).count() != 1 {
        return Some(format!("not one thing takes {value}: {:?}", any(&schema["oneOf"])));
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        _ => value.is_boolean(),
    };
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    let outside = |bound: &str, is_outside: fn(u64, u64) -> bool| {
        schema[bound].as_u64().zip(value.as_u64()).is_some_and(|(bound, value)| is_outside(value, bound))
    };
    let is_short = |length: Option<usize>, bound: &str| {
        schema[bound].as_u64().zip(length).is_some_and(|(least, length)| u64::try_from(length).unwrap() < least)
    };
    let is_other = |pattern: &str, text: Option<&str>| {
        schema[pattern].as_str().zip(text).is_some_and(|(pattern, text)| !Regex::new(pattern).unwrap().is_match(text))
    };
    if !(kinds.is_empty() || kinds.into_iter().any(is))
        || schema["enum"].as_array().is_some_and(|words| !words.contains(value))
        || schema.get("const").is_some_and(|only| only != value)
        || outside("minimum", |value, least| value < least)
        || outside("maximum", |value, most| value > most)
        || is_short(value.as_array().map(Vec::len), "minItems")
        || (schema["uniqueItems"] == true && value.as_array().is_some_and(|items| has_twice(items)))
        || is_short(value.as_object().map(serde_json::Map::len), "minProperties")
        || is_other("pattern", value.as_str())
    {
        return Some(format!("{value} is not {schema}"));
    }
    if let Some(object) = value.as_object().filter(|_| schema["type"] == "object") {
        let missing = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|name| !object.contains_key(name.as_str().unwrap()));
        if let Some(name) = missing {
            return Some(format!("{name} is missing"));
        }
        return object.iter().find_map(|(name, value)| match schema["properties"].get(name) {
            Some(schema) => refused(schema, value, root),
            None if schema["additionalProperties"] == false => Some(format!("{name} is unknown")),
            None => refused(&schema["additionalProperties"], value, root),
        });
    }
    value
        .as_array()
        .filter(|_| schema["items"].is_object())?
        .iter()
        .find_map(|item| refused(&schema["items"], item, root))
}

fn has_twice(items: &[Value]) -> bool {
    items.iter().enumerate().any(|(position, item)| items[..position].contains(item))
}

#[test]
fn the_schema_takes_every_good_configuration_and_no_unknown_name() {
    let schema: Value = serde_json::from_str(&printed("tollgate schema", Path::new("."))).unwrap();
    let mut count = 0;
    let folders = ["config", "config/cookbook", "tests/fixtures/good", "tests/fixtures/good/shape"];
    // its limits have no keys: `simulate` needs none, and a gateway does
    let is_keyless = |file: &PathBuf| file.ends_with("limits_only.yaml");
    for file in folders.iter().flat_map(|folder| files(folder, "yaml")).filter(|file| !is_keyless(file)) {
        let mut yaml: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        yaml.apply_merge().unwrap();
        let mut value = serde_json::to_value(yaml).unwrap();
        count += 1;
        assert_eq!(refused(&schema, &value, &schema), None, "{}", file.display());
        value["limits"]["extra"] =
            serde_json::json!({ "algorithm": "gcra", "rate": "1/s", "burst": 1, "key": "all", "window": "1s" });
        assert!(refused(&schema, &value, &schema).is_some(), "{}", file.display());
        value["limits"]["extra"] =
            serde_json::json!({ "algorithm": "gcra", "rate": "1/s", "burst": 1, "key": ["customer", "customer"] });
        assert!(refused(&schema, &value, &schema).is_some(), "{}", file.display());
    }
    assert!(count > 10);
}

#[test]
fn the_schema_refuses_numbers_that_the_reader_refuses() {
    let schema: Value = serde_json::from_str(&printed("tollgate schema", Path::new("."))).unwrap();
    let sample = fs::read_to_string("config/tollgate.yaml").unwrap();
    let changes = [
        ("rate: 1/s", "rate: .5/s"),
        ("rate: 1/s", "rate: 5./s"),
        ("burst: 5", "burst: 0"),
        ("connect: 1s", "connect: .5s"),
        ("access_log: off", "request_head: { max_target: 1.2.3KiB }"),
    ];
    for (from, to) in changes {
        let value: Value = serde_yaml::from_str(&sample.replacen(from, to, 1)).unwrap();
        assert!(sample.contains(from) && refused(&schema, &value, &schema).is_some(), "{to}");
    }
}

/// A snippet completed to a whole configuration; it may refer to upstreams, plans and domains that other files define.
fn framed(block: &str, snippet: &serde_json::Map<String, Value>) -> String {
    let mut framed = format!("{block}\n");
    let frame = [
        ("listeners", "[{ address: 127.0.0.1:8080 }]"),
        ("upstreams", "{ orders: &node { nodes: ['127.0.0.1:9000'] }, origin: *node, api: *node }"),
        ("limits", "{ tokens-per-month: { algorithm: fixed_window, limit: 9, window: 1d, key: customer } }"),
        ("customers", "{ identify: [{ header: x-api-key }], directory: { http: { url: 'http://127.0.0.1:9001/' } } }"),
    ];
    for (name, value) in frame.iter().filter(|(name, _)| !snippet.contains_key(*name)) {
        framed += &format!("{name}: {value}\n");
    }
    if block.contains("serves: rate_limit_service") {
        framed += "domains: { edge: { descriptors: [{ key: tenant, limits: [] }] } }\n";
    }
    if !snippet.contains_key("routes") {
        let upstream = snippet.get("upstreams").and_then(Value::as_object).and_then(|all| all.keys().next());
        framed += &format!("routes: [{{ name: all, upstream: {} }}]\n", upstream.map_or("orders", String::as_str));
    }
    framed
}

/// Snippets for other programs have none of tollgate's names at their top level. Missing certificates and secrets that a
/// snippet names are no error of the page.
#[test]
fn every_snippet_of_the_documentation_is_what_the_schema_and_the_reader_take() {
    let schema: Value = serde_json::from_str(&printed("tollgate schema", Path::new("."))).unwrap();
    let needed = serde_json::json!({
        "listeners": [{ "address": "127.0.0.1:8080" }],
        "upstreams": { "orders": { "nodes": ["127.0.0.1:9000"] } },
        "routes": [{ "name": "all", "upstream": "orders" }],
    });
    let folder = folder_with_the_sample("snippets");
    fs::create_dir(folder.join("limits")).unwrap();
    let included = "limits: { per-address: { algorithm: gcra, rate: 1/s, burst: 5, key: client_address } }";
    fs::write(folder.join("limits/addresses.yaml"), included).unwrap();
    let (mut held, mut wrong) = (0, Vec::new());
    for page in files("docs", "md").into_iter().chain([PathBuf::from("README.md")]) {
        for block in blocks(&page, "yaml") {
            let yaml: serde_yaml::Value = serde_yaml::from_str(&block).unwrap();
            let mut whole = needed.as_object().unwrap().clone();
            let Value::Object(snippet) = serde_json::to_value(yaml).unwrap() else { panic!("{block}") };
            if snippet.keys().any(|name| schema["properties"].get(name).is_some()) {
                held += 1;
                let framed = framed(&block, &snippet);
                whole.extend(snippet);
                assert_eq!(refused(&schema, &Value::Object(whole), &schema), None, "{}: {block}", page.display());
                fs::write(folder.join("snippet.yaml"), &framed).unwrap();
                let said = printed("OWN_ADDRESS=10.0.0.1 tollgate check snippet.yaml", &folder);
                // An error begins with its line number; a warning says that it is one.
                let is_wrong = |line: &str| {
                    line.strip_prefix("snippet.yaml:")
                        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                        && !["names a file that cannot be read", ": warning: "].iter().any(|known| line.contains(known))
                };
                assert!(said.contains("snippet.yaml: "), "{said}");
                if said.lines().any(is_wrong) {
                    wrong.push(format!("{}: {framed}\n{said}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(held > 15, "{held} snippets");
}

/// `UPDATE_GOLDEN=1` writes the page again.
#[test]
fn the_configuration_reference_is_what_the_reader_takes() {
    let (page, reference) = ("docs/configuration.md", printed("tollgate schema --markdown", Path::new(".")));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(page, &reference).unwrap();
    }
    assert_eq!(fs::read_to_string(page).unwrap(), reference);
}
