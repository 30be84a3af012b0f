//! Seeded histories of three gateways and a Redis: gateways start, end, stall and lose Redis, and one server of Redis or
//! all of them hang, refuse, end and lose their data under charges of every kind. The decisions are checked against the bounds that docs/shared.md
//! states.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollgate::algorithm::{AlgorithmName, Rule, Value};
use tollgate::charge::{Consistency, OnStoreDown, Sharing};
use tollgate::store::shared::BreakerState;
use tollgate::units::{Nanos, Rate};

use crate::client::{Client, FAST, HELD, KEYS, MAX_COST, RATE, SPENT, WIDE, key, rules};
use crate::node::{MANY, in_an_hour, rule};
use crate::oracle::Ledger;
use crate::play::{self, play, play_all};
use crate::shared::redis::{Redis, RedisState, server_of};
use crate::shared::{GATEWAYS, World};
use crate::world::ms;

/// The positions of limits after those of `client::rules`, each with the rate [`RATE`].
const LEASED: usize = HELD + 1;
const STRICT: usize = LEASED + 1;
const EVENTUAL: usize = STRICT + 1;
/// A limit that counts an hour.
const EVENTUAL_WINDOW: usize = EVENTUAL + 1;
/// The longest time until all work is done.
const QUIET_WITHIN: Nanos = Nanos::from_secs(60);

/// A fault, or a gateway that starts or ends.
#[derive(Clone, Debug)]
enum Event {
    Start(usize),
    Leave(usize),
    Die(usize),
    Stall(usize, Nanos),
    Part(usize, Nanos),
    Cut(usize),
    Slow(u64, Nanos),
    /// The servers with these numbers are in a state for some time.
    Serve(Range<usize>, RedisState, Nanos),
    Forget,
}

/// The relation of a gateway to a server of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// Whether the gateway uses the server.
    asks: bool,
    /// Whether the gateway has admitted tokens that the server does not know of.
    owes: bool,
}

/// The changes of standings with any server: the time, the gateway, and the new standings by the numbers of the servers,
/// which are empty after the gateway's end.
type Standings = Arc<Mutex<Vec<(Nanos, usize, Vec<Standing>)>>>;

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
    limits: Vec<(Rule, Sharing)>,
    timeout: Nanos,
    burst: u64,
    slots: u64,
    /// The limit whose first key gets most requests.
    pressed: usize,
    standings: Standings,
    /// The number of times that a whole bucket was lost.
    lost: u64,
    event_log: String,
}

/// The excess that the events of a history allow.
#[derive(Clone, Copy, Debug, Default)]
struct Allowed {
    /// The number of times that a gateway began to decide by its share, without the one gateway per outage that had the
    /// rest.
    shares: u64,
    /// The time in which some gateways decided without Redis while others used it.
    mixed: Nanos,
}

impl Allowed {
    /// Counts the end of an outage, in which each gateway began to decide without Redis `began` times.
    fn end_outage(&mut self, began: [u64; GATEWAYS]) {
        let most = began.into_iter().max().unwrap();
        self.shares += began.into_iter().sum::<u64>().min(most * (GATEWAYS as u64 - 1));
    }
}

