//! The step from the decisions of all limits of a request to one verdict, and to the numbers that clients are told.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::algorithm::{Decision, Denial, Headroom, Policy};
use crate::charge::{Charge, ChargeSource, Charged, Enforcement};
use crate::ruleset::ban::Ban;
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::outcome::{OutcomeKind, OutcomeSummary};
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::{LimitId, Ruleset};
use crate::units::Nanos;

/// The standing of a request's key under each limit. Most requests are under few limits.
pub type Standings = SmallVec<[Standing; 2]>;

/// The outcome of a request under all its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// A denial if at least one enforcing limit denies; nothing was charged then. Otherwise an admission after the longest wait
    /// of an enforcing limit.
    pub outcome: Decision,
    /// The standing of the request's key under each limit, in the order of the route's limits.
    pub standings: Standings,
    /// The position in `standings` of the limit that clients are told about where there is room for one only: on a
    /// denial the one that denies for longest, otherwise the one with the least left.
    pub tightest: Option<usize>,
    /// Whether the limit at `tightest` has banned the key, so that nothing was asked.
    pub banned: bool,
}

/// The standing of a key under one limit: the decision, and the headroom that is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The limit.
    pub limit: LimitId,
    /// Whether its denial denies the request; otherwise it watches, marks or diverts.
    pub enforces: bool,
    /// Whether clients are told about it.
    pub visible: bool,
    /// The limit's decision on the request.
    pub decision: Decision,
    /// The limit's policy, as headers show it.
    pub policy: Policy,
    /// The headroom that is left.
    pub headroom: Headroom,
}

impl Standing {
    /// Whether the limit denies the request.
    pub const fn denies(&self) -> bool {
        self.enforces && !self.decision.is_admitted()
    }

    /// The share of the quota in use, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
    pub fn utilization(&self) -> f64 {
        match self.headroom.remaining {
            Some(remaining) => 1.0 - (remaining.min(self.policy.quota) as f64 / self.policy.quota.max(1) as f64),
            None => 0.0,
        }
    }

    /// The same in percent, rounded down, and exact.
    pub fn used_percent(&self) -> u8 {
        let quota = u128::from(self.policy.quota.max(1));
        let left = self.headroom.remaining.map_or(quota, |left| quota.min(left.into()));
        let percent = quota.saturating_sub(left).saturating_mul(100).checked_div(quota).unwrap_or(0);
        u8::try_from(percent).unwrap_or(100)
    }
}

/// A limit warns the client of a request that it admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitWarning<'r> {
    /// The limit's name.
    pub limit: &'r str,
    /// The highest mark of [`Limit::warn_at`] that the key has reached.
    pub at: u8,
    /// The share of the quota in use, in percent.
    pub used: u8,
}

impl Verdict {
    /// A request that no limit applies to.
    pub fn unlimited() -> Self {
        Self { outcome: Decision::ADMIT, standings: Standings::new(), tightest: None, banned: false }
    }

    /// Combines the decisions on `charges`.
    pub fn new(ruleset: &Ruleset, charges: &[Charge], charged: &[Charged]) -> Self {
        let mut verdict = Self::unlimited();
        verdict.set(ruleset, charges, charged);
        verdict
    }

    /// Like [`Verdict::new`], but overwrites this verdict: it is large, and moving it costs as much as making it.
    pub fn set(&mut self, ruleset: &Ruleset, charges: &[Charge], charged: &[Charged]) {
        self.standings.clear();
        self.banned = false;
        let (mut longest_wait, mut severest, mut least) = (Nanos::ZERO, None, None);
        for (position, (charge, charged)) in charges.iter().zip(charged).enumerate() {
            let limit = &ruleset.limits[charge.limit];
            let enforces = charge.enforcement.enforces;
            // the headroom of a limit that could not be asked is unknown
            let visible = limit.is_visible() && charge.taken_from != ChargeSource::FailedOpen;
            match charged.decision {
                Decision::Admit { wait } if enforces => longest_wait = longest_wait.max(wait),
                Decision::Deny(denial)
                    if enforces && severest.is_none_or(|(_, known)| severity(denial) >= severity(known)) =>
                {
                    severest = Some((position, denial));
                }
                _ => {}
            }
            let left = (charged.headroom.remaining.unwrap_or(u64::MAX), Reverse(charged.headroom.until_more));
            if visible && least.is_none_or(|(_, least)| left < least) {
                least = Some((position, left));
            }
            self.standings.push(Standing {
                limit: LimitId(charge.limit),
                enforces,
                visible,
                decision: charged.decision,
                policy: limit.rule(&charge.rule).policy().above(charge.floor),
                headroom: charged.headroom,
            });
        }
        (self.outcome, self.tightest) = match severest {
            Some((position, denial)) => (Decision::Deny(denial), Some(position)),
            None => (Decision::Admit { wait: longest_wait }, least.map(|(position, _)| position)),
        };
        self.await_kept_charges(ruleset, charges);
    }

