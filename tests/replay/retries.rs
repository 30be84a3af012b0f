//! The retry times of requests under several limits.

use crate::support::Folder;

/// The decisions on requests at these milliseconds of a minute from these clients (the last byte of an address), each with
/// its wait or retry time in milliseconds.
fn decisions(limits: &str, requests: &[(u64, u8)]) -> Vec<(String, u64)> {
    let folder = Folder::new();
    let config = format!(
        "listeners: [{{ address: \"127.0.0.1:1\" }}]
upstreams: {{ origin: {{ nodes: [\"127.0.0.1:2\"] }} }}
limits:
{limits}
routes: [{{ name: all, upstream: origin, limits: [first, second] }}]
"
    );
    folder.write("tollgate.yaml", config);
    let line = |(at, from): &(u64, u8)| {
        let at = 1_700_000_040_000 + at;
        format!("{{\"time\":{at},\"client\":\"192.0.2.{from}\",\"method\":\"GET\",\"path\":\"/\",\"status\":200}}\n")
    };
    folder.write("access.log", requests.iter().map(line).collect::<String>());
    folder.replayed(&["--config", "tollgate.yaml", "--decisions", "decisions.csv", "access.log"]);
    let rows = folder.rows("decisions.csv").into_iter();
    rows.map(|row| {
        let nanos = if row["decision"] == "denied" { &row["retry_after_ns"] } else { &row["wait_ns"] };
        (row["decision"].clone(), nanos.parse::<u64>().unwrap().div_ceil(1_000_000))
    })
    .collect()
}

fn decided(decisions: &[(&str, u64)]) -> Vec<(String, u64)> {
    decisions.iter().map(|(decision, millis)| ((*decision).to_owned(), *millis)).collect()
}

#[test]
fn a_denial_waits_for_the_tokens_that_another_limit_takes_for_it() {
    let limits = "  first: { key: client_address, algorithm: token_bucket, rate: 1/s, burst: 1 }
  second: { key: client_address, algorithm: fixed_window, limit: 2, window: 1m, charge: { denied: true } }";
    let requests = [(0, 1), (100, 1), (59_999, 1), (60_000, 1)];
    let expected = [("admitted", 0), ("denied", 59_900), ("denied", 1), ("admitted", 0)];
    assert_eq!(decisions(limits, &requests), decided(&expected));
}

#[test]
fn a_place_is_taken_in_each_queue_until_the_request_passes() {
    let limits = "  first: { key: all, algorithm: gcra, rate: 1/s, burst: 10, delay_after: 0, over_limit: { delay: { max_wait: 1s, max_waiting: 1 } } }
  second: { key: client_address, algorithm: gcra, rate: 6/m, burst: 10, delay_after: 0, over_limit: { delay: { max_wait: 10s } } }";
    // the second request waits for `second` until 10 s, and the others meanwhile for their turn under `first`
    let requests = [(0, 1), (100, 1), (200, 2), (1_000, 2), (1_999, 2), (2_000, 2)];
    let expected =
        [("admitted", 0), ("delayed", 9_900), ("denied", 1_800), ("denied", 1_000), ("denied", 1), ("admitted", 0)];
    assert_eq!(decisions(limits, &requests), decided(&expected));
}
