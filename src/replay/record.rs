//! The record of a request in a log.

use crate::units::Nanos;

/// The position of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// The position of the log.
    pub log: usize,
    /// The line's number, from 1.
    pub line: u64,
}

/// A line of a log.
#[derive(Debug)]
pub enum LogLine<'l> {
    /// A line of a request.
    Request {
        /// The position of the line.
        spot: LogPosition,
        /// The time of the request, never before that of the request before it.
        at: Nanos,
        /// The fields of the line.
        record: &'l Record,
    },
    /// A line that cannot be used.
    Unreadable {
        /// The position of the line.
        spot: LogPosition,
        /// The reason.
        why: Unreadable,
    },
}

/// The span of time in which a request came, as far as its line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalSpan {
    /// The first possible time.
    pub earliest: Nanos,
    /// The last possible time.
    pub latest: Nanos,
    /// Whether the request came before that: it is out of order, and played at the time of the one before.
    pub is_late: bool,
}

/// The fields of one line. A field that the line does not have is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The time of the line.
    pub logged: Nanos,
    /// Whether that is the time at which the request began, and not the one at which it ended.
    pub is_start: bool,
    /// How far into its second the request is placed, if its timestamp is a whole second.
    pub within_second: Option<Nanos>,
    /// Whether `logged` was moved to a later second, because that one had begun in the log.
    pub is_moved: bool,
    /// How long the request took.
    pub took: Option<Nanos>,
    /// How long the gateway delayed the request; a part of `took`.
    pub waited: Nanos,
    /// The client's address, as written.
    pub client: Option<Vec<u8>>,
    /// The method.
    pub method: Option<String>,
    /// The request target: a path, perhaps with a query.
    pub target: Option<Vec<u8>>,
    /// The requested host, as written.
    pub host: Option<Vec<u8>>,
    /// The response's status.
    pub status: Option<u16>,
    /// The length of the request's body.
    pub request_bytes: Option<u64>,
    /// The length of the response's body.
    pub response_bytes: Option<u64>,
    /// The customer's name.
    pub customer: Option<String>,
    /// The caller's plan, by name.
    pub plan: Option<String>,
    /// The upstream node.
    pub node: Option<String>,
    /// The cause of a response that the gateway itself made, in the word of the gateway that wrote the line.
    pub answered: Option<String>,
    /// Whether the gateway that wrote the line let the request pass its limits without a charge.
    pub was_exempt: Option<bool>,
    /// The charges of a program that is not a proxy, as a JSON list. Such a line has no request.
    pub charges: Option<String>,
    /// Values of request header fields, by their position in [`WantedFields::headers`](super::fields::WantedFields).
    pub headers: Vec<(usize, String)>,
    /// Values of response header fields, by their position among the wanted ones.
    pub response_headers: Vec<(usize, String)>,
}

impl Record {
    /// When the request began.
    pub(super) fn began(&self) -> Nanos {
        let took = if self.is_start { Nanos::ZERO } else { self.took.unwrap_or_default() };
        self.logged.saturating_sub(took)
    }

    /// Whether the request is played later than it began, if it is played at this time.
    pub(super) fn is_late(&self, at: Nanos) -> bool {
        self.is_moved || self.began() < at
    }

    /// When the request ended and the server wrote the line, as far as the line tells.
    pub(super) fn ended(&self) -> Nanos {
        self.began().saturating_add(self.took.unwrap_or_default())
    }

    /// How many bytes of memory the record takes, with its texts.
    pub(super) fn memory(&self) -> usize {
        let bytes = [&self.client, &self.target, &self.host].into_iter().flatten().map(|bytes| bytes.len());
        let texts = [&self.method, &self.customer, &self.plan, &self.node, &self.answered, &self.charges];
        let texts = texts.into_iter().flatten().map(|text| text.len());
        let values = self.headers.iter().chain(&self.response_headers);
        let values = values.map(|value| size_of_val(value) + value.1.len());
        size_of::<Self>() + bytes.chain(texts).chain(values).sum::<usize>()
    }
}

/// Why a line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The line has none of the supported formats.
    #[error("is neither common or combined log format nor JSON")]
    Format,
    /// The line is not a valid JSON object.
    #[error("is no JSON object: {0}")]
    Json(String),
    /// The line lacks a field that every request has.
    #[error("tells no {0}")]
    Missing(&'static str),
    /// The line's time cannot be read, or is before 1970 or after 2553.
    #[error("has no time that can be read")]
    Time,
    /// The line is too long.
    #[error("is longer than {} bytes", crate::simulation::lines::MAX_LINE)]
    TooLong,
}

// === impl ArrivalSpan ===

impl ArrivalSpan {
    /// Whether the request is played at one time only.
    pub fn is_exact(self) -> bool {
        self.earliest == self.latest
    }
}
