//! What a client is told about the credential that it needs (RFC 9110, section 11.6.1; RFC 6750, section 3).

use http::{HeaderName, HeaderValue, header};

use crate::customers::TokenFault;
use crate::proxy::context::Context;
use crate::proxy::respond::Answer;
use crate::ruleset::CredentialSource;

const BEARER: HeaderValue = HeaderValue::from_static("Bearer");
const BASIC: HeaderValue = HeaderValue::from_static("Basic realm=\"api\", charset=\"UTF-8\"");

/// The challenges that go with a 401.
pub(super) fn challenges(answer: &Answer, context: Option<&Context>) -> Vec<(HeaderName, HeaderValue)> {
    let values = match answer {
        Answer::TokenRefused(fault) if answer.status() == 401 => token_challenge(*fault).into_iter().collect(),
        Answer::CredentialMissing | Answer::CredentialUnknown | Answer::CredentialExpired => match context {
            Some(context) => schemes(context),
            None => vec![BEARER],
        },
        _ => Vec::new(),
    };
    values.into_iter().map(|value| (header::WWW_AUTHENTICATE, value)).collect()
}

/// Says that a credential is needed, and where it belongs.
pub(super) fn request_for_credential(context: Option<&Context>) -> String {
    let mut places: Vec<String> = Vec::new();
    for place in context.map_or(&[][..], sources).iter().map(CredentialSource::place) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    match places.is_empty() {
        true => "A credential is needed here.".to_owned(),
        false => format!("A credential is needed: {}.", places.join(" or ")),
    }
}

/// The fault as a sentence.
pub(super) fn sentence(fault: TokenFault) -> String {
    let words = fault.to_string();
    let mut letters = words.chars();
    letters.next().map(|first| format!("{}{}.", first.to_uppercase(), letters.as_str())).unwrap_or_default()
}

fn token_challenge(fault: TokenFault) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("Bearer error=\"invalid_token\", error_description=\"{fault}\"")).ok()
}

/// `Bearer` stands for keys in fields of their own too, which have no scheme.
fn schemes(context: &Context) -> Vec<HeaderValue> {
    let sources = sources(context);
    let basic = sources.contains(&CredentialSource::Basic);
    let others = sources.iter().any(|source| *source != CredentialSource::Basic);
    match (basic, others) {
        (true, true) => vec![BEARER, BASIC],
        (true, false) => vec![BASIC],
        (false, _) => vec![BEARER],
    }
}

fn sources(context: &Context) -> &[CredentialSource] {
    context.live.ruleset.customers.as_ref().map_or(&[][..], |rules| &rules.identify)
}
