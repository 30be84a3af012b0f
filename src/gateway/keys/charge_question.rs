//! Charges for programs that are not proxies: the gateway makes all charges of a question, or none.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FoundKey, KeyAnswer, KeyContext, KeyQuestion, KeyQuestionError, KeyQuestionJson, KeySelector, parts};
use crate::algorithm::Decision;
use crate::charge::{Charge, Enforcement};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::request_context::is_logged;
use crate::gateway::respond;
use crate::ruleset::Ruleset;
use crate::ruleset::verdict::Verdict;
use crate::store::{AmendError, Amendment};
use crate::telemetry::logging::ACCESS;
use crate::units::Nanos;

/// The maximum number of limits in one question.
const MAX_LIMITS: usize = 32;

/// A question that charges keys, or refunds such charges. No `Debug`: a request may hold credentials.
pub struct ChargeQuestion(Vec<(KeyQuestion, i64)>);

/// The question, as `POST /v1/charge` takes it in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct ChargeQuestionJson {
    charges: Vec<KeyQuestionJson>,
}

/// The result of a question.
#[derive(Clone, Debug, Serialize)]
pub struct ChargeAnswer {
    /// Whether all charges were made; otherwise none was.
    pub admitted: bool,
    /// The limit that denies for longest.
    pub denied_by: Option<String>,
    /// The time after which the charges would be admitted; null if they are, or if no wait helps.
    pub retry_after_seconds: Option<f64>,
    /// The time to wait before going on, if a limit admits with a wait.
    pub wait_seconds: f64,
    /// The standing of each key now; a key to which its limit does not apply has none.
    pub charges: Vec<KeyAnswer>,
}

/// A question that failed.
struct FailedQuestion {
    /// The refunds that were made before it failed, as the access log shows them.
    made: String,
    error: KeyQuestionError,
}

impl From<KeyQuestionError> for FailedQuestion {
    /// A question that failed before any refund.
    fn from(error: KeyQuestionError) -> Self {
        Self { made: logged(&[]), error }
    }
}

impl ChargeQuestion {
    /// Answers the question in the JSON text `body`: charges keys at `gateway`, or gives tokens back. Counts the answer.
    pub async fn answer(body: &[u8], gateway: &Gateway) -> Result<ChargeAnswer, KeyQuestionError> {
        let answer = match Self::from_json(body) {
            Ok(question) => question.charge(gateway).await,
            Err(bad) => Err(bad.into()),
        };
        answer.map_err(|FailedQuestion { made, error }| {
            let active = gateway.active.load();
            active.meters.count_answer("charge", "refused");
            if is_logged(active.ruleset.access_log, true) {
                tracing::info!(target: ACCESS, charges = made, decision = "refused");
            }
            error
        })
    }

    fn from_json(text: &[u8]) -> Result<Self, KeyQuestionError> {
        let written: ChargeQuestionJson =
            serde_json::from_slice(text).map_err(|error| KeyQuestionError::Charges(error.to_string()))?;
        Self::new(written.charges)
    }

    /// Reads the charges of a line in the access log: a list as in a question.
    pub fn from_log(text: &str) -> Result<Self, KeyQuestionError> {
        Self::new(serde_json::from_str(text).map_err(|error| KeyQuestionError::Charges(error.to_string()))?)
    }

    fn new(charges: Vec<KeyQuestionJson>) -> Result<Self, KeyQuestionError> {
        let wrong = |problem: String| Err(KeyQuestionError::Charges(problem));
        let Some(tokens) = charges.iter().map(|one| one.tokens).collect::<Option<Vec<i64>>>() else {
            return wrong("missing field `tokens`".to_owned());
        };
        if charges.is_empty() || charges.len() > MAX_LIMITS {
            return wrong(format!("there are {} charges, not 1 to {MAX_LIMITS}", charges.len()));
        }
        if tokens.iter().any(|tokens| *tokens < 0) && tokens.iter().any(|tokens| *tokens >= 0) {
            return wrong(
                "some charges take tokens and others give them back: send them in separate requests".to_owned(),
            );
        }
        let is_twice = |one: &&KeyQuestionJson| charges.iter().filter(|other| other.limit == one.limit).count() > 1;
        if let Some(one) = charges.iter().find(is_twice) {
            return wrong(format!("the limit {:?} is named twice", one.limit));
        }
        let questions = charges.into_iter().map(KeyQuestion::new).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(questions.into_iter().zip(tokens).collect()))
    }

    /// Charges the keys at `gateway`, or gives tokens back.
    async fn charge(&self, gateway: &Gateway) -> Result<ChargeAnswer, FailedQuestion> {
        let active = gateway.active.load_full();
        let found = self.resolve(gateway, &active).await?;
        // only now: the look-up of a credential may have taken long
        let now = gateway.clock.now();
        let verdict = match found.iter().any(|(_, tokens)| *tokens < 0) {
            true => refund_keys(gateway, &active, &found, now).await?,
            false => charge_keys(gateway, &active, &found, now).await?,
        };
        let answer = answer_of(&verdict, &found, gateway, &active).await;
        let decision = if answer.admitted { "admitted" } else { "denied" };
        active.meters.count_answer("charge", decision);
        if is_logged(active.ruleset.access_log, !answer.admitted) {
            tracing::info!(target: ACCESS, charges = logged(&found), decision, limit = answer.denied_by);
        }
        Ok(answer)
    }

    /// Finds the keys that the question names.
    async fn resolve(
        &self,
        gateway: &Gateway,
        active: &ActiveConfig,
    ) -> Result<Vec<(FoundKey, i64)>, KeyQuestionError> {
        let mut found = Vec::with_capacity(self.0.len());
        for (question, tokens) in &self.0 {
            found.push((question.find(gateway, active).await?, *tokens));
        }
        let holds_slots = |charge: &Charge| active.ruleset.limits[charge.limit].algorithm.holds_slots();
        match found.iter().any(|(key, _)| key.charge.as_ref().is_ok_and(holds_slots)) {
            true => Err(AmendError::Holds.into()),
            false => Ok(found),
        }
    }

    /// The parts of the key that the question names for a limit.
    pub fn named_parts(&self, limit: &str) -> &[(String, String)] {
        match self.0.iter().find(|(question, _)| question.limit == limit).map(|(question, _)| &question.selector) {
            Some(KeySelector::Parts { key, .. }) => key,
            Some(KeySelector::Request(_)) | None => &[],
        }
    }

    /// The charges under the limits and to the customers of `context` that these limits apply to, each with its tokens;
    /// `None` if a limit counts running requests, or if a key is named by a request, which no log line does.
    pub fn charges(&self, context: &KeyContext<'_>) -> Option<Vec<(Charge, i64)>> {
        let mut charges = Vec::with_capacity(self.0.len());
        for (question, tokens) in &self.0 {
            let KeySelector::Parts { key, plan } = &question.selector else { return None };
            let id = question.limit(context.ruleset).ok()?;
            if context.ruleset.limits[id.0].algorithm.holds_slots() {
                return None;
            }
            if let Ok(charge) = parts::find(context, id, key, plan.as_deref()).ok()?.charge {
                charges.push((charge_of(context.ruleset, &charge, *tokens), *tokens));
            }
        }
        Some(charges)
    }
}

