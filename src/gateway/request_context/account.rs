//! The report on a request that has ended: its line of the access log, and its span.
//!
//! Both hold the same data. Neither holds a query, a header field or anything else that may be a credential.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Method;

use super::{RequestContext, STORE_AWAY};
use crate::charge::{Charge, ChargeSource};
use crate::gateway::facts::Target;
use crate::gateway::spans::{EndedSpan, Value};
use crate::gateway::trace::Trace;
use crate::http::head::Version;
use crate::ruleset::outcome::{OutcomeKind, OutcomeSummary};
use crate::ruleset::{LimitId, ListenerService};
use crate::telemetry::logging::ACCESS;
use crate::units::Nanos;

/// The maximum length of a path in a span, in bytes: many spans wait in memory.
const MAX_PATH_LENGTH: usize = 1024;

/// The methods that OpenTelemetry knows. Clients can make up others.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];

/// The report on a request.
pub(super) struct RequestRecord<'r> {
    context: &'r RequestContext,
    status: u16,
    ended: Nanos,
    outcome: OutcomeKind,
    /// The limit that is reported with the outcome.
    limit: Option<&'r str>,
    /// The shadow limits that would have denied it.
    shadow_denied: Vec<&'r str>,
    wait: Nanos,
}

impl<'r> RequestRecord<'r> {
    /// The report on a request that was answered with `status`, and ended at `ended`.
    pub(super) fn of(context: &'r RequestContext, status: u16, ended: Nanos) -> Self {
        let ruleset = &context.active.ruleset;
        let name = |limit: LimitId| ruleset.limits[limit.0].name.as_str();
        let OutcomeSummary { kind, standing, wait } = outcome(context);
        let limit = standing.and_then(|position| context.verdict.standings.get(position)).map(|named| named.limit);
        let shadows = context.verdict.unenforced_violations().filter(|limit| ruleset.limits[limit.0].shadow);
        let shadow_denied = shadows.map(name).collect();
        Self { context, status, ended, outcome: kind, limit: limit.map(name), shadow_denied, wait }
    }

    fn target(&self) -> Option<&Target> {
        self.context.target.as_ref()
    }

    fn plan(&self) -> Option<&str> {
        self.context.active.ruleset.plan_name(self.context.plan)
    }

    fn shadow_denied(&self) -> Option<String> {
        (!self.shadow_denied.is_empty()).then(|| self.shadow_denied.join(","))
    }

    /// Writes the line of the access log.
    pub(super) fn write_access_log(&self) {
        let context = self.context;
        tracing::info!(
            target: ACCESS,
            method = context.method.as_ref().map(Method::as_str),
            host = self.target().map(Target::host),
            path = self.target().map(|target| target.path.as_str()),
            status = self.status,
            duration_seconds = self.ended.saturating_sub(context.started).as_secs_f64(),
            route = context.matched_route().map(|route| route.name.as_str()),
            client = context.client.map(tracing::field::display),
            customer = context.customer.as_deref(),
            plan = self.plan(),
            decision = self.outcome.as_str(),
            limit = self.limit,
            shadow_denied = self.shadow_denied(),
            wait_seconds = self.wait.as_secs_f64(),
            upstream = context.attempts.chosen.as_ref().map(|chosen| tracing::field::display(&chosen.instance.address)),
            answered = context.own_answer.cause,
            trace_id = context.trace.as_ref().map(|trace| format!("{:032x}", trace.id)),
        );
    }

