//! The responses that the gateway gives itself, in place of an upstream, and their texts.

use std::net::SocketAddr;
use std::sync::Arc;

use http::StatusCode;

use crate::algorithm::{Decision, Denial};
use crate::customers::TokenFault;
use crate::fields::Fields;
use crate::gateway::request_context::{RequestContext, STORE_AWAY};
use crate::gateway::respond::{challenge, spread_retry_after};
use crate::units::Nanos;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The causes of answers to customers whose credentials are known and do not count now.
pub(in crate::gateway) const CREDENTIAL_EXPIRED: &str = "credential_expired";
pub(in crate::gateway) const SUSPENDED: &str = "suspended";

/// A response that the gateway gives itself, in place of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is malformed, and cannot be forwarded safely.
    Malformed(&'static str),
    /// The head took too long to arrive.
    HeadTimeout,
    /// The body stopped arriving.
    BodyTimeout,
    /// The body is larger than it may be.
    BodyTooLarge,
    /// The certificate that the client was shown is not valid for the host.
    Misdirected,
    /// The target is too long.
    TargetTooLong,
    /// There are too many header bytes or lines.
    HeadTooLarge(&'static str),
    /// The body has an unknown transfer coding.
    CodingUnknown,
    /// The method is not served.
    MethodNotAllowed {
        /// The methods that are served, as `Allow` lists them.
        allow: &'static str,
    },
    /// No route matches.
    NoRoute,
    /// The request lacks the credential that it needs.
    CredentialMissing,
    /// The request lacks another part of a limit's key.
    KeyMissing(String),
    /// The request holds a part of a limit's key more than once.
    KeyRepeated(String),
    /// The request holds a part of a limit's key that cannot be read.
    KeyUnreadable(String),
    /// The credential is unknown.
    CredentialUnknown,
    /// The request holds its credential more than once.
    CredentialRepeated,
    /// The token is refused.
    TokenRefused(TokenFault),
    /// Access rules keep the caller out.
    AccessDenied,
    /// The credential of this customer has expired.
    CredentialExpired(Arc<str>),
    /// This customer is suspended.
    Suspended(Arc<str>),
    /// The credential cannot be looked up: the directory, or the keys for tokens, are unavailable.
    DirectoryUnavailable,
    /// A limit that gateways share cannot be checked, and lets no request pass in this case.
    StoreUnavailable,
    /// Hits cannot be given back here: the gateway at this address owns their key.
    KeyElsewhere(SocketAddr),
    /// A limit denies.
    Limited,
    /// No node of the upstream is healthy.
    NoHealthyNode,
    /// The upstream has its maximum number of requests.
    UpstreamFull,
    /// The upstream could not be reached, or ended the connection before it answered.
    UpstreamFailed,
    /// The upstream did not answer in time.
    UpstreamTimeout,
    /// The gateway has an internal error.
    Internal,
    /// A customer asked for its usage: this is the JSON.
    Usage(String),
    /// A browser sent a preflight: it asks which requests of other sites are allowed.
    Preflight,
}

/// The causes of responses that are given before any limit is asked.
pub const CAUSES_BEFORE_LIMITS: [&str; 13] = [
    Answer::Malformed("").cause(),
    Answer::Misdirected.cause(),
    Answer::HeadTimeout.cause(),
    Answer::BodyTooLarge.cause(),
    Answer::TargetTooLong.cause(),
    Answer::HeadTooLarge("").cause(),
    Answer::CodingUnknown.cause(),
    Answer::MethodNotAllowed { allow: "" }.cause(),
    Answer::NoRoute.cause(),
    Answer::NoHealthyNode.cause(),
    Answer::UpstreamFull.cause(),
    "usage",
    Answer::Preflight.cause(),
];

/// The causes of responses that refuse a caller: such requests are charged under the early limits.
pub const CALLER_REFUSAL_CAUSES: [&str; 11] = [
    Answer::CredentialMissing.cause(),
    Answer::CredentialUnknown.cause(),
    Answer::CredentialRepeated.cause(),
    CREDENTIAL_EXPIRED,
    Answer::TokenRefused(TokenFault::Unverified).cause(),
    SUSPENDED,
    Answer::AccessDenied.cause(),
    "key_missing",
    "key_repeated",
    "key_unreadable",
    Answer::DirectoryUnavailable.cause(),
];

/// An answer in the table of all answers.
struct AnswerRow {
    status: u16,
    /// The cause, in a word for logs.
    cause: &'static str,
    /// The status for gRPC clients.
    grpc_status: u16,
}

/// The status codes of gRPC.
mod grpc {
    pub(super) const INVALID_ARGUMENT: u16 = 3;
    pub(super) const DEADLINE_EXCEEDED: u16 = 4;
    pub(super) const PERMISSION_DENIED: u16 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(super) const UNIMPLEMENTED: u16 = 12;
    pub(super) const INTERNAL: u16 = 13;
    pub(super) const UNAVAILABLE: u16 = 14;
    pub(super) const UNAUTHENTICATED: u16 = 16;
}

impl Answer {
    /// The status, unless a limit sets another.
    pub const fn status(&self) -> u16 {
        self.row().status
    }

    /// The cause, in a word for logs.
    pub const fn cause(&self) -> &'static str {
        self.row().cause
    }

    /// The customer that is refused, if its credential is known.
    pub(in crate::gateway) const fn refused_customer(&self) -> Option<&Arc<str>> {
        match self {
            Self::CredentialExpired(customer) | Self::Suspended(customer) => Some(customer),
            _ => None,
        }
    }

    /// The status for gRPC clients, which do not read that of HTTP (gRPC's own mapping, with RESOURCE_EXHAUSTED for a limit).
    pub(super) const fn grpc_status(&self) -> u16 {
        self.row().grpc_status
    }

    /// The row of the answer in the table of all answers.
    const fn row(&self) -> AnswerRow {
        let (status, cause, grpc_status) = match self {
            Self::Malformed(_) => (400, "malformed", grpc::INVALID_ARGUMENT),
            Self::HeadTimeout => (408, "head_timeout", grpc::INVALID_ARGUMENT),
            Self::BodyTimeout => (408, "body_timeout", grpc::INVALID_ARGUMENT),
            Self::BodyTooLarge => (413, "body_too_large", grpc::RESOURCE_EXHAUSTED),
            Self::Misdirected => (421, "misdirected", grpc::INVALID_ARGUMENT),
            Self::TargetTooLong => (414, "target_too_long", grpc::INVALID_ARGUMENT),
            Self::HeadTooLarge(_) => (431, "head_too_large", grpc::INVALID_ARGUMENT),
            Self::CodingUnknown => (501, "coding_unknown", grpc::UNIMPLEMENTED),
            Self::MethodNotAllowed { .. } => (405, "method_not_allowed", grpc::UNIMPLEMENTED),
            Self::NoRoute => (404, "no_route", grpc::UNIMPLEMENTED),
            Self::CredentialMissing => (401, "credential_missing", grpc::UNAUTHENTICATED),
            Self::KeyMissing(_) => (400, "key_missing", grpc::INVALID_ARGUMENT),
            Self::KeyRepeated(_) => (400, "key_repeated", grpc::INVALID_ARGUMENT),
            Self::KeyUnreadable(_) => (400, "key_unreadable", grpc::INVALID_ARGUMENT),
            Self::CredentialUnknown => (401, "credential_unknown", grpc::UNAUTHENTICATED),
            Self::CredentialRepeated => (400, "credential_repeated", grpc::INVALID_ARGUMENT),
            Self::TokenRefused(TokenFault::WithoutPlan) => (403, "token_refused", grpc::PERMISSION_DENIED),
            Self::TokenRefused(_) => (401, "token_refused", grpc::UNAUTHENTICATED),
            Self::AccessDenied => (403, "access_denied", grpc::PERMISSION_DENIED),
            Self::CredentialExpired(_) => (401, CREDENTIAL_EXPIRED, grpc::UNAUTHENTICATED),
            Self::Suspended(_) => (403, SUSPENDED, grpc::PERMISSION_DENIED),
            Self::DirectoryUnavailable => (503, "directory_away", grpc::UNAVAILABLE),
            Self::StoreUnavailable => (503, STORE_AWAY, grpc::UNAVAILABLE),
            Self::KeyElsewhere(_) => (409, "key_elsewhere", grpc::UNAVAILABLE),
            Self::Limited => (429, "limited", grpc::RESOURCE_EXHAUSTED),
            Self::NoHealthyNode => (503, "no_healthy_node", grpc::UNAVAILABLE),
            Self::UpstreamFull => (503, "upstream_full", grpc::UNAVAILABLE),
            Self::UpstreamFailed => (502, "upstream_failed", grpc::UNAVAILABLE),
            Self::UpstreamTimeout => (504, "upstream_timeout", grpc::DEADLINE_EXCEEDED),
            Self::Internal => (500, "internal", grpc::INTERNAL),
            Self::Usage(_) => (200, "usage", grpc::INVALID_ARGUMENT),
            Self::Preflight => (204, "preflight", grpc::INVALID_ARGUMENT),
        };
        AnswerRow { status, cause, grpc_status }
    }

    /// The type of the problem; `about:blank` where the status says it all (RFC 9457).
    pub(super) const fn problem_type(&self) -> &'static str {
        match self.status() {
            429 => QUOTA_EXCEEDED,
            503 => REDUCED_CAPACITY,
            _ => "about:blank",
        }
    }

    pub(super) fn title(&self) -> &'static str {
        match self.status() {
            429 => "Request quota exceeded",
            503 => "Temporarily reduced capacity",
            status => {
                let status = StatusCode::from_u16(status).ok();
                status.and_then(|status| status.canonical_reason()).unwrap_or("Error")
            }
        }
    }

    /// Adds the challenges that go with a 401.
    pub(super) fn add_challenges(&self, fields: &mut Fields, context: Option<&RequestContext>) {
        match self {
            Self::TokenRefused(fault) if self.status() == 401 => {
                let error = format!("Bearer error=\"invalid_token\", error_description=\"{fault}\"");
                fields.push(challenge::FIELD, error);
            }
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired(_) => {
                challenge::schemes(context).iter().for_each(|scheme| fields.push(challenge::FIELD, scheme));
            }
            _ => {}
        }
    }

    /// The problem and the remedy, for the client's developer.
    pub(in crate::gateway) fn detail(&self, context: Option<&RequestContext>) -> String {
        match self {
            Self::Malformed(problem) | Self::HeadTooLarge(problem) => format!("{problem}."),
            Self::HeadTimeout => "The request's head did not arrive in time.".to_owned(),
            Self::BodyTimeout => "The request's body did not arrive in time.".to_owned(),
            Self::BodyTooLarge => "The request's body is too large.".to_owned(),
            Self::Misdirected => {
                "This connection was opened for another host; open one for this host, and name it (SNI).".to_owned()
            }
            Self::TargetTooLong => "The request target is too long.".to_owned(),
            Self::CodingUnknown => "Of transfer codings only chunked is understood.".to_owned(),
            Self::MethodNotAllowed { .. } => "This method is not served here.".to_owned(),
            Self::NoRoute => "Nothing is served at this host and path.".to_owned(),
            Self::CredentialMissing => challenge::request_for_credential(context),
            Self::KeyMissing(part) => format!("The request lacks its {part}."),
            Self::KeyRepeated(part) => format!("The request carries its {part} more than once."),
            Self::KeyUnreadable(part) => format!("The request carries a {part} that cannot be read."),
            Self::CredentialUnknown => "The credential is not known.".to_owned(),
            Self::CredentialRepeated => "The request carries its credential more than once.".to_owned(),
            Self::TokenRefused(fault) => challenge::sentence(*fault),
            Self::AccessDenied => "This caller is not let in here.".to_owned(),
            Self::CredentialExpired(_) => "The credential has expired; a new one is needed.".to_owned(),
            Self::Suspended(_) => "The customer is suspended; retrying does not help.".to_owned(),
            Self::DirectoryUnavailable => {
                "Credentials cannot be looked up at the moment; retry in a second.".to_owned()
            }
            Self::StoreUnavailable => "A limit cannot be checked at the moment; retry in a second.".to_owned(),
            Self::KeyElsewhere(owner) => {
                format!(
                    "Hits are given back by the gateway that owns their key: ask the one in the cluster at {owner}."
                )
            }
            Self::Limited => match context.map(|context| (context, context.verdict.outcome)) {
                Some((context, Decision::Deny(Denial::Later { retry_after }))) => {
                    let time = spread_retry_after(context).unwrap_or(retry_after);
                    let retry = retry_in(time, &mut itoa::Buffer::new()).concat();
                    match context.verdict.banned {
                        true => format!("Too many requests were denied: all are for now. {retry}"),
                        false => retry,
                    }
                }
                Some((_, Decision::Deny(Denial::Busy))) => {
                    "Too many requests are being worked on; retry when one of them has ended.".to_owned()
                }
                _ => "The request costs more than this quota can ever admit; retrying does not help.".to_owned(),
            },
            Self::NoHealthyNode => "The service behind this address is not available at the moment.".to_owned(),
            Self::UpstreamFull => {
                "The service behind this address has as many requests as it may have; retry in a second.".to_owned()
            }
            Self::UpstreamFailed => "The service behind this address could not be reached or broke off.".to_owned(),
            Self::UpstreamTimeout => "The service behind this address did not answer in time.".to_owned(),
            Self::Internal => "Something went wrong in the gateway.".to_owned(),
            Self::Usage(_) => "Where the customer stands.".to_owned(),
            Self::Preflight => "Which requests of other sites are allowed, as `cors` says.".to_owned(),
        }
    }
}

/// The parts of the sentence that tells when to retry, with the number in `digits`.
pub(super) fn retry_in(time: Nanos, digits: &mut itoa::Buffer) -> [&str; 3] {
    let seconds = time.secs_ceil().max(1);
    ["Retry in ", digits.format(seconds), if seconds == 1 { " second." } else { " seconds." }]
}
