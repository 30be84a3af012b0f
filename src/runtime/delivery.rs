//! The gateway's own requests, which deliver something to an upstream of the configuration.

use tokio::time::timeout;

use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::http::head::ResponseHead;
use crate::http::upstream::{OutgoingRequest, post};
use crate::ruleset::{Ruleset, UpstreamId};
use crate::units::Nanos;

/// The token that the gateway presents to a receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

impl BearerToken {
    /// The token itself.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The request field with the token.
    pub(super) fn field(&self) -> (&'static str, String) {
        ("authorization", format!("Bearer {}", self.0))
    }
}

/// A request to the receiver. No `Debug`: its fields hold secrets.
pub(super) struct DeliveryRequest {
    /// Fields beyond those of every request.
    pub(super) fields: Vec<(&'static str, String)>,
    /// The request body.
    pub(super) body: Vec<u8>,
}

/// Posts `delivery_request` to a node of the upstream that `receiver` finds in the active configuration, on a connection of its own.
///
/// Errors: why there is no response.
pub(super) async fn deliver(
    gateway: &Gateway,
    receiver: impl Fn(&Ruleset) -> Option<(UpstreamId, &str)>,
    delivery_request: &DeliveryRequest,
) -> Result<ResponseHead, String> {
    let active = gateway.active.load_full();
    let (to, path) = receiver(&active.ruleset).ok_or("the configuration no longer names a receiver")?;
    let pool = active.pools.get(to.0).ok_or("there is no such upstream")?;
    let upstream = &pool.upstream.name;
    let chosen = pool.choose(&[], None, gateway.clock.now());
    let chosen = chosen.ok_or_else(|| format!("no node of the upstream {upstream} is healthy"))?;
    let place = pool.limiter.as_ref().map(|limiter| {
        limiter.try_acquire().ok_or_else(|| format!("the upstream {upstream} has reached its `max_requests`"))
    });
    let _place = place.transpose()?;
    let server = pool.server_at(&chosen.instance.address, chosen.node);
    let mut fields = Fields::default();
    fields.push("host", pool.host_at(&chosen.instance.address, chosen.node));
    delivery_request.fields.iter().for_each(|(name, value)| fields.push(name, value));
    let outgoing = OutgoingRequest { target: path.as_bytes().to_vec(), fields };
    let timeouts = &pool.upstream.timeouts;
    let patience = timeouts.connect.saturating_add(timeouts.first_byte);
    match timeout(patience.to_duration(), post(&server, outgoing, &delivery_request.body)).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it did not answer within {patience}")),
    }
}

/// The pause before another attempt: a second, doubled so many `times` but at most `max_pause`, minus up to half of it at
/// random (`chance`, 0 to 255).
pub(super) fn backoff(times: u32, max_pause: Nanos, chance: u8) -> Nanos {
    let doubled = Nanos::SECOND.doubled(times).min(max_pause).get();
    Nanos::new(doubled.saturating_sub(doubled / 512 * u64::from(chance)))
}
