//! What is said to the script and what it answers: pure functions from buckets to KEYS and ARGV, and from a reply to
//! what came of it.

use smallvec::SmallVec;

use crate::algorithm::{AllCharged, Charged, Decision, Headroom, LONGEST_DEBT, Manner, State};
use crate::store::redis::parameters::Shared;
use crate::store::redis::states;
use crate::units::{Cost, LimitKey, Nanos};

/// One limit's part in a call: `cost` tokens of the bucket `key`.
#[derive(Clone, Debug)]
pub struct Bucket<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The parameters that apply.
    pub rule: &'a Shared,
    /// Which bucket.
    pub key: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// What the limit does with the request.
    pub manner: Manner,
    /// What else has to be said.
    pub beside: Beside<'a>,
}

/// What has to be said of a bucket beside its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// For a charge or debit: the newest state that this node remembers of the bucket (see [`Answer::hint`]).
    Hint(&'a str),
    /// For a refund: when the key was going to be whole again as seen right after the charge, on Redis's clock.
    FullAt(Nanos),
    /// Of `concurrency`: the slot's name, which no other request of any node has. A partial charge takes slots that are
    /// called `name/1`, `name/2` and so on.
    Slot(&'a str),
}

/// What is to be done with the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Charge all, or none if any that binds denies.
    Charge,
    /// Charge all the same number of times, as often as all that bind admit, at most this often.
    Partial(u64),
    /// Charge all, whatever the limits say.
    Debit,
    /// Take charges back.
    Refund,
    /// A request has ended: give back its slots.
    Complete,
    /// A request goes on: keep its slots for another lifetime.
    Renew,
}

/// Whose time a call goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Redis's. `near` is this node's time, from which the ends of calendar units around are found; it may be a day off.
    Redis {
        /// This node's time.
        near: Nanos,
    },
    /// This time, for tests.
    Given(Nanos),
}

/// The buckets' names and everything else the script takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// KEYS
    pub keys: Vec<String>,
    /// ARGV
    pub arguments: Vec<String>,
}

/// A call that makes no sense, for which the caller is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Denials leave a trace, so how many there are matters.
    #[error("limit `{limit}` counts denied requests, so its requests cannot be charged together")]
    CountsDenied {
        /// The limit's name.
        limit: String,
    },
    /// Each takes time of a server that does nothing else meanwhile.
    #[error("{want} requests are more than can be charged together under limit `{limit}`; at most {MOST_AT_ONCE} are")]
    TooMany {
        /// The limit's name.
        limit: String,
        /// How many were wanted.
        want: u64,
    },
    /// A slot without a name could not be given back.
    #[error("a slot of limit `{limit}` needs a name of its own, of 1 to {LONGEST_SLOT} characters")]
    NoSlot {
        /// The limit's name.
        limit: String,
    },
    /// A refund without a time could pay out what time has made good.
    #[error("a refund of limit `{limit}` needs the time at which its key was going to be whole")]
    NoFullAt {
        /// The limit's name.
        limit: String,
    },
}

/// The most charges in a partial one of a rule that decides them one by one.
pub const MOST_AT_ONCE: u64 = 1_000;
/// The longest name of a slot in bytes.
pub const LONGEST_SLOT: usize = 64;

// === what is said ===

/// The name of a bucket's key: `prefix:{tag}:limit:algorithm:key`. Buckets of one `tag` lie in one slot of a cluster. The
/// parameters are no part of it, so a changed limit finds its keys again.
pub fn key_name(prefix: &str, tag: LimitKey, bucket: &Bucket<'_>) -> String {
    let algorithm = bucket.rule.rule().name().as_str();
    format!("{prefix}:{{{:032x}}}:{}:{algorithm}:{:032x}", tag.0, bucket.limit, bucket.key.0)
}

