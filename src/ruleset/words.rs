//! Descriptions of limits in plain words, for authors of configurations and for operators who look at the active one.

use crate::algorithm::{AlgorithmName, Policy, Rule};
use crate::charge::{Consistency, Mode, OnStoreDown, Sharing};
use crate::ruleset::denied::{Body, Denied};
use crate::ruleset::key::Key;
use crate::ruleset::limit::{Limit, OverLimit, Share};
use crate::ruleset::{Jitter, LimitId, PlanId, Ruleset};
use crate::units::{Cost, Nanos};

/// The name for all requests, where a limit does not distinguish plans.
pub const EVERYBODY: &str = "every request";
/// The name for requests without a plan.
pub const PLANLESS: &str = "without a plan";
/// The description for requests that a limit does not apply to.
pub const UNLIMITED: &str = "unlimited";
const OVER_THE_LIMIT: &str = "over the limit";

/// A subject and its description.
pub type DescriptionLine = (String, String);

/// The parameters that apply to requests of one plan, in words and as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitTerms {
    /// The parameters, with the room that such requests leave for other plans.
    pub words: String,
    /// The most that can be admitted at once.
    pub quota: Cost,
    /// The time in which a used-up quota becomes full again.
    pub window: Option<Nanos>,
}

impl LimitTerms {
    /// The parameters `rule` of `limit` for requests that have to leave `floor` tokens for others.
    pub fn of(limit: &Limit, rule: &Rule, floor: Cost) -> Self {
        let Policy { quota, window } = rule.policy().above(floor);
        Self { words: limit.describe_rule(rule, floor), quota, window }
    }
}

impl Ruleset {
    /// The lines below the heading of `limit`: the parameters of each plan, and every setting that is not the default.
    pub fn describe(&self, limit: &Limit) -> Vec<DescriptionLine> {
        let mut lines = merged(terms(limit, &self.plans));
        lines.extend(self.settings(limit));
        let position = self.limits.iter().position(|other| std::ptr::eq(other, limit)).map(LimitId);
        let candidates = self.limits.iter().filter(|other| other.candidate_of.is_some());
        for candidate in candidates.filter(|other| other.candidate_of == position) {
            let algorithm = candidate.algorithm.as_str();
            let words = merged(terms(candidate, &self.plans));
            lines.extend(words.into_iter().map(|(who, words)| (format!("candidate ({algorithm}), {who}"), words)));
        }
        lines
    }

    /// The settings of `limit` that are not the default, without its parameters.
    pub fn settings(&self, limit: &Limit) -> Vec<DescriptionLine> {
        let line = |what: &str, words: String| (what.to_owned(), words);
        let over = self.over_the_limit(limit).map(|words| line(OVER_THE_LIMIT, words));
        let cost = limit.cost.describe().map(|words| line("cost", words));
        let charged = limit.charge.describe().map(|words| line("charged", words));
        let warns = limit.warns().map(|words| line("warns", words));
        let bans = limit.ban.filter(|_| limit.enforces()).map(|ban| line("bans", ban.describe()));
        let share = (limit.enabled < Share::WHOLE)
            .then(|| line("applies to", format!("{} of the keys, always the same ones", percent(limit.enabled))));
        let shadow =
            limit.shadow.then(|| line("shadow", "counts and reports what it would do, and never does it".to_owned()));
        let hidden = (limit.hidden && limit.acts()).then(|| line("hidden", "no answer names it".to_owned()));
        let shared = sharing(limit.mode).map(|words| line("shared", words));
        [over, bans, warns, cost, charged, share, shadow, hidden, shared].into_iter().flatten().collect()
    }

    /// The treatment of requests over `limit`; `None` for the usual denial.
    pub fn over_the_limit(&self, limit: &Limit) -> Option<String> {
        match &limit.over_limit {
            OverLimit::Deny(denied) => denied.describe().map(|answer| format!("denied with {answer}")),
            OverLimit::Delay { max_wait, max_waiting, denied } => {
                let after = denied.describe().map(|answer| format!("denied with {answer}"));
                let can_delay = limit.rules.iter().any(Rule::can_delay);
                match (waits(*max_wait, *max_waiting).filter(|_| can_delay), after) {
                    (Some(wait), Some(denied)) => Some(format!("{wait}; else {denied}")),
                    (wait, denied) => wait.or(denied),
                }
            }
            OverLimit::Divert(upstream) => {
                let upstream = self.upstreams.get(upstream.0).map_or("", |upstream| &upstream.name);
                Some(format!("passes, to the upstream {upstream}"))
            }
            OverLimit::Mark(header) => Some(format!("passes, and the upstream is told in {header}")),
        }
    }
}

/// `limit NAME (ALGORITHM, by KEY)`
pub fn heading(name: &str, algorithm: AlgorithmName, key: Option<&Key>) -> String {
    let by = key.map(|key| format!(", {}", key.describe()));
    format!("limit {name} ({}{})", algorithm.as_str(), by.unwrap_or_default())
}

