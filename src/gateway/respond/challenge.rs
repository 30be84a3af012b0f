//! The challenge that tells a client which credential it needs (RFC 9110, section 11.6.1; RFC 6750, section 3).

use crate::customers::TokenFault;
use crate::gateway::request_context::RequestContext;
use crate::ruleset::CredentialSource;

const BEARER: &str = "Bearer";
const BASIC: &str = "Basic realm=\"api\", charset=\"UTF-8\"";
pub(super) const FIELD: &str = "www-authenticate";

/// Says that a credential is needed, and where it belongs.
pub(super) fn request_for_credential(context: Option<&RequestContext>) -> String {
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

/// The schemes of the challenge. `Bearer` also stands for keys in fields of their own, which have no scheme.
pub(super) fn schemes(context: Option<&RequestContext>) -> &'static [&'static str] {
    let sources = context.map_or(&[][..], sources);
    let basic = sources.contains(&CredentialSource::Basic);
    let others = sources.iter().any(|source| *source != CredentialSource::Basic);
    match (basic, others) {
        (true, true) => &[BEARER, BASIC],
        (true, false) => &[BASIC],
        (false, _) => &[BEARER],
    }
}

fn sources(context: &RequestContext) -> &[CredentialSource] {
    context.active.ruleset.customers.as_ref().map_or(&[][..], |rules| &rules.identify)
}