/// A call for these buckets, no two of which may have the same limit and key.
pub fn encode(
    call: Call,
    clock: Clock,
    prefix: &str,
    tag: LimitKey,
    buckets: &[Bucket<'_>],
) -> Result<Encoded, Refused> {
    let (name, want) = match call {
        Call::Charge => ("charge", 1),
        Call::Partial(want) => ("partial", want),
        Call::Debit => ("debit", 1),
        Call::Refund => ("refund", 1),
        Call::Complete => ("complete", 1),
        Call::Renew => ("renew", 1),
    };
    let (time, near) = match clock {
        Clock::Redis { near } => (String::new(), near),
        Clock::Given(now) => (padded(now), now),
    };
    let mut encoded = Encoded {
        keys: Vec::with_capacity(buckets.len()),
        arguments: Vec::with_capacity(buckets.len().saturating_mul(4).saturating_add(3)),
    };
    encoded.arguments.extend([name.to_owned(), time, want.to_string()]);
    for bucket in buckets {
        check(call, bucket)?;
        encoded.keys.push(key_name(prefix, tag, bucket));
        encoded.arguments.extend([
            bucket.rule.parameters().to_owned(),
            manner(bucket.manner).to_owned(),
            bucket.cost.to_string(),
            beside(call, near, bucket),
        ]);
    }
    Ok(encoded)
}

fn check(call: Call, bucket: &Bucket<'_>) -> Result<(), Refused> {
    let rule = bucket.rule.rule();
    let limit = || bucket.limit.to_owned();
    if let Call::Partial(want) = call {
        if rule.denials_count() {
            return Err(Refused::CountsDenied { limit: limit() });
        }
        if want > MOST_AT_ONCE && one_by_one(bucket.rule) {
            return Err(Refused::TooMany { limit: limit(), want });
        }
    }
    let slot_is_needed = rule.holds() && call != Call::Debit && bucket.manner.takes;
    let named = |name: &str| (1..=LONGEST_SLOT).contains(&name.len());
    if slot_is_needed && !matches!(bucket.beside, Beside::Slot(name) if named(name)) {
        return Err(Refused::NoSlot { limit: limit() });
    }
    if call == Call::Refund && !rule.holds() && !matches!(bucket.beside, Beside::FullAt(_)) {
        return Err(Refused::NoFullAt { limit: limit() });
    }
    Ok(())
}

/// Whether many charges are not the same as one of their sum, or one slot each.
fn one_by_one(rule: &Shared) -> bool {
    rule.rule().holds() || rule.parameters().starts_with(['m', 'x'])
}

const fn manner(manner: Manner) -> &'static str {
    match (manner.binds, manner.takes, manner.counts_denied) {
        (true, true, false) => "bt",
        (true, true, true) => "btd",
        (true, false, _) => "b",
        (false, true, false) => "t",
        (false, true, true) => "td",
        (false, false, _) => "",
    }
}

fn beside(call: Call, near: Nanos, bucket: &Bucket<'_>) -> String {
    match bucket.beside {
        Beside::FullAt(full_at) => padded(full_at),
        Beside::Slot(name) => name.to_owned(),
        Beside::Hint(hint) if call != Call::Refund && bucket.rule.calendar().is_none() => hint.to_owned(),
        Beside::Hint(_) | Beside::Nothing => ends_around(near, bucket.rule),
    }
}

/// The ends of the calendar units around a time, for one that may be a day off, or a unit ahead.
fn ends_around(near: Nanos, rule: &Shared) -> String {
    let Some(calendar) = rule.calendar() else { return String::new() };
    let mut ends = calendar.end(near.saturating_sub(LONGEST_DEBT));
    let mut text = ends.get().to_string();
    for _ in 0..3 {
        ends = calendar.end(ends);
        text.push_str(&format!(" {}", ends.get()));
    }
    text
}

/// The script cuts the seconds off by position.
fn padded(time: Nanos) -> String {
    format!("{:010}", time.get())
}

// === what is answered ===

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

/// A reply that the script does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// Not the number of fields.
    #[error("the reply has {found} fields, and {expected} belong there")]
    Length {
        /// How many belong there.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A field that is not of the right kind, or too long, or not in the form it should have.
    #[error("field {position} of the reply is not {expected}")]
    Field {
        /// Which one, from 0.
        position: usize,
        /// What belongs there.
        expected: &'static str,
    },
}

