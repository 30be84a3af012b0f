//! Budgets with many streamed responses at once, counted at the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::gateway::limited;
use crate::support::wire::chunk;
use crate::support::{Gateway, Origin, together, wait_until};

const CLIENTS: usize = 200;
const BUDGET: usize = 10_000;
const RESERVE: usize = 100;

/// The upstream's data about one wave of requests.
#[derive(Default)]
struct Wave {
    /// The number of admitted requests, and of denied ones.
    running: AtomicUsize,
    denied: AtomicUsize,
    /// The cost of each response.
    cost: AtomicUsize,
    /// The cost of all responses so far.
    spent: AtomicUsize,
}

/// Sends a request of every client at once; no response ends before all requests are decided. Returns the number of
/// admitted requests.
fn ask_at_once(gateway: &Gateway, wave: &Wave, cost: usize) -> usize {
    wave.running.store(0, Ordering::SeqCst);
    wave.denied.store(0, Ordering::SeqCst);
    wave.cost.store(cost, Ordering::SeqCst);
    let statuses = together(CLIENTS, |_| {
        let response = gateway.get("/", &[]);
        if response.status == 429 {
            wave.denied.fetch_add(1, Ordering::SeqCst);
        } else {
            assert!(response.whole && response.text().ends_with("data: [DONE]\n\n"), "{response:?}");
        }
        response.status
    });
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    statuses.into_iter().filter(|status| *status == 200).count()
}

#[test]
fn parallel_streams_pass_a_budget_by_what_they_cost_beyond_their_reserves_and_no_token_more() {
    let wave = Arc::new(Wave::default());
    let upstream = Arc::clone(&wave);
    let origin = Origin::with(move |exchange| {
        upstream.running.fetch_add(1, Ordering::SeqCst);
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        exchange.send(chunk(b"data: {\"delta\": \"a\", \"usage\": null}\n\n"))?;
        wait_until("all requests to be decided", || {
            upstream.running.load(Ordering::SeqCst) + upstream.denied.load(Ordering::SeqCst) == CLIENTS
        });
        let cost = upstream.cost.load(Ordering::SeqCst);
        upstream.spent.fetch_add(cost, Ordering::SeqCst);
        exchange
            .send(chunk(format!("data: {{\"usage\": {{\"total_tokens\": {cost}}}}}\n\ndata: [DONE]\n\n").as_bytes()))?;
        exchange.send(chunk(b""))
    });
    let gateway = Gateway::start(&limited(
        &origin,
        &format!(
            "{{ key: all, algorithm: quota_reset, limit: {BUDGET}, window: 1000h, cost: {{ response_field: usage.total_tokens, max: 1000 }}, \
             charge: {{ when: response, reserve: {RESERVE} }} }}"
        ),
    ));
    let left = || BUDGET - wave.spent.load(Ordering::SeqCst);

    // the gateway admits as many at once as there are reserves, and refunds the unused parts
    assert_eq!(ask_at_once(&gateway, &wave, 20), BUDGET / RESERVE);
    assert_eq!(left(), 8_000);
    // the same again
    assert_eq!(ask_at_once(&gateway, &wave, 60), 80);
    assert_eq!(left(), 3_200);
    // costs beyond the reserve exceed the budget by the difference
    let beyond = 130;
    assert_eq!(ask_at_once(&gateway, &wave, beyond), 32);
    assert_eq!(wave.spent.load(Ordering::SeqCst), BUDGET + 32 * (beyond - RESERVE));
    assert_eq!(ask_at_once(&gateway, &wave, 20), 0, "nothing is left");
}
