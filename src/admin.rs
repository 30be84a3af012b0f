//! The admin listener: metrics, health checks, the configuration in force, the keys denied most, the live page, and
//! changes for callers with the admin token. It never shares a port with client traffic.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use pingora::apps::http_app::ServeHttp;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use serde::Serialize;
use serde_json::{Value, json};

pub mod access;
mod audit;
mod cluster;
mod customers;
mod keys;
mod live;
mod metrics;
pub mod reloads;
pub mod replays;
pub mod snapshots;
mod status;

use access::Access;
use audit::{Audit, ChangeAttempt, NoteOnDrop};
use customers::{ChangeLock, Target};
use keys::KeyOperation;
use reloads::Reloads;
use replays::Replays;
use snapshots::Snapshots;

use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::explain::{Explanation, Question};
use crate::lifecycle::Phase;
use crate::telemetry::Telemetry;
use crate::telemetry::history::History;
use crate::telemetry::offenders::TopOffenders;
use crate::units::Nanos;

/// The HTTP service of the admin listener.
pub struct Admin {
    gateway: Gateway,
    telemetry: Telemetry,
    started: Nanos,
    records: Records,
    audit: Arc<Audit>,
    change_lock: ChangeLock,
    replays: Replays,
}

/// The records that other parts of the gateway write and the admin listener reports.
#[derive(Clone)]
pub struct Records {
    /// The queue of reload requests, and the result of the last reload.
    pub reloads: Arc<Reloads>,
    /// The results of restoring and of writing the state that outlives the process.
    pub snapshots: Arc<Snapshots>,
    /// The recent request rates of routes and limits.
    pub history: Arc<History>,
    /// The access rules of the admin listener.
    pub access: Arc<Access>,
}

const TEXT: &str = "text/plain; charset=utf-8";
/// The exposition format of `prometheus::TextEncoder`.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// The path prefix below which every response is JSON, errors too.
const API: &str = "/v1/";

/// The error of a change that comes when another process takes over.
const HAS_SUCCESSOR: &str = "another process takes over; send the request again, on a new connection";

/// The resource that a path names.
enum Resource {
    Customers(Target),
    Key(KeyOperation),
    Charge,
    Replay,
    Reload,
    /// A reload for callers without the token.
    OpenReload,
    Explain,
    /// One that is only read, or none.
    Other,
}

impl Resource {
    fn of(path: &str) -> Self {
        match path {
            "/v1/keys/peek" => Self::Key(KeyOperation::Peek),
            "/v1/keys/reset" => Self::Key(KeyOperation::Reset),
            "/v1/keys/grant" => Self::Key(KeyOperation::Grant),
            "/v1/keys/unban" => Self::Key(KeyOperation::Unban),
            "/v1/charge" => Self::Charge,
            "/v1/replay" => Self::Replay,
            "/v1/reload" => Self::Reload,
            "/-/reload" => Self::OpenReload,
            "/explain" | "/v1/explain" => Self::Explain,
            _ => Target::of(path).map_or(Self::Other, Self::Customers),
        }
    }

    /// The methods that the resource accepts, as the `Allow` field lists them, and whether requests need the token.
    const fn methods_and_token(&self) -> (&'static str, bool) {
        match self {
            Self::Customers(target) => (target.methods(), true),
            Self::Key(KeyOperation::Peek) | Self::OpenReload | Self::Explain => ("POST", false),
            Self::Key(_) | Self::Charge | Self::Replay | Self::Reload => ("POST", true),
            Self::Other => ("GET, HEAD", false),
        }
    }
}

