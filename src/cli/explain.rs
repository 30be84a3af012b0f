//! `tollgate explain`: what the gateway would do with a request, and why.

use std::error::Error;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::cli::{Format, print, source};
use crate::clock::{Clock, SystemClock};
use crate::gateway::explain::{ExplainedConfig, Explanation, LimitExplanation, Question, RouteMatch};
use crate::gateway::identify::CredentialLookup;
use crate::ruleset::key::KeyHasher;

/// The arguments of `tollgate explain`. No `Debug`: header fields and the URL may hold credentials.
#[derive(Args, Clone)]
pub struct ExplainArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The method of the request
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    pub method: String,
    /// The URL of the request, like `http://api.example.com/v1/orders?page=2`, or a path together with `-H 'host: NAME'`
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// A header field of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    pub headers: Vec<HeaderField>,
    /// The body of the request, for limits that read it
    #[arg(short = 'd', long, value_name = "BODY", default_value = "")]
    pub data: String,
    /// The source address of the connection; whether X-Forwarded-For is trusted depends on `client_address`
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    pub client: IpAddr,
    /// The output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// A header field: its name and its value.
#[derive(Clone)]
pub struct HeaderField(pub String, pub String);

/// Parses a header field.
pub(super) fn field(text: &str) -> Result<HeaderField, &'static str> {
    let (name, value) = text.split_once(':').ok_or("a header field is written `name: value`")?;
    Ok(HeaderField(name.to_owned(), value.to_owned()))
}

/// Prints what the gateway would do with a request.
pub fn execute(args: &ExplainArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let fields = args.headers.iter().map(|HeaderField(name, value)| (name.clone(), value.clone()));
    let question = Question::new(&args.method, &args.url, fields, Some(args.client))?;
    let question = question.with_body(args.data.clone().into_bytes());
    let config = source::open(&args.config)?.parts.rules;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let lookup = CredentialLookup { directory: &config.directory, tokens: config.tokens.as_ref(), clock: &clock };
    let ruleset = &config.ruleset;
    let rules = ExplainedConfig { ruleset, lookup, hashers: &ruleset.hashers(KeyHasher::stable()), pools: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let explanation = runtime.block_on(Explanation::of(rules, &question));
    let printed = match args.format {
        Format::Json => serde_json::to_string_pretty(&explanation)? + "\n",
        Format::Text => text(&explanation),
    };
    Ok(print(out, &printed)?)
}

/// Lines, each indented by its depth.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, depth: usize, text: &str) {
        self.0.extend(std::iter::repeat_n("  ", depth));
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn lines<'t>(&mut self, depth: usize, lines: impl IntoIterator<Item = (&'t str, Option<String>)>) {
        for (what, words) in lines {
            if let Some(words) = words {
                self.line(depth, &format!("{what}: {words}"));
            }
        }
    }
}

fn text(explanation: &Explanation) -> String {
    let Explanation { request, route, caller, bypassed, upstream, limits, answer, now: _ } = explanation;
    let mut page = Page::default();
    if let Some(request) = request {
        let client = request.client.as_deref().unwrap_or("an address that nobody knows");
        page.line(0, &format!("{} {}{} from {client}", request.method, request.host, request.path));
    }
    if let Some(route) = route {
        route_text(&mut page, route);
    }
    if let Some(caller) = caller {
        let who =
            caller.customer.as_deref().map_or_else(|| "nobody known".to_owned(), |name| format!("customer {name}"));
        let plan = caller.plan.as_deref().map(|plan| format!(", plan {plan}")).unwrap_or_default();
        page.line(0, &format!("caller: {who}{plan}"));
        let groups: Vec<String> =
            caller.groups.iter().map(|group| format!("{} {}", group.level, group.group)).collect();
        let credential = caller.credential_place.as_deref().zip(caller.credential.as_deref());
        page.lines(
            1,
            [
                (
                    "credential",
                    Some(credential.map_or("none".to_owned(), |(place, shown)| format!("{place}: {shown}"))),
                ),
                ("groups", Some(groups.join(", ")).filter(|groups| !groups.is_empty())),
                ("has", caller.has_own_terms.then(|| "parameters of its own".to_owned())),
            ],
        );
    }
    if let Some(upstream) = upstream {
        page.line(0, &format!("upstream: {} ({})", upstream.name, upstream.nodes.join(", ")));
        page.line(1, &format!("path: {}", upstream.path));
    }
    if let Some(bypassed) = bypassed {
        page.line(0, &format!("limits: none is charged, the request is exempt {bypassed}"));
    } else if answer.is_none() && limits.is_empty() {
        page.line(0, "limits: none");
    }
    for limit in limits {
        limit_text(&mut page, limit);
    }
    if let Some(answer) = answer {
        page.line(0, &format!("answer: {} ({}): {}", answer.status, answer.cause, answer.detail));
    }
    page.0
}

fn route_text(page: &mut Page, matched: &RouteMatch) {
    page.line(0, &format!("route: {}", matched.name.as_deref().unwrap_or("none")));
    for because in &matched.because {
        page.line(1, because);
    }
    for passed in &matched.passed_over {
        page.line(1, &format!("not {}: {}", passed.route, passed.why));
    }
    if matched.passed_over_more > 0 {
        page.line(1, &format!("and {} more that do not match", matched.passed_over_more));
    }
    if !matched.shadowed.is_empty() {
        page.line(1, &format!("before {}, which would match too", matched.shadowed.join(", ")));
    }
}

fn limit_text(page: &mut Page, limit: &LimitExplanation) {
    let heading = format!("limit {} ({})", limit.limit, limit.algorithm);
    let Some(terms) = &limit.terms else {
        page.line(0, &format!("{heading}: does not apply"));
        page.line(1, &limit.why);
        return;
    };
    page.line(0, &format!("{heading}: {terms}"));
    page.line(1, &limit.why);
    let key = match limit.key.as_slice() {
        [] => "one bucket for all".to_owned(),
        _ if limit.uses_shared_bucket() => {
            let missing: Vec<&str> =
                limit.key.iter().filter(|part| part.value.is_none()).map(|part| part.part.as_str()).collect();
            format!("one bucket for all requests that lack their {}", missing.join(" and "))
        }
        parts => {
            let part = |part: &crate::gateway::explain::KeyPartValue| {
                format!("{} = {}", part.part, part.value.as_deref().unwrap_or_default())
            };
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    };
    let cost = limit.cost.map(|cost| match &limit.cost_rule {
        Some(rule) => format!("{cost} ({rule})"),
        None => cost.to_string(),
    });
    let over = ("over the limit", Some(limit.over_limit.clone()));
    let warns = ("warns", limit.warns.clone());
    page.lines(1, [("key", Some(key)), ("cost", cost), ("charged", limit.charged.clone()), over, warns]);
}
