//! The header fields that tell clients their limits, in three dialects.
//!
//! `ietf` is draft-ietf-httpapi-ratelimit-headers from version 08 on, with the same bytes in 10 and 11: structured-field
//! lists of all limits, whole seconds.
//! `ietf_06` is the same draft up to version 06: the tightest limit only, in three fields.
//! `x_ratelimit` is the older convention: the tightest limit only.
//! `X-RateLimit-Warning` is tollgate's own field, for limits with `warn_at`: a structured-field list beside any dialect.

use sfv::{BareItem, ListEntry, Parser};

use crate::algorithm::{Decision, Denial};
use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::ruleset::verdict::{LimitWarning, Standing};
use crate::ruleset::{Limit, RateLimitHeaders, ResetFormat};
use crate::units::Nanos;

const POLICY: &str = "ratelimit-policy";
const RATELIMIT: &str = "ratelimit";
const LIMIT_06: &str = "ratelimit-limit";
const REMAINING_06: &str = "ratelimit-remaining";
const RESET_06: &str = "ratelimit-reset";
const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const RESET: &str = "x-ratelimit-reset";
const WARNING: &str = "x-ratelimit-warning";

/// The length of most lists of limits, in bytes.
const LISTED: usize = 64;
/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Whether a field tells a client its limits.
pub(super) fn is_limit_field(name: &[u8]) -> bool {
    is_ietf(name) || is_ietf_06(name) || is_x_ratelimit(name) || name.eq_ignore_ascii_case(WARNING.as_bytes())
}

