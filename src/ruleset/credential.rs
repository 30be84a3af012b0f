//! The sources of credentials, and the rules for JSON Web Tokens.

use std::sync::Arc;

use http::HeaderName;
use jsonwebtoken::Algorithm;

use crate::ruleset::PlanId;
use crate::units::Nanos;

/// The place that a credential is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// The value of this header.
    Header(HeaderName),
    /// The value of this query parameter, percent-decoded.
    Query(String),
    /// The value of this cookie.
    Cookie(String),
    /// The token of `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`: the user and the password as `user:password`, or the user alone where the password is
    /// empty (a key that is sent as the name of a user).
    Basic,
    /// The common name in the certificate that the client presents.
    ClientCertificate,
    /// A signed token, which names its caller itself.
    Jwt(Arc<JwtRules>),
}

impl CredentialSource {
    /// The header field that is there for credentials alone, if it is one.
    pub fn own_header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Jwt(rules) => rules.header.as_ref(),
            _ => None,
        }
    }

    /// The place in words: `in the header x-api-key`.
    pub fn place(&self) -> String {
        match self {
            Self::Header(name) => format!("in the header {name}"),
            Self::Query(name) => format!("in the query parameter {name}"),
            Self::Cookie(name) => format!("in the cookie {name}"),
            Self::Basic => "by HTTP basic authentication".to_owned(),
            Self::Bearer => "as a bearer token".to_owned(),
            Self::ClientCertificate => "by a client certificate".to_owned(),
            Self::Jwt(rules) => match &rules.header {
                Some(name) => format!("in the header {name}"),
                None => "as a bearer token".to_owned(),
            },
        }
    }
}

/// The checks of a JSON Web Token, and the claims that describe the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRules {
    /// The header that holds the token alone; `None` for `Authorization: Bearer`.
    pub header: Option<HeaderName>,
    /// The claim that names the customer: the name of a claim, or a way through nested ones (`user.id`).
    pub claim: String,
    /// The claim that names the plan, written likewise.
    pub plan_claim: Option<String>,
    /// The plan of callers whose tokens name no plan, or an unknown one.
    pub plan: Option<PlanId>,
    /// The claims that name groups, each with the position of its level.
    pub group_claims: Vec<(usize, String)>,
    /// The accepted algorithms; if empty, all that fit the key.
    pub algorithms: Vec<Algorithm>,
    /// The accepted issuers; any if empty.
    pub issuers: Vec<String>,
    /// The accepted audiences, one of which the token has to name; any if empty.
    pub audiences: Vec<String>,
    /// How far the issuer's clock may differ from this gateway's.
    pub leeway: Nanos,
    /// Whether a token without a time of expiry is refused.
    pub require_exp: bool,
}

impl JwtRules {
    /// Whether `source` reads credentials of another kind from the place of the tokens.
    pub fn shares_place_with(&self, source: &CredentialSource) -> bool {
        match (source, &self.header) {
            (CredentialSource::Bearer, None) => true,
            (CredentialSource::Header(name), Some(header)) => name == header,
            _ => false,
        }
    }
}
