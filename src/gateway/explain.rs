//! Explains a request: its route, its caller, its limits with their keys, costs and parameters, and the reasons for each.
//!
//! Calls the functions that decide on requests, and charges nothing. Credentials, and values that may be one, are masked.

use std::sync::Arc;

use serde::Serialize;

mod limits;
pub(crate) mod masked;
mod question;
mod route_match;

use limits::explain_limits;
pub(super) use limits::uncharged_because;
pub use limits::{CurrentOutcome, KeyPartValue, LimitExplanation, LimitStanding};
pub use question::{Question, QuestionError, RequestJson};
pub use route_match::{RouteMatch, SkippedRoute};

use crate::charge::Charge;
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::awaited_body::{BodyFields, BodySource};
use crate::gateway::caller::{self, Caller};
use crate::gateway::facts::{self, Head, Target};
use crate::gateway::identify::{self, Credential, CredentialLookup, Identity};
use crate::gateway::respond::Answer;
use crate::gateway::upstream::Pool;
use crate::gateway::{early, own_usage};
use crate::ruleset::groups::{Group, Groups};
use crate::ruleset::key::{Facts, LimitHashers};
use crate::ruleset::matcher::Route;
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::{LimitId, Ruleset};

/// The explanation of a request. A field is null if it is unknown, or if the request does not get that far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Explanation {
    /// The request, as it is matched.
    pub request: Option<Request>,
    /// The route that it takes, and the reasons.
    pub route: Option<RouteMatch>,
    /// The caller.
    pub caller: Option<CallerExplanation>,
    /// The reason why it is never charged.
    pub bypassed: Option<String>,
    /// The upstream that it goes to, unless the gateway answers it.
    pub upstream: Option<UpstreamExplanation>,
    /// The limits of the route, in their order, including those that do not apply.
    pub limits: Vec<LimitExplanation>,
    /// The gateway's own response, which it gives whatever the limits decide.
    pub answer: Option<AnswerExplanation>,
    /// The outcome if the request came now; only a running gateway tells it.
    pub now: Option<CurrentOutcome>,
}

/// A request as it is matched and forwarded: canonical, without its query.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The host, in lower case, without a port.
    pub host: String,
    /// The canonical path.
    pub path: String,
    /// The client's address; null where a trusted proxy sent no usable address.
    pub client: Option<String>,
}

/// The caller of a request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CallerExplanation {
    /// The customer; null for a caller without a credential, and for one whose credential is unknown.
    pub customer: Option<String>,
    /// The plan.
    pub plan: Option<String>,
    /// The groups that the customer belongs to, the outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupExplanation>,
    /// The place of the credential in the request, in words.
    pub credential_place: Option<String>,
    /// The credential, masked: its beginning and its length.
    pub credential: Option<String>,
    /// Whether the customer has parameters of its own.
    pub has_own_terms: bool,
}

/// A group that a customer belongs to.
#[derive(Clone, Debug, Serialize)]
pub struct GroupExplanation {
    /// Its level.
    pub level: String,
    /// Its name.
    pub group: String,
    /// Its plan; null where it has none.
    pub plan: Option<String>,
    /// Whether it has parameters of its own.
    pub has_own_terms: bool,
}

/// The upstream of a request.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamExplanation {
    /// Its name.
    pub name: String,
    /// Its nodes, as configured.
    pub nodes: Vec<String>,
    /// The number of healthy instances; only a running gateway tells it.
    pub healthy_nodes: Option<usize>,
    /// The path that the gateway sends, after a rewrite.
    pub path: String,
}

/// A response of the gateway itself.
#[derive(Clone, Debug, Serialize)]
pub struct AnswerExplanation {
    /// The status.
    pub status: u16,
    /// The cause, as the access log names it.
    pub cause: &'static str,
    /// The text for the client; if access rules keep the caller out, the list that does so.
    pub detail: String,
}

/// The configuration that questions are answered from, in force or not.
#[derive(Clone, Copy)]
pub struct ExplainedConfig<'a> {
    /// The configuration.
    pub ruleset: &'a Ruleset,
    /// The directory and the tokens that identify callers.
    pub lookup: CredentialLookup<'a>,
    /// The hashers that make keys.
    pub hashers: &'a LimitHashers,
    /// The nodes of its upstreams; only a running gateway knows them.
    pub pools: Option<&'a [Arc<Pool>]>,
}

