//! Limits on concurrent requests, for keys whose owner changes while requests run: the limit is never exceeded, and all
//! slots are free again when the requests have ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::support::cluster::{Nodes, keys, members, wait_for_members};
use crate::support::{Client, Gateway, Origin, SetOnDrop, wait_until};

const KEYS: usize = 30;

/// An upstream that counts the running requests of each key, and ends the requests for `/run` when the test says so.
struct Works {
    origin: Origin,
    ledger: Arc<(Mutex<Ledger>, Condvar)>,
}

#[derive(Default)]
struct Ledger {
    /// For each key, the number of running requests and its maximum so far.
    running: HashMap<String, (usize, usize)>,
    /// Incremented to end all running requests.
    round: usize,
}

impl Works {
    fn start() -> Self {
        let ledger: Arc<(Mutex<Ledger>, Condvar)> = Arc::default();
        let shared = Arc::clone(&ledger);
        let origin = Origin::with(move |exchange| {
            let (key, long) = (exchange.head.all("x-key").concat(), exchange.path() == "/run");
            let (ledger, ended) = &*shared;
            let mut now = ledger.lock();
            let round = now.round;
            let (running, most) = now.running.entry(key.clone()).or_default();
            *running += 1;
            *most = (*most).max(*running);
            if long {
                ended.wait_while(&mut now, |now| now.round == round);
            }
            now.running.get_mut(&key).unwrap().0 -= 1;
            drop(now);
            exchange.reply("200 OK", "", b"ok\n")
        });
        Self { origin, ledger }
    }

    /// The maximum of concurrent requests over all keys.
    fn most(&self) -> usize {
        self.ledger.0.lock().running.values().map(|(_, most)| *most).max().unwrap_or_default()
    }

    fn running(&self) -> usize {
        self.ledger.0.lock().running.values().map(|(running, _)| *running).sum()
    }

    /// Ends all running requests.
    fn end_all(&self) {
        self.ledger.0.lock().round += 1;
        self.ledger.1.notify_all();
    }

    /// Starts one long request of every key through each of `gateways`.
    fn fill(&self, gateways: &[&Gateway]) -> Vec<Client> {
        let mut all = Vec::new();
        for number in 0..KEYS {
            for gateway in gateways {
                let mut client = gateway.client();
                client.send_request("GET", "/run", &[("x-key", &number.to_string())]);
                all.push(client);
            }
        }
        wait_until("all to run", || self.running() == all.len());
        all
    }
}

/// The response to a request of a key that ends at once.
fn ask(client: &mut Client, number: usize) -> (u16, Option<u64>) {
    let response = client.round_trip("GET", "/", &[("x-key", &number.to_string())]);
    assert!(matches!(response.status, 200 | 429), "{response:?}");
    (response.status, response.number("x-ratelimit-remaining"))
}

/// Sends requests for all keys to `gateways` while `during` runs, and a few rounds longer. Returns the number of admitted
/// requests.
fn under_load(gateways: &[&Gateway], during: impl FnOnce()) -> usize {
    let (over, passed, rounds) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for gateway in gateways {
            let mut client = gateway.client();
            let (over, passed, rounds) = (&over, &passed, &rounds);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let passing = (0..KEYS).filter(|number| ask(&mut client, *number).0 == 200).count();
                    passed.fetch_add(passing, Ordering::Relaxed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let ends = SetOnDrop(&over);
        during();
        let enough = rounds.load(Ordering::Relaxed) + 4 * gateways.len();
        wait_until("some rounds", || rounds.load(Ordering::Relaxed) >= enough);
        drop(ends);
    });
    passed.into_inner()
}

/// Waits until no slot of any key is taken, except by the request that asks.
fn wait_for_all_free(gateways: &[&Gateway], limit: u64) {
    for number in 0..KEYS {
        for gateway in gateways {
            let mut client = gateway.client();
            wait_until(&format!("all of key {number} to be free"), || {
                ask(&mut client, number) == (200, Some(limit - 1))
            });
        }
    }
}

