//! The output of `tollgate check` for good and bad configurations, compared with the file beside each of `tests/fixtures`.
//! `UPDATE_GOLDEN=1` writes the outputs again, so that the diff shows the changes.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tollgate::cli::Format;
use tollgate::cli::check::{CheckArgs, execute};
use tollgate::cli::import::{self, ImportArgs};
use tollgate::config::Mark;

/// The output of `check`, and whether the file is valid.
fn check(file: &Path) -> (String, bool) {
    check_as(file, None, Format::Text)
}

fn check_as(file: &Path, against: Option<&str>, format: Format) -> (String, bool) {
    let mut out = Vec::new();
    let color = clap::ColorChoice::Never;
    let args = CheckArgs { file: file.to_owned(), against: against.map(PathBuf::from), format, color };
    let done = execute(&args, &mut out);
    (String::from_utf8(out).unwrap(), done.is_ok())
}

fn configurations(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new("tests/fixtures").join(kind);
    let files: BTreeSet<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files
        .into_iter()
        .filter(|path| {
            path.extension().is_some_and(|end| ["yaml", "json", "conf", "cfg"].iter().any(|known| end == *known))
        })
        .collect()
}

fn compare(kind: &str, fine: bool) {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for file in configurations(kind) {
        let (output, is_fine) = check(&file);
        assert_eq!(is_fine, fine, "{}:\n{output}", file.display());
        let golden = PathBuf::from(format!("{}.txt", file.display()));
        if update {
            fs::write(&golden, &output).unwrap();
        } else if fs::read_to_string(&golden).unwrap_or_default() != output {
            wrong.push(format!("{}:\n{output}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "not as expected (UPDATE_GOLDEN=1 takes the new outputs):\n{}", wrong.join("\n"));
}

#[test]
fn good_files_are_explained() {
    compare("good", true);
}

#[test]
fn bad_files_say_everything_that_is_wrong() {
    compare("bad", false);
}

/// The imported configuration of another service and the notes about it, or the reason why it is refused.
#[test]
fn configurations_of_other_services_are_imported_or_refused_with_the_place() {
    let mut wrong = Vec::new();
    for file in configurations("import") {
        let (mut written, mut notes) = (Vec::new(), Vec::new());
        let done = import::execute(&ImportArgs { files: vec![file.clone()] }, &mut written, &mut notes);
        let is_bad = file.file_name().unwrap().to_string_lossy().starts_with("bad-");
        assert_eq!(done.is_err(), is_bad, "{}: {done:?}", file.display());
        let refusal = done.map_or_else(|refused| refused.to_string(), |()| String::new());
        let [written, notes] = [written, notes].map(|text| String::from_utf8(text).unwrap());
        let output = format!("{written}--\n{notes}{refusal}");
        let golden = PathBuf::from(format!("{}.txt", file.display()));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &output).unwrap();
        } else if fs::read_to_string(&golden).unwrap_or_default() != output {
            wrong.push(format!("{}:\n{output}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "not as expected (UPDATE_GOLDEN=1 takes the new outputs):\n{}", wrong.join("\n"));
}

const NEW: &str = "tests/fixtures/against/new.yaml";
const OLD: &str = "tests/fixtures/against/old.yaml";

#[test]
fn every_change_is_told_with_what_it_does_to_customers_in_flight() {
    let (output, fine) = check_as(Path::new(NEW), Some(OLD), Format::Text);
    assert!(fine && !output.contains("canary"), "{output}");
    let golden = format!("{NEW}.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, output).unwrap();
    } else {
        assert_eq!(output, fs::read_to_string(golden).unwrap());
    }
    let (same, _) = check_as(Path::new(OLD), Some(OLD), Format::Text);
    assert!(same.ends_with("nothing changes; 12 limits untouched\n"), "{same}");
}

#[test]
fn another_state_file_is_told_with_what_a_restart_forgets() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("another_state_file");
    fs::create_dir_all(&folder).unwrap();
    let rules = fs::read_to_string("tests/fixtures/good/minimal.yaml").unwrap();
    let file = |name: &str, state: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("{rules}\n{state}\n")).unwrap();
        path
    };
    let kept = file("kept.yaml", "state: { file: a.state }");
    for (state, says) in [
        ("state: { file: a.state, every: 10s }", "nothing changes;"),
        ("state: { file: a.state, every: 1m }", "state.every: changes\n  10s -> 1m: after a crash"),
        ("state: { file: b.state }", "state.file: changes\n  a.state -> b.state: a reload goes on in the new file"),
        ("", "state.file: changes\n  a.state -> none: the next restart forgets"),
    ] {
        let other = file("other.yaml", state);
        let (output, fine) = check_as(&other, kept.to_str(), Format::Text);
        assert!(fine && output.contains(says), "{state}: {output}");
    }
    let (output, _) = check_as(&kept, file("other.yaml", "").to_str(), Format::Text);
    assert!(output.contains("state.file: changes\n  none -> a.state: restarts do not forget"), "{output}");
}

#[test]
fn secrets_in_urls_and_in_paths_at_receivers_are_not_told() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("secrets_in_urls");
    fs::create_dir_all(&folder).unwrap();
    let rules = fs::read_to_string("tests/fixtures/good/minimal.yaml").unwrap();
    let [old, new] = ["old", "new"].map(|word| {
        let path = folder.join(word);
        let directory = format!("directory: {{ http: {{ url: \"https://h/{word}?key=canary-{word}\" }} }}");
        let customers = format!("plans: [p]\ncustomers: {{ identify: [{{ bearer: true }}], {directory} }}");
        let traces = format!("traces: {{ upstream: all, path: /canary-{word} }}");
        fs::write(&path, format!("{rules}\n{customers}\n{traces}\n")).unwrap();
        path
    });
    for format in [Format::Text, Format::Json] {
        let (output, fine) = check_as(&new, old.to_str(), format);
        assert!(fine && !output.contains("canary"), "{output}");
        assert!(output.contains("https://h/old?... -> https://h/new?...") && output.contains("changes"), "{output}");
    }
}

#[test]
fn changes_of_the_admin_section_are_reported() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other_operators");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("admin.token"), "canary-0123456789abcdef").unwrap();
    let rules = fs::read_to_string("tests/fixtures/good/minimal.yaml").unwrap();
    let [old, new] = ["old.yaml", "new.yaml"].map(|name| folder.join(name));
    fs::write(&old, &rules).unwrap();
    let admin = "admin: { token_file: admin.token, hosts: [Gate.internal], top_denied_metrics: 5 }";
    fs::write(&new, format!("{rules}\n{admin}\n")).unwrap();
    let (output, fine) = check_as(&new, old.to_str(), Format::Text);
    let says = "admin: changes\n  hosts: default -> Gate.internal\n  token_file: default -> admin.token\n  top_denied_metrics: default -> 5\n";
    assert!(fine && output.ends_with(says) && !output.contains("canary"), "{output}");
}

const COMPARED: &str = r#"
listeners: [{ address: "127.0.0.1:8080" }, { address: "unix:/run/gate.sock", mode: 660 }]
cluster: { self: "10.0.0.1:7946", peers: ["10.0.0.1:7946", "10.0.0.2:7946"], secret_file: cluster.key }
upstreams: { one: { nodes: ["10.0.0.1:80"] } }
customers: { identify: [{ header: x-api-key }], directory: { redis: customers } }
store: { redis: "redis://127.0.0.1:6379" }
plans: [free]
limits:
  header: { key: { header: x-a, repeated: first }, algorithm: gcra, rate: 1/h, burst: 20 }
  reset: { key: customer, on_change: reset, algorithm: gcra, plans: { free: { rate: 1/h, burst: 20 } } }
routes:
  - { name: tied, match: { path: /x, query: { token: canary-1 } }, upstream: one, limits: [header, reset] }
  - { name: late, match: { path: /x, headers: { x-b: "1" } }, upstream: one }
  - { name: posted, match: { path: /x, methods: [POST], headers: { x-b: "1" } }, upstream: one }
"#;

#[test]
fn a_check_tells_what_listeners_clusters_plans_and_the_order_of_routes_change() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compared");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cluster.key"), "canary-0123456789abcdef0123456789abcdef").unwrap();
    let [old, new] = ["old.yaml", "new.yaml"].map(|name| folder.join(name));
    fs::write(&old, COMPARED).unwrap();
    let late = COMPARED.lines().find(|line| line.contains("name: late")).unwrap();
    let tied = COMPARED.lines().find(|line| line.contains("name: tied")).unwrap();
    let posted = COMPARED.lines().find(|line| line.contains("name: posted")).unwrap();
    let swapped = [format!("{tied}\n{late}"), format!("{late}\n{tied}")];
    for (from, to, says) in [
        (
            ":8080\" }",
            ":8080\", max_connections: 5 }",
            "listener 127.0.0.1:8080: changes\n  max_connections: default -> 5\n",
        ),
        ("mode: 660", "mode: 660, http2: true", "listener unix:/run/gate.sock: changes\n  http2: default -> true\n"),
        ("mode: 660", "mode: 600", "listeners: needs a restart;"),
        (
            "0.2:7946\"]",
            "0.3:7946\"]",
            "cluster: changes\n  peers: 10.0.0.1:7946, 10.0.0.2:7946 -> 10.0.0.1:7946, 10.0.0.3",
        ),
        (", secret_file", ", min_members: 2, secret_file", "cluster: changes\n  min_members: default -> 2\n"),
        (", secret_file", ", timeout: 70ms, secret_file", "cluster.timeout: needs a restart;"),
        (", repeated: first", "", "limit header: keeps what is used\n  key.repeated: first -> default\n"),
        ("canary-1", "canary-2", "route tied: changes\n  match.query.token: changes\n"),
        (&swapped[0], &swapped[1], "routes: come in another order: of two that match a request equally well"),
        (&swapped[0], &swapped[1], " the first takes it\n  now: late before tied\n"),
        ("free", "basic", "plan basic: is new\n"),
    ] {
        fs::write(&new, COMPARED.replace(from, to)).unwrap();
        let (output, fine) = check_as(&new, old.to_str(), Format::Text);
        let count = if from == "free" { ": 2 changes; 2 limits untouched\n" } else { ": 1 change; " };
        assert!(fine && output.contains(count) && !output.contains("canary"), "{from}: {output}");
        assert!(output.contains(says), "{from}: {output}");
    }
    fs::write(&new, COMPARED.replace(&format!("{late}\n{posted}"), &format!("{posted}\n{late}"))).unwrap();
    let (output, _) = check_as(&new, old.to_str(), Format::Text);
    assert!(output.ends_with("nothing changes; 2 limits untouched\n"), "requests with POST go to `posted`: {output}");
    fs::write(&new, COMPARED.replace("free", "basic").replace("1/h, burst: 20 } }", "9/h, burst: 20 } }")).unwrap();
    let (output, _) = check_as(&new, old.to_str(), Format::Text);
    let says = "limit reset: has other parameters and says `on_change: reset`: it starts afresh\n";
    assert!(output.contains(says), "{output}");
}