fn is_ietf(name: &[u8]) -> bool {
    [POLICY, RATELIMIT].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

fn is_ietf_06(name: &[u8]) -> bool {
    [LIMIT_06, REMAINING_06, RESET_06].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

fn is_x_ratelimit(name: &[u8]) -> bool {
    [LIMIT, REMAINING, RESET].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// The fields that tell a client its limits, by one verdict. The remaining tokens are as of the charge, the times until more of
/// them come are as of the response.
pub struct LimitFields<'v> {
    context: &'v RequestContext,
    /// The time of the response.
    now: Nanos,
    tightest: &'v Standing,
    ietf: bool,
    ietf_06: bool,
    x_ratelimit: Option<ResetFormat>,
}

impl<'v> LimitFields<'v> {
    /// The fields of a response at `now`; `None` if no limit applied that clients are told about. `upstream_fields` are those
    /// that an upstream sent: they stay if they are tighter.
    pub(super) fn new(context: &'v RequestContext, upstream_fields: Option<&Fields>, now: Nanos) -> Option<Self> {
        let tightest = context.verdict.client_standing()?;
        let RateLimitHeaders { ietf, ietf_06, x_ratelimit, .. } = context.active.ruleset.dialects;
        let remaining = remaining(tightest);
        let is_tighter = |r: Option<u64>| r.is_some_and(|r| r < remaining);
        let ietf = ietf && !is_tighter(upstream_fields.and_then(upstream_remaining));
        let ietf_06 =
            ietf_06 && !is_tighter(upstream_fields.and_then(|upstream_fields| number(upstream_fields, REMAINING_06)));
        let x_ratelimit = x_ratelimit
            .filter(|_| !is_tighter(upstream_fields.and_then(|upstream_fields| number(upstream_fields, REMAINING))));
        Some(Self { context, now, tightest, ietf, ietf_06, x_ratelimit })
    }

    /// Whether the gateway's fields replace an upstream's field with this name.
    pub fn replaces(&self, name: &[u8]) -> bool {
        (self.ietf && is_ietf(name))
            || (self.ietf_06 && is_ietf_06(name))
            || (self.x_ratelimit.is_some() && is_x_ratelimit(name))
    }

    /// Adds the fields to `fields`.
    pub fn add_to(&self, fields: &mut Fields) {
        let RequestContext { verdict, active, gateway, .. } = self.context;
        let age = self.now.saturating_sub(self.context.measured_at());
        if self.ietf && verdict.standings.iter().any(|standing| standing.visible) {
            fields.push_with(POLICY, LISTED, |value| self.write_list(value, write_policy));
            fields.push_with(RATELIMIT, LISTED, |value| {
                self.write_list(value, |value, _, standing| write_standing(value, standing, age));
            });
        }
        let until_full = left(until_full(self.tightest), age, self.tightest);
        if self.ietf_06 {
            fields.push_number(LIMIT_06, self.tightest.policy.quota.min(MAX_INTEGER));
            fields.push_number(REMAINING_06, remaining(self.tightest).min(MAX_INTEGER));
            fields.push_number(RESET_06, until_full.secs_ceil());
        }
        if let Some(reset) = self.x_ratelimit {
            let reset = match reset {
                ResetFormat::Delta => until_full.secs_ceil(),
                ResetFormat::Epoch => gateway.clock.wall_at(self.now).saturating_add(until_full).secs_ceil(),
            };
            fields.push_number(LIMIT, self.tightest.policy.quota);
            fields.push_number(REMAINING, remaining(self.tightest));
            fields.push_number(RESET, reset);
        }
        let mut warnings = verdict.warnings(&active.ruleset).peekable();
        if warnings.peek().is_some() {
            fields.push_with(WARNING, LISTED, |value| write_warnings(value, warnings));
        }
    }

    /// The standings that the lists have: one of each limit, because a list names a limit once. Of several keys of a limit it
    /// is the one that denies the request, or else the one with the least left.
    fn listed(&self) -> impl Iterator<Item = &'v Standing> {
        let verdict = &self.context.verdict;
        let visible = || verdict.standings.iter().enumerate().filter(|(_, standing)| standing.visible);
        let rank = |(position, standing): (usize, &Standing)| {
            (verdict.tightest != Some(position), remaining(standing), position)
        };
        let is_first = move |one: &(usize, &'v Standing)| {
            visible().all(|other| other.1.limit != one.1.limit || rank(*one) <= rank(other))
        };
        visible().filter(is_first).map(|(_, standing)| standing)
    }

    fn write_list(&self, value: &mut Vec<u8>, write_parameters: impl Fn(&mut Vec<u8>, &Limit, &Standing)) {
        for (position, standing) in self.listed().enumerate() {
            if position > 0 {
                value.extend_from_slice(b", ");
            }
            let limit = &self.context.active.ruleset.limits[standing.limit.0];
            write_string(value, &limit.name);
            write_parameters(value, limit, standing);
        }
    }
}

/// What is left of `time` when the numbers of `standing` are `age` old: not nothing as long as no token is known to have come.
fn left(time: Nanos, age: Nanos, standing: &Standing) -> Nanos {
    let least = if remaining(standing) == 0 { time.min(Nanos::new(1)) } else { Nanos::ZERO };
    time.saturating_sub(age).max(least)
}

/// A string of a structured field (RFC 9651, section 4.1.6). Names of limits and units hold nothing that has to be escaped.
fn write_string(value: &mut Vec<u8>, text: &str) {
    value.push(b'"');
    value.extend_from_slice(text.as_bytes());
    value.push(b'"');
}

fn write_parameter(value: &mut Vec<u8>, key: &[u8], number: u64) {
    value.extend_from_slice(key);
    value.extend_from_slice(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
}

/// `"per-customer";at=80;used=85`
fn write_warnings<'r>(value: &mut Vec<u8>, warnings: impl Iterator<Item = LimitWarning<'r>>) {
    for (position, warning) in warnings.enumerate() {
        if position > 0 {
            value.extend_from_slice(b", ");
        }
        write_string(value, warning.limit);
        write_parameter(value, b";at=", warning.at.into());
        write_parameter(value, b";used=", warning.used.into());
    }
}

/// `;q=20;w=2`; with a unit if the limit does not count requests: `;q=20;qu="content-bytes";w=2`
fn write_policy(value: &mut Vec<u8>, limit: &Limit, standing: &Standing) {
    write_parameter(value, b";q=", standing.policy.quota);
    if let Some(unit) = &limit.quota_unit {
        value.extend_from_slice(b";qu=");
        write_string(value, unit);
    }
    if let Some(window) = window(standing) {
        write_parameter(value, b";w=", window);
    }
}

/// `;r=3;t=1`: t is the time until more than r tokens are available, if the numbers of `standing` are `age` old.
fn write_standing(value: &mut Vec<u8>, standing: &Standing, age: Nanos) {
    let until_more = match standing.decision {
        Decision::Deny(Denial::Later { retry_after }) => retry_after.max(standing.headroom.until_more),
        _ => standing.headroom.until_more,
    };
    let until_more = left(until_more, age, standing);
    write_parameter(value, b";r=", remaining(standing));
    if until_more > Nanos::ZERO {
        write_parameter(value, b";t=", until_more.secs_ceil());
    }
}

/// The time in which a used-up quota becomes full again, in seconds, at least 1.
pub(super) fn window(standing: &Standing) -> Option<u64> {
    standing.policy.window.map(|window| window.secs_ceil().max(1))
}

/// The time until the whole quota is available again. A denial may last longer than that, if it bans the key.
pub(super) fn until_full(standing: &Standing) -> Nanos {
    match standing.decision {
        Decision::Deny(Denial::Later { retry_after }) => retry_after.max(standing.headroom.until_full),
        _ => standing.headroom.until_full,
    }
}

/// The rest of the quota; the whole quota if the limit admits any cost (the next caller pays for it).
pub(super) fn remaining(standing: &Standing) -> u64 {
    standing.headroom.remaining.unwrap_or(standing.policy.quota)
}

fn number(fields: &Fields, name: &str) -> Option<u64> {
    str::from_utf8(fields.get(name)?).ok()?.trim().parse().ok()
}

/// The smallest `r` of an upstream's `RateLimit` list, whose lines are one list (RFC 9651, section 4.2).
fn upstream_remaining(upstream_fields: &Fields) -> Option<u64> {
    let lines: Vec<&[u8]> = upstream_fields.get_all(RATELIMIT).collect();
    let list = Parser::parse_list(&lines.join(&b", "[..])).ok()?;
    let rs = list.iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => item.params.get("r").and_then(BareItem::as_int),
        ListEntry::InnerList(_) => None,
    });
    rs.filter_map(|r| u64::try_from(r).ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Headroom, Policy};
    use crate::ruleset::LimitId;

    #[test]
    fn the_time_until_more_is_left_shrinks_with_the_age_of_the_numbers() {
        let standing = |remaining, until_more| Standing {
            limit: LimitId(0),
            enforces: true,
            visible: true,
            decision: Decision::ADMIT,
            policy: Policy { quota: 5, window: None },
            headroom: Headroom { remaining, until_more, until_full: until_more },
        };
        let written = |remaining, until_more, age| {
            let mut value = Vec::new();
            let standing = standing(Some(remaining), Nanos::from_secs(until_more));
            write_standing(&mut value, &standing, Nanos::from_secs(age));
            String::from_utf8(value).unwrap()
        };
        assert_eq!([written(3, 8, 0), written(3, 8, 6), written(3, 8, 9)], [";r=3;t=8", ";r=3;t=2", ";r=3"]);
        assert_eq!([written(0, 6, 5), written(0, 6, 7), written(0, 0, 7)], [";r=0;t=1", ";r=0;t=1", ";r=0"]);
    }
}
