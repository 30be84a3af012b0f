//! One key of one limit, as operators name it: by its parts, or by a request that is counted under it. Reading its standing
//! takes no tokens; tokens are given back through the rule of the limit's algorithm.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::charge::{Charge, Enforcement};
use crate::customers::directory::GroupTable;
use crate::customers::{Customer, Directory};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::explain::{Explanation, KeyPartValue, LimitStanding, Question, QuestionError};
use crate::gateway::respond::{CREDENTIAL_EXPIRED, SUSPENDED};
use crate::gateway::upstream::Pool;
use crate::ruleset::key::KeyHasher;
use crate::ruleset::words::LimitTerms;
use crate::ruleset::{LimitId, Ruleset};
use crate::store::{AmendError, Amendment};
use crate::units::Nanos;

mod charge_question;
mod parts;

pub use charge_question::{ChargeAnswer, ChargeQuestion};

/// A question about a key. No `Debug`: a request may hold credentials.
pub struct KeyQuestion {
    limit: String,
    selector: KeySelector,
    tokens: Option<i64>,
}

/// The name of a key: its parts, or a request.
enum KeySelector {
    Parts { key: Vec<(String, String)>, plan: Option<String> },
    Request(Box<Question>),
}

/// Why a question about a key cannot be answered. Holds no value of a request's header field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyQuestionError {
    /// The text is not a question about a key.
    #[error(
        "{0}; a key is named like {{\"limit\": \"per-customer\", \"key\": {{\"customer\": \"acme\"}}}}, with \"plan\" beside it where the key does not determine the plan, or by \"request\" in place of \"key\", as /v1/explain takes it"
    )]
    Json(String),
    /// The charges of a question are not valid.
    #[error(
        "{0}; a question is written like {{\"charges\": [{{\"limit\": \"mails\", \"key\": {{\"customer\": \"acme\"}}, \"tokens\": 5}}]}}: 0 tokens only ask, a negative number gives tokens back"
    )]
    Charges(String),
    /// The request that names the key is not valid.
    #[error("{0}")]
    Request(#[from] QuestionError),
    /// There is no such limit.
    #[error("there is no limit {limit:?}; {known}")]
    NoLimit {
        /// The limit that was asked for.
        limit: String,
        /// The limits that exist, in words.
        known: String,
    },
    /// The named parts are not those of the limit's key.
    #[error("{problem}; the key of the limit {limit} is made of: {parts}")]
    Parts {
        /// The limit.
        limit: String,
        /// The parts of its keys.
        parts: String,
        /// The problem, in words.
        problem: String,
    },
    /// A part cannot have such a value.
    #[error("{part} = {value:?}: {problem}")]
    Value {
        /// The part.
        part: String,
        /// The value that was asked for.
        value: String,
        /// The problem, in words.
        problem: String,
    },
    /// It is unknown which parameters apply, or the named plan does not exist.
    #[error("{0}")]
    Plan(String),
    /// The limit does not apply to the key.
    #[error("the limit {limit} does not apply: {why}")]
    NotApplicable {
        /// The limit.
        limit: String,
        /// The reason.
        why: String,
    },
    /// The number of tokens is missing, or 0.
    #[error("say how many tokens to give back, as \"tokens\": a whole number above 0")]
    Tokens,
    /// The key cannot be changed.
    #[error("{0}")]
    Amend(#[from] AmendError),
}

/// The standing of a key, with the parameters that apply to it.
#[derive(Clone, Debug, Serialize)]
pub struct KeyAnswer {
    /// The limit.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// `sticky` or `shared`.
    pub mode: &'static str,
    /// The parts of the key, masked if they may be secret; empty if all requests share one bucket.
    pub key: Vec<KeyPartValue>,
    /// The plan whose parameters apply.
    pub plan: Option<String>,
    /// The parameters, in words.
    pub terms: String,
    /// The most that can be admitted at once.
    pub quota: u64,
    /// The time in which a used-up quota becomes full again.
    pub window_seconds: Option<f64>,
    /// The standing of the key, as a request of one token meets it.
    pub standing: LimitStanding,
    /// The time for which this gateway still bans the key; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_for_seconds: Option<f64>,
    /// Why requests of the key's customer or group are refused before any limit is asked, as the access log names it:
    /// `suspended`, or `credential_expired` if none of the customer's credentials is valid; absent if they are not, or if
    /// neither is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<&'static str>,
    /// The source of the standing.
    pub decided: &'static str,
    /// The standing before the change; absent if the key was only asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<LimitStanding>,
}

/// The data that is needed to find a named key.
#[derive(Clone, Copy)]
pub struct KeyContext<'c> {
    /// The hasher that makes keys.
    pub hasher: &'c KeyHasher,
    /// The limits.
    pub ruleset: &'c Ruleset,
    /// The customers.
    pub directory: &'c Directory,
    /// The groups of customers.
    pub groups: &'c GroupTable,
    /// The upstreams' nodes; only a running gateway knows them.
    pub pools: Option<&'c [Arc<Pool>]>,
}

