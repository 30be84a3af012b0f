//! Parameters that a request carries for itself: in a claim of its caller's token, or in a header field that a trusted
//! proxy wrote. A limit accepts them within the bounds that its configuration sets.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;
use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::algorithm::{Rule, Value};
use crate::ruleset::key::{Claims, Facts};
use crate::units::{Nanos, Rate};

/// The most different sets of parameters that requests may carry for one limit, since each takes memory for good. Further
/// sets are ignored: their requests have the parameters of their plan.
pub const MAX_RULES: usize = 10_000;

/// The parameters that a limit accepts from requests.
#[derive(Clone, Debug, Default)]
pub struct RequestOverrides {
    parameters: Vec<RequestParameter>,
    /// The rules built so far; `None` where the values change nothing or do not make a valid rule.
    known: Arc<RwLock<HashMap<Brought, Option<Arc<Rule>>>>>,
}

/// A rule of a limit's list, to which the parameters of requests are applied.
#[derive(Clone, Copy, Debug)]
pub struct PlanRule<'a> {
    /// The position in the list.
    pub position: usize,
    /// The name of the time zone in which the rule is, where that is the owner's own.
    pub zone: Option<&'a Arc<str>>,
    /// The rule, in that time zone.
    pub rule: &'a Rule,
}

/// One parameter that requests may carry.
#[derive(Clone, Debug)]
pub struct RequestParameter {
    /// The name of the algorithm's parameter.
    pub name: &'static str,
    /// The place in the request.
    pub source: ParameterSource,
    /// The values that are accepted.
    pub bounds: Bounds,
}

/// The place of a parameter in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterSource {
    /// In this claim of its token.
    JwtClaim(String),
    /// In this header field, if a trusted proxy sent the request.
    Header(HeaderName),
}

/// The values of a parameter that are accepted: a value outside the bounds counts as the nearest bound.
#[derive(Clone, Debug)]
pub enum Bounds {
    /// A whole number.
    Whole {
        /// The smallest number.
        min: u64,
        /// The largest number.
        max: u64,
    },
    /// A rate.
    Rate {
        /// The slowest rate, if there is a bound.
        min: Option<Rate>,
        /// The fastest rate.
        max: Rate,
        /// The period of a value that is a number without a time.
        per: Nanos,
        /// The parser for rates like `100/s`.
        read: fn(&str) -> Option<Rate>,
    },
}

/// The identity of a rule that a request carries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Brought {
    /// The position of the plan's rule.
    position: usize,
    /// The name of the owner's time zone, where the rule depends on it.
    zone: Option<Arc<str>>,
    /// For each parameter that a request may carry two numbers that identify its value; zeros where the request has none.
    values: SmallVec<[u64; 4]>,
}

impl RequestOverrides {
    /// Overrides by these parameters.
    pub fn new(parameters: Vec<RequestParameter>) -> Self {
        Self { parameters, known: Arc::default() }
    }

    /// Whether requests may carry no parameters.
    pub const fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// Whether some of the parameters are in the caller's token, and so known only after it is verified.
    pub fn need_token(&self) -> bool {
        self.parameters.iter().any(|parameter| matches!(parameter.source, ParameterSource::JwtClaim(_)))
    }

    /// The request's own rule; `None` where it has that of its `plan`.
    pub fn rule(&self, plan: PlanRule<'_>, facts: &Facts<'_>, claims: Option<&dyn Claims>) -> Option<Arc<Rule>> {
        let values: SmallVec<[Option<Value>; 2]> =
            self.parameters.iter().map(|parameter| parameter.value(facts, claims)).collect();
        if values.iter().all(Option::is_none) {
            return None;
        }
        let PlanRule { position, zone, rule } = plan;
        let brought = Brought { position, zone: zone.cloned(), values: values.iter().flat_map(numbers).collect() };
        if let Some(known) = self.known.read().get(&brought) {
            return known.clone();
        }
        let own = self.applied(rule, &values).filter(|own| own != rule).map(Arc::new);
        let mut known = self.known.write();
        if known.len() >= MAX_RULES {
            return None;
        }
        known.entry(brought).or_insert(own).clone()
    }

