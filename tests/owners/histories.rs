//! Gateways that come, go and hang while all that can be charged is charged, behind a slow network. Whatever happens, what
//! was used of a key is used once it is quiet again: exactly, unless a gateway stood in for another one; and in that case
//! too nothing that was used before is given out again.
//!
//! `SEED=7 HISTORIES=20` plays the plans of that seed and the 19 after it. A plan says what happens; when messages cross
//! each other the machine says.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;
use tollgate::algorithm::Completion;
use tollgate::charge::{Charge, Enforcement};
use tollgate::clock::Clock;
use tollgate::units::{LimitKey, Nanos};

use crate::network::{Gateway, Network};
use crate::node::{BURST, HELD, MANY, Node, SMALL, one, wait_for};

/// Never spent, and nothing of it comes back meanwhile.
const WHOLE: u64 = 1 << 40;
const KEYS: u64 = 40;
/// So many addresses there are for gateways.
const PLACES: usize = 4;

/// What happens to the gateways.
#[derive(Clone, Copy, Debug)]
enum Event {
    Join,
    Leave,
    /// One hangs.
    Hang(Duration),
}

/// What may happen, and what has to hold.
#[derive(Clone, Copy, Debug)]
struct Setting {
    timeout: Nanos,
    hangs: bool,
}

/// Keys of one number have one owner; no two limits have a key in common.
fn key(limit: usize, number: u64) -> LimitKey {
    let owner = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48 << 48;
    LimitKey(u128::from(owner | (limit as u64) << 32 | number))
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// What was used of each key, as the clients know it.
type Used = Arc<Vec<AtomicU64>>;

/// Charges all keys in every way through one gateway, until it is `over`.
async fn load(node: Arc<Node>, seed: u64, used: Used, over: Arc<AtomicBool>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut running: Vec<Charge> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let number = random.random_range(0..KEYS);
        let cost = random.random_range(1..4);
        let count = &used[usize::try_from(number).unwrap()];
        let charge = Charge { cost, ..one(BURST, key(BURST, number)) };
        match random.random_range(0..6) {
            0 => {
                node.store.debit(&node.binding, &[charge], node.clock.now());
                count.fetch_add(cost, Ordering::Relaxed);
            }
            // denied by another limit, and counts
            1 => {
                let enforcement = Enforcement { counts_denied: true, ..Enforcement::USUAL };
                let denies = Charge { cost: WHOLE * 2, ..one(SMALL, key(SMALL, number)) };
                node.charge(&mut [Charge { enforcement, ..charge }, denies]).await;
                count.fetch_add(cost, Ordering::Relaxed);
            }
            // taken back at once, or while it moves
            2 => {
                let (mut batch, now) = ([charge], node.clock.now());
                let receipt = node.store.charge(&node.binding, &mut batch, now).await;
                let full_at = now.saturating_add(receipt.charged[0].headroom.until_full);
                sleep(Duration::from_millis(random.random_range(0..30))).await;
                let [charge] = batch;
                node.store.refund(&node.binding, &[(charge, full_at)], node.clock.now());
            }
            3 => {
                let mut batch = [one(HELD, key(HELD, number))];
                assert!(node.charge(&mut batch).await.charged[0].decision.is_admitted());
                running.extend(batch);
                if running.len() > 20 {
                    let ends = running.swap_remove(random.random_range(0..running.len()));
                    node.store.complete(&node.binding, &[ends], Completion::UNMEASURED, node.clock.now());
                }
            }
            _ => {
                assert!(node.charge(&mut [charge]).await.charged[0].decision.is_admitted());
                count.fetch_add(cost, Ordering::Relaxed);
            }
        }
        yield_now().await;
    }
    node.store.complete(&node.binding, &running, Completion::UNMEASURED, node.clock.now());
}

struct History {
    network: Network,
    gateways: Vec<Gateway>,
    random: SmallRng,
    setting: Setting,
    used: Used,
    /// What was left of each key when it was quiet last, and what was used then.
    audited: HashMap<u64, (u64, u64)>,
    /// See [`excuses`], of then.
    excused: u64,
    exact: usize,
}

