//! The body of a request that limits go by: whether it is there, and what it says as it comes.

use std::sync::Arc;

use crate::charge::Charge;
use crate::fields::Fields;
use crate::gateway::field::{RequestReader, Seen};
use crate::gateway::identity::Identity;
use crate::http::body::Framing;
use crate::ruleset::PlanId;
use crate::ruleset::matcher::Route;
use crate::ruleset::request_field::RequestFields;

/// Where the body of a request is.
#[derive(Clone, Copy)]
pub enum BodySource<'b> {
    /// Behind the head, delimited like this.
    Coming(Framing),
    /// All of it is here.
    Here(&'b [u8]),
    /// Nobody sees it.
    Unseen,
}

impl BodySource<'_> {
    /// Whether it is known to have more than `max` bytes.
    pub(super) fn is_longer_than(self, max: u64) -> bool {
        let length = match self {
            Self::Coming(Framing::Length(length)) => length,
            Self::Here(body) => u64::try_from(body.len()).unwrap_or(u64::MAX),
            Self::Coming(_) | Self::Unseen => 0,
        };
        length > max
    }
}

/// What is known of a body before it is waited for.
pub(super) enum BodyKnown {
    Fields(RequestFields),
    /// It has to be waited for.
    Awaited(Box<AwaitedBody>),
}

/// A body that is read as it passes.
pub struct AwaitedBody {
    reader: RequestReader,
    /// Who sends it, and the plan that a trusted proxy says it has, until the request is decided on.
    pub(super) sender: Option<(Identity, Option<PlanId>)>,
    /// What the request is charged under the limits that do not go by it.
    pub(super) other_charges: Vec<Charge>,
    /// Whether that was charged before the body was here.
    pub(super) is_charged_ahead: bool,
    /// How many bytes of it were read and have not passed.
    ahead: usize,
    /// Why it has two readings.
    fault: Option<&'static str>,
}

impl BodyKnown {
    /// What is known of the body of a request for `route` with these `headers`. `Err`: it has two readings.
    pub(super) fn of(headers: &Fields, source: BodySource<'_>, route: &Route) -> Result<Self, &'static str> {
        let coded = headers.get_all("content-encoding").any(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        let mut awaited = AwaitedBody {
            reader: RequestReader::new(Arc::clone(&route.body_fields), route.longest_text),
            sender: None,
            other_charges: Vec::new(),
            is_charged_ahead: false,
            ahead: 0,
            fault: None,
        };
        Ok(match source {
            BodySource::Coming(Framing::Empty) | BodySource::Here([]) => Self::Fields(RequestFields::NoBody),
            BodySource::Unseen => Self::Fields(RequestFields::Unreadable),
            _ if coded => Self::Fields(RequestFields::Unreadable),
            BodySource::Coming(_) => Self::Awaited(Box::new(awaited)),
            BodySource::Here(body) => {
                awaited.hold(body);
                Self::Fields(awaited.decide()?)
            }
        })
    }
}

impl AwaitedBody {
    /// A part that is held back: whether more has to come before the request can be decided on.
    pub(super) fn hold(&mut self, part: &[u8]) -> bool {
        self.ahead = self.ahead.saturating_add(part.len());
        match self.reader.feed(part) {
            Seen::Part => true,
            Seen::Enough => false,
            Seen::Ambiguous(fault) => {
                self.fault = Some(fault);
                false
            }
        }
    }

    /// What it says, as far as it came. `Err`: it has two readings.
    pub(super) fn decide(&mut self) -> Result<RequestFields, &'static str> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self.reader.decide()),
        }
    }

    /// A part that passes after the decision. `Err`: it gives the body a second reading.
    pub(super) fn pass(&mut self, part: &[u8]) -> Result<(), &'static str> {
        let (read, new) = part.split_at_checked(self.ahead).unwrap_or((part, &[]));
        self.ahead = self.ahead.saturating_sub(read.len());
        if new.is_empty() {
            return Ok(());
        }
        match self.reader.feed(new) {
            Seen::Part | Seen::Enough => Ok(()),
            Seen::Ambiguous(fault) => Err(fault),
        }
    }
}
