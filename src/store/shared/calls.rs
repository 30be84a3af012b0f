//! Calls to Redis: their arguments, their timeouts, and what this gateway learns from the replies.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::timeout;

use crate::charge::AllCharged;
use crate::store::redis::codec::hash_tag;
use crate::store::redis::{AllSeen, Bucket, Call, CallArgument, Clock, Encoded, ScriptReply, encode};
use crate::store::shared::breaker::Health;
use crate::store::shared::limit::{ChargePart, slot_name};
use crate::store::shared::link::{CallError, Reply};
use crate::store::shared::memory::CachedState;
use crate::store::shared::{CallEvent, SharedStore};
use crate::units::Nanos;

/// What a call to Redis is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Requests wait to be charged.
    Charge,
    /// Counts costs that were not known before, and what Redis has lost.
    Debit,
    /// Charges after an outage, and asks before that; waits no longer than requests do.
    Reconcile,
    /// Syncs the counts of this gateway.
    Sync,
    /// Gives back what requests did not use.
    Refund,
    /// Frees the slot of a request that has ended.
    Complete,
    /// Keeps the slots of requests that run.
    Renew,
    /// Tells that this gateway is there.
    Heartbeat,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 8] = [
        Self::Charge,
        Self::Debit,
        Self::Reconcile,
        Self::Sync,
        Self::Refund,
        Self::Complete,
        Self::Renew,
        Self::Heartbeat,
    ];

    /// The operation's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Debit => "debit",
            Self::Reconcile => "reconcile",
            Self::Sync => "sync",
            Self::Refund => "refund",
            Self::Complete => "complete",
            Self::Renew => "renew",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// A change of states that the script makes whatever the limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Debit,
    /// Debits what this gateway has counted.
    Sync,
    Refund,
    Complete,
    Renew,
}

impl Change {
    const fn operation_and_call(self) -> (Operation, Call) {
        match self {
            Self::Debit => (Operation::Debit, Call::Debit),
            Self::Sync => (Operation::Sync, Call::Debit),
            Self::Refund => (Operation::Refund, Call::Refund),
            Self::Complete => (Operation::Complete, Call::Complete),
            Self::Renew => (Operation::Renew, Call::Renew),
        }
    }
}

/// The result of a call, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallResult {
    /// Redis answered.
    Ok,
    /// There was no connection, or it broke.
    Failed,
    /// Redis refused the call.
    Refused,
    /// The reply did not fit the call.
    Invalid,
    /// Redis did not answer in time.
    TimedOut,
}

impl CallResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::Refused, Self::Invalid, Self::TimedOut];

    /// The result of a call that failed with `error`.
    pub(super) const fn of(error: &CallError) -> Self {
        match error {
            CallError::Unreachable(_) | CallError::Broken(_) => Self::Failed,
            CallError::Refused(_) | CallError::Moving(_) => Self::Refused,
            CallError::InvalidReply(_) => Self::Invalid,
            CallError::TimedOut => Self::TimedOut,
        }
    }

    /// The result's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "error",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
            Self::TimedOut => "timeout",
        }
    }
}

/// What became of a call without a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// Redis has not run it.
    NotRun,
    /// Redis may have run it, or may run it later.
    MayHaveRun,
}

impl From<&CallError> for CallFailure {
    fn from(error: &CallError) -> Self {
        match error {
            CallError::Unreachable(_) | CallError::Refused(_) | CallError::Moving(_) => Self::NotRun,
            CallError::Broken(_) | CallError::InvalidReply(_) | CallError::TimedOut => Self::MayHaveRun,
        }
    }
}

/// The outcome of a call that charges.
pub(super) struct ChargeOutcome {
    /// The result of each request that was charged in this call, granted requests first.
    pub(super) each: Vec<AllCharged>,
    /// The number of granted requests.
    pub(super) granted: u64,
    /// The time of the charge, on Redis's clock.
    pub(super) at: Nanos,
}

/// The time after which a reply is of no use: the connection is then closed.
const CALL_TIME: Nanos = Nanos::SECOND;
/// The interval in which at most one failed call of a kind is logged for each server.
const QUIET: Nanos = Nanos::from_secs(10);

impl SharedStore {
    /// Charges `parts` for one request; `slot` is the number of its slot, if a limit needs one.
    pub(super) async fn call_charge(
        self: &Arc<Self>,
        operation: Operation,
        parts: &[ChargePart],
        slot: u64,
    ) -> Result<ChargeOutcome, CallFailure> {
        let slot = slot_name(self.id, slot);
        let known = self.known(parts);
        let repairs = repair_states(&known);
        let buckets = buckets(parts, &slot, &repairs);
        let reply = self.call(operation, Call::Charge, &buckets).await?;
        let (charged, seen) = reply.charged(&buckets);
        self.learn(parts, seen, reply.now);
        self.read_repair(parts, &known, &reply);
        Ok(ChargeOutcome { each: vec![charged], granted: reply.granted, at: reply.now })
    }

