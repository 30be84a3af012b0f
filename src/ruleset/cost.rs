//! How many tokens a request costs, and when they are taken.
//!
//! What shows on the request is taken then. What shows later is settled when the response has ended: what was taken
//! too much is given back, what was taken too little is owed.

use http::HeaderName;

use crate::fields::Fields;
use crate::ruleset::key::Facts;
use crate::units::Cost;

/// The tokens that a request costs under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostRule {
    /// The same for all.
    Fixed(Cost),
    /// By method.
    ByMethod {
        /// Methods with a cost of their own.
        methods: Vec<(String, Cost)>,
        /// The cost of all others.
        others: Cost,
    },
    /// The number in a request header, at least 1. One that cannot be believed counts as the most.
    Header {
        /// The field.
        name: HeaderName,
        /// The most that is believed.
        max: Cost,
        /// The cost where the field is missing.
        missing: Cost,
    },
    /// One for each started run of so many bytes of the request's body, at least one.
    RequestBytes(u64),
    /// The number in a response header.
    ResponseHeader {
        /// The field.
        name: HeaderName,
        /// The most that is believed.
        max: Cost,
    },
    /// The number in a field of a JSON body or of the events of a stream.
    ResponseField {
        /// The names on the way to it: `usage.total_tokens` is two.
        path: Vec<String>,
        /// The most that is believed.
        max: Cost,
    },
    /// One for each started run of so many bytes of the response's body, at least one.
    ResponseBytes(u64),
}

impl Default for CostRule {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

/// When tokens are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChargeRule {
    /// On the request, or when its response is known.
    pub when: When,
    /// Taken on the request and set against the real cost when the response ends; only with [`When::Response`].
    pub reserve: Option<Cost>,
    /// Whether denied requests take tokens too.
    pub denied: bool,
    /// Whether requests are charged only once their callers are identified, although the limit asks nothing about them.
    pub identified: bool,
}

/// When the cost of a request is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// When it comes.
    #[default]
    Request,
    /// When its response ends, and only if that has one of these statuses (any if empty).
    Response {
        /// Statuses as ranges, ends included.
        if_status: Vec<(u16, u16)>,
    },
}

/// How a request that was let through went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// How it ended.
    pub end: End,
    /// The length of its body, as far as it came.
    pub request_bytes: u64,
    /// The length of the response's body, as far as it came.
    pub response_bytes: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It did not reach the upstream, or that failed to answer.
    Unanswered {
        /// The status of tollgate's own answer, if there was one.
        own: Option<u16>,
    },
    /// The client went away, or broke off, while the upstream worked on it.
    Abandoned,
    /// The upstream answered.
    Answered {
        /// With this status.
        status: u16,
        /// Whether such a response has a body at all.
        has_body: bool,
        /// Whether all of it came.
        whole: bool,
    },
}

/// What a response says of its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportedCost {
    /// Nothing.
    #[default]
    Nothing,
    /// Something that is not a number of tokens.
    Wrong,
    /// This.
    Cost(Cost),
}

/// What a request really cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealCost {
    /// Nobody knows; what was taken stays taken.
    AsTaken,
    /// The response should have said it and did not; what was taken stays taken.
    Unreadable,
    /// This.
    Known(Cost),
}

/// The number of tokens that a program wrote: whole, or rounded up. None where it is negative, no number, or too large
/// to be exact (2⁵³).
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the bounds are checked")]
pub fn tokens(text: &str) -> Option<Cost> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    match text.parse::<Cost>() {
        Ok(whole) => Some(whole),
        Err(_) => text.parse::<f64>().ok().filter(|number| *number <= EXACT).map(|number| number.ceil() as Cost),
    }
}

/// How many runs of `length` bytes begin in `bytes`, at least one.
pub fn runs(bytes: u64, length: u64) -> Cost {
    bytes.div_ceil(length.max(1)).max(1)
}

// === impl CostRule ===

