//! How many tokens a request costs, and when they are taken.
//!
//! A cost that the request reports is taken on its arrival. A cost that only the response reports is settled when the response
//! has ended: tokens taken in excess are refunded, missing tokens are debited.

use http::HeaderName;

use crate::fields::Fields;
use crate::ruleset::graphql::GraphQlCost;
use crate::ruleset::key::Facts;
use crate::ruleset::prices::{ModelPrices, Price, rounded_up};
use crate::ruleset::request_field::{FieldPath, RequestFieldCost, RequestFields};
use crate::ruleset::tokens::tokens;
use crate::units::Cost;

/// The tokens that a request costs under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostRule {
    /// The same for all requests.
    Fixed(Cost),
    /// By method.
    ByMethod {
        /// Methods with a cost of their own.
        methods: Vec<(String, Cost)>,
        /// The cost of all others.
        others: Cost,
    },
    /// The number in a request header, at least 1. An invalid or too large number counts as `max`.
    Header {
        /// The header field.
        name: HeaderName,
        /// The largest number that is accepted.
        max: Cost,
        /// The cost where the field is missing.
        missing: Cost,
    },
    /// The number in a field of the request's body, at least 1. An invalid or too large number counts as the maximum.
    RequestField(RequestFieldCost),
    /// By the GraphQL document in the request's body.
    GraphQl(GraphQlCost),
    /// One for each started run of this many bytes of the request's body, at least one.
    RequestBytes(u64),
    /// The cost that the response reports.
    Response(ResponseCost),
    /// One for each started run of this many bytes of the response's body, at least one.
    ResponseBytes(u64),
}

impl Default for CostRule {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

/// The number in a response, or several that are weighed and added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseCost {
    /// The numbers in header fields, each with its weight.
    pub headers: Vec<(HeaderName, Weight)>,
    /// The numbers in a JSON body or in the events of a stream.
    pub fields: Vec<WeightedField>,
    /// The largest single number that is accepted, and the largest cost of a sum.
    pub max: Cost,
    /// Whether the configuration writes it as a sum, of one number or of several.
    pub is_sum: bool,
    /// The prices by model, where weights are prices.
    pub model: Option<ModelPrices>,
}

/// The cost of one unit of a reported number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// This many tokens.
    Times(Cost),
    /// The price in this column, of the model that the request names.
    Price(usize),
}

/// A number in a JSON body or in the events of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedField {
    /// The names on the way to it: `usage.total_tokens` is two.
    pub path: FieldPath,
    /// The cost of one unit of it.
    pub weight: Weight,
}

impl AsRef<FieldPath> for WeightedField {
    fn as_ref(&self) -> &FieldPath {
        &self.path
    }
}

/// When tokens are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChargeRule {
    /// On the request's arrival, or when its response has ended.
    pub when: ChargeTime,
    /// The tokens taken on the request's arrival and settled with the real cost when the response ends; only with
    /// [`ChargeTime::Response`].
    pub reserve: Option<Reserve>,
    /// Whether denied requests take tokens too.
    pub denied: bool,
    /// Whether requests are charged only once their callers are identified, although the limit asks nothing about them.
    pub identified: bool,
}

/// The tokens taken on the request's arrival until its cost is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The same for all requests.
    Fixed(Cost),
    /// The number that the request gives.
    FromRequest {
        /// The field with the number.
        tokens: RequestFieldCost,
        /// The column with the price of each token, where the cost depends on prices.
        price: Option<usize>,
    },
}

/// When the cost of a request is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChargeTime {
    /// On its arrival.
    #[default]
    Request,
    /// When its response ends, and only if the response has one of these statuses (any if empty).
    Response {
        /// Statuses as ranges, ends included.
        if_status: Vec<(u16, u16)>,
    },
}

/// The course of a request that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// How it ended.
    pub end: RequestEnd,
    /// The length of its body, as far as it came.
    pub request_bytes: u64,
    /// The length of the response's body, as far as it came.
    pub response_bytes: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The request did not reach the upstream, or the upstream failed to answer.
    NoResponse {
        /// The status of tollgate's own answer, if there was one.
        own: Option<u16>,
    },
    /// The client disconnected or cancelled the request while the upstream worked on it.
    ClientAborted,
    /// The upstream answered.
    Answered(UpstreamResponse),
}

