//! The results of a run in a few numbers.

use std::collections::VecDeque;

use crate::algorithm::{Decision, Denial};
use crate::simulation::arrivals::{Arrivals, Shape};
use crate::simulation::run::{Pass, RequestOutcome, Run, Upstream};
use crate::simulation::trace::TraceError;
use crate::simulation::{Arrival, KeyNumber, SimulatedLimit, Traffic};
use crate::units::{Cost, Nanos, Rate, greatest_common_divisor};

/// The numbers of one limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitReport {
    /// The limit.
    pub name: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// The limit in plain words.
    pub words: String,
    /// Requests that came.
    pub offered: u64,
    /// Their tokens.
    pub offered_tokens: u64,
    /// Requests admitted, at once or after a wait.
    pub admitted: u64,
    /// Their tokens.
    pub admitted_tokens: u64,
    /// Requests admitted after a wait.
    pub delayed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Requests denied for good, because their cost can never fit; part of `denied`.
    pub never: u64,
    /// Keys seen.
    pub keys: usize,
    /// The longest time without a pass for a key that was denied in that time: from one pass (or its first request)
    /// to the next (or to its last denial). `None` if no request was denied.
    pub longest_gap: Option<Nanos>,
    /// The window in which a single key got the most tokens; `None` if neither the limit nor the user sets a window.
    pub worst_window: Option<WorstWindow>,
    /// How long admitted requests waited, those that did not wait included.
    pub waits: Quantiles,
    /// How long the upstream took, under limits that hold a slot meanwhile.
    pub latency: Option<Quantiles>,
    /// The most requests that waited at the same time, over all keys.
    pub most_waiting: usize,
    /// The result for an abusive client; `None` if the limit has no rate (it limits slots in flight).
    pub abuse: Option<Abuse>,
}

/// The most tokens that passed for one key in any time of a given length (half open: passes that are exactly that far
/// apart do not count together).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorstWindow {
    /// The length.
    pub window: Nanos,
    /// The most tokens.
    pub tokens: u64,
    /// The tokens that the limit allows in that time in the long run, rounded up: quota · length / window. More than
    /// this is a burst that the algorithm admits in addition. `None` if the limit has no window.
    pub allowed: Option<u64>,
}

/// Quantiles of a time over all admitted requests, by nearest rank; 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of them took no longer.
    pub p50: Nanos,
    /// 99 % of them took no longer.
    pub p99: Nanos,
    /// None took longer.
    pub max: Nanos,
}

/// Adds up the outcomes of a run.
#[derive(Debug)]
pub struct TokenTally {
    window: Option<Nanos>,
    long_run: Option<Rate>,
    report: LimitReport,
    waits: Vec<Nanos>,
    latencies: Vec<Nanos>,
    keys: Vec<KeyTally>,
    worst: u64,
}

#[derive(Clone, Debug, Default)]
struct KeyTally {
    /// The passes within the last window, and the sum of their tokens.
    recent: VecDeque<(Nanos, Cost)>,
    sum: u64,
    /// The last pass; before the first, the first request.
    last_pass: Option<Nanos>,
    /// The last denial since that pass.
    last_denial: Option<Nanos>,
}

// === impl TokenTally ===

impl TokenTally {
    /// The tally of a run that begins. `window` is the length of windows (default: the limit's own); an abusive client
    /// sends requests at `abuse` times the rate.
    pub fn new(run: &Run, window: Option<Nanos>, abuse: Option<f64>) -> Self {
        let (subject, rule) = (run.subject(), run.rule());
        let report = LimitReport {
            name: subject.name.clone(),
            algorithm: subject.algorithm.as_str(),
            words: rule.describe_above(subject.floor),
            abuse: abuse.and_then(|factor| Abuse::of(subject, factor)),
            ..LimitReport::default()
        };
        let policy = subject.policy(rule);
        Self {
            window: window.or(policy.window),
            long_run: policy.window.and_then(|window| Rate::new(policy.quota, window)),
            report,
            waits: Vec::new(),
            latencies: Vec::new(),
            keys: Vec::new(),
            worst: 0,
        }
    }

    /// Counts a request and its outcome, in the order of the run.
    pub fn add(&mut self, arrival: &Arrival, outcome: &RequestOutcome<'_>) {
        self.passes(outcome.passes);
        let report = &mut self.report;
        report.offered += 1;
        report.offered_tokens = report.offered_tokens.saturating_add(arrival.cost);
        report.most_waiting = report.most_waiting.max(outcome.waiting);
        self.latencies.extend(outcome.latency);
        let key = key_tally(&mut self.keys, arrival.key);
        key.last_pass.get_or_insert(arrival.at);
        match outcome.decision {
            Decision::Admit { wait } => {
                report.admitted += 1;
                report.admitted_tokens = report.admitted_tokens.saturating_add(arrival.cost);
                if wait > Nanos::ZERO {
                    report.delayed += 1;
                    self.waits.push(wait);
                }
            }
            Decision::Deny(denial) => {
                report.denied += 1;
                report.never += u64::from(matches!(denial, Denial::Never { .. }));
                key.last_denial = Some(arrival.at);
            }
        }
    }

