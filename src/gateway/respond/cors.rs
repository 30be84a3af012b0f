//! What browsers need before a script of another site may read an answer (the CORS protocol of the Fetch standard).
//!
//! Answers that tollgate itself gives, preflights among them, and the names of its header fields on answers that the
//! upstream lets other sites read.

use http::{HeaderName, Method};

use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{Answer, fields};
use crate::ruleset::Origins;

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const EXPOSE_HEADERS: &str = "access-control-expose-headers";

/// Lets the site that asks read an answer of tollgate's own, unless the configuration gave the answer such fields.
/// `request` holds the fields of the request.
pub(super) fn add_to_answer(fields: &mut Fields, context: &RequestContext, answer: &Answer, request: &Fields) {
    let Some(cors) = &context.active.ruleset.cors else { return };
    if fields.contains(ALLOW_ORIGIN) {
        return;
    }
    if cors.origins != Origins::Any {
        fields.push("vary", "Origin");
    }
    let Some(origin) = context.cors.get() else { return };
    fields.push(ALLOW_ORIGIN, if cors.origins == Origins::Any { "*" } else { origin });
    if cors.credentials {
        fields.push("access-control-allow-credentials", "true");
    }
    expose(fields, 0);
    if *answer == Answer::Preflight {
        let methods = asked(request, "access-control-request-method", |method| Method::from_bytes(method).is_ok());
        push_list(fields, "access-control-allow-methods", &methods);
        let names = asked(request, "access-control-request-headers", |name| HeaderName::from_bytes(name).is_ok());
        push_list(fields, "access-control-allow-headers", &names);
        if let Some(time) = cors.max_age {
            fields.push_number("access-control-max-age", time.secs_ceil());
        }
    }
}

/// What a preflight asks for in the field `name`, as far as it is made of words that `is_word` knows.
fn asked<'r>(request: &'r Fields, name: &'r str, is_word: impl Fn(&[u8]) -> bool) -> Vec<&'r [u8]> {
    request.elements(name).filter(|word| is_word(word)).collect()
}

/// Adds to `fields` which of them scripts may read, where the upstream lets other sites read its response, whose fields
/// are `theirs`. Those from the position `first` on are tollgate's own.
pub fn add_exposed(fields: &mut Fields, first: usize, theirs: &Fields, context: &RequestContext) {
    if context.active.ruleset.cors.is_some() && theirs.contains(ALLOW_ORIGIN) {
        expose(fields, first);
    }
}

/// Names in `fields` those of them that tell a client where it stands and that scripts could not read otherwise, as far as
/// they stand at the position `first` or behind it.
fn expose(fields: &mut Fields, first: usize) {
    let is_told = |name: &[u8]| name.eq_ignore_ascii_case(b"retry-after") || fields::is_limit_field(name);
    let names = fields.iter().skip(first).map(|field| field.name).filter(|name| is_told(name));
    let exposed: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    push_list(fields, EXPOSE_HEADERS, &exposed);
}

fn push_list(fields: &mut Fields, name: &str, elements: &[impl AsRef<[u8]>]) {
    if !elements.is_empty() {
        let elements: Vec<&[u8]> = elements.iter().map(AsRef::as_ref).collect();
        fields.push(name, elements.join(&b", "[..]));
    }
}
