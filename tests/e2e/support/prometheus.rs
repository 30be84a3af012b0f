//! A Prometheus of a test, with the configuration and the rules of the repository and much shorter times.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{Client, Folder, Process, free_port, wait_for};

/// A running server.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    address: SocketAddr,
    _folder: Folder,
}

/// The window of rates: seconds in place of minutes, so that tests see results sooner.
const WINDOW: &str = "5s";

impl Prometheus {
    /// Starts a server that scrapes `targets` every second.
    pub fn start(targets: &[SocketAddr]) -> Self {
        let folder = Folder::new();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/prometheus");
        let read = |file: &str| std::fs::read_to_string(shipped.join(file)).unwrap();
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let config = replaced(
            &read("prometheus.yml"),
            &[
                ("_interval: 5s", "_interval: 1s"),
                ("[\"gateway:9090\", \"gateway-2:9090\"]", &format!("[{}]", targets.join(", "))),
                ("rules/tollgate.yml", "rules.yml"),
            ],
        );
        folder.write("prometheus.yml", config);
        folder.write("rules.yml", hurried(&read("rules/tollgate.yml")));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listen = format!("--web.listen-address={address}");
        let arguments = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", &listen];
        let mut process = Process::program("prometheus", &arguments, folder.path());
        wait_for("Prometheus to be ready", || {
            assert_eq!(process.exit_status(), None, "{}", process.stderr());
            super::gateway::answers(address, "/-/ready").then_some(())
        });
        Self { process, address, _folder: folder }
    }

    /// The answer of the API at `path`.
    #[track_caller]
    pub fn query_api(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let parameters: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let target = format!("/api/v1/{path}?{}", parameters.join("&"));
        let answer = Client::connect(self.address).round_trip("GET", &target, &[("connection", "close")]).json();
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer} {}", self.process.stderr());
        answer["data"].clone()
    }

    /// The names of the firing alerts; a name appears once for each alert.
    pub fn firing(&self) -> Vec<String> {
        let alerts = self.query_api("alerts", &[]);
        let alerts = alerts["alerts"].as_array().unwrap().iter().filter(|alert| alert["state"] == "firing");
        alerts.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }
}

/// The rules with seconds in place of minutes.
fn hurried(rules: &str) -> String {
    let mut lines = Vec::new();
    for line in rules.lines() {
        let held = ["for: ", "keep_firing_for: "].iter().find(|word| line.trim_start().starts_with(*word));
        lines.push(match held {
            Some(word) => format!("{}1s", line.split_at(line.find(word).unwrap() + word.len()).0),
            None => {
                let windows = ["[2m]", "[5m]", "[10m]", "[15m]", "[6h]"];
                let window = format!("[{WINDOW}]");
                windows
                    .iter()
                    .fold(line.to_owned(), |line, long| line.replace(long, &window))
                    .replace("offset 10m", "offset 5s")
            }
        });
    }
    lines.join("\n")
}

fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}
