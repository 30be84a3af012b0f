//! Notifies the operators' webhook of keys that have reached a mark of `warn_at`, or that a limit denies before they reach one:
//! once for each mark, window, plan and quota.
//!
//! The gateway remembers the last notification of each of many keys, in bounded memory. It sends a forgotten one again, with
//! the same identity, by which receivers recognize it. No request waits here: a notification that the queue has no room for
//! is counted and lost.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::sync::Cache;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::algorithm::{AlgorithmName, Decision, Denial};
use crate::charge::{Charge, ChargeSource, DecisionSource};
use crate::gateway::request_context::RequestContext;
use crate::gateway::subject::{bucket, shared_because, subject};
use crate::ruleset::cost::ChargeTime;
use crate::ruleset::key::{KeyFault, KeyPart, Value};
use crate::ruleset::limit::Limit;
use crate::ruleset::verdict::{Standing, Verdict};
use crate::ruleset::{PlanId, Ruleset};
use crate::telemetry::offenders::LimitedKey;
use crate::units::{ClockOffset, LimitKey, Nanos};

/// How many keys are remembered.
const REMEMBERED: usize = 1 << 16;
/// How many crossings may wait in memory until they are written to disk.
const WAITING: usize = 4096;
/// The shortest window, counted from 1970: there is one notification of a key at a mark in each minute of the clock at most.
const MIN_WINDOW: Nanos = Nanos::from_secs(60);

/// The event that a key has reached a mark.
#[derive(Clone, PartialEq)]
pub struct Crossing {
    /// The limit, the key, the mark, the window, the plan and the quota, which identify the notification. Secret, because the
    /// key may be.
    pub identity: Vec<u8>,
    /// The time of the event, by the wall clock.
    pub at: Nanos,
    /// The limit, and the key with secret parts masked.
    pub subject: LimitedKey,
    /// The plan by which the limit goes: that of the caller or of its group.
    pub plan: Option<String>,
    /// The mark, in percent.
    pub mark: u8,
    /// The share of the quota in use, in percent.
    pub used: u8,
    /// The most that can be admitted at once.
    pub quota: u64,
    /// The rest of the quota.
    pub remaining: u64,
    /// The time in which a used-up quota becomes full again.
    pub window: Option<Nanos>,
    /// The time at which the quota is full again if no other request takes tokens, by the wall clock.
    pub full_at: Nanos,
}

/// The last notification of each key, and the queue of crossings to notify of.
pub struct Crossings {
    /// By the key and a hash of the plan's name and the quota: a key that is given a larger quota reaches the same marks again.
    notified: OnceLock<Cache<(LimitKey, u64), Notified>>,
    waiting: Sender<Crossing>,
    lost: AtomicUsize,
}

/// The last notification of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notified {
    window: u64,
    mark: u8,
}

impl Default for Crossings {
    /// The crossings of a gateway without a webhook.
    fn default() -> Self {
        Self::new().0
    }
}

impl Crossings {
    /// The crossings, and the receiving end of their queue.
    pub fn new() -> (Self, Receiver<Crossing>) {
        let (waiting, receiver) = channel(WAITING);
        (Self { notified: OnceLock::new(), waiting, lost: AtomicUsize::new(0) }, receiver)
    }