    /// The span, which belongs to `trace`.
    pub(super) fn span(&self, trace: Trace) -> EndedSpan {
        let (context, clock) = (self.context, &self.context.gateway.clock);
        let (target, route) = (self.target(), context.matched_route());
        let method = context.method.as_ref().and_then(|method| METHODS.into_iter().find(|known| method == known));
        let pattern = route.map(|route| route.path_pattern.as_str()).filter(|pattern| !pattern.is_empty());
        let ruleset = &context.active.ruleset;
        let upstream = context.attempts.chosen.as_ref().and_then(|_| ruleset.upstreams.get(context.upstream()?.0));
        let has_failed = self.status >= 500;
        let mut attributes = Vec::with_capacity(24);
        let mut text = |name: &'static str, value: Option<Cow<'static, str>>| {
            attributes.extend(value.map(|value| (name, Value::Text(value))));
        };
        let owned = |value: &str| Some(Cow::Owned(value.to_owned()));
        text("http.request.method", Some(method.unwrap_or("_OTHER").into()));
        text("http.route", pattern.and_then(owned));
        if context.serves == ListenerService::Proxy {
            text("url.scheme", Some(if context.peer.tls_info.is_some() { "https" } else { "http" }.into()));
            text("network.protocol.version", Some(version(context.version).into()));
        }
        text("url.path", target.and_then(|target| owned(shortened(&target.path))));
        text("server.address", target.and_then(|target| owned(target.host())));
        text("client.address", context.client.as_ref().map(IpAddr::to_string).map(Cow::Owned));
        text("error.type", has_failed.then(|| Cow::Owned(self.status.to_string())));
        text("tollgate.route", route.and_then(|route| owned(&route.name)));
        text("tollgate.customer", context.customer.as_deref().and_then(owned));
        text("tollgate.plan", self.plan().and_then(owned));
        text("tollgate.outcome", Some(self.outcome.as_str().into()));
        text("tollgate.limit", self.limit.and_then(owned));
        text("tollgate.shadow_denied", self.shadow_denied().map(Cow::Owned));
        text("tollgate.decision_source", context.decision_source.map(|source| source.as_str().into()));
        text("tollgate.upstream", upstream.and_then(|upstream| owned(&upstream.name)));
        let node = context.attempts.chosen.as_ref().map(|chosen| chosen.instance.address.to_string());
        text("tollgate.upstream_node", node.map(Cow::Owned));
        text("tollgate.answered", context.own_answer.cause.map(Cow::Borrowed));
        attributes.push(("http.response.status_code", Value::Whole(self.status.into())));
        if self.wait > Nanos::ZERO {
            attributes.push(("tollgate.wait_seconds", Value::Number(self.wait.as_secs_f64())));
        }
        let method = method.unwrap_or("HTTP");
        EndedSpan {
            trace,
            name: pattern.map_or_else(|| method.to_owned(), |pattern| format!("{method} {pattern}")),
            began: clock.wall_at(context.started),
            ended: clock.wall_at(self.ended),
            attributes,
            has_failed,
        }
    }
}

/// The outcome of a request, also of one that was refused or whose limits could not be checked.
fn outcome(context: &RequestContext) -> OutcomeSummary {
    let summary = context.verdict.summary(&context.active.ruleset, context.bypassed);
    let is_unknown = |charge: &Charge| charge.taken_from == ChargeSource::FailedOpen;
    match summary.kind {
        _ if context.own_answer.cause == Some(STORE_AWAY) => {
            OutcomeSummary { kind: OutcomeKind::ErrorDenied, standing: None, ..summary }
        }
        OutcomeKind::Unlimited if context.is_refused() => OutcomeSummary { kind: OutcomeKind::Refused, ..summary },
        OutcomeKind::Unlimited | OutcomeKind::Admitted | OutcomeKind::Delayed => {
            match context.charges.iter().position(is_unknown) {
                Some(unknown) => {
                    OutcomeSummary { kind: OutcomeKind::ErrorAdmitted, standing: Some(unknown), ..summary }
                }
                None => summary,
            }
        }
        _ => summary,
    }
}

fn shortened(path: &str) -> &str {
    // a character has four bytes at most
    (MAX_PATH_LENGTH.saturating_sub(3)..=MAX_PATH_LENGTH).rev().find_map(|end| path.get(..end)).unwrap_or(path)
}

const fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    }
}
