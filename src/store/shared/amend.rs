//! Operators' changes of a key that Redis keeps.

use std::sync::Arc;

use crate::algorithm::grant;
use crate::charge::{AllCharged, Charge};
use crate::store::amend::{AmendError, Amendment};
use crate::store::redis::codec::key_name;
use crate::store::redis::{CallArgument, Encoded};
use crate::store::shared::calls::{CallFailure, CallResult, Change, Operation};
use crate::store::shared::limit::ChargePart;
use crate::store::shared::link::Script;
use crate::store::shared::{SharedLimit, SharedStore};
use crate::units::Cost;

/// The most charges that one grant refunds: each takes a call.
const MAX_CHARGES: usize = 100;

/// KEYS: the key to reset. It stays in Redis, empty, until its old expiry time, so that no gateway takes it for lost
/// and restores what the gateway remembers (`lua/driver.lua`, `lua/sliding.lua`).
const AFRESH: &str = "local key = KEYS[1]
local left, kind = redis.call('PTTL', key), redis.call('TYPE', key).ok
redis.call('DEL', key)
if left > 0 and kind == 'string' then
    redis.call('SET', key, ';;', 'PX', string.format('%.0f', left))
elseif left > 0 and kind == 'zset' then
    redis.call('ZADD', key, 0, '~0')
    redis.call('PEXPIRE', key, string.format('%.0f', left))
end
return {}";

impl SharedStore {
    /// Asks Redis to decide `charge`; `None` if Redis is unavailable, or if this gateway's counts have not all reached
    /// it.
    pub(in crate::store) async fn ask(self: &Arc<Self>, limit: &SharedLimit, charge: &Charge) -> Option<AllCharged> {
        let part = limit.part(charge)?;
        if limit.is_eventual() || self.is_unavailable(&part) {
            return None;
        }
        let outcome = self.call_charge(Operation::Charge, std::slice::from_ref(&part), 0).await.ok()?;
        outcome.each.into_iter().next()
    }

    /// See [`crate::store::Store::check_amendable`].
    pub(in crate::store) fn check_amendable(&self, limit: &SharedLimit, charge: &Charge) -> Result<(), AmendError> {
        self.amendable_part(limit, charge).map(drop)
    }

    fn amendable_part(&self, limit: &SharedLimit, charge: &Charge) -> Result<ChargePart, AmendError> {
        let part = limit.part(charge).filter(|part| !self.is_unavailable(part));
        part.ok_or(AmendError::RedisUnavailable)
    }

    /// See [`crate::store::Store::amend`].
    pub(in crate::store) async fn amend(
        self: &Arc<Self>,
        limit: &SharedLimit,
        charge: &Charge,
        amendment: Amendment,
    ) -> Result<(), AmendError> {
        let part = self.amendable_part(limit, charge)?;
        if !self.reconcile_keys_of(std::slice::from_ref(&part)).await {
            return Err(AmendError::RedisUnavailable);
        }
        if limit.is_eventual() {
            self.sync_all().await;
        }
        // drop this gateway's memory of the key first: it would take precedence over the amended state in Redis
        self.memory.forget(part.key);
        let done = match amendment {
            Amendment::ResetKey => self.begin_afresh(&part).await,
            Amendment::Grant(tokens) => self.grant(&part, tokens).await,
        };
        done.map_err(|_| AmendError::RedisUnavailable)?;
        self.counters.outdate(part.key);
        Ok(())
    }

    async fn begin_afresh(&self, part: &ChargePart) -> Result<(), CallFailure> {
        let name = key_name(&self.settings.prefix, &part.bucket(CallArgument::Nothing));
        let encoded = Encoded { keys: vec![name], arguments: Vec::new() };
        let replied = self.link.call(&Script::new(AFRESH), &encoded).await;
        replied.map(drop).map_err(|error| {
            self.log_failure(self.server(part), CallResult::of(&error), &error);
            CallFailure::from(&error)
        })
    }

    /// Refunds one charge with each call: the key's state after a call identifies the last charge that is left. The first call,
    /// a debit of nothing, reads the state.
    async fn grant(self: &Arc<Self>, part: &ChargePart, tokens: Cost) -> Result<(), CallFailure> {
        let (rule, nothing) = (part.rule(), ChargePart { cost: 0, ..part.clone() });
        let (mut seen, mut at) = self.call_change(Change::Debit, &[(&nothing, CallArgument::Nothing)]).await?;
        let mut left = Some(tokens);
        for _ in 0..MAX_CHARGES {
            let (Some(stands), Some(tokens)) = (seen.first(), left) else { break };
            let (headroom, before) = (stands.headroom(rule, at), stands.counted(rule, at));
            let refund = ChargePart { cost: rule.grantable(tokens, &headroom), ..part.clone() };
            let full_at = CallArgument::FullAt(at.saturating_add(headroom.until_full), None);
            (seen, at) = self.call_change(Change::Refund, &[(&refund, full_at)]).await?;
            left = grant::still_left(tokens, before, seen.first().and_then(|stands| stands.counted(rule, at)));
        }
        Ok(())
    }
}