    /// The number of crossings that were lost because the queue was full, since the last call.
    pub fn take_lost(&self) -> usize {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Whether there was no such notification of the key yet; this call notes it.
    fn insert_if_new(&self, key: (LimitKey, u64), now: Notified) -> bool {
        let notified = self.notified.get_or_init(|| Cache::new(REMEMBERED));
        let is_new = notified.get(&key).is_none_or(|last| last.window != now.window || last.mark < now.mark);
        if is_new {
            notified.insert(key, now);
        }
        is_new
    }

    fn notify(&self, crossing: Crossing) {
        if self.waiting.try_send(crossing).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the request has brought a key to a mark, and there is a webhook to notify.
pub(super) fn has_notification(context: &RequestContext) -> bool {
    let ruleset = &context.active.ruleset;
    ruleset.webhook.is_some() && reached(context, ruleset).next().is_some()
}

/// A charge whose key has reached a mark.
struct Reached<'c> {
    position: usize,
    charge: &'c Charge,
    limit: &'c Limit,
    /// The standing of the key, as far as it is final.
    standing: Standing,
    used: u8,
    mark: u8,
}

/// The charges of a request whose keys have reached a mark.
fn reached<'c>(context: &'c RequestContext, ruleset: &'c Ruleset) -> impl Iterator<Item = Reached<'c>> {
    let pairs = context.verdict.standings.iter().zip(&context.charges);
    pairs.enumerate().filter_map(|(position, (standing, charge))| {
        let limit = ruleset.limits.get(standing.limit.0).filter(|limit| limit.acts() && !limit.warn_at.is_empty())?;
        if is_decided_by_share(context, charge) {
            return None;
        }
        let standing = final_standing(&context.verdict, limit, charge, standing);
        let used = used_percent(&context.verdict, &standing)?;
        Some(Reached { position, charge, limit, standing, used, mark: limit.mark_at(used)? })
    })
}

/// Whether this gateway has decided by its share of the limit, because Redis is unavailable. It does not know how much of the
/// other shares is used.
fn is_decided_by_share(context: &RequestContext, charge: &Charge) -> bool {
    match charge.taken_from {
        ChargeSource::Fallback { cost_multiplier, .. } => cost_multiplier > 1,
        ChargeSource::Slot(_) => context.decision_source == Some(DecisionSource::Fallback),
        _ => false,
    }
}

/// The standing without the tokens that the request has only reserved: its real cost counts once it is settled.
fn final_standing(verdict: &Verdict, limit: &Limit, charge: &Charge, standing: &Standing) -> Standing {
    let is_settled_later = matches!(limit.charge.when, ChargeTime::Response { .. });
    match is_settled_later && !verdict.is_denied() && charge.enforcement.takes(standing.decision) {
        true => Standing { headroom: standing.headroom.after_refund(charge.cost, standing.policy), ..*standing },
        false => *standing,
    }
}

/// The share of the quota that counts as used, in percent. For a key that has less left than a request asks for, that is all
/// of it; not for a request that no quota of this size admits, nor for a key that is banned. `None` for the limits that
/// admit a denied request.
fn used_percent(verdict: &Verdict, standing: &Standing) -> Option<u8> {
    match standing.decision {
        _ if !verdict.is_denied() => Some(standing.used_percent()),
        Decision::Deny(Denial::Later { .. } | Denial::Busy) if standing.enforces && !verdict.banned => Some(100),
        _ => None,
    }
}

/// Notifies the webhook of the keys that the request has brought to a mark, unless it has been notified before. `value` gives
/// the values for the parts of the key of the charge at a position, and `plan` the plan by which its limit goes.
pub(super) fn notify_reached<'v>(
    context: &RequestContext,
    value: impl Fn(usize, &KeyPart) -> Option<Value<'v>>,
    plan: impl Fn(usize, &Limit) -> Option<PlanId>,
) {
    let (active, gateway) = (&context.active, &context.gateway);
    let ruleset = &active.ruleset;
    if ruleset.webhook.is_none() {
        return;
    }
    let at = gateway.clock.wall_at(context.charged_at);
    for Reached { position, charge, limit, standing, used, mark } in reached(context, ruleset) {
        let full_at = time_of_states(charge, context.charged_at, at).saturating_add(standing.headroom.until_full);
        let window = window_at(limit.algorithm, (at, full_at), standing.policy.window);
        let plan = ruleset.plan_name(plan(position, limit));
        // the number of a plan is another one after a reload that lists plans in another order
        let quota = standing.policy.quota;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((plan, quota));
        if !gateway.crossings.insert_if_new((bucket(limit, charge), hash), Notified { window, mark }) {
            continue;
        }
        let values = |part: &KeyPart| value(position, part);
        let shared = shared_because(active, limit, charge, values);
        gateway.crossings.notify(Crossing {
            identity: NotificationKey { limit, plan, shared, mark, window, quota }.identity(values),
            at,
            subject: subject(active, limit, charge, values),
            plan: plan.map(str::to_owned),
            mark,
            used,
            quota,
            remaining: standing.headroom.remaining.unwrap_or(0),
            window: standing.policy.window,
            full_at,
        });
    }
}

/// The time of a charge by the wall clock that its key's states go by: that of Redis, or of the gateway that owns the key. `at`
/// is the time by this gateway's wall clock.
fn time_of_states(charge: &Charge, charged_at: Nanos, at: Nanos) -> Nanos {
    match charge.clock_offset {
        ClockOffset::ZERO => at,
        offset => charged_at.shifted(offset),
    }
}

/// The number of the window that a key is in, which is full again at `full_at`: if the quota comes back all at once, the
/// number of the window's end; otherwise the number of the limit's windows since 1970.
fn window_at(algorithm: AlgorithmName, (at, full_at): (Nanos, Nanos), window: Option<Nanos>) -> u64 {
    let shortest = MIN_WINDOW.get();
    match algorithm {
        // to the nearest minute: gateways do not agree on the time to the nanosecond
        AlgorithmName::FixedWindow | AlgorithmName::QuotaReset => full_at.get().saturating_add(shortest / 2) / shortest,
        _ => at.get() / window.map_or(shortest, |window| window.get().max(shortest)),
    }
}

/// The data that tells a notification of a key from all other notifications of it.
struct NotificationKey<'a> {
    limit: &'a Limit,
    plan: Option<&'a str>,
    /// The fault because of which the key is a bucket that requests share.
    shared: Option<KeyFault<'a>>,
    mark: u8,
    /// The number of the window.
    window: u64,
    quota: u64,
}

