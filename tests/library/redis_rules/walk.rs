//! Random requests, refunds, debts and changes of limits, first in the model, then in Redis, many in one round trip.

use tollgate::algorithm::{AlgorithmName, Decision, Denial, Headroom};
use tollgate::charge::Enforcement;
use tollgate::store::redis::{Call, Encoded, SharedRule};
use tollgate::units::Nanos;

use crate::algorithms::limit::Limit;
use crate::algorithms::limits::{Domain, random_limit};
use crate::algorithms::random::Random;
use crate::redis_link::server::Server;
use crate::redis_rules::compare;
use crate::redis_rules::model::{Model, Part};
use crate::redis_rules::script::Scripted;
use crate::redis_rules::step::{Asked, Expected, Step};

const DAY: u64 = 86_400_000_000_000;
/// The start of 2026, in nanoseconds since the Unix epoch.
const NOWADAYS: u64 = 1_767_225_600_000_000_000;
/// Longer than any walk.
const LIFETIME: Nanos = Nanos::MAX;

/// One limit of a walk, with its current parameters.
struct Limited {
    limit: Limit,
    shared: SharedRule,
    name: String,
}

/// A charge that can be refunded.
struct Taken {
    limited: usize,
    cost: u64,
    full_at: Nanos,
    slot: String,
}

/// The generator of one walk's steps.
struct Walk {
    random: Random,
    model: Model,
    limits: Vec<Limited>,
    domain: Domain,
    now: u64,
    marks: Vec<u64>,
    taken: Vec<Taken>,
    slots: u64,
    changes: bool,
}

fn limited(algorithm: AlgorithmName, domain: Domain, name: String, random: &mut Random) -> Option<Limited> {
    let limit = random_limit(algorithm, domain, random);
    let shared = SharedRule::new(limit.build().ok()?, LIFETIME).ok()?;
    Some(Limited { limit, shared, name })
}

impl Walk {
    fn new(algorithms: &[AlgorithmName], domain: Domain, walk: u64) -> Option<Self> {
        let mut random = Random::new(walk);
        let name = |position| format!("w{walk}-{position}");
        let limits: Option<Vec<_>> = (0..)
            .zip(algorithms)
            .map(|(position, algorithm)| limited(*algorithm, domain, name(position), &mut random))
            .collect();
        let now = random.one_of(&[0, 1, 5_000_000_000, NOWADAYS, NOWADAYS, NOWADAYS + 123_456_789, 1 << 61]);
        // a migrated state of an extreme limit can be a larger debt than the new limit allows, which the script rejects as
        // invalid
        let (model, changes) = (Model::default(), domain == Domain::Ordinary && random.once_in(3));
        Some(Self {
            random,
            model,
            limits: limits?,
            domain,
            now,
            marks: Vec::new(),
            taken: Vec::new(),
            slots: 0,
            changes,
        })
    }

    fn step(&mut self) -> Step {
        self.now = self.time();
        if self.changes && self.random.once_in(8) {
            self.change();
        }
        let now = Nanos::new(self.now);
        match self.random.from(0, 11) {
            0 => self.debit(now),
            1 | 2 if !self.taken.is_empty() => self.refund(now),
            3 => self.partial(now),
            _ => self.charge(now),
        }
    }

    fn time(&mut self) -> u64 {
        let (random, now) = (&mut self.random, self.now);
        let limit = &self.limits[0].limit;
        let spans = limit.spans();
        let span = if spans.is_empty() { 1_000_000 } else { random.one_of(&spans) };
        let next = match random.from(0, 11) {
            0..=2 => now,
            3..=6 if !self.marks.is_empty() => {
                let mark = random.one_of(&self.marks);
                random.one_of(&[mark.saturating_sub(1), mark, mark, mark.saturating_add(1)]).max(now)
            }
            7 => now.saturating_add(1),
            8 => now.saturating_sub(random.one_of(&[1, span / 3, span, span.saturating_mul(3)]).min(DAY / 50)),
            9 => (now / span).saturating_add(random.from(1, 2)).saturating_mul(span).saturating_sub(random.from(0, 1)),
            _ => now.saturating_add(random.from(0, span.saturating_mul(2))),
        };
        // the latest time that rules distinguish
        next.min(1 << 62)
    }

