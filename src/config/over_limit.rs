//! What becomes of a request over a limit.

use crate::config::later;
use crate::config::read::Field;
use crate::ruleset::limit::{Denied, OverLimit};
use crate::units::Nanos;

const EXPECTED: &str = "`deny`, `{deny: {status, body, headers}}` or `{delay: {max_wait, max_waiting}}`";

/// `over_limit`, and the field of its longest wait.
pub(super) struct OverLimitField<'a> {
    /// `None` if it could not be read.
    pub(super) over_limit: Option<OverLimit>,
    /// `delay.max_wait`, if it is there.
    pub(super) max_wait: Option<Field<'a>>,
}

/// Reads `over_limit`.
pub(super) fn read<'a>(field: &Field<'a>) -> OverLimitField<'a> {
    if field.is_word() {
        let over_limit = field.choice_or(&[("deny", ())], &[], EXPECTED).map(|()| OverLimit::Deny(Denied::default()));
        return OverLimitField { over_limit, max_wait: None };
    }
    let broken = OverLimitField { over_limit: None, max_wait: None };
    let Some(section) = field.mapping(EXPECTED) else {
        return broken;
    };
    section.refuse_others(&["deny", "delay"], later::OVER_LIMIT);
    let denied = section.get_or("deny", Denied::default(), read_denied);
    let Some(delay) = section.get("delay") else {
        if !section.has("deny") && section.is_empty() {
            field.findings().add(field.error("is empty").expected(EXPECTED));
        }
        return OverLimitField { over_limit: denied.map(OverLimit::Deny), max_wait: None };
    };
    let Some(delay_section) = delay.section(&["max_wait", "max_waiting"], &[]) else {
        return broken;
    };
    let max_wait = delay_section.get("max_wait");
    if max_wait.is_none() {
        delay.warn(
            "has no `max_wait`, so nothing ever waits",
            "write the longest wait, like `max_wait: 250ms`".to_owned(),
        );
    }
    let max_waiting = delay_section.get_with("max_waiting", |field| field.whole(1..=u64::MAX));
    let longest = max_wait.as_ref().map_or(Some(Nanos::ZERO), Field::duration);
    let over_limit = longest.zip(max_waiting).zip(denied).map(|((max_wait, max_waiting), denied)| OverLimit::Delay {
        max_wait,
        max_waiting,
        denied,
    });
    OverLimitField { over_limit, max_wait }
}

fn read_denied(field: &Field<'_>) -> Option<Denied> {
    let section = field.section(&["status", "body", "headers"], &[])?;
    let status = section.get_with("status", |field| field.whole(400..=599));
    let body = section.get_with("body", |field| Some(field.word("the text of the answer")?.text.into_owned()));
    let headers = section.get_or("headers", Vec::new(), Field::headers_to_set);
    Some(Denied { status: status?.and_then(|status| u16::try_from(status).ok()), body: body?, headers: headers? })
}
