//! The script's replies, and the results that they stand for.

use smallvec::SmallVec;

use crate::algorithm::{Decision, Headroom, Rule, State};
use crate::charge::{AllCharged, Charged, Enforcement};
use crate::store::redis::codec::Bucket;
use crate::units::{Cost, Nanos};

/// One field of a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// An integer.
    Integer(i64),
    /// A string.
    Text(&'a [u8]),
    /// Anything else.
    Other,
}

/// A reply that the script never sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// The number of fields is wrong.
    #[error("the reply has {found} fields, expected {expected}")]
    Length {
        /// The correct number of fields.
        expected: usize,
        /// The number of fields in the reply.
        found: usize,
    },
    /// A field that is of the wrong kind, too long, or malformed.
    #[error("field {position} of the reply is not {expected}")]
    Field {
        /// The field's position, from 0.
        position: usize,
        /// The expected content.
        expected: &'static str,
    },
}

/// The longest text that the script replies with.
const MAX_TEXT: usize = 256;
/// The flags of a bucket.
const ADMITS: i64 = 1;
const HEALED: i64 = 2;
const FRESH: i64 = 4;

/// The state of a key after a call.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyState {
    /// The key's state; `None` if it is as good as new.
    State(Option<State>),
    /// A summary of a log, which stays in Redis.
    Log {
        /// The time until the call's charge would be admitted, if it was denied and can ever pass.
        retry_after: Option<Nanos>,
        /// The number of tokens in the log.
        counted: Cost,
        /// The headroom of the key.
        headroom: Headroom,
    },
}

/// The states of a call's buckets after it, in the call's order.
pub type AllSeen = SmallVec<[KeyState; 2]>;

/// See [`ScriptReply::each`].
pub struct RequestResults<'a> {
    reply: &'a ScriptReply,
    buckets: &'a [Bucket<'a>],
    seen: AllSeen,
    position: u64,
}

/// The script's reply.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptReply {
    /// The time of the call, on the call's clock.
    pub now: Nanos,
    /// The number of times that the script charged all buckets.
    pub granted: u64,
    /// The number of buckets with an invalid state: the script kept a valid part, and dropped the state otherwise.
    pub healed: usize,
    found: SmallVec<[Found; 2]>,
}

#[derive(Clone, Debug, PartialEq)]
struct Found {
    admits: bool,
    was_fresh: bool,
    /// The time until the key is fresh under other parameters, which keep its state, if the bucket denies.
    fresh_after: Option<Nanos>,
    /// The state before a charge, or after another change; a log after the call.
    state: KeyState,
}

impl KeyState {
    /// The headroom of the key, which was in this state under `rule` at `at`.
    pub fn headroom(&self, rule: &Rule, at: Nanos) -> Headroom {
        match self {
            Self::State(state) => rule.headroom(state.as_ref(), at),
            Self::Log { headroom, .. } => *headroom,
        }
    }

    /// [`Core::counted`](crate::algorithm::Core::counted) of the key, which was in this state under `rule` at `at`.
    pub fn counted(&self, rule: &Rule, at: Nanos) -> Option<Cost> {
        match self {
            Self::State(state) => rule.counted(state.as_ref()?, at),
            Self::Log { counted, .. } => Some(*counted),
        }
    }
}

impl ScriptReply {
    /// Reads the reply to a call for `buckets`.
    pub fn parse(fields: &[Field<'_>], buckets: &[Bucket<'_>]) -> Result<Self, BadReply> {
        let expected = buckets.len().saturating_mul(2).saturating_add(2);
        if fields.len() != expected {
            return Err(BadReply::Length { expected, found: fields.len() });
        }
        let now = Nanos::new(number(fields, 0, "a time")?);
        let granted = number(fields, 1, "a number of charges")?;
        let mut reply = Self { now, granted, healed: 0, found: SmallVec::new() };
        for (bucket, position) in buckets.iter().zip((2..).step_by(2)) {
            let Some(Field::Integer(flags @ 0..=7)) = fields.get(position) else {
                return Err(BadReply::Field { position, expected: "a bucket's flags" });
            };
            let position = position + 1;
            let text = text(fields, position, "a bucket's state")?;
            let wrong = BadReply::Field { position, expected: "a bucket's state" };
            reply.healed += usize::from(flags & HEALED != 0);
            let (text, fresh_after) = match text.split_once(';') {
                Some((text, time)) => (text, Some(Nanos::new(time.parse().map_err(|_| wrong)?))),
                None => (text, None),
            };
            let state = key_state(bucket, text).ok_or(wrong)?;
            let (admits, was_fresh) = (flags & ADMITS != 0, flags & FRESH != 0);
            reply.found.push(Found { admits, was_fresh, fresh_after, state });
        }
        Ok(reply)
    }