fn limit(number: usize) -> String {
    format!("algorithm: concurrency, limit: {number}")
}

/// The number of keys that each of `gateways` keeps.
fn shares(gateways: &[&Gateway]) -> Vec<usize> {
    gateways.iter().map(|gateway| keys(gateway)).collect()
}

#[test]
fn a_gateway_that_ends_leaves_no_more_running_than_the_limit_says() {
    let works = Works::start();
    let mut gateways = Nodes::new(3).start_all(&works.origin, &limit(3));
    let all: Vec<&Gateway> = gateways.iter().collect();
    let mut clients = works.fill(&all);
    assert_eq!(shares(&all).iter().sum::<usize>(), KEYS);
    let mut ends = gateways.pop().unwrap();
    let stay: Vec<&Gateway> = gateways.iter().collect();
    let passed = under_load(&stay, || {
        assert!(keys(&ends) > 0);
        ends.process.signal("TERM");
        wait_for_members(&gateways, 2);
    });
    assert_eq!((passed, works.most()), (0, 3));
    // requests that run through the gateway that shuts down count, too
    works.end_all();
    assert!(clients.iter_mut().all(|client| client.receive().status == 200));
    assert!(ends.process.wait().success());
    wait_for_all_free(&stay, 3);
    drop(clients);
    let both = [stay[0], stay[1], stay[0]];
    let _clients = works.fill(&both);
    assert_eq!(under_load(&stay, || {}), 0);
    assert_eq!(works.most(), 3);
}

#[test]
fn gateways_that_join_and_restart_leave_no_more_running_than_the_limit_says() {
    let works = Works::start();
    let nodes = Nodes::new(3);
    let start = |position| nodes.start(position, &works.origin, "timeout: 1s", &limit(2));
    let gateways: Vec<Gateway> = (0..2).map(start).collect();
    wait_for_members(&gateways, 2);
    let both: Vec<&Gateway> = gateways.iter().collect();
    let mut clients = works.fill(&both);
    let mut third = None;
    let passed = under_load(&both, || third = Some(start(2)));
    assert_eq!(passed, 0);
    let mut third = third.unwrap();
    let is_third = |third: &Gateway| {
        wait_until("three members", || both.iter().chain([&third]).all(|gateway| members(gateway).len() == 3));
        wait_until("keys to move", || keys(third) > 0);
    };
    assert_eq!(under_load(&both, || is_third(&third)), 0);
    let passed = under_load(&both, || {
        third.restart("TERM");
        is_third(&third);
    });
    assert_eq!((passed, works.most()), (0, 2));
    works.end_all();
    assert!(clients.iter_mut().all(|client| client.receive().status == 200));
    let all = [both[0], both[1], &third];
    wait_for_all_free(&all, 2);
    let _clients = works.fill(&all[1..]);
    assert_eq!(under_load(&all, || {}), 0);
    assert_eq!(works.most(), 2);
}

#[test]
fn running_requests_are_counted_again_after_their_owner_is_killed() {
    let works = Works::start();
    let mut gateways = Nodes::new(3).start_all(&works.origin, &limit(2));
    let mut killed = gateways.pop().unwrap();
    let stay: Vec<&Gateway> = gateways.iter().collect();
    let mut clients = works.fill(&stay);
    assert!(keys(&killed) > 0);
    killed.end("KILL");
    wait_for_members(&gateways, 2);
    assert_eq!((under_load(&stay, || {}), works.most()), (0, 2));
    wait_until("all keys to be counted", || shares(&stay).iter().sum::<usize>() == KEYS);
    killed.start_again();
    let passed = under_load(&stay, || {
        wait_until("three members", || stay.iter().chain([&&killed]).all(|gateway| members(gateway).len() == 3));
        wait_until("keys to move", || keys(&killed) > 0);
    });
    assert_eq!((passed, works.most()), (0, 2));
    works.end_all();
    assert!(clients.iter_mut().all(|client| client.receive().status == 200));
    wait_for_all_free(&[stay[0], stay[1], &killed], 2);
}
