//! Texts with denial of a denial in them, like `{{ retry_after }}`: compiled and tried out when they are loaded.

use std::fmt;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context};

/// A compiled text. What stands for a particular is escaped as its kind asks.
#[derive(Clone)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    kind: TextKind,
}

/// What a text is, and so how values are written in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// As they are; nothing where there is no value.
    Plain,
    /// With HTML's special characters as entities; nothing where there is no value.
    Html,
    /// As within the quotes of a JSON string, so the quotes are the template's; `null` where there is no value.
    Json,
    /// The value of a header field, in one line; as in [`TextKind::Plain`].
    Field,
}

/// What a template can tell of a denial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenialContext<'a> {
    /// The limit that denies, where there are several the one that denies for longest.
    pub limit: &'a str,
    /// The caller's plan.
    pub plan: Option<&'a str>,
    /// The route.
    pub route: &'a str,
    /// The caller's own name; none for a caller without a credential.
    pub customer: Option<&'a str>,
    /// The most that the limit admits at once, in tokens.
    pub quota: u64,
    /// The time in which a spent quota is whole again, in seconds; none where time does not bring it back.
    pub window: Option<u64>,
    /// The tokens that are left.
    pub remaining: u64,
    /// Seconds until the same request would be admitted, at least 1; none where no wait helps.
    pub retry_after: Option<u64>,
    /// Seconds until the quota is whole again.
    pub reset: u64,
    /// The status of the answer.
    pub status: u16,
    /// What happened, in a few words.
    pub title: &'a str,
    /// What to do about it.
    pub detail: &'a str,
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// It is not written as templates are.
    #[error("{0}")]
    Syntax(String),
    /// It names something that no denial has.
    #[error("`{0}` is not known")]
    Unknown(String),
    /// It fails for some denials.
    #[error("{0}")]
    Fails(String),
    /// What comes out is not JSON.
    #[error("{0}")]
    NotJson(String),
    /// What comes out is not the value of a header field.
    #[error("it holds characters that no header field may hold")]
    NotAField,
}

/// How many steps a template may take: more than any that ends.
const MOST_STEPS: u64 = 10_000;

/// The name that the only template of an environment has.
const NAME: &str = "";

// === impl Template ===

impl Template {
    /// Compiles `source` and tries it on denials of every sort.
    pub fn compile(source: String, kind: TextKind) -> Result<Self, InvalidTemplate> {
        let mut environment = Environment::empty();
        let mut syntax = SyntaxConfig::builder();
        syntax.keep_trailing_newline(true);
        environment.set_syntax(syntax.build().map_err(|error| InvalidTemplate::Syntax(description(&error)))?);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(move |out, _: &mut State<'_, '_>, value| write_value(out, value, kind));
        let text: Arc<str> = source.as_str().into();
        environment.add_template_owned(NAME, source).map_err(|error| InvalidTemplate::Syntax(description(&error)))?;
        let template = Self { environment: Arc::new(environment), source: text, kind };
        template.check_names()?;
        SAMPLES.iter().try_for_each(|sample| template.try_on(sample))?;
        Ok(template)
    }

    /// `text` as the source of a template that stands for it.
    pub fn literal(text: &str) -> String {
        text.replace('{', "{{ '{' }}")
    }

    /// The text for one denial.
    ///
    /// Errors: the template fails for this denial, in a way that no sample showed; or what comes out is not JSON.
    pub fn render(&self, denial: &DenialContext<'_>) -> Result<String, InvalidTemplate> {
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(denial.to_value()));
        let text = rendered.map_err(|error| match error.kind() {
            ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
                InvalidTemplate::Syntax("there are no filters, tests or functions".to_owned())
            }
            _ => InvalidTemplate::Fails(description(&error)),
        })?;
        if self.kind == TextKind::Json {
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
        // a customer's name may be anything; a field that it spoils is left out
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
    /// The text may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("kind", &self.kind).finish_non_exhaustive()
    }
}

fn is_field_value(text: &str) -> bool {
    http::HeaderValue::from_str(text).is_ok()
}

/// Line and reason.
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
        (true, TextKind::Json) => out.write_str("null"),
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

// === impl DenialContext ===

/// A name with everything in it that means something to somebody.
const HOSTILE: Option<&str> = Some("\"\\</script>&'{{ limit }}\n\t\u{0}\u{2028}é");

/// Denials of every sort: all there is to say, next to nothing, and names that want to be escaped.
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
    /// What templates can name.
    pub const NAMES: [&'static str; 12] = [
        "limit",
        "plan",
        "route",
        "customer",
        "quota",
        "window",
        "remaining",
        "retry_after",
        "reset",
        "status",
        "title",
        "detail",
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
    fn what_is_not_there_is_nothing_or_null() {
        assert_eq!(rendered("<{{ plan }}{{ retry_after }}>", TextKind::Plain, 1), "<>");
        assert_eq!(rendered("{% if plan %}on {{ plan }}{% else %}none{% endif %}", TextKind::Html, 1), "none");
        assert_eq!(rendered("{\"wait\": {{ retry_after }}}", TextKind::Json, 1), "{\"wait\": null}");
        assert_eq!(rendered("{{ retry_after or 60 }}", TextKind::Field, 1), "60");
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
    fn what_fails_or_is_not_known_is_refused() {
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
