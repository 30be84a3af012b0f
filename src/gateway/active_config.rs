//! The configuration in force: one immutable value behind one pointer, which a reload swaps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::clock::Clock;
use crate::customers::directory::GroupTable;
use crate::customers::source::Refresher;
use crate::customers::{Directory, TokenVerifier};
use crate::gateway::decisions::request_limits::RequestLimits;
use crate::gateway::identify::CredentialLookup;
use crate::gateway::queue::Queue;
use crate::gateway::upstream::{Pool, TlsConnector};
use crate::http::head::HeadBounds;
use crate::http::listener::ListenerConfig;
use crate::http::service::ConnectionSettings;
use crate::ruleset::changes::{self, LimitChange};
use crate::ruleset::key::{KeyHasher, LimitHashers};
use crate::ruleset::limit::OnChange;
use crate::ruleset::{Limit, LimitId, Ruleset};
use crate::store::{Binding, LimitSpec, Store};
use crate::telemetry::Telemetry;
use crate::telemetry::meters::Meters;
use crate::telemetry::names;

/// How much longer than its target the first line of a request may be, in bytes.
const REQUEST_LINE_OVERHEAD: usize = 256;
/// The bytes that HTTP/2 counts for each field of a list beside its name and value (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// A ruleset with everything that belongs to it. A request holds one from start to end; it is never modified.
pub struct ActiveConfig {
    /// The compiled configuration.
    pub ruleset: Arc<Ruleset>,
    /// The customers and their credentials.
    pub directory: Arc<Directory>,
    /// The groups that customers may belong to.
    pub groups: Arc<GroupTable>,
    /// The verifier of tokens; absent if no tokens are accepted.
    pub tokens: Option<TokenVerifier>,
    /// The limits as the store knows them.
    pub binding: Binding,
    /// The hashers that make the limits' keys.
    pub hashers: LimitHashers,
    /// The metrics that requests update.
    pub meters: Meters,
    /// The nodes of each upstream, indexed like the ruleset's upstreams.
    pub pools: Vec<Arc<Pool>>,
    /// The waiting requests of each limit, indexed like the ruleset's limits.
    pub queues: Vec<Queue>,
    /// The settings of each listener, in the order of their addresses.
    pub listeners: Vec<Arc<ListenerConfig>>,
    /// The settings of client connections; without a maximum number of them if the ruleset sets none.
    pub(super) settings: ConnectionSettings,
    /// The limits that requests brought along.
    pub(super) request_limits: RequestLimits,
    /// The hash of the configuration's text.
    pub hash: String,
    /// The hash of the files that list customers and groups; `None` if customers are in no file.
    pub directory_hash: Option<String>,
}

/// A compiled configuration with its customers and listeners, before it comes into force.
pub struct CompiledConfig {
    /// The compiled configuration.
    pub ruleset: Ruleset,
    /// The customers and their credentials.
    pub directory: Arc<Directory>,
    /// The groups that customers may belong to.
    pub groups: Arc<GroupTable>,
    /// The verifier of tokens; absent if no tokens are accepted.
    pub tokens: Option<TokenVerifier>,
    /// The settings of each listener, in the order of their addresses.
    pub listeners: Vec<Arc<ListenerConfig>>,
    /// The TLS settings of each upstream, at its position; `None` for plain connections.
    pub upstream_tls: Vec<Option<Arc<TlsConnector>>>,
    /// The hash of the configuration's text.
    pub hash: String,
    /// The hash of the files that list customers and groups; `None` if customers are in no file.
    pub directory_hash: Option<String>,
}

impl CompiledConfig {
    /// The refreshers that fetch keys and customers in the background.
    pub fn sources(&self) -> Vec<Arc<Refresher>> {
        sources(self.tokens.as_ref(), &self.directory)
    }

    /// The pools of its upstreams, in place of those of `before`. Pools that did not change stay, and nodes that stay keep
    /// their state, also in changed pools.
    pub fn pools(&self, before: Option<&ActiveConfig>) -> Vec<Arc<Pool>> {
        let before: HashMap<&str, &Arc<Pool>> =
            before.iter().flat_map(|before| &before.pools).map(|pool| (pool.upstream.name.as_str(), pool)).collect();
        let pools = self.ruleset.upstreams.iter().enumerate().map(|(position, upstream)| {
            let upstream_tls = self.upstream_tls.get(position).cloned().flatten();
            Pool::reuse_or_new(upstream, upstream_tls, before.get(upstream.name.as_str()).copied())
        });
        pools.collect()
    }
}

