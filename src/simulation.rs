//! Runs limits on a virtual clock: decides given traffic by a rule, without a gateway, a real clock or a store.
//!
//! `traffic (trace | arrivals) -> run -> (rows | report | series) -> (csv | table | json | picture)`
//!
//! Everything here is a function of its input: the same traffic and the same limits give the same bytes on every
//! machine. Virtual time 0 is the Unix epoch, which matters for aligned windows only.

use std::io;

use crate::algorithm::{AlgorithmName, Arguments, InvalidParameter, Policy, Rule, Value};
use crate::units::{Cost, Nanos, Rate};

pub mod arrivals;
pub mod lines;
pub mod plot;
pub mod render;
pub mod report;
pub mod rows;
pub mod run;
pub mod series;
#[cfg(test)]
pub(crate) mod testing;
pub mod trace;

use run::{RequestOutcome, Run, RunError};
use trace::TraceError;

/// The parameter that `set_rate` changes.
const RATE: &str = "rate";

/// The limit to simulate, for one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedLimit {
    /// The limit's name, for headings and error messages.
    pub name: String,
    /// The algorithm.
    pub algorithm: AlgorithmName,
    /// Its parameters, `max_wait` included.
    pub arguments: Arguments,
    /// The most requests of this limit, over all its keys, that may wait at the same time
    /// (`over_limit.delay.max_waiting`); `None` for no bound.
    pub max_waiting: Option<u64>,
    /// How many tokens a request has to leave for other plans (`priority`).
    pub floor: Cost,
    /// Whether denied requests take tokens too (`charge.denied`).
    pub charges_denied: bool,
}

impl SimulatedLimit {
    /// A limit that lets any number of requests wait, and charges admitted requests of a single plan.
    pub fn new(name: &str, algorithm: AlgorithmName, arguments: Arguments) -> Self {
        Self { name: name.to_owned(), algorithm, arguments, max_waiting: None, floor: 0, charges_denied: false }
    }

    /// The rule that the parameters make.
    pub fn rule(&self) -> Result<Rule, InvalidParameter> {
        self.algorithm.build(&self.arguments)
    }

    /// The limit's `rate`, where it has that parameter.
    pub fn rate(&self) -> Option<Rate> {
        self.arguments.rate(RATE).ok()
    }

    /// The rate that `rule`, built from this subject, allows in the long run: its `rate`, or else its quota per window.
    pub fn long_run_rate(&self, rule: &Rule) -> Option<Rate> {
        let policy = self.policy(rule);
        self.rate().or_else(|| Rate::new(policy.quota, policy.window?))
    }

    /// The policy of `rule`, built from this subject, in the long run: a `rate` is the same whatever requests have to leave.
    fn policy(&self, rule: &Rule) -> Policy {
        rule.policy().above(if self.rate().is_some() { 0 } else { self.floor })
    }

    /// [`SimulatedLimit::rule`], with a unit for states that divides the unit of `old`, or as much of it as fits: states carry
    /// over from `old` without rounding, however often the rate changes. `None` for algorithms that are defined in doubles,
    /// where 20/2s and 10/s may differ in the last bit.
    fn rule_in_units_of(&self, old: &Rule) -> Option<Rule> {
        if matches!(self.algorithm, AlgorithmName::SmoothBursty | AlgorithmName::SmoothWarmingUp) {
            return None;
        }
        let rate = self.rate()?.over_multiple_of(old.arguments().rate(RATE).ok()?.period())?;
        let mut arguments = self.arguments.clone();
        arguments.set(RATE, Value::Rate(rate));
        self.algorithm.build(&arguments).ok()
    }

    /// Sets `rate`. Returns `false` and changes nothing if the algorithm has no such parameter.
    fn set_rate(&mut self, rate: Rate) -> bool {
        let known = self.algorithm.parameters().iter().any(|parameter| parameter.name == RATE);
        if known {
            self.arguments.set(RATE, Value::Rate(rate));
        }
        known
    }
}

/// A key of the traffic, numbered from 0 in the order of the keys' first requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyNumber(pub usize);

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// The time, never before that of the arrival before it.
    pub at: Nanos,
    /// The key of the request.
    pub key: KeyNumber,
    /// How many tokens it asks for.
    pub cost: Cost,
    /// The limit's rate from just before this request on, for all keys.
    pub set_rate: Option<Rate>,
}

/// A source of requests in the order of their times.
pub trait Traffic {
    /// The next request; `None` at the end.
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TraceError>;

    /// The name of a key that an arrival has shown.
    fn key(&self, key: KeyNumber) -> &[u8];

    /// The place of the last arrival, for error messages: the line in a file, or the number of the request, from 1.
    fn line(&self) -> u64;
}

/// Why a simulation stopped.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The traffic cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A limit cannot do what the traffic asks of it.
    #[error("line {line}: {source}")]
    Run {
        /// The line of the trace.
        line: u64,
        /// The error of the limit.
        source: RunError,
    },
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Gives all of `traffic` to every run, request by request, and passes each decision to `on_outcome` (the traffic, for the
/// key's name; the run's number; the request; its outcome). Keeps no request after that.
pub fn run_traffic(
    traffic: &mut dyn Traffic,
    runs: &mut [Run],
    mut on_outcome: impl FnMut(&dyn Traffic, usize, &Arrival, &RequestOutcome<'_>) -> io::Result<()>,
) -> Result<(), SimulationError> {
    while let Some(arrival) = traffic.next_arrival()? {
        for (number, run) in runs.iter_mut().enumerate() {
            let outcome = run.step(&arrival).map_err(|source| SimulationError::Run { line: traffic.line(), source })?;
            on_outcome(traffic, number, &arrival, &outcome)?;
        }
    }
    Ok(())
}
