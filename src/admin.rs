//! The admin listener: metrics, health checks, the configuration in force, the keys denied most, the live page, and
//! changes for callers with the admin token. It never shares a port with client traffic.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use pingora::apps::http_app::ServeHttp;
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
#[derive(Clone, Debug)]
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

/// The path for trying changes of limits on a log.
const REPLAY: &str = "/v1/replay";

/// The operation on a key that `path` names, if it names one.
fn verb(path: &str) -> Option<KeyOperation> {
    path.strip_prefix("/v1/keys/").and_then(KeyOperation::called)
}

/// Whether requests for `path` need the token.
fn takes_token(path: &str) -> bool {
    let is_change = matches!(path, "/v1/reload" | "/v1/charge" | REPLAY)
        || verb(path).is_some_and(|verb| verb != KeyOperation::Peek);
    is_change || Target::of(path).is_some()
}

/// The methods that `path` accepts, as the `Allow` field lists them.
fn methods(path: &str) -> &'static str {
    if let Some(target) = Target::of(path) {
        return target.methods();
    }
    let is_posted = matches!(path, "/-/reload" | "/explain" | "/v1/explain" | "/v1/reload" | "/v1/charge" | REPLAY);
    let is_posted = is_posted || verb(path).is_some();
    if is_posted { "POST" } else { "GET, HEAD" }
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

    async fn answer(&self, session: &mut ServerSession) -> PlainResponse {
        let head = session.req_header();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let is_for_browsers = path.starts_with(API) || page_file(&path).is_some();
        if let Err(refused) = self.records.access.check_site(head, is_for_browsers) {
            return refused;
        }
        if let Some(refused) = Target::refused_path(&path) {
            return refused;
        }
        let methods = methods(&path);
        if !methods.split(", ").any(|served| method == served) {
            let message = format!("{method} is not served here, only {methods}");
            return refusal(&path, StatusCode::METHOD_NOT_ALLOWED, &message);
        }
        if takes_token(&path) {
            return self.authorized(&path, session).await;
        }
        match read_body(session).await {
            Ok(body) => self.done(&path, &body).await.0,
            Err(refused) => refused,
        }
    }

    /// Serves a request that needs the token. The audit log gets changes (not charges or replays) and unauthorized requests.
    async fn authorized(&self, path: &str, session: &mut ServerSession) -> PlainResponse {
        let attempt = ChangeAttempt::of(session);
        let head = session.req_header();
        if let Err(refused) = self.records.access.check_token(head) {
            self.audit.note_unauthorized(&attempt);
            return refused;
        }
        let changes_state = !matches!(head.method, Method::GET | Method::HEAD) && path != REPLAY;
        let is_change = changes_state && path != "/v1/charge";
        if is_change && let Err(reason) = self.audit.check() {
            return failure(StatusCode::SERVICE_UNAVAILABLE, &reason);
        }
        let mut note = is_change.then(|| NoteOnDrop::new(Arc::clone(&self.audit), attempt));
        let (response, mut change) = match (read_body(session).await, Target::of(path)) {
            (Err(refused), _) => (refused, Value::Null),
            // after the body, which may take longer than the other process to take over
            (Ok(_), _) if changes_state && self.gateway.traffic.lifecycle.has_successor() => {
                session.set_keepalive(None);
                (failure(StatusCode::SERVICE_UNAVAILABLE, HAS_SUCCESSOR), Value::Null)
            }
            (Ok(body), Some(target)) => return self.customers(target, session.req_header(), &body, note).await,
            (Ok(body), None) => self.done(path, &body).await,
        };
        if let Some(note) = &mut note {
            let result = if response.0.is_success() { "done" } else { "refused" };
            change["status"] = json!(response.0.as_u16());
            note.outcome = (result, change);
        }
        response
    }

    /// Serves a request. Returns also the change of a key for the audit log, null if there is none.
    async fn done(&self, path: &str, body: &[u8]) -> (PlainResponse, Value) {
        let response = match (path, verb(path)) {
            ("/-/reload" | "/v1/reload", _) => self.reload().await,
            ("/explain" | "/v1/explain", _) => self.explain(body).await,
            ("/v1/charge", _) => keys::charge(&self.gateway, body).await,
            (REPLAY, _) => self.replays.answer(self.records.access.replays(), body).await,
            (_, Some(verb)) => return keys::answer(&self.gateway, verb, body).await,
            (path, None) => self.shown(path),
        };
        (response, Value::Null)
    }

    fn phase(&self) -> Phase {
        self.gateway.traffic.lifecycle.phase()
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
            "/readyz" if self.phase().is_stopping() => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n".to_owned()),
            "/readyz" if self.phase() == Phase::Starting => {
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n".to_owned())
            }
            "/readyz" if !active.directory.is_ready() => {
                let waits = "waiting for customers: PostgreSQL was not read yet, and there is no snapshot\n";
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, waits.to_owned())
            }
            "/readyz" => match self.gateway.store.cluster().and_then(|cluster| cluster.waits_for()) {
                Some((members, wanted)) => {
                    let waits = format!("waiting for the cluster: {members} members of at least {wanted}\n");
                    (StatusCode::SERVICE_UNAVAILABLE, TEXT, waits)
                }
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
    match path.starts_with(API) {
        true => failure(status, message),
        false => (status, TEXT, format!("{message}\n")),
    }
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
        let methods = methods(session.req_header().uri.path());
        let (status, content_type, body) = self.answer(session).await;
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
