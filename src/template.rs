//! Text templates with values of a denial, like `{{ retry_after }}`: compiled and tried on samples when they are loaded.

use std::fmt;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context};

/// A compiled text template. Its values are escaped as its [`TextKind`] requires.
#[derive(Clone)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    kind: TextKind,
}

/// The format of a text, which decides how values are written in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// Plain text: values are not escaped; a missing value is empty.
    Plain,
    /// HTML: special characters of values become entities; a missing value is empty.
    Html,
    /// JSON: values are escaped as inside a JSON string, and the template writes the quotes; a missing value is empty between
    /// quotes, and `null` elsewhere.
    Json,
    /// The value of a header field, in one line; values are written as in [`TextKind::Plain`].
    Field,
}

/// The values of a denial that a template can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenialContext<'a> {
    /// The limit that denies; if there are several, the one that denies for longest.
    pub limit: &'a str,
    /// The caller's plan.
    pub plan: Option<&'a str>,
    /// The route.
    pub route: &'a str,
    /// The customer's name; none for a caller without a credential.
    pub customer: Option<&'a str>,
    /// The most that the limit admits at once, in tokens.
    pub quota: u64,
    /// The seconds in which a spent quota is full again; none if it does not refill with time.
    pub window: Option<u64>,
    /// The tokens that are left.
    pub remaining: u64,
    /// Seconds until the same request would be admitted, at least 1; none if no wait helps.
    pub retry_after: Option<u64>,
    /// Seconds until the quota is full again.
    pub reset: u64,
    /// The status of the response.
    pub status: u16,
    /// A short description of the denial.
    pub title: &'a str,
    /// Advice for the client, like `Retry in 1 second.`
    pub detail: &'a str,
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// Its syntax is wrong.
    #[error("{0}")]
    Syntax(String),
    /// It uses a name that no denial has.
    #[error("`{0}` is not known")]
    Unknown(String),
    /// Rendering fails for some denials.
    #[error("{0}")]
    Fails(String),
    /// The rendered text is not JSON.
    #[error("{0}")]
    NotJson(String),
    /// The rendered text is not a valid value of a header field.
    #[error("it holds characters that no header field may hold")]
    NotAField,
}

/// The most steps of one rendering, so that a template with long loops fails.
const MAX_STEPS: u64 = 10_000;

/// Stands for a missing value in JSON until [`fill_missing`]; no JSON has this character.
const MISSING: &str = "\0";

/// The name that the only template of an environment has.
const NAME: &str = "";

// === impl Template ===

impl Template {
    /// Compiles `source` and tries it on sample denials of every kind.
    pub fn compile(source: String, kind: TextKind) -> Result<Self, InvalidTemplate> {
        let mut environment = Environment::empty();
        let mut syntax = SyntaxConfig::builder();
        syntax.keep_trailing_newline(true);
        environment.set_syntax(syntax.build().map_err(|error| InvalidTemplate::Syntax(description(&error)))?);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(move |out, _: &mut State<'_, '_>, value| write_value(out, value, kind));
        let text: Arc<str> = source.as_str().into();
        environment.add_template_owned(NAME, source).map_err(|error| InvalidTemplate::Syntax(description(&error)))?;
        let template = Self { environment: Arc::new(environment), source: text, kind };
        template.check_names()?;
        SAMPLES.iter().try_for_each(|sample| template.try_on(sample))?;
        Ok(template)
    }

    /// The source of a template that renders exactly `text`.
    pub fn literal(text: &str) -> String {
        text.replace('{', "{{ '{' }}")
    }

    /// The text for one denial.
    ///
    /// Errors: the template fails for this denial, in a way that no sample showed; or the rendered text is not JSON.
    pub fn render(&self, denial: &DenialContext<'_>) -> Result<String, InvalidTemplate> {
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(denial.to_value()));
        let mut text = rendered.map_err(|error| match error.kind() {
            ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
                InvalidTemplate::Syntax("there are no filters, tests or functions".to_owned())
            }
            _ => InvalidTemplate::Fails(description(&error)),
        })?;
        if self.kind == TextKind::Json {
            text = fill_missing(text);
            serde_json::from_str::<serde::de::IgnoredAny>(&text)
                .map_err(|error| InvalidTemplate::NotJson(error.to_string()))?;
        }
        Ok(text)
    }

    fn check_names(&self) -> Result<(), InvalidTemplate> {
        let template =
            self.environment.get_template(NAME).map_err(|error| InvalidTemplate::Syntax(description(&error)))?;
        let mut unknown: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        unknown.retain(|name| !DenialContext::NAMES.contains(&name.as_str()));
        unknown.sort();
        unknown.into_iter().next().map_or(Ok(()), |name| Err(InvalidTemplate::Unknown(name)))
    }

    fn try_on(&self, sample: &DenialContext<'_>) -> Result<(), InvalidTemplate> {
        let text = self.render(sample)?;
        // a customer's name may hold any character; the response leaves out a field that becomes invalid by it
        let fine = self.kind != TextKind::Field || sample.customer == HOSTILE || is_field_value(&text);
        if fine { Ok(()) } else { Err(InvalidTemplate::NotAField) }
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.kind == other.kind
    }
}