impl Key {
    /// The key in plain words.
    pub fn describe(&self) -> String {
        match self.parts.as_slice() {
            [] => "one bucket for all".to_owned(),
            parts => {
                let parts: Vec<String> = parts.iter().map(|part| part.describe()).collect();
                format!("by {}", parts.join(" and "))
            }
        }
    }
}

impl Limit {
    /// The parameters for `plan`.
    pub fn describe(&self, plan: Option<PlanId>) -> String {
        let describe = |rule: &Rule| self.describe_rule(rule, self.floor(plan, rule));
        self.plan_rule(plan).map_or_else(|| UNLIMITED.to_owned(), describe)
    }

    /// The parameters `rule`, for requests that have to leave `floor` tokens for others.
    fn describe_rule(&self, rule: &Rule, floor: Cost) -> String {
        let words = rule.describe_above(floor);
        let burst = rule.largest_cost().unwrap_or(Cost::MAX);
        match self.mode.admitted(burst) {
            all if all == burst => words,
            admitted => format!("{words}; of the {burst} only {admitted} are admitted at once (`strict`)"),
        }
    }

    /// The marks from which on the limit warns clients; `None` if it never does.
    pub fn warns(&self) -> Option<String> {
        let (last, others) = self.warn_at.split_last()?;
        let others: Vec<String> = others.iter().map(|at| format!("{at} %")).collect();
        let marks = if others.is_empty() { format!("{last} %") } else { format!("{} and {last} %", others.join(", ")) };
        let whom = if self.is_visible() { "clients" } else { "nobody, and counts" };
        Some(format!("{whom} from {marks} of the quota on"))
    }
}

/// The parameters for each plan, and for requests without one.
fn terms(limit: &Limit, plans: &[String]) -> Vec<DescriptionLine> {
    let named = plans.iter().enumerate().map(|(index, plan)| (plan.clone(), limit.describe(Some(PlanId(index)))));
    named.chain(limit.without_plan.map(|_| (planless(plans).to_owned(), limit.describe(None)))).collect()
}

/// The name for requests without a plan, where the configuration has these `plans`.
pub const fn planless(plans: &[String]) -> &'static str {
    if plans.is_empty() { EVERYBODY } else { PLANLESS }
}

/// These lines, or a single one where all have the same description.
pub fn merged(mut lines: Vec<DescriptionLine>) -> Vec<DescriptionLine> {
    if lines.len() > 1 && lines.iter().all(|(_, words)| Some(words) == lines.first().map(|(_, words)| words)) {
        lines.truncate(1);
        lines.iter_mut().for_each(|(who, _)| EVERYBODY.clone_into(who));
    }
    lines
}

/// How gateways share a limit in this `mode`; `None` if they do not.
fn sharing(mode: Mode) -> Option<String> {
    let Mode::Shared(Sharing { consistency, on_store_down }) = mode else { return None };
    let how = match consistency {
        Consistency::Exact => "by all gateways, every request is decided in Redis",
        Consistency::Leased { strict: None } => "by all gateways, which take tokens ahead",
        Consistency::Leased { strict: Some(_) } => "by all gateways, which take tokens ahead that are held back",
        Consistency::Eventual => "by all gateways, which decide by themselves and tell each other",
    };
    let down = match on_store_down {
        OnStoreDown::Divide => "each gateway enforces its share",
        OnStoreDown::Local => "each gateway enforces the whole limit",
        OnStoreDown::Allow => "everything passes",
        OnStoreDown::Deny => "nothing passes",
    };
    Some(format!("{how}; while Redis is unavailable, {down}"))
}

/// How long requests wait; `None` if they do not.
pub fn waits(max_wait: Nanos, max_waiting: Option<u64>) -> Option<String> {
    let at_most = max_waiting.map(|max| format!(", at most {max} at a time")).unwrap_or_default();
    (max_wait > Nanos::ZERO).then(|| format!("wait up to {max_wait}{at_most}"))
}

/// The line about requests over a limit.
pub fn over_the_limit(words: String) -> DescriptionLine {
    (OVER_THE_LIMIT.to_owned(), words)
}

impl Jitter {
    /// How `Retry-After` is spread.
    pub fn describe(self) -> String {
        let max = match self {
            Self::Share(share) => percent(share),
            Self::Time(time) => time.to_string(),
        };
        format!("up to {max} later than a retry would be admitted, never earlier")
    }
}

fn percent(share: Share) -> String {
    format!("{} %", f64::from(share.0) / 10_000.0)
}

impl Denied {
    /// The settings of the answer; `None` if there are none.
    pub fn describe(&self) -> Option<String> {
        let status = self.status.map(|status| format!("status {status}"));
        let grpc_status = self.grpc_status.map(|status| format!("grpc-status {status}"));
        let body = self.body.as_ref().map(|body| match body {
            Body::Text(_) => "a body of its own".to_owned(),
            Body::Negotiated(bodies) => {
                let names: Vec<&str> = bodies.iter().map(|(content_type, _)| content_type.as_str()).collect();
                format!("a body of its own as {}", names.join(" or "))
            }
        });
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let headers = (!headers.is_empty()).then(|| format!("headers of its own ({})", headers.join(", ")));
        let parts: Vec<String> = [status, grpc_status, body, headers].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}
