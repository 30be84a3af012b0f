//! The encoding of a call: from buckets to KEYS and ARGV.

use crate::algorithm::MAX_DEBT;
use crate::charge::Enforcement;
use crate::store::redis::SharedRule;
use crate::units::{Cost, LimitKey, Nanos};

/// One limit's part in a call: `cost` tokens of the bucket `key`.
#[derive(Clone, Debug)]
pub struct Bucket<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The parameters that apply.
    pub rule: &'a SharedRule,
    /// The bucket's key.
    pub key: LimitKey,
    /// The tag, which is the same for all buckets in one slot of a cluster.
    pub tag: LimitKey,
    /// The number of tokens.
    pub cost: Cost,
    /// The effects that the limit has on the request.
    pub enforcement: Enforcement,
    /// The additional argument.
    pub call_argument: CallArgument<'a>,
}

/// The argument of a bucket in addition to its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallArgument<'a> {
    /// Nothing.
    Nothing,
    /// For a charge or debit: the newest state that this gateway remembers of the bucket (see
    /// [`Rule::repair_state`](crate::algorithm::Rule::repair_state)).
    RepairState(&'a str),
    /// For a debit of charges that were made since a time on Redis's clock (see
    /// [`Rule::charged_since`](crate::algorithm::Rule::charged_since)), with a repair state.
    Since(Nanos, Option<&'a str>),
    /// For a refund: the time at which the key was going to be full again, seen right after the charge, on Redis's clock;
    /// with the repair state of before the refund.
    FullAt(Nanos, Option<&'a str>),
    /// For `concurrency`: the slot's name, unique among all requests of all gateways. A partial charge takes the slots
    /// `name/1`, `name/2` and so on.
    Slot(&'a str),
}

impl<'a> CallArgument<'a> {
    /// A repair state, if there is one.
    pub fn repair_state(repair: Option<&'a str>) -> Self {
        repair.map_or(Self::Nothing, Self::RepairState)
    }
}

/// The operation on the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Charge all, or none if an enforcing one denies.
    Charge,
    /// Charge all the same number of times: as often as all enforcing limits admit, at most this often.
    Partial(u64),
    /// Charge all, whatever the limits say.
    Debit,
    /// Refund charges.
    Refund,
    /// Give back the slots of a request that has ended.
    Complete,
    /// Keep the slots of a running request for another lifetime.
    Renew,
}

impl Call {
    /// The number of requests that the call is to charge; `None` if it does not charge.
    pub const fn charges(self) -> Option<u64> {
        match self {
            Self::Charge => Some(1),
            Self::Partial(requests) => Some(requests),
            Self::Debit | Self::Refund | Self::Complete | Self::Renew => None,
        }
    }
}

/// The clock of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Redis's clock. `near` is this gateway's time, which selects the ends of calendar units around it; it may be a
    /// day off.
    Redis {
        /// This gateway's time.
        near: Nanos,
    },
    /// A given time, for tests.
    Given(Nanos),
}

/// The names of the buckets' keys, and all other arguments of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// KEYS
    pub keys: Vec<String>,
    /// ARGV
    pub arguments: Vec<String>,
}

/// An invalid call: a bug of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Denials change the state, so their number matters.
    #[error("limit `{limit}` counts denied requests, so its requests cannot be charged together")]
    CountsDenied {
        /// The limit's name.
        limit: String,
    },
    /// Each request takes time of a server that does nothing else meanwhile.
    #[error("{want} requests are more than can be charged together under limit `{limit}`; at most {MAX_AT_ONCE} are")]
    TooMany {
        /// The limit's name.
        limit: String,
        /// The number of requests in the call.
        want: u64,
    },
    /// A slot without a name could not be released.
    #[error("a slot of limit `{limit}` needs a name of its own, of 1 to {MAX_SLOT_NAME} characters")]
    NoSlot {
        /// The limit's name.
        limit: String,
    },
    /// Without a time, a refund could return tokens that time has refilled already.
    #[error("a refund of limit `{limit}` needs the time at which its key was going to be whole")]
    NoFullAt {
        /// The limit's name.
        limit: String,
    },
}

