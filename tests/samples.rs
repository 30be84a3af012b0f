//! The files beside the code are correct: samples pass `check`, and the commands of documents print the documented output.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regex::Regex;
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

/// The fenced blocks of this kind in a page.
fn blocks(page: &Path, kind: &str) -> Vec<String> {
    let (text, begins) = (fs::read_to_string(page).unwrap(), format!("```{kind}\n"));
    text.split(&begins).skip(1).map(|block| block.split_once("\n```").unwrap().0.to_owned()).collect()
}

/// Commands of pages that no test runs: the page, the beginning of the command, and the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("docs/containers.md", "make image", "compiles the program in a container: takes Docker and minutes"),
    ("docs/containers.md", "docker run", "takes Docker; `make compose-test` runs the image"),
    ("docs/containers.md", "kubectl apply", "takes a Kubernetes cluster"),
    ("docs/containers.md", "helm install", "takes a Kubernetes cluster"),
    ("docs/import.md", "nginx -T", "prints the configuration of the machine's own nginx"),
    ("docs/getting-started.md", "tollgate run", "it runs until it is ended: `--test e2e first_try` runs it"),
];

/// The commands that prepare a page, and the admin ports of the gateways that must be ready for `curl`.
const BEFORE: &[(&str, &[&str], &[u16])] = &[
    ("README.md", &["tollgate demo --listen 127.0.0.1:8080 --admin 127.0.0.1:9090 &"], &[9090]),
    ("docs/getting-started.md", &["tollgate demo --listen 127.0.0.1:8080 --admin 127.0.0.1:9090 &"], &[9090]),
    ("docs/changes.md", &["tollgate run --config config/tollgate.yaml &"], &[9090]),
    (
        "docs/admin.md",
        &[
            "echo token-of-operators-0123456789 > admin.token",
            "cat > operated.yaml <<'END'
listeners: [{ address: 127.0.0.1:8080 }]
admin: { address: 127.0.0.1:9090, token_file: admin.token, replay_logs: [access.log.1] }
client_address: { trusted_proxies: [127.0.0.1] }
upstreams: { orders: { nodes: ['127.0.0.1:9000'] } }
customers:
  identify: [{ header: x-api-key }]
  directory: { file: config/customers.csv, writable: true }
plans: [free, pro, enterprise]
limits:
  per-customer: { algorithm: gcra, rate: 10/s, burst: 20, key: customer }
  mails: { algorithm: gcra, rate: 10/s, burst: 20, key: { descriptor: tenant } }
  logins:
    { algorithm: sliding_log, limit: 1, window: 1h, key: [client_address, { header: x-user }], ban: { after: 1 denials in 1m, for: 1h } }
domains: { jobs: { descriptors: [{ key: tenant, limits: [mails] }] } }
routes:
  - { name: orders, match: { path: /v1/orders }, upstream: orders, limits: [per-customer] }
  - { name: login, match: { path: /login }, upstream: orders, limits: [logins] }
END",
            "echo '192.0.2.1 - globex [21/Nov/2026:10:00:00 +0000] \"GET /v1/orders HTTP/1.1\" 200 57' > access.log.1",
            "tollgate run --config operated.yaml &",
            "for i in 1 2 3; do curl -s -H 'x-api-key: pro-key' -H 'x-forwarded-for: 192.0.2.1' -H 'x-user: bob' \
                http://127.0.0.1:8080/login; done",
        ],
        &[9090],
    ),
    (
        "docs/decisions.md",
        &["mkdir -p ratelimit/config; cat > ratelimit/config/edge.yaml <<'END'
domain: edge
descriptors:
  - key: tenant
    detailed_metric: true
    rate_limit: { unit: minute, requests_per_unit: 100 }
END"],
        &[],
    ),
    (
        "docs/import.md",
        &["cat > all.conf <<'END'
http {
    server {
        location / { proxy_pass http://127.0.0.1:3000; proxy_set_header Host $host; }
        location ~ ^/v[12]/ { proxy_pass http://127.0.0.1:3000; }
    }
}
END"],
        &[],
    ),
    (
        "docs/replay.md",
        &[
            "cp config/tollgate.yaml config/customers.csv .; cp tollgate.yaml new.yaml",
            "echo '192.0.2.1 - - [21/Nov/2026:10:00:00 +0000] \"GET /v1/orders HTTP/1.1\" 200 57' > access.log",
        ],
        &[],
    ),
    ("docs/shared.md", &[], &[9090, 9091, 9099]),
];

/// The ports in pages; each run of a page replaces them with free ports.
const PORTS: [u16; 8] = [8080, 8081, 8090, 9000, 9090, 9091, 9099, 6379];

/// The arguments that pages omit and that the test adds, so that it can replace the ports.
const DEFAULTS: &[(&str, &str)] = &[
    ("tollgate demo", " --upstream 127.0.0.1:9000"),
    ("tollgate keys", " --admin 127.0.0.1:9090"),
    ("tollgate top", " --admin 127.0.0.1:9090"),
];

/// The commands of a page, each with its documented output. Lines below a command that are indented by four spaces belong
/// to it.
fn sessions(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(page).unwrap();
    let mut sessions = Vec::<(String, String)>::new();
    // Every other part is inside a fence.
    for block in text.split("```").skip(1).step_by(2) {
        let Some((kind @ ("" | "console" | "sh" | "bash"), lines)) = block.split_once('\n') else { continue };
        let before = sessions.len();
        for line in lines.lines() {
            let is_command =
                |line: &str| kind.ends_with("sh") || ["curl ", "tollgate "].iter().any(|of| line.starts_with(of));
            let of_block = sessions.len() > before;
            match (line.strip_prefix("$ ").or(Some(line).filter(|line| is_command(line))), sessions.last_mut()) {
                (_, Some((command, printed))) if of_block && printed.is_empty() && line.starts_with("    ") => {
                    *command += &format!("\n{line}");
                }
                (Some(command), _) => sessions.push((command.to_owned(), String::new())),
                (None, Some((_, printed))) if of_block => *printed += &format!("{line}\n"),
                _ => assert_eq!(kind, "", "{page}: no command prints {line}"),
            }
        }
    }
    sessions
}

/// Processes that end with the test.
#[derive(Default)]
struct Background(Vec<Child>);

impl Drop for Background {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Ports on which nothing listens; their digits contain no port of a page.
fn free_ports() -> Vec<String> {
    let mut held = Vec::new();
    while held.len() < PORTS.len() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        if !PORTS.iter().any(|of_page| port.contains(&of_page.to_string())) {
            held.push((port, listener));
        }
    }
    held.into_iter().map(|(port, _)| port).collect()
}

/// Runs the commands of a page; returns each with its documented and its real output.
fn run(page: &str, attempt: usize) -> Vec<(String, String, String)> {
    let folder = folder_with_the_sample(&format!("{}-{attempt}", page.replace(['/', '.'], "-")));
    let free = free_ports();
    let with_free = |text: &str| {
        PORTS.iter().zip(&free).fold(text.to_owned(), |text, (port, free)| text.replace(&port.to_string(), free))
    };
    for entry in fs::read_dir(folder.join("config")).unwrap().map(|entry| entry.unwrap().path()) {
        fs::write(&entry, with_free(&fs::read_to_string(&entry).unwrap())).unwrap();
    }
    let (before, admins) =
        BEFORE.iter().find(|(of, ..)| *of == page).map_or((&[][..], &[][..]), |(_, before, admins)| (before, admins));
    let before = before.iter().map(|command| ((*command).to_owned(), String::new()));
    let (mut background, mut ran) = (Background::default(), Vec::new());
    for (command, shown) in before.chain(sessions(page)) {
        if NOT_RUN.iter().any(|(of, begins, _)| *of == page && command.starts_with(begins)) {
            continue;
        }
        if let Some(file) = command.strip_prefix("cat ").filter(|_| !shown.is_empty()) {
            fs::write(folder.join(file), shown).unwrap();
            continue;
        }
        // A comment behind a command is no part of it, and ends the line.
        let mut line = command.split("  # ").next().unwrap().trim_end().to_owned();
        let is_background = line.ends_with('&');
        line.truncate(line.trim_end_matches([' ', '&']).len());
        line.extend(DEFAULTS.iter().filter(|(of, _)| line.contains(of)).map(|(_, more)| *more).collect::<Vec<_>>());
        let line = with_free(&line);
        if is_background {
            let child = shell(&format!("exec {line}"), &folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            background.0.push(child.unwrap());
            continue;
        }
        let is_asked = ["curl ", "tollgate keys ", "tollgate top "].iter().any(|of| line.contains(of));
        for admin in admins.iter().filter(|_| is_asked) {
            let health = with_free(&format!("tollgate health --admin 127.0.0.1:{admin}"));
            for _ in 0..400 {
                if shell(&health, &folder).output().unwrap().status.success() {
                    break;
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
        // a command that does not end fails
        let run = shell("exec timeout 60 sh -c \"$LINE\"", &folder).env("LINE", &line).output().unwrap();
        let mut printed = String::from_utf8([run.stdout, run.stderr].concat()).unwrap();
        for (port, free) in PORTS.iter().zip(&free) {
            printed = printed.replace(&format!(":{free}"), &format!(":{port}"));
        }
        // If the page shows no output, the command only has to succeed.
        if shown.is_empty() && run.status.success() {
            printed.clear();
        } else if shown.is_empty() {
            printed += &format!("{}\n", run.status);
        }
        ran.push((command, shown, printed));
    }
    ran
}

/// The part of an output that is the same in every run: without dates and random keys, and JSON without whitespace.
fn lasting(text: &str) -> String {
    let text = Regex::new(r"(?m)\s+$").unwrap().replace_all(text, "");
    let text = Regex::new(r"(?m)^date: .*$").unwrap().replace_all(&text, "date: ...");
    let text = Regex::new("\"tg_[^\"]*\"").unwrap().replace_all(&text, "\"tg_...\"");
    let text = Regex::new("\"id\": \"[0-9a-f]{12}\"").unwrap().replace_all(&text, "\"id\": \"...\"");
    if text.starts_with('{') { text.split_whitespace().collect() } else { text.into_owned() }
}

/// Runs the commands of all pages. `UPDATE_GOLDEN=1` writes their output into the pages.
#[test]
fn the_pages_show_what_their_commands_print() {
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(PathBuf::from);
    let pages: Vec<String> =
        files("docs", "md").into_iter().chain(others).map(|page| page.display().to_string()).collect();
    let run_page = |page: &str| {
        let mut wrong = Vec::new();
        // The state of a key changes if a busy machine pauses between two commands: pages with a gateway get several
        // attempts.
        let attempts = if BEFORE.iter().any(|(of, _, admins)| *of == page && !admins.is_empty()) { 4 } else { 1 };
        for attempt in 0..attempts {
            wrong = run(page, attempt);
            wrong.retain(|(_, shown, printed)| lasting(shown) != lasting(printed));
            if wrong.is_empty() {
                break;
            }
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let mut text = fs::read_to_string(page).unwrap();
            for (command, shown, printed) in wrong.drain(..) {
                text = text.replace(&format!("$ {command}\n{shown}"), &format!("$ {command}\n{printed}"));
            }
            fs::write(page, text).unwrap();
        }
        wrong.into_iter().map(|(command, _, printed)| format!("{page}: {command} prints:\n{printed}")).collect()
    };
    let wrong: Vec<String> = pages.iter().flat_map(|page| -> Vec<String> { run_page(page) }).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (page, begins, why) in NOT_RUN {
        assert!(sessions(page).iter().any(|(command, _)| command.starts_with(begins)), "{page}: {begins}: {why}");
    }
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

/// A command of a page, in `folder`.
fn shell(command: &str, folder: &Path) -> Command {
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).env("PATH", path);
    shell
}

/// The output of a command that runs in `folder`.
fn printed(command: &str, folder: &Path) -> String {
    let run = shell(command, folder).output().unwrap();
    String::from_utf8([run.stdout, run.stderr].concat()).unwrap()
}

/// A folder with the sample configurations in `config`, as pages expect them.
fn folder_with_the_sample(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(fs::remove_dir_all(&folder));
    for file in
        ["tollgate.yaml", "shared.yaml", "algorithms.yaml", "customers.csv"].map(|file| format!("config/{file}"))
    {
        fs::create_dir_all(folder.join("config")).unwrap();
        fs::copy(&file, folder.join(&file)).unwrap();
    }
    fs::create_dir_all(folder.join("docs")).unwrap();
    fs::copy("docs/edge.csv", folder.join("docs/edge.csv")).unwrap();
    folder
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
                let said = printed("tollgate check snippet.yaml", &folder);
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