impl History {
    async fn play(seed: u64, setting: Setting) -> usize {
        let mut random = SmallRng::seed_from_u64(seed);
        let delay = Duration::from_millis([0, 2, 7][random.random_range(0..3)]);
        let network = Network::new(PLACES, delay).await;
        let used = (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let mut history = Self {
            network,
            gateways: Vec::new(),
            random,
            setting,
            used: Arc::new(used),
            audited: HashMap::new(),
            excused: 0,
            exact: 0,
        };
        for _ in 0..2 {
            history.join().await;
        }
        history.settle("the start").await;
        for _ in 0..4 {
            let event = history.choose();
            let what = format!("{event:?} of seed {seed} behind {delay:?}");
            history.happens(event).await;
            history.settle(&what).await;
            history.audit(&what).await;
        }
        history.exact
    }

    fn choose(&mut self) -> Event {
        let count = self.gateways.len();
        match self.random.random_range(0..4) {
            0 | 1 if self.setting.hangs => Event::Hang(Duration::from_millis(self.random.random_range(100..900))),
            2 if count < PLACES => Event::Join,
            _ if count > 1 => Event::Leave,
            _ => Event::Join,
        }
    }

    async fn join(&mut self) {
        let is_free = |number: &usize| self.gateways.iter().all(|gateway| gateway.number != *number);
        let number = (0..PLACES).find(is_free).unwrap();
        self.gateways.push(self.network.start(number, WHOLE, self.setting.timeout).await);
    }

    fn loaded(&mut self, gateway: usize, over: &Arc<AtomicBool>) -> JoinHandle<()> {
        let Gateway { node, .. } = &self.gateways[gateway];
        let work = load(Arc::clone(node), self.random.random(), Arc::clone(&self.used), Arc::clone(over));
        self.gateways[gateway].spawn(work)
    }

    async fn happens(&mut self, event: Event) {
        let over = Arc::new(AtomicBool::new(false));
        let mut loads: Vec<JoinHandle<()>> = (0..self.gateways.len()).map(|each| self.loaded(each, &over)).collect();
        let pause = self.random.random_range(20..300);
        sleep(Duration::from_millis(pause)).await;
        let which = self.random.random_range(0..self.gateways.len());
        match event {
            Event::Hang(time) => self.gateways[which].hang(time).await,
            Event::Join => {
                self.join().await;
                self.gateways.last().unwrap().connect().await;
                loads.push(self.loaded(self.gateways.len() - 1, &over));
                wait_for("the new member", || async { self.agree() }).await;
            }
            Event::Leave => {
                let leaves = self.gateways.remove(which);
                leaves.node.cluster().leave();
                sleep(Duration::from_millis(pause)).await;
                // requests end before their gateway does
                over.store(true, Ordering::Relaxed);
                for load in loads.drain(..) {
                    load.await.unwrap();
                }
                wait_for("a gateway to have left", || async { leaves.node.store.is_settled() }).await;
                self.excused = self.excused.saturating_sub(excuses(&leaves));
            }
        }
        sleep(Duration::from_millis(pause)).await;
        over.store(true, Ordering::Relaxed);
        for load in loads {
            load.await.unwrap();
        }
    }

    /// Whether all see each other, and nothing moves any more.
    fn agree(&self) -> bool {
        self.gateways.iter().all(|gateway| {
            let cluster = gateway.node.cluster();
            cluster.report().members.len() == self.gateways.len() && !cluster.is_migrating()
        })
    }

    async fn settle(&self, what: &str) {
        let in_one_place = || {
            let used = self.used.iter().filter(|used| used.load(Ordering::Relaxed) > 0).count() as u64;
            self.gateways.iter().map(|gateway| gateway.node.keys(BURST)).sum::<u64>() <= used
        };
        wait_for(&format!("quiet after {what}"), || async {
            self.agree() && self.gateways.iter().all(|gateway| gateway.node.store.is_settled()) && in_one_place()
        })
        .await;
    }

    async fn audit(&mut self, what: &str) {
        let excused: u64 = self.gateways.iter().map(excuses).sum();
        let is_exact = excused == self.excused;
        self.excused = excused;
        self.exact += usize::from(is_exact);
        for number in 0..KEYS {
            let gateway = self.random.random_range(0..self.gateways.len());
            let used = self.used[usize::try_from(number).unwrap()].load(Ordering::Relaxed);
            let (left_before, used_before) = self.audited.remove(&number).unwrap_or((WHOLE, 0));
            // a gateway that hung may notice it now, and what it has then moves
            wait_for(&format!("what was used of key {number} before {what}"), || async {
                self.left(gateway, BURST, number).await <= left_before
            })
            .await;
            let left = self.left(gateway, BURST, number).await;
            assert!(left <= left_before, "{what}: key {number} had {left_before} left and has {left}");
            let (gone, used_since) = (left_before - left, used - used_before);
            assert!(
                !is_exact || gone == used_since,
                "{what}: of key {number} {used_since} were used, and {gone} are gone"
            );
            self.audited.insert(number, (left, used));
            // an end that was not told comes back in time
            wait_for(&format!("key {number} to be held by nobody after {what}"), || async {
                self.left(gateway, HELD, number).await == MANY
            })
            .await;
        }
    }

    async fn left(&self, gateway: usize, limit: usize, number: u64) -> u64 {
        let gateway = &self.gateways[gateway];
        let node = Arc::clone(&gateway.node);
        gateway.run(async move { node.left(limit, key(limit, number)).await }).await
    }
}

/// How often a gateway decided for another one, or waited for an answer for longer than the promise says.
fn excuses(gateway: &Gateway) -> u64 {
    let report = gateway.node.cluster().report();
    report.stood_in + report.alone + gateway.node.late() as u64
}

/// How often each key passed through gateways that start at nearly the same moment and are asked once they are ready.
async fn start_together(seed: u64) -> (Vec<usize>, u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let delay = Duration::from_millis([0, 2, 7][random.random_range(0..3)]);
    let network = Network::new(PLACES, delay).await;
    let mut passed = vec![0; usize::try_from(KEYS).unwrap()];
    let starts = (0..PLACES).map(|number| (number, Duration::from_millis(random.random_range(0..40)), random.random()));
    let starts: Vec<(usize, Duration, u64)> = starts.collect();
    let gateways = starts.iter().map(|(number, after, seed)| async {
        let mut random = SmallRng::seed_from_u64(*seed);
        sleep(*after).await;
        let gateway = network.start(*number, FEW, Nanos::SECOND).await;
        gateway.connect().await;
        wait_for("a gateway to be ready", || async { gateway.node.cluster().waits_for().is_none() }).await;
        let mut admitted = Vec::new();
        for number in 0..KEYS {
            // some keys are new when the members see each other, others before or after that
            sleep(Duration::from_millis(random.random_range(0..150))).await;
            let node = Arc::clone(&gateway.node);
            admitted.push(gateway.run(async move { node.admitted(BURST, key(BURST, number)).await }).await);
        }
        (gateway, admitted)
    });
    let [one, two, three, four] = <[_; PLACES]>::try_from(gateways.collect::<Vec<_>>()).ok().unwrap();
    let mut excused = 0;
    for (gateway, admitted) in <[_; PLACES]>::from(tokio::join!(one, two, three, four)) {
        passed.iter_mut().zip(admitted).for_each(|(passed, admitted)| *passed += admitted);
        excused += excuses(&gateway);
    }
    (passed, excused)
}

/// The burst of gateways that start together.
const FEW: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_start_together_hand_out_each_burst_once() {
    let first = number_from("SEED", 1);
    for seed in first..first + number_from("HISTORIES", 6) {
        let (passed, excused) = start_together(seed).await;
        let once = passed.iter().all(|passed| *passed == usize::try_from(FEW).unwrap());
        assert!(once || excused > 0, "seed {seed}: {passed:?}");
    }
}

async fn play_all(setting: Setting, count: u64) {
    let first = number_from("SEED", 1);
    let mut exact = 0;
    for seed in first..first + number_from("HISTORIES", count) {
        exact += History::play(seed, setting).await;
    }
    drop(std::io::stderr().write_all(format!("{exact} audits were exact\n").as_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_while_gateways_come_and_go_is_used_once() {
    play_all(Setting { timeout: Nanos::SECOND, hangs: false }, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_is_not_given_out_again_when_gateways_hang() {
    play_all(Setting { timeout: Nanos::new(100_000_000), hangs: true }, 1).await;
}