/// Gives tokens back to the keys to which their limits apply. No limit denies that.
async fn refund_keys(
    gateway: &Gateway,
    active: &ActiveConfig,
    found: &[(FoundKey, i64)],
    now: Nanos,
) -> Result<Verdict, FailedQuestion> {
    for (position, (key, tokens)) in found.iter().enumerate() {
        let Ok(charge) = &key.charge else { continue };
        let grant = Amendment::Grant(tokens.unsigned_abs());
        match gateway.store.amend(&active.binding, charge, grant, now).await {
            // a full table keeps what it has, and the answer shows the key's standing
            Ok(()) | Err(AmendError::TableFull) => {}
            Err(unamended) => {
                let made = logged(found.get(..position).unwrap_or(&[]));
                return Err(FailedQuestion { made, error: unamended.into() });
            }
        }
    }
    Ok(Verdict::unlimited())
}

/// Charges all keys to which their limits apply, or none. Limits that do not apply to their keys admit every charge.
async fn charge_keys(
    gateway: &Gateway,
    active: &ActiveConfig,
    found: &[(FoundKey, i64)],
    now: Nanos,
) -> Result<Verdict, KeyQuestionError> {
    let ruleset = &active.ruleset;
    let charge = |(key, tokens): &(FoundKey, i64)| Some(charge_of(ruleset, key.charge.as_ref().ok()?, *tokens));
    let mut batch: Vec<Charge> = found.iter().filter_map(charge).collect();
    let receipt = gateway.store.charge(&active.binding, &mut batch, now).await;
    match receipt.failed_closed {
        Some(_) => Err(AmendError::RedisUnavailable.into()),
        None => Ok(Verdict::new(ruleset, &batch, &receipt.charged)),
    }
}

/// The answer to a question about these keys, whose charges got this verdict.
async fn answer_of(
    verdict: &Verdict,
    found: &[(FoundKey, i64)],
    gateway: &Gateway,
    active: &ActiveConfig,
) -> ChargeAnswer {
    let mut charges = Vec::with_capacity(found.len());
    for (key, _) in found {
        if let Ok(charge) = &key.charge {
            charges.push(key.answer(charge, gateway, active).await);
        }
    }
    let (admitted, retry_after, wait) = match verdict.outcome {
        Decision::Admit { wait } => (true, None, wait),
        Decision::Deny(denial) => (false, respond::retry_after(denial), Nanos::ZERO),
    };
    let denying = verdict.tightest.filter(|_| !admitted).and_then(|position| verdict.standings.get(position));
    ChargeAnswer {
        admitted,
        denied_by: denying.map(|standing| active.ruleset.limits[standing.limit.0].name.clone()),
        retry_after_seconds: retry_after.map(Nanos::as_secs_f64),
        wait_seconds: wait.as_secs_f64(),
        charges,
    }
}

/// The charge of `tokens` to the key of `charge`; it consumes only if `tokens` is above 0.
fn charge_of(ruleset: &Ruleset, charge: &Charge, tokens: i64) -> Charge {
    let limit = &ruleset.limits[charge.limit];
    let consumes = tokens > 0;
    let enforcement =
        Enforcement { enforces: limit.enforces(), consumes, counts_denied: consumes && limit.charge.denied };
    Charge { cost: tokens.unsigned_abs().max(1), enforcement, ..charge.clone() }
}

/// The charges as a line of the access log shows them, with secret values masked.
fn logged(found: &[(FoundKey, i64)]) -> String {
    let json = |(found, tokens): &(FoundKey, i64)| KeyQuestionJson {
        limit: found.limit.clone(),
        key: found.key.iter().map(|part| (part.part.clone(), part.value.clone())).collect(),
        plan: found.plan.clone(),
        request: Value::Null,
        tokens: Some(*tokens),
    };
    let json = serde_json::to_string(&found.iter().map(json).collect::<Vec<_>>());
    json.unwrap_or_else(|error| error.to_string())
}
