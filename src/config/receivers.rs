//! `webhook:`, `usage_events:` and `traces:`: the receivers of what tollgate reports, and the queues for them.

use std::sync::Arc;

use crate::config::limits::{CheckedLimit, ReadLimits};
use crate::config::names::Names;
use crate::config::read::{Field, Section, unique_items};
use crate::config::scalar::{self, InvalidValue, invalid};
use crate::config::settings::{TRACES, USAGE_EVENTS, WEBHOOK};
use crate::config::values::NamedFile;
use crate::config::words;
use crate::ruleset::limit::{Limit, PlanTerms, Share};
use crate::ruleset::{LimitId, PlanId, Traces, UpstreamId, UsageEvents, Webhook};
use crate::units::Nanos;

/// The settings and files for sending messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFiles {
    /// The file of the secrets that sign messages.
    pub secret: NamedFile,
    /// The directory of the queue.
    pub queue: NamedFile,
    /// The largest size of the queue, in bytes.
    pub max_queue: usize,
}

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

/// The settings and files for sending spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFiles {
    /// The file of the token for the collector, if the collector needs one.
    pub token: Option<NamedFile>,
    /// The gateway's `service.name` in spans.
    pub service: String,
}

/// The largest length of a service's name, in bytes.
const MAX_SERVICE_BYTES: usize = 255;

/// The receivers that the file has, each with its files.
pub(super) struct Receivers {
    pub(super) webhook: Option<(Webhook, WebhookFiles)>,
    pub(super) usage_events: Option<(UsageEvents, UsageFiles)>,
    pub(super) traces: Option<(Traces, TraceFiles)>,
}

/// The other parts of the file on which receivers depend.
pub(super) struct ReceiversContext<'a> {
    pub(super) upstreams: &'a Names,
    pub(super) plans: &'a Names,
    pub(super) limits: &'a ReadLimits,
    pub(super) has_customers: bool,
    /// Whether the file has trusted proxies.
    pub(super) has_proxies: bool,
}

/// Reads the three sections.
pub(super) fn read(top: &Section<'_>, context: &ReceiversContext<'_>) -> Receivers {
    Receivers {
        webhook: top.optional("webhook", |field| webhook(field, context.upstreams)),
        usage_events: top.optional("usage_events", |field| usage_events(field, context)),
        traces: top.optional("traces", |field| traces(field, context)),
    }
}

fn webhook(field: &Field<'_>, upstreams: &Names) -> Option<(Webhook, WebhookFiles)> {
    let section = field.section(&WEBHOOK)?;
    let receiver = receiver(&section, upstreams);
    let secret = section.must("secret_file", Field::file);
    let queue = section.must("queue", Field::file);
    let (max_queue, keep) = (section.size("max_queue"), section.duration("keep"));
    let (upstream, path) = receiver?;
    Some((Webhook { upstream, path, keep }, WebhookFiles { secret: secret?, queue: queue?, max_queue }))
}

fn usage_events(field: &Field<'_>, context: &ReceiversContext<'_>) -> Option<(UsageEvents, UsageFiles)> {
    let section = field.section(&USAGE_EVENTS)?;
    if !context.has_customers {
        let problem = field.key_error("tells what customers use, and the file names none");
        return field.fail(problem.expected("`customers:`, so that callers are known"));
    }
    let receiver = receiver(&section, context.upstreams);
    let queue = section.must("queue", Field::file);
    let limits = section.optional("limits", |field| summed(field, context)).unwrap_or_else(|| all(context));
    let name = |(position, name): (usize, &str)| limits.contains(&LimitId(position)).then(|| Arc::from(name));
    let files = UsageFiles {
        token: section.optional("token_file", Field::file),
        source: section
            .text("source", |field| field.parsed("a URI or a part of one, like `https://api.example.com/eu`", source)),
        every: section.duration("every"),
        max_queue: section.size("max_queue"),
        queue: queue?,
    };
    let (upstream, path) = receiver?;
    let events = UsageEvents {
        upstream,
        path,
        limits: context.limits.names.all().enumerate().map(name).collect(),
        plans: context.plans.all().map(Arc::from).collect(),
    };
    Some((events, files))
}

/// Reads the limits whose usage is summed.
fn summed(field: &Field<'_>, context: &ReceiversContext<'_>) -> Option<Vec<LimitId>> {
    let items = field.nonempty_list("a list of names of limits")?;
    let read = |item: &Field<'_>| {
        let (id, read) = context.limits.resolve(item)?;
        // a limit that could not be read has its own findings
        let Some(CheckedLimit { limit, .. }) = read else { return Some(id) };
        if limit.algorithm.holds_slots() {
            let problem = item.error("counts the requests that run, which use nothing up");
            return item.fail(problem.expected("a limit under which requests use something up"));
        }
        warn_of_unlimited(item, context.plans, limit);
        Some(id)
    };
    unique_items(&items, read, LimitId::clone)
}

/// Warns of plans that have no such limit, so that nothing is summed for their customers.
fn warn_of_unlimited(item: &Field<'_>, plans: &Names, limit: &Limit) {
    let is_unlimited = |plan: usize| limit.terms(Some(PlanId(plan))) == PlanTerms::Unlimited;
    let plans: Vec<&str> =
        plans.all().enumerate().filter(|(plan, _)| is_unlimited(*plan)).map(|(_, name)| name).collect();
    if !plans.is_empty() {
        let message = format!("is `unlimited` for {}: usage under such a plan is in no event", words::all_of(plans));
        item.warn(message, "name a `shadow` limit of the same key and cost, which meters all plans");
    }
}

/// All limits under which requests use up tokens; not those that count running requests.
fn all(context: &ReceiversContext<'_>) -> Vec<LimitId> {
    let read = context.limits.limits.iter().enumerate().filter_map(|(id, read)| Some((LimitId(id), read.as_ref()?)));
    read.filter(|(_, read)| !read.limit.algorithm.holds_slots()).map(|(id, _)| id).collect()
}

/// Accepts the characters that RFC 3986 allows in a URI.
fn source(text: &str) -> Result<String, InvalidValue> {
    let stands = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    match !text.is_empty() && text.bytes().all(stands) {
        true => Ok(text.to_owned()),
        false => Err(invalid("is no URI")),
    }
}

fn traces(field: &Field<'_>, context: &ReceiversContext<'_>) -> Option<(Traces, TraceFiles)> {
    let section = field.section(&TRACES)?;
    let receiver = receiver(&section, context.upstreams);
    let sample = section.value_or("sample", Share(Share::WHOLE.0 / 100), |field| {
        let share = field.read(scalar::fraction)?;
        if share == Share(0) && !context.has_proxies {
            field.warn("no request has a span: there are no `trusted_proxies` that could ask for one", None);
        }
        Some(share)
    });
    let max_spans = section.whole("max_spans");
    let files = TraceFiles {
        token: section.optional("token_file", Field::file),
        service: section.text("service", |field| field.parsed("a name, like `tollgate-eu`", service)),
    };
    let (upstream, path) = receiver?;
    Some((Traces { upstream, path, sample, max_spans }, files))
}

fn service(text: &str) -> Result<String, InvalidValue> {
    match (1..=MAX_SERVICE_BYTES).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(invalid("is empty or longer than 255 bytes")),
    }
}

/// Reads `upstream` and `path`.
fn receiver(section: &Section<'_>, upstreams: &Names) -> Option<(UpstreamId, String)> {
    let path = section.text("path", Field::plain_path);
    Some((section.must("upstream", |field| upstreams.resolve(field).map(UpstreamId))?, path))
}