impl CostRule {
    /// The cost of a request, as far as its head tells.
    pub fn on_request(&self, facts: &Facts<'_>) -> Option<Cost> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::ByMethod { methods, others } => {
                Some(methods.iter().find(|(method, _)| method == facts.method).map_or(*others, |(_, cost)| *cost))
            }
            Self::Header { name, max, missing } => {
                Some(believed(facts.headers, name.as_str(), *max).unwrap_or(*missing))
            }
            Self::RequestBytes(length) => body_length(facts).map(|bytes| runs(bytes, *length)),
            Self::ResponseHeader { .. } | Self::ResponseField { .. } | Self::ResponseBytes(_) => None,
        }
    }

    /// The costs that are written down: what a limit has to be able to admit.
    pub fn written(&self) -> Vec<Cost> {
        match self {
            Self::Fixed(cost) => vec![*cost],
            Self::ByMethod { methods, others } => methods.iter().map(|(_, cost)| *cost).chain([*others]).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the response tells the cost.
    pub const fn is_in_response(&self) -> bool {
        matches!(self, Self::ResponseHeader { .. } | Self::ResponseField { .. } | Self::ResponseBytes(_))
    }

    /// In plain words; none where each request costs one token.
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
            Self::RequestBytes(length) => format!("1 for each started {length} bytes of the request's body"),
            Self::ResponseHeader { name, max } => format!("what the response header {name} says, at most {max}"),
            Self::ResponseField { path, max } => {
                format!("what {} of the response's JSON says, at most {max}", path.join("."))
            }
            Self::ResponseBytes(length) => format!("1 for each started {length} bytes of the response's body"),
        })
    }
}

/// The number in a field that clients set; the most where it cannot be believed, and none where there is no field.
fn believed(headers: &Fields, name: &str, max: Cost) -> Option<Cost> {
    let mut lines = headers.get_all(name);
    let (first, second) = (lines.next()?, lines.next());
    let number =
        str::from_utf8(first).ok().map(str::trim).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let cost = number.and_then(|text| text.parse::<Cost>().ok()).filter(|cost| second.is_none() && *cost <= max);
    Some(cost.map_or(max, |cost| cost.max(1)))
}

/// The length of a request's body; none where only its end will tell.
fn body_length(facts: &Facts<'_>) -> Option<u64> {
    match facts.headers.get("content-length") {
        _ if facts.headers.contains("transfer-encoding") => None,
        Some(length) => str::from_utf8(length).ok()?.trim().parse().ok(),
        None if facts.streams_body => None,
        None => Some(0),
    }
}

// === impl ChargeRule ===

impl ChargeRule {
    /// In plain words; none where a request is charged when it comes, and only if it passes.
    pub fn describe(&self) -> Option<String> {
        let denied = self.denied.then(|| "denied requests too".to_owned());
        let When::Response { if_status } = &self.when else {
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
        let reserve = match self.reserve {
            None => String::new(),
            Some(0) => "; nothing is taken before".to_owned(),
            Some(reserve) => format!("; {reserve} are taken until then"),
        };
        Some([Some(when + &reserve), denied].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_tokens_is_whole_or_rounded_up() {
        let numbers = [("7", 7), ("7.0", 7), ("7.2", 8), ("1e3", 1000), ("18446744073709551615", u64::MAX)];
        for (text, cost) in numbers {
            assert_eq!(tokens(text), Some(cost), "{text}");
        }
        for text in ["", "-1", "+1", "NaN", "inf", "1e400", "1e16", "0x10", "7 tokens", "18446744073709551616"] {
            assert_eq!(tokens(text), None, "{text}");
        }
    }

    #[test]
    fn a_client_cannot_talk_its_cost_down() {
        let cost = |lines: &[&str]| {
            let mut headers = Fields::default();
            for line in lines {
                headers.push("x-cost", line);
            }
            let facts = Facts {
                method: "GET",
                host: "",
                path: "/",
                query: None,
                headers: &headers,
                client: None,
                address: None,
                certificate: None,
                streams_body: false,
            };
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
}