    /// The results of a [`Call::Charge`](super::Call::Charge) of `buckets`, and the states of the buckets after it.
    pub fn charged(&self, buckets: &[Bucket<'_>]) -> (AllCharged, AllSeen) {
        let passes = self.granted > 0;
        let all = buckets.iter().zip(&self.found);
        let (mut charged, seen): (AllCharged, AllSeen) = all
            .map(|(bucket, found)| match &found.state {
                KeyState::Log { retry_after, headroom, .. } => {
                    (told(bucket, found.admits, *retry_after, *headroom), found.state.clone())
                }
                KeyState::State(before) => {
                    let (charged, after) = self.charge(bucket, found, before.clone(), found.admits, passes);
                    (charged, KeyState::State(after))
                }
            })
            .unzip();
        // the question for a floor takes nothing itself, but its key may have been debited for the denied request
        for ((bucket, found), seen) in buckets.iter().zip(&self.found).zip(&seen) {
            let KeyState::State(after) = seen else { continue };
            let Enforcement { consumes, counts_denied, .. } = bucket.enforcement;
            let is_debited = consumes && counts_denied && !(passes && found.admits);
            let asks = |asked: &Bucket<'_>| {
                !asked.enforcement.consumes && (asked.limit, asked.key) == (bucket.limit, bucket.key)
            };
            for (asked, charged) in buckets.iter().zip(&mut charged).filter(|(asked, _)| is_debited && asks(asked)) {
                let rule = asked.rule.rule();
                charged.decision = rule.after_debit(charged.decision, after.as_ref(), asked.cost, self.now);
            }
        }
        (charged, seen)
    }

    /// The result of each request of a [`Call::Partial`](super::Call::Partial) of `buckets`, as if the requests had
    /// come one after the other: first the granted ones, then as many denied ones as the caller takes.
    pub fn each<'a>(&'a self, buckets: &'a [Bucket<'a>]) -> RequestResults<'a> {
        RequestResults { reply: self, buckets, seen: self.seen(), position: 0 }
    }

    /// The states of the buckets after a debit, a refund or the end of a request.
    pub fn seen(&self) -> AllSeen {
        self.found.iter().map(|found| found.state.clone()).collect()
    }

    /// For each bucket whether Redis had no state of it: it was never charged, or not since it was full again, or Redis
    /// has lost the state.
    pub fn was_fresh(&self) -> impl Iterator<Item = bool> {
        self.found.iter().map(|found| found.was_fresh)
    }

    /// Repeats the script's change of a bucket's state. Where the two decide differently, which only rules in doubles
    /// can, the script's decision counts.
    fn charge(
        &self,
        bucket: &Bucket<'_>,
        found: &Found,
        before: Option<State>,
        admits: bool,
        passes: bool,
    ) -> (Charged, Option<State>) {
        let (rule, cost, enforcement) = (bucket.rule.rule(), bucket.cost, bucket.enforcement);
        let (decision, decided) = rule.decide(before.clone(), cost, self.now);
        let decision = match (admits, decision) {
            (true, Decision::Deny(_)) => Decision::ADMIT,
            (false, Decision::Admit { .. }) => Decision::later(Nanos::new(1)),
            (_, decision) => decision,
        };
        let denial_kept = !admits && (rule.denials_count() || !enforcement.counts_denied);
        let (decision, after) = match enforcement.consumes {
            true if (passes && admits) || denial_kept => (decision, decided),
            true if enforcement.counts_denied => {
                let after = rule.debit(before, cost, self.now);
                (rule.after_debit(decision, after.as_ref(), cost, self.now), after)
            }
            _ => (decision, before),
        };
        let charged = Charged { decision, headroom: rule.headroom(after.as_ref(), self.now) };
        (found.fresh_after.map_or(charged, |time| charged.or_fresh_after(time)), after)
    }
}

