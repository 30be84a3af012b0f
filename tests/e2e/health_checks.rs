//! Health checks that the servers of other projects accept as valid requests.

use crate::support::gateway::ALL;
use crate::support::origin::upstream;
use crate::support::servers::{Kind, Server};
use crate::support::{Folder, Gateway};

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
