//! The commands that the documentation shows: each is run as it stands and prints what its page shows, or stands in [`NOT_RUN`].

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

use crate::support::gateway::is_ready;
use crate::support::process::Process;
use crate::support::{Client, Folder, free_port, wait_until};

/// Pages whose commands run here, and those whose commands `--test samples` runs.
const RUN_HERE: [&str; 6] = [
    "README.md",
    "docs/getting-started.md",
    "docs/algorithms.md",
    "docs/admin.md",
    "docs/decisions.md",
    "docs/replay.md",
];
const RUN_BY_SAMPLES: [&str; 2] = ["docs/guide.md", "docs/changes.md"];

/// How commands begin that are not run as they stand, and why.
const NOT_RUN: [(&str, &str); 12] = [
    ("tollgate run --upstream", "runs until it is ended: `first_try` runs it"),
    ("tollgate run --config", "runs until it is ended, as every test here runs it"),
    ("tollgate top", "draws until it is ended: `operators` runs it"),
    ("nginx -T", "prints the configuration of this machine's nginx: `imported` reads one from nginx"),
    ("redis-server", "stays in the background: `shared` starts one on a port of its own"),
    ("tollgate demo", "stays in the background: `process` runs it"),
    ("sed 's/:8080/:8081/", "makes a file for gateways that stay in the background"),
    ("for i in 1 2 3; do for port", "asks gateways that stay in the background: `shared` asks such"),
    ("make image", "needs a Docker engine: `make compose-test` builds the image"),
    ("docker run", "needs a Docker engine: `make compose-test` runs the image"),
    ("kubectl apply", "needs Kubernetes: `deploy` holds the manifest against its schemas"),
    ("helm install", "needs Kubernetes: `deploy` renders the chart"),
];

/// A command of a page, and what the page shows it to print.
struct Shown {
    command: String,
    output: String,
}

/// The commands of a page: lines behind `$ ` in its blocks, and all lines of its blocks of shell.
fn commands(page: &str) -> Vec<Shown> {
    let text = fs::read_to_string(page).unwrap();
    let (mut block, mut found, mut is_open) = (None, Vec::<Shown>::new(), false);
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            block = if block.is_none() { Some(kind) } else { None };
            is_open = false;
            continue;
        }
        let begins = match block {
            Some("console" | "") => line.strip_prefix("$ "),
            Some("sh") if !is_open && !line.starts_with('#') => Some(line),
            _ => None,
        };
        match (begins, found.last_mut()) {
            (Some(command), _) => found.push(Shown { command: command.to_owned(), output: String::new() }),
            (None, Some(last)) if is_open => last.command += &format!("\n{line}"),
            (None, Some(last)) if matches!(block, Some("console" | "")) => last.output += &format!("{line}\n"),
            _ => continue,
        }
        is_open = found.last().is_some_and(|last| !is_whole(&last.command));
    }
    found
}

/// Whether the shell takes this for a whole command.
fn is_whole(command: &str) -> bool {
    !command.ends_with('\\') && Command::new("sh").args(["-n", "-c", command]).output().unwrap().status.success()
}

fn is_run(command: &str) -> bool {
    !NOT_RUN.iter().any(|(begins, _)| command.starts_with(begins))
}

/// All pages, as paths from the top.
fn pages() -> Vec<String> {
    let in_docs = fs::read_dir("docs").unwrap().map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let at_top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned);
    in_docs.filter(|page| Path::new(page).extension().is_some_and(|end| end == "md")).chain(at_top).collect()
}

#[test]
fn every_command_of_the_pages_is_run_or_has_a_reason() {
    let mut reasons = NOT_RUN.to_vec();
    for page in pages() {
        let commands = commands(&page);
        let is_run_page = RUN_HERE.contains(&&*page) || RUN_BY_SAMPLES.contains(&&*page);
        let left: Vec<&str> = commands.iter().map(|shown| &*shown.command).filter(|command| is_run(command)).collect();
        assert!(is_run_page || left.is_empty(), "{page}: nothing runs {left:?}");
        reasons.retain(|(begins, _)| !commands.iter().any(|shown| shown.command.starts_with(begins)));
    }
    assert!(reasons.is_empty(), "no page shows {reasons:?}");
}

/// What differs from run to run, in one spelling.
fn masked(text: &str) -> String {
    let masks = [
        (r"\w{3}, \d{2} \w{3} \d{4} [\d:]{8} GMT", "DATE"),
        (r"\b[0-9a-f]{12}\b", "ID"),
        (r"tg_[\w-]+(\.\.\.)?", "KEY"),
        (r"\s+", ""),
    ];
    let mask = |text: String, (pattern, with): (&str, &str)| {
        Regex::new(pattern).unwrap().replace_all(&text, with).into_owned()
    };
    masks.into_iter().fold(text.to_owned(), mask)
}

