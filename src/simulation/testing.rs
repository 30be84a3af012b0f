//! Helpers that the tests of the simulation share.

use crate::algorithm::{AlgorithmName, Arguments, MAX_WAIT, Value};
use crate::simulation::run::{Run, Upstream};
use crate::simulation::trace::Trace;
use crate::simulation::{SimulatedLimit, rows::Rows, run_traffic};
use crate::units::{Nanos, Rate};

/// The upstream of tests that do not depend on one.
pub(crate) const UPSTREAM: Upstream = Upstream { hold: Nanos::ZERO, servers: None };

/// A `gcra` limit named `l` with a rate per second.
pub(crate) fn gcra(per_second: u64, burst: u64) -> SimulatedLimit {
    let mut arguments = Arguments::default();
    arguments.set("rate", Value::Rate(Rate::new(per_second, Nanos::SECOND).unwrap()));
    arguments.set("burst", Value::Whole(burst));
    SimulatedLimit::new("l", AlgorithmName::Gcra, arguments)
}

/// [`gcra`] in which all but the first of a burst wait, for up to `max_wait`.
pub(crate) fn queue(per_second: u64, burst: u64, max_wait: Nanos, max_waiting: Option<u64>) -> SimulatedLimit {
    let mut subject = gcra(per_second, burst);
    subject.arguments.set("delay_after", Value::Whole(0));
    subject.arguments.set(MAX_WAIT, Value::Duration(max_wait));
    SimulatedLimit { max_waiting, ..subject }
}

/// Parses a whole rate per second.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    let tokens = text.strip_suffix("/s").ok_or("is not a rate")?;
    let tokens = tokens.parse().map_err(|_| "is not a rate")?;
    Rate::new(tokens, Nanos::SECOND).ok_or_else(|| "is zero".to_owned())
}

/// The CSV of `subject`'s decisions on a trace, or the error.
pub(crate) fn rows_of(subject: SimulatedLimit, trace: &str) -> Result<String, String> {
    let mut run = [Run::new(subject, UPSTREAM).unwrap()];
    let mut trace = Trace::new(trace.as_bytes(), parse_rate).map_err(|error| error.to_string())?;
    let mut output = Vec::new();
    let mut rows = Rows::new(&mut output).unwrap();
    run_traffic(&mut trace, &mut run, |traffic, _, arrival, outcome| {
        rows.write(traffic.key(arrival.key), arrival, outcome)
    })
    .map_err(|error| error.to_string())?;
    rows.finish().unwrap();
    Ok(String::from_utf8(output).unwrap())
}