/// A response: its status, the content type of its body, and the body.
type PlainResponse = (StatusCode, &'static str, String);

impl Admin {
    /// Creates the admin service of `gateway`.
    pub fn new(gateway: Gateway, telemetry: Telemetry, records: Records) -> Self {
        let started = gateway.clock.now();
        let audit = Arc::new(Audit::new(Arc::clone(&records.access), Arc::clone(&gateway.clock)));
        Self {
            gateway,
            telemetry,
            started,
            records,
            audit,
            change_lock: ChangeLock::default(),
            replays: Replays::default(),
        }
    }

    async fn answer(&self, resource: Resource, session: &mut ServerSession) -> PlainResponse {
        let head = session.req_header();
        let (method, path) = (&head.method, head.uri.path());
        let is_for_browsers = path.starts_with(API) || page_file(path).is_some();
        if let Err(refused) = self.records.access.check_site(head, is_for_browsers) {
            return refused;
        }
        if let (Resource::Other, Some(refused)) = (&resource, Target::refused_path(path)) {
            return refused;
        }
        let (methods, needs_token) = resource.methods_and_token();
        if !methods.split(", ").any(|served| *method == served) {
            let message = format!("{method} is not served here, only {methods}");
            return refusal(path, StatusCode::METHOD_NOT_ALLOWED, &message);
        }
        if needs_token {
            return self.authorized(resource, session).await;
        }
        let body = read_body(session).await;
        self.done(resource, session.req_header(), body, None).await
    }

    /// Serves a request that needs the token. The audit log gets changes (not charges or replays) and unauthorized requests.
    async fn authorized(&self, resource: Resource, session: &mut ServerSession) -> PlainResponse {
        let attempt = ChangeAttempt::of(session);
        let head = session.req_header();
        if let Err(refused) = self.records.access.check_token(head) {
            self.audit.note_unauthorized(&attempt);
            return refused;
        }
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        let changes_state = !is_read && !matches!(resource, Resource::Replay);
        let is_change = changes_state && !matches!(resource, Resource::Charge);
        if is_change && let Err(reason) = self.audit.check() {
            return failure(StatusCode::SERVICE_UNAVAILABLE, &reason);
        }
        let note = is_change.then(|| NoteOnDrop::new(Arc::clone(&self.audit), attempt));
        let mut body = read_body(session).await;
        // after the body, which may take longer than the other process to take over
        if changes_state && body.is_ok() && self.gateway.traffic.lifecycle.has_successor() {
            session.set_keepalive(None);
            body = Err(failure(StatusCode::SERVICE_UNAVAILABLE, HAS_SUCCESSOR));
        }
        self.done(resource, session.req_header(), body, note).await
    }

    /// Serves a request whose body was read or refused. A change has a `note` for the audit log.
    async fn done(
        &self,
        resource: Resource,
        head: &RequestHeader,
        body: Result<Vec<u8>, PlainResponse>,
        note: Option<NoteOnDrop>,
    ) -> PlainResponse {
        let (response, mut change) = match (body, resource) {
            (Err(refused), _) => (refused, Value::Null),
            (Ok(body), Resource::Customers(target)) => return self.customers(target, head, &body, note).await,
            (Ok(body), Resource::Key(operation)) => keys::answer(&self.gateway, operation, &body).await,
            (Ok(body), Resource::Charge) => (keys::charge(&self.gateway, &body).await, Value::Null),
            (Ok(body), Resource::Replay) => {
                (self.replays.answer(self.records.access.replays(), &body).await, Value::Null)
            }
            (Ok(_), Resource::Reload | Resource::OpenReload) => (self.reload().await, Value::Null),
            (Ok(body), Resource::Explain) => (self.explain(&body).await, Value::Null),
            (Ok(_), Resource::Other) => (self.shown(head.uri.path()), Value::Null),
        };
        if let Some(mut note) = note {
            let result = if response.0.is_success() { "done" } else { "refused" };
            change["status"] = json!(response.0.as_u16());
            note.outcome = (result, change);
        }
        response
    }

    fn phase(&self) -> Phase {
        self.gateway.traffic.lifecycle.phase()
    }

    /// The reason why clients should not be sent here now; `None` if they may.
    fn unready_because(&self, active: &ActiveConfig) -> Option<String> {
        match self.phase() {
            phase if phase.is_stopping() => Some("stopping".to_owned()),
            Phase::Starting => Some("starting".to_owned()),
            _ if !active.directory.is_ready() => {
                Some("waiting for customers: PostgreSQL was not read yet, and there is no snapshot".to_owned())
            }
            _ => {
                let (members, wanted) = self.gateway.store.cluster()?.waits_for()?;
                Some(format!("waiting for the cluster: {members} members of at least {wanted}"))
            }
        }
    }

    /// The response to a request that only reads.
    fn shown(&self, path: &str) -> PlainResponse {
        if let Some((content_type, text)) = page_file(path) {
            return (StatusCode::OK, content_type, text.to_owned());
        }
        let offenders = &self.gateway.denial_recorder.offenders;
        let (active, history) = (self.gateway.active.load(), &self.records.history);
        match path {
            "/metrics" => self.metrics(),
            "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => match self.unready_because(&active) {
                Some(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, why + "\n"),
                None => (StatusCode::OK, TEXT, "ready\n".to_owned()),
            },
            "/status" | "/v1/status" => (StatusCode::OK, JSON, format!("{:#}\n", status::status(self))),
            "/v1/openapi.json" => (StatusCode::OK, JSON, include_str!("admin/openapi.json").to_owned()),
            "/v1/routes" => json_of(&live::routes(&active, history)),
            "/v1/limits" => json_of(&live::limits(self, &active)),
            "/v1/offenders" => {
                let clock = &self.gateway.clock;
                let top = offenders.recent(clock.now());
                let (from, until) = (clock.wall_at(top.from), clock.wall_at(top.until));
                json_of(&live::offenders(&TopOffenders { from, until, ..top }))
            }
            "/v1/decisions" => json_of(&live::decisions(&self.gateway.denial_recorder.recent.all())),
            _ => refusal(
                path,
                StatusCode::NOT_FOUND,
                "here are / (the page), /metrics, /healthz, /readyz, /status, /explain and /-/reload, and under /v1/: status, \
                 routes, limits, offenders, decisions, explain, keys/peek, keys/reset, keys/grant, keys/unban, charge, replay, \
                 reload, customers and openapi.json, which describes them",
            ),
        }
    }

    /// Explains what this gateway would do now with the request that the body describes.
    async fn explain(&self, body: &[u8]) -> PlainResponse {
        match Question::from_json(body) {
            Ok(question) => pretty_json(&Explanation::of_gateway(&self.gateway, &question).await),
            Err(bad) => failure(StatusCode::BAD_REQUEST, &bad.to_string()),
        }
    }

    /// Reloads the configuration and responds with the result.
    async fn reload(&self) -> PlainResponse {
        let Some(attempt) = self.records.reloads.request().await else {
            return (StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n".to_owned());
        };
        let status = if attempt.is_in_force() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        let mut report = attempt.report();
        let active = self.gateway.active.load();
        report["in_force"] = json!({
            "config_hash": active.hash,
            "routes": active.ruleset.matcher.routes().len(),
            "limits": active.ruleset.limits.len(),
            "plans": active.ruleset.plans.len(),
            "upstreams": active.ruleset.upstreams.len(),
            "credentials": active.directory.credentials(),
        });
        (status, JSON, format!("{report:#}\n"))
    }

    fn metrics(&self) -> PlainResponse {
        match self.telemetry.render(metrics::samples(self)) {
            Ok(text) => (StatusCode::OK, EXPOSITION, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("cannot render the metrics: {error}\n")),
        }
    }
}

/// Reads the body of a request, at most `MAX_BYTES`; empty if the method gives a body no meaning.
async fn read_body(session: &mut ServerSession) -> Result<Vec<u8>, PlainResponse> {
    /// Enough for a JSON description of a request with the largest head.
    const MAX_BYTES: usize = 256 << 10;
    let mut body = Vec::new();
    if matches!(session.req_header().method, Method::GET | Method::HEAD) {
        return Ok(body);
    }
    loop {
        match session.read_request_body().await {
            Ok(Some(part)) if body.len().saturating_add(part.len()) > MAX_BYTES => {
                let message = format!("the body of the request is longer than {} KiB", MAX_BYTES >> 10);
                return Err(failure(StatusCode::PAYLOAD_TOO_LARGE, &message));
            }
            Ok(Some(part)) => body.extend_from_slice(&part),
            Ok(None) => return Ok(body),
            Err(_) => return Err(failure(StatusCode::BAD_REQUEST, "the body of the request cannot be read")),
        }
    }
}

/// The content type and the text of the live page's file at `path`.
fn page_file(path: &str) -> Option<(&'static str, &'static str)> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    match path {
        "/" => Some(("text/html; charset=utf-8", include_str!("admin/page/page.html"))),
        "/page/page.css" => Some(("text/css; charset=utf-8", include_str!("admin/page/page.css"))),
        "/page/page.js" => Some((SCRIPT, include_str!("admin/page/page.js"))),
        "/page/ask.js" => Some((SCRIPT, include_str!("admin/page/ask.js"))),
        "/page/try.js" => Some((SCRIPT, include_str!("admin/page/try.js"))),
        "/page/draw.js" => Some((SCRIPT, include_str!("admin/page/draw.js"))),
        "/page/icon.svg" => Some(("image/svg+xml", include_str!("admin/page/icon.svg"))),
        _ => None,
    }
}