    /// Lengthens the denial of a request to the time when it would pass under the limits that admit it and have charged it
    /// all the same (`charge.denied`). This time is exact for a request of one token, and otherwise perhaps too short.
    pub fn await_kept_charges(&mut self, ruleset: &Ruleset, charges: &[Charge]) {
        if !self.is_denied() {
            return;
        }
        let waits = charges.iter().zip(&self.standings).filter_map(|(charge, standing)| {
            let Enforcement { enforces, consumes, counts_denied } = charge.enforcement;
            let is_kept = enforces && consumes && counts_denied && standing.decision.is_admitted();
            if !is_kept || standing.headroom.remaining.is_none_or(|remaining| remaining >= charge.cost) {
                return None;
            }
            let max_wait = ruleset.rule_of_charge(charge).arguments().max_wait();
            Some(standing.headroom.until_more.saturating_sub(max_wait))
        });
        if let Some(longest) = waits.max() {
            self.lengthen_denial(longest);
        }
    }

    /// Makes the retry time of a denied request at least `retry_after`. A denial for good or for an unknown time stays.
    pub fn lengthen_denial(&mut self, at_least: Nanos) {
        if let Decision::Deny(Denial::Later { retry_after }) = &mut self.outcome {
            *retry_after = at_least.max(*retry_after);
        }
    }

    /// Makes the denial of a request at least as long as this `denial` by the limit at `position`, and so the limit's own one.
    pub fn lengthen_denial_to(&mut self, position: usize, denial: Denial) {
        let own = self.standings.get_mut(position).map(|standing| &mut standing.decision);
        for decision in own.into_iter().chain([&mut self.outcome]) {
            if let Decision::Deny(told) = decision
                && severity(*told) < severity(denial)
            {
                *told = denial;
            }
        }
    }

    /// A request one of whose keys is banned. Nothing was charged, and clients are told about no other limit.
    pub fn of_banned(ruleset: &Ruleset, charges: &[Charge], ban: Ban, now: Nanos) -> Self {
        let Ban { position, left } = ban;
        let charged = charges.iter().enumerate().map(|(at, charge)| match at == position {
            true => {
                let headroom = Headroom { remaining: Some(0), until_more: left, until_full: left };
                Charged { decision: Decision::later(left), headroom }
            }
            false => {
                let rule = ruleset.rule_of_charge(charge);
                Charged { decision: Decision::ADMIT, headroom: rule.headroom(None, now) }
            }
        });
        let charged: Vec<Charged> = charged.collect();
        let mut verdict = Self::new(ruleset, charges, &charged);
        let others = verdict.standings.iter_mut().enumerate().filter(|(at, _)| *at != position);
        others.for_each(|(_, standing)| standing.visible = false);
        verdict.banned = true;
        verdict
    }

    /// Turns an admission into a denial by the limit at `position` of the standings.
    pub fn deny(&mut self, position: usize, denial: Denial) {
        if let Some(standing) = self.standings.get_mut(position) {
            standing.decision = Decision::Deny(denial);
            self.outcome = Decision::Deny(denial);
            self.tightest = Some(position);
        }
    }

    /// Notes that the denial by the limit at `position` bans the key for this time: nothing is left to the key until then. The
    /// request is denied for as long, unless it is denied for good.
    pub fn begin_ban(&mut self, position: usize, ban: Nanos) {
        let Some(standing) = self.standings.get_mut(position) else { return };
        let headroom = &mut standing.headroom;
        (headroom.remaining, headroom.until_more) = (Some(0), headroom.until_more.max(ban));
        if matches!(standing.decision, Decision::Deny(Denial::Never { .. })) {
            // such a denial has no retry time that could be that of the ban
            headroom.until_full = headroom.until_full.max(ban);
        }
        let denial = Denial::Later { retry_after: ban };
        match self.outcome {
            Decision::Deny(told) if severity(told) < ban => self.deny(position, denial),
            _ => self.lengthen_denial_to(position, denial),
        }
    }

