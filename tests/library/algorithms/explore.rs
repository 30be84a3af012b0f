//! Random walks under a law, and the shortest walk that breaks it.

use std::any::Any;
use std::cell::RefCell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::algorithm::{AlgorithmName, Rule};

use crate::algorithms::arrivals::{Arrivals, Clock};
use crate::algorithms::limit::Limit;
use crate::algorithms::limits::{Domain, random_limit};
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Step, Walk, Watch, follow};

/// The number of decisions to compare with the definitions, unless `CASES` is set.
const CASES: u64 = 2_000_000;
const STEPS_PER_WALK: usize = 60;
const TRIES_TO_SHRINK: u32 = 3_000;

static CASES_SO_FAR: AtomicU64 = AtomicU64::new(0);

/// The limits, the clock and the length of walks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) domain: Domain,
    pub(crate) clock: Clock,
    /// The part of `CASES`, in thousandths.
    pub(crate) per_mille: u64,
}

impl Plan {
    /// Ordinary limits under a clock that never steps back.
    pub(crate) const fn ordinary(per_mille: u64) -> Self {
        Self { domain: Domain::Ordinary, clock: Clock::Forward, per_mille }
    }
}

/// Takes random walks under `watch` until one breaks the law; returns that walk shortened as far as possible.
pub(crate) fn explore(what: &str, algorithm: AlgorithmName, plan: Plan, watch: Watch) -> Result<(), String> {
    let replayed = number_from("SEED");
    let cases = number_from("CASES").unwrap_or(CASES).saturating_mul(plan.per_mille) / 1000;
    let first = what
        .bytes()
        .chain(algorithm.as_str().bytes())
        .fold(0, |seed: u64, byte| Random::new(seed ^ u64::from(byte)).any());
    let (mut walked, mut walks, mut refused) = (0_u64, 0_u64, 0_u64);
    while walked < cases {
        let seed = replayed.unwrap_or_else(|| first.wrapping_add(walks + refused));
        match random_walk(algorithm, plan, seed, watch) {
            Ok(Walked::Nowhere) => return Ok(()),
            Ok(Walked::Refused) => refused += 1,
            Ok(Walked::Steps(steps)) => (walked, walks) = (walked + steps, walks + 1),
            Err(broken) => return Err(format!("{algorithm:?} breaks the law that {what}\n{broken}\nSEED={seed:#x}\n")),
        }
        assert!(refused <= 9 * walks + 1000, "{algorithm:?}: nearly every limit is refused");
        if replayed.is_some() {
            break;
        }
    }
    let total = CASES_SO_FAR.fetch_add(walked, Ordering::Relaxed) + walked;
    let name = algorithm.as_str();
    // Written past the test harness, which would swallow it.
    let line = format!("{name}: {what}: {walked} cases in {walks} walks, {refused} limits refused; {total} in all\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
    Ok(())
}

/// A number from the environment; `0x` marks hexadecimal.
fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// The outcome of a walk that broke no law.
enum Walked {
    /// The law does not apply to this algorithm.
    Nowhere,
    /// The algorithm refused the limit's parameters.
    Refused,
    /// The number of requests on the walk.
    Steps(u64),
}

/// Takes one random walk.
fn random_walk(algorithm: AlgorithmName, plan: Plan, seed: u64, watch: Watch) -> Result<Walked, String> {
    let mut random = Random::new(seed);
    let limit = random_limit(algorithm, plan.domain, &mut random);
    let Ok(rule) = limit.build() else { return Ok(Walked::Refused) };
    if watch(&limit, &rule).is_none() {
        return Ok(Walked::Nowhere);
    }
    let mut arrivals = Arrivals::new(&limit, &rule, plan.clock, plan.domain, random);
    let taken = RefCell::new(Vec::new());
    let result = watched(&limit, &rule, watch, &mut |walk, decision| {
        arrivals.learn(walk, decision);
        let mut taken = taken.borrow_mut();
        (taken.len() < STEPS_PER_WALK).then(|| {
            let step = arrivals.next(walk);
            taken.push(step);
            step
        })
    });
    let taken = taken.into_inner();
    match result {
        Ok(()) => Ok(Walked::Steps(taken.iter().filter(|step| matches!(step, Step::Ask { .. })).count() as u64)),
        Err(_) => Err(shortest(&limit, &rule, watch, taken)),
    }
}

/// Checks that these steps keep the law.
pub(crate) fn check(limit: &Limit, rule: &Rule, watch: Watch, steps: &[Step]) -> Result<(), String> {
    let mut left = steps.iter().copied();
    watched(limit, rule, watch, &mut |_, _| left.next())
}

fn watched(
    limit: &Limit,
    rule: &Rule,
    watch: Watch,
    steps: &mut dyn FnMut(&Walk<'_>, Option<tollgate::algorithm::Decision>) -> Option<Step>,
) -> Result<(), String> {
    let Some(mut law) = watch(limit, rule) else { return Ok(()) };
    match catch_unwind(AssertUnwindSafe(|| follow(limit, rule, law.as_mut(), steps))) {
        Ok(result) => result,
        Err(panic) => Err(format!("it panics: {}", message(panic.as_ref()))),
    }
}

fn message(panic: &dyn Any) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

/// Removes all steps that are not needed to break the law, and describes the failure.
fn shortest(limit: &Limit, rule: &Rule, watch: Watch, mut steps: Vec<Step>) -> String {
    let mut tries = 0;
    loop {
        let smaller = candidates(&steps).find(|smaller| {
            tries += 1;
            tries <= TRIES_TO_SHRINK && check(limit, rule, watch, smaller).is_err()
        });
        match smaller {
            Some(smaller) => steps = smaller,
            None => break,
        }
    }
    let why = check(limit, rule, watch, &steps).err().unwrap_or_default();
    let line: Vec<String> = steps.iter().map(Step::to_string).collect();
    format!("{why}\n{limit} | {}", line.join(" "))
}

/// Simpler variants of a walk: with fewer steps, lower costs, shorter pauses.
fn candidates(steps: &[Step]) -> impl Iterator<Item = Vec<Step>> + '_ {
    let lengths =
        std::iter::successors(Some(steps.len() / 2), |length| Some(length / 2)).take_while(|length| *length > 0);
    let shorter = lengths.flat_map(move |length| {
        (0..steps.len().div_ceil(length)).rev().map(move |chunk| {
            let (from, to) = (chunk * length, (chunk * length + length).min(steps.len()));
            [&steps[..from], &steps[to..]].concat()
        })
    });
    let cheaper = (0..steps.len()).flat_map(move |index| {
        let costs = match steps[index] {
            Step::Ask { at, cost } if cost > 1 => {
                [1, cost / 2, cost - 1].iter().map(|cost| Step::Ask { at, cost: *cost }).collect()
            }
            _ => Vec::new(),
        };
        costs.into_iter().map(move |step| {
            let mut cheaper = steps.to_vec();
            cheaper[index] = step;
            cheaper
        })
    });
    let sooner = (0..steps.len()).flat_map(move |index| {
        let before = index.checked_sub(1).map_or(0, |index| steps[index].at());
        let pause = steps[index].at().saturating_sub(before);
        [pause, pause / 2, 1].into_iter().filter(move |less| *less > 0 && *less <= pause).map(move |less| {
            let moved = |step: &Step| step.moved_to(step.at().saturating_sub(less));
            steps[..index].iter().copied().chain(steps[index..].iter().map(moved)).collect()
        })
    });
    shorter.filter(move |shorter: &Vec<Step>| shorter.len() < steps.len()).chain(cheaper).chain(sooner)
}