impl<'a> ExplainedConfig<'a> {
    /// The configuration in force at `gateway`.
    fn in_force(gateway: &'a Gateway, active: &'a ActiveConfig) -> Self {
        Self {
            ruleset: &active.ruleset,
            lookup: active.lookup(&gateway.clock),
            hashers: &active.hashers,
            pools: Some(&active.pools),
        }
    }

    /// The nodes that requests of `route` may go to, by the names by which limits count them: at a running gateway these are
    /// addresses, also of nodes with host names.
    fn node_names(&self, route: &Route) -> Vec<String> {
        let names = |UpstreamId(upstream)| match self.pools {
            Some(pools) => pools[upstream].instance_names(),
            None => self.ruleset.upstreams[upstream].nodes.iter().map(|node| node.address.clone()).collect(),
        };
        route.upstreams().flat_map(names).collect()
    }
}

impl Explanation {
    /// Explains `question` under `rules`, without the states of its keys.
    pub async fn of(rules: ExplainedConfig<'_>, question: &Question) -> Self {
        ResolvedRequest::resolve(rules, question).await.explanation
    }

    /// Explains `question` at `gateway` now, with the standings of its keys. Takes no tokens.
    pub async fn of_gateway(gateway: &Gateway, question: &Question) -> Self {
        let active = gateway.active.load_full();
        let request = ResolvedRequest::resolve(ExplainedConfig::in_force(gateway, &active), question).await;
        request.with_standings(gateway, &active).await
    }

    /// The charge of `question` under the limit `id`, or the reason why there is none, with the parts of its key and the plan of
    /// the owner of its parameters. `Err` says why the request does not reach the limit, or why the charge is unknown.
    pub(super) async fn charge_under_limit(
        gateway: &Gateway,
        active: &ActiveConfig,
        question: &Question,
        id: LimitId,
    ) -> Result<(Vec<KeyPartValue>, Result<Charge, String>, Option<String>), String> {
        let rules = ExplainedConfig::in_force(gateway, active);
        let ResolvedRequest { explanation, charges, nodes } = ResolvedRequest::resolve(rules, question).await;
        if let Some(answer) = &explanation.answer {
            return Err(format!("tollgate answers {} itself: {}", answer.status, answer.detail));
        }
        let limit = &active.ruleset.limits[id.0];
        let account = explanation.limits.into_iter().enumerate().find(|(_, account)| account.limit == limit.name);
        let Some((position, account)) = account else {
            let route = explanation.route.and_then(|route| route.name).unwrap_or_default();
            return Err(match explanation.bypassed {
                Some(bypassed) => format!("the request is exempt {bypassed}"),
                None => format!("the route {route} does not have it"),
            });
        };
        if limit.key.counts_by_node() && nodes != 1 {
            return Err("it counts by the node that a request goes to, which is not known; name the parts".to_owned());
        }
        if account.awaits_body {
            return Err(account.why);
        }
        let charge = charges.into_iter().find(|(of, _)| *of == position).map(|(_, charge)| charge);
        Ok((account.key, charge.ok_or(account.why), account.plan))
    }
}

impl AnswerExplanation {
    fn of(answer: &Answer) -> Self {
        Self { status: answer.status(), cause: answer.cause(), detail: answer.detail(None) }
    }
}

/// A request, as far as it gets on its way to the limits.
struct ResolvedRequest {
    explanation: Explanation,
    /// The charges of the request, each with the position of its limit in the explanation.
    charges: Vec<(usize, Charge)>,
    /// The number of nodes that it may go to, if a limit counts by the node.
    nodes: usize,
}

impl ResolvedRequest {
    /// Follows the steps of an admission. The request of a refused caller still reaches the limits that need nothing about
    /// callers.
    async fn resolve(config: ExplainedConfig<'_>, question: &Question) -> Self {
        let mut request = Self { explanation: Explanation::default(), charges: Vec::new(), nodes: 0 };
        if let Err(answer) = request.follow(config, question).await {
            request.explanation.answer.get_or_insert_with(|| AnswerExplanation::of(&answer));
        }
        request
    }

