//! Runs limits on a virtual clock: what a rule would decide on given traffic, without a gateway, a clock or a store.
//!
//! `traffic (trace | arrivals) -> run -> (rows | report | series) -> (csv | table | json | picture)`
//!
//! Everything here is a function of its input: the same traffic and the same limits give the same bytes on every
//! machine. Virtual time 0 is the Unix epoch, which matters for aligned windows only.

use std::io;

use crate::algorithm::{AlgorithmName, Arguments, InvalidParameter, Rule, Value};
use crate::units::{Cost, Nanos, Rate};

pub mod arrivals;
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

/// What is simulated: one limit, for one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The limit's name, for headings and error messages.
    pub name: String,
    /// The algorithm.
    pub algorithm: AlgorithmName,
    /// Its parameters, `max_wait` included.
    pub arguments: Arguments,
    /// The most requests of this limit, over all its keys, that may wait at the same time
    /// (`over_limit.delay.max_waiting`); `None` for no bound.
    pub max_waiting: Option<u64>,
}

impl Subject {
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
        let policy = rule.policy();
        self.rate().or_else(|| Rate::new(policy.quota, policy.window?))
    }

    /// [`Subject::rule`], with states in units that those of `old` are whole numbers of too: what carries over from
    /// `old` is not rounded, however often the rate changes. `None` where such units would be too small, and for what
    /// is defined in doubles, where 20/2s need not be 10/s to the last bit.
    fn rule_in_units_of(&self, old: &Rule) -> Option<Rule> {
        if matches!(self.algorithm, AlgorithmName::SmoothBursty | AlgorithmName::SmoothWarmingUp) {
            return None;
        }
        let rate = self.rate()?.over_multiple_of(old.arguments().rate(RATE).ok()?.period())?;
        let mut arguments = self.arguments.clone();
        arguments.set(RATE, Value::Rate(rate));
        self.algorithm.build(&arguments).ok()
    }

    /// Sets `rate`; `false`, and nothing changed, where the algorithm has no such parameter.
    fn set_rate(&mut self, rate: Rate) -> bool {
        let known = self.algorithm.parameters().iter().any(|parameter| parameter.name == RATE);
        if known {
            self.arguments.set(RATE, Value::Rate(rate));
        }
        known
    }
}

/// A key of the traffic, numbered from 0 in the order of first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyNumber(pub usize);

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When; never before the arrival before it.
    pub at: Nanos,
    /// Whose.
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

    /// Where the last arrival came from, for error messages: the line of a file, or the number of the request from 1.
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
        /// Of the trace.
        line: u64,
        /// What it is.
        source: RunError,
    },
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Gives all of `traffic` to every run, row by row, and shows each decision to `seen` (the traffic, for the key's
/// name; the run's number; the request; what became of it). Nothing is kept of what has been shown.
pub fn drive(
    traffic: &mut dyn Traffic,
    runs: &mut [Run],
    mut seen: impl FnMut(&dyn Traffic, usize, &Arrival, &RequestOutcome<'_>) -> io::Result<()>,
) -> Result<(), SimulationError> {
    while let Some(arrival) = traffic.next_arrival()? {
        for (number, run) in runs.iter_mut().enumerate() {
            let outcome = run.step(&arrival).map_err(|source| SimulationError::Run { line: traffic.line(), source })?;
            seen(traffic, number, &arrival, &outcome)?;
        }
    }
    Ok(())
}
