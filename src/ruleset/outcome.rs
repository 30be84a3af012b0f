//! The outcome of a request in a word, as access logs, spans, operators and replays name it.

use crate::algorithm::Decision;
use crate::units::Nanos;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeKind {
    /// A limit denied the request.
    Denied,
    /// A limit has banned the request's key.
    Banned,
    /// A limit sent the request to another upstream.
    Diverted,
    /// A limit marked the request for its upstream.
    Marked,
    /// The request waited for its turn.
    Delayed,
    /// All limits admitted the request.
    Admitted,
    /// The request was exempt from all limits.
    Bypassed,
    /// No limit applied to the request.
    Unlimited,
    /// The gateway refused the request before it was charged.
    Refused,
    /// A limit could not be checked, and let the request pass.
    ErrorAdmitted,
    /// A limit could not be checked, and let no request pass.
    ErrorDenied,
}

/// The outcome of a request under all its limits, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeSummary {
    /// The outcome.
    pub kind: OutcomeKind,
    /// The position of the standing that is named for it.
    pub standing: Option<usize>,
    /// The time that the request waits.
    pub wait: Nanos,
}

impl OutcomeKind {
    /// The outcome of a request about which one limit decides.
    pub const fn of(decision: Decision) -> Self {
        match decision {
            Decision::Admit { wait: Nanos::ZERO } => Self::Admitted,
            Decision::Admit { .. } => Self::Delayed,
            Decision::Deny(_) => Self::Denied,
        }
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Banned => "banned",
            Self::Diverted => "diverted",
            Self::Marked => "marked",
            Self::Delayed => "delayed",
            Self::Admitted => "admitted",
            Self::Bypassed => "bypassed",
            Self::Unlimited => "unlimited",
            Self::Refused => "refused",
            Self::ErrorAdmitted => "error_admitted",
            Self::ErrorDenied => "error_denied",
        }
    }
}

impl OutcomeSummary {
    /// The summary of a request that does not wait.
    pub const fn at_once(kind: OutcomeKind, standing: Option<usize>) -> Self {
        Self { kind, standing, wait: Nanos::ZERO }
    }
}
