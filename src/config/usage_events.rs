//! `usage_events:`: the receiver of customers' usage, and the intervals of the events.

use std::sync::Arc;

use crate::config::limits::CheckedLimit;
use crate::config::names::Names;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, unique_items};
use crate::config::scalar::InvalidValue;
use crate::config::settings::USAGE_EVENTS;
use crate::config::store::{NamedFile, named_file};
use crate::config::webhook::WebhookFiles;
use crate::ruleset::limit::Limit;
use crate::ruleset::{LimitId, UpstreamId, UsageEvents};
use crate::units::Nanos;

/// The settings and files for sending usage events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageFiles {
    /// The file of the token for the receiver, if the receiver needs one.
    pub token: Option<NamedFile>,
    /// The `source` of the events.
    pub source: String,
    /// The length of the intervals over which usage is summed.
    pub every: Nanos,
    /// The directory of the queue.
    pub queue: NamedFile,
    /// The largest size of the queue, in bytes.
    pub max_queue: usize,
}

const DEFAULT_SOURCE: &str = "tollgate";
const DEFAULT_EVERY: Nanos = Nanos::from_secs(60);
const DEFAULT_MAX_QUEUE: usize = 64 << 20;
const A_FILE: &str = "the name of a file, like `billing.token`";
const A_DIRECTORY: &str = "the name of a directory, like `usage.queue`";
const A_SOURCE: &str = "a URI or a part of one, like `https://api.example.com/eu`";

/// The other parts of the file on which usage events depend.
pub(super) struct UsageEventsContext<'a> {
    pub(super) upstreams: &'a Names,
    pub(super) plans: &'a Names,
    pub(super) limits: &'a Names,
    pub(super) read_limits: &'a [Option<CheckedLimit>],
    /// Whether the file names customers.
    pub(super) customers: bool,
}

/// Reads `usage_events:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>, context: &UsageEventsContext<'_>) -> Option<Option<(UsageEvents, UsageFiles)>> {
    top.get_with("usage_events", |field| {
        let section = field.section(&USAGE_EVENTS)?;
        if !context.customers {
            let problem = Problem::error(field.key_place(), "tells what customers use, and the file names none");
            return field.fail(problem.expected("`customers:`, so that callers are known"));
        }
        let upstream = section.required("upstream", "the name of an upstream");
        let upstream = upstream.and_then(|field| context.upstreams.resolve(&field)).map(UpstreamId);
        let path = section.get_or("path", "/".to_owned(), |field| field.plain_path("a path, like `/api/v1/events`"));
        let token = section.get_with("token_file", |field| named_file(field, A_FILE));
        let source = section.get_or("source", DEFAULT_SOURCE.to_owned(), |field| field.parsed(A_SOURCE, source));
        let every = section.get_or("every", DEFAULT_EVERY, Field::duration);
        let limits = section.get_with("limits", |field| summed(field, context));
        let queue = section.required("queue", A_DIRECTORY).and_then(|field| named_file(&field, A_DIRECTORY));
        let max_queue = section.get_or("max_queue", DEFAULT_MAX_QUEUE, Field::size);
        let limits = limits?.unwrap_or_else(|| all(context));
        let name = |(position, name): (usize, &str)| limits.contains(&LimitId(position)).then(|| Arc::from(name));
        let events = UsageEvents {
            upstream: upstream?,
            path: path?,
            limits: context.limits.all().enumerate().map(name).collect(),
            plans: context.plans.all().map(Arc::from).collect(),
        };
        let (token, source, every) = (token?, source?, every?);
        Some((events, UsageFiles { token, source, every, queue: queue?, max_queue: max_queue? }))
    })
}

/// Refuses one queue for usage events and for the webhook.
pub(super) fn check_queue(top: &Section<'_>, webhook: Option<&WebhookFiles>, usage: Option<&UsageFiles>) {
    let (Some(webhook), Some(usage)) = (webhook, usage) else { return };
    if webhook.queue.path == usage.queue.path {
        let problem = Problem::error(usage.queue.place.clone(), "is the queue of the webhook, too");
        top.field.fail::<()>(problem.found(format!("`{}`", usage.queue.path)).expected("a directory for each"));
    }
}

fn limit<'a>(context: &'a UsageEventsContext<'_>, id: LimitId) -> Option<&'a Limit> {
    context.read_limits.get(id.0)?.as_ref()?.limit.as_ref()
}

/// Reads the limits whose usage is summed.
fn summed(field: &Field<'_>, context: &UsageEventsContext<'_>) -> Option<Vec<LimitId>> {
    let items = field.nonempty_list("a list of names of limits")?;
    let read = |item: &Field<'_>| {
        let id = context.limits.resolve(item).map(LimitId)?;
        match limit(context, id).is_some_and(|limit| limit.algorithm.holds_slots()) {
            true => {
                let problem = item.error("counts the requests that run, which use nothing up");
                item.fail(problem.expected("a limit under which requests use something up"))
            }
            false => Some(id),
        }
    };
    unique_items(&items, read, LimitId::clone)
}

/// All limits under which requests use up tokens; not those that count running requests.
fn all(context: &UsageEventsContext<'_>) -> Vec<LimitId> {
    let ids = (0..context.read_limits.len()).map(LimitId);
    ids.filter(|id| limit(context, *id).is_some_and(|limit| !limit.algorithm.holds_slots())).collect()
}

/// Accepts the characters that RFC 3986 allows in a URI.
fn source(text: &str) -> Result<String, InvalidValue> {
    let stands = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    match !text.is_empty() && text.bytes().all(stands) {
        true => Ok(text.to_owned()),
        false => Err(InvalidValue { message: "is no URI".to_owned(), hint: None }),
    }
}