/// A key that was found, and its description.
struct FoundKey {
    limit: String,
    key: Vec<KeyPartValue>,
    plan: Option<String>,
    /// The customer that the key names, if the directory lists it.
    customer: Option<Arc<Customer>>,
    /// Whether the group that the key names is suspended.
    is_group_suspended: bool,
    /// A charge to the key, or the reason why the limit does not apply to it.
    charge: Result<Charge, String>,
}

/// A question about a key as `POST /v1/keys/...` takes it in JSON, and a charge as `POST /v1/charge` does.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct KeyQuestionJson {
    /// The limit.
    pub limit: String,
    /// An object of the key's parts.
    #[serde(default, deserialize_with = "distinct_parts", skip_serializing_if = "Value::is_null")]
    pub key: Value,
    /// The plan whose parameters apply, where the gateway cannot tell from the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// In place of `key`, a [`RequestJson`](crate::gateway::explain::RequestJson). The type accepts any value, because serde's
    /// error message would show a wrong one.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub request: Value,
    /// The number of tokens to grant; of a charge the tokens to take: 0 only asks, and a number below 0 is given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
}

impl KeyQuestion {
    /// Reads a question that is written as JSON.
    pub fn from_json(text: &[u8]) -> Result<Self, KeyQuestionError> {
        Self::new(serde_json::from_slice(text).map_err(|error| KeyQuestionError::Json(error.to_string()))?)
    }

    fn new(KeyQuestionJson { limit, key, plan, request, tokens }: KeyQuestionJson) -> Result<Self, KeyQuestionError> {
        Ok(Self { limit, selector: key_selector(key, request, plan)?, tokens })
    }

    /// The grant that the question asks for.
    pub fn grant(&self) -> Result<Amendment, KeyQuestionError> {
        match self.tokens {
            Some(tokens @ 1..) => Ok(Amendment::Grant(tokens.unsigned_abs())),
            _ => Err(KeyQuestionError::Tokens),
        }
    }

    /// The standing of the key at `gateway`. Takes no tokens.
    pub async fn peek(&self, gateway: &Gateway) -> Result<KeyAnswer, KeyQuestionError> {
        let active = gateway.active.load_full();
        let found = self.find(gateway, &active).await?;
        Ok(found.answer(found.charge()?, gateway, &active).await)
    }

    /// Changes the key, and returns its standing after the change, with the one before.
    pub async fn amend(&self, gateway: &Gateway, amendment: Amendment) -> Result<KeyAnswer, KeyQuestionError> {
        let active = gateway.active.load_full();
        let found = self.find(gateway, &active).await?;
        let charge = found.charge()?;
        let before = found.answer(charge, gateway, &active).await.standing;
        gateway.store.amend(&active.binding, charge, amendment, gateway.clock.now()).await?;
        if amendment == Amendment::ResetKey {
            gateway.bans.lift(charge, gateway.clock.now());
        }
        let after = found.answer(charge, gateway, &active).await;
        Ok(KeyAnswer { before: Some(before), ..after })
    }

