//! The receiving side of a transfer: the response, from the upstream to the client.

use std::task::{Context, Poll};

use super::{Download, SWITCHING_PROTOCOLS, Transfer, TransferEnd, TransferEvent, UPGRADE_REQUIRED, Upload};
use crate::fields::Fields;
use crate::http::body::Framing;
use crate::http::body_rate::BodyRateCredit;
use crate::http::client::ClientHead;
use crate::http::head::{Unreadable, Version};
use crate::http::service::{Exchange, Failure};
use crate::http::timer::Timer;
use crate::units::Nanos;

impl Transfer<'_, '_> {
    /// Passes the head of a response to the client. `Err` is the end of the transfer.
    pub(super) fn respond(
        &mut self,
        exchange: &mut impl Exchange,
        framing: Framing,
        upgrade: Option<&[u8]>,
        wall: Nanos,
        is_leaving: &impl Fn() -> bool,
    ) -> Result<(), TransferEnd> {
        let status = self.head.status;
        if status == SWITCHING_PROTOCOLS {
            let protocol = self.head.fields.get("upgrade");
            if upgrade.zip(protocol).is_none_or(|(requested, protocol)| !protocol.eq_ignore_ascii_case(requested)) {
                let unreadable = Unreadable("it switches to a protocol that the client did not request");
                return Err(TransferEnd::Failed(unreadable.into()));
            }
            let mut fields = exchange.response_head(&self.head).map_err(TransferEnd::Answer)?;
            self.head.pass_upgrade(&mut fields);
            self.begin_response(&fields, Framing::Empty, wall)?;
            return Err(TransferEnd::Tunnel);
        }
        if status < 200 {
            if status == 100 && self.rate_credit.is_none() && self.upload == Upload::Reading {
                self.rate_credit = self.timing.min_body_rate.map(BodyRateCredit::new);
            }
            if self.client.accepts_interim() {
                let mut fields = Fields::default();
                self.head.fields.end_to_end().for_each(|field| fields.push_field(field));
                self.begin_response(&fields, Framing::Empty, wall)?;
            }
            return Ok(());
        }
        let mut fields = exchange.response_head(&self.head).map_err(TransferEnd::Answer)?;
        // not over HTTP/2, which has no upgrades (RFC 9113, section 8.2.2)
        if status == UPGRADE_REQUIRED && self.request.version != Version::Http2 {
            self.head.pass_upgrade(&mut fields);
        }
        // the gateway does not read the rest of such a body, and so finds no request behind it
        let is_owed_body = self.upload != Upload::Done && !self.client.can_be_drained();
        if is_leaving() || is_owed_body {
            self.client.close();
        }
        // over HTTP/2 an upstream may send content where no response has any
        let framing = if self.client.has_response_body(status) { framing } else { Framing::Empty };
        self.begin_response(&fields, framing, wall)?;
        self.download = match framing {
            Framing::Empty => {
                exchange.response_body(&[], true);
                Download::Finishing
            }
            _ => Download::Body { has_seen_last: false },
        };
        Ok(())
    }

    fn begin_response(&mut self, fields: &Fields, framing: Framing, wall: Nanos) -> Result<(), TransferEnd> {
        let reason = &self.head.reason;
        let status = self.head.status;
        // a response to GET would have had this length; 204 and interim responses have none (RFC 9110, section 8.6)
        let declares = status == 304 || (self.request.method == "HEAD" && status > 199 && status != 204);
        let declared = if declares { self.head.fields.get("content-length") } else { None };
        let begun = self.client.begin_response(&ClientHead { status, reason, fields, framing, declared, wall });
        begun.map_err(|_| TransferEnd::Failed(Failure::ClientGone))
    }

    /// Makes steps towards the client until there is an event or nothing more is possible.
    pub(super) fn poll_download(
        &mut self,
        task: &mut Context<'_>,
        timer: &Timer,
    ) -> Result<Poll<TransferEvent>, Failure> {
        loop {
            match self.download {
                Download::Head => {
                    // interim responses are read no faster than the client takes them
                    if self.client.channel().has_unsent() {
                        return Ok(Poll::Pending);
                    }
                    return match self.upstream.poll_head(task, &mut self.head, &self.request.method) {
                        Poll::Ready(Ok(framing)) => {
                            // an interim response is not the one that is waited for
                            if self.head.status >= 200 {
                                self.upstream_sent = timer.now();
                            } else if self.head.status == 100 && std::mem::take(&mut self.awaits_continue) {
                                // the client had to wait until now
                                self.client_sent = timer.now();
                            }
                            Ok(Poll::Ready(TransferEvent::Head(framing)))
                        }
                        Poll::Ready(Err(error)) => Err(error.into()),
                        Poll::Pending => Ok(Poll::Pending),
                    };
                }
                Download::Body { has_seen_last } => match self.upstream.poll_body(task) {
                    Poll::Ready(Ok(true)) => {
                        self.upstream_sent = timer.now();
                        let is_last = self.upstream.channel().ends_with_content();
                        return Ok(Poll::Ready(TransferEvent::ResponseContent { is_last }));
                    }
                    Poll::Ready(Ok(false)) if has_seen_last => self.download = Download::Finishing,
                    Poll::Ready(Ok(false)) => return Ok(Poll::Ready(TransferEvent::ResponseContent { is_last: true })),
                    Poll::Ready(Err(error)) => return Err(error.into()),
                    Poll::Pending => return Ok(Poll::Pending),
                },
                Download::Sending { length, is_last } => {
                    let content = self.upstream.channel().content();
                    let mut content = content.get(..length).unwrap_or(content);
                    let mut ends = is_last;
                    if let Some(throttle) = &self.throttle {
                        let allowed = throttle.allowance(timer.now());
                        if allowed == 0 {
                            return Ok(Poll::Pending);
                        }
                        if let Some(part) = content.get(..allowed) {
                            ends &= part.len() == length;
                            content = part;
                        }
                    }
                    match self.client.channel().poll_send(task, content, ends) {
                        Poll::Ready(Ok(sent)) => {
                            self.upstream.channel().consume(sent);
                            if let Some(throttle) = &mut self.throttle {
                                throttle.sent(sent, timer.now());
                            }
                            self.client_blocked = None;
                            self.download = match length.saturating_sub(sent) {
                                0 => Download::Body { has_seen_last: is_last },
                                length => Download::Sending { length, is_last },
                            };
                        }
                        Poll::Ready(Err(_)) => return Err(Failure::ClientGone),
                        Poll::Pending => {
                            self.client_blocked.get_or_insert(timer.now());
                            return Ok(Poll::Pending);
                        }
                    }
                }
                Download::Finishing => {
                    match self.client.channel().poll_finish(task, &mut self.upstream.channel().take_trailers()) {
                        Poll::Ready(Ok(())) => {
                            self.download = Download::Done;
                            return Ok(Poll::Ready(TransferEvent::Over));
                        }
                        Poll::Ready(Err(_)) => return Err(Failure::ClientGone),
                        Poll::Pending => {
                            self.client_blocked.get_or_insert(timer.now());
                            return Ok(Poll::Pending);
                        }
                    }
                }
                Download::Done => return Ok(Poll::Ready(TransferEvent::Over)),
            }
        }
    }
}