/// The response of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamResponse {
    /// Its status.
    pub status: u16,
    /// Whether it can have a body at all.
    pub has_body: bool,
    /// Whether it arrived completely.
    pub whole: bool,
}

impl UpstreamResponse {
    /// The response to a request with `method`. A response that has no body (RFC 9112, section 6.3) is always `whole`.
    pub fn of(method: &str, status: u16, whole: bool) -> Self {
        let has_body = method != "HEAD" && !matches!(status, 100..=199 | 204 | 304);
        Self { status, has_body, whole: whole || !has_body }
    }
}

/// The cost that a response reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportedCost {
    /// Nothing.
    #[default]
    Nothing,
    /// A value that is not a number of tokens.
    Wrong,
    /// This cost.
    Cost(Cost),
    /// The sum of the fields that are present; others are missing.
    Part(Cost),
}

/// The running sum of the numbers that a response reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostSum {
    millionths: u128,
    is_found: bool,
    is_wrong: bool,
    lacks_field: bool,
}

/// The real cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealCost {
    /// The cost cannot be known; the tokens taken on arrival stay taken.
    AsTaken,
    /// The response should have reported the cost and did not; the tokens taken on arrival stay taken.
    Unreadable,
    /// This cost.
    Known(Cost),
    /// At least this, and at least the tokens taken on arrival: the response broke off before it reported all.
    AtLeast(Cost),
}

/// The number of started runs of `length` bytes in `bytes`, at least one.
pub fn started_blocks(bytes: u64, length: u64) -> Cost {
    bytes.div_ceil(length.max(1)).max(1)
}

impl RealCost {
    /// The cost of a request for which `taken` tokens were taken on its arrival.
    pub fn settled_cost(self, taken: Cost) -> Cost {
        match self {
            Self::Known(real) => real,
            Self::AtLeast(real) => real.max(taken),
            Self::AsTaken | Self::Unreadable => taken,
        }
    }
}

// === impl CostRule ===

