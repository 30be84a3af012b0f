//! The configuration: text in; a ruleset out, or all problems of the text.
//!
//! `text -> document -> checked -> Ruleset`. The document knows the position of each value. The readers collect all problems
//! instead of stopping at the first one, and this module builds nothing unless the file has no errors. No I/O: the caller
//! passes in the text and the environment.

use std::sync::Arc;

use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::{AccessLog, ClientAddress, Matcher, Ruleset};

mod access;
mod ban;
mod candidate;
mod cluster;
mod cost;
mod cross_checks;
mod customers;
mod decisions;
mod denied;
mod document;
mod domains;
mod environment;
mod findings;
mod identify;
pub mod import;
mod key;
mod limits;
mod listeners;
mod names;
mod operators;
mod over_limit;
mod overrides;
mod parameters;
mod prices;
mod priority;
mod problem;
mod quota_unit;
mod read;
mod receivers;
mod request_overrides;
mod routes;
pub mod scalar;
mod section_values;
mod server;
mod settings;
mod shape;
mod sharing;
mod state;
mod store;
mod terms;
mod trial_setting;
mod unneeded;
mod upstreams;
mod values;
mod warn_at;
mod words;
mod written_limit;

pub use cluster::Cluster;
pub use customers::{DirectorySource, HttpLookup, LookupCacheSettings, PostgresQuery, PostgresStatement, RedisHash};
pub use document::{Excerpt, ExcerptSource, MAX_BYTES};
pub use identify::{Jwks, JwksAddress, JwksSource, PublishedJwks};
pub use listeners::{CertificateFiles, ClientCertificateSettings, Listener, ListenerTls, Server};
pub use operators::Operators;
pub use overrides::ConfiguredOverrides;
pub use problem::{Mark, Place, Problem, Problems, Severity, Warning};
pub use receivers::{TraceFiles, UsageFiles, WebhookFiles};
pub use section_values::SectionValues;
pub use shape::{ConfigText, IncludedFile};
pub use state::StateSettings;
pub use store::{ClientTls, RedisStore, Secret};
pub use trial_setting::TrialSetting;
pub use upstreams::UpstreamTls;
pub use values::NamedFile;
pub(crate) use values::check_name;
pub use words::nearest;
pub use written_limit::WrittenLimit;

use customers::{CustomerFeatures, Customers};
use findings::Findings;
use limits::CheckedLimit;
use names::Names;
use read::{Field, ReadContext, Section};
use receivers::Receivers;
use settings::FILE;
use terms::FileScope;

/// A whole configuration.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The rules for requests.
    pub ruleset: Ruleset,
    /// The addresses that tollgate listens on.
    pub server: Server,
    /// The settings for operators: token, audit log, hosts and replay logs.
    pub operators: Operators,
    /// The TLS settings of each upstream, at the upstream's position; `None` where connections are in plain text.
    pub upstream_tls: Vec<Option<UpstreamTls>>,
    /// The Redis servers that keep shared data, if the file names any.
    pub store: Option<RedisStore>,
    /// The sources of customers, groups and keys.
    pub customers: CustomerSources,
    /// The file that keeps limit states over restarts, if the file names one.
    pub state: Option<StateSettings>,
    /// The cluster that keeps sticky limits, if several gateways form one.
    pub cluster: Option<Cluster>,
    /// The secret and the queue of the webhook, if the file has a webhook.
    pub webhook: Option<WebhookFiles>,
    /// The token, the queue and the other settings for sending usage events, if the file has `usage_events`.
    pub usage_events: Option<UsageFiles>,
    /// The token and the service name for sending spans, if the file has `traces`.
    pub traces: Option<TraceFiles>,
    /// Warnings: the configuration is valid, but probably not what the operator means.
    pub warnings: Vec<Warning>,
}

/// The limits of a configuration, without their use by routes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The names of the plans.
    pub plans: Vec<String>,
    /// The limits, in the order of the text.
    pub limits: Vec<WrittenLimit>,
    /// Warnings about the limits.
    pub warnings: Vec<Warning>,
}

/// The sources of customers, of their groups and of the keys of tokens that a configuration names.
#[derive(Clone, Debug)]
pub struct CustomerSources {
    /// The source of the customer directory, if there is one.
    pub directory: Option<DirectorySource>,
    /// The file that lists groups of customers, if there is one.
    pub groups: Option<NamedFile>,
    /// The reader of the overrides in the rows of `directory` and `groups`.
    pub overrides: ConfiguredOverrides,
    /// The keys that tokens are verified with, if the file accepts tokens.
    pub jwks: Option<Jwks>,
}

/// The JSON Schema of configuration files (draft 2020-12).
pub fn schema() -> serde_json::Value {
    settings::schema::schema()
}

/// The reference of configuration files, in Markdown: docs/configuration.md.
pub fn reference() -> String {
    settings::reference::reference()
}

