//! The response to a request over a limit, as the limit and the route configure it.

use http::{HeaderName, HeaderValue};

use super::{Answer, PROBLEM_JSON, accept, fields, spread_retry_after};
use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::ruleset::ListenerService;
use crate::ruleset::denied::{Body, ContentType, DeniedAnswer};
use crate::ruleset::limit::Limit;
use crate::ruleset::verdict::Standing;
use crate::template::{DenialContext, Template};
use crate::units::Nanos;

const TEXT: &str = "text/plain; charset=utf-8";

/// The configured parts of the response, and the data for their texts.
pub(super) struct ConfiguredDenial<'a> {
    pub(super) settings: DeniedAnswer<'a>,
    context: &'a RequestContext,
    limit: &'a Limit,
    standing: &'a Standing,
}

/// A body in place of the default one.
pub(super) struct RenderedBody {
    pub(super) content_type: &'static str,
    pub(super) text: String,
}

impl<'a> ConfiguredDenial<'a> {
    /// The configured parts of the limit that is reported, and those of the route where the limit configures nothing.
    pub(super) fn of(context: &'a RequestContext) -> Option<Self> {
        let standing = context.verdict.standings.get(context.verdict.tightest?)?;
        let limit = context.active.ruleset.limits.get(standing.limit.0)?;
        let own = limit.over_limit.denied()?;
        let mut settings = own.or(context.matched_route().map_or(own, |route| &route.denied));
        if context.serves == ListenerService::RateLimitService {
            // this protocol has no field for a status: Envoy sends its own one
            settings.status = None;
        }
        Some(Self { settings, context, limit, standing })
    }

    /// The configured body, of the type that the request prefers; `None` for the default one.
    pub(super) fn body(&self, status: u16, request: &Fields) -> Option<RenderedBody> {
        match self.settings.body? {
            Body::Text(template) => self.render_body(TEXT, template, status),
            Body::Negotiated(bodies) => {
                let (content_type, template) = negotiated(bodies, request)?;
                self.render_body(content_type, template, status)
            }
        }
    }

    /// Whether the body depends on the request's preference.
    pub(super) const fn varies(&self) -> bool {
        matches!(self.settings.body, Some(Body::Negotiated(_)))
    }

    /// The fields of the response with the configured ones, which replace `fields` of the same names, except `kept` ones.
    pub(super) fn replace_fields(&self, fields: Fields, status: u16, kept: &[&str]) -> Fields {
        let mut own = self.fields(status);
        own.retain(|(name, _)| !kept.contains(&name.as_str()));
        if own.is_empty() {
            return fields;
        }
        let mut replaced = Fields::default();
        let others = fields.iter().filter(|field| !own.iter().any(|(name, _)| field.has_name(name.as_str())));
        others.for_each(|field| replaced.push_field(field));
        own.iter().for_each(|(name, value)| replaced.push(name, value));
        replaced
    }

    /// The configured header fields. A field is left out if its value is empty or not valid.
    fn fields(&self, status: u16) -> Vec<(HeaderName, HeaderValue)> {
        let field = |(name, template): &(HeaderName, Template)| {
            let value = self.render(template, status)?;
            let value = HeaderValue::try_from(value).ok().filter(|value| !value.is_empty())?;
            Some((name.clone(), value))
        };
        self.settings.headers.iter().filter_map(field).collect()
    }

    fn render_body(&self, content_type: &'static str, template: &Template, status: u16) -> Option<RenderedBody> {
        self.render(template, status).map(|text| RenderedBody { content_type, text })
    }

    fn render(&self, template: &Template, status: u16) -> Option<String> {
        let (context, standing) = (self.context, self.standing);
        let denial = DenialContext {
            limit: &self.limit.name,
            plan: context.active.ruleset.plan_name(context.plan),
            route: context.matched_route().map_or("", |route| &route.name),
            customer: context.customer.as_deref(),
            quota: standing.policy.quota,
            window: fields::window(standing),
            remaining: fields::remaining(standing),
            retry_after: spread_retry_after(context).map(Nanos::secs_ceil),
            reset: fields::until_full(standing).secs_ceil(),
            status,
            title: Answer::Limited.title(),
            detail: &Answer::Limited.detail(Some(context)),
        };
        let rendered = template.render(&denial);
        if let Err(error) = &rendered {
            tracing::warn!(limit = self.limit.name, %error, "cannot render the limit's own body of a denial; the default body is sent");
        }
        rendered.ok()
    }
}

/// The body that the request prefers, with its type. Problem+json is always available to requests that ask for it, and
/// stands for JSON if no JSON is configured.
fn negotiated<'b>(bodies: &'b [(ContentType, Template)], request: &Fields) -> Option<(&'static str, &'b Template)> {
    let mut offers: Vec<&str> = bodies.iter().map(|(content_type, _)| content_type.as_str()).collect();
    offers.push(PROBLEM_JSON);
    let json = ContentType::Json.as_str();
    if !offers.contains(&json) {
        offers.push(json);
    }
    let (content_type, template) = bodies.get(accept::choose(request, &offers))?;
    Some((sent_as(*content_type), template))
}

const fn sent_as(content_type: ContentType) -> &'static str {
    match content_type {
        ContentType::Text => TEXT,
        ContentType::Json => "application/json",
        ContentType::Html => "text/html; charset=utf-8",
    }
}
