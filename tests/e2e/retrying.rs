//! A client library that knows nothing of tollgate follows the fields of its responses.

use std::process::Command;

use crate::support::servers::python_with;
use crate::support::{Gateway, Origin};

/// Sends a request, and repeats it once after `Retry-After`; prints the final status and the statuses before it.
const PROGRAM: &str = "
import sys, urllib3
retry = urllib3.util.Retry(total=1, respect_retry_after_header=True)
response = urllib3.PoolManager().request('GET', sys.argv[1], retries=retry)
print(response.status, [attempt.status for attempt in response.retries.history])
";

fn gets_through_on_its_first_retry(headers: &str) {
    let origin = Origin::start();
    let limits = "limits: { guard: { algorithm: gcra, rate: 1/8s, burst: 1, key: all } }\n";
    let route = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
    let gateway = Gateway::start(&format!("{}{limits}{route}{headers}", origin.upstream()));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let url = format!("http://{}/", gateway.address);
    let output = Command::new(python_with("urllib3")).args(["-c", PROGRAM, &url]).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "200 [429]", "{complained}");
    assert_eq!(origin.count(), 2);
}

#[test]
fn a_client_library_gets_through_on_its_first_retry() {
    gets_through_on_its_first_retry("");
}

#[test]
fn a_client_library_gets_through_on_its_first_retry_where_retries_are_spread() {
    gets_through_on_its_first_retry("headers: { retry_after_jitter: 50% }\n");
}