/// Runs the commands of `page` in `folder`, with other addresses and texts in place of those that it shows.
fn run(page: &str, folder: &Path, in_place: &[(&str, &str)]) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for Shown { command, output } in commands(page).iter().filter(|shown| is_run(&shown.command)) {
        let exact = in_place.iter().fold(command.clone(), |text, (shown, real)| text.replace(shown, real));
        let run = Command::new("sh").args(["-c", &exact]).current_dir(folder).env("PATH", &path).output().unwrap();
        let printed = String::from_utf8([run.stdout, run.stderr].concat()).unwrap();
        let printed = in_place.iter().fold(printed, |text, (shown, real)| text.replace(real, shown));
        assert!(run.status.success() && !printed.contains("\"error\""), "{page}: {command}\n{printed}");
        assert!(output.is_empty() || masked(output) == masked(&printed), "{page}: {command}\nprints\n{printed}");
    }
}

fn addresses() -> [String; 3] {
    [free_port(), free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"))
}

/// The samples, where pages have them.
fn folder_with_samples() -> Folder {
    let folder = Folder::new();
    for file in ["config/tollgate.yaml", "config/customers.csv", "config/algorithms.yaml", "docs/edge.csv"] {
        let copy = folder.path().join(file);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
    folder
}

fn wait_for_readiness(admin: &str) {
    let admin: SocketAddr = admin.parse().unwrap();
    wait_until("readiness", || is_ready(admin));
}

#[test]
fn the_first_sessions_print_what_they_show() {
    for page in ["README.md", "docs/getting-started.md"] {
        let (folder, [listen, admin, upstream]) = (folder_with_samples(), addresses());
        let arguments = ["demo", "--listen", &listen, "--admin", &admin, "--upstream", &upstream];
        let _demo = Process::tollgate(&arguments, folder.path(), &[]);
        wait_for_readiness(&admin);
        run(page, folder.path(), &[("127.0.0.1:8080", &listen), ("127.0.0.1:9090", &admin)]);
    }
}

#[test]
fn the_simulations_print_what_they_show() {
    run("docs/algorithms.md", folder_with_samples().path(), &[]);
}

#[test]
fn the_commands_of_the_admin_port_do_what_they_show() {
    let (folder, [listen, admin, _]) = (Folder::new(), addresses());
    folder.write("customers.csv", "credential,customer,plan\nfree-key,globex,free\n");
    folder.write("admin.token", "0123456789abcdef0123456789abcdef\n");
    folder.write(
        "tollgate.yaml",
        format!(
            "listeners: [{{ address: \"{listen}\" }}]
admin: {{ address: \"{admin}\", token_file: admin.token }}
client_address: {{ trusted_proxies: [127.0.0.1] }}
upstreams: {{ api: {{ nodes: [\"127.0.0.1:9\"] }} }}
customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv, writable: true }}, anonymous: {{ plan: free }} }}
plans: [free]
limits:
  per-customer: {{ key: customer, algorithm: gcra, rate: 1/s, burst: 100 }}
  logins: {{ key: [client_address, {{ header: x-user }}], algorithm: gcra, rate: 1/s, burst: 9, ban: {{ after: 9 denials in 1m, for: 1m }} }}
  mails: {{ key: {{ descriptor: tenant }}, algorithm: gcra, rate: 1/s, burst: 9 }}
routes: [{{ name: orders, match: {{ path: /v1/orders/** }}, upstream: api, limits: [per-customer, logins] }}]
"
        ),
    );
    let _gateway = Process::tollgate(&["run", "--config", "tollgate.yaml"], folder.path(), &[]);
    wait_for_readiness(&admin);
    // until its key is banned
    let mut client = Client::connect(listen.parse().unwrap());
    for _ in 0..20 {
        client.exchange("GET", "/v1/orders", &[("x-forwarded-for", "192.0.2.1"), ("x-user", "bob")]);
    }
    let limit = format!("--admin http://{admin} --limit");
    run(
        "docs/admin.md",
        folder.path(),
        &[
            ("127.0.0.1:9090", &admin),
            ("--limit", &limit),
            ("TOKEN=...", "TOKEN=0123456789abcdef0123456789abcdef"),
        ],
    );
}

#[test]
fn the_imports_and_replays_print_what_they_show() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("ratelimit/config")).unwrap();
    let limit = "rate_limit: { unit: minute, requests_per_unit: 1 }";
    folder.write(
        "ratelimit/config/edge.yaml",
        format!(
            "domain: edge\ndescriptors:\n  - key: a\n    {limit}\n\n  - key: b\n    {limit}\n\n\n  - key: c\n    {limit}\n    detailed_metric: true\n"
        ),
    );
    run("docs/decisions.md", folder.path(), &[]);
    for file in ["new.yaml", "tollgate.yaml"] {
        fs::copy("config/tollgate.yaml", folder.path().join(file)).unwrap();
    }
    fs::copy("config/customers.csv", folder.path().join("customers.csv")).unwrap();
    let line = "192.0.2.1 - - [23/Nov/2026:14:38:06 +0000] \"GET /v1/orders HTTP/1.1\" 200 12\n";
    folder.write("access.log", line);
    run("docs/replay.md", folder.path(), &[]);
    assert!(folder.path().join("difference.html").exists());
}
