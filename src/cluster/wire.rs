//! The protocol between gateways: its messages.
//!
//! The gateway that opened the connection asks, the other one answers. Each question has a number that is unique in its
//! connection; the answer carries the same number and may come in any order. The asker sends the parameters of a limit
//! once per connection ([`Ask::Learn`]) and then refers to them by number.
//!
//! Each change of a message's form needs a new [`VERSION`].

use std::marker::PhantomData;
use std::net::SocketAddr;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::algorithm::{AlgorithmName, Completion, Parameters};
use crate::charge::{Charged, Enforcement, Slot};
use crate::cluster::members::Heartbeat;
use crate::cluster::ring::RingHash;
use crate::units::{Cost, LimitKey, Nanos};

/// The newest version of the protocol that this program speaks. Two gateways speak the version of the older one: the newer
/// one knows it, and refuses versions older than [`OLDEST`].
pub const VERSION: u8 = 6;

/// The oldest version that this program still speaks. A release that raises it cannot be rolled out one gateway at a time.
pub const OLDEST: u8 = 6;

/// The maximum size of a frame on the wire, in bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// A gateway that says it has announced its slots has announced each of them within this time.
pub const SLOTS_ANNOUNCED_WITHIN: Nanos = Nanos::from_secs(10);

/// The items of a frame, each behind its number. A frame of the asker has the hash of its ring and then any number of
/// questions; a frame of the other side has any number of answers.
pub struct Items<'f, T> {
    rest: &'f [u8],
    of: PhantomData<T>,
}

impl<'f, T> Items<'f, T> {
    /// The ring and the questions of an asker's frame; `None` if the ring cannot be read.
    pub fn asked(frame: &'f [u8]) -> Option<(RingHash, Self)> {
        let (ring, rest) = postcard::take_from_bytes(frame).ok()?;
        Some((ring, Self { rest, of: PhantomData }))
    }

    /// The answers of a frame.
    pub const fn answered(frame: &'f [u8]) -> Self {
        Self { rest: frame, of: PhantomData }
    }
}

impl<T: DeserializeOwned> Iterator for Items<'_, T> {
    /// `None` in place of an item that cannot be read; it is the last item.
    type Item = Option<(u64, T)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = postcard::take_from_bytes(std::mem::take(&mut self.rest)).ok();
        Some(read.map(|(item, rest)| {
            self.rest = rest;
            item
        }))
    }
}

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Parameters of a limit. Their number is the count of such messages before this one. Not answered.
    Learn {
        /// The limit.
        limit: LimitIdentity,
        /// The parameters.
        parameters: Parameters,
    },
    /// Charges all of `wanted` or none. Answered with [`Answer::Charged`], [`Answer::NotOwner`] or [`Answer::UnknownParameters`].
    Charge {
        /// The charges.
        wanted: Vec<ChargeRequest>,
        /// Whether to decide even about keys of another owner: because that owner cannot be asked, or named this
        /// gateway as the owner.
        stands_in: bool,
    },
    /// Corrects a charge. Answered with [`Answer::Done`] once this question or an earlier copy of it has
    /// made the correction.
    Change {
        /// The same number for each repetition, and a different one for every other change of the asking process.
        number: u64,
        /// The correction.
        change: CorrectionRequest,
    },
    /// Says that the asker is alive. Answered with [`Answer::Heartbeat`].
    Heartbeat(Heartbeat),
    /// Asks for the state of a key that the asker decides about. Answered with [`Answer::TakenState`].
    Take {
        /// The limit.
        limit: LimitIdentity,
        /// The key.
        key: LimitKey,
    },
    /// Pushes states that the other side owns now and the asker no longer keeps, and the slots of the asker's requests.
    /// The other side merges them with its own states. Answered with [`Answer::Done`].
    Put {
        /// The ring under which the asker determined the owner. The asker's ring may have changed before it
        /// sends the states.
        ring: RingHash,
        /// States of one limit.
        states: StateBatch,
    },
    /// Says that within [`SLOTS_ANNOUNCED_WITHIN`] the asker has announced all slots of its requests whose keys the
    /// other side owns. Answered with [`Answer::Done`].
    SlotsAnnounced,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The results of charges.
    Charged {
        /// The time of the decisions, on the answering gateway's wall clock.
        at: Nanos,
        /// The results in the order of the charges.
        replies: Vec<ChargeReply>,
    },
    /// The answering gateway does not understand some of the parameters, and did nothing.
    UnknownParameters,
    /// The answering gateway did nothing, because in its view this gateway owns one of the keys.
    NotOwner(SocketAddr),
    /// The answering gateway has done the request.
    Done,
    /// The answering gateway is alive.
    Heartbeat(Heartbeat),
    /// The answer to [`Ask::Take`].
    TakenState(TakenState),
}

/// The answer to a request for a key's state.
#[derive(Debug, Serialize, Deserialize)]
pub enum TakenState {
    /// There is no state.
    Nothing,
    /// There is no state any more: one was given away within the last timeout. One of these gateways may have it.
    Moved(Vec<SocketAddr>),
    /// The state. The answering gateway has removed it, regardless of the owner: the asker decides about the key now.
    State(StateBatch),
}

