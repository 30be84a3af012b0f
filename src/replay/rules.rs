//! The rules that a log is played through, and the callers of its requests.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};

use crate::customers::directory::GroupTable;
use crate::customers::{Customer, Directory, TokenVerifier};
use crate::fields::Fields;
use crate::gateway::caller::Caller;
use crate::gateway::identify::{self, Identity};
use crate::gateway::respond::Answer;
use crate::replay::record::Record;
use crate::ruleset::key::Facts;
use crate::ruleset::matcher::Route;
use crate::ruleset::{CustomerRules, PlanId, Ruleset};
use crate::units::Nanos;

/// The parts of a configuration that decide about requests.
pub struct ReplayRules {
    /// The compiled configuration.
    pub ruleset: Ruleset,
    /// The customers.
    pub directory: Arc<Directory>,
    /// The groups that customers may belong to.
    pub groups: Arc<GroupTable>,
    /// The verifier of signed tokens, if callers may have them.
    pub tokens: Option<TokenVerifier>,
    /// The plan of callers whose plan neither the directory nor the line tells.
    pub default_plan: Option<PlanId>,
    /// The host of requests whose lines tell none.
    pub default_host: String,
}

/// The number of lines that lack a value that the rules ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingInputs {
    /// Lines without a method or a path.
    pub requests: u64,
    /// Lines whose customer the directory does not hold and whose plan nothing tells.
    pub customers: u64,
    /// Lines without a customer's name and without a credential, although the rules identify customers.
    pub callers: u64,
    /// Lines without an address that can be read.
    pub addresses: u64,
    /// Lines with the address of a trusted proxy, and without the header field in which it names its client.
    pub clients: u64,
    /// Admitted requests whose real cost only the response told.
    pub costs: u64,
}

/// Finds the callers of requests.
#[derive(Debug)]
pub(super) struct CallerFinder {
    plans: HashMap<String, PlanId>,
}

impl CallerFinder {
    pub(super) fn new(rules: &ReplayRules) -> Self {
        rules.directory.index_names();
        let plans = rules.ruleset.plans.iter().enumerate();
        Self { plans: plans.map(|(plan, name)| (name.clone(), PlanId(plan))).collect() }
    }

    /// Finds the caller of a request by the name in the line, or else by a credential in it.
    pub(super) fn find(
        &self,
        rules: &ReplayRules,
        asked: &CustomerRules,
        record: &Record,
        facts: &Facts<'_>,
        at: Nanos,
        missing_inputs: &mut MissingInputs,
    ) -> Result<Caller, Answer> {
        let identified = |identity| Caller { identity, ..Caller::UNKNOWN };
        let Some(name) = record.customer.as_deref() else {
            let found = identify::identify_recorded(&rules.ruleset, facts, &rules.directory, rules.tokens.as_ref(), at);
            let is_nobody = matches!(found, Ok(Identity::Anonymous) | Err(Answer::CredentialMissing));
            if is_nobody && rules.default_plan.is_some() {
                return Ok(Caller { proxy_plan: rules.default_plan, ..Caller::UNKNOWN });
            }
            // a line with a decision is a gateway's own, which names its customers: there was no credential
            missing_inputs.callers += u64::from(is_nobody && record.was_exempt.is_none());
            return found.map(identified);
        };
        if let Ok(Some(customer)) = rules.directory.named(name) {
            return Ok(identified(Identity::Directory(customer)));
        }
        let named = record.plan.as_deref().and_then(|plan| self.plans.get(plan)).copied();
        let Some(plan) = named.or(rules.default_plan) else {
            missing_inputs.customers += 1;
            return identify::apply_unknown_rule(asked, Err(Answer::CredentialUnknown)).map(identified);
        };
        let name = name.into();
        let customer = Customer { name, plan, own: None, groups: None, valid_until: None, suspended: false };
        Ok(identified(Identity::Directory(Arc::new(customer))))
    }
}

/// Sets `headers` to the request header fields of a line. The length of the request's body becomes `content-length`, if
/// the rules ask for that and the line does not have it.
pub(super) fn set_headers(headers: &mut Fields, record: &Record, names: &[HeaderName]) {
    headers.clear();
    for (position, value) in &record.headers {
        if let (Some(name), Ok(value)) = (names.get(*position), HeaderValue::from_bytes(value.as_bytes())) {
            headers.push(name, value);
        }
    }
    let length = record.request_bytes.filter(|_| names.contains(&header::CONTENT_LENGTH));
    if let Some(length) = length.filter(|_| !headers.contains(header::CONTENT_LENGTH.as_str())) {
        headers.push(header::CONTENT_LENGTH, itoa::Buffer::new().format(length));
    }
}

/// Whether a request was a preflight: by its header fields, or because `route` exempts preflights and the line says that
/// the gateway exempted this `OPTIONS` request.
pub(super) fn is_preflight(route: &Route, record: &Record, facts: &Facts<'_>) -> bool {
    let was_exempt = record.was_exempt == Some(true) && record.customer.is_none();
    route.bypass.covers_preflight(facts) || (route.bypass.preflights && facts.method == "OPTIONS" && was_exempt)
}
