//! States that are moved to another clock.

use tollgate::algorithm::{Decision, Rule};
use tollgate::units::{ClockOffset, Nanos};

use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "a state decides on another clock as it does on its own";

pub(super) fn watch(limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    // a state of a calendar window is never moved to another clock
    (!limit.is("align", "calendar")).then(|| Box::new(Shift) as Box<dyn Law>)
}

struct Shift;

impl Law for Shift {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let (Step::Ask { at, cost }, Some(state)) = (step, &walk.state) else { return Ok(()) };
        let mut random = Random::new(at ^ cost);
        // a shift by whole windows, microseconds and seconds leaves everything as it was
        let window = walk.limit.duration("window").unwrap_or(1).max(1);
        let whole = window.checked_mul(1_000_000_000).filter(|whole| *whole < HORIZON).unwrap_or(window);
        let is_exact = random.once_in(2) && whole.is_multiple_of(1000);
        let distance = if is_exact { whole } else { random.from(1, HORIZON / 4) };
        let by = i64::try_from(distance).unwrap_or(0) * if random.once_in(2) { 1 } else { -1 };
        let Some(there_at) = at.checked_add_signed(by).filter(|there| *there < HORIZON) else { return Ok(()) };
        let by = ClockOffset::new(by);
        // on neither clock is a stored time before the epoch
        if by.get() < 0 && there_at < HORIZON / 8 {
            return Ok(());
        }
        let (now, there_at) = (Nanos::new(at), Nanos::new(there_at));
        let full = |state, now| walk.rule.headroom(Some(state), now).until_full.get();
        let before = full(state, now);
        if before >= HORIZON {
            // the key is full only after the horizon, on either clock
            return Ok(());
        }
        let there = walk.rule.shift(state.clone(), by);
        let here = walk.rule.decide(Some(state.clone()), cost, now);
        let decided = walk.rule.decide(Some(there.clone()), cost, there_at);
        let wrong = |what: &str| Err(format!("{what}: {state:?} becomes {there:?} by {by:?}"));
        if is_exact && decided.0 != here.0 {
            return wrong(&format!("{:?} becomes {:?}", here.0, decided.0));
        }
        if decided.0.is_admitted() && !here.0.is_admitted() {
            return wrong("what was denied is admitted");
        }
        if let (Decision::Deny(_), Decision::Admit { .. }) = (decided.0, here.0)
            && walk.limit.algorithm.as_str() != "sliding_window"
            && !walk.limit.algorithm.as_str().starts_with("smooth")
        {
            return wrong("what was admitted is denied");
        }
        let after = full(&there, there_at);
        if after > before.saturating_add(window).saturating_add(1000) {
            return wrong(&format!("{after} instead of {before} pass until it is full"));
        }
        Ok(())
    }
}
