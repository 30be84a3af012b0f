//! The response to a request over a limit: `over_limit.deny` of a limit, `denied` of a route.

use http::{HeaderName, header};

use crate::config::read::{Field, Section, all_or_none};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::DENIED;
use crate::config::words;
use crate::ruleset::denied::{Body, ContentType, Denied};
use crate::template::{DenialContext, InvalidTemplate, Template, TextKind};

const KINDS: [(&str, ContentType, TextKind); 3] = [
    ("text", ContentType::Text, TextKind::Plain),
    ("json", ContentType::Json, TextKind::Json),
    ("html", ContentType::Html, TextKind::Html),
];

/// Reads the parts of the response that the file sets.
pub(super) fn read(field: &Field<'_>) -> Option<Denied> {
    let section = field.section(&DENIED)?;
    Some(Denied {
        status: section.optional("status", Field::whole),
        grpc_status: section.optional("grpc_status", Field::whole),
        headers: section.value_or("headers", Vec::new(), headers),
        body: section.optional("body", |field| body(field, &section)),
    })
}

fn headers(field: &Field<'_>) -> Option<Vec<(HeaderName, Template)>> {
    field.headers_with(|field| template(&field.clone().secret(), TextKind::Field))
}

fn body(field: &Field<'_>, answer: &Section<'_>) -> Option<Body> {
    let content_type = answer.get("headers").and_then(|headers| content_type(&headers));
    let Some(section) = field.as_mapping() else {
        let kind = content_type.map_or(Some(TextKind::Plain), |field| text_kind(&field))?;
        return template(field, kind).map(Body::Text);
    };
    section.reject_unknown(&KINDS.map(|(name, ..)| name));
    if let Some(content_type) = content_type {
        let problem = content_type.key_error("cannot be set beside bodies of several types");
        return field.fail(problem.expected("one `body`, or no `content-type`"));
    }
    let bodies = all_or_none(section.fields().filter_map(|(name, field)| {
        let (_, content_type, kind) = KINDS.into_iter().find(|(known, ..)| *known == name)?;
        Some(template(&field, kind).map(|template| (content_type, template)))
    }))?;
    match bodies.is_empty() {
        true if section.is_empty() => field.fail(field.error("is empty").expected("`text`, `json` and `html`")),
        true => None,
        false => Some(Body::Negotiated(bodies)),
    }
}

/// The header field that sets the type of the body.
fn content_type<'a>(headers: &Field<'a>) -> Option<Field<'a>> {
    let section = headers.as_mapping()?;
    let (_, field) = section.fields().find(|(name, _)| name.eq_ignore_ascii_case(header::CONTENT_TYPE.as_str()))?;
    Some(field)
}

/// The kind of text that a body with this content type holds.
fn text_kind(content_type: &Field<'_>) -> Option<TextKind> {
    let word = content_type.scalar_value("the type of the body")?;
    let essence = word.text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Some(match essence.as_str() {
        json if json.ends_with("/json") || json.ends_with("+json") => TextKind::Json,
        html if html.ends_with("/html") || html.ends_with("xml") => TextKind::Html,
        _ => TextKind::Plain,
    })
}

fn template(field: &Field<'_>, kind: TextKind) -> Option<Template> {
    let names = words::all_of(DenialContext::NAMES);
    let expected = format!("text in quotes, in which `{{{{ NAME }}}}` stands for a value; there are {names}");
    let quote = |value: String| Template::literal(&value);
    field.parsed_with(&expected, quote, |text| Template::compile(text.to_owned(), kind).map_err(invalid_template))
}

fn invalid_template(problem: InvalidTemplate) -> InvalidValue {
    let (message, hint) = match problem {
        InvalidTemplate::Syntax(reason) => ("is not written as templates are", reason),
        InvalidTemplate::Unknown(name) => {
            let near = words::nearest(&name, DenialContext::NAMES);
            let hint = near.map(words::did_you_mean).unwrap_or_else(|| format!("`{name}` is not known"));
            ("uses a name that stands for nothing", hint)
        }
        InvalidTemplate::Fails(reason) => (
            "fails for some denials",
            format!("{reason}; `plan`, `customer`, `window` and `retry_after` may be missing"),
        ),
        InvalidTemplate::NotJson(reason) => (
            "does not make JSON of every denial",
            format!("{reason}; text needs quotes, `\"{{{{ limit }}}}\"`, and numbers need none"),
        ),
        InvalidTemplate::NotAField => {
            ("holds characters that no header field may hold", "write it in one line".to_owned())
        }
    };
    invalid(message).hint(hint)
}
