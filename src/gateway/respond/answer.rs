//! The responses that the gateway gives itself, in place of an upstream, and their texts.

use http::StatusCode;

use crate::algorithm::Denial;
use crate::customers::TokenFault;
use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::challenge;
use crate::ruleset::verdict::Outcome;
use crate::units::Nanos;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

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
    /// The credential has expired.
    CredentialExpired,
    /// The customer is suspended.
    Suspended,
    /// The credential cannot be looked up: the directory, or the keys for tokens, are unavailable.
    DirectoryUnavailable,
    /// A limit that nodes share cannot be checked, and lets no request pass in this case.
    StoreUnavailable,
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
    Answer::CredentialExpired.cause(),
    Answer::TokenRefused(TokenFault::Unverified).cause(),
    Answer::Suspended.cause(),
    Answer::AccessDenied.cause(),
    "key_missing",
    "key_repeated",
    "key_unreadable",
    Answer::DirectoryUnavailable.cause(),
];

impl Answer {
    /// The status, unless a limit sets another.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Usage(_) => 200,
            Self::Preflight => 204,
            Self::Malformed(_)
            | Self::KeyMissing(_)
            | Self::KeyRepeated(_)
            | Self::KeyUnreadable(_)
            | Self::CredentialRepeated => 400,
            Self::Suspended | Self::AccessDenied | Self::TokenRefused(TokenFault::WithoutPlan) => 403,
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired | Self::TokenRefused(_) => 401,
            Self::NoRoute => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::HeadTimeout | Self::BodyTimeout => 408,
            Self::BodyTooLarge => 413,
            Self::TargetTooLong => 414,
            Self::Misdirected => 421,
            Self::Limited => 429,
            Self::HeadTooLarge(_) => 431,
            Self::Internal => 500,
            Self::CodingUnknown => 501,
            Self::UpstreamFailed => 502,
            Self::NoHealthyNode | Self::UpstreamFull | Self::DirectoryUnavailable | Self::StoreUnavailable => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// The cause, in a word for logs.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::Misdirected => "misdirected",
            Self::TargetTooLong => "target_too_long",
            Self::HeadTooLarge(_) => "head_too_large",
            Self::CodingUnknown => "coding_unknown",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::NoRoute => "no_route",
            Self::CredentialMissing => "credential_missing",
            Self::KeyMissing(_) => "key_missing",
            Self::KeyRepeated(_) => "key_repeated",
            Self::KeyUnreadable(_) => "key_unreadable",
            Self::CredentialUnknown => "credential_unknown",
            Self::CredentialRepeated => "credential_repeated",
            Self::TokenRefused(_) => "token_refused",
            Self::AccessDenied => "access_denied",
            Self::CredentialExpired => "credential_expired",
            Self::Suspended => "suspended",
            Self::DirectoryUnavailable => "directory_away",
            Self::StoreUnavailable => "store_away",
            Self::Limited => "limited",
            Self::NoHealthyNode => "no_healthy_node",
            Self::UpstreamFull => "upstream_full",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Internal => "internal",
            Self::Usage(_) => "usage",
            Self::Preflight => "preflight",
        }
    }

    /// The type of the problem; `about:blank` where the status says it all (RFC 9457).
    pub(super) const fn problem_type(&self) -> &'static str {
        match self {
            Self::Limited => QUOTA_EXCEEDED,
            Self::NoHealthyNode | Self::UpstreamFull | Self::DirectoryUnavailable | Self::StoreUnavailable => {
                REDUCED_CAPACITY
            }
            _ => "about:blank",
        }
    }

    pub(super) fn title(&self) -> &'static str {
        match self {
            Self::Limited => "Request quota exceeded",
            Self::NoHealthyNode | Self::UpstreamFull | Self::DirectoryUnavailable | Self::StoreUnavailable => {
                "Temporarily reduced capacity"
            }
            other => StatusCode::from_u16(other.status())
                .ok()
                .and_then(|status| status.canonical_reason())
                .unwrap_or("Error"),
        }
    }

    /// Adds the challenges that go with a 401.
    pub(super) fn add_challenges(&self, fields: &mut Fields, context: Option<&RequestContext>) {
        match self {
            Self::TokenRefused(fault) if self.status() == 401 => {
                let error = format!("Bearer error=\"invalid_token\", error_description=\"{fault}\"");
                fields.push(challenge::FIELD, error);
            }
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired => {
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
            Self::CredentialExpired => "The credential has expired; a new one is needed.".to_owned(),
            Self::Suspended => "The customer is suspended; retrying does not help.".to_owned(),
            Self::DirectoryUnavailable => {
                "Credentials cannot be looked up at the moment; retry in a second.".to_owned()
            }
            Self::StoreUnavailable => "A limit cannot be checked at the moment; retry in a second.".to_owned(),
            Self::Limited => match context.map(|context| context.verdict.outcome) {
                Some(Outcome::Deny(Denial::Later { retry_after })) => {
                    let retry = retry_in(retry_after, &mut itoa::Buffer::new()).concat();
                    match context.is_some_and(|context| context.verdict.banned) {
                        true => format!("Too many requests were denied: all are for now. {retry}"),
                        false => retry,
                    }
                }
                Some(Outcome::Deny(Denial::Busy)) => {
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

    /// The status for gRPC clients, which do not read that of HTTP (gRPC's own mapping, with 8 for a limit).
    pub(super) const fn grpc_status(&self) -> u16 {
        match self {
            Self::Limited | Self::BodyTooLarge => 8,
            Self::Suspended | Self::AccessDenied | Self::TokenRefused(TokenFault::WithoutPlan) => 7,
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired | Self::TokenRefused(_) => 16,
            Self::NoRoute | Self::MethodNotAllowed { .. } | Self::CodingUnknown => 12,
            Self::NoHealthyNode
            | Self::UpstreamFull
            | Self::DirectoryUnavailable
            | Self::StoreUnavailable
            | Self::UpstreamFailed => 14,
            Self::UpstreamTimeout => 4,
            Self::Internal => 13,
            _ => 3,
        }
    }
}

/// The parts of the sentence that tells when to retry, with the number in `digits`.
pub(super) fn retry_in(time: Nanos, digits: &mut itoa::Buffer) -> [&str; 3] {
    let seconds = time.secs_ceil().max(1);
    ["Retry in ", digits.format(seconds), if seconds == 1 { " second." } else { " seconds." }]
}