/// The most charges in one partial call, for a rule that decides each of them by itself.
pub const MAX_AT_ONCE: u64 = 1_000;
/// The longest name of a slot in bytes.
pub const MAX_SLOT_NAME: usize = 64;

/// The name of a bucket's key: `prefix:{tag}:limit:algorithm:key`. Buckets of one `tag` are in one slot of a cluster.
/// The name does not contain the parameters, so a changed limit finds its keys again.
pub fn key_name(prefix: &str, bucket: &Bucket<'_>) -> String {
    let algorithm = bucket.rule.rule().name().as_str();
    format!("{prefix}:{{{}}}:{}:{algorithm}:{:032x}", hash_tag(bucket.tag), bucket.limit, { bucket.key.0 })
}

/// The text in the braces of a key's name, which alone selects its slot.
pub fn hash_tag(tag: LimitKey) -> String {
    format!("{:032x}", { tag.0 })
}

/// Encodes a call for these buckets; one that consumes tokens is the last one of its limit and key. In a cluster they share
/// one slot.
pub fn encode(call: Call, clock: Clock, prefix: &str, buckets: &[Bucket<'_>]) -> Result<Encoded, Refused> {
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
        encoded.keys.push(key_name(prefix, bucket));
        encoded.arguments.extend([
            bucket.rule.parameters().to_owned(),
            enforcement(bucket.enforcement).to_owned(),
            bucket.cost.to_string(),
            call_argument(call, near, bucket),
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
        if want > MAX_AT_ONCE && bucket.rule.is_charged_one_by_one() {
            return Err(Refused::TooMany { limit: limit(), want });
        }
    }
    let slot_is_needed = rule.holds_slots() && call != Call::Debit && bucket.enforcement.consumes;
    let named = |name: &str| (1..=MAX_SLOT_NAME).contains(&name.len());
    if slot_is_needed && !matches!(bucket.call_argument, CallArgument::Slot(name) if named(name)) {
        return Err(Refused::NoSlot { limit: limit() });
    }
    if call == Call::Refund && !rule.holds_slots() && !matches!(bucket.call_argument, CallArgument::FullAt(..)) {
        return Err(Refused::NoFullAt { limit: limit() });
    }
    Ok(())
}

const fn enforcement(enforcement: Enforcement) -> &'static str {
    match (enforcement.enforces, enforcement.consumes, enforcement.counts_denied) {
        (true, true, false) => "bt",
        (true, true, true) => "btd",
        (true, false, _) => "b",
        (false, true, false) => "t",
        (false, true, true) => "td",
        (false, false, _) => "",
    }
}

fn call_argument(call: Call, near: Nanos, bucket: &Bucket<'_>) -> String {
    match bucket.call_argument {
        CallArgument::Slot(name) => name.to_owned(),
        CallArgument::RepairState(repair) if call != Call::Refund => {
            format!("{};{repair}", ends_around(near, bucket.rule))
        }
        CallArgument::Since(time, Some(repair)) | CallArgument::FullAt(time, Some(repair)) => {
            format!("{};{repair}", padded(time))
        }
        CallArgument::Since(time, None) | CallArgument::FullAt(time, None) => padded(time),
        CallArgument::RepairState(_) | CallArgument::Nothing => ends_around(near, bucket.rule),
    }
}

/// The ends of the calendar units around `near`, for a server whose time may be a day off, or a unit ahead.
fn ends_around(near: Nanos, rule: &SharedRule) -> String {
    let Some(calendar) = rule.rule().calendar() else { return String::new() };
    let mut ends = calendar.end(near.saturating_sub(MAX_DEBT));
    let mut text = ends.get().to_string();
    for _ in 0..3 {
        ends = calendar.end(ends);
        text.push_str(&format!(" {}", ends.get()));
    }
    text
}

/// Pads the time, since the script cuts the seconds off by position.
fn padded(time: Nanos) -> String {
    format!("{:010}", time.get())
}
