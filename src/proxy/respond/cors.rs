//! What browsers need before a script of another site may read an answer (the CORS protocol of the Fetch standard).
//!
//! Answers that tollgate itself gives, preflights among them, and the names of its header fields on answers that the
//! upstream lets other sites read.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::http::fields::Fields;
use crate::proxy::context::Context;
use crate::proxy::respond::{Answer, fields};
use crate::ruleset::{Origins, Ruleset};

const ANY: HeaderValue = HeaderValue::from_static("*");

/// The site whose script asks, if its scripts may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reader(Option<HeaderValue>);

impl Reader {
    /// The site that a request is from.
    pub fn of(ruleset: &Ruleset, headers: &HeaderMap) -> Self {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (Some(cors), Some(origin), None) = (&ruleset.cors, origins.next(), origins.next()) else {
            return Self(None);
        };
        Self(origin.to_str().is_ok_and(|origin| cors.admits(origin)).then(|| origin.clone()))
    }
}

/// Lets the site that asks read an answer of tollgate's own, unless the configuration gave the answer such fields.
/// `request` is the head of the request.
pub(super) fn add_to_answer(
    fields: &mut Vec<(HeaderName, HeaderValue)>,
    context: &Context,
    answer: &Answer,
    request: &HeaderMap,
) {
    let Some(cors) = &context.live.ruleset.cors else { return };
    if fields.iter().any(|(name, _)| *name == header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        return;
    }
    if cors.origins != Origins::Any {
        fields.push((header::VARY, HeaderValue::from_static("Origin")));
    }
    let Some(origin) = &context.cors.0 else { return };
    let named = if cors.origins == Origins::Any { ANY } else { origin.clone() };
    let exposed = exposed(fields);
    fields.push((header::ACCESS_CONTROL_ALLOW_ORIGIN, named));
    if cors.credentials {
        fields.push((header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true")));
    }
    fields.extend(exposed.map(|value| (header::ACCESS_CONTROL_EXPOSE_HEADERS, value)));
    if *answer == Answer::Preflight {
        let methods =
            asked(request, &header::ACCESS_CONTROL_REQUEST_METHOD, |method| Method::from_bytes(method).is_ok());
        fields.extend(methods.map(|value| (header::ACCESS_CONTROL_ALLOW_METHODS, value)));
        let is_name = |name: &[u8]| HeaderName::from_bytes(name).is_ok();
        let names = asked(request, &header::ACCESS_CONTROL_REQUEST_HEADERS, is_name);
        fields.extend(names.map(|value| (header::ACCESS_CONTROL_ALLOW_HEADERS, value)));
        let seconds = cors.max_age.map(|time| HeaderValue::from(time.secs_ceil()));
        fields.extend(seconds.map(|value| (header::ACCESS_CONTROL_MAX_AGE, value)));
    }
}

/// What a preflight asks for in the field `name`, as far as it is made of words that `is_word` knows.
fn asked(request: &HeaderMap, name: &HeaderName, is_word: impl Fn(&[u8]) -> bool) -> Option<HeaderValue> {
    let words = request.get_all(name).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let words: Vec<&[u8]> = words.map(<[u8]>::trim_ascii).filter(|word| is_word(word)).collect();
    (!words.is_empty()).then(|| HeaderValue::from_bytes(&words.join(&b", "[..])).ok()).flatten()
}

/// What is added to the fields that scripts may read of an upstream's response, when `added` goes with it: nothing
/// unless the upstream lets other sites read it.
pub fn exposed_with(theirs: &Fields, added: &[(HeaderName, HeaderValue)], context: &Context) -> Option<HeaderValue> {
    let shared = context.live.ruleset.cors.is_some() && theirs.contains(header::ACCESS_CONTROL_ALLOW_ORIGIN.as_str());
    shared.then(|| exposed(added)).flatten()
}

/// Those of `fields` that tell a client where it stands and that scripts could not read otherwise.
fn exposed(fields: &[(HeaderName, HeaderValue)]) -> Option<HeaderValue> {
    let told = |name: &HeaderName| *name == header::RETRY_AFTER || fields::NAMES.contains(name);
    let names: Vec<&str> =
        fields.iter().map(|(name, _)| name).filter(|name| told(name)).map(HeaderName::as_str).collect();
    (!names.is_empty()).then(|| HeaderValue::try_from(names.join(", ")).ok()).flatten()
}
