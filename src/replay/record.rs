//! The record of a request in a log.

use std::borrow::Cow;

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
        record: &'l Record<'l>,
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
pub struct Record<'l> {
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
    pub client: Option<Cow<'l, [u8]>>,
    /// The method.
    pub method: Option<Cow<'l, str>>,
    /// The request target: a path, perhaps with a query.
    pub target: Option<Cow<'l, [u8]>>,
    /// The requested host, as written.
    pub host: Option<Cow<'l, [u8]>>,
    /// The response's status.
    pub status: Option<u16>,
    /// The length of the request's body.
    pub request_bytes: Option<u64>,
    /// The length of the response's body.
    pub response_bytes: Option<u64>,
    /// The customer's name.
    pub customer: Option<Cow<'l, str>>,
    /// The caller's plan, by name.
    pub plan: Option<Cow<'l, str>>,
    /// The upstream node.
    pub node: Option<Cow<'l, str>>,
    /// The cause of a response that the gateway itself made, in the word of the gateway that wrote the line.
    pub answered: Option<Cow<'l, str>>,
    /// Whether the gateway that wrote the line let the request pass its limits without a charge.
    pub was_exempt: Option<bool>,
    /// The charges of a program that is not a proxy, as a JSON list. Such a line has no request.
    pub charges: Option<Cow<'l, str>>,
    /// Values of request header fields, by their position in [`WantedFields::headers`](super::fields::WantedFields).
    pub headers: Vec<(usize, Cow<'l, str>)>,
    /// Values of response header fields, by their position among the wanted ones.
    pub response_headers: Vec<(usize, Cow<'l, str>)>,
}

impl Record<'_> {
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

    /// The same record, independent of its line.
    pub(super) fn into_owned(self) -> Record<'static> {
        fn text(text: Option<Cow<'_, str>>) -> Option<Cow<'static, str>> {
            text.map(|text| Cow::Owned(text.into_owned()))
        }
        fn bytes(bytes: Option<Cow<'_, [u8]>>) -> Option<Cow<'static, [u8]>> {
            bytes.map(|bytes| Cow::Owned(bytes.into_owned()))
        }
        fn values(values: Vec<(usize, Cow<'_, str>)>) -> Vec<(usize, Cow<'static, str>)> {
            values.into_iter().map(|(position, value)| (position, Cow::Owned(value.into_owned()))).collect()
        }
        let Self { logged, is_start, within_second, is_moved, took, waited, status, .. } = self;
        let Self { request_bytes, response_bytes, was_exempt, .. } = self;
        Record {
            logged,
            is_start,
            within_second,
            is_moved,
            took,
            waited,
            status,
            request_bytes,
            response_bytes,
            was_exempt,
            client: bytes(self.client),
            method: text(self.method),
            target: bytes(self.target),
            host: bytes(self.host),
            customer: text(self.customer),
            plan: text(self.plan),
            node: text(self.node),
            answered: text(self.answered),
            charges: text(self.charges),
            headers: values(self.headers),
            response_headers: values(self.response_headers),
        }
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

/// A method as text. The most common methods need no check for UTF-8.
pub(super) fn method(text: &[u8]) -> Cow<'_, str> {
    match text {
        b"GET" => Cow::Borrowed("GET"),
        b"POST" => Cow::Borrowed("POST"),
        b"PUT" => Cow::Borrowed("PUT"),
        b"DELETE" => Cow::Borrowed("DELETE"),
        text => String::from_utf8_lossy(text),
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
