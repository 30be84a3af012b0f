//! What gateways say to each other.
//!
//! The gateway that opened a connection asks, the other answers; each question has a number of its connection's own, under
//! which it is answered whenever that is. What belongs to a limit's parameters is named once for each connection
//! ([`Ask::Learn`]) and by its number from then on.
//!
//! Another form of anything in here needs another [`VERSION`].

use std::marker::PhantomData;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::algorithm::{AlgorithmName, Completion, Parameters};
use crate::charge::{Charged, Enforcement, Slot};
use crate::cluster::members::Heartbeat;
use crate::cluster::ring::RingHash;
use crate::units::{Cost, LimitKey, Nanos};

/// The newest version of the protocol that this program speaks. Of two gateways both speak the older one's: the newer one
/// knows it, and refuses what is older than [`OLDEST`].
pub const VERSION: u8 = 5;

/// The oldest version that this program still speaks. A release that raises it cannot be rolled out one gateway at a time.
pub const OLDEST: u8 = 5;

/// The most bytes of a frame, as they are sent.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// How long it is at most since the asker has told of what it holds when it says that it has.
pub const SLOTS_ANNOUNCED_WITHIN: Nanos = Nanos::from_secs(10);

/// What a frame holds: of one who asks, the ring that it sees and then any number of questions; of one
/// who answers, any number of answers. Each stands behind its number.
pub struct Items<'f, T> {
    rest: &'f [u8],
    of: PhantomData<T>,
}

impl<'f, T> Items<'f, T> {
    /// The questions of a frame, and the ring that stands before them; `None` if it is no such frame.
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
    /// `None` in place of what cannot be read, behind which nothing more comes.
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
    /// Parameters of a limit, which are known by the number of such messages before. Not answered.
    Learn {
        /// The limit.
        limit: LimitIdentity,
        /// The parameters.
        parameters: Parameters,
    },
    /// Charges all of these or none. Answered with [`Answer::Charged`], [`Answer::NotOwner`] or [`Answer::Unknown`].
    Charge {
        /// The charges.
        wanted: Vec<ChargeRequest>,
        /// Whether to decide even about keys that another gateway owns: because that one cannot be asked, or sent the asker here.
        stands_in: bool,
    },
    /// Corrects what was charged. Answered with [`Answer::Done`] once that is done, by this question or an earlier one.
    Change {
        /// The same whenever it is asked again, and another one for every other change of the asking process.
        number: u64,
        /// What to do.
        change: Change,
    },
    /// Says that the asker is there. Answered with [`Answer::Heartbeat`].
    Heartbeat(Heartbeat),
    /// Asks for the state of a key that the asker decides about. Answered with [`Answer::TakenState`].
    Take {
        /// The limit.
        limit: LimitIdentity,
        /// The key.
        key: LimitKey,
    },
    /// States that the other side owns now and the asker has forgotten, and what the asker's requests hold; states that
    /// are there are merged with them. Answered with [`Answer::Done`].
    Put {
        /// How the asker saw the members when it looked whose they are: this may be others by the time they are sent.
        ring: RingHash,
        /// Those of one limit.
        states: StateBatch,
    },
    /// Says that the asker has told, within [`SLOTS_ANNOUNCED_WITHIN`], of all that its requests hold of keys that the other side
    /// owns. Answered with [`Answer::Done`].
    SlotsAnnounced,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What came of charges.
    Charged {
        /// When they were decided, on the clock of who answers.
        at: Nanos,
        /// In the order of the question.
        replies: Vec<ChargeReply>,
    },
    /// Some parameters are not understood by this program, and nothing was done.
    Unknown,
    /// This gateway owns some key, as who answers sees it, and nothing was done.
    NotOwner(SocketAddr),
    /// It is done.
    Done,
    /// Who answers is there.
    Heartbeat(Heartbeat),
    /// What came of [`Ask::Take`].
    TakenState(TakenState),
}

/// What there was of a key's state.
#[derive(Debug, Serialize, Deserialize)]
pub enum TakenState {
    /// Nothing.
    Nothing,
    /// Nothing any more: a state was given away within the time that a request waits. One of these gateways may have it.
    Moved(Vec<SocketAddr>),
    /// This, and it is forgotten by who answers, whoever owns it: the one who asks decides about the key now.
    State(StateBatch),
}

/// The limit that states belong to. States of the same name, algorithm and kind of key are the same limit's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitIdentity {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// What its keys are made of.
    pub key: u64,
    /// How many keys may be remembered, as the asker has it.
    pub max_keys: u64,
}

impl LimitIdentity {
    /// Whether the limit holds tokens while requests run.
    pub fn holds(&self) -> bool {
        AlgorithmName::ALL.iter().any(|name| name.as_str() == self.algorithm && name.holds())
    }
}

/// One charge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChargeRequest {
    /// The parameters, by their number in this connection.
    pub rule: u32,
    /// Which bucket.
    pub key: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// What the limit does with the request.
    pub enforcement: Enforcement,
    /// For a limit that holds tokens while requests run: the number of what is held, which no other of the asking process
    /// has. 0 otherwise.
    pub slot: u64,
}

/// What came of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChargeReply {
    /// The decision, and where the key stands.
    pub charged: Charged,
    /// The bucket that was charged in place of the key's own, for which there was no room.
    pub common: Option<LimitKey>,
}

/// A correction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Takes a charge back.
    Refund {
        /// The parameters, by their number in this connection.
        rule: u32,
        /// Which bucket.
        key: LimitKey,
        /// How many tokens.
        cost: Cost,
        /// When the bucket was going to be whole after the charge, on the clock of who was asked.
        full_at: Nanos,
    },
    /// Charges whatever the limit says.
    Debit {
        /// The parameters, by their number in this connection.
        rule: u32,
        /// Which bucket.
        key: LimitKey,
        /// How many tokens.
        cost: Cost,
    },
    /// Gives back what a request holds, or would hold if the charge came late.
    Complete {
        /// The parameters, by their number in this connection.
        rule: u32,
        /// Which bucket.
        key: LimitKey,
        /// The number of what is held.
        slot: u64,
        /// How the request ended.
        end: Completion,
    },
}

/// States of one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateBatch {
    /// The limit.
    pub limit: LimitIdentity,
    /// The parameters that they were written under; cells know them by their positions.
    pub rules: Vec<Parameters>,
    /// How many cells there are.
    pub count: u64,
    /// The cells, as snapshots have them.
    pub cells: Vec<u8>,
    /// What requests hold while they run, be it of these cells or of others.
    pub held: Vec<HeldSlot>,
}

/// What one request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSlot {
    /// Which one.
    pub slot: Slot,
    /// Of which bucket.
    pub key: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// The parameters that it was admitted under, by their position.
    pub rule: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_frame_holds_comes_out_as_it_went_in() {
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
