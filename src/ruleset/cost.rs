//! How many tokens a request costs, and when they are taken.

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
    /// The number in a request header.
    Header {
        /// The field.
        name: http::HeaderName,
        /// The most that is believed.
        max: Cost,
    },
    /// One for each started run of so many bytes of the request's body.
    RequestBytes(u64),
    /// The number in a response header.
    ResponseHeader {
        /// The field.
        name: http::HeaderName,
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
    /// One for each started run of so many bytes of the response's body.
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
