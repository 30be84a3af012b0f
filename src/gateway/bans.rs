//! The keys that limits have banned, and the recent denials of keys that limits may ban.
//!
//! Each gateway bans by the denials that it gave itself, in bounded memory: it forgets keys that it has no room for. Bans
//! survive a reload, because keys depend on the names of their limits, but not the end of the process.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use smallvec::SmallVec;

use crate::charge::Charge;
use crate::gateway::request_context::RequestContext;
use crate::ruleset::ban::{Ban, BanRule, BanState};
use crate::ruleset::verdict::Verdict;
use crate::ruleset::{LimitId, Ruleset};
use crate::store::local::is_overflow;
use crate::units::{LimitKey, Nanos};

/// The number of shards, each with a lock of its own, and the number of keys that each shard remembers.
const SHARDS: usize = 16;
const REMEMBERED: usize = 4096;

/// The bans and recent denials of the keys of all limits.
pub struct Bans {
    shards: [Mutex<Cache<LimitKey, BanState>>; SHARDS],
    /// Whether any key was denied that may be banned: until then no request looks for bans.
    has_denials: AtomicBool,
}

impl Default for Bans {
    fn default() -> Self {
        Self { shards: [(); SHARDS].map(|()| Mutex::new(Cache::new(REMEMBERED))), has_denials: AtomicBool::new(false) }
    }
}

impl Bans {
    /// The time for which the key of `charge` is still banned; `None` if it is not banned.
    pub fn remaining(&self, ruleset: &Ruleset, charge: &Charge, now: Nanos) -> Option<Nanos> {
        if !self.has_denials.load(Ordering::Relaxed) {
            return None;
        }
        rule(ruleset, charge).and_then(|_| self.shard(charge.key)?.lock().get(&charge.key)?.left(now))
    }

    /// The longest ban of the keys of `charges`; `None` if no key is banned.
    pub fn longest_ban(&self, ruleset: &Ruleset, charges: &[Charge], now: Nanos) -> Option<Ban> {
        let left = charges.iter().map(|charge| self.remaining(ruleset, charge, now)).enumerate();
        left.filter_map(|(position, left)| Some(Ban { position, left: left? })).max_by_key(|ban| ban.left)
    }

    /// Lifts the ban of the key of `charge`, and forgets its denials. Returns whether it was banned.
    pub fn lift(&self, charge: &Charge, now: Nanos) -> bool {
        let removed = self.shard(charge.key).and_then(|shard| shard.lock().remove(&charge.key));
        removed.is_some_and(|(_, state)| state.left(now).is_some())
    }

    /// Turns `verdict` into the one that the client would get if its denials were recorded. Records nothing.
    pub fn foresee(&self, ruleset: &Ruleset, charges: &[Charge], verdict: &mut Verdict, now: Nanos) {
        let begun = begun_bans(ruleset, charges, verdict, |_, charge, rule| {
            let before = self.shard(charge.key)?.lock().get(&charge.key).copied();
            rule.after_denial(before, now).left(now)
        });
        begun.into_iter().for_each(|(position, ban)| verdict.begin_ban(position, ban));
    }

    /// Notes a denial of the key. Returns the time for which this bans the key; `None` if it does not.
    fn record_denial(&self, key: LimitKey, rule: &BanRule, now: Nanos) -> Option<Nanos> {
        let shard = self.shard(key)?;
        self.has_denials.store(true, Ordering::Relaxed);
        let mut shard = shard.lock();
        let before = shard.get(&key).copied();
        let after = rule.after_denial(before, now);
        shard.insert(key, after);
        after.left(now).filter(|_| before.is_none_or(|before| before.left(now).is_none()))
    }

    fn shard(&self, key: LimitKey) -> Option<&Mutex<Cache<LimitKey, BanState>>> {
        self.shards.get(usize::try_from(key.fingerprint()).unwrap_or(0) % SHARDS)
    }
}

/// The rule that may ban the key of `charge`. Overflow buckets, which new keys share, are never banned: they have no owner.
fn rule<'r>(ruleset: &'r Ruleset, charge: &Charge) -> Option<&'r BanRule> {
    let limit = ruleset.limits.get(charge.limit).filter(|limit| limit.enforces())?;
    limit.ban.as_ref().filter(|_| !is_overflow(charge.key))
}

/// Notes which keys of a denied request were denied, and bans them where a rule says so. The client of a request that
/// bans its key is told so.
pub(super) fn record_denials(context: &mut RequestContext, now: Nanos) {
    let (active, bans) = (&context.active, &context.gateway.bans);
    let begun = begun_bans(&active.ruleset, &context.charges, &context.verdict, |position, charge, rule| {
        let ban = bans.record_denial(charge.key, rule, now)?;
        active.meters.count_ban(LimitId(charge.limit), context.plan_of(position));
        Some(ban)
    });
    begun.into_iter().for_each(|(position, ban)| context.verdict.begin_ban(position, ban));
}

/// The bans that a denial by `verdict` begins, each with the position of its charge. `ban` returns the ban of each denied key,
/// by the position of its charge.
fn begun_bans(
    ruleset: &Ruleset,
    charges: &[Charge],
    verdict: &Verdict,
    ban: impl Fn(usize, &Charge, &BanRule) -> Option<Nanos>,
) -> SmallVec<[(usize, Nanos); 2]> {
    if !verdict.is_denied() || verdict.banned {
        return SmallVec::new();
    }
    let denied = verdict.standings.iter().zip(charges).enumerate().filter(|(_, (standing, _))| standing.denies());
    let begun = denied.filter_map(|(position, (_, charge))| {
        let ban = ban(position, charge, rule(ruleset, charge)?)?;
        Some((position, ban))
    });
    begun.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_is_not_banned() {
        let (bans, rule) = (Bans::default(), BanRule { after: 1, within: Nanos::SECOND, lasts: Nanos::SECOND });
        let keys = 4 * SHARDS * REMEMBERED;
        for key in 0..keys {
            assert_eq!(bans.record_denial(LimitKey(key as u128), &rule, Nanos::ZERO), Some(Nanos::SECOND));
        }
        let remembered: usize = bans.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(remembered > 0 && remembered <= SHARDS * REMEMBERED, "{remembered}");
    }
}