    fn cost(&mut self, limited: usize, now: Nanos) -> u64 {
        let quota = self.limits[limited].shared.rule().policy().quota;
        let part = self.part(limited, 0, Enforcement::DEFAULT);
        let remaining = self.model.headroom(&part, now).remaining.unwrap_or(1);
        let random = &mut self.random;
        match random.from(0, 15) {
            0 => 0,
            1 => quota,
            2 => quota.saturating_add(1),
            3 => random.from(1, quota.max(1)),
            4 => remaining,
            5 => remaining.saturating_add(1),
            // a migrated debt of days can be larger than the new limit allows, which the script rejects as invalid
            6 if self.changes => quota.saturating_mul(2),
            6 => random.one_of(&[u64::MAX, 1 << 63, quota.saturating_mul(2), 1 << 53]),
            7 | 8 => random.from(1, 4),
            _ => 1,
        }
    }

    fn enforcement(&mut self) -> Enforcement {
        if self.random.once_in(2) {
            return Enforcement::DEFAULT;
        }
        let random = &mut self.random;
        Enforcement { enforces: !random.once_in(4), consumes: !random.once_in(4), counts_denied: random.once_in(4) }
    }

    fn part(&self, limited: usize, cost: u64, enforcement: Enforcement) -> Part {
        let Limited { shared, name, .. } = &self.limits[limited];
        Part { key: name.clone(), rule: shared.rule().clone(), cost, enforcement }
    }

    fn slot(&mut self) -> String {
        self.slots += 1;
        format!("slot{}", self.slots)
    }

    fn asked(&self, part: &Part, limited: usize, full_at: Option<Nanos>, slot: String) -> Asked {
        let Limited { shared, name, .. } = &self.limits[limited];
        Asked {
            name: name.clone(),
            shared: shared.clone(),
            cost: part.cost,
            enforcement: part.enforcement,
            full_at,
            slot,
        }
    }

    /// Some of the limits in their order, each with a cost.
    fn parts(&mut self, now: Nanos) -> Vec<(usize, Part)> {
        let count = self.limits.len();
        let all = self.random.once_in(2);
        let mut chosen: Vec<usize> = (0..count).filter(|_| all || self.random.once_in(2)).collect();
        if chosen.is_empty() {
            chosen.push(0);
        }
        let mut parts = Vec::new();
        for limited in chosen {
            let (cost, enforcement) = (self.cost(limited, now), self.enforcement());
            parts.push((limited, self.part(limited, cost, enforcement)));
        }
        parts
    }

    /// Adds a question before one of the parts: whether a request to the same bucket with a few tokens more would be
    /// admitted.
    fn ask_first(&mut self, parts: &mut Vec<(usize, Part)>) {
        let position = usize::try_from(self.random.from(0, parts.len() as u64 - 1)).unwrap();
        let (limited, part) = &parts[position];
        if part.rule.denials_count() {
            return;
        }
        let floor = self.random.from(1, part.rule.policy().quota.max(1));
        let enforcement = Enforcement { consumes: false, counts_denied: false, ..part.enforcement };
        let question = (*limited, Part { cost: part.cost.saturating_add(floor), enforcement, ..part.clone() });
        parts.insert(position, question);
    }

    fn charge(&mut self, now: Nanos) -> Step {
        let mut parts = self.parts(now);
        if self.random.once_in(4) {
            self.ask_first(&mut parts);
        }
        let only: Vec<Part> = parts.iter().map(|(_, part)| part.clone()).collect();
        let edge = self.is_on_the_edge(&only, now);
        let (passes, charged) = self.model.charge(&only, now);
        let mut asked = Vec::new();
        for ((limited, part), charged) in parts.iter().zip(&charged) {
            let slot = self.slot();
            self.learn(charged.decision, &charged.headroom);
            if passes && charged.decision.is_admitted() && part.enforcement.consumes {
                let full_at = now.saturating_add(charged.headroom.until_full);
                self.taken.push(Taken { limited: *limited, cost: part.cost, full_at, slot: slot.clone() });
            }
            asked.push(self.asked(part, *limited, None, slot));
        }
        Step { call: Call::Charge, now: now.get(), asked, expected: Expected::Charged(passes, charged), edge }
    }