    /// Follows the steps of any request. `Err` is the response of the gateway itself.
    async fn follow(&mut self, config: ExplainedConfig<'_>, question: &Question) -> Result<(), Answer> {
        let ruleset = config.ruleset;
        let mut headers = question.head().headers.clone();
        facts::remove_untrusted(&mut headers, question.head().peer, ruleset);
        let head = Head { headers: &headers, ..question.head() };
        let target = head.target(&ruleset.request_head)?;
        let facts = head.facts(&ruleset.client_address, &target);
        self.explanation.request = Some(Request::of(&facts, &target));
        if ruleset.usage.as_deref() == Some(facts.path) {
            return self.follow_usage(config, &facts).await;
        }
        let taken = ruleset.route_of(&facts);
        self.explanation.route = Some(RouteMatch::of(ruleset, taken, &facts));
        let route = ruleset.matcher.route(taken.ok_or(Answer::NoRoute)?);
        let body = BodySource::Buffered(question.body());
        caller::check_route(route, target.has_parameters, body, &facts)?;
        self.explanation.upstream = UpstreamExplanation::of(config, route, &target.path);
        match Caller::find(ruleset, route, &facts, config.lookup).await {
            Ok(caller) => self.follow_caller(config, route, &facts, (&caller, body)),
            Err(answer) => {
                self.explanation.caller = Some(CallerExplanation::of_refused(&answer, ruleset, &facts));
                if Caller::check_before_identification(ruleset, route, &facts).is_ok() {
                    Caller::early_charges(ruleset, route, &facts, config.hashers)?;
                    self.follow_early(config, route, &facts);
                }
                if answer == Answer::AccessDenied {
                    let who = Caller::identify(ruleset, route, &facts, config.lookup).await.ok();
                    self.explanation.answer = Some(access_denial(ruleset, &facts, who.as_ref()));
                }
                Err(answer)
            }
        }
    }

    /// Follows the steps of a request for the usage page.
    async fn follow_usage(&mut self, config: ExplainedConfig<'_>, facts: &Facts<'_>) -> Result<(), Answer> {
        let ExplainedConfig { ruleset, lookup, hashers, pools: _ } = config;
        own_usage::check_before_identification(ruleset, facts)?;
        let identity = identify::identify(ruleset, facts, lookup).await;
        let reader = identity.and_then(|identity| own_usage::reader(ruleset, facts, &identity).map(drop));
        if let Err(answer) = &reader {
            self.explanation.caller = Some(CallerExplanation::of_refused(answer, ruleset, facts));
        }
        if let Some(route) = early::route_of_usage(ruleset, facts, hashers) {
            self.follow_early(config, ruleset.matcher.route(route), facts);
        }
        reader?;
        let detail = "the page on which customers see where they stand; no route is tried".to_owned();
        self.explanation.answer = Some(AnswerExplanation { status: 200, cause: "usage", detail });
        Ok(())
    }

    /// Follows the steps of a request under the limits of `route` that need nothing about callers.
    fn follow_early(&mut self, config: ExplainedConfig<'_>, route: &Route, facts: &Facts<'_>) {
        let ExplainedConfig { ruleset, hashers, .. } = config;
        if !route.bypass.covers(facts, None) {
            let (resolved, listed) = (ruleset.resolve_unidentified(route), (route, &*route.early, 0));
            (self.explanation.limits, self.charges) = explain_limits(ruleset, listed, facts, &resolved, hashers);
        }
    }