impl CostRule {
    /// The cost of a request; `None` if it is not known on its arrival.
    pub fn on_request(&self, facts: &Facts<'_>) -> Option<Cost> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::ByMethod { methods, others } => {
                Some(methods.iter().find(|(method, _)| method == facts.method).map_or(*others, |(_, cost)| *cost))
            }
            Self::Header { name, max, missing } => {
                Some(believed(facts.headers, name.as_str(), *max).unwrap_or(*missing))
            }
            Self::RequestField(field) => Some(field.of(facts.body)),
            Self::GraphQl(rule) => Some(rule.of(facts.query, facts.body)),
            Self::RequestBytes(length) => body_length(facts).map(|bytes| started_blocks(bytes, *length)),
            Self::Response(_) | Self::ResponseBytes(_) => None,
        }
    }

    /// The costs that the configuration names, each of which the limit has to be able to admit.
    pub fn written(&self) -> Vec<Cost> {
        match self {
            Self::Fixed(cost) => vec![*cost],
            Self::ByMethod { methods, others } => methods.iter().map(|(_, cost)| *cost).chain([*others]).collect(),
            Self::Header { missing, .. } => vec![*missing],
            Self::RequestField(field) => field.written().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the cost is known from the response only.
    pub const fn is_in_response(&self) -> bool {
        matches!(self, Self::Response(_) | Self::ResponseBytes(_))
    }

    /// The cost rule in plain words; `None` where each request costs one token.
    pub fn describe(&self) -> Option<String> {
        Some(match self {
            Self::Fixed(1) => return None,
            Self::Fixed(cost) => format!("{cost} for each request"),
            Self::ByMethod { methods, others } => {
                let each = methods.iter().map(|(method, cost)| format!("{cost} for {method}, "));
                format!("{}{others} for others", each.collect::<String>())
            }
            Self::Header { name, max, missing } => {
                format!("what the request header {name} says, at least 1 and at most {max}; {missing} without it")
            }
            Self::RequestField(field) => field.describe(),
            Self::GraphQl(rule) => rule.describe(),
            Self::RequestBytes(length) => format!("1 for each started {length} bytes of the request's body"),
            Self::Response(cost) => cost.describe(),
            Self::ResponseBytes(length) => format!("1 for each started {length} bytes of the response's body"),
        })
    }
}

// === impl ResponseCost ===

impl ResponseCost {
    /// The price of one unit with this weight, by these prices of a model.
    pub fn price(weight: Weight, prices: &[Price]) -> Price {
        match weight {
            Weight::Times(times) => Price::whole(times),
            Weight::Price(column) => prices.get(column).copied().unwrap_or_default(),
        }
    }

    /// The prices of the model that a request with this body names; empty where the cost does not depend on a model.
    pub fn prices(&self, body: Option<&RequestFields>) -> &[Price] {
        self.model.as_ref().map_or(&[], |model| model.of(body))
    }

    fn describe(&self) -> String {
        let headers = self.headers.iter().map(|(name, weight)| (format!("the header {name}"), *weight));
        let fields = self.fields.iter().map(|field| (field.path.to_string(), field.weight));
        let columns = self.model.as_ref().map_or(&[][..], |model| &model.prices.columns);
        let weighed = headers.chain(fields).map(|(part, weight)| match weight {
            Weight::Times(times) => format!("{times} for each of {part}"),
            Weight::Price(column) => {
                format!("the price of {} for each of {part}", columns.get(column).map_or("", String::as_str))
            }
        });
        let weighed: Vec<String> = weighed.collect();
        let model = self.model.as_ref().map(|model| format!(", by the model that {} of the request names", model.path));
        match (self.is_sum, self.headers.first(), self.fields.first()) {
            (false, Some((name, _)), _) => format!("what the response header {name} says, at most {}", self.max),
            (false, _, Some(field)) => {
                format!("what {} of the response's JSON says, at most {}", field.path, self.max)
            }
            _ => format!(
                "{} in the response{}, together at most {}",
                weighed.join(" and "),
                model.unwrap_or_default(),
                self.max
            ),
        }
    }
}

// === impl CostSum ===

impl CostSum {
    /// Adds the number in a header field that has these values.
    pub fn add_header<'v>(&mut self, mut values: impl Iterator<Item = &'v str>, price: Price) {
        match (values.next(), values.next()) {
            (None, _) => {}
            (Some(value), None) => {
                self.add(tokens(value.trim()).map_or(ReportedCost::Wrong, ReportedCost::Cost), price);
            }
            (Some(_), Some(_)) => self.is_wrong = true,
        }
    }

    /// Adds the number in a field of the body.
    pub fn add_field(&mut self, reported: ReportedCost, price: Price) {
        self.lacks_field |= reported == ReportedCost::Nothing;
        self.add(reported, price);
    }

    /// Notes that the body cannot be read.
    pub const fn unreadable(&mut self) {
        self.is_wrong = true;
    }

    fn add(&mut self, reported: ReportedCost, price: Price) {
        match reported {
            ReportedCost::Nothing => {}
            ReportedCost::Wrong => self.is_wrong = true,
            ReportedCost::Cost(cost) | ReportedCost::Part(cost) => {
                self.is_found = true;
                self.millionths = self.millionths.saturating_add(price.millionths(cost));
            }
        }
    }

    /// The sum of all that was added.
    pub fn total(&self) -> ReportedCost {
        match self {
            Self { is_wrong: true, .. } => ReportedCost::Wrong,
            Self { is_found: false, .. } => ReportedCost::Nothing,
            Self { lacks_field: true, millionths, .. } => ReportedCost::Part(rounded_up(*millionths)),
            Self { millionths, .. } => ReportedCost::Cost(rounded_up(*millionths)),
        }
    }
}

/// The number in a field that clients set; `max` where it is invalid or larger, and `None` where there is no field.
fn believed(headers: &Fields, name: &str, max: Cost) -> Option<Cost> {
    let mut lines = headers.get_all(name);
    let (first, second) = (lines.next()?, lines.next());
    let number =
        str::from_utf8(first).ok().map(str::trim).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let cost = number.and_then(|text| text.parse::<Cost>().ok()).filter(|cost| second.is_none() && *cost <= max);
    Some(cost.map_or(max, |cost| cost.max(1)))
}

/// The length of a request's body by its head; `None` where it is not known before the body's end.
pub fn body_length(facts: &Facts<'_>) -> Option<u64> {
    match facts.headers.get("content-length") {
        _ if facts.headers.contains("transfer-encoding") => None,
        Some(length) => str::from_utf8(length).ok()?.trim().parse().ok(),
        None if facts.streams_body => None,
        None => Some(0),
    }
}

// === impl ChargeRule ===