#[test]
fn a_directory_that_is_named_on_another_line_is_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("moved_directory");
    fs::create_dir_all(&folder).unwrap();
    for secret in ["cluster.key", "other.key"] {
        fs::write(folder.join(secret), "canary-0123456789abcdef0123456789abcdef").unwrap();
    }
    let [old, new] = ["old.yaml", "new.yaml"].map(|name| folder.join(name));
    let asked =
        COMPARED.replace("redis: customers", r#"http: { url: "http://127.0.0.1:7000", token_file: cluster.key }"#);
    fs::write(&old, &asked).unwrap();
    let other = asked.replace("token_file: cluster.key", "token_file: other.key");
    for (text, says) in [(&asked, "nothing changes"), (&other, "customers.directory: another server is asked")] {
        fs::write(&new, format!("# moves all lines\n{text}")).unwrap();
        let (output, fine) = check_as(&new, old.to_str(), Format::Text);
        assert!(fine && output.contains(says), "{says}: {output}");
    }
}

#[test]
fn comparisons_with_bad_files_or_limits_alone_are_refused() {
    let (output, fine) = check_as(Path::new(NEW), Some("tests/fixtures/bad/jitter.yaml"), Format::Text);
    assert!(!fine && output.starts_with("tests/fixtures/bad/jitter.yaml:3"), "{output}");
    assert!(!check_as(Path::new(NEW), Some("tests/fixtures/good/limits_only.yaml"), Format::Text).1);
}