/// The longest text that the script answers with.
const LONGEST_TEXT: usize = 256;
/// Flags of a bucket.
const ADMITS: i64 = 1;
const HEALED: i64 = 2;

/// What the script answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When it was, on the clock of the call.
    pub now: Nanos,
    /// How many times all buckets were charged.
    pub granted: u64,
    /// How many buckets held what made no sense: it was set right where it said something, and forgotten where not.
    pub healed: usize,
    found: SmallVec<[Found; 2]>,
}

#[derive(Clone, Debug, PartialEq)]
struct Found {
    admits: bool,
    kept: Kept,
}

#[derive(Clone, Debug, PartialEq)]
enum Kept {
    /// A state: before a charge, after another change.
    State(Option<State>),
    /// What is said of a log, which stays where it is: as it is after the call.
    Log { retry_after: Option<Nanos>, headroom: Headroom },
}

impl Answer {
    /// Reads the reply to a call for `buckets`.
    pub fn parse(reply: &[Field<'_>], buckets: &[Bucket<'_>]) -> Result<Self, BadReply> {
        let expected = buckets.len().saturating_mul(2).saturating_add(2);
        if reply.len() != expected {
            return Err(BadReply::Length { expected, found: reply.len() });
        }
        let now = Nanos::new(number(reply, 0, "a time")?);
        let granted = number(reply, 1, "a number of charges")?;
        let mut answer = Self { now, granted, healed: 0, found: SmallVec::new() };
        for (bucket, position) in buckets.iter().zip((2..).step_by(2)) {
            let Some(Field::Integer(flags @ 0..=3)) = reply.get(position) else {
                return Err(BadReply::Field { position, expected: "a bucket's flags" });
            };
            let position = position + 1;
            let text = text(reply, position, "a bucket's state")?;
            let wrong = BadReply::Field { position, expected: "a bucket's state" };
            answer.healed += usize::from(flags & HEALED != 0);
            answer.found.push(Found { admits: flags & ADMITS != 0, kept: kept(bucket, text).ok_or(wrong)? });
        }
        Ok(answer)
    }

