//! Checks of listeners at which other proxies ask about requests: the sections that they need, and limits that do less here.

use crate::config::listeners::Server;
use crate::config::read::{Field, Section};
use crate::ruleset::cost::{ChargeTime, CostRule};
use crate::ruleset::key::KeyPart;
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::{ClientAddress, ListenerService, Route};

/// The warning of a status that is not `denied_status`.
const OWN_STATUS: &str = "denies with a status of its own, which the proxy that asks a listener with `denied_status` has to \
                          take from `X-Tollgate-Status`";

/// The sections that the listeners need.
#[derive(Clone, Copy)]
pub(super) struct RequiredSections {
    /// `upstreams`: where the gateway forwards requests.
    pub(super) upstreams: bool,
    /// `routes`: the limits of requests.
    pub(super) routes: bool,
    /// `domains`: the limits of descriptors.
    pub(super) domains: bool,
}

impl RequiredSections {
    /// The needs of the listeners in `server`. Listeners with errors need nothing, because it is not known what they serve. A
    /// file without listeners needs the sections that most files have.
    pub(super) fn of(server: Option<&Server>, has_listeners: bool) -> Self {
        let Some(server) = server else {
            return Self { upstreams: !has_listeners, routes: !has_listeners, domains: false };
        };
        let any = |wanted: fn(ListenerService) -> bool| server.listeners.iter().any(|listener| wanted(listener.serves));
        Self {
            upstreams: any(|serves| serves == ListenerService::Proxy),
            routes: any(ListenerService::uses_routes),
            domains: any(|serves| serves == ListenerService::RateLimitService),
        }
    }
}

/// Refuses listeners that could answer no proxy, and warns of limits that do less there than on listeners that proxy.
pub(super) fn check(
    top: &Section<'_>,
    server: &Server,
    client_address: &ClientAddress,
    limits: &[Limit],
    routes: &[Route],
) -> Option<()> {
    let needs = RequiredSections::of(Some(server), true);
    if let Some(field) = top.get("domains").filter(|_| !needs.domains) {
        field.warn("is asked by nobody: no listener has `serves: rate_limit_service`", None);
    }
    warn_of_routed(top, limits, routes, server);
    warn_of_unforwarded(top, server);
    let items = top.items("listeners");
    let asked: Vec<_> =
        items.iter().zip(&server.listeners).filter(|(_, listener)| listener.serves != ListenerService::Proxy).collect();
    let (item, _) = *asked.first()?;
    if client_address.trusted_proxies.is_empty() {
        let field = item.as_mapping().and_then(|section| section.get("serves")).unwrap_or_else(|| item.clone());
        let problem = field.error("answers trusted proxies only, and there is none");
        return field.fail(problem.hint(
            "name the proxies that ask: `client_address: { trusted_proxies: [10.0.0.5] }`, with `unix` for those over a path",
        ));
    }
    Some(())
}

/// Whether a listener answers other proxies according to routes.
fn is_asked_by_route(serves: ListenerService) -> bool {
    serves != ListenerService::Proxy && serves.uses_routes()
}

/// Warns of settings for requests that the gateway forwards, where it forwards none.
fn warn_of_unforwarded(top: &Section<'_>, server: &Server) {
    let serves = |wanted| server.listeners.iter().any(|listener| listener.serves == wanted);
    if serves(ListenerService::Proxy) || !server.listeners.iter().any(|listener| is_asked_by_route(listener.serves)) {
        return;
    }
    if let Some(field) = top.get("usage") {
        field.warn_key("answers nobody: no listener forwards requests, and others do not answer customers", None);
    }
    let mut idle = vec!["rewrite", "upgrade", "response_bytes_per_second"];
    // the answers of `ext_authz` carry these
    if !serves(ListenerService::ExtAuthz) {
        idle.extend(["request_headers", "response_headers"]);
    }
    for route in top.items("routes").iter().filter_map(Field::as_mapping) {
        for field in idle.iter().filter_map(|name| route.get(name)) {
            field.warn_key("does nothing: no listener forwards requests", None);
        }
    }
}

/// Warns of limits of routes that have less effect where other proxies ask.
fn warn_of_routed(top: &Section<'_>, limits: &[Limit], routes: &[Route], server: &Server) {
    let is_asked = server.listeners.iter().any(|listener| is_asked_by_route(listener.serves));
    let is_asked_over_http =
        server.listeners.iter().any(|listener| matches!(listener.serves, ListenerService::ForwardAuth { .. }));
    let replaces_status = server
        .listeners
        .iter()
        .any(|listener| matches!(listener.serves, ListenerService::ForwardAuth { denied_status: Some(_) }));
    for (name, field) in top.named("limits") {
        let limit = limits.iter().enumerate().find(|(_, limit)| limit.name == name);
        let used = limit.filter(|(id, _)| routes.iter().any(|route| route.limits.iter().any(|of| of.0 == *id)));
        let Some((_, limit)) = used else { continue };
        if limit.key.parts.iter().any(|part| matches!(part, KeyPart::Descriptor(_))) {
            field.warn_key("counts by a descriptor, which requests have not", None);
        }
        if is_asked_over_http && limit.depends_on_body() {
            let says = "goes by the bodies of requests, which a listener with `serves: forward_auth` never sees: there they \
                        cannot be read";
            field.warn_key(says, None);
        }
        if is_asked_over_http && matches!(limit.over_limit, OverLimit::Mark(_)) {
            let says = "marks requests, and a proxy that asks a listener with `serves: forward_auth` has to copy the header from \
                        the answer, in place of the client's";
            field.warn_key(says, None);
        }
        if replaces_status && limit.over_limit.denied().is_some_and(|denied| denied.status.is_some()) {
            field.warn_key(OWN_STATUS, None);
        }
        if is_asked {
            warn_of_less(&field, limit);
        }
    }
    let items = top.items("routes");
    let denied = items.iter().filter_map(Field::as_mapping).filter_map(|route| route.get("denied"));
    for field in denied.filter(|_| replaces_status) {
        if field.as_mapping().is_some_and(|denied| denied.has("status")) {
            field.warn_key(OWN_STATUS, None);
        }
    }
}

/// Warns of a limit that has less effect where another proxy handles the request: the gateway does not see its response.
fn warn_of_less(field: &Field<'_>, limit: &Limit) {
    let says = match limit {
        limit if limit.algorithm.holds_slots() => {
            "counts what runs, and a request that another proxy handles counts only until it is answered"
        }
        limit if limit.charge.when != ChargeTime::Request => {
            "goes by responses, which nobody tells of a request that another proxy handles: what it is charged first stays charged"
        }
        limit if matches!(limit.cost, CostRule::RequestBytes(_)) => {
            "counts the bytes of bodies, and one that came without `content-length` counts as empty where the other proxy does \
             not send it along whole"
        }
        limit if matches!(limit.over_limit, OverLimit::Divert(_)) => {
            "diverts requests, and those that another proxy handles pass as they are"
        }
        _ => return,
    };
    field.warn_key(says, None);
}
