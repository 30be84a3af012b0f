//! More connections than there may be: those that are too many are closed at once, and nobody else notices.

use crate::support::gateway::proxied;
use crate::support::{Client, Gateway, Origin};

fn open(gateway: &Gateway, last: u8, count: usize) -> Vec<Client> {
    (0..count).map(|_| gateway.client_from(last)).collect()
}

fn shed(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metrics().value("tollgate_connections_shed_total", &[("reason", reason)]).unwrap()
}

/// Whether a request on a new connection is answered.
fn is_served(gateway: &Gateway, last: u8) -> bool {
    let mut client = gateway.client_from(last);
    client.ask("GET", "/", &[("connection", "close")]);
    client.next().is_some_and(|response| response.status == 200)
}

#[test]
fn one_client_cannot_take_all_places() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("connections: {{ max_per_client: 10 }}\n{}", proxied(&origin, "")));
    let held = open(&gateway, 2, 10);
    gateway.wait_for_metric("tollgate_connections_shed_total", &[("reason", "client")], 0.0);
    for mut one_more in open(&gateway, 2, 5) {
        assert!(one_more.is_ended());
    }
    assert_eq!(shed(&gateway, "client"), 5.0);
    assert!(is_served(&gateway, 3), "others come in");
    drop(held);
    crate::support::wait_until("the places to be free", || is_served(&gateway, 2));
}

#[test]
fn beyond_the_most_connections_are_closed_at_once_and_operators_are_served() {
    let origin = Origin::start();
    for (listener, connections, reason) in
        [("", "connections: { max: 20 }\n", "all"), ("max_connections: 20", "", "listener")]
    {
        let gateway = Gateway::start_listening(listener, &format!("{connections}{}", proxied(&origin, "")), &[]);
        let mut held = open(&gateway, 2, 20);
        let answers: Vec<u16> = held.iter_mut().map(|client| client.get("/").status).collect();
        assert!(answers.iter().all(|status| *status == 200));
        for mut one_more in open(&gateway, 3, 10) {
            assert!(one_more.is_ended(), "{reason}");
        }
        assert_eq!(shed(&gateway, reason), 10.0);
        assert_eq!(gateway.admin_get("/readyz").status, 200);
        assert_eq!(held[0].get("/").status, 200, "who is here stays");
        drop(held);
        crate::support::wait_until("the places to be free", || is_served(&gateway, 2));
    }
}
