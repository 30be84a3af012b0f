//! Seeded histories of three gateways in virtual time: they start, join, leave, stall, die and are partitioned under
//! charges of every kind. The decisions are checked against the bounds that docs/cluster.md states.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollgate::cluster::members::MemberState;
use tollgate::store::LocalStore;
use tollgate::units::Nanos;

use crate::client::{Client, FAST, HELD, KEYS, RATE, SPENT, WIDE, key, rules};
use crate::cluster::fleet::World;
use crate::cluster::network::{Pair, pair};
use crate::node::{MANY, Node, Setup};
use crate::oracle::Ledger;
use crate::play::{self, play, play_all};
use crate::world::ms;

const GATEWAYS: usize = 3;
/// The longest time until the cluster is quiet.
const QUIET_WITHIN: Nanos = Nanos::from_secs(60);

/// An event in a history.
#[derive(Clone, Debug)]
enum Event {
    Start(usize),
    Leave(usize),
    Restart(usize),
    Stall(usize, Nanos),
    Die { number: usize, silent: bool },
    Part(Vec<Pair>, Nanos),
    Cut(Pair),
    Slow(Pair, u64, Nanos),
}

/// The running requests of a gateway.
struct Load {
    gateway: usize,
    over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

struct History {
    world: World,
    random: SmallRng,
    ledger: Arc<Mutex<Ledger>>,
    loads: Vec<Load>,
    setup: Arc<Setup>,
    burst: u64,
    slots: u64,
    /// The number of additional buckets of each key that the events so far allow.
    more: usize,
    is_verbose: bool,
    event_log: String,
}

impl play::History for History {
    fn new(seed: u64, is_verbose: bool) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let timeout = *[100, 200, 400].choose(&mut random).unwrap();
        // a round trip within an eighth of the timeout
        let least = timeout / 24;
        let delay = (least, random.random_range(least..=timeout / 16));
        let (burst, slots) = (random.random_range(3..=12), random.random_range(1..=4));
        let limits = rules(burst, slots).into_iter().map(|rule| (rule, 1000)).collect();
        let mut setup = Setup::new(ms(timeout), GATEWAYS.div_ceil(2), limits);
        let one_thread = random.random_ratio(7, 8);
        setup.states = if one_thread { LocalStore::for_one_thread } else { LocalStore::new };
        let world = World::of(random.random(), 3, delay, setup);
        let setup = Arc::clone(&world.environment.setup);
        let mut history = Self {
            world,
            random,
            ledger: Arc::default(),
            loads: Vec::new(),
            setup,
            burst,
            slots,
            more: 0,
            is_verbose,
            event_log: String::new(),
        };
        history.log_event(&format!("timeout {timeout} ms, {delay:?} ms one way, burst {burst}, {slots} slots"));
        history
    }

    fn digest(&self) -> u64 {
        self.ledger.lock().digest()
    }

    fn event_log(&self) -> &str {
        &self.event_log
    }
}

impl History {
    fn log_event(&mut self, what: &str) {
        let now = self.world.elapsed();
        writeln!(self.event_log, "{now} {what}").unwrap();
        if self.is_verbose {
            tracing::info!(%now, "{what}");
        }
    }

    /// Plays a history, with faults unless it is `clean`.
    fn play(&mut self, clean: bool) {
        self.begin();
        for _ in 0..self.random.random_range(1..=4) {
            let pause = self.random.random_range(0..3000);
            self.pass(ms(pause));
            if self.random.random() {
                self.settle();
            }
            let event = if clean || self.random.random_ratio(1, 3) { self.change() } else { self.fault() };
            let Some(event) = event else { continue };
            self.log_event(&format!("{event:?}"));
            self.apply_event(event);
        }
        let pause = self.random.random_range(0..2000);
        self.pass(ms(pause));
        self.end();
        self.audit();
    }

    /// Starts gateways, most often at nearly the same moment.
    fn begin(&mut self) {
        let apart = *[1, 60, 4000].choose(&mut self.random).unwrap();
        let count = self.random.random_range(2..=GATEWAYS);
        for number in 0..count {
            self.log_event(&format!("start {number}"));
            self.start(number);
            let pause = self.random.random_range(0..apart);
            self.pass(ms(pause));
        }
        let ready =
            |world: &mut World| world.gateways.iter().all(|gateway| gateway.node.cluster().waits_for().is_none());
        assert!(self.world.wait_until(QUIET_WITHIN, ready), "the gateways are not ready");
    }

    /// A member leaves about when another gateway joins or leaves, while a few keys get very many requests.
    fn change_twice(&mut self) {
        self.begin();
        self.settle();
        for number in self.running() {
            let key = self.random.random_range(0..KEYS);
            self.load(number, move |client, ends| client.hammer(key, ends));
        }
        let leaves = *self.running().choose(&mut self.random).unwrap();
        if let Some(joins) = (0..GATEWAYS).find(|number| !self.running().contains(number)) {
            self.log_event(&format!("{joins} joins, {leaves} leaves"));
            self.start(joins);
            let pause = self.random.random_range(1900..2300);
            self.pass(ms(pause));
        } else {
            let first = (leaves + 1) % GATEWAYS;
            self.log_event(&format!("{first} and {leaves} leave"));
            self.world.gateway(first).node.cluster().leave();
            let pause = self.random.random_range(0..100);
            self.pass(ms(pause));
            self.world.gateway(leaves).node.cluster().leave();
            self.leave(first);
        }
        self.leave(leaves);
        self.end();
        self.audit();
    }