/// Reads the text of a configuration. Findings show `file` as its name; `environment` looks up the variables of `${NAME}`.
pub fn load(text: &str, file: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<LoadedConfig, Problems> {
    ConfigText::new(file, text).load(environment)
}

/// Reads the limits in the text of a configuration, as [`ConfigText::load_limits`].
pub fn load_limits(text: &str, file: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Limits, Problems> {
    ConfigText::new(file, text).load_limits(environment)
}

impl ConfigText<'_> {
    /// Reads the whole configuration. `environment` looks up the variables of `${NAME}`.
    pub fn load(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<LoadedConfig, Problems> {
        let findings = self.findings();
        let loaded = self.with_sections(&findings, environment, |top| gateway(top, &findings));
        let (loaded, warnings) = findings.finish(loaded)?;
        Ok(LoadedConfig { warnings, ..loaded })
    }

    /// Reads the limits. The text may hold nothing else; this function ignores the other sections.
    ///
    /// A limit may leave out `key`. Where the text has no `plans:`, the plans are those that the limits name.
    pub fn load_limits(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<Limits, Problems> {
        let findings = self.findings();
        let limits = self.with_sections(&findings, environment, limits_alone);
        let (limits, warnings) = findings.finish(limits)?;
        Ok(Limits { warnings, ..limits })
    }

    /// Reads the sources of customers even if other sections have errors, so that `check` can still read the files that they
    /// name. `None` if there are no customers, or if the sections that name the sources have errors.
    pub fn load_customers(&self, environment: &dyn Fn(&str) -> Option<String>) -> Option<CustomerSources> {
        let findings = self.findings();
        let context = ReadContext { findings: &findings, environment };
        let root = shape::document(self, &context)?;
        customer_sources(&Field::root(&context, &root).as_mapping()?.with(&FILE), &findings)
    }

    /// Whether the text holds limits (with plans and prices) only, which `check` and `simulate` accept. False for a text that
    /// cannot be read at all.
    pub fn holds_limits_only(&self) -> bool {
        let only = self.with_sections(&self.findings(), &|_| None, |top| {
            let of_limits =
                |key| matches!(key, "include" | "defaults" | "limits" | "limit_groups" | "plans" | "prices");
            Some(top.has("limits") && top.fields().all(|(key, _)| of_limits(key)))
        });
        only.unwrap_or(false)
    }

    fn with_sections<T>(
        &self,
        findings: &Findings,
        environment: &dyn Fn(&str) -> Option<String>,
        read: impl FnOnce(&Section<'_>) -> Option<T>,
    ) -> Option<T> {
        let context = ReadContext { findings, environment };
        let root = shape::document(self, &context)?;
        let top = Field::root(&context, &root).section(&FILE)?;
        let read = read(&top);
        shape::check_defaults(&top);
        read
    }
}

fn customer_sources(top: &Section<'_>, findings: &Findings) -> Option<CustomerSources> {
    // without `plans` (perhaps misspelt), every plan in the customers' file would look wrong
    top.get("plans")?;
    let tokens = customers::customer_features(top).tokens;
    let scope = FileScope::every_section(tokens, store::nodes(top), top.has("domains"));
    let plans = limits::read_plans(top, scope);
    let levels = customers::levels(top);
    let customers = customers::read(top, &plans, &levels, true);
    let Customers { rules: Some(_), directory, groups, jwks } = customers else { return None };
    if findings.has_errors() {
        return None;
    }
    let limits = limits::read(top, &plans, &levels, None, scope);
    let overrides = if findings.has_errors() {
        ConfiguredOverrides::without_limits(&plans, &levels)
    } else {
        ConfiguredOverrides::new(&plans, &levels, &limits.limits)
    };
    Some(CustomerSources { directory, groups, overrides, jwks })
}

fn limits_alone(top: &Section<'_>) -> Option<Limits> {
    top.required("limits", "limits by their names")?;
    let plans = limits::read_plans(top, FileScope::LimitsOnly);
    let no_levels = Names::unreadable("a level");
    let limits = limits::read(top, &plans, &no_levels, None, FileScope::LimitsOnly).limits.into_iter();
    let limits = limits.map(|limit| limit.map(|limit| Arc::unwrap_or_clone(limit.spec)));
    let limits = limits.collect::<Option<Vec<WrittenLimit>>>()?;
    Some(Limits { plans: plans.all().map(str::to_owned).collect(), limits, warnings: Vec::new() })
}

/// Reads a whole configuration in three passes: 1. reads each section and collects its errors; 2. if there are none, builds
/// the ruleset; 3. checks the sections against each other.
///
/// A section is read after those whose names it refers to: upstreams and plans first, levels, customers (which have plans
/// and groups of a level), limits (of plans, levels and upstreams), then receivers, routes and domains, which name limits.
fn gateway(top: &Section<'_>, findings: &Findings) -> Option<LoadedConfig> {
    // 1. the sections
    let server = listeners::read(top);
    let operators = operators::read(top);
    let connections = listeners::bounds(top);
    let client_address = top.get_or("client_address", ClientAddress::default(), server::client_address);
    let has_proxies = client_address.as_ref().is_none_or(|rules| !rules.trusted_proxies.is_empty());
    let needs = decisions::RequiredSections::of(server.as_ref(), top.has("listeners"));
    let (upstream_names, upstreams) = upstreams::read(top, needs.upstreams);
    let CustomerFeatures { customers: has_customers, tokens } = customers::customer_features(top);
    let scope = FileScope::Gateway {
        customers: has_customers,
        tokens,
        proxies: has_proxies,
        store: top.has("store"),
        nodes: store::nodes(top),
        domains: top.has("domains"),
    };
    let plans = limits::read_plans(top, scope);
    let store = store::read(top);
    let state = state::read(top);
    let cluster = cluster::read(top);
    let levels = customers::levels(top);
    let customers = customers::read(top, &plans, &levels, has_proxies);
    let limits = limits::read(top, &plans, &levels, Some(&upstream_names), scope);
    let receivers = receivers::ReceiversContext {
        upstreams: &upstream_names,
        plans: &plans,
        limits: &limits,
        has_customers,
        has_proxies,
    };
    let Receivers { webhook, usage_events, traces } = receivers::read(top, &receivers);
    let (access, bypass, cors) = access::read(top);
    let ignores_case = server::ignores_path_case(top);
    let context = routes::RouteContext {
        needs,
        upstreams: &upstream_names,
        limits: &limits,
        bypass: &bypass,
        has_cors: top.has("cors"),
        ignores_case,
    };
    let mut routes = routes::read(top, &context);
    routes::check_default_limits(top, &context);
    let domains = domains::read(top, &limits, &routes, needs.domains);
    let usage = top.optional("usage", |field| server::usage(field, has_customers));
    let dialects = server::dialects(top);
    let access_log = top.value_or("access_log", AccessLog::default(), server::access_log);
    let request_head = server::request_head(top);
    let request_body = server::request_body(top);
    if findings.has_errors() {
        return None;
    }
    // not before: in a file with errors, the broken part may be the one that uses a name
    warn_of_unused("an upstream", &upstream_names, findings);
    warn_of_unused("a limit", &limits.names, findings);
    // 2. the ruleset
    let overrides = ConfiguredOverrides::new(&plans, &levels, &limits.limits);
    let limits = limits.limits.into_iter().collect::<Option<Vec<CheckedLimit>>>()?;
    let limits = limits::with_candidates(limits, &mut routes);
    let (domains, requested) = (domains?, routes.len());
    routes.extend(domains::routes(&domains));
    limits::prepare(&mut routes, &limits, has_customers);
    let matcher = Matcher::new(routes, requested, ignores_case);
    let (upstreams, upstream_tls) = upstreams.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let ((webhook, webhook_files), (usage_events, usage_files)) = (webhook.unzip(), usage_events.unzip());
    let (traces, trace_files) = traces.unzip();
    let Customers { rules, directory, groups, jwks } = customers;
    let ruleset = Ruleset {
        domains: domains::finish(domains, &matcher, &limits),
        matcher,
        marks: marks(&limits),
        limits,
        plans: plans.all().map(str::to_owned).collect(),
        upstreams,
        connections,
        client_address: client_address?,
        customers: rules,
        access,
        cors,
        usage,
        webhook,
        usage_events,
        traces,
        dialects,
        access_log,
        request_head,
        request_body,
    };
    let config = LoadedConfig {
        ruleset,
        server: server?,
        operators,
        upstream_tls,
        store,
        customers: CustomerSources { directory, groups, overrides, jwks },
        state,
        cluster,
        webhook: webhook_files,
        usage_events: usage_files,
        traces: trace_files,
        warnings: Vec::new(),
    };
    // 3. the sections together
    cross_checks::check(top, &config, findings)?;
    Some(config)
}

/// The header names that `over_limit: { mark: ... }` uses, each once.
fn marks(limits: &[Limit]) -> Vec<http::HeaderName> {
    let mut marks: Vec<http::HeaderName> = Vec::new();
    for limit in limits {
        if let OverLimit::Mark(header) = &limit.over_limit
            && !marks.contains(header)
        {
            marks.push(header.clone());
        }
    }
    marks
}

/// Warns of names that no route uses. Only for files without errors.
fn warn_of_unused(what: &str, names: &Names, findings: &Findings) {
    for (_, place) in names.unused() {
        findings.add(Problem::warning(place, format!("is {what} that no route uses")));
    }
}

#[cfg(test)]
mod tests;