    /// The numbers at the end of the run; `passes` are the last passes.
    pub fn finish(mut self, passes: &[Pass]) -> LimitReport {
        self.passes(passes);
        for key in &self.keys {
            if let (Some(last), Some(denial)) = (key.last_pass, key.last_denial) {
                self.report.longest_gap = self.report.longest_gap.max(Some(denial.saturating_sub(last)));
            }
        }
        self.report.keys = self.keys.len();
        self.report.worst_window = self.window.map(|window| WorstWindow {
            window,
            tokens: self.worst,
            allowed: self.long_run.map(|rate| tokens_in(rate, window)),
        });
        let at_once = self.report.admitted - self.report.delayed;
        self.report.waits = Quantiles::of(self.waits, at_once);
        self.report.latency = (!self.latencies.is_empty()).then(|| Quantiles::of(self.latencies, 0));
        self.report
    }

    fn passes(&mut self, passes: &[Pass]) {
        for pass in passes {
            let key = key_tally(&mut self.keys, pass.key);
            if key.last_denial.take().is_some() {
                let gap = key.last_pass.map(|last| pass.at.saturating_sub(last));
                self.report.longest_gap = self.report.longest_gap.max(gap);
            }
            key.last_pass = Some(pass.at);
            if let Some(window) = self.window {
                self.worst = self.worst.max(key.in_window(pass, window));
            }
        }
    }
}

fn key_tally(keys: &mut Vec<KeyTally>, key: KeyNumber) -> &mut KeyTally {
    if key.0 >= keys.len() {
        keys.resize(key.0 + 1, KeyTally::default());
    }
    &mut keys[key.0]
}

impl KeyTally {
    /// Adds `pass`, and returns the tokens that passed in the window that ends with it.
    fn in_window(&mut self, pass: &Pass, window: Nanos) -> u64 {
        self.recent.push_back((pass.at, pass.cost));
        self.sum = self.sum.saturating_add(pass.cost);
        while let Some((at, cost)) = self.recent.front()
            && pass.at.saturating_sub(*at) >= window
        {
            self.sum = self.sum.saturating_sub(*cost);
            self.recent.pop_front();
        }
        self.sum
    }
}

impl Quantiles {
    /// The quantiles of `times` and of `zeros` more times that are 0.
    fn of(mut times: Vec<Nanos>, zeros: u64) -> Self {
        times.sort_unstable();
        let count = u128::from(zeros) + times.len() as u128;
        let quantile = |percent: u128| {
            let rank = (count * percent).div_ceil(100);
            let index = rank.checked_sub(u128::from(zeros) + 1).and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| times.get(index)).copied().unwrap_or_default()
        };
        Self { p50: quantile(50), p99: quantile(99), max: quantile(100) }
    }
}

/// The tokens that come in `window` at `rate`, rounded up.
fn tokens_in(rate: Rate, window: Nanos) -> u64 {
    let scaled = u128::from(rate.tokens()) * u128::from(window.get());
    u64::try_from(scaled.div_ceil(u128::from(rate.period().get()))).unwrap_or(u64::MAX)
}

/// A limit that admits this many requests in a row counts as one that never throttles.
const PATIENCE: u64 = 1_000_000;

/// The result for a fresh key with evenly spaced requests of cost 1 at a multiple of the limit's rate, until a denial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abuse {
    /// The multiple of the rate, in whole thousandths.
    pub factor: f64,
    /// Requests admitted before the first denial. `None` if so many times the rate is no valid rate: then nothing was run.
    pub admitted: Option<u64>,
    /// The time of the first denial, the first request being at 0; `None` if there was none among the first million
    /// requests.
    pub throttled_after: Option<Nanos>,
}

impl Abuse {
    /// Simulates such a client, with `factor` rounded to a thousandth.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float as an integer saturates, and zero or too much is refused as a rate"
    )]
    pub fn of(subject: &SimulatedLimit, factor: f64) -> Option<Self> {
        // `hold` does not matter: limits that hold a slot have no rate, so this function returns `None` for them
        let upstream = Upstream { hold: Nanos::ZERO, servers: None };
        let mut run = Run::new(subject.clone(), upstream).ok()?;
        let rate = subject.long_run_rate(run.rule())?;
        let factor = (factor * 1000.0).round();
        let mut abuse = Self { factor: factor / 1000.0, admitted: None, throttled_after: None };
        if let Some(rate) = faster(rate, factor as u64) {
            let mut traffic = Arrivals::new(rate, Nanos::MAX, Shape::Uniform)?;
            abuse.throttled_after = first_denial(&mut run, &mut traffic).ok()?;
            abuse.admitted = Some(traffic.line() - u64::from(abuse.throttled_after.is_some()));
        }
        Some(abuse)
    }
}

fn first_denial(run: &mut Run, traffic: &mut Arrivals) -> Result<Option<Nanos>, TraceError> {
    while traffic.line() < PATIENCE
        && let Some(arrival) = traffic.next_arrival()?
    {
        let outcome = run.step(&arrival);
        if outcome.is_ok_and(|outcome| matches!(outcome.decision, Decision::Deny(_))) {
            return Ok(Some(arrival.at));
        }
    }
    Ok(None)
}

/// `thousandths` / 1000 times `rate`; `None` if that is not a valid rate.
fn faster(rate: Rate, thousandths: u64) -> Option<Rate> {
    let tokens = u128::from(rate.tokens()) * u128::from(thousandths);
    let period = u128::from(rate.period().get()) * 1000;
    let divisor = greatest_common_divisor(tokens, period);
    Rate::new(u64::try_from(tokens / divisor).ok()?, Nanos::new(u64::try_from(period / divisor).ok()?))
}

#[cfg(test)]
mod tests;
