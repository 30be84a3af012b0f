//! The fields that let a script of another site read a response (the CORS protocol of the Fetch standard).
//!
//! The gateway adds them to its own responses, including preflights. On responses that the upstream lets other sites read,
//! it exposes its own header fields.

use http::{HeaderName, Method};

use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{Answer, GRPC_MESSAGE, GRPC_STATUS, configured, fields};
use crate::ruleset::Origins;
use crate::template::Template;

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const EXPOSE_HEADERS: &str = "access-control-expose-headers";

/// Lets scripts of the site that asks read a response of the gateway itself, unless the configuration set such fields.
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
    let configured = configured(answer, Some(context));
    expose(fields, 0, configured.map_or(&[][..], |configured| configured.settings.headers));
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

/// The elements of the field `name` of a preflight that `is_word` accepts.
fn asked<'r>(request: &'r Fields, name: &'r str, is_word: impl Fn(&[u8]) -> bool) -> Vec<&'r [u8]> {
    request.elements(name).filter(|word| is_word(word)).collect()
}

/// Exposes the gateway's own fields, which are those in `fields` from the position `first` on, to scripts, if the upstream
/// lets other sites read its response, whose fields are `upstream_fields`.
pub fn add_exposed(fields: &mut Fields, first: usize, upstream_fields: &Fields, context: &RequestContext) {
    if context.active.ruleset.cors.is_some() && upstream_fields.contains(ALLOW_ORIGIN) {
        expose(fields, first, &[]);
    }
}

/// Exposes fields that tell a client its limits, the status of a gRPC call, and the `own` fields of a limit, which scripts could
/// not read otherwise. Fields before the position `first` are left out.
fn expose(fields: &mut Fields, first: usize, own: &[(HeaderName, Template)]) {
    let is = |name: &[u8], other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    let is_exposed = |name: &[u8]| {
        ["retry-after", GRPC_STATUS, GRPC_MESSAGE].iter().any(|exposed| is(name, exposed))
            || fields::is_limit_field(name)
            || own.iter().any(|(own, _)| is(name, own.as_str()))
    };
    let names = fields.iter().skip(first).map(|field| field.name).filter(|name| is_exposed(name));
    let exposed: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    push_list(fields, EXPOSE_HEADERS, &exposed);
}

fn push_list(fields: &mut Fields, name: &str, elements: &[impl AsRef<[u8]>]) {
    if !elements.is_empty() {
        let elements: Vec<&[u8]> = elements.iter().map(AsRef::as_ref).collect();
        fields.push(name, elements.join(&b", "[..]));
    }
}
