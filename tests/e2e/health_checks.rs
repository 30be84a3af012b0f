//! Health checks that the servers of other projects accept as valid requests.

use crate::support::gateway::ALL;
use crate::support::origin::upstream;
use crate::support::servers::{Kind, Server};
use crate::support::{Folder, Gateway, Origin, RefusingNode, SilentNode, wait_until};

fn a_node_at_a_path_becomes_healthy(kind: Kind, more: &str) {
    let folder = Folder::new();
    let node = format!("\"unix:{}\"", folder.path().join("echo.sock").display());
    let check = format!("health_check: {{ path: /, every: 20ms, healthy_after: 1, unhealthy_after: 1 }}{more}");
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[node], &check)));
    let healthy = |count: f64| {
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], count);
    };
    healthy(0.0);
    let _server = Server::start_in(folder, kind, !more.is_empty());
    healthy(1.0);
    assert_eq!(gateway.client().post("/", &[("x-marker", "own")], b"once").text(), "once");
}

#[test]
fn the_status_and_the_log_say_why_a_health_check_fails() {
    let (sick, dead, silent) = (Origin::start(), RefusingNode::new(), SilentNode::new());
    sick.set_healthy(false);
    let check = "health_check: { path: /healthz, every: 20ms, timeout: 1s, unhealthy_after: 1 }";
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[sick.node(), dead.node(), silent.node()], check)));
    let reasons = ["it answered 503", "Connection refused", "no answer in 1s"];
    wait_until("the reasons in the status", || {
        let status = gateway.admin_get("/status").json();
        let failures = (0..3).map(|node| status["upstreams"][0]["nodes"][node]["failure"].to_string());
        failures.zip(reasons).all(|(failure, reason)| failure.contains(reason))
    });
    wait_until("the reasons in the log", || {
        let log = gateway.process.stderr();
        let ends = ["unhealthy: requests go to the others", "unhealthy: no node is healthy, and requests get 503"];
        reasons.iter().chain(&ends).all(|text| log.contains(text))
    });
    sick.set_healthy(true);
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 1.0);
    assert!(gateway.admin_get("/status").json()["upstreams"][0]["nodes"][0]["failure"].is_null());
}

#[test]
fn nginx_at_a_path_becomes_healthy() {
    a_node_at_a_path_becomes_healthy(Kind::Nginx, "");
}

#[test]
fn go_at_a_path_becomes_healthy() {
    a_node_at_a_path_becomes_healthy(Kind::Go, "");
}

#[test]
fn nginx_at_a_path_becomes_healthy_over_http_2() {
    a_node_at_a_path_becomes_healthy(Kind::Nginx, ", http2: true");
}

#[test]
fn go_at_a_path_becomes_healthy_over_http_2() {
    a_node_at_a_path_becomes_healthy(Kind::Go, ", http2: true");
}