/// A 200 response with indented JSON.
fn pretty_json(answer: &impl Serialize) -> PlainResponse {
    match serde_json::to_string_pretty(answer) {
        Ok(text) => (StatusCode::OK, JSON, text + "\n"),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// A 200 response with JSON in one line, for responses with many numbers.
fn json_of(value: &Value) -> PlainResponse {
    (StatusCode::OK, JSON, format!("{value}\n"))
}

/// An error response in the format that clients of `path` expect: JSON under `/v1/`, a line of text elsewhere.
fn refusal(path: &str, status: StatusCode, message: &str) -> PlainResponse {
    if path.starts_with(API) { failure(status, message) } else { (status, TEXT, format!("{message}\n")) }
}

fn failure(status: StatusCode, message: &str) -> PlainResponse {
    (status, JSON, format!("{:#}\n", json!({ "error": message })))
}

/// The content security policy of the page: a browser loads only resources that this listener serves.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Header fields of every response. They forbid a browser to run foreign scripts, to guess the content type, to show the
/// response in a frame, to send a referrer, to let other sites read the response, and to cache it.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let is_head = session.req_header().method == Method::HEAD;
        let resource = Resource::of(session.req_header().uri.path());
        let (methods, _) = resource.methods_and_token();
        let (status, content_type, body) = self.answer(resource, session).await;
        // a response to HEAD has the length of the response to GET (RFC 9110, section 8.6)
        let length = HeaderValue::from(body.len());
        let body = if is_head { String::new() } else { body };
        let mut response = Response::new(body.into_bytes());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONTENT_LENGTH, length);
        for (name, value) in SECURITY_HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