#[test]
fn programs_are_told_the_same_as_people() {
    let json = |file: &str, against| {
        let (output, fine) = check_as(Path::new(file), against, Format::Json);
        (serde_json::from_str::<serde_json::Value>(&output).unwrap(), fine)
    };
    let (report, fine) = json(NEW, Some(OLD));
    assert!(fine && report["needs_restart"] == true && report["result"] == "fine", "{report:#}");
    let headings: Vec<&str> =
        report["changes"].as_array().unwrap().iter().map(|change| change["heading"].as_str().unwrap()).collect();
    let (text, _) = check_as(Path::new(NEW), Some(OLD), Format::Text);
    assert_eq!(headings, text.split("\n\n").skip(1).map(|part| part.lines().next().unwrap()).collect::<Vec<_>>());
    let (report, _) = json(OLD, None);
    assert_eq!((&report["counts"]["limits"], report["parts"].as_array().unwrap().len()), (&12.into(), 12));
    let (report, fine) = json("tests/fixtures/bad/jitter.yaml", None);
    assert!(!fine);
    assert_eq!((&report["result"], &report["error_count"]), (&"refused".into(), &1.into()));
    assert_eq!((&report["errors"][0]["line"], &report["errors"][0]["column"]), (&3.into(), &32.into()));
}