    /// Lifts the ban of the key at `gateway`, and returns its standing afterwards; `None` if the gateway did not ban it.
    pub async fn unban(&self, gateway: &Gateway) -> Result<Option<KeyAnswer>, KeyQuestionError> {
        let active = gateway.active.load_full();
        let found = self.find(gateway, &active).await?;
        let charge = found.charge()?;
        match gateway.bans.lift(charge, gateway.clock.now()) {
            true => Ok(Some(found.answer(charge, gateway, &active).await)),
            false => Ok(None),
        }
    }

    async fn find(&self, gateway: &Gateway, active: &ActiveConfig) -> Result<FoundKey, KeyQuestionError> {
        let id = self.limit(&active.ruleset)?;
        match &self.selector {
            KeySelector::Parts { key, plan } => {
                let (ruleset, directory, groups) = (&active.ruleset, &active.directory, &active.groups);
                let pools = Some(&*active.pools);
                let context = KeyContext { hasher: &gateway.hasher, ruleset, directory, groups, pools };
                parts::find(&context, id, key, plan.as_deref())?.of_plan(plan.as_deref().or(parts::plan_in(key)))
            }
            KeySelector::Request(question) => {
                let charge = Explanation::charge_under_limit(gateway, active, question, id).await;
                let limit = self.limit.clone();
                match charge {
                    Ok((key, charge, plan)) => {
                        let charge = charge.map(peek_charge);
                        Ok(FoundKey { limit, key, plan, customer: None, is_group_suspended: false, charge })
                    }
                    Err(why) => Err(KeyQuestionError::NotApplicable { limit, why }),
                }
            }
        }
    }

    fn limit(&self, ruleset: &Ruleset) -> Result<LimitId, KeyQuestionError> {
        const MAX_NAMED: usize = 20;
        let limits = &ruleset.limits;
        let found = limits.iter().position(|limit| limit.name == self.limit && limit.candidate_of.is_none());
        found.map(LimitId).ok_or_else(|| {
            let names = limits.iter().filter(|limit| limit.candidate_of.is_none()).map(|limit| limit.name.as_str());
            let some: Vec<&str> = names.take(MAX_NAMED).collect();
            let known = match some.as_slice() {
                [] => "there are none".to_owned(),
                some => format!("there are: {}", some.join(", ")),
            };
            KeyQuestionError::NoLimit { limit: self.limit.clone(), known }
        })
    }
}

impl FoundKey {
    /// Refuses a `named` plan that is not the one of the key's owner.
    fn of_plan(self, named: Option<&str>) -> Result<Self, KeyQuestionError> {
        match (named, self.plan.as_deref()) {
            (Some(named), Some(plan)) if named != plan => Err(KeyQuestionError::Plan(format!(
                "the plan of this key's owner is {plan}, not {named}: leave the plan out"
            ))),
            _ => Ok(self),
        }
    }