    /// The `charges` that took something when the request was admitted. Limits that let requests over them pass took
    /// nothing for it.
    pub fn consuming_charges<'a>(&'a self, charges: &'a [Charge]) -> impl Iterator<Item = (&'a Charge, &'a Standing)> {
        let took = |(charge, standing): &(&Charge, &Standing)| charge.enforcement.takes(standing.decision);
        charges.iter().zip(&self.standings).filter(took)
    }

    /// Adds what the admitted request took by those `charges` to the headroom that are refunded.
    pub fn refund(&mut self, charges: &[Charge], is_refunded: fn(Enforcement, Decision) -> bool) {
        for (charge, standing) in charges.iter().zip(&mut self.standings) {
            if is_refunded(charge.enforcement, standing.decision) {
                standing.headroom = standing.headroom.after_refund(charge.cost, standing.policy);
            }
        }
    }

    /// Whether the request may not pass.
    pub const fn is_denied(&self) -> bool {
        !self.outcome.is_admitted()
    }

    /// The limit that clients are told about where there is room for one only: that of `tightest`, or else the one with the
    /// least left among the limits that answers may name.
    pub fn client_standing(&self) -> Option<&Standing> {
        let tightest = self.standings.get(self.tightest?).filter(|standing| standing.visible);
        let left = |standing: &&Standing| standing.headroom.remaining.unwrap_or(u64::MAX);
        tightest.or_else(|| self.standings.iter().filter(|standing| standing.visible).min_by_key(left))
    }

    /// The limits that denied the request.
    pub fn violated(&self) -> impl Iterator<Item = LimitId> {
        self.standings.iter().filter(|standing| standing.denies()).map(|standing| standing.limit)
    }

    /// The limits that the request is over and that let it pass: they watch, mark or divert. None on a denial.
    pub fn unenforced_violations(&self) -> impl Iterator<Item = LimitId> {
        let admitted = self.outcome.is_admitted();
        self.unenforced_denials().filter(move |_| admitted).map(|(_, standing)| standing.limit)
    }

    /// The standings whose limits would deny the request but do not enforce that, with their positions.
    fn unenforced_denials(&self) -> impl Iterator<Item = (usize, &Standing)> {
        let is_unenforced = |standing: &Standing| !standing.enforces && !standing.decision.is_admitted();
        self.standings.iter().enumerate().filter(move |(_, standing)| is_unenforced(standing))
    }

    /// The first limit that diverts the request, and the upstream that it goes to instead of its route's.
    pub fn divert_upstream(&self, ruleset: &Ruleset) -> Option<UpstreamId> {
        self.acting_limits(ruleset).find_map(|limit| match limit.over_limit {
            OverLimit::Divert(upstream) => Some(upstream),
            _ => None,
        })
    }

    /// The limits that the request is marked with, each with its header.
    pub fn marks<'r>(&self, ruleset: &'r Ruleset) -> impl Iterator<Item = (&'r http::HeaderName, &'r str)> {
        self.acting_limits(ruleset).filter_map(|limit| match &limit.over_limit {
            OverLimit::Mark(header) => Some((header, limit.name.as_str())),
            _ => None,
        })
    }

    /// The limits that the request is over and that act on it without a denial: they mark or divert.
    fn acting_limits<'r>(&self, ruleset: &'r Ruleset) -> impl Iterator<Item = &'r Limit> {
        self.unenforced_violations().map(|id| &ruleset.limits[id.0]).filter(|limit| limit.acts())
    }

    /// The warnings for the client. None on a denial.
    pub fn warnings<'v>(&'v self, ruleset: &'v Ruleset) -> impl Iterator<Item = LimitWarning<'v>> {
        let visible = self.standings.iter().filter(|standing| standing.visible && !self.is_denied());
        visible.filter_map(|standing| {
            let limit = &ruleset.limits[standing.limit.0];
            let used = (!limit.warn_at.is_empty()).then(|| standing.used_percent())?;
            let at = limit.mark_at(used)?;
            Some(LimitWarning { limit: &limit.name, at, used })
        })
    }

    /// The decisions of a limit and of its candidate, where the two can be compared: by position of the candidate's
    /// standing. Where another limit denies the request it would be denied under either.
    pub fn candidate_comparisons(&self, ruleset: &Ruleset) -> impl Iterator<Item = (usize, Decision)> {
        let asked = self.standings.iter().enumerate().filter(|_| !self.banned);
        let candidates = asked.filter_map(|(position, standing)| {
            let live = ruleset.limits[standing.limit.0].candidate_of?;
            self.violated().all(|violated| violated == live).then_some((position, live))
        });
        candidates.filter_map(|(position, live)| {
            // behind the standing of each key of a limit is that of its candidate
            let before = self.standings.get(..position)?;
            let live = before.iter().rfind(|standing| standing.limit == live)?;
            Some((position, live.decision))
        })
    }

    /// The charges of a candidate that have to be made although the request was denied, with their positions: the limit
    /// beside which it is tried is the only one that denies, and the candidate would admit all its keys. If it were in
    /// force, the request would pass. A candidate that counts denials has been charged already; one that counts running
    /// requests is left as it is, because the time that the request would have run is unknown.
    pub fn candidate_to_charge(&self, ruleset: &Ruleset, charges: &[Charge]) -> Vec<(usize, Charge)> {
        let compared = || self.candidate_comparisons(ruleset).map(|(position, _)| position);
        if !self.is_denied() || !compared().all(|position| self.standings[position].decision.is_admitted()) {
            return Vec::new();
        }
        let alone = compared().filter_map(|position| {
            let charge = charges.get(position)?;
            let holds = ruleset.rule_of_charge(charge).holds_slots();
            let alone = Charge { enforcement: Enforcement { enforces: true, ..charge.enforcement }, ..charge.clone() };
            (!holds && !charge.enforcement.counts_denied).then_some((position, alone))
        });
        alone.collect()
    }

    /// Puts the decision on a charge that was made by itself in the place of the earlier one, of the limit at `position`.
    pub fn replace(&mut self, position: usize, charged: Charged) {
        if let Some(standing) = self.standings.get_mut(position) {
            (standing.decision, standing.headroom) = (charged.decision, charged.headroom);
        }
    }

    /// The outcome in short; `bypassed` says whether the request is exempt from the limits of its route.
    pub fn summary(&self, ruleset: &Ruleset, bypassed: bool) -> OutcomeSummary {
        let tightest = self.tightest;
        let Decision::Admit { wait } = self.outcome else {
            let kind = if self.banned { OutcomeKind::Banned } else { OutcomeKind::Denied };
            return OutcomeSummary::at_once(kind, tightest);
        };
        let mut mark = None;
        for (position, standing) in self.unenforced_denials() {
            let limit = &ruleset.limits[standing.limit.0];
            match limit.over_limit {
                OverLimit::Divert(_) if limit.acts() => {
                    return OutcomeSummary { kind: OutcomeKind::Diverted, standing: Some(position), wait };
                }
                OverLimit::Mark(_) if limit.acts() => mark = mark.or(Some(position)),
                _ => {}
            }
        }
        match (mark, tightest) {
            (Some(_), _) => OutcomeSummary { kind: OutcomeKind::Marked, standing: mark, wait },
            (None, _) if bypassed => OutcomeSummary::at_once(OutcomeKind::Bypassed, None),
            (None, None) => OutcomeSummary::at_once(OutcomeKind::Unlimited, None),
            (None, Some(_)) => OutcomeSummary { kind: OutcomeKind::of(self.outcome), standing: tightest, wait },
        }
    }
}

/// The rank of a denial by its length: a denial for good ranks highest, a denial of unknown length lowest.
fn severity(denial: Denial) -> Nanos {
    match denial {
        Denial::Busy => Nanos::ZERO,
        Denial::Later { retry_after } => retry_after,
        Denial::Never { .. } => Nanos::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_in_use_is_rounded_down() {
        for (quota, remaining, percent) in [
            (3, Some(1), 66),
            (200, Some(1), 99),
            (u64::MAX, Some(0), 100),
            (u64::MAX, Some(1), 99),
            (1, Some(1), 0),
            (5, Some(9), 0),
            (2, None, 0),
        ] {
            let standing = Standing {
                limit: LimitId(0),
                enforces: true,
                visible: true,
                decision: Decision::ADMIT,
                policy: Policy { quota, window: None },
                headroom: Headroom { remaining, until_more: Nanos::ZERO, until_full: Nanos::ZERO },
            };
            assert_eq!(standing.used_percent(), percent, "{remaining:?} of {quota}");
        }
    }
}