impl Iterator for RequestResults<'_> {
    type Item = AllCharged;

    fn next(&mut self) -> Option<AllCharged> {
        let reply = self.reply;
        let passes = self.position < reply.granted;
        self.position = self.position.saturating_add(1);
        let all = self.buckets.iter().zip(&reply.found).zip(&mut self.seen);
        let charged = all.map(|((bucket, found), seen)| match seen {
            KeyState::Log { retry_after, headroom, .. } => {
                let admits = found.admits || (passes && bucket.enforcement.enforces);
                told(bucket, admits, *retry_after, *headroom)
            }
            KeyState::State(state) => {
                let admits = bucket.rule.rule().decide(state.clone(), bucket.cost, reply.now).0.is_admitted();
                let admits = admits || (passes && bucket.enforcement.enforces);
                let (charged, after) = reply.charge(bucket, found, state.take(), admits, passes);
                *state = after;
                charged
            }
        });
        Some(charged.collect())
    }
}

impl RequestResults<'_> {
    /// The states of the buckets after the requests that the caller took, and all other granted ones.
    pub fn into_seen(self) -> AllSeen {
        let RequestResults { reply, buckets, seen, position } = self;
        let others = reply.granted.saturating_sub(position);
        let all = buckets.iter().zip(seen).map(|(bucket, seen)| match seen {
            // all of these were admitted, so one debit of their sum gives the same state
            KeyState::State(state) if bucket.enforcement.consumes => {
                KeyState::State(bucket.rule.rule().debit(state, bucket.cost.saturating_mul(others), reply.now))
            }
            seen => seen,
        });
        all.collect()
    }
}

fn told(bucket: &Bucket<'_>, admits: bool, retry_after: Option<Nanos>, headroom: Headroom) -> Charged {
    let largest = bucket.rule.rule().largest_cost().unwrap_or(Cost::MAX);
    let decision = match (admits, retry_after) {
        (true, _) => Decision::ADMIT,
        (false, _) if bucket.cost > largest => Decision::never(largest),
        (false, retry_after) => Decision::later(retry_after.unwrap_or_default().max(Nanos::new(1))),
    };
    Charged { decision, headroom }
}

fn key_state(bucket: &Bucket<'_>, text: &str) -> Option<KeyState> {
    let rule = bucket.rule.rule();
    if !bucket.rule.is_log() {
        let state = match text {
            "" => None,
            text => Some(rule.read_shared(text)?),
        };
        return Some(KeyState::State(state));
    }
    let mut words = text.split(' ');
    let retry_after = match words.next()? {
        "-" => None,
        retry_after => Some(Nanos::new(retry_after.parse().ok()?)),
    };
    let mut number = || words.next()?.parse().ok();
    let headroom =
        Headroom { remaining: Some(number()?), until_more: Nanos::new(number()?), until_full: Nanos::new(number()?) };
    let counted = number()?;
    words.next().is_none().then_some(KeyState::Log { retry_after, counted, headroom })
}

fn text<'a>(fields: &[Field<'a>], position: usize, expected: &'static str) -> Result<&'a str, BadReply> {
    match fields.get(position) {
        Some(Field::Text(bytes)) if bytes.len() <= MAX_TEXT => {
            str::from_utf8(bytes).map_err(|_| BadReply::Field { position, expected })
        }
        _ => Err(BadReply::Field { position, expected }),
    }
}

fn number(fields: &[Field<'_>], position: usize, expected: &'static str) -> Result<u64, BadReply> {
    text(fields, position, expected)?.parse().map_err(|_| BadReply::Field { position, expected })
}

#[cfg(test)]
mod tests;
