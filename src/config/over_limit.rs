//! `over_limit` of a limit: the outcome for a request over the limit.

use http::{HeaderName, header};

use crate::config::denied;
use crate::config::names::Names;
use crate::config::read::{Field, Section};
use crate::config::settings::{DELAY, OVER_LIMIT};
use crate::ruleset::denied::Denied;
use crate::ruleset::limit::OverLimit;
use crate::ruleset::upstream::UpstreamId;
use crate::units::Nanos;

const EXPECTED: &str = "`deny`, `{deny: {status, body, headers}}`, `{delay: {max_wait, max_waiting}}`, \
     `{divert: UPSTREAM}` or `{mark: HEADER}`";

/// Header fields that have another meaning for tollgate or an upstream.
const TAKEN: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::FORWARDED,
    header::HOST,
    header::VIA,
    HeaderName::from_static("x-real-ip"),
];

/// The result of reading `over_limit`, with the field of its `max_wait`.
pub(super) struct OverLimitField<'a> {
    /// `None` if it could not be read.
    pub(super) over_limit: Option<OverLimit>,
    /// The field `delay.max_wait`, if it is there.
    pub(super) max_wait: Option<Field<'a>>,
}

/// Reads `over_limit`. `upstreams` is `None` where the file holds only limits.
pub(super) fn read<'a>(field: &Field<'a>, upstreams: Option<&Names>) -> OverLimitField<'a> {
    let without_wait = |over_limit| OverLimitField { over_limit, max_wait: None };
    if field.is_scalar() {
        return without_wait(field.choice_or(&[("deny", ())], EXPECTED).map(|()| OverLimit::default()));
    }
    let Some(section) = field.section_or(&OVER_LIMIT, EXPECTED) else {
        return without_wait(None);
    };
    if let Some(divert) = section.get("divert") {
        return without_wait(alone(&divert, &section).and_then(|()| read_divert(&divert, upstreams)));
    }
    if let Some(mark) = section.get("mark") {
        return without_wait(alone(&mark, &section).and_then(|()| read_mark(&mark)));
    }
    let denied = section.get_or("deny", Denied::default(), denied::read);
    let Some(delay) = section.get("delay") else {
        if section.is_empty() {
            field.findings().add(field.error("is empty").expected(EXPECTED));
        }
        return without_wait(denied.map(OverLimit::Deny));
    };
    read_delay(&delay, denied)
}

fn read_delay<'a>(delay: &Field<'a>, denied: Option<Denied>) -> OverLimitField<'a> {
    let Some(section) = delay.section(&DELAY) else {
        return OverLimitField { over_limit: None, max_wait: None };
    };
    let max_wait = section.get("max_wait");
    if max_wait.is_none() {
        delay.warn(
            "has no `max_wait`, so nothing ever waits",
            "write the longest wait, like `max_wait: 250ms`".to_owned(),
        );
    }
    let max_waiting = section.get_with("max_waiting", Field::whole);
    let longest = max_wait.as_ref().map_or(Some(Nanos::ZERO), Field::duration);
    let over_limit = longest.zip(max_waiting).zip(denied).map(|((max_wait, max_waiting), denied)| OverLimit::Delay {
        max_wait,
        max_waiting,
        denied,
    });
    OverLimitField { over_limit, max_wait }
}

/// Whether `over_limit` of the settings in `limit` lets requests pass.
pub(super) fn lets_pass(limit: &Section<'_>) -> bool {
    ["divert", "mark"].iter().any(|name| limit.at(&["over_limit", name]).is_some())
}

/// Refuses other settings beside `divert` or `mark`: requests that pass are neither denied nor delayed.
fn alone(field: &Field<'_>, section: &Section<'_>) -> Option<()> {
    match section.fields().count() {
        1 => Some(()),
        _ => {
            let problem = field.key_error("lets requests pass, so nothing else can stand beside it");
            field.fail(problem.expected(EXPECTED).hint("requests can be under several limits"))
        }
    }
}

fn read_divert(field: &Field<'_>, upstreams: Option<&Names>) -> Option<OverLimit> {
    match upstreams {
        Some(upstreams) => upstreams.resolve(field).map(|position| OverLimit::Divert(UpstreamId(position))),
        // the file holds only limits, so that no request is diverted
        None => field.scalar_value("the name of an upstream").map(|_| OverLimit::default()),
    }
}

fn read_mark(field: &Field<'_>) -> Option<OverLimit> {
    let name = field.header_name_to_set()?;
    match TAKEN.contains(&name) || name.as_str().starts_with("x-forwarded-") {
        true => field.fail(
            field.error("says something else to upstreams already").expected("a name of its own, like `x-over-limit`"),
        ),
        false => Some(OverLimit::Mark(name)),
    }
}
