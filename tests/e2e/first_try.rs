//! The first steps to a protected API: `tollgate run --upstream` without a file, and `tollgate init`.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::gateway::is_ready;
use crate::support::process::Process;
use crate::support::{Client, Folder, Origin, free_port, wait_until};

/// The addresses of a listener for clients and one for operators.
fn addresses() -> [SocketAddr; 2] {
    [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
}

fn gateway(folder: &Path, arguments: &[&str], admin: SocketAddr) -> Process {
    let process = Process::tollgate(arguments, folder, &[]);
    wait_until("readiness", || is_ready(admin));
    process
}

/// The output of `tollgate`, and whether it succeeded.
fn said(folder: &Path, arguments: &[&str]) -> (String, bool) {
    let mut process = Process::tollgate(arguments, folder, &[]);
    let status = process.wait();
    (process.stdout() + &process.stderr(), status.success())
}

#[test]
fn an_upstream_and_a_rate_are_a_gateway() {
    let (origin, folder, [listen, admin]) = (Origin::start(), Folder::new(), addresses());
    let (url, listens, admins) = (format!("http://{}", origin.address), listen.to_string(), admin.to_string());
    let arguments = ["run", "--upstream", &url, "--limit", "2/h", "--listen", &listens, "--admin", &admins];
    let _gateway = gateway(folder.path(), &arguments, admin);
    let mut client = Client::connect(listen);
    assert_eq!([client.get("/a").status, client.get("/b").status, client.get("/c").status], [200, 200, 429]);
    let (says, is_fine) = said(folder.path(), &["run", "--upstream", &url, "--limit", "2/hr"]);
    assert!(!is_fine && says.contains("'2/hr' for '--limit <RATE>': is not a rate"), "{says}");
    let (says, is_fine) = said(folder.path(), &["run", "--upstream", &url, "--listen", "8080"]);
    assert!(!is_fine && says.contains("an IP address and a port, like 127.0.0.1:8080"), "{says}");
    for bad in ["ftp://a", "127.0.0.1:80", "http://a/v1", "http://me:canary@a"] {
        let (says, is_fine) = said(folder.path(), &["run", "--upstream", bad]);
        assert!(!is_fine && says.contains("must be a URL without a path"), "{bad}: {says}");
    }
    for command in ["run", "init"] {
        for bad in ["http://x:99999", "http://x:0", "https://x:abc", "http://x:-1", "http://x:+1", "http://[::1]:"] {
            let (says, is_fine) = said(folder.path(), &[command, "--upstream", bad]);
            assert!(!is_fine && says.contains("has no port from 1 to 65535"), "{bad}: {says}");
        }
    }
    let (says, is_fine) = said(folder.path(), &["run"]);
    assert!(!is_fine && says.contains("--config <FILE>") && says.contains("--upstream <URL>"), "{says}");
    for argument in ["--limit=10/s", "--listen=127.0.0.1:1", "--admin=127.0.0.1:1"] {
        let (says, is_fine) = said(folder.path(), &["run", "--config", "tollgate.yaml", argument]);
        assert!(!is_fine && says.contains("cannot be used with"), "{argument}: {says}");
        let (says, is_fine) = said(folder.path(), &["run", argument]);
        let missing = says.split("Usage").next().unwrap();
        assert!(!is_fine && missing.contains("--upstream <URL>") && !missing.contains("--config"), "{says}");
    }
}

#[test]
fn init_writes_plans_and_a_customer_of_each_and_overwrites_nothing() {
    let (origin, folder, [listen, admin]) = (Origin::start(), Folder::new(), addresses());
    let (url, listens, admins) = (format!("http://{}", origin.address), listen.to_string(), admin.to_string());
    let of_plans = ["--plan", "free=2/h", "--plan", "pro=100/s", "--listen", &listens, "--admin", &admins];
    let arguments = [&["init", "--upstream", &url][..], &of_plans].concat();
    let (says, is_fine) = said(folder.path(), &arguments);
    assert!(is_fine && says.contains("tollgate run --config ./tollgate.yaml"), "{says}");
    let (says, is_fine) = said(folder.path(), &["check", "tollgate.yaml"]);
    assert!(is_fine && says.contains("free: 2 at once, then one every 30m"), "{says}");
    let customers = std::fs::read_to_string(folder.path().join("customers.csv")).unwrap();
    let key = customers.lines().find_map(|row| row.split(',').next().filter(|key| key.starts_with("free-"))).unwrap();
    let _gateway = gateway(folder.path(), &["run", "--config", "tollgate.yaml"], admin);
    let mut client = Client::connect(listen);
    let mut status = |fields: &[(&str, &str)]| client.round_trip("GET", "/", fields).status;
    let of_free = [("x-api-key", key)];
    assert_eq!([status(&of_free), status(&of_free), status(&of_free)], [200, 200, 429]);
    assert_eq!([status(&[]), status(&[("x-api-key", "made-up")])], [401, 401]);
    let (says, is_fine) = said(folder.path(), &arguments);
    assert!(!is_fine && says.contains("cannot write ./tollgate.yaml: File exists"), "{says}");
    let mode = std::fs::metadata(folder.path().join("customers.csv")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds keys");
    std::fs::remove_file(folder.path().join("tollgate.yaml")).unwrap();
    let (says, is_fine) = said(folder.path(), &arguments);
    assert!(!is_fine && says.contains("cannot write ./customers.csv: File exists"), "{says}");
    assert!(!folder.path().join("tollgate.yaml").exists(), "nothing is written in part");
    let (says, is_fine) = said(folder.path(), &["init", "--upstream", &url, "--plan", "free", "--folder", "other"]);
    assert!(!is_fine && says.contains("a name and a rate, like free=10/s"), "{says}");
    let (says, is_fine) = said(folder.path(), &["init", "--upstream", &url, "--plan", "free=10", "--folder", "other"]);
    assert!(!is_fine && says.contains("'free=10' for '--plan <NAME=RATE>': is not a rate"), "{says}");
    let (says, is_fine) = said(folder.path(), &["init", "--upstream", &url, "--plan", "a b=1/s", "--folder", "other"]);
    assert!(!is_fine && says.contains("'a b=1/s' for '--plan <NAME=RATE>': is not a name"), "{says}");
    let (says, is_fine) = said(folder.path(), &["init", "--upstream", &url, "--folder", "nowhere"]);
    assert!(!is_fine && says.contains("cannot write nowhere/tollgate.yaml"), "{says}");
}

#[test]
fn init_takes_rates_below_one_and_names_that_yaml_reads_otherwise() {
    for (arguments, says) in [
        (["--limit", "0.5/s"], "1 at once"),
        (["--plan", "free=1.5/s"], "free: 2 at once"),
        (["--plan", "null=5/s"], "null: 5 at once"),
        (["--plan", "a:=5/s"], "a:: 5 at once"),
        (["--plan", "007=5/s"], "007: 5 at once"),
    ] {
        let folder = Folder::new();
        let init = [&["init", "--upstream", "http://127.0.0.1:9000"][..], &arguments].concat();
        let (said_of_init, is_fine) = said(folder.path(), &init);
        assert!(is_fine, "{said_of_init}");
        let (checked, is_fine) = said(folder.path(), &["check", "tollgate.yaml"]);
        assert!(is_fine && checked.contains(says), "{checked}");
    }
}

#[test]
fn init_writes_a_state_file_for_rates_of_a_day() {
    for (rate, keeps) in [("1000/d", true), ("1000/h", false)] {
        let folder = Folder::new();
        let init = ["init", "--upstream", "http://127.0.0.1:9000", "--limit", rate];
        assert!(said(folder.path(), &init).1, "{rate}");
        let written = std::fs::read_to_string(folder.path().join("tollgate.yaml")).unwrap();
        assert_eq!(written.contains("\nstate: { file: tollgate.state }\n"), keeps, "{written}");
        let (checked, is_fine) = said(folder.path(), &["check", "tollgate.yaml"]);
        assert!(is_fine && !checked.contains("warning"), "{checked}");
    }
}
