//! Where credentials are read from, and what tokens are held to.

use std::sync::Arc;

use http::HeaderName;
use jsonwebtoken::Algorithm;

use crate::ruleset::PlanId;
use crate::units::Nanos;

/// Where a credential is read from.
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
    /// The common name in the certificate that the client shows.
    ClientCertificate,
    /// A signed token, which says itself who is calling.
    Jwt(Arc<JwtRules>),
}

impl CredentialSource {
    /// Where it is, in words: `in the header x-api-key`.
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

/// What a JSON Web Token is held to, and what it says of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRules {
    /// The header that holds the token alone; `None` for `Authorization: Bearer`.
    pub header: Option<HeaderName>,
    /// The claim that names the customer: the name of a claim, or a way through nested ones (`user.id`).
    pub claim: String,
    /// The claim that names the plan, written likewise.
    pub plan_claim: Option<String>,
    /// The plan of tokens that name none, or none that is known.
    pub plan: Option<PlanId>,
    /// The claims that name groups, with the positions of their levels.
    pub group_claims: Vec<(usize, String)>,
    /// The algorithms that are accepted; all that fit a key if empty.
    pub algorithms: Vec<Algorithm>,
    /// One of these has to have issued the token; anybody may have if empty.
    pub issuers: Vec<String>,
    /// The token has to be meant for one of these; it may be meant for anybody if empty.
    pub audiences: Vec<String>,
    /// How far the issuer's clock may be off.
    pub leeway: Nanos,
    /// Whether a token without a time of expiry is refused.
    pub require_exp: bool,
}

impl JwtRules {
    /// Whether `source` reads credentials of another kind from where the tokens are.
    pub fn shares_place_with(&self, source: &CredentialSource) -> bool {
        match (source, &self.header) {
            (CredentialSource::Bearer, None) => true,
            (CredentialSource::Header(name), Some(header)) => name == header,
            _ => false,
        }
    }
}
