//! States as the script writes them.

use crate::algorithm::counter::Spent;
use crate::algorithm::cycle::Cycling;
use crate::algorithm::exponential::Measured;
use crate::algorithm::quota_linear::Quota;
use crate::algorithm::shared::Named;
use crate::algorithm::sliding_window::Counts;
use crate::algorithm::smooth::Reserved;
use crate::algorithm::{Rule, State};
use crate::units::{FineTime, Nanos, Packed, Rate};

const SECOND: u128 = 1_000_000_000;

/// The state of `rule` that reads `text`; `None` where it does not read like one.
pub(super) fn parse(rule: &Rule, text: &str) -> Option<State> {
    let mut words = text.split(' ');
    let state = match rule {
        Rule::TokenBucket(rule) => State::TokenBucket(fine_time(rule.core().rate(), &mut words)?),
        Rule::LeakyBucket(rule) => State::LeakyBucket(fine_time(rule.core().rate(), &mut words)?),
        Rule::LeakyQueue(rule) => State::LeakyQueue(fine_time(rule.core().rate(), &mut words)?),
        Rule::Gcra(rule) => State::Gcra(fine_time(rule.rate(), &mut words)?),
        Rule::FixedWindow(_) => State::FixedWindow(spent(&mut words)?),
        Rule::QuotaReset(_) => State::QuotaReset(spent(&mut words)?),
        Rule::QuotaLinear(_) => State::QuotaLinear(quota(&mut words)?),
        Rule::Exponential(_) => State::Exponential(Measured {
            rate: number(&mut words)?,
            last: time(&mut words)?,
            share: number(&mut words)?,
        }),
        Rule::SlidingWindow(_) => State::SlidingWindow(Counts {
            window: number(&mut words)?,
            current: number(&mut words)?,
            previous: number(&mut words)?,
        }),
        Rule::SmoothBursty(_) => State::SmoothBursty(reserved(&mut words)?),
        Rule::SmoothWarmingUp(_) => State::SmoothWarmingUp(reserved(&mut words)?),
        Rule::Cycle(_) => {
            State::Cycle(Cycling { start: time(&mut words)?, used: number(&mut words)?, lent: number(&mut words)? })
        }
        Rule::Concurrency(_) => State::Concurrency(number(&mut words)?),
        Rule::SlidingLog(_) | Rule::SlidingCounters(_) | Rule::AdaptiveConcurrency(_) => return None,
    };
    words.next().is_none().then_some(state)
}

/// A TAT as the script takes it for a hint; `None` for states of other rules.
pub(super) fn tat(rule: &Rule, state: &State) -> Option<String> {
    let (rate, tat) = match (rule, state) {
        (Rule::TokenBucket(rule), State::TokenBucket(tat)) => (rule.core().rate(), tat),
        (Rule::LeakyBucket(rule), State::LeakyBucket(tat)) => (rule.core().rate(), tat),
        (Rule::LeakyQueue(rule), State::LeakyQueue(tat)) => (rule.core().rate(), tat),
        (Rule::Gcra(rule), State::Gcra(tat)) => (rule.rate(), tat),
        _ => return None,
    };
    let tokens = u128::from(rate.tokens());
    let nanos = tat.get() / tokens;
    Some(format!("{} {} {}", nanos / SECOND, nanos % SECOND, tat.get() % tokens))
}

type Words<'a> = std::str::Split<'a, char>;

fn number<T: std::str::FromStr>(words: &mut Words<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

fn time(words: &mut Words<'_>) -> Option<Nanos> {
    number(words).map(Nanos::new)
}

/// Seconds, nanoseconds, and what is left of one in units of 1 ns / numerator of the rate.
fn fine_time(rate: Rate, words: &mut Words<'_>) -> Option<FineTime> {
    let (seconds, nanos, rest): (u128, u128, u128) = (number(words)?, number(words)?, number(words)?);
    let nanos = seconds.checked_mul(SECOND)?.checked_add(nanos)?;
    Some(FineTime::saturating_from(nanos.checked_mul(rate.tokens().into())?.checked_add(rest)?))
}

fn spent(words: &mut Words<'_>) -> Option<Spent> {
    Some(Spent { ends: time(words)?, used: number(words)? })
}

fn quota(words: &mut Words<'_>) -> Option<Quota> {
    Some(match words.next()? {
        "b" => Quota::Bursty { start: Packed::new(time(words)?), left: Packed::new(number(words)?) },
        "s" => Quota::Spent { start: Packed::new(time(words)?) },
        "m" => Quota::Smooth { full: Packed::new(number(words)?) },
        _ => return None,
    })
}

fn reserved(words: &mut Words<'_>) -> Option<Reserved> {
    Some(Reserved { next: number(words)?, stored: number(words)? })
}
