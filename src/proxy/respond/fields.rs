//! The header fields that tell clients where they stand, in both dialects.
//!
//! `ietf` is draft-ietf-httpapi-ratelimit-headers-10: structured-field lists of all limits, whole seconds.
//! `x_ratelimit` is the older convention: the tightest limit only.

use http::{HeaderName, HeaderValue};
use sfv::{BareItem, Integer, KeyRef, List, ListEntry, ListSerializer, Parser, StringRef};

use crate::algorithm::{Decision, Denial};
use crate::http::fields::Fields;
use crate::ruleset::verdict::{Standing, Verdict};
use crate::ruleset::{Dialects, Reset, Ruleset};
use crate::units::Nanos;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The names of all fields that tell a client where it stands.
pub(super) const NAMES: [HeaderName; 5] = [POLICY, RATELIMIT, LIMIT, REMAINING, RESET];

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const LARGEST: u64 = 999_999_999_999_999;

/// The fields for a verdict; none if no limit applied. `theirs` are the fields that an upstream sent: its own word
/// stays where it is tighter. All numbers are as of the charge, at `charged_at` on the wall clock.
pub(super) fn limit_fields(
    ruleset: &Ruleset,
    verdict: &Verdict,
    theirs: &Fields,
    charged_at: Nanos,
) -> Vec<(HeaderName, HeaderValue)> {
    let Some(tightest) = verdict.tightest.and_then(|position| verdict.standings.get(position)) else {
        return Vec::new();
    };
    let Dialects { ietf, x_ratelimit, .. } = ruleset.dialects;
    let remaining = remaining(tightest);
    let mut fields = Vec::with_capacity(5);
    if ietf && their_ratelimit(theirs).is_none_or(|r| r >= remaining) {
        fields.extend(list(verdict, |standing| policy_entry(ruleset, standing)).map(|value| (POLICY, value)));
        fields.extend(list(verdict, |standing| standing_entry(ruleset, standing)).map(|value| (RATELIMIT, value)));
    }
    if let Some(reset) = x_ratelimit
        && their_remaining(theirs).is_none_or(|r| r >= remaining)
    {
        let seconds = tightest.headroom.until_full.secs_ceil();
        let reset = match reset {
            Reset::Delta => seconds,
            Reset::Epoch => charged_at.saturating_add(tightest.headroom.until_full).secs_ceil(),
        };
        fields.push((LIMIT, HeaderValue::from(tightest.policy.quota)));
        fields.push((REMAINING, HeaderValue::from(remaining)));
        fields.push((RESET, HeaderValue::from(reset)));
    }
    fields
}

type Entry<'a> = (&'a str, [(&'static str, Option<u64>); 2]);

fn list<'a>(verdict: &Verdict, entry: impl Fn(&Standing) -> Entry<'a>) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for standing in verdict.standings.iter().filter(|standing| standing.visible) {
        let (name, parameters) = entry(standing);
        let mut item = list.bare_item(StringRef::from_str(name).ok()?);
        for (key, value) in parameters {
            if let Some(value) = value {
                item = item.parameter(KeyRef::from_str(key).ok()?, Integer::try_from(value.min(LARGEST)).ok()?);
            }
        }
        let _written = item.finish();
    }
    HeaderValue::try_from(list.finish()?).ok()
}

/// `"per-customer";q=20;w=2`
fn policy_entry<'a>(ruleset: &'a Ruleset, standing: &Standing) -> Entry<'a> {
    let window = window(standing);
    (&ruleset.limits[standing.limit.0].name, [("q", Some(standing.policy.quota)), ("w", window)])
}

/// `"per-customer";r=3;t=1`: t is the time until more than r can be had.
fn standing_entry<'a>(ruleset: &'a Ruleset, standing: &Standing) -> Entry<'a> {
    let until_more = match standing.decision {
        Decision::Deny(Denial::Later { retry_after }) => retry_after.max(standing.headroom.until_more),
        _ => standing.headroom.until_more,
    };
    let t = (until_more > Nanos::ZERO).then(|| until_more.secs_ceil());
    (&ruleset.limits[standing.limit.0].name, [("r", Some(remaining(standing))), ("t", t)])
}

/// The time in which a spent quota is whole again, in seconds, at least 1.
pub(super) fn window(standing: &Standing) -> Option<u64> {
    standing.policy.window.map(|window| window.secs_ceil().max(1))
}

/// What is left; where any cost would pass (the next caller pays), the whole quota.
pub(super) fn remaining(standing: &Standing) -> u64 {
    standing.headroom.remaining.unwrap_or(standing.policy.quota)
}

fn their_remaining(theirs: &Fields) -> Option<u64> {
    str::from_utf8(theirs.get(REMAINING.as_str())?).ok()?.trim().parse().ok()
}

/// The smallest `r` of an upstream's `RateLimit` list.
fn their_ratelimit(theirs: &Fields) -> Option<u64> {
    let list: List = Parser::new(theirs.get(RATELIMIT.as_str())?).parse().ok()?;
    let rs = list.iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => item.params.get("r").and_then(BareItem::as_integer),
        ListEntry::InnerList(_) => None,
    });
    rs.filter_map(|r| u64::try_from(i64::from(r)).ok()).min()
}