impl ChargeRule {
    /// The charge rule in plain words; `None` where a request is charged on its arrival, and only if it is admitted.
    pub fn describe(&self) -> Option<String> {
        let denied = self.denied.then(|| "denied requests too".to_owned());
        let ChargeTime::Response { if_status } = &self.when else {
            let identified = self.identified.then(|| "when the caller is identified".to_owned());
            let parts: Vec<String> = [identified, denied].into_iter().flatten().collect();
            return (!parts.is_empty()).then(|| parts.join("; "));
        };
        let statuses: Vec<String> = if_status
            .iter()
            .map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") })
            .collect();
        let when = match statuses.as_slice() {
            [] => "when the response has ended".to_owned(),
            statuses => format!("when the response has ended, if its status is {}", statuses.join(", ")),
        };
        let reserve = match &self.reserve {
            None => String::new(),
            Some(Reserve::Fixed(0)) => "; nothing is taken before".to_owned(),
            Some(Reserve::Fixed(reserve)) => format!("; {reserve} are taken until then"),
            Some(Reserve::FromRequest { tokens, price: None }) => {
                format!("; until then is taken {}", tokens.describe())
            }
            Some(Reserve::FromRequest { tokens, price: Some(_) }) => {
                format!("; until then is taken the price of {}", tokens.describe())
            }
        };
        Some([Some(when + &reserve), denied].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_talk_its_cost_down() {
        let cost = |lines: &[&str]| {
            let mut headers = Fields::default();
            for line in lines {
                headers.push("x-cost", line);
            }
            let facts = Facts::of(&headers);
            let name = HeaderName::from_static("x-cost");
            CostRule::Header { name, max: 100, missing: 3 }.on_request(&facts)
        };
        assert_eq!(cost(&[]), Some(3));
        assert_eq!((cost(&["7"]), cost(&[" 100 "])), (Some(7), Some(100)));
        assert_eq!(cost(&["0"]), Some(1));
        for garbage in ["101", "-5", "1.5", "", "abc", "99999999999999999999999"] {
            assert_eq!(cost(&[garbage]), Some(100), "{garbage}");
        }
        assert_eq!(cost(&["1", "1"]), Some(100));
    }

    #[test]
    fn a_sum_weighs_its_parts_and_never_overflows() {
        let sum = |headers: &[&[&str]], fields: &[ReportedCost], times: Cost| {
            let price = Price::whole(times);
            let mut sum = CostSum::default();
            headers.iter().for_each(|values| sum.add_header(values.iter().copied(), price));
            fields.iter().for_each(|reported| sum.add_field(*reported, price));
            sum.total()
        };
        let cost = ReportedCost::Cost;
        assert_eq!(sum(&[], &[cost(7), cost(2)], 3), cost(27));
        assert_eq!(sum(&[&["7"], &[" 1.5 "]], &[cost(1)], 10), cost(100));
        assert_eq!(sum(&[], &[cost(u64::MAX), cost(u64::MAX)], 1_000_000), cost(u64::MAX));
        assert_eq!(sum(&[&["1"], &[]], &[], 3), cost(3), "a header field that is missing counts nothing");
        assert_eq!(sum(&[&["1"]], &[ReportedCost::Nothing, cost(4)], 1), ReportedCost::Part(5));
        assert_eq!(sum(&[&[]], &[ReportedCost::Nothing], 1), ReportedCost::Nothing);
        for wrong in [&["-1"][..], &["1", "1"], &["many"], &[""]] {
            assert_eq!(sum(&[wrong], &[cost(4)], 1), ReportedCost::Wrong, "{wrong:?}");
        }
        assert_eq!(sum(&[], &[ReportedCost::Wrong, cost(4)], 1), ReportedCost::Wrong);
    }

    #[test]
    fn a_sum_is_described_in_plain_words() {
        let field = |path: &str, times| WeightedField {
            path: FieldPath(path.split('.').map(str::to_owned).collect()),
            weight: Weight::Times(times),
        };
        let fields = vec![field("usage.prompt_tokens", 3), field("usage.completion_tokens", 15)];
        let cost = ResponseCost { fields, max: 900, is_sum: true, ..ResponseCost::default() };
        let words = "3 for each of usage.prompt_tokens and 15 for each of usage.completion_tokens in the response, together at most 900";
        assert_eq!(CostRule::Response(cost).describe().as_deref(), Some(words));
    }
}
