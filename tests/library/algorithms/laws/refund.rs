//! Refunds of charges.

use tollgate::algorithm::{Decision, Evictability, Rule, State};
use tollgate::units::{Cost, Nanos};

use super::probes::{admits_no_more, decide_alike};
use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "a refunded charge was never made";

pub(super) fn watch(limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    let name = limit.algorithm.as_str();
    // A nanosecond hardly changes a measured rate, unless the whole period is a few nanoseconds.
    if name == "exponential" && limit.duration("period")? < 1_000 {
        return Some(Box::new(Anything));
    }
    Some(Box::new(Refund {
        exact: !["exponential", "smooth_bursty", "smooth_warming_up"].contains(&name),
        lasts: name == "cycle" && (limit.max_wait() > 0 || limit.whole("burst") > limit.whole("limit")),
        later: !["quota_linear", "smooth_warming_up"].contains(&name),
        begins: ["quota_reset", "smooth_bursty"].contains(&name),
        grace: match name {
            "smooth_bursty" | "smooth_warming_up" => 10_000,
            _ if limit.rate("rate").is_some() => 1,
            _ => 0,
        },
        whole: name == "smooth_bursty",
        before: None,
        charges: Vec::new(),
    }))
}

/// A law without any check, for limits that guarantee nothing here.
struct Anything;

impl Law for Anything {}

struct Refund {
    /// Whether an immediate refund leaves no trace. (Doubles lose the digits that a refund would have to restore.)
    exact: bool,
    /// Whether the trace of an immediate refund is within the grace.
    whole: bool,
    /// Whether a charge can last for several cycles; then only a key without earlier ones gets everything back at once.
    lasts: bool,
    /// Whether a smaller charge always means that no less is admitted later. (This fails if the charge itself made the
    /// quota smooth or the price lower.)
    later: bool,
    /// Whether a key's first request starts something, like a window, that a refund does not undo.
    begins: bool,
    /// The time by which the state may admit a request too early. The time at which a key is full is known to the
    /// nanosecond, in which a rate may refill a part of a token or several, or to the microsecond.
    grace: u64,
    /// The state before the latest step.
    before: Option<State>,
    charges: Vec<Charge>,
}

/// A charge that is refunded at some later time.
struct Charge {
    /// The part that is refunded.
    cost: Cost,
    full_at: Nanos,
    /// The state without that part of the charge.
    honest: Option<State>,
    /// Whether this is still the latest charge.
    latest: bool,
}

impl Law for Refund {
    fn before(&mut self, walk: &Walk<'_>, _step: Step) -> Result<(), String> {
        self.before.clone_from(&walk.state);
        Ok(())
    }

    fn after(&mut self, walk: &Walk<'_>, step: Step, decision: Option<Decision>) -> Result<(), String> {
        let now = Nanos::new(step.at());
        match (step, decision) {
            (Step::Ask { cost: cost @ 1.., .. }, Some(decision)) => {
                self.follow(walk.rule, cost, decision, now);
                if decision.is_admitted() {
                    self.charge(walk, cost, now)?;
                }
            }
            // the end of a request rules out its refund
            _ => self.charges.clear(),
        }
        self.charges.iter().try_for_each(|charge| {
            let state = walk.state.clone().ok_or("what was charged is gone")?;
            let refunded = walk.rule.refund(state, charge.cost, charge.full_at, now);
            let (refunded, honest) = (refunded.as_ref(), charge.honest.as_ref());
            if charge.latest && self.exact && !self.lasts {
                decide_alike(walk.limit, walk.rule, refunded, honest, now.get())
            } else {
                admits_no_more(walk.limit, walk.rule, refunded, honest, now.get(), self.grace)
            }
            .map_err(|why| format!("{} refunded of a charge whole again at {:?}: {why}", charge.cost, charge.full_at))
        })
    }
}

impl Refund {
    /// Applies a request to the states with smaller charges, and keeps those that decide alike.
    fn follow(&mut self, rule: &Rule, cost: Cost, decision: Decision, now: Nanos) {
        if decision.is_admitted() || rule.denials_count() {
            self.charges.retain_mut(|charge| {
                let (honest, state) = rule.decide(charge.honest.take(), cost, now);
                charge.honest = state;
                charge.latest = false;
                honest.is_admitted() == decision.is_admitted()
            });
        }
    }

    /// Refunds a part of a charge, at once and later.
    fn charge(&mut self, walk: &Walk<'_>, cost: Cost, now: Nanos) -> Result<(), String> {
        let (rule, Some(state)) = (walk.rule, &walk.state) else { return Err("what was charged is gone".to_owned()) };
        let mut random = Random::new(now.get() ^ cost);
        let part = if random.once_in(2) { cost } else { random.from(1, cost) };
        let full_at = now.saturating_add(rule.headroom(Some(state), now).until_full);
        // A denied request was the key's first request, too.
        let before = self.before.clone().or_else(|| match rule.decide(None, Cost::MAX, now) {
            (Decision::Deny(_), state) if !rule.denials_count() => state,
            _ => None,
        });
        let honest = rule.decide(before, cost - part, now).1;
        let refunded = rule.refund(state.clone(), part, full_at, now);
        let begun = self.before.as_ref().is_some_and(|state| match rule.evictability(state) {
            Evictability::Fresh(from) | Evictability::Safe(from) => from > now,
            Evictability::Held => true,
        });
        if self.exact && !(self.lasts && begun) && (begun || !self.begins) {
            decide_alike(walk.limit, rule, refunded.as_ref(), honest.as_ref(), now.get())
        } else {
            admits_no_more(walk.limit, rule, refunded.as_ref(), honest.as_ref(), now.get(), self.grace)
        }
        .map_err(|why| format!("{part} refunded at once: {why}"))?;
        if self.whole && full_at.get() < HORIZON {
            admits_no_more(walk.limit, rule, honest.as_ref(), refunded.as_ref(), now.get(), self.grace)
                .map_err(|why| format!("{part} refunded at once, and not all came back: {why}"))?;
        }
        if self.later && (begun || !self.begins) {
            self.charges.push(Charge { cost: part, full_at, honest, latest: true });
        }
        if self.charges.len() > 3 {
            self.charges.remove(0);
        }
        Ok(())
    }
}