#[test]
fn no_output_shows_a_secret() {
    for file in configurations("bad") {
        let (output, _) = check(&file);
        assert!(!output.contains("canary"), "{}:\n{output}", file.display());
    }
}

/// The output of `check` for a file of these bytes.
fn check_bytes(name: &str, bytes: &[u8]) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, bytes).unwrap();
    let (output, fine) = check(&file);
    assert!(!fine, "{output}");
    output.replace(&file.display().to_string(), name)
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_stand() {
    let utf16: Vec<u8> = "\u{feff}limits: {}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(
        check_bytes("utf-16.yaml", &utf16),
        "utf-16.yaml:1:1: the file is in UTF-16\n  expected: text in UTF-8\n"
    );
    assert_eq!(
        check_bytes("latin-1.yaml", b"limits: {}\n# caf\xe9\n"),
        "latin-1.yaml:2:1: the line is not in UTF-8\n  expected: text in UTF-8\n"
    );
    assert_eq!(
        check_bytes("nul.yaml", b"limits:\n  a: b\0\n"),
        "nul.yaml:2:7: holds the invisible character U+0000\n  |\n2 |   a: …␀\n  |       ^\n  expected: text; in quotes, `\\u` stands for such characters\n"
    );
    assert_eq!(
        check_bytes("large.yaml", &vec![b'#'; (8 << 20) + 1]),
        "large.yaml: is larger than 8192 KiB\n  hint: customers belong in the file that `customers.directory` names\n"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let (output, fine) = check(Path::new("tests/fixtures/nowhere.yaml"));
    assert!(!fine);
    assert_eq!(output, "tests/fixtures/nowhere.yaml: cannot be read: No such file or directory (os error 2)\n");
}

#[test]
fn byte_order_marks_and_windows_line_ends_do_not_matter() {
    for file in configurations("good") {
        let text = fs::read_to_string(&file).unwrap();
        let same = |text: &str| tollgate::config::load_limits(text, "f", &environment).map(|loaded| loaded.limits);
        let expected = same(&text);
        assert_eq!(same(&format!("\u{feff}{text}")), expected);
        assert_eq!(same(&text.replace('\n', "\r\n")), expected);
    }
}

#[test]
fn findings_in_files_with_windows_line_ends_are_where_they_are() {
    for file in configurations("bad") {
        let text = fs::read_to_string(&file).unwrap();
        let places = |text: &str| {
            let problems = tollgate::config::load(text, "f", &environment).err();
            problems.map(|problems| problems.errors.into_iter().map(|error| error.place).collect::<Vec<_>>())
        };
        assert_eq!(places(&text.replace('\n', "\r\n")), places(&text), "{}", file.display());
    }
}

fn environment(name: &str) -> Option<String> {
    (name == "CARGO_PKG_NAME").then(|| "tollgate".to_owned())
}

/// A change to a text: at a fraction of its length, remove some characters and insert a piece.
fn change() -> impl Strategy<Value = (f64, usize, String)> {
    let pieces = [
        "", "{", "}", "[", "]", ": ", ":", "- ", "\n", "\n  ", "? ", "&a ", "*a", "!t ", "'", "\"", "#", ",", "|", ">",
        "<<", "~", "${", "${A}", "-1", "0", "1.5s", "\t", "\u{feff}", "é", "---\n", "unlimited",
        "18446744073709551616",
    ];
    (0.0..1.0_f64, 0..12_usize, prop::sample::select(pieces.map(str::to_owned).to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_are_understood_or_refused_with_a_place(
        which: prop::sample::Index,
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let files = [configurations("good"), configurations("bad")].concat();
        let mut text: Vec<char> = fs::read_to_string(&files[which.index(files.len())]).unwrap().chars().collect();
        for (share, taken, put) in changes {
            let at = (share * text.len() as f64) as usize;
            let end = (at + taken).min(text.len());
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        let lines: Vec<usize> = text.split('\n').map(|line| line.chars().count()).collect();
        if let Err(problems) = tollgate::config::load(&text, "f", &environment) {
            prop_assert!(!problems.errors.is_empty());
            for problem in problems.errors.iter().chain(&problems.warnings) {
                let Some(Mark { line, column, .. }) = problem.place.mark else {
                    return Err(TestCaseError::fail(problem.to_string()));
                };
                let length = if line == lines.len() + 1 { Some(&0) } else { lines.get(line.wrapping_sub(1)) };
                prop_assert!(length.is_some_and(|length| (1..=length + 1).contains(&column)), "{}", problem);
            }
        }
        if let Err(problems) = tollgate::config::load_limits(&text, "f", &environment) {
            prop_assert!(!problems.errors.is_empty());
        }
    }
}
