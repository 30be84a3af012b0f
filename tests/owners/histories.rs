//! Gateways that come, go and hang while all that can be charged is charged, behind a slow network. Whatever happens, what
//! was used of a key is used once it is quiet again: exactly, unless a gateway stood in for another one; and in that case
//! too nothing that was used before is given out again.
//!
//! `SEED=7 HISTORIES=20` plays the plans of that seed and the 19 after it. A plan says what happens; when messages cross
//! each other the machine says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;
use tollgate::algorithm::Completion;
use tollgate::charge::{Charge, Manner};
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

fn key(number: u64) -> LimitKey {
    LimitKey(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number))
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
        let (key, cost) = (key(number), random.random_range(1..4));
        let count = &used[usize::try_from(number).unwrap()];
        let charge = Charge { cost, ..one(BURST, key) };
        match random.random_range(0..6) {
            0 => {
                node.store.debit(&node.binding, &[charge], node.clock.now());
                count.fetch_add(cost, Ordering::Relaxed);
            }
            // denied by another limit, and counts
            1 => {
                let manner = Manner { counts_denied: true, ..Manner::USUAL };
                let denies = Charge { cost: WHOLE * 2, ..one(SMALL, key) };
                node.charge(&mut [Charge { manner, ..charge }, denies]).await;
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
                let mut batch = [one(HELD, key)];
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
    /// How often gateways had stood in for others by then.
    stood_in: u64,
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
            stood_in: 0,
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
                self.stood_in = self.stood_in.saturating_sub(stood_in(&leaves));
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
            cluster.report().members.len() == self.gateways.len() && !cluster.is_moving()
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
        let stood_in = self.gateways.iter().map(stood_in).sum();
        let is_exact = stood_in == self.stood_in;
        assert!(is_exact || self.setting.hangs, "{what}: a gateway stood in for another one, which did not hang");
        self.stood_in = stood_in;
        self.exact += usize::from(is_exact);
        for number in 0..KEYS {
            let asked = &self.gateways[self.random.random_range(0..self.gateways.len())];
            let node = Arc::clone(&asked.node);
            let (left, free) = asked
                .run(async move { (node.left(BURST, key(number)).await, node.left(HELD, key(number)).await) })
                .await;
            let used = self.used[usize::try_from(number).unwrap()].load(Ordering::Relaxed);
            let (left_before, used_before) = self.audited.insert(number, (left, used)).unwrap_or((WHOLE, 0));
            let gone = left_before.checked_sub(left);
            let gone = gone.unwrap_or_else(|| panic!("{what}: key {number} had {left_before} left and has {left}"));
            assert!(gone <= used - used_before || self.setting.hangs, "{what}: key {number} lost {gone}");
            assert!(
                !is_exact || gone == used - used_before,
                "{what}: of key {number} {} were used, and {gone} are gone",
                used - used_before
            );
            assert_eq!(free, MANY, "{what}: key {number} is held by nobody");
        }
    }
}

fn stood_in(gateway: &Gateway) -> u64 {
    let report = gateway.node.cluster().report();
    report.stood_in + report.alone
}

async fn play_all(setting: Setting, count: u64) {
    let first = number_from("SEED", 1);
    let mut exact = 0;
    for seed in first..first + number_from("HISTORIES", count) {
        exact += History::play(seed, setting).await;
    }
    assert!(setting.hangs || exact > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_while_gateways_come_and_go_is_used_once() {
    play_all(Setting { timeout: Nanos::SECOND, hangs: false }, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_is_not_given_out_again_when_gateways_hang() {
    play_all(Setting { timeout: Nanos::new(100_000_000), hangs: true }, 2).await;
}
