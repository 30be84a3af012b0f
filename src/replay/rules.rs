//! The rules that a log is played through, and who the callers of its lines are.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};

use crate::customers::directory::GroupTable;
use crate::customers::{Customer, Directory, Tokens};
use crate::fields::Fields;
use crate::gateway::identify::{self, Identity};
use crate::gateway::respond::Answer;
use crate::replay::record::Record;
use crate::ruleset::charges::KnownCaller;
use crate::ruleset::key::{Claims, Facts};
use crate::ruleset::matcher::Route;
use crate::ruleset::{CustomerRules, PlanId, Ruleset};
use crate::units::Nanos;

/// A configuration as far as it says what becomes of requests.
#[derive(Debug)]
pub struct ReplayRules {
    /// The compiled configuration.
    pub ruleset: Ruleset,
    /// Who the customers are.
    pub directory: Arc<Directory>,
    /// The groups that they may belong to.
    pub groups: Arc<GroupTable>,
    /// Whose tokens are good.
    pub tokens: Option<Tokens>,
    /// The plan of callers whose plan nobody tells.
    pub default_plan: Option<PlanId>,
    /// The host of requests whose lines tell none.
    pub default_host: String,
}

/// What a log does not tell although rules ask for it, in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingInputs {
    /// No method or no path.
    pub requests: u64,
    /// Names of customers that the directory does not hold, where nothing tells the plan either.
    pub customers: u64,
    /// No name and no credential, although the rules tell customers apart.
    pub callers: u64,
    /// No address that can be read.
    pub addresses: u64,
    /// Requests that pass, whose real cost only the response told.
    pub costs: u64,
}

/// Who is calling.
pub(super) enum ReplayCaller<'r> {
    /// As the gateway found out.
    Identity(Identity),
    /// Somebody by name, whose plan the line or the command line tells.
    Named(&'r str, PlanId),
    /// Nobody by name, with a plan that the command line tells.
    Planned(PlanId),
}

/// Finds out who the callers are.
#[derive(Debug)]
pub(super) struct Callers {
    by_name: HashMap<Arc<str>, Arc<Customer>>,
    plans: HashMap<String, PlanId>,
}

impl Callers {
    pub(super) fn new(rules: &ReplayRules) -> Self {
        let by_name = rules.directory.table().map(|table| table.customers().into_iter().collect()).unwrap_or_default();
        let plans = rules.ruleset.plans.iter().enumerate();
        Self { by_name, plans: plans.map(|(plan, name)| (name.clone(), PlanId(plan))).collect() }
    }

    /// Who made a request: the name in the line, or else a credential in it.
    pub(super) fn find<'r>(
        &self,
        rules: &ReplayRules,
        asked: &CustomerRules,
        record: &'r Record<'_>,
        facts: &Facts<'_>,
        at: Nanos,
        untold: &mut MissingInputs,
    ) -> Result<ReplayCaller<'r>, Answer> {
        let Some(name) = record.customer.as_deref() else {
            let found = identify::identify_recorded(asked, facts, &rules.directory, rules.tokens.as_ref(), at)
                .map(ReplayCaller::Identity);
            return match (found, rules.default_plan) {
                (Ok(ReplayCaller::Identity(Identity::Anonymous)) | Err(Answer::CredentialMissing), Some(plan)) => {
                    Ok(ReplayCaller::Planned(plan))
                }
                (found, _) => {
                    let nobody = matches!(
                        found,
                        Ok(ReplayCaller::Identity(Identity::Anonymous)) | Err(Answer::CredentialMissing)
                    );
                    // where the line says nothing of a caller whose plan it tells, there was no credential
                    untold.callers += u64::from(nobody && record.was_exempt.is_none());
                    found
                }
            };
        };
        if let Some(customer) = self.by_name.get(name) {
            return Ok(ReplayCaller::Identity(Identity::Directory(Arc::clone(customer))));
        }
        let told = record.plan.as_deref().and_then(|plan| self.plans.get(plan)).copied();
        match told.or(rules.default_plan) {
            Some(plan) => Ok(ReplayCaller::Named(name, plan)),
            None => {
                untold.customers += 1;
                identify::accept(asked, Err(Answer::CredentialUnknown)).map(ReplayCaller::Identity)
            }
        }
    }
}

impl ReplayCaller<'_> {
    pub(super) fn known(&self) -> Option<KnownCaller<'_>> {
        match self {
            Self::Identity(identity) => identity.customer().map(|customer| customer.known()),
            Self::Named(name, plan) => Some(KnownCaller { name, plan: *plan, own: None, groups: None }),
            Self::Planned(_) => None,
        }
    }

    pub(super) fn claims(&self) -> Option<&dyn Claims> {
        match self {
            Self::Identity(identity) => identity.claims(),
            Self::Named(..) | Self::Planned(_) => None,
        }
    }
}

/// Sets `headers` to what a line tells of them. A line that says that an `OPTIONS` request was not charged tells of a
/// preflight, if `route` exempts those.
pub(super) fn set_headers(headers: &mut Fields, record: &Record<'_>, names: &[HeaderName]) {
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

/// Whether a request was a preflight: as its header fields tell, or the gateway that exempted it.
pub(super) fn is_preflight(route: &Route, record: &Record<'_>, facts: &Facts<'_>) -> bool {
    let was_exempt = record.was_exempt == Some(true) && record.customer.is_none();
    route.bypass.covers_preflight(facts) || (route.bypass.preflights && facts.method == "OPTIONS" && was_exempt)
}