    fn partial(&mut self, now: Nanos) -> Step {
        let want = self.random.from(1, 9);
        let mut parts = self.parts(now);
        // of a state that stays under other parameters, all charges of a call are one debit
        let is_one_by_one = |part: &Part| part.rule.denials_count() || self.model.keeper(part, 0, now).is_some();
        if parts.iter().any(|(_, part)| is_one_by_one(part)) {
            return self.charge(now);
        }
        for (_, part) in &mut parts {
            // the script charges the sum of the parts at once, so no part may be the first that can never be admitted
            part.cost = part.cost.min(1 << 40);
            part.enforcement.counts_denied = false;
        }
        let only: Vec<Part> = parts.iter().map(|(_, part)| part.clone()).collect();
        // each charge may be on the edge
        let edge = only.iter().any(|part| compare::is_approximate(&part.rule));
        let (granted, each) = self.model.partial(&only, want, now);
        let mut asked = Vec::new();
        for (limited, part) in &parts {
            let slot = self.slot();
            if part.rule.holds_slots() && part.enforcement.consumes && part.enforcement.enforces {
                for number in 1..=granted {
                    let slot = format!("{slot}/{number}");
                    self.taken.push(Taken { limited: *limited, cost: part.cost, full_at: now, slot });
                }
            }
            asked.push(self.asked(part, *limited, None, slot));
        }
        Step { call: Call::Partial(want), now: now.get(), asked, expected: Expected::Each(granted, each), edge }
    }

    fn debit(&mut self, now: Nanos) -> Step {
        let limited = usize::try_from(self.random.from(0, self.limits.len() as u64 - 1)).unwrap();
        let cost = self.cost(limited, now);
        let part = self.part(limited, cost, Enforcement::DEFAULT);
        let stands = self.model.debit(&part, now);
        let asked = vec![self.asked(&part, limited, None, "none".to_owned())];
        Step { call: Call::Debit, now: now.get(), asked, expected: Expected::Stands(vec![stands]), edge: false }
    }

    fn refund(&mut self, now: Nanos) -> Step {
        let position = usize::try_from(self.random.from(0, self.taken.len() as u64 - 1)).unwrap();
        let Taken { limited, cost, full_at, slot } = self.taken.swap_remove(position);
        let holds = self.limits[limited].shared.rule().holds_slots();
        let cost = if holds || self.random.once_in(2) { cost } else { self.random.from(0, cost) };
        let part = self.part(limited, cost, Enforcement::DEFAULT);
        let (call, stands) = match holds && self.random.once_in(2) {
            true => (Call::Complete, self.model.complete(&part, now)),
            false => (Call::Refund, self.model.refund(&part, full_at, now)),
        };
        let full_at = (!holds).then_some(full_at);
        let asked = vec![self.asked(&part, limited, full_at, slot)];
        // the script finds out by an exact time whether a charge was the last one, and knows a window of a calendar only by
        // its end, which changed parameters may have moved
        let edge = compare::is_approximate(&part.rule) || self.changes && part.rule.calendar().is_some();
        Step { call, now: now.get(), asked, expected: Expected::Stands(vec![stands]), edge }
    }

    /// Changes the parameters of one limit.
    fn change(&mut self) {
        let position = usize::try_from(self.random.from(0, self.limits.len() as u64 - 1)).unwrap();
        let Limited { limit, name, .. } = &self.limits[position];
        let (algorithm, name) = (limit.algorithm, name.clone());
        if let Some(changed) = limited(algorithm, self.domain, name, &mut self.random) {
            self.limits[position] = changed;
            // the expected refunds belong to the old parameters
            self.taken.retain(|taken| taken.limited != position || holds(algorithm));
        }
    }

    fn is_on_the_edge(&self, parts: &[Part], now: Nanos) -> bool {
        parts.iter().filter(|part| compare::is_approximate(&part.rule)).any(|part| {
            let window = part.rule.policy().window.unwrap_or_default().get();
            self.model.is_on_the_edge(part, now, Nanos::new(1_000 + window / 1_000_000_000_000))
        })
    }

    fn learn(&mut self, decision: Decision, headroom: &Headroom) {
        let now = self.now;
        match decision {
            Decision::Deny(Denial::Later { retry_after }) => self.marks.push(now.saturating_add(retry_after.get())),
            Decision::Admit { wait } if wait > Nanos::ZERO => self.marks.push(now.saturating_add(wait.get())),
            _ => {}
        }
        self.marks.push(now.saturating_add(headroom.until_more.get()));
        self.marks.push(now.saturating_add(headroom.until_full.get()));
        self.marks.retain(|mark| *mark >= now && *mark < 1 << 62);
        if self.marks.len() > 12 {
            self.marks.drain(..6);
        }
    }
}