    /// Charges `parts` for up to `want` identical requests; returns the results of the first `results`.
    pub(super) async fn call_partial(
        self: &Arc<Self>,
        parts: &[ChargePart],
        want: u64,
        results: usize,
    ) -> Result<ChargeOutcome, CallFailure> {
        let known = self.known(parts);
        let repairs = repair_states(&known);
        let buckets = buckets(parts, "", &repairs);
        let reply = self.call(Operation::Charge, Call::Partial(want), &buckets).await?;
        let mut all = reply.each(&buckets);
        let each: Vec<AllCharged> = all.by_ref().take(results).collect();
        self.learn(parts, all.into_seen(), reply.now);
        self.read_repair(parts, &known, &reply);
        Ok(ChargeOutcome { each, granted: reply.granted, at: reply.now })
    }

    /// Changes the states of `parts`, each with its additional argument.
    pub(super) async fn call_change(
        self: &Arc<Self>,
        change: Change,
        parts: &[(&ChargePart, CallArgument<'_>)],
    ) -> Result<(AllSeen, Nanos), CallFailure> {
        let (operation, call) = change.operation_and_call();
        let changed = || parts.iter().map(|(part, _)| *part);
        let known = (call == Call::Debit).then(|| self.known(changed()));
        let buckets: Vec<Bucket<'_>> = parts.iter().map(|(part, call_argument)| part.bucket(*call_argument)).collect();
        let reply = self.call(operation, call, &buckets).await?;
        let all = reply.seen();
        for ((part, seen), was_fresh) in changed().zip(&all).zip(reply.was_fresh()) {
            // a refund does not restore a key that Redis has lost: the next charge does
            let is_lost = call == Call::Refund && was_fresh && self.memory.used(part, reply.now) > 0;
            if !is_lost {
                self.memory.remember(part, seen.clone(), reply.now);
            }
        }
        if let Some(known) = known {
            self.read_repair(changed(), &known, &reply);
        }
        Ok((all, reply.now))
    }

    /// Calls Redis, and notes how long that took and what Redis's clock says.
    async fn call(&self, operation: Operation, call: Call, buckets: &[Bucket<'_>]) -> Result<ScriptReply, CallFailure> {
        let sent = self.clock.now();
        // all buckets of one call are in one slot
        let slot = buckets.first().map_or(0, |bucket| self.link.slot(bucket.tag));
        let near = self.redis_clocks.redis_time(slot, sent);
        let server = self.link.server(slot);
        let encoded = encode(call, Clock::Redis { near }, &self.settings.prefix, buckets);
        let encoded = encoded.map_err(|refused| {
            self.log_failure(server, CallResult::Refused, &refused);
            CallFailure::NotRun
        })?;
        let replied = self.reply(operation, &encoded, server, buckets).await;
        let received = self.clock.now();
        let took = received.saturating_sub(sent);
        let (result, reply) = match replied {
            Ok(reply) => match ScriptReply::parse(&reply.fields(), buckets) {
                Ok(reply) => (CallResult::Ok, Ok(reply)),
                Err(bad) => {
                    self.log_failure(server, CallResult::Invalid, &bad);
                    (CallResult::Invalid, Err(CallFailure::MayHaveRun))
                }
            },
            Err(error) => {
                if error == CallError::TimedOut && took >= CALL_TIME {
                    self.link.close(server);
                }
                self.log_failure(server, CallResult::of(&error), &error);
                (CallResult::of(&error), Err(CallFailure::from(&error)))
            }
        };
        (self.observer)(CallEvent { operation, result, took, charges: call.charges() });
        let reply = reply?;
        self.redis_clocks.learn(slot, (sent, received), reply.now);
        self.record_call_time(took);
        if reply.healed > 0 {
            self.counts.healed.fetch_add(u64::try_from(reply.healed).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Ok(reply)
    }

    /// The reply of `server` to a call, which is waited for even where it is late: Redis may have changed the buckets.
    /// Tells the server's breaker as soon as its health is known.
    async fn reply(
        &self,
        operation: Operation,
        encoded: &Encoded,
        server: usize,
        buckets: &[Bucket<'_>],
    ) -> Result<Reply, CallError> {
        let tag = || buckets.first().map(|bucket| hash_tag(bucket.tag)).unwrap_or_default();
        let record = |health, failure| self.record_call(server, tag, (health, failure));
        let call = timeout(CALL_TIME.to_duration(), self.link.call(&self.script, encoded));
        let mut replied = pin!(async { call.await.unwrap_or(Err(CallError::TimedOut)) });
        match timeout(self.settings.timeout.to_duration(), &mut replied).await {
            Ok(replied) => {
                record(health(&replied), failure(&replied));
                replied
            }
            // no request waits for a sync, so only its failure counts
            Err(_) if operation == Operation::Sync => {
                let replied = replied.await;
                if health(&replied) == Health::Failed {
                    record(Health::Failed, failure(&replied));
                }
                replied
            }
            Err(_) => {
                record(Health::Late, None);
                let changes = buckets.iter().any(|bucket| bucket.enforcement.consumes);
                // a question can be asked again
                if operation == Operation::Reconcile && !changes { Err(CallError::TimedOut) } else { replied.await }
            }
        }
    }

    /// Adds the duration of a call to the running mean.
    fn record_call_time(&self, time: Nanos) {
        let mean = self.call_time.load(Ordering::Relaxed);
        let next = mean.saturating_sub(mean / 8).saturating_add(time.get() / 8);
        self.call_time.store(next, Ordering::Relaxed);
    }

    fn learn(&self, parts: &[ChargePart], all: AllSeen, at: Nanos) {
        parts.iter().zip(all).for_each(|(part, state)| self.memory.remember(part, state, at));
    }

    /// Charges Redis again with the tokens that it has lost: for keys that Redis did not find but that were in use when
    /// this gateway asked (`known`). Later replies do not count, since they may include later charges.
    fn read_repair<'p>(
        self: &Arc<Self>,
        parts: impl IntoIterator<Item = &'p ChargePart>,
        known: &[Option<CachedState>],
        reply: &ScriptReply,
    ) {
        for ((part, known), was_fresh) in parts.into_iter().zip(known).zip(reply.was_fresh()) {
            if !was_fresh || !part.enforcement.consumes || part.rule().holds_slots() {
                continue;
            }
            let forgotten = known.as_ref().map_or(0, |known| known.used(part, reply.now));
            if forgotten > 0 {
                let (gateway, forgotten) = (Arc::clone(self), ChargePart { cost: forgotten, ..part.clone() });
                self.spawn_background(async move {
                    // a failed repair loses nothing more: Redis had already lost these tokens
                    drop(gateway.call_change(Change::Debit, &[(&forgotten, CallArgument::Nothing)]).await);
                });
            }
        }
    }

    /// The states of `parts` that this gateway remembers, in case Redis has lost them.
    pub(super) fn known<'p>(
        &self,
        parts: impl IntoIterator<Item = &'p ChargePart>,
    ) -> SmallVec<[Option<CachedState>; 2]> {
        parts.into_iter().map(|part| self.memory.known(part)).collect()
    }

    /// Logs the failure of a call to `server`, unless one of the same kind was logged a moment ago.
    pub(super) fn log_failure(&self, server: usize, result: CallResult, error: &dyn std::fmt::Display) {
        let now = self.clock.now();
        let is_news = {
            let mut quiet_until = self.counts.quiet_until.lock();
            let until = quiet_until.entry((server, result)).or_default();
            let is_news = now >= *until;
            if is_news {
                *until = now.saturating_add(QUIET);
            }
            is_news
        };
        if is_news {
            let server = self.link.server_name(server);
            tracing::warn!(server, %error, result = result.as_str(), "a call to Redis failed");
        }
    }
}

/// The health that a reply shows.
const fn health(replied: &Result<Reply, CallError>) -> Health {
    match replied {
        // a cluster that moves keys is healthy
        Ok(_) | Err(CallError::Moving(_)) => Health::InTime,
        Err(_) => Health::Failed,
    }
}

/// Why a call got no reply, if it did not.
fn failure(replied: &Result<Reply, CallError>) -> Option<String> {
    replied.as_ref().err().map(CallError::to_string)
}

/// The counters that calls share.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Invalid states in Redis that the script repaired or dropped.
    pub(super) healed: AtomicU64,
    /// Tokens that this gateway admitted without Redis and that its bucket lacked when it recovered.
    pub(super) overshoot: AtomicU64,
    /// The time until which failures of a kind are not logged, for each server.
    quiet_until: Mutex<HashMap<(usize, CallResult), Nanos>>,
}

/// The states of `known`, for calls that restore what Redis has lost.
pub(super) fn repair_states(known: &[Option<CachedState>]) -> SmallVec<[Option<String>; 2]> {
    known.iter().map(|known| known.as_ref()?.repair_state()).collect()
}

fn buckets<'a>(parts: &'a [ChargePart], slot: &'a str, repairs: &'a [Option<String>]) -> SmallVec<[Bucket<'a>; 2]> {
    let all = parts.iter().zip(repairs);
    all.map(|(part, repair)| {
        part.bucket(match part.rule().holds_slots() {
            true => CallArgument::Slot(slot),
            false => CallArgument::repair_state(repair.as_deref()),
        })
    })
    .collect()
}