impl ActiveConfig {
    /// Combines a compiled configuration and the pools of its upstreams with the store and the metrics. It replaces
    /// `before`: waiting requests keep their places, and states stay where they are.
    pub fn new(
        (rules, pools): (CompiledConfig, Vec<Arc<Pool>>),
        before: Option<&Self>,
        store: &Store,
        hasher: KeyHasher,
        telemetry: &Telemetry,
    ) -> Self {
        let CompiledConfig { ruleset, directory, groups, tokens, listeners, upstream_tls: _, hash, directory_hash } =
            rules;
        let changes = before.map(|before| changes::limit_changes(&before.ruleset, &ruleset)).unwrap_or_default();
        let mut specs = limit_specs(&ruleset);
        for (position, (spec, limit)) in specs.iter_mut().zip(&ruleset.limits).enumerate() {
            spec.is_reset = match changes.get(position) {
                Some(LimitChange::Reset) => true,
                Some(LimitChange::Untouched | LimitChange::Carried) => false,
                // the states may come from a process with another configuration, or from before a change that is undone
                Some(_) | None => limit.on_change == OnChange::Reset && store.was_bound_otherwise(spec),
            };
        }
        let binding = store.bind(&specs);
        if let Directory::Lookup(asked) = &*directory {
            let (telemetry, is_http) = (telemetry.clone(), asked.is_http());
            asked.observe(Box::new(move |result, took| match is_http {
                true => telemetry.sources.service_asked(result.as_str(), took),
                false => telemetry.store.called(names::OP_CUSTOMER, result.as_str(), took),
            }));
        }
        let hashers = ruleset.hashers(hasher);
        let ruleset = Arc::new(ruleset);
        let meters = Meters::new(telemetry, &ruleset);
        let queues_before: HashMap<&str, &Queue> = before
            .iter()
            .flat_map(|before| before.ruleset.limits.iter().map(|limit| limit.name.as_str()).zip(&before.queues))
            .collect();
        let queues = ruleset
            .limits
            .iter()
            .map(|limit| Queue::new(&limit.over_limit, queues_before.get(limit.name.as_str()).copied()));
        let queues = queues.collect();
        let request_limits = RequestLimits::default();
        Self {
            pools,
            queues,
            settings: connection_settings(&ruleset),
            ruleset,
            directory,
            groups,
            tokens,
            binding,
            hashers,
            meters,
            listeners,
            request_limits,
            hash,
            directory_hash,
        }
    }

    /// The refreshers that fetch keys and customers in the background.
    pub fn sources(&self) -> Vec<Arc<Refresher>> {
        sources(self.tokens.as_ref(), &self.directory)
    }

    /// The means to identify callers, at the time of `clock`.
    pub fn lookup<'a>(&'a self, clock: &'a Arc<dyn Clock>) -> CredentialLookup<'a> {
        CredentialLookup { directory: &self.directory, tokens: self.tokens.as_ref(), clock }
    }
}

fn connection_settings(ruleset: &Ruleset) -> ConnectionSettings {
    let (head, connections) = (&ruleset.request_head, &ruleset.connections);
    let first_line = head.max_target.saturating_add(REQUEST_LINE_OVERHEAD);
    // over HTTP/2 the target and the host are fields; a request that is slightly over the bounds still gets a response
    let overhead = head.max_headers.saturating_mul(FIELD_OVERHEAD).saturating_add(FIELD_OVERHEAD);
    let list = head.max_headers_total.saturating_add(overhead).saturating_add(head.max_target);
    ConnectionSettings {
        head: HeadBounds { first_line, fields: head.max_headers_total },
        head_timeout: head.timeout,
        max_list: u32::try_from(list).unwrap_or(u32::MAX),
        idle: connections.idle,
        max_connections: connections.max,
        max_per_client: connections.per_client,
        prefixes: ruleset.client_address.prefixes,
    }
}

fn sources(tokens: Option<&TokenVerifier>, directory: &Directory) -> Vec<Arc<Refresher>> {
    let keys = tokens.and_then(|tokens| tokens.keys().refresher());
    keys.into_iter().chain(directory.refresher()).cloned().collect()
}

/// The limits of a ruleset in the form that the store needs; none of them starts afresh.
pub fn limit_specs(ruleset: &Ruleset) -> Vec<LimitSpec<'_>> {
    // their hits may be given back at any time
    let of_domains: HashSet<LimitId> = ruleset.domain_limits().collect();
    let spec = |(position, limit)| {
        let limit: &Limit = limit;
        LimitSpec {
            name: &limit.name,
            algorithm: limit.algorithm.canonical(),
            mode: limit.mode,
            key_kind: limit.key.kind(),
            is_reset: false,
            rules: &limit.rules,
            max_keys: limit.max_keys,
            may_refund: limit.may_refund() || of_domains.contains(&LimitId(position)),
        }
    };
    ruleset.limits.iter().enumerate().map(spec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_domains_may_give_hits_back() {
        const CONFIG: &str = "listeners: [{ address: \"127.0.0.1:1\", serves: forward_auth },
  { address: \"127.0.0.1:2\", serves: rate_limit_service }]
client_address: { trusted_proxies: [127.0.0.1] }
limits:
  users: { algorithm: gcra, rate: 1/s, burst: 5, key: { descriptor: user } }
  callers: { algorithm: gcra, rate: 1/s, burst: 5, key: client_address }
routes: [{ name: all, limits: [callers] }]
domains: { edge: { descriptors: [{ key: user, limits: [users] }] } }
";
        let ruleset = crate::config::load(CONFIG, "", &|_| None).unwrap().ruleset;
        let specs: Vec<_> = limit_specs(&ruleset).into_iter().map(|spec| (spec.name, spec.may_refund)).collect();
        assert_eq!(specs, [("users", true), ("callers", false)]);
    }
}
