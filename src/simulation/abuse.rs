//! How long a limit takes to notice an abuser.

use crate::algorithm::Decision;
use crate::simulation::arrivals::{Arrivals, Shape};
use crate::simulation::run::{Run, Upstream};
use crate::simulation::trace::TraceError;
use crate::simulation::{Subject, Traffic};
use crate::units::{Nanos, Rate};

/// Past this many requests a limit counts as one that never throttles.
const PATIENCE: u64 = 1_000_000;

/// What a fresh key gets that asks evenly, with cost 1, at a multiple of the limit's rate, until it is denied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abuse {
    /// The multiple.
    pub factor: f64,
    /// Requests admitted before the first denial.
    pub admitted: u64,
    /// The time of the first denial, the first request being at 0; `None` if there was none among the first million
    /// requests.
    pub throttled_after: Option<Nanos>,
}

impl Abuse {
    /// `None` where "the limit's rate" has no meaning (slots in flight), and where `factor` times it is no rate that
    /// can be counted.
    pub fn of(subject: &Subject, factor: f64) -> Option<Self> {
        // Nothing is given back by a request that ends: the limits that hold have no rate and end here.
        let upstream = Upstream { hold: Nanos::ZERO, servers: None };
        let mut run = Run::new(subject.clone(), upstream).ok()?;
        let rate = faster(subject.long_run_rate(run.rule())?, factor)?;
        let mut traffic = Arrivals::new(rate, Nanos::MAX, Shape::Uniform)?;
        let throttled_after = first_denial(&mut run, &mut traffic).ok()?;
        let denied = u64::from(throttled_after.is_some());
        Some(Self { factor, admitted: traffic.line() - denied, throttled_after })
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

/// `factor` (to a thousandth) times `rate`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float as an integer saturates, and zero or too much is refused as a rate"
)]
fn faster(rate: Rate, factor: f64) -> Option<Rate> {
    let thousandths = (factor * 1000.0).round() as u64;
    let (mut tokens, mut period) = (rate.tokens().checked_mul(thousandths)?, rate.period().get().checked_mul(1000));
    if period.is_none() {
        tokens /= 1000;
        period = Some(rate.period().get());
    }
    Rate::new(tokens, Nanos::new(period?))
}
