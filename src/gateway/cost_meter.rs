//! The real cost of a request: measured while the request passes, and settled with its charges at its end.

use crate::charge::{Charge, Refund};
use crate::gateway::field::FieldReader;
use crate::http::head::ResponseHead;
use crate::ruleset::cost::{
    ChargeTime, CompletedRequest, CostRule, CostSum, RealCost, RequestEnd, ResponseCost, UpstreamResponse,
    WeightedField, started_blocks,
};
use crate::ruleset::key::Facts;
use crate::ruleset::limit::Limit;
use crate::ruleset::prices::Price;
use crate::ruleset::verdict::{Standing, Verdict};
use crate::ruleset::{LimitId, Ruleset};
use crate::units::{Cost, Nanos};

/// The measurements of a request, some of whose charges are to be settled.
#[derive(Debug, Default)]
pub struct CostMeter {
    pub(super) request_bytes: u64,
    /// The bytes of the part of the request's body that a limit delays.
    pub(super) delayed_bytes: u64,
    /// When the last part of the request's body was charged; 0 if none was.
    pub(super) body_charged_at: Nanos,
    response_bytes: u64,
    /// Whether the request is on its way to the upstream.
    is_forwarded: bool,
    response: Option<UpstreamResponse>,
    pub(super) measurements: Vec<LimitMeasurement>,
}

/// A request with the charges that were made for it.
#[derive(Clone, Copy)]
pub struct ChargedRequest<'a> {
    /// The charges.
    pub charges: &'a [Charge],
    /// The verdict on them.
    pub verdict: &'a Verdict,
    /// The time at which they were made.
    pub charged_at: Nanos,
}

/// The measurements under one limit.
#[derive(Debug)]
pub(super) struct LimitMeasurement {
    /// The position of the charge.
    pub(super) position: usize,
    limit: LimitId,
    /// The cost according to the request's head.
    head_cost: Option<Cost>,
    /// The prices of the model that the request named, if the cost depends on them.
    prices: Vec<Price>,
    /// The cost according to the response's head.
    reported: CostSum,
    /// Reads the response's body.
    reader: Option<FieldReader>,
    /// The charges for the request's body, if it is charged as it passes.
    pub(super) body: Option<BodyCost>,
}

impl CostMeter {
    /// Creates the meter of a request with these charges; `None` if no charge is to be settled.
    pub fn new(ruleset: &Ruleset, charges: &[Charge], facts: &Facts<'_>) -> Option<Box<Self>> {
        let measurement = |(position, charge): (usize, &Charge)| {
            let limit = &ruleset.limits[charge.limit];
            let head_cost = limit.cost.on_request(facts);
            if !limit.settles_later(limit.rule(&charge.rule), head_cost) {
                return None;
            }
            let prices = if let CostRule::Response(cost) = &limit.cost { cost.prices(facts.body) } else { &[] };
            Some(LimitMeasurement {
                position,
                limit: LimitId(charge.limit),
                head_cost,
                prices: prices.to_vec(),
                reported: CostSum::default(),
                reader: None,
                body: BodyCost::new(limit, charge, head_cost),
            })
        };
        let measurements: Vec<LimitMeasurement> = charges.iter().enumerate().filter_map(measurement).collect();
        (!measurements.is_empty()).then(|| Box::new(Self { measurements, ..Self::default() }))
    }

    /// Whether the meter reads a cost from the response's body, so that the body must be readable.
    pub fn reads_body(&self, ruleset: &Ruleset) -> bool {
        self.measurements.iter().any(|measurement| !fields(&ruleset.limits[measurement.limit.0].cost).is_empty())
    }

    /// Notes that the request is on its way to the upstream.
    pub fn mark_forwarded(&mut self) {
        self.is_forwarded = true;
    }

    /// Notes that the part of the request's body that a limit delayed is on its way to the upstream.
    pub fn forward_delayed(&mut self) {
        self.request_bytes = self.request_bytes.saturating_add(std::mem::take(&mut self.delayed_bytes));
    }

