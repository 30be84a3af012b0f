//! Reloads while clients send requests without a pause.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::gateway::ALL_GUARDED;
use crate::support::{Gateway, Origin, SetOnDrop, now, wait_until};

/// A limit that admits every request, and one that the key `spent` has used up.
fn config(origin: &Origin, version: usize) -> String {
    format!(
        "{}limits:
  guard: {{ algorithm: gcra, rate: 1000000/s, burst: {}, key: client_address }}
  few: {{ algorithm: gcra, rate: 1/d, burst: {}, key: {{ header: x-key }}, missing_key: skip }}
{}",
        origin.upstream(),
        1_000_000 + version,
        5 + version % 7,
        ALL_GUARDED.replace("[guard]", "[guard, few]"),
    )
}

struct Figures {
    requests: usize,
    /// The duration of each request.
    times: Vec<Duration>,
}

/// Lets clients send requests without a pause while `work` runs.
fn under_load(gateway: &Gateway, clients: usize, work: impl FnOnce()) -> Figures {
    under_load_of(gateway, clients, Duration::ZERO, work)
}

/// Lets each client send one request in `every` while `work` runs.
fn under_load_of(gateway: &Gateway, clients: usize, every: Duration, work: impl FnOnce()) -> Figures {
    let over = AtomicBool::new(false);
    let requests = AtomicUsize::new(0);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    // One connection for all requests, so that a reset fails the test.
                    let mut client = gateway.client();
                    let mut times = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let began = now();
                        let answer = client.get("/");
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        times.push(now() - began);
                        requests.fetch_add(1, Ordering::Relaxed);
                        rest_until(began + every);
                    }
                    times
                })
            })
            .collect();
        // A client that fails ends its thread, and the join reports it.
        let at_end = SetOnDrop(&over);
        work();
        drop(at_end);
        for thread in threads {
            times.extend(thread.join().unwrap());
        }
    });
    times.sort_unstable();
    Figures { requests: requests.into_inner(), times }
}

/// Blocks this thread until `due`.
fn rest_until(due: Instant) {
    while let Some(left) = due.checked_duration_since(now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Changes the file in one of five ways, in turn.
fn change(gateway: &Gateway, origin: &Origin, round: usize) {
    let folder = gateway.folder.path();
    let path = folder.join("tollgate.yaml");
    let text = gateway.complete_config(&config(origin, round));
    match round % 5 {
        0 => gateway.rewrite(&config(origin, round)),
        1 => {
            fs::write(folder.join("next"), text).unwrap();
            fs::rename(folder.join("next"), &path).unwrap();
        }
        2 => fs::write(&path, text.split_at(text.len() * 2 / 3).0).unwrap(),
        3 => {
            let target = folder.join(format!("v{round}.yaml"));
            fs::write(&target, text).unwrap();
            symlink(target, folder.join("next")).unwrap();
            fs::rename(folder.join("next"), &path).unwrap();
        }
        _ => {
            drop(fs::remove_file(&path));
            fs::write(&path, "limits: [nonsense\n").unwrap();
        }
    }
}

/// Makes a change in each of `rounds`, and checks it before the next; a spent key stays spent throughout.
fn change_often(gateway: &Gateway, origin: &Origin, rounds: Range<usize>) {
    let mut spent = gateway.client();
    for round in rounds {
        change(gateway, origin, round);
        let answer = gateway.reload();
        let is_good = matches!(round % 5, 0 | 1 | 3);
        assert_eq!(answer.status, if is_good { 200 } else { 422 }, "round {round}: {answer:?}");
        assert_eq!(spent.round_trip("GET", "/", &[("x-key", "spent")]).status, 429, "round {round}");
    }
}

fn spend(gateway: &Gateway) {
    let mut client = gateway.client();
    wait_until("the key to be spent", || client.round_trip("GET", "/", &[("x-key", "spent")]).status == 429);
}

#[test]
fn reloads_under_load_fail_no_request_and_reset_no_connection() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, 0));
    spend(&gateway);
    let figures = under_load(&gateway, 4, || change_often(&gateway, &origin, 0..200));
    assert!(figures.requests > 100, "{}", figures.requests);
    let reloads = |result| gateway.metrics().value("tollgate_config_reloads_total", &[("result", result)]).unwrap();
    assert!(reloads("success") >= 120.0, "{}", reloads("success"));
    assert!(reloads("failure") >= 80.0, "{}", reloads("failure"));
}

#[test]
fn the_last_of_many_changes_is_in_force_soon() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, 0));
    // The best of three, because a busy machine may delay one of them.
    let soonest = |versions: Range<usize>, earlier: usize| {
        let times = versions.map(|version| {
            (0..earlier).for_each(|round| change(&gateway, &origin, round));
            gateway.rewrite(&config(&origin, version));
            let began = now();
            wait_until("the last one", || {
                let policy = gateway.get("/", &[]).field("ratelimit-policy").unwrap().to_owned();
                policy.contains(&format!("q={}", 1_000_000 + version))
            });
            now() - began
        });
        times.min().unwrap()
    };
    let (alone, last) = (soonest(100..103, 0), soonest(103..106, 20));
    assert!(last < alone * 6, "{last:?} after other changes, {alone:?} without");
}

/// The interval between the requests of each client, and between changes of the file.
const REQUEST_EVERY: Duration = Duration::from_millis(4);
const CHANGE_EVERY: Duration = Duration::from_millis(40);
/// The number of changes in a part, of parts to warm up, and of parts to measure.
const PART: usize = 100;
const WARM_UP: usize = 5;
const MEASURED: usize = 10;

/// The durations of requests while `work` runs one step in every [`CHANGE_EVERY`].
fn paced(gateway: &Gateway, mut work: impl FnMut(usize)) -> Vec<Duration> {
    let figures = under_load_of(gateway, 4, REQUEST_EVERY, || {
        let began = now();
        for (step, due) in (0..PART).zip(1..) {
            work(step);
            rest_until(began + CHANGE_EVERY * due);
        }
    });
    figures.times
}

/// `cargo test --release --test e2e -- --ignored --nocapture thousand_reloads` prints the figures.
#[test]
#[ignore = "takes minutes, and its figures mean something on an idle machine only"]
#[expect(clippy::print_stderr, reason = "figures for whoever runs it")]
fn a_thousand_reloads_cost_little() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, 0));
    spend(&gateway);
    let memory = || gateway.metrics().value("process_resident_memory_bytes", &[]).unwrap() / 1e6;
    // alternating, so that other load on the machine affects both measurements alike
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let mut play = |part: usize| {
        quiet.extend(paced(&gateway, |_| ()));
        busy.extend(paced(&gateway, |step| {
            let round = part * PART + step;
            change_often(&gateway, &origin, round..round + 1);
        }));
    };
    // the first parts allocate the memory that requests and changes need
    (0..WARM_UP).for_each(&mut play);
    let before = memory();
    (WARM_UP..WARM_UP + MEASURED).for_each(&mut play);
    let after = memory();
    let p99 = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    let (requests, quiet, busy) = (busy.len(), p99(&mut quiet), p99(&mut busy));
    eprintln!("{} reloads under {requests} requests, none failed", PART * (WARM_UP + MEASURED));
    eprintln!("p99 without reloads {quiet:?}, with reloads {busy:?}");
    eprintln!("memory before {before:.1} MB, after {after:.1} MB ({:+.1} %)", (after / before - 1.0) * 100.0);
    assert!(after < before * 1.05, "{before} MB became {after} MB");
    assert!(busy < quiet.mul_f64(1.1), "{quiet:?} became {busy:?}");
}
