//! The parameters of a rule as the script takes them, and which rules can be kept in Redis.

use crate::algorithm::calendar::Calendar;
use crate::algorithm::counter::{Counter, Window};
use crate::algorithm::schedule::Schedule;
use crate::algorithm::shared::{Core, Named};
use crate::algorithm::sliding::Sliding;
use crate::algorithm::smooth::{Shape, Smooth};
use crate::algorithm::{Algorithm, Rule};
use crate::units::Nanos;

/// A rule that can be kept in Redis.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedRule {
    rule: Rule,
    parameters: String,
}

/// A rule cannot be kept in Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{algorithm}` {problem}")]
pub struct NotShareable {
    /// The algorithm.
    pub algorithm: &'static str,
    /// What is wrong with it and what would be right, to be read after the algorithm's name.
    pub problem: String,
}

/// The most charges that a log in Redis may have: a denial may read all of them, and nobody else is served meanwhile.
pub const LARGEST_LOG: u64 = 10_000;

impl SharedRule {
    /// `rule` as the script takes it. A slot of `concurrency` lapses `lifetime` after it was taken or renewed.
    ///
    /// Errors: a rule of which there is no shared form.
    pub fn new(rule: Rule, lifetime: Nanos) -> Result<Self, NotShareable> {
        let parameters = match &rule {
            Rule::TokenBucket(rule) => schedule(rule.core()),
            Rule::LeakyBucket(rule) => schedule(rule.core()),
            Rule::LeakyQueue(rule) => schedule(rule.core()),
            Rule::Gcra(rule) => schedule(rule.core()),
            Rule::FixedWindow(rule) => counter(rule.core())?,
            Rule::QuotaReset(rule) => counter(rule.core())?,
            Rule::QuotaLinear(linear) => {
                let (limit, window) = quota(&rule);
                format!("q {limit} {window} {} {}", linear.tick(), linear.token())
            }
            Rule::Exponential(exponential) => {
                let policy = if exponential.denials_count() { 's' } else { 'l' };
                format!("x {policy} {:e} {}", exponential.limit(), quota(&rule).1)
            }
            Rule::SlidingLog(log) => sliding(log.core(), rule.name().as_str())?,
            Rule::SlidingCounters(counters) => sliding(counters.core(), rule.name().as_str())?,
            Rule::SlidingWindow(_) => {
                let (limit, window) = quota(&rule);
                format!("w {limit} {window}")
            }
            Rule::SmoothBursty(bursty) => smooth(bursty, 'b', (0.0, 0.0)),
            Rule::SmoothWarmingUp(warming) => {
                smooth(warming, 'w', (warming.shape().threshold(), warming.shape().slope()))
            }
            Rule::Cycle(cycle) => {
                let (limit, period) = quota(&rule);
                format!("y {limit} {period} {} {}", cycle.max_wait().get(), cycle.most())
            }
            Rule::Concurrency(_) => {
                let lifetime = lifetime.get().div_ceil(1_000_000).clamp(1, LONGEST_LIFETIME);
                format!("z {} {lifetime}", quota(&rule).0)
            }
            Rule::AdaptiveConcurrency(_) => {
                return Err(unshared(
                    &rule,
                    "follows the latency that a node measures, which nodes do not share; use it with `mode: sticky`, \
                     or `concurrency` with `mode: shared`",
                ));
            }
        };
        Ok(Self { rule, parameters })
    }

    /// The rule.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What the script takes, and keeps beside the states.
    pub fn parameters(&self) -> &str {
        &self.parameters
    }

    /// Whether it makes no difference in what portions tokens are taken, and nobody waits for them.
    pub fn adds_up(&self) -> bool {
        let adds = match &self.rule {
            Rule::SlidingLog(log) => log.core().min_gap() == Nanos::ZERO,
            Rule::SlidingCounters(_) => true,
            _ => self.parameters.starts_with(['s', 'c', 'w']),
        };
        adds && !self.rule.reserves() && !self.rule.denials_count()
    }

    /// Whether it keeps a log, which stays in Redis.
    pub fn is_log(&self) -> bool {
        self.parameters.starts_with('l')
    }

    /// Whether it counts in windows, so that what is taken in one is of no use in the next.
    pub fn is_window(&self) -> bool {
        self.parameters.starts_with('c')
    }

    /// The calendar whose units are counted in.
    pub(super) fn calendar(&self) -> Option<&Calendar> {
        match &self.rule {
            Rule::FixedWindow(rule) => match &rule.core().window {
                Window::Calendar(calendar) => Some(calendar),
                Window::FromFirst(_) | Window::FromEpoch(_) => None,
            },
            _ => None,
        }
    }
}

/// In milliseconds: 1000 years.
const LONGEST_LIFETIME: u64 = 31_536_000_000_000;

fn unshared(rule: &Rule, problem: impl Into<String>) -> NotShareable {
    NotShareable { algorithm: rule.name().as_str(), problem: problem.into() }
}

/// The limit and its window, of rules whose policy has them as they are.
fn quota(rule: &Rule) -> (u64, u64) {
    let policy = rule.policy();
    (policy.quota, policy.window.unwrap_or_default().get())
}

fn schedule(schedule: &Schedule) -> String {
    let rate = schedule.rate();
    format!("s {} {} {} {}", rate.tokens(), rate.period().get(), schedule.burst(), schedule.tolerance())
}

fn counter(counter: &Counter) -> Result<String, NotShareable> {
    let limit = counter.limit;
    Ok(match &counter.window {
        Window::FromFirst(length) => format!("c f {limit} {}", length.get()),
        Window::FromEpoch(length) => format!("c e {limit} {}", length.get()),
        Window::Calendar(Calendar { unit, zone, .. }) => {
            let name = zone.iana_name().ok_or_else(|| NotShareable {
                algorithm: "fixed_window",
                problem: "needs a `timezone` with a name to be shared".to_owned(),
            })?;
            format!("c c {limit} {}/{name}", unit.as_str())
        }
    })
}

fn sliding(sliding: &Sliding, algorithm: &'static str) -> Result<String, NotShareable> {
    let (limit, window, (length, per)) = (sliding.limit(), sliding.window().get(), sliding.slot());
    let slots = u128::from(window) * u128::from(per) / u128::from(length.max(1));
    if slots.min(limit.into()) > LARGEST_LOG.into() {
        let problem = format!(
            "may remember up to {} charges of a key, which is too much to be shared; use `sliding_window`, or \
             `sliding_counters` with at most {LARGEST_LOG} `slots`",
            slots.min(limit.into()),
        );
        return Err(NotShareable { algorithm, problem });
    }
    let count_denied = u8::from(sliding.denials_count());
    Ok(format!("l {limit} {window} {length} {per} {count_denied} {}", sliding.min_gap().get()))
}

fn smooth<S: Shape>(smooth: &Smooth<S>, letter: char, (threshold, slope): (f64, f64)) -> String {
    let (rate, shape) = (smooth.rate(), smooth.shape());
    format!(
        "m {letter} {} {} {} {} {:e} {:e} {:e} {threshold:e} {slope:e}",
        rate.tokens(),
        rate.period().get(),
        smooth.max_wait(),
        smooth.furthest(),
        smooth.stable(),
        shape.most(),
        shape.cool(),
    )
}