fn holds(algorithm: AlgorithmName) -> bool {
    algorithm.as_str() == "concurrency"
}

/// The seeds of the walks of each kind.
fn cases(default: u64) -> std::ops::Range<u64> {
    let set = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = set("SEED").unwrap_or(1);
    first..first + set("CASES").unwrap_or(default)
}

const STEPS: usize = 60;

/// Walks under limits of these algorithms together.
fn walk(redis: &mut Scripted, algorithms: &[AlgorithmName], seed: u64) -> u64 {
    let domain = if seed.is_multiple_of(4) { Domain::Extreme } else { Domain::Ordinary };
    let Some(mut walk) = Walk::new(algorithms, domain, seed) else { return 0 };
    let steps: Vec<Step> = (0..STEPS).map(|_| walk.step()).collect();
    let calls: Vec<Encoded> = steps.iter().map(Step::encode).collect();
    let replies = redis.call_all(&calls);
    for (position, (step, reply)) in steps.iter().zip(&replies).enumerate() {
        if let Err(different) = step.check(reply) {
            if step.edge {
                return position as u64;
            }
            let history: Vec<String> = steps[..=position]
                .iter()
                .zip(&replies)
                .map(|(step, reply)| format!("{}\n    {reply:?}", step.describe()))
                .collect();
            panic!("SEED={seed}: step {position}: {different}\n{}", history.join("\n"));
        }
    }
    STEPS as u64
}

fn alone(algorithm: &str) {
    let algorithm = AlgorithmName::ALL.iter().copied().find(|known| known.as_str() == algorithm).unwrap();
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let range = cases(60);
    let wanted = (range.end - range.start) * STEPS as u64;
    let steps: u64 = range.map(|seed| walk(&mut redis, &[algorithm], seed)).sum();
    assert!(steps * 2 > wanted, "only {steps} of {wanted} steps were compared");
}

macro_rules! each_alone {
    ($($test:ident $algorithm:literal,)*) => {
        $(#[test]
        fn $test() {
            alone($algorithm);
        })*

        /// The algorithms of the walks.
        const WALKING: &[&str] = &[$($algorithm,)*];
    };
}

each_alone! {
    token_bucket_is_the_same "token_bucket",
    leaky_bucket_is_the_same "leaky_bucket",
    leaky_queue_is_the_same "leaky_queue",
    gcra_is_the_same "gcra",
    fixed_window_is_the_same "fixed_window",
    quota_reset_is_the_same "quota_reset",
    quota_linear_is_the_same "quota_linear",
    exponential_is_the_same "exponential",
    sliding_log_is_the_same "sliding_log",
    sliding_window_is_the_same "sliding_window",
    sliding_counters_is_the_same "sliding_counters",
    smooth_bursty_is_the_same "smooth_bursty",
    smooth_warming_up_is_the_same "smooth_warming_up",
    cycle_is_the_same "cycle",
    concurrency_is_the_same "concurrency",
}

#[test]
fn every_algorithm_walks_or_is_refused_with_a_reason() {
    let mut random = Random::new(1);
    for algorithm in AlgorithmName::ALL {
        let rule = random_limit(*algorithm, Domain::Ordinary, &mut random).build().unwrap();
        match SharedRule::new(rule, LIFETIME) {
            Ok(_) => assert!(WALKING.contains(&algorithm.as_str()), "{algorithm:?} does not walk"),
            Err(refused) => assert!(refused.to_string().contains("use it with"), "{refused}"),
        }
    }
}

#[test]
fn requests_under_several_limits_are_charged_by_all_or_by_none() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let exact: Vec<AlgorithmName> = AlgorithmName::ALL
        .iter()
        .copied()
        .filter(|name| WALKING.contains(&name.as_str()) && name.as_str() != "exponential")
        .collect();
    for seed in cases(150) {
        let mut random = Random::new(seed ^ 0xa11);
        let algorithms: Vec<_> = (0..random.from(2, 4)).map(|_| random.one_of(&exact)).collect();
        walk(&mut redis, &algorithms, seed);
    }
}
