//! The commands of the pages print what the pages show.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regex::Regex;

use super::files;

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
    (
        "docs/runbook.md",
        &[
            "echo '{\"status\":401,\"client\":\"192.0.2.1\"}' > access.log",
            "tollgate run --config config/tollgate.yaml &",
        ],
        &[9090],
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

/// A command of a page, in `folder`.
fn shell(command: &str, folder: &Path) -> Command {
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).env("PATH", path);
    shell
}

/// The output of a command that runs in `folder`.
pub(crate) fn printed(command: &str, folder: &Path) -> String {
    let run = shell(command, folder).output().unwrap();
    String::from_utf8([run.stdout, run.stderr].concat()).unwrap()
}

/// A folder with the sample configurations in `config`, as pages expect them.
pub(crate) fn folder_with_the_sample(name: &str) -> PathBuf {
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