    /// What came of a [`Call::Charge`] of `buckets`.
    pub fn charged(&self, buckets: &[Bucket<'_>]) -> AllCharged {
        let passes = self.granted > 0;
        let all = buckets.iter().zip(&self.found);
        all.map(|(bucket, found)| match &found.kept {
            Kept::Log { retry_after, headroom } => told(bucket, found.admits, *retry_after, *headroom),
            Kept::State(before) => {
                let (charged, _) = self.charge(bucket, before.clone(), found.admits, passes, buckets.len() == 1);
                charged
            }
        })
        .collect()
    }

    /// What came of each of the requests of a [`Call::Partial`] of `buckets`, as if they had come one after the other:
    /// first those that were granted, then as many denied ones as are asked for.
    pub fn each<'a>(&'a self, buckets: &'a [Bucket<'a>]) -> impl Iterator<Item = AllCharged> + 'a {
        let mut states: SmallVec<[Option<State>; 2]> = self.found.iter().map(Found::state).collect();
        let mut position = 0_u64;
        std::iter::from_fn(move || {
            let passes = position < self.granted;
            position = position.saturating_add(1);
            let all = buckets.iter().zip(&self.found).zip(&mut states);
            let charged = all.map(|((bucket, found), state)| match &found.kept {
                Kept::Log { retry_after, headroom } => {
                    let admits = found.admits || (passes && bucket.manner.binds);
                    told(bucket, admits, *retry_after, *headroom)
                }
                Kept::State(_) => {
                    let admits = bucket.rule.rule().decide(state.clone(), bucket.cost, self.now).0.is_admitted();
                    let admits = admits || (passes && bucket.manner.binds);
                    let (charged, after) = self.charge(bucket, state.take(), admits, passes, false);
                    *state = after;
                    charged
                }
            });
            Some(charged.collect())
        })
    }

    /// Where the keys of `buckets` stand after a debit, a refund or the end of a request.
    pub fn headrooms(&self, buckets: &[Bucket<'_>]) -> SmallVec<[Headroom; 2]> {
        let all = buckets.iter().zip(&self.found);
        all.map(|(bucket, found)| match &found.kept {
            Kept::Log { headroom, .. } => *headroom,
            Kept::State(after) => bucket.rule.rule().headroom(after.as_ref(), self.now),
        })
        .collect()
    }

    /// What to remember of a bucket, to be said as [`Beside::Hint`] to a Redis that may have forgotten it: the state after
    /// a charge, under the parameters of `bucket`. `None` where a rule has no use for it, and of a fresh key.
    pub fn hint(&self, position: usize, bucket: &Bucket<'_>) -> Option<String> {
        let before = self.found.get(position).and_then(Found::state);
        let rule = bucket.rule.rule();
        let (charged, after) = rule.decide(before.clone(), bucket.cost, self.now);
        let passes = self.granted > 0 && charged.is_admitted() && bucket.manner.takes;
        let kept = if passes { after } else { before };
        states::tat(rule, &kept?)
    }

    /// What the script did with a bucket's state, done again. Where the two decide otherwise, which only rules in doubles
    /// can, what was done counts.
    fn charge(
        &self,
        bucket: &Bucket<'_>,
        before: Option<State>,
        admits: bool,
        passes: bool,
        alone: bool,
    ) -> (Charged, Option<State>) {
        let (rule, cost, manner) = (bucket.rule.rule(), bucket.cost, bucket.manner);
        let (decision, decided) = rule.decide(before.clone(), cost, self.now);
        let decision = match (admits, decision) {
            (true, Decision::Deny(_)) => Decision::ADMIT,
            (false, Decision::Admit { .. }) => Decision::later(Nanos::new(1)),
            (_, decision) => decision,
        };
        let denial_kept = !admits && (rule.denials_count() || (alone && !manner.counts_denied));
        let after = match manner.takes {
            true if (passes && admits) || denial_kept => decided,
            true if manner.counts_denied => rule.debit(before, cost, self.now),
            _ => before,
        };
        (Charged { decision, headroom: rule.headroom(after.as_ref(), self.now) }, after)
    }
}

impl Found {
    fn state(&self) -> Option<State> {
        match &self.kept {
            Kept::State(state) => state.clone(),
            Kept::Log { .. } => None,
        }
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

fn kept(bucket: &Bucket<'_>, text: &str) -> Option<Kept> {
    let rule = bucket.rule.rule();
    if !bucket.rule.parameters().starts_with('l') {
        let state = match text {
            "" => None,
            text => Some(states::parse(rule, text)?),
        };
        return Some(Kept::State(state));
    }
    let mut words = text.split(' ');
    let retry_after = match words.next()? {
        "-" => None,
        retry_after => Some(Nanos::new(retry_after.parse().ok()?)),
    };
    let mut number = || words.next()?.parse().ok();
    let headroom = Headroom {
        remaining: Some(number()?),
        until_more: Nanos::new(number()?),
        until_full: Nanos::new(number()?),
        measured_rate: None,
    };
    words.next().is_none().then_some(Kept::Log { retry_after, headroom })
}

fn text<'a>(reply: &[Field<'a>], position: usize, expected: &'static str) -> Result<&'a str, BadReply> {
    match reply.get(position) {
        Some(Field::Text(bytes)) if bytes.len() <= LONGEST_TEXT => {
            str::from_utf8(bytes).map_err(|_| BadReply::Field { position, expected })
        }
        _ => Err(BadReply::Field { position, expected }),
    }
}

fn number(reply: &[Field<'_>], position: usize, expected: &'static str) -> Result<u64, BadReply> {
    text(reply, position, expected)?.parse().map_err(|_| BadReply::Field { position, expected })
}
