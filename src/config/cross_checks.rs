//! Checks of the sections against each other, after each section has been read without errors.

use crate::charge::Mode;
use crate::config::customers::DirectorySource;
use crate::config::findings::Findings;
use crate::config::listeners::Listener;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section};
use crate::config::{LoadedConfig, cluster, decisions, routes, words};
use crate::ruleset::cost::CostRule;
use crate::ruleset::key::KeyPart;
use crate::ruleset::limit::Limit;
use crate::ruleset::{CredentialSource, Ruleset};

/// Refuses sections of the file `top` that contradict each other, and warns of sections without an effect. `config` is the
/// file's configuration.
pub(super) fn check(top: &Section<'_>, config: &LoadedConfig, findings: &Findings) -> Option<()> {
    let LoadedConfig { ruleset, server, .. } = config;
    let Ruleset { limits, matcher, client_address, .. } = ruleset;
    warn_of_idle_sections(top, config);
    warn_of_unbelieved_fields(top, ruleset);
    decisions::check(top, server, client_address, limits, matcher.routes());
    if findings.has_errors() {
        return None;
    }
    if config.state.is_none() && config.cluster.is_none() {
        warn_of_forgotten_quotas(top, limits);
    }
    if let Some(cluster) = &config.cluster {
        cluster::check(top, cluster, server, limits.iter().any(|limit| limit.mode == Mode::Sticky))?;
    }
    routes::warn_of_final_slashes(top, matcher, limits);
    Some(())
}

/// Warns of sections that have no effect beside the others.
fn warn_of_idle_sections(top: &Section<'_>, config: &LoadedConfig) {
    let Ruleset { limits, customers, domains, .. } = &config.ruleset;
    let warn_unless = |is_used: bool, section, message| {
        if let Some(field) = top.get(section).filter(|_| !is_used) {
            field.warn(message, None);
        }
    };
    let has_planned_requests = customers.is_some() || domains.values().any(|domain| domain.plan.is_some());
    warn_unless(has_planned_requests, "plans", "no request has a plan: the file names no `customers`");
    warn_unless(
        limits.iter().any(|limit| limit.mode != Mode::Sticky)
            || matches!(config.customers.directory, Some(DirectorySource::Redis(_))),
        "store",
        "nothing is kept there: no limit is `mode: shared`, and no `customers.directory` names a Redis hash",
    );
    warn_unless(
        limits.iter().any(|limit| !limit.warn_at.is_empty()),
        "webhook",
        "is told of keys at the marks of `warn_at`, and no limit has any",
    );
    let goes_by_certificate =
        customers.as_ref().is_some_and(|rules| rules.identify.contains(&CredentialSource::ClientCertificate));
    warn_unless(
        !goes_by_certificate || config.server.listeners.iter().any(Listener::asks_for_certificates),
        "customers",
        "goes by client certificates, and no listener has `client_certificates`: nobody shows one",
    );
}

/// Warns of quotas of a day or more that are in memory only.
fn warn_of_forgotten_quotas(top: &Section<'_>, limits: &[Limit]) {
    let is_forgotten = |limit: &&Limit| limit.mode == Mode::Sticky && limit.acts() && limit.has_long_quota();
    let names: Vec<&str> = limits.iter().filter(is_forgotten).map(|limit| limit.name.as_str()).collect();
    if let (Some(field), false) = (top.get("limits"), names.is_empty()) {
        let message = format!("a restart forgets what is used of {}", words::all_of(names));
        field.warn_key(message, "`state: { file: tollgate.state }` keeps it");
    }
}

/// Warns of fields that only trusted proxies may send, where there are none: the gateway removes the fields.
fn warn_of_unbelieved_fields(top: &Section<'_>, Ruleset { client_address, limits, customers, .. }: &Ruleset) {
    if !client_address.trusted_proxies.is_empty() {
        return;
    }
    let is_hop_field = |name: &str| client_address.is_hop_field(name.as_bytes());
    let warn = |field: &Field<'_>, does: &str| {
        let says =
            format!("{does} by a field that is believed of no request: `client_address` has no `trusted_proxies`");
        field.findings().add(Problem::warning(field.key_place(), says));
    };
    let counts_by_one = |limit: &Limit| {
        let is_one = |part: &KeyPart| matches!(part, KeyPart::Header(name, _) if is_hop_field(name.as_str()));
        limit.key.parts.iter().any(is_one)
            || matches!(&limit.cost, CostRule::Header { name, .. } if is_hop_field(name.as_str()))
    };
    for (name, field) in top.named("limits") {
        if limits.iter().any(|limit| limit.name == name && counts_by_one(limit)) {
            warn(&field, "counts");
        }
    }
    for matched in top.items("routes").iter().filter_map(|route| route.as_mapping()?.get("match")?.as_mapping()) {
        let headers = matched.named("headers").into_iter();
        headers.filter(|(name, _)| is_hop_field(name)).for_each(|(_, field)| warn(&field, "goes"));
    }
    let identify = top.at(&["customers", "identify"]).and_then(|field| field.as_list());
    let sources = customers.iter().flat_map(|rules| &rules.identify);
    for (source, field) in sources.zip(identify.into_iter().flatten()) {
        if matches!(source, CredentialSource::Header(name) if is_hop_field(name.as_str())) {
            warn(&field, "identifies customers");
        }
    }
}