impl Eq for Template {}

impl fmt::Debug for Template {
    /// Omits the text, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("kind", &self.kind).finish_non_exhaustive()
    }
}

fn is_field_value(text: &str) -> bool {
    http::HeaderValue::from_str(text).is_ok()
}

/// The line and the reason of an error.
fn description(error: &Error) -> String {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) if line > 1 => format!("line {line}: {reason}"),
        _ => reason,
    }
}

fn write_value(out: &mut Output<'_>, value: &Value, kind: TextKind) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "a value is not known"));
    }
    let written = match (value.is_none(), kind) {
        (true, TextKind::Json) => out.write_str(MISSING),
        (true, _) => Ok(()),
        (false, TextKind::Plain | TextKind::Field) => write!(out, "{value}"),
        (false, TextKind::Html) => write!(out, "{}", minijinja::HtmlEscape(&value.to_string())),
        (false, TextKind::Json) => {
            let quoted = serde_json::to_string(&value.to_string()).unwrap_or_default();
            out.write_str(quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default())
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
}

/// JSON with its missing values: nothing in strings, and `null` elsewhere.
fn fill_missing(json: String) -> String {
    if !json.contains(MISSING) {
        return json;
    }
    let (mut filled, mut in_string, mut escaped) = (String::with_capacity(json.len()), false, false);
    for letter in json.chars() {
        match letter {
            '\0' if in_string => continue,
            '\0' => filled.push_str("null"),
            _ => filled.push(letter),
        }
        in_string ^= letter == '"' && !escaped;
        escaped = in_string && letter == '\\' && !escaped;
    }
    filled
}

// === impl DenialContext ===

/// A name with characters that are special in HTML, JSON, templates or header fields.
const HOSTILE: Option<&str> = Some("\"\\</script>&'{{ limit }}\n\t\u{0}\u{2028}é");

/// Sample denials: one with all values, one with as few as possible, and one with names that need escaping.
const SAMPLES: [DenialContext<'static>; 3] = [
    DenialContext {
        limit: "per-customer",
        plan: Some("free"),
        route: "orders",
        customer: Some("acme"),
        quota: 20,
        window: Some(2),
        remaining: 3,
        retry_after: Some(1),
        reset: 2,
        status: 429,
        title: "Request quota exceeded",
        detail: "Retry in 1 second.",
    },
    DenialContext {
        limit: "a",
        plan: None,
        route: "a",
        customer: None,
        quota: 1,
        window: None,
        remaining: 0,
        retry_after: None,
        reset: 0,
        status: 599,
        title: "a",
        detail: "a",
    },
    DenialContext {
        limit: "a:b/c",
        plan: Some("a:b/c"),
        route: "a:b/c",
        customer: HOSTILE,
        quota: u64::MAX,
        window: Some(u64::MAX),
        remaining: u64::MAX,
        retry_after: Some(u64::MAX),
        reset: u64::MAX,
        status: 400,
        title: "a",
        detail: "a",
    },
];

impl DenialContext<'_> {
    /// The names that templates can use.
    pub const NAMES: [&'static str; 12] = [
        "limit", "plan", "route", "customer", "quota", "window", "remaining", "retry_after", "reset", "status",
        "title", "detail",
    ];

    fn to_value(&self) -> Value {
        let Self { limit, plan, route, customer, quota, window, remaining, retry_after, reset, status, title, detail } =
            *self;
        context! {
            limit, plan, route, customer, quota, window, remaining, retry_after, reset, status, title, detail
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str, kind: TextKind, sample: usize) -> String {
        Template::compile(source.to_owned(), kind).unwrap().render(&SAMPLES[sample]).unwrap()
    }

    fn invalid(source: &str, kind: TextKind) -> InvalidTemplate {
        Template::compile(source.to_owned(), kind).unwrap_err()
    }

    #[test]
    fn every_name_stands_for_its_particular() {
        let value = SAMPLES[0].to_value();
        for name in DenialContext::NAMES {
            assert!(!value.get_attr(name).unwrap().is_undefined(), "{name}");
        }
        let text = "{{ limit }}/{{ plan }}: {{ remaining }} of {{ quota }}, retry in {{ retry_after }} s\n";
        assert_eq!(rendered(text, TextKind::Plain, 0), "per-customer/free: 3 of 20, retry in 1 s\n");
    }

    #[test]
    fn the_guide_lists_every_name() {
        let guide = include_str!("../docs/guide.md");
        DenialContext::NAMES.iter().for_each(|name| assert!(guide.contains(&format!("\n| `{name}` |")), "{name}"));
    }

    #[test]
    fn a_missing_value_is_nothing_or_null() {
        assert_eq!(rendered("<{{ plan }}{{ retry_after }}>", TextKind::Plain, 1), "<>");
        assert_eq!(rendered("{% if plan %}on {{ plan }}{% else %}none{% endif %}", TextKind::Html, 1), "none");
        assert_eq!(rendered("{\"wait\": {{ retry_after }}}", TextKind::Json, 1), "{\"wait\": null}");
        assert_eq!(rendered("{{ retry_after or 60 }}", TextKind::Field, 1), "60");
    }

    #[test]
    fn a_missing_value_is_empty_inside_a_string_of_json() {
        let source =
            r#"{"who": "{{ customer }}", "plan": "on {{ plan }}", "say": "\"{{ customer }}\"", "wait": {{ window }}}"#;
        let empty = r#"{"who": "", "plan": "on ", "say": "\"\"", "wait": null}"#;
        assert_eq!(rendered(source, TextKind::Json, 1), empty);
        let full = r#"{"who": "acme", "plan": "on free", "say": "\"acme\"", "wait": 2}"#;
        assert_eq!(rendered(source, TextKind::Json, 0), full);
        let branched = r#"{"a\\": {{ window }}, "b": "{% if plan %}on{% else %}{{ plan }}{% endif %}"}"#;
        assert_eq!(rendered(branched, TextKind::Json, 1), r#"{"a\\": null, "b": ""}"#);
    }

    #[test]
    fn values_are_escaped_as_the_text_asks() {
        let json = rendered("{\"customer\": \"{{ customer }}\", \"quota\": {{ quota }}}", TextKind::Json, 2);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((parsed["customer"].as_str(), parsed["quota"].as_u64()), (HOSTILE, Some(u64::MAX)));
        let html = rendered("<p title='{{ customer }}'>{{ customer }}</p>", TextKind::Html, 2);
        assert!(!html.contains("</script>") && !html.contains('"') && html.contains("&lt;"), "{html}");
        assert_eq!(html.matches('\'').count(), 2, "{html}");
        assert!(html.contains("{{ limit }}"), "a value is no template: {html}");
    }

    #[test]
    fn a_template_that_fails_or_uses_unknown_names_is_refused() {
        assert_eq!(invalid("{{ retry_afer }}", TextKind::Plain), InvalidTemplate::Unknown("retry_afer".to_owned()));
        assert_eq!(
            invalid("{% if false %}{{ x }}{% endif %}", TextKind::Plain),
            InvalidTemplate::Unknown("x".to_owned())
        );
        for bad in ["{{ limit", "{% if limit %}", "{{ limit | shout }}", "{% include 'x' %}"] {
            assert!(
                matches!(invalid(bad, TextKind::Plain), InvalidTemplate::Syntax(_) | InvalidTemplate::Fails(_)),
                "{bad}"
            );
        }
        assert!(
            matches!(invalid("{{ 1 // remaining }}", TextKind::Plain), InvalidTemplate::Fails(_)),
            "nothing may be left"
        );
        assert!(
            matches!(invalid("{{ retry_after + 1 }}", TextKind::Plain), InvalidTemplate::Fails(_)),
            "no wait may help"
        );
        for bad in ["{\"limit\": {{ limit }}}", "{\"a\": 1", "{% if plan %}{}{% endif %}"] {
            assert!(matches!(invalid(bad, TextKind::Json), InvalidTemplate::NotJson(_)), "{bad}");
        }
        assert_eq!(invalid("{{ limit }}\n", TextKind::Field), InvalidTemplate::NotAField);
        assert!(Template::compile("{{ customer }}".to_owned(), TextKind::Field).is_ok());
    }

    #[test]
    fn a_literal_stands_for_itself() {
        for text in ["{{ limit }}", "{% if %}{# x #}", "{", "a{{b}}c{", "{\"a\": 1}"] {
            assert_eq!(rendered(&Template::literal(text), TextKind::Plain, 0), text);
        }
        let source = Template::literal("{") + "{ limit }}";
        assert_eq!(rendered(&source, TextKind::Plain, 0), "{{ limit }}");
    }

    #[test]
    fn a_template_that_goes_on_and_on_is_refused() {
        let digits = "'0123456789'";
        let nested = |depth: usize| {
            let begin: String = (0..depth).map(|level| format!("{{% for a{level} in {digits} %}}")).collect();
            format!("{begin}x{}", "{% endfor %}".repeat(depth))
        };
        assert!(matches!(invalid(&nested(8), TextKind::Plain), InvalidTemplate::Fails(_)));
    }
}
