//! How long an upstream may take, as the deadline of the client's connection.

use pingora::proxy::Session;

use crate::proxy::context::Context;
use crate::ruleset::upstream::Timeouts;
use crate::units::Nanos;

/// The status with which a connection becomes a tunnel.
const SWITCHING_PROTOCOLS: u16 = 101;

/// The request may go upstream now: it has to be over within the upstream's `total`.
pub fn set_total(context: &Context) {
    set(context, |_| None);
}

/// The request was sent: the head of the response has to be complete within `first_byte`.
pub fn set_first_byte(context: &Context) {
    if !context.upstream_answered {
        let now = context.gateway.clock.now();
        set(context, |timeouts| Some(now.saturating_add(timeouts.first_byte)));
    }
}

/// A part of the request's body came: the next one has to come within `idle`. Of HTTP/1.1 pingora keeps that time.
pub fn set_next_part(context: &Context) {
    if context.is_stream && !context.upstream_answered {
        let now = context.gateway.clock.now();
        set(context, |timeouts| Some(now.saturating_add(timeouts.idle)));
    }
}

/// The body of the request comes in now, at the least rate that is configured. Calls of gRPC are conversations, in which
/// either side may be silent: for them only the upstream's `idle` counts.
pub fn expect_body(context: &Context) {
    let (Some(connection), Some(upstream)) = (&context.connection, context.upstream()) else { return };
    let ruleset = &context.live.ruleset;
    let converses = context.is_grpc && ruleset.upstreams[upstream.0].http2;
    if let (Some(rate), false) = (ruleset.request_body, converses) {
        connection.expect_body(rate);
        if context.is_stream {
            connection.body_came(0);
        }
    }
}

/// A part of the request's body came, or its end.
pub fn body_came(context: &Context, bytes: usize, is_over: bool) {
    let Some(connection) = &context.connection else { return };
    match is_over {
        true => connection.body_is_over(),
        // what comes through a tunnel is no body
        false if context.status == Some(SWITCHING_PROTOCOLS) => {}
        false => {
            expect_body(context);
            if context.is_stream {
                connection.body_came(bytes);
            }
        }
    }
}

/// The client may take this long between two parts of a body, in either direction.
pub fn set_idle(session: &mut Session, context: &Context) {
    let Some(upstream) = context.upstream() else { return };
    let idle = context.live.ruleset.upstreams[upstream.0].timeouts.idle;
    session.as_downstream_mut().set_read_timeout(Some(idle.to_duration()));
    match &context.connection {
        Some(connection) if !context.is_stream => connection.set_patience(idle),
        _ => session.as_downstream_mut().set_write_timeout(Some(idle.to_duration())),
    }
}

/// The connection became a tunnel: both sides may be silent for as long as the upstream may, and `total` holds.
pub fn set_tunnel(session: &mut Session, context: &Context) {
    session.as_downstream_mut().set_read_timeout(None);
    if let Some(connection) = &context.connection {
        connection.become_tunnel();
    }
    set_total(context);
}

/// Sets the earlier of the total deadline and that of the current phase.
pub(super) fn set(context: &Context, phase: impl Fn(&Timeouts) -> Option<Nanos>) {
    let (Some(connection), Some(upstream)) = (&context.connection, context.upstream()) else { return };
    let timeouts = &context.live.ruleset.upstreams[upstream.0].timeouts;
    let total = timeouts.total.map(|total| context.started.saturating_add(total));
    connection.set_deadline([total, phase(timeouts)].into_iter().flatten().min());
}