    /// Follows the steps of a request of `caller`, which may use `route`.
    fn follow_caller(
        &mut self,
        config: ExplainedConfig<'_>,
        route: &Route,
        facts: &Facts<'_>,
        (caller, body): (&Caller, BodySource<'_>),
    ) -> Result<(), Answer> {
        let ExplainedConfig { ruleset, hashers, .. } = config;
        let mut resolved = caller.resolved(ruleset, route);
        self.explanation.caller = Some(CallerExplanation {
            customer: caller.customer().map(str::to_owned),
            plan: resolved.plan.map(|(_, plan)| plan.to_owned()),
            has_own_terms: resolved.own.is_some_and(|own| !own.limits.is_empty()),
            groups: resolved.groups.map_or_else(Vec::new, |groups| GroupExplanation::all(groups, ruleset)),
            ..CallerExplanation::of_credential(ruleset, facts)
        });
        ruleset.balance_hashes(route, facts, &resolved, hashers.hasher())?;
        self.explanation.bypassed =
            route.bypass.exemption(facts, caller.customer()).map(|exemption| exemption.to_string());
        if self.explanation.bypassed.is_some() {
            return Ok(());
        }
        let nodes = if ruleset.counts_by_node(route) { config.node_names(route) } else { Vec::new() };
        if nodes.is_empty() && ruleset.counts_by_node(route) && route.upstream.is_some() {
            return Err(Answer::NoHealthyNode);
        }
        // the gateway chooses a node only for a real request, so the first node stands for all
        resolved.upstream_node = nodes.first().map(String::as_str);
        self.nodes = nodes.len();
        let fields = BodyFields::of(facts.headers, body, route).map_err(Answer::Malformed)?;
        let facts = &Facts { body: fields.known(), ..facts.clone() };
        let listed = (route, &*route.limits, self.nodes);
        let (explained, charges) = explain_limits(ruleset, listed, facts, &resolved, hashers);
        self.explanation.limits = explained;
        caller.charges(ruleset, route, facts, &resolved, hashers)?;
        self.charges = charges;
        Ok(())
    }
}

impl Request {
    fn of(facts: &Facts<'_>, target: &Target) -> Self {
        Self {
            method: facts.method.to_owned(),
            host: facts.host.to_owned(),
            path: target.path.clone(),
            client: facts.address.map(|address| address.to_string()),
        }
    }
}

impl CallerExplanation {
    /// A caller that is refused with `answer`, which names its customer if its credential is known.
    fn of_refused(answer: &Answer, ruleset: &Ruleset, facts: &Facts<'_>) -> Self {
        let customer = answer.refused_customer().map(|name| name.to_string());
        Self { customer, ..Self::of_credential(ruleset, facts) }
    }

    /// A caller of whom only the credential is known.
    fn of_credential(ruleset: &Ruleset, facts: &Facts<'_>) -> Self {
        let rules = ruleset.customers.as_ref();
        let found = rules.and_then(|rules| identify::credential(rules, facts).ok().flatten());
        let (place, credential) = found
            .map(|(source, Credential::Key(secret) | Credential::Token(secret))| {
                (source.place(), masked::mask(&secret))
            })
            .unzip();
        Self { credential_place: place, credential, ..Self::default() }
    }
}

impl GroupExplanation {
    fn all(groups: &Groups, ruleset: &Ruleset) -> Vec<Self> {
        let account = |group: &Arc<Group>| Self {
            level: group.level.to_string(),
            group: group.name.to_string(),
            plan: ruleset.plan_name(group.plan).map(str::to_owned),
            has_own_terms: group.own.as_ref().is_some_and(|own| !own.limits.is_empty()),
        };
        groups.0.iter().map(account).collect()
    }
}

impl UpstreamExplanation {
    fn of(ExplainedConfig { ruleset, pools, .. }: ExplainedConfig<'_>, route: &Route, path: &str) -> Option<Self> {
        let upstreams = route.upstreams().filter_map(|id| ruleset.upstreams.get(id.0));
        let healthy = |pools: &[Arc<Pool>]| route.upstreams().map(|id| pools[id.0].healthy_count()).sum();
        let path = route.rewrite.as_ref().map_or_else(|| path.to_owned(), |rewrite| rewrite.apply(path));
        Some(Self {
            name: ruleset.upstream_name(route)?,
            nodes: upstreams.flat_map(|upstream| &upstream.nodes).map(|node| node.address.clone()).collect(),
            healthy_nodes: pools.map(healthy),
            path,
        })
    }
}

/// Names the list that keeps a caller out.
fn access_denial(ruleset: &Ruleset, facts: &Facts<'_>, caller: Option<&Caller>) -> AnswerExplanation {
    let everywhere = match caller {
        _ if ruleset.access.denies_address(facts.address) => true,
        Some(caller) => ruleset.access.denies(facts.address, caller.customer()),
        None => false,
    };
    let whose = match caller.map(|caller| &caller.identity) {
        Some(Identity::Directory(_) | Identity::Jwt { .. }) => "the customer, or its address, is not let in",
        Some(Identity::Anonymous) | None => "the address is not let in",
    };
    let list = if everywhere { "`access`" } else { "the `access` of the route" };
    AnswerExplanation { detail: format!("{whose}, by {list}"), ..AnswerExplanation::of(&Answer::AccessDenied) }
}
