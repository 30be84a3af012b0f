//! What programs that are no proxies take under limits: all of a question or nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BadKey, KeyAnswer, KeyQuestion};
use crate::charge::{Charge, Enforcement};
use crate::gateway::Gateway;
use crate::gateway::respond;
use crate::ruleset::verdict::{Outcome, Verdict};
use crate::store::{Amendment, Unamended};
use crate::units::Nanos;

/// The most limits that one question is about.
const MOST_LIMITS: usize = 32;

/// A question that charges keys, or gives back what they were charged. No `Debug`: a request may hold credentials.
pub struct ChargeQuestion(Vec<(KeyQuestion, i64)>);

/// As `POST /v1/charge` takes it in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeQuestionJson {
    charges: Vec<ChargeJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeJson {
    limit: String,
    #[serde(default)]
    key: Value,
    plan: Option<String>,
    #[serde(default)]
    request: Value,
    /// 0 asks and takes nothing; what is below 0 is given back.
    tokens: i64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct ChargeAnswer {
    /// Whether all was taken; nothing was otherwise.
    pub admitted: bool,
    /// The limit that denies for longest.
    pub denied_by: Option<String>,
    /// After which time it would be admitted; null where it is, and where no wait helps.
    pub retry_after_seconds: Option<f64>,
    /// How long to wait before going on, where a limit admits with a wait.
    pub wait_seconds: f64,
    /// Where each key stands now.
    pub charges: Vec<KeyAnswer>,
}

impl ChargeQuestion {
    /// Reads a question that is written as JSON.
    pub fn from_json(text: &[u8]) -> Result<Self, BadKey> {
        let written: ChargeQuestionJson =
            serde_json::from_slice(text).map_err(|error| BadKey::Charges(error.to_string()))?;
        let charges = written.charges;
        let signs = [charges.iter().any(|one| one.tokens < 0), charges.iter().any(|one| one.tokens >= 0)];
        let is_twice = |one: &ChargeJson| charges.iter().filter(|other| other.limit == one.limit).count() > 1;
        if charges.is_empty() || charges.len() > MOST_LIMITS {
            return Err(BadKey::Charges(format!("there are {} charges, not 1 to {MOST_LIMITS}", charges.len())));
        }
        if signs == [true, true] {
            return Err(BadKey::Charges(
                "some tokens are taken and others given back: ask one after the other".to_owned(),
            ));
        }
        if let Some(one) = charges.iter().find(|one| is_twice(one)) {
            return Err(BadKey::Charges(format!("the limit {:?} is there twice", one.limit)));
        }
        let question = |ChargeJson { limit, key, plan, request, tokens }| {
            Ok((KeyQuestion { limit, named: super::named(key, request, plan)?, tokens: None }, tokens))
        };
        Ok(Self(charges.into_iter().map(question).collect::<Result<_, BadKey>>()?))
    }

    /// Charges the keys at `gateway`, or gives back.
    pub async fn charge(&self, gateway: &Gateway) -> Result<Result<ChargeAnswer, Unamended>, BadKey> {
        let active = gateway.active.load_full();
        let (ruleset, now) = (&active.ruleset, gateway.clock.now());
        let mut found = Vec::with_capacity(self.0.len());
        for (question, tokens) in &self.0 {
            found.push((question.find(gateway, &active).await?, *tokens));
        }
        if found.iter().any(|(found, _)| ruleset.limits[found.charge.limit].algorithm.holds()) {
            return Ok(Err(Unamended::Holds));
        }
        let (mut outcome, mut denied_by) = (Outcome::Admit { wait: Nanos::ZERO }, None);
        if found.iter().any(|(_, tokens)| *tokens < 0) {
            for (found, tokens) in &found {
                let grant = Amendment::Grant(tokens.unsigned_abs());
                if let Err(unamended) = gateway.store.amend(&active.binding, &found.charge, grant, now).await {
                    return Ok(Err(unamended));
                }
            }
        } else {
            let charge = |(found, tokens): &(super::Found, i64)| {
                let limit = &ruleset.limits[found.charge.limit];
                let consumes = *tokens > 0;
                let counts_denied = consumes && limit.charge.denied;
                let enforcement = Enforcement { enforces: limit.enforces(), consumes, counts_denied };
                Charge { cost: tokens.unsigned_abs().max(1), enforcement, ..found.charge.clone() }
            };
            let mut batch: Vec<Charge> = found.iter().map(charge).collect();
            let receipt = gateway.store.charge(&active.binding, &mut batch, now).await;
            if receipt.refused.is_some() {
                return Ok(Err(Unamended::Away));
            }
            let verdict = Verdict::new(ruleset, &batch, &receipt.charged);
            outcome = verdict.outcome;
            let tightest = verdict.tightest.and_then(|position| verdict.standings.get(position));
            denied_by = tightest.map(|standing| ruleset.limits[standing.limit.0].name.clone());
        }
        let mut charges = Vec::with_capacity(found.len());
        for (found, _) in &found {
            charges.push(found.answer(gateway, &active).await);
        }
        let (admitted, retry_after, wait) = match outcome {
            Outcome::Admit { wait } => (true, None, wait),
            Outcome::Deny(denial) => (false, respond::retry_after(denial), Nanos::ZERO),
        };
        active.meters.decided("charge", if admitted { "admitted" } else { "denied" });
        Ok(Ok(ChargeAnswer {
            admitted,
            denied_by: denied_by.filter(|_| !admitted),
            retry_after_seconds: retry_after.map(Nanos::as_secs_f64),
            wait_seconds: wait.as_secs_f64(),
            charges,
        }))
    }
}