impl NotificationKey<'_> {
    /// The identity of the notification, which no other notification has; `value` gives the values for the parts of the key.
    /// The bucket that requests share because of a fault has one identity, whatever values they have for the other parts.
    fn identity<'v>(&self, value: impl Fn(&KeyPart) -> Option<Value<'v>>) -> Vec<u8> {
        let mut identity = [self.window, self.quota].map(u64::to_le_bytes).concat();
        identity.push(self.mark);
        let text = |value: Value<'v>| match value {
            Value::Bytes(bytes) => bytes.into_owned(),
            Value::Address(address) => address.to_string().into_bytes(),
        };
        let value = |part: &KeyPart| match self.shared {
            Some(fault) => (part == fault.part).then(|| fault.to_string().into_bytes()),
            None => value(part).map(text),
        };
        let values = self.limit.key.parts.iter().map(value);
        let names = [Some(&*self.limit.name), self.plan].map(|name| name.map(|name| name.as_bytes().to_vec()));
        for part in names.into_iter().chain(values) {
            identity.push(part.is_some().into());
            let part = part.unwrap_or_default();
            identity.extend_from_slice(&part.len().to_le_bytes());
            identity.extend_from_slice(&part);
        }
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Nanos = Nanos::from_secs(3_600);

    #[test]
    fn there_is_one_notification_of_a_mark_in_a_window_and_one_more_of_a_higher_mark() {
        let (crossings, _receiver) = Crossings::new();
        let is_new_on =
            |key, plan, window, mark| crossings.insert_if_new((LimitKey(key), plan), Notified { window, mark });
        let is_new = |key, window, mark| is_new_on(key, 0, window, mark);
        assert_eq!([is_new(1, 7, 80), is_new(1, 7, 80), is_new(2, 7, 80)], [true, false, true]);
        assert_eq!([is_new(1, 7, 95), is_new(1, 7, 80), is_new(1, 7, 95)], [true, false, false]);
        assert_eq!([is_new(1, 8, 80), is_new(1, 8, 80)], [true, false]);
        let on_plan = || is_new_on(1, 1, 8, 80);
        assert_eq!([on_plan(), on_plan(), is_new(1, 8, 80)], [true, false, false], "another plan or quota holds now");
    }

    #[test]
    fn windows_end_when_the_quota_comes_back_or_go_by_the_time_since_1970() {
        let at = |seconds: u64| Nanos::from_secs(seconds);
        let reset = |now, end| window_at(AlgorithmName::QuotaReset, (at(now), at(end)), Some(HOUR));
        assert_eq!(reset(100, 7_200), reset(7_100, 7_200));
        assert_eq!(reset(100, 7_200), reset(100, 7_201), "another gateway's clock");
        assert_ne!(reset(100, 7_200), reset(7_200, 10_800));
        let refilled = |now, window| window_at(AlgorithmName::Gcra, (at(now), at(now)), window);
        assert_eq!(refilled(0, Some(HOUR)), refilled(3_599, Some(HOUR)));
        assert_ne!(refilled(3_599, Some(HOUR)), refilled(3_600, Some(HOUR)));
        assert_eq!(refilled(0, Some(Nanos::SECOND)), refilled(59, None), "once in each minute of the clock");
    }
}