    /// Why all requests of the key's customer or group are refused at `now`, before any limit is asked.
    fn refused(&self, active: &ActiveConfig, now: Nanos) -> Option<&'static str> {
        if self.is_group_suspended {
            return Some(SUSPENDED);
        }
        let customer = self.customer.as_ref()?;
        // a token of the customer is good without any credential in the directory, unless this entry is suspended
        let takes_tokens = active.ruleset.customers.as_ref().is_some_and(|rules| rules.jwt().is_some());
        if !customer.suspended && (takes_tokens || customer.is_valid_at(now)) {
            return None;
        }
        let all = active.directory.table().map(|table| table.all_named(&customer.name)).unwrap_or_default();
        let mut valid = all.iter().filter(|customer| customer.is_valid_at(now)).peekable();
        match valid.peek() {
            None if !takes_tokens => Some(CREDENTIAL_EXPIRED),
            _ => valid.all(|customer| customer.suspended).then_some(SUSPENDED),
        }
    }

    /// The charge to the key. `Err`: the limit does not apply to it.
    fn charge(&self) -> Result<&Charge, KeyQuestionError> {
        let not_applicable =
            |why: &String| KeyQuestionError::NotApplicable { limit: self.limit.clone(), why: why.clone() };
        self.charge.as_ref().map_err(not_applicable)
    }

    /// The standing of the key, to which `charge` goes.
    async fn answer(&self, charge: &Charge, gateway: &Gateway, active: &ActiveConfig) -> KeyAnswer {
        let limit = &active.ruleset.limits[charge.limit];
        let rule = limit.rule(&charge.rule);
        let now = gateway.clock.now();
        let mut asked = charge.clone();
        let receipt = gateway.store.ask(&active.binding, &mut asked, now).await;
        let LimitTerms { words, quota, window } = LimitTerms::of(limit, rule, charge.floor);
        KeyAnswer {
            limit: self.limit.clone(),
            algorithm: limit.algorithm.as_str(),
            mode: if limit.mode.is_shared() { "shared" } else { "sticky" },
            key: self.key.clone(),
            plan: self.plan.clone(),
            terms: words,
            quota,
            window_seconds: window.map(Nanos::as_secs_f64),
            standing: LimitStanding::of_only_charge(&receipt.charged, &asked, rule, now),
            banned_for_seconds: gateway.bans.remaining(&active.ruleset, charge, now).map(Nanos::as_secs_f64),
            refused: self.refused(active, gateway.clock.wall_at(now)),
            decided: receipt.source.as_str(),
            before: None,
        }
    }
}

/// A charge that only asks about the bucket of `charge`, for one token.
fn peek_charge(charge: Charge) -> Charge {
    Charge { cost: 1, enforcement: Enforcement::DRY_RUN, ..charge }
}

/// The name of a key, by its parts in `key` or by a `request`.
fn key_selector(key: Value, request: Value, plan: Option<String>) -> Result<KeySelector, KeyQuestionError> {
    match (key, request) {
        (Value::Null, Value::Object(request)) => {
            let question = Question::from_json(Value::Object(request).to_string().as_bytes())?;
            Ok(KeySelector::Request(Box::new(question)))
        }
        (Value::Object(key), Value::Null) => Ok(KeySelector::Parts { key: texts(key)?, plan }),
        (Value::Null, Value::Null) => Ok(KeySelector::Parts { key: Vec::new(), plan }),
        _ => Err(KeyQuestionError::Json("give either `key` or `request`, as an object".to_owned())),
    }
}

/// Reads the parts of a key, or null. serde_json itself would keep the last of two values for a part. The error message
/// replaces serde's, which would show a wrong value.
fn distinct_parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    struct DistinctParts(Map<String, Value>);

    impl<'de> Deserialize<'de> for DistinctParts {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Self(Map::new()))
        }
    }

    impl<'de> Visitor<'de> for DistinctParts {
        type Value = Self;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut parts: A) -> Result<Self, A::Error> {
            while let Some((part, value)) = parts.next_entry()? {
                if self.0.insert(part, value).is_some() {
                    return Err(A::Error::custom("a part is named twice"));
                }
            }
            Ok(self)
        }
    }

    let parts = Option::<DistinctParts>::deserialize(deserializer);
    let parts = parts.map_err(|_| D::Error::custom("`key` is not an object that names each part once"))?;
    Ok(parts.map_or(Value::Null, |DistinctParts(parts)| Value::Object(parts)))
}

fn texts(key: Map<String, Value>) -> Result<Vec<(String, String)>, KeyQuestionError> {
    let text = |(part, value)| match value {
        Value::String(text) => Ok((part, text)),
        _ => Err(KeyQuestionError::Json(format!("the value of the part {part:?} is not a text"))),
    };
    key.into_iter().map(text).collect()
}
