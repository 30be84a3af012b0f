//! What goes on at a connection, and by when something has to have happened.

use crate::proxy::connection::pace::Pace;
use crate::proxy::respond::Answer;
use crate::proxy::traffic::Stage;
use crate::units::Nanos;

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) deadline: Option<Nanos>,
    /// Since when it could make room for another one, if it could.
    pub(super) spare_since: Option<Nanos>,
    /// How long the client may be waited for, while the body of a request comes in.
    pub(super) pace: Option<Pace>,
    /// How long the client may take for what is written together.
    pub(super) patience: Nanos,
    /// When it has to have taken it, while there is no room for all of it.
    pub(super) taken_due: Option<Nanos>,
    /// When a head of HTTP/2 has to be over that is coming in, whatever else goes on.
    pub(super) head_due: Option<Nanos>,
    /// Whether any byte of a response to the current request was sent.
    pub(super) answering: bool,
    /// Bytes left to say once the deadline has passed.
    pub(super) farewell: Option<Vec<u8>>,
    pub(super) expired: Option<Late>,
    /// Whether the last request that ended was answered.
    pub(super) answered: bool,
    /// Whether the client of a stream is known to be gone.
    pub(super) abandoned: bool,
    /// Whether the connection became a tunnel.
    pub(super) tunnel: bool,
    /// What the client is answered that did not send a request.
    pub(super) refusal: Option<Answer>,
}

/// Who let a deadline pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The client, with the body of its request.
    Client,
    /// The upstream, or both together.
    Upstream,
    /// The client, with reading its response.
    Reader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing has come yet.
    New,
    /// Nothing of a next request has come.
    Idle,
    /// A request's head is coming in.
    Head,
    /// A request is here, and not decided on yet.
    Undecided,
    /// A request is being handled.
    Busy,
    /// A request is held back; whether its client still waits is watched.
    Waiting,
    /// HTTP/2 is spoken: its streams are connections of their own.
    Streams,
    /// HTTP/2 is spoken, and there is no stream.
    NoStreams,
}

impl State {
    pub(super) const fn new(phase: Phase, deadline: Option<Nanos>, patience: Nanos) -> Self {
        Self {
            phase,
            deadline,
            spare_since: None,
            pace: None,
            patience,
            taken_due: None,
            head_due: None,
            answering: false,
            farewell: None,
            expired: None,
            answered: false,
            abandoned: false,
            tunnel: false,
            refusal: None,
        }
    }

    /// Whether there is nothing that another connection would have to wait for.
    pub(super) const fn is_spare(&self) -> bool {
        self.spare_since.is_some()
    }

    /// When the connection's future ends, if nothing happens before.
    pub(super) fn due(&self) -> Option<Nanos> {
        let body = self.pace.and_then(|pace| pace.runs_out());
        [self.deadline, body, self.taken_due, self.head_due].into_iter().flatten().min()
    }
}

impl Phase {
    /// What the connection is counted as; requests that are handled count for themselves.
    pub(super) const fn stage(self) -> Option<Stage> {
        match self {
            Self::New => Some(Stage::Fresh),
            Self::Head => Some(Stage::Coming),
            Self::Undecided => Some(Stage::Undecided),
            Self::Idle | Self::Busy | Self::Waiting | Self::Streams | Self::NoStreams => None,
        }
    }
}