    /// Starts a gateway; it gets requests once it is ready.
    fn start(&mut self, number: usize) {
        self.world.start(number);
        let seed = self.random.random();
        self.load(number, move |client, ends| async move {
            client.node.store.connect().await;
            while client.node.cluster().waits_for().is_some() {
                sleep(Duration::from_millis(5)).await;
            }
            client.run(seed, ends).await;
        });
    }

    /// Sends `requests` through a gateway until they have to end.
    fn load<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        number: usize,
        requests: impl FnOnce(Client, Arc<AtomicBool>) -> F,
    ) {
        let gateway = self.world.gateway(number);
        let client = Client {
            gateway: number,
            node: Arc::clone(&gateway.node),
            ledger: Arc::clone(&self.ledger),
            extra_limits: 0..0,
        };
        let over = Arc::new(AtomicBool::new(false));
        let task = gateway.spawn(requests(client, Arc::clone(&over)));
        self.loads.push(Load { gateway: number, over, task });
    }

    fn pass(&mut self, time: Nanos) {
        self.world.pass(time);
    }

    /// Waits until all gateways see the same members.
    fn settle(&mut self) {
        self.log_event("settles");
        let agree = |world: &mut World| world.agree();
        assert!(self.world.wait_until(QUIET_WITHIN, agree), "the gateways do not agree");
    }

    fn running(&self) -> Vec<usize> {
        self.world.gateways.iter().map(|gateway| gateway.number).collect()
    }

    /// The start of a gateway, or an orderly leave.
    fn change(&mut self) -> Option<Event> {
        let missing: Vec<usize> = (0..GATEWAYS).filter(|number| !self.running().contains(number)).collect();
        if let Some(number) = missing.choose(&mut self.random)
            && self.random.random()
        {
            return Some(Event::Start(*number));
        }
        let number = *self.running().choose(&mut self.random)?;
        // another member has to take the keys
        let is_member = |number| self.world.gateway(number).node.cluster().report().member_state == MemberState::Member;
        let others = self.running().into_iter().any(|other| other != number && is_member(other));
        (others && is_member(number)).then(|| match self.random.random() {
            true => Event::Leave(number),
            false => Event::Restart(number),
        })
    }

    fn fault(&mut self) -> Option<Event> {
        let running = self.running();
        let number = *running.choose(&mut self.random)?;
        let other = *running.iter().filter(|other| **other != number).collect::<Vec<_>>().choose(&mut self.random)?;
        let between = pair(number, *other);
        let timeout = self.setup.timeout.get() / 1_000_000;
        let event = match self.random.random_range(0..6) {
            0 => Event::Stall(number, ms(self.random.random_range(timeout..=1000))),
            1 => Event::Stall(number, ms(self.random.random_range(1000..4000))),
            2 => Event::Die { number, silent: self.random.random() },
            3 => {
                let alone = (0..GATEWAYS).filter(|other| *other != number).map(|other| pair(number, other)).collect();
                let partitioned = if self.random.random() { alone } else { vec![between] };
                Event::Part(partitioned, ms(self.random.random_range(100..5000)))
            }
            4 => Event::Cut(between),
            _ => {
                Event::Slow(between, timeout * self.random.random_range(1..4), ms(self.random.random_range(100..2000)))
            }
        };
        Some(event)
    }

    fn apply_event(&mut self, event: Event) {
        let before = self.late();
        match event {
            Event::Start(number) => self.start(number),
            Event::Leave(number) => self.leave(number),
            Event::Restart(number) => {
                self.leave(number);
                self.start(number);
            }
            Event::Stall(number, time) => {
                self.world.stall(number, time);
                self.pass(time);
                // each of the others may consider it lost once, at another time
                self.more += (self.late() - before).clamp(1, GATEWAYS - 1);
            }
            Event::Die { number, silent } => {
                self.more += 1;
                self.world.end(number, silent);
                self.loads.retain(|load| load.gateway != number);
                self.ledger.lock().die(number);
            }
            Event::Part(partitioned, time) => {
                self.more += 1;
                self.world.environment.network.part(partitioned);
                self.pass(time);
                self.world.environment.network.heal(self.world.now);
            }
            Event::Cut(between) => {
                self.more += 1;
                self.world.environment.network.cut(between);
            }
            Event::Slow(between, more, time) => {
                self.world.environment.network.slow(Some((between, more)));
                self.pass(time);
                self.world.environment.network.slow(None);
                self.pass(ms(2 * more));
                self.more += self.late() - before;
            }
        }
    }

    /// The number of times that an owner did not answer in time, so that a stand-in decided, or that a former owner did not
    /// hand over a state.
    fn late(&self) -> usize {
        let unfetched: u64 = self.world.reports().iter().map(|report| report.decisions[2].1).sum();
        self.setup.unanswered.load(Ordering::Relaxed) + usize::try_from(unfetched).unwrap()
    }

    fn leave(&mut self, number: usize) {
        self.world.gateway(number).node.cluster().leave();
        let pause = self.random.random_range(0..500);
        self.pass(ms(pause));
        self.finish(|load| load.gateway == number);
        let has_left = |world: &mut World| world.gateway(number).node.store.is_settled();
        assert!(self.world.wait_until(QUIET_WITHIN, has_left), "gateway {number} does not get done with leaving");
        self.world.end(number, false);
    }

    /// Ends the selected requests.
    fn finish(&mut self, which: impl Fn(&Load) -> bool) {
        let (ends, stay): (Vec<Load>, Vec<Load>) = self.loads.drain(..).partition(which);
        self.loads = stay;
        ends.iter().for_each(|load| load.over.store(true, Ordering::Relaxed));
        let are_over = |_: &mut World| ends.iter().all(|load| load.task.is_finished());
        assert!(self.world.wait_until(QUIET_WITHIN, are_over), "requests do not end");
    }

    /// Ends all requests, and waits until the cluster is quiet.
    fn end(&mut self) {
        self.log_event("ends");
        self.finish(|_| true);
        let is_quiet = self.world.wait_until(QUIET_WITHIN, |world| world.is_quiet());
        assert!(is_quiet, "it does not become quiet: {:#?}", self.world.reports());
        self.pass(Nanos::from_secs(2));
    }

    // === the guarantees ===

    fn audit(&mut self) {
        let kept = |limit: usize| self.world.gateways.iter().map(|gateway| gateway.node.keys(limit)).sum::<u64>();
        let touched =
            |limit: usize| self.ledger.lock().touched.iter().filter(|bucket| bucket.0 == limit).count() as u64;
        for limit in 0..=WIDE {
            assert!(
                kept(limit) <= touched(limit),
                "limit {limit} has {} keys in {} places",
                touched(limit),
                kept(limit)
            );
        }
        let gateways = self.running();
        let through = gateways[self.random.random_range(0..gateways.len())];
        for number in 0..KEYS {
            let slots = self.slots;
            let whole = |world: &mut World| {
                ask(world, through, move |node| async move { node.left(HELD, key((HELD, number))).await == slots })
            };
            assert!(self.world.wait_until(Nanos::from_secs(40), whole), "a slot of key {number} is held for ever");
            for gateway in &gateways {
                let left =
                    ask(
                        &mut self.world,
                        *gateway,
                        move |node| async move { node.left(WIDE, key((WIDE, number))).await },
                    );
                let used = self.ledger.lock().used.get(&number).copied().unwrap_or(0);
                assert!(
                    self.more > 0 || MANY - left == used,
                    "of wide key {number} {used} were used, and {} are gone",
                    MANY - left
                );
            }
        }
        let allowed = 1 + self.more as u64;
        for bucket in (0..SPENT.len()).flat_map(|limit| (0..KEYS).map(move |number| (limit, number))) {
            let rest =
                ask(
                    &mut self.world,
                    through,
                    move |node| async move { node.admitted(bucket.0, key(bucket)).await as u64 },
                );
            let total = self.ledger.lock().total(bucket) + rest;
            assert!(
                total <= self.burst * allowed,
                "key {bucket:?} let {total} of {} pass, where {allowed} times that are allowed",
                self.burst
            );
            assert!(self.more > 0 || total == self.burst, "key {bucket:?} let {total} of {} pass", self.burst);
        }
        let ledger = self.ledger.lock();
        for number in 0..KEYS {
            let above = ledger.max_excess((FAST, number), RATE * allowed);
            assert!(
                above <= self.burst * allowed,
                "fast key {number} let {above} pass above its rate, of {}",
                self.burst
            );
        }
        let most = ledger.most_running() as u64;
        assert!(most <= self.slots * allowed, "{most} requests ran at once in {} slots", self.slots);
    }
}

/// The answer of a gateway's node.
fn ask<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    world: &mut World,
    gateway: usize,
    asks: impl FnOnce(Arc<Node>) -> F,
) -> T {
    let work = asks(Arc::clone(&world.gateway(gateway).node));
    world.run_on(gateway, work)
}

/// Plays a history; every third one has no faults.
fn any(history: &mut History, seed: u64) {
    history.play(seed.is_multiple_of(3));
}

#[test]
fn gateways_admit_what_the_documentation_says_whatever_happens() {
    play_all(40, any);
}

#[test]
fn two_changes_of_members_at_once_lose_no_use() {
    play_all(30, |history: &mut History, _| history.change_twice());
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in 1..=6 {
        assert_eq!(play(seed, false, any), play(seed, false, any), "seed {seed}");
    }
}