/// The limit that states belong to. States with the same name, algorithm and kind of key belong to the same limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LimitIdentity {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// The hash of the parts of its key. Keys of another kind identify other callers.
    pub key_kind: u64,
    /// The maximum number of keys, as the asker has it configured.
    pub max_keys: u64,
}

impl LimitIdentity {
    /// Whether the limit holds tokens while requests run (a limit with slots).
    pub fn holds_slots(&self) -> bool {
        AlgorithmName::ALL.iter().any(|name| name.as_str() == self.algorithm && name.holds_slots())
    }
}

/// One charge. `R` identifies its limit and parameters: a number in a message, as the connection has learned them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChargeRequest<R = u32> {
    /// The limit and its parameters.
    pub rule: R,
    /// The bucket.
    pub key: LimitKey,
    /// The number of tokens.
    pub cost: Cost,
    /// Whether the limit enforces its decision, and when it consumes tokens.
    pub enforcement: Enforcement,
    /// For a limit that holds tokens while requests run: the number of the slot, unique in the asking
    /// process. Otherwise 0.
    pub slot: u64,
}

impl<R> ChargeRequest<R> {
    /// The same charge, whose parameters `rule` identifies.
    pub const fn with_rule<S>(&self, rule: S) -> ChargeRequest<S> {
        let Self { key, cost, enforcement, slot, .. } = *self;
        ChargeRequest { rule, key, cost, enforcement, slot }
    }
}

/// The result of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChargeReply {
    /// The decision, and the state of the bucket after it.
    pub charged: Charged,
    /// The shared bucket that was charged because the table had no room for the key's own bucket.
    pub common: Option<LimitKey>,
}

/// A correction of a charge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CorrectionRequest<R = u32> {
    /// Refunds a charge.
    Refund {
        /// The charge.
        part: ChargeRequest<R>,
        /// When the bucket was going to be full after the charge, on the wall clock of the gateway that charged it.
        full_at: Nanos,
    },
    /// Charges even if the limit would deny it.
    Debit(ChargeRequest<R>),
    /// Returns the slot of a request at its end; a charge of this slot that arrives later has no effect.
    Complete(ChargeRequest<R>, Completion),
}

impl<R> CorrectionRequest<R> {
    /// Whether the gateway that owns the key now can make the correction, whichever gateway made the charge.
    pub const fn is_transferable(&self) -> bool {
        match self {
            Self::Refund { .. } | Self::Debit(_) => true,
            // the slot is reported to the other gateways that count it
            Self::Complete(..) => false,
        }
    }

    /// The charge that is corrected.
    pub const fn part(&self) -> &ChargeRequest<R> {
        match self {
            Self::Refund { part, .. } | Self::Debit(part) | Self::Complete(part, _) => part,
        }
    }

    /// The same correction of a charge whose parameters `rule` identifies.
    pub fn with_rule<S>(&self, rule: S) -> CorrectionRequest<S> {
        let part = self.part().with_rule(rule);
        match *self {
            Self::Refund { full_at, .. } => CorrectionRequest::Refund { part, full_at },
            Self::Debit(_) => CorrectionRequest::Debit(part),
            Self::Complete(_, end) => CorrectionRequest::Complete(part, end),
        }
    }
}

/// States of one limit. Snapshots have them too: a change of the form needs a new version of both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateBatch {
    /// The limit.
    pub limit: LimitIdentity,
    /// The parameters under which the cells were written; cells refer to them by position.
    pub rules: Vec<Parameters>,
    /// The number of cells.
    pub count: u64,
    /// The cells, as the store writes them.
    pub cells: Bytes,
    /// The slots that requests hold, of these cells or of others.
    pub held: Vec<HeldSlot>,
}

/// The slot of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSlot {
    /// The slot.
    pub slot: Slot,
    /// Its bucket.
    pub key: LimitKey,
    /// The number of tokens.
    pub cost: Cost,
    /// The position of the parameters under which the request was admitted.
    pub rule: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_of_a_frame_come_out_as_they_went_in() {
        let mut frame = postcard::to_stdvec(&RingHash(7)).unwrap();
        for number in 0..3_u64 {
            frame.extend(postcard::to_stdvec(&(number, Ask::Charge { wanted: Vec::new(), stands_in: false })).unwrap());
        }
        let (ring, items) = Items::<Ask>::asked(&frame).unwrap();
        let read: Vec<_> = items.map(|item| item.map(|(number, _)| number)).collect();
        assert_eq!((ring, read), (RingHash(7), vec![Some(0), Some(1), Some(2)]));
        let cut = frame.split_last().map(|(_, rest)| rest).unwrap();
        let (_, items) = Items::<Ask>::asked(cut).unwrap();
        assert_eq!(items.map(|item| item.is_some()).collect::<Vec<_>>(), [true, true, false]);
    }
}