    /// The rules that result from `rule` with any of the parameters at their bounds. Errors: the name of a parameter whose
    /// bound makes no valid rule.
    pub fn extremes(&self, rule: &Rule) -> Result<Vec<Rule>, &'static str> {
        let mut extremes = Vec::new();
        let mut combinations: Vec<Vec<Option<Value>>> = vec![vec![None; self.parameters.len()]];
        for (position, parameter) in self.parameters.iter().enumerate() {
            for mut values in combinations.clone() {
                for value in parameter.bounds.ends() {
                    values[position] = Some(value);
                    extremes.push(self.applied(rule, &values).ok_or(parameter.name)?);
                    combinations.push(values.clone());
                }
            }
        }
        Ok(extremes)
    }

    fn applied(&self, rule: &Rule, values: &[Option<Value>]) -> Option<Rule> {
        let mut arguments = rule.arguments();
        for (parameter, value) in self.parameters.iter().zip(values) {
            value.iter().for_each(|value| arguments.set(parameter.name, value.clone()));
        }
        rule.name().build(&arguments).ok().map(Rule::canonical)
    }
}

impl RequestParameter {
    /// The value in a request, within the bounds; `None` where it is missing or unreadable, or its field comes twice.
    fn value(&self, facts: &Facts<'_>, claims: Option<&dyn Claims>) -> Option<Value> {
        match &self.source {
            ParameterSource::JwtClaim(claim) => self.bounds.read(&claims?.number(claim)?),
            ParameterSource::Header(name) => {
                let mut lines = facts.headers.get_all(name.as_str()).filter(|_| facts.from_trusted_proxy);
                let (line, other) = (lines.next()?, lines.next());
                if other.is_some() { None } else { self.bounds.read(str::from_utf8(line).ok()?) }
            }
        }
    }
}

impl Bounds {
    fn read(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Self::Whole { min, max } => Some(Value::Whole(whole(text)?.clamp(*min, *max))),
            Self::Rate { min, max, per, read } => {
                let (tokens, time) = text.split_once('/').map_or((text, None), |(tokens, time)| (tokens, Some(time)));
                let exact = time.map_or_else(|| Rate::new(whole(text)?, *per), |_| read(text));
                // a rate holds neither zero tokens nor any number of them
                let bounded = exact.or_else(|| {
                    let one = time.map_or_else(|| Rate::new(1, *per), |time| read(&format!("1/{time}")))?;
                    Some(if whole(tokens)? == 0 { min.unwrap_or(one) } else { *max })
                })?;
                let slowest = min.filter(|min| bounded.compare(*min) == Ordering::Less).unwrap_or(bounded);
                Some(Value::Rate(if slowest.compare(*max) == Ordering::Greater { *max } else { slowest }))
            }
        }
    }

    fn ends(&self) -> Vec<Value> {
        match self {
            Self::Whole { min, max } => vec![Value::Whole(*min), Value::Whole(*max)],
            Self::Rate { min, max, .. } => min.iter().chain([max]).copied().map(Value::Rate).collect(),
        }
    }
}

/// A whole number in decimal digits; one that its type does not hold counts as the nearest that it holds.
fn whole(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| if digits == text { text.parse().unwrap_or(u64::MAX) } else { 0 })
}

fn numbers(value: &Option<Value>) -> [u64; 2] {
    match value {
        Some(Value::Whole(number)) => [*number, 1],
        Some(Value::Rate(rate)) => [rate.tokens(), rate.period().get()],
        _ => [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{AlgorithmName, Arguments};
    use crate::fields::Fields;

    #[test]
    fn requests_beyond_the_bound_go_by_their_plan_and_earlier_ones_stay() {
        let rate = Rate::new(1, Nanos::SECOND).unwrap();
        let arguments = Arguments::from([("rate", Value::Rate(rate)), ("burst", Value::Whole(1))]);
        let rule = AlgorithmName::Gcra.build(&arguments).unwrap();
        let source = ParameterSource::Header(HeaderName::from_static("x-burst"));
        let bounds = Bounds::Whole { min: 1, max: 1_000_000 };
        let overrides = RequestOverrides::new(vec![RequestParameter { name: "burst", source, bounds }]);
        let largest = |burst: usize| {
            let mut headers = Fields::default();
            headers.push("x-burst", burst.to_string());
            let facts = Facts { from_trusted_proxy: true, ..Facts::of(&headers) };
            overrides.rule(PlanRule { position: 0, zone: None, rule: &rule }, &facts, None)?.largest_cost()
        };
        assert_eq!(largest(1), None, "the plan's own");
        for burst in 2..=MAX_RULES {
            assert_eq!(largest(burst), u64::try_from(burst).ok());
        }
        assert_eq!((largest(MAX_RULES + 1), largest(MAX_RULES)), (None, Some(10_000)));
    }
}