    /// Reads the head of the response to a request with `method`.
    pub fn response_head(&mut self, ruleset: &Ruleset, method: &str, head: &ResponseHead) {
        let text = |name: http::HeaderName| {
            let value = head.fields.get(name.as_str());
            value.and_then(|value| str::from_utf8(value).ok()).unwrap_or_default().trim()
        };
        let is_empty = text(http::header::CONTENT_LENGTH) == "0";
        let response = UpstreamResponse::of(method, head.status, is_empty);
        self.response = Some(response);
        let media_type = text(http::header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim_end();
        let coded = !matches!(text(http::header::CONTENT_ENCODING), "" | "identity");
        for measurement in &mut self.measurements {
            let CostRule::Response(cost) = &ruleset.limits[measurement.limit.0].cost else { continue };
            for (name, weight) in &cost.headers {
                // a value that is no text is no number either
                let values = head.fields.get_all(name.as_str()).map(|value| str::from_utf8(value).unwrap_or_default());
                measurement.reported.add_header(values, ResponseCost::price(*weight, &measurement.prices));
            }
            match cost.fields.len() {
                0 => {}
                _ if !response.has_body => {}
                _ if coded => measurement.reported.unreadable(),
                count if media_type.eq_ignore_ascii_case("text/event-stream") => {
                    measurement.reader = Some(FieldReader::of_events(count));
                }
                count => measurement.reader = Some(FieldReader::of_json(count)),
            }
        }
    }

    /// Reads a part of the response's body; `is_last` says whether it is the last one.
    pub fn response_body(&mut self, ruleset: &Ruleset, bytes: &[u8], is_last: bool) {
        self.response_bytes = add_length(self.response_bytes, bytes.len());
        if let Some(response) = &mut self.response {
            response.whole |= is_last;
        }
        for measurement in &mut self.measurements {
            if let Some(reader) = &mut measurement.reader {
                reader.feed(fields(&ruleset.limits[measurement.limit.0].cost), bytes);
            }
        }
    }

    /// The corrections of the charges of a request that has ended; `own_status` is the status of the gateway's own
    /// response. Calls `unreadable` for each limit whose real cost is missing in the response.
    pub fn corrections(
        &self,
        ruleset: &Ruleset,
        ChargedRequest { charges, verdict, charged_at }: ChargedRequest<'_>,
        own_status: Option<u16>,
        mut unreadable: impl FnMut(LimitId),
    ) -> Corrections {
        let exchange = self.exchange(own_status);
        let mut corrections = Corrections::default();
        for measurement in &self.measurements {
            let (Some(charge), Some(standing)) =
                (charges.get(measurement.position), verdict.standings.get(measurement.position))
            else {
                continue;
            };
            if let Some(body) = &measurement.body {
                corrections.refunds.extend(body.surplus(exchange.request_bytes));
                continue;
            }
            let real = measurement.real_cost(&ruleset.limits[measurement.limit.0], &exchange);
            if real == RealCost::Unreadable && standing.decision.is_admitted() {
                unreadable(measurement.limit);
            }
            corrections.add(charge, standing, charged_at, real);
        }
        corrections
    }

    /// The real cost of the request that was charged `charge`, at `position`; `None` if the cost was known from the start.
    pub fn cost(
        &self,
        ruleset: &Ruleset,
        (position, charge): (usize, &Charge),
        own_status: Option<u16>,
    ) -> Option<Cost> {
        let measurement = self.measurements.iter().find(|measurement| measurement.position == position)?;
        let exchange = self.exchange(own_status);
        Some(match &measurement.body {
            Some(body) => started_blocks(exchange.request_bytes, body.bytes_per_token).max(charge.cost),
            None => {
                measurement.real_cost(&ruleset.limits[measurement.limit.0], &exchange).settled_cost(charge.taken_cost())
            }
        })
    }

    /// The cost of a body of so many bytes under the limit at `position` of the charges; `None` if that limit does not charge
    /// the body as it passes.
    pub fn whole_cost(&self, position: usize, bytes: u64) -> Option<Cost> {
        let measurement = self.measurements.iter().find(|measurement| measurement.position == position)?;
        Some(started_blocks(bytes, measurement.body.as_ref()?.bytes_per_token))
    }

    /// The outcome of the request; `own_status` is the status of the gateway's own response.
    fn exchange(&self, own_status: Option<u16>) -> CompletedRequest {
        let end = match (&self.response, own_status) {
            (Some(response), _) => RequestEnd::Answered(*response),
            (None, None | Some(..500)) if self.is_forwarded => RequestEnd::ClientAborted,
            (None, own) => RequestEnd::NoResponse { own },
        };
        CompletedRequest { end, request_bytes: self.request_bytes, response_bytes: self.response_bytes }
    }
}

pub(super) fn add_length(sum: u64, bytes: usize) -> u64 {
    sum.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// The fields of the response body that state a cost.
fn fields(cost: &CostRule) -> &[WeightedField] {
    if let CostRule::Response(cost) = cost { &cost.fields } else { &[] }
}

impl LimitMeasurement {
    fn real_cost(&self, limit: &Limit, exchange: &CompletedRequest) -> RealCost {
        let mut reported = self.reported;
        let fields = self.reader.iter().flat_map(|reader| fields(&limit.cost).iter().zip(reader.reported_costs()));
        fields.for_each(|(field, cost)| reported.add_field(cost, ResponseCost::price(field.weight, &self.prices)));
        limit.real_cost(self.head_cost, exchange, reported.total())
    }
}

/// The charges for the bytes of a body under one limit.
#[derive(Debug)]
pub(super) struct BodyCost {
    pub(super) bytes_per_token: u64,
    /// The tokens charged so far, including those charged when the request arrived.
    pub(super) charged: Cost,
    /// The last charge, as it would be refunded.
    pub(super) last: Option<Refund>,
    /// Whether the limit denied a part but let it pass, because it does not enforce. It is charged nothing more.
    pub(super) is_over: bool,
}

impl BodyCost {
    /// The charges for the body of a request that was charged `charge` on arrival; `None` if it is not charged as it passes.
    fn new(limit: &Limit, charge: &Charge, head_cost: Option<Cost>) -> Option<Self> {
        match (&limit.cost, &limit.charge.when, head_cost) {
            (CostRule::RequestBytes(length), ChargeTime::Request, None) => {
                Some(Self { bytes_per_token: *length, charged: charge.cost, last: None, is_over: false })
            }
            _ => None,
        }
    }

    /// The refund for a body that had so many bytes; `None` if nothing is to be refunded.
    fn surplus(&self, bytes: u64) -> Option<Refund> {
        let Refund { charge, full_at } = self.last.as_ref()?;
        let surplus = self.charged.saturating_sub(started_blocks(bytes, self.bytes_per_token)).min(charge.cost);
        (surplus > 0).then(|| Refund { charge: Charge { cost: surplus, ..charge.clone() }, full_at: *full_at })
    }
}

/// The corrections of charges after the end of a request.
#[derive(Debug, Default)]
pub struct Corrections {
    /// The charges that are still to be debited.
    pub debits: Vec<Charge>,
    /// The charges to refund.
    pub refunds: Vec<Refund>,
}

impl Corrections {
    /// Whether no charge has to be corrected.
    pub fn is_empty(&self) -> bool {
        self.debits.is_empty() && self.refunds.is_empty()
    }

    /// Compares a charge, made at `charged_at`, with the real cost of the request. A limit that let the request pass
    /// although the request was over it took nothing, and is owed nothing.
    pub fn add(&mut self, charge: &Charge, standing: &Standing, charged_at: Nanos, real: RealCost) {
        let taken = charge.taken_cost();
        let real = real.settled_cost(taken);
        if !standing.decision.is_admitted() {
            return;
        }
        let differing = |cost| Charge { cost, ..charge.clone() };
        if real > taken {
            self.debits.push(differing(real.saturating_sub(taken)));
        } else if real < taken {
            self.refunds.push(Refund::of(differing(taken.saturating_sub(real)), standing.headroom, charged_at));
        }
    }
}
