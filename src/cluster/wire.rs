//! What gateways say to each other.
//!
//! The gateway that opened a connection asks, the other answers; each question has a number of its connection's own, under
//! which it is answered whenever that is. What belongs to a limit's parameters is named once for each connection
//! ([`Ask::Learn`]) and by its number from then on.
//!
//! Another form of anything in here needs another [`VERSION`].

use serde::{Deserialize, Serialize};

use crate::algorithm::{Completion, Parameters};
use crate::charge::{Charged, Manner};
use crate::cluster::members::Beat;
use crate::cluster::ring::RingHash;
use crate::units::{Cost, LimitKey, Nanos};

/// The version of what is said; gateways of another one are refused.
pub const VERSION: u8 = 1;

/// The most bytes of a frame, as they are sent.
pub const LONGEST_FRAME: usize = 1 << 20;

/// What is asked in one go.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Asks {
    /// Who shares the limits as the asker sees it.
    pub ring: RingHash,
    /// Each with its number.
    pub asks: Vec<(u64, Ask)>,
}

/// What is answered in one go, each under the number of its question.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answers(pub Vec<(u64, Answer)>);

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Parameters of a limit, which are known by the number of such messages before. Not answered.
    Learn {
        /// The limit.
        limit: Identity,
        /// The parameters.
        parameters: Parameters,
    },
    /// Charges all of these or none. Answered with [`Answer::Charged`] or [`Answer::Unknown`].
    Charge {
        /// The charges.
        wanted: Vec<Wanted>,
        /// Whether to decide on what there is, and to look for no state elsewhere: because whoever else has it cannot be
        /// asked, or was asked already.
        as_is: bool,
    },
    /// Corrects what was charged. Answered with [`Answer::Done`] once that is done, by this question or an earlier one.
    Change {
        /// The same whenever it is asked again, and another one for every other change of the asking process.
        number: u64,
        /// What to do.
        change: Change,
    },
    /// Says that the asker is there. Answered with [`Answer::Beat`].
    Beat(Beat),
    /// Asks for the state of a key that the asker decides about. Answered with [`Answer::Taken`].
    Take {
        /// The limit.
        limit: Identity,
        /// The key.
        key: LimitKey,
    },
    /// States that the other side owns now and the asker has forgotten; those that it has stay as they are. Answered with
    /// [`Answer::Done`].
    Put(Vec<States>),
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What came of charges.
    Charged {
        /// When they were decided, on the clock of who answers.
        at: Nanos,
        /// In the order of the question.
        told: Vec<Told>,
    },
    /// Some parameters are not understood by this program, and nothing was done.
    Unknown,
    /// It is done.
    Done,
    /// Who answers is there.
    Beat(Beat),
    /// What came of [`Ask::Take`].
    Taken(Taken),
}

/// What there was of a key's state.
#[derive(Debug, Serialize, Deserialize)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// This, and it is forgotten by who answers.
    State(States),
    /// Who answers owns the key as it sees the members, and decides about it when asked.
    Kept,
}

/// The limit that states belong to. States of the same name, algorithm and kind of key are the same limit's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// What its keys are made of.
    pub key: u64,
    /// How many keys may be remembered, as the asker has it.
    pub max_keys: u64,
}

/// One charge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The parameters, by their number in this connection.
    pub rule: u32,
    /// Which bucket.
    pub key: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// What the limit does with the request.
    pub manner: Manner,
    /// For a limit that holds tokens while requests run: the number of what is held, which no other of the asking process
    /// has. 0 otherwise.
    pub slot: u64,
}

/// What came of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
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
        /// The number of what is held.
        slot: u64,
        /// How the request ended.
        end: Completion,
    },
}

/// States of one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct States {
    /// The limit.
    pub limit: Identity,
    /// The parameters that they were written under; cells know them by their positions.
    pub rules: Vec<Parameters>,
    /// How many cells there are.
    pub count: u64,
    /// The cells, as snapshots have them.
    pub cells: Vec<u8>,
}