impl play::History for History {
    fn new(seed: u64, _is_verbose: bool) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let timeout = *[10, 50, 200].choose(&mut random).unwrap();
        // two round trips in a row finish within the timeout
        let least = (timeout / 40).max(1);
        let delay = (least, random.random_range(least..=(timeout / 10).max(least)));
        let (burst, slots) = (random.random_range(3..=12), random.random_range(1..=4));
        let exact = Sharing { consistency: Consistency::Exact, on_store_down: OnStoreDown::Divide };
        let rate = Rate::new(RATE, Nanos::SECOND).unwrap();
        let fast = rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))]);
        let extra_limits = [
            Consistency::Leased { strict: None },
            Consistency::Leased { strict: Some(GATEWAYS as u64) },
            Consistency::Eventual,
        ];
        let extra_limits = extra_limits.map(|consistency| (fast.clone(), Sharing { consistency, ..exact }));
        let window = in_an_hour(AlgorithmName::FixedWindow, burst);
        let extra_limits =
            extra_limits.into_iter().chain([(window, Sharing { consistency: Consistency::Eventual, ..exact })]);
        let limits = rules(burst, slots).into_iter().map(|rule| (rule, exact)).chain(extra_limits).collect();
        let servers = *[1, 3].choose(&mut random).unwrap();
        let ahead = (0..servers).map(|_| Nanos::from_secs(random.random_range(0..300))).collect();
        let redis = Redis::new(random.random(), delay, ahead);
        let pressed =
            *[0, 2, 4, FAST, FAST, LEASED, LEASED, STRICT, EVENTUAL, EVENTUAL_WINDOW].choose(&mut random).unwrap();
        let mut history = Self {
            world: World::new(ms(least), redis),
            random,
            ledger: Arc::default(),
            loads: Vec::new(),
            limits,
            timeout: ms(timeout),
            burst,
            slots,
            pressed,
            standings: Arc::default(),
            lost: 0,
            event_log: String::new(),
        };
        history.log_event(&format!(
            "{servers} servers, timeout {timeout} ms, {delay:?} ms one way, burst {burst}, {slots} slots, limit {pressed} pressed"
        ));
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
        tracing::info!(%now, "{what}");
    }

    /// Plays a history, with faults unless it is `clean`.
    fn play(&mut self, clean: bool) {
        for number in 0..self.random.random_range(2..=GATEWAYS) {
            self.start(number);
            let pause = self.random.random_range(0..100);
            self.world.pass(ms(pause));
        }
        for _ in 0..self.random.random_range(1..=4) {
            let pause = self.random.random_range(0..3000);
            self.world.pass(ms(pause));
            let Some(event) = self.event(clean) else { continue };
            self.log_event(&format!("{event:?}"));
            self.apply_event(event);
        }
        let pause = self.random.random_range(0..2000);
        self.world.pass(ms(pause));
        self.end();
        self.audit(clean);
    }

    fn start(&mut self, number: usize) {
        let (id, limits, standings) = (self.random.random(), &self.limits, Arc::clone(&self.standings));
        let gateway = self.world.start(number, id, self.timeout, limits);
        let node = Arc::clone(&gateway.node);
        gateway.spawn(async move {
            let mut last = Vec::new();
            loop {
                let servers = node.store.shared().unwrap().servers().into_iter();
                let now: Vec<_> = servers
                    .map(|server| Standing { asks: server.breaker == BreakerState::Closed, owes: server.unsynced > 0 })
                    .collect();
                if last != now {
                    standings.lock().push((node.clock.now(), number, now.clone()));
                    last = now;
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        let (node, ledger) = (Arc::clone(&gateway.node), Arc::clone(&self.ledger));
        let client = Client { gateway: number, node, ledger, extra_limits: LEASED..EVENTUAL_WINDOW + 1 };
        let over = Arc::new(AtomicBool::new(false));
        let presses = client.clone().press(self.pressed, self.random.random(), Arc::clone(&over));
        let runs = client.run(self.random.random(), Arc::clone(&over));
        let task = gateway.spawn(async {
            tokio::join!(presses, runs);
        });
        self.loads.push(Load { gateway: number, over, task });
    }

    fn running(&self) -> Vec<usize> {
        self.world.gateways.iter().map(|gateway| gateway.number).collect()
    }

    fn event(&mut self, clean: bool) -> Option<Event> {
        let running = self.running();
        let number = *running.choose(&mut self.random)?;
        if clean || self.random.random_ratio(1, 4) {
            let missing = (0..GATEWAYS).find(|number| !running.contains(number));
            return match missing {
                Some(missing) if self.random.random() => Some(Event::Start(missing)),
                _ => (running.len() > 1).then_some(Event::Leave(number)),
            };
        }
        let long = ms(self.random.random_range(100..5000));
        let servers = 0..self.world.environment.servers();
        let some = match self.random.random() {
            true => servers,
            false => {
                let one = self.random.random_range(servers);
                one..one + 1
            }
        };
        Some(match self.random.random_range(0..9) {
            0 => Event::Die(number),
            1 => Event::Stall(number, long),
            2 => Event::Part(number, long),
            3 => Event::Cut(number),
            4 => Event::Slow(self.timeout.get() / 1_000_000 * self.random.random_range(1..4), long),
            5 => Event::Serve(some, RedisState::Hanging, long),
            6 => Event::Serve(some, RedisState::OutOfMemory, long),
            7 => Event::Serve(some, RedisState::Stopped, long),
            _ => Event::Forget,
        })
    }

    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Start(number) => self.start(number),
            Event::Leave(number) => {
                self.finish(|load| load.gateway == number);
                let is_settled = |world: &mut World| world.gateway(number).node.store.is_settled();
                assert!(self.world.wait_until(QUIET_WITHIN, is_settled), "gateway {number} does not get done");
                self.remove(number);
            }
            Event::Die(number) => {
                self.loads.retain(|load| load.gateway != number);
                self.ledger.lock().die(number);
                self.remove(number);
            }
            Event::Stall(number, time) => {
                self.world.stall(number, time);
                self.world.pass(time);
            }
            Event::Part(number, time) => {
                self.world.environment.network.part(number);
                self.world.pass(time);
                self.world.environment.network.heal(number, self.world.now);
            }
            Event::Cut(number) => self.world.environment.network.cut(number),
            Event::Slow(more, time) => {
                self.world.environment.network.slow(more);
                self.world.pass(time);
                self.world.environment.network.slow(0);
            }
            Event::Serve(servers, state, time) => {
                let serve = |world: &World, state| {
                    servers.clone().for_each(|server| world.environment.network.serve(server, state, world.now));
                };
                serve(&self.world, state);
                self.world.pass(time);
                serve(&self.world, RedisState::Up);
            }
            Event::Forget => {
                self.lost += 1;
                self.world.environment.forget();
            }
        }
    }

    /// Ends a gateway; its unreconciled tokens are never charged.
    fn remove(&mut self, number: usize) {
        let owes = self.world.gateway(number).node.store.shared().unwrap().report().unsynced > 0;
        self.lost += u64::from(owes);
        self.standings.lock().push((self.world.now, number, Vec::new()));
        self.world.remove(number);
    }

    /// Ends the selected requests.
    fn finish(&mut self, which: impl Fn(&Load) -> bool) {
        let (ends, stay): (Vec<Load>, Vec<Load>) = self.loads.drain(..).partition(which);
        self.loads = stay;
        ends.iter().for_each(|load| load.over.store(true, Ordering::Relaxed));
        let are_over = |_: &mut World| ends.iter().all(|load| load.task.is_finished());
        assert!(self.world.wait_until(QUIET_WITHIN, are_over), "requests do not end");
    }

    /// Ends all requests, and waits until all work is done.
    fn end(&mut self) {
        self.log_event("ends");
        self.finish(|_| true);
        if self.running().is_empty() {
            self.start(0);
            self.finish(|_| true);
        }
        let is_quiet = |world: &mut World| {
            world.gateways.iter().all(|gateway| {
                let report = gateway.node.store.shared().unwrap().report();
                report.breaker == BreakerState::Closed && report.unsynced == 0 && gateway.node.store.is_settled()
            })
        };
        assert!(self.world.wait_until(QUIET_WITHIN, is_quiet), "it does not become quiet");
        self.world.pass(Nanos::from_secs(2));
    }

    // === the guarantees ===

    /// The excess that the events allow for the keys of a server.
    fn allowed(&self, server: usize) -> Allowed {
        let (mut allowed, mut now, mut standing) = (Allowed::default(), Nanos::ZERO, [None; GATEWAYS]);
        // the number of times that each gateway began to decide alone in the present outage
        let mut began = [0; GATEWAYS];
        for (at, number, next) in &*self.standings.lock() {
            let next = next.get(server).copied();
            let alone = |one: &Option<Standing>| one.is_some_and(|one| !one.asks || one.owes);
            let (is_outage, others_ask) = (standing.iter().any(alone), standing.iter().flatten().any(|one| one.asks));
            if is_outage && others_ask {
                allowed.mixed = allowed.mixed.saturating_add(at.saturating_sub(now));
            }
            began[*number] += u64::from(alone(&next) && !alone(&standing[*number]));
            (now, standing[*number]) = (*at, next);
            if is_outage && !standing.iter().any(alone) {
                allowed.end_outage(began);
                began = [0; GATEWAYS];
            }
        }
        allowed.end_outage(began);
        allowed
    }

    fn audit(&mut self, clean: bool) {
        let servers = self.world.environment.servers();
        let allowed: Vec<Allowed> = (0..servers).map(|server| self.allowed(server)).collect();
        let is_alone = allowed.iter().any(|allowed| allowed.shares > 0);
        assert!(!clean || !is_alone, "without a fault some decided without Redis: {allowed:?}");
        let allowed = |bucket| allowed[server_of(key(bucket), servers)];
        let (burst, gateways) = (self.burst, GATEWAYS as u64);
        // a share, but at least one request, for each time that a gateway did not know of the others' requests when an
        // outage began; and the lost buckets
        let share = burst.div_ceil(gateways).max(MAX_COST);
        let more = |allowed: Allowed| allowed.shares * share + self.lost * burst;
        let through = self.running()[0];
        for number in 0..KEYS {
            let slots = self.slots;
            let whole = |world: &mut World| {
                let node = Arc::clone(&world.gateway(through).node);
                world.run_on(through, async move { node.left(HELD, key((HELD, number))).await == slots })
            };
            assert!(self.world.wait_until(Nanos::from_secs(40), whole), "a slot of key {number} is held for ever");
            let node = Arc::clone(&self.world.gateway(through).node);
            let left = self.world.run_on(through, async move { node.left(WIDE, key((WIDE, number))).await });
            let used = self.ledger.lock().used.get(&number).copied().unwrap_or(0);
            assert!(
                !clean || MANY - left == used,
                "of wide key {number} {used} were used, and {} are gone",
                MANY - left
            );
        }
        let windows = (0..SPENT.len()).map(|limit| (limit, 0)).chain([(EVENTUAL_WINDOW, (gateways - 1) * burst)]);
        for (bucket, ahead) in windows.flat_map(|(limit, ahead)| (0..KEYS).map(move |number| ((limit, number), ahead)))
        {
            let node = Arc::clone(&self.world.gateway(through).node);
            let rest = self.world.run_on(through, async move { node.admitted(bucket.0, key(bucket)).await as u64 });
            let total = self.ledger.lock().total(bucket) + rest;
            let (allowed, more) = (allowed(bucket), more(allowed(bucket)));
            assert!(
                total <= burst + ahead + more,
                "key {bucket:?} let {total} of {burst} pass, and {ahead} and {more} more are allowed: {allowed:?}"
            );
            assert!(!clean || (burst..=burst + ahead).contains(&total), "key {bucket:?} let {total} of {burst} pass");
        }
        let ledger = self.ledger.lock();
        for (limit, ahead) in [(FAST, 0), (LEASED, burst / 2), (STRICT, 0), (EVENTUAL, (gateways - 1) * burst)] {
            for number in 0..KEYS {
                let above = ledger.max_excess((limit, number), RATE);
                let allowed = allowed((limit, number));
                // and the tokens that refilled before the others knew of the usage, when outages ended
                let more = more(allowed) + allowed.shares * share;
                let by_rate = allowed.mixed.get() * RATE * (gateways - 1) / gateways / Nanos::SECOND.get();
                assert!(
                    above <= burst + ahead + more + by_rate,
                    "key {number} of limit {limit} let {above} pass above its rate, of {burst}, where {ahead}, {more} and {by_rate} \
                     more are allowed: {allowed:?}"
                );
            }
        }
        let most = ledger.most_running() as u64;
        // the requests of one gateway when the others began to decide by their shares, each rounded up
        let shares = if ledger.alone > 0 { (gateways - 1) * self.slots.div_ceil(gateways) } else { 0 };
        let bound = self.slots * (1 + self.lost) + shares;
        assert!(most <= bound, "{most} requests ran at once in {} slots", self.slots);
    }
}

/// Plays a history; every third one has no faults.
fn any(history: &mut History, seed: u64) {
    history.play(seed.is_multiple_of(3));
}

#[test]
fn shared_limits_admit_what_the_documentation_says_whatever_happens() {
    play_all(40, any);
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in 1..=6 {
        let play = || play(seed, false, any as fn(&mut History, u64));
        assert_eq!(play(), play(), "seed {seed}");
    }
}
