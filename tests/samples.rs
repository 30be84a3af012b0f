//! What is shipped beside the code is true: samples are right, documents say what is.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use tollgate::algorithm::{self, Algorithm, AlgorithmName, Core};

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
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[test]
fn the_readme_shows_the_sample_configuration_as_it_is() {
    let readme = fs::read_to_string("README.md").unwrap();
    assert!(readme.contains(&fs::read_to_string("config/tollgate.yaml").unwrap()));
}

/// What stands in a page between lines of this kind and their ends.
fn blocks(page: &Path, kind: &str) -> Vec<String> {
    let (text, begins) = (fs::read_to_string(page).unwrap(), format!("```{kind}\n"));
    text.split(&begins).skip(1).map(|block| block.split_once("\n```").unwrap().0.to_owned()).collect()
}

/// The commands of a page's console blocks, each with what it shows them to print.
fn sessions(page: &str) -> Vec<(String, String)> {
    let mut sessions = Vec::<(String, String)>::new();
    for block in blocks(Path::new(page), "console") {
        for line in block.lines() {
            match (line.strip_prefix("$ "), sessions.last_mut()) {
                (Some(command), _) => sessions.push((command.to_owned(), String::new())),
                (None, Some((_, printed))) => *printed += &format!("{line}\n"),
                (None, None) => panic!("{page}: {line}"),
            }
        }
    }
    sessions
}

#[test]
fn the_readme_and_the_guide_show_what_their_commands_print() {
    let mut run = Vec::new();
    for page in ["README.md", "docs/guide.md"] {
        let folder = folder_with_the_sample(&page.replace(['/', '.'], "-"));
        for (command, shown) in sessions(page) {
            match command.split_whitespace().collect::<Vec<_>>()[..] {
                ["cat", file] => fs::write(folder.join(file), shown).unwrap(),
                ["sed", ..] | ["tollgate", "check" | "explain" | "replay", ..] => {
                    assert_eq!(printed(&command, &folder), shown, "{command}");
                    run.extend(command.split_whitespace().nth(1).map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    assert!(["check", "explain", "replay"].iter().all(|name| run.iter().any(|ran| ran == name)), "{run:?}");
}

/// What leads to the headings of a page.
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

/// What a command of a page prints in `folder`.
fn printed(command: &str, folder: &Path) -> String {
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let run = Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", path).output().unwrap();
    String::from_utf8([run.stdout, run.stderr].concat()).unwrap()
}

/// Where the sample configuration is in `config`, as pages have it.
fn folder_with_the_sample(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(folder.join("config")).unwrap();
    for file in ["config/tollgate.yaml", "config/customers.csv"] {
        fs::copy(file, folder.join(file)).unwrap();
    }
    folder
}

#[test]
fn the_page_about_changes_shows_what_its_commands_print() {
    const PAGE: &str = "docs/changes.md";
    let folder = folder_with_the_sample("changes");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut page = fs::read_to_string(PAGE).unwrap();
    for (command, shown) in sessions(PAGE) {
        let printed = printed(&command, &folder);
        assert!(update || printed == shown, "{command} prints:\n{printed}");
        page = page.replace(&format!("$ {command}\n{shown}"), &format!("$ {command}\n{printed}"));
    }
    if update {
        fs::write(PAGE, page).unwrap();
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
        // Commands stand in code: after a backtick, or after a prompt.
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
        /// The bytes of an algorithm's state in memory, apart from what a log holds elsewhere.
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

/// What the JSON Schema of configurations refuses of `value`, by its keywords for shapes.
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
    if !(kinds.is_empty() || kinds.into_iter().any(is))
        || schema["enum"].as_array().is_some_and(|words| !words.contains(value))
        || schema.get("const").is_some_and(|only| only != value)
        || outside("minimum", |value, least| value < least)
        || outside("maximum", |value, most| value > most)
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

#[test]
fn the_schema_takes_every_good_configuration_and_no_unknown_name() {
    let schema: Value = serde_json::from_str(&printed("tollgate schema", Path::new("."))).unwrap();
    let mut whole = 0;
    for file in ["config", "config/cookbook", "tests/fixtures/good"].iter().flat_map(|folder| files(folder, "yaml")) {
        let mut yaml: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        yaml.apply_merge().unwrap();
        let mut value = serde_json::to_value(yaml).unwrap();
        if value.get("routes").is_none() {
            continue;
        }
        whole += 1;
        assert_eq!(refused(&schema, &value, &schema), None, "{}", file.display());
        value["limits"]["extra"] =
            serde_json::json!({ "algorithm": "gcra", "rate": "1/s", "burst": 1, "key": "all", "window": "1s" });
        assert!(refused(&schema, &value, &schema).is_some(), "{}", file.display());
    }
    assert!(whole > 10);
}

/// Snippets that are of other programs have none of tollgate's names at their top.
#[test]
fn every_snippet_of_the_documentation_is_what_the_schema_takes() {
    let schema: Value = serde_json::from_str(&printed("tollgate schema", Path::new("."))).unwrap();
    let needed = serde_json::json!({
        "listeners": [{ "address": "127.0.0.1:8080" }],
        "upstreams": { "orders": { "nodes": ["127.0.0.1:9000"] } },
        "routes": [{ "name": "all", "upstream": "orders" }],
    });
    let mut held = 0;
    for page in files("docs", "md").into_iter().chain([PathBuf::from("README.md")]) {
        for block in blocks(&page, "yaml") {
            let yaml: serde_yaml::Value = serde_yaml::from_str(&block).unwrap();
            let mut whole = needed.as_object().unwrap().clone();
            let Value::Object(snippet) = serde_json::to_value(yaml).unwrap() else { panic!("{block}") };
            if snippet.keys().any(|name| schema["properties"].get(name).is_some()) {
                held += 1;
                whole.extend(snippet);
                assert_eq!(refused(&schema, &Value::Object(whole), &schema), None, "{}: {block}", page.display());
            }
        }
    }
    assert!(held > 15, "{held} snippets");
}

/// `UPDATE_GOLDEN=1` writes the page anew.
#[test]
fn the_configuration_reference_is_what_the_reader_takes() {
    let (page, reference) = ("docs/configuration.md", printed("tollgate schema --markdown", Path::new(".")));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(page, &reference).unwrap();
    }
    assert_eq!(fs::read_to_string(page).unwrap(), reference);
}
