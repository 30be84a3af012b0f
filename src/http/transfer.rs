//! The transfer of a request to an upstream and of its response to the client, both at the same time.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::body::Framing;
use super::body_rate::{BodyRateCredit, Throttle};
use super::client::Client;
use super::head::{RequestHead, ResponseHead};
use super::service::{Exchange, Failure, Response, Timing};
use super::timer::Timer;
use super::upstream::Upstream;
use crate::fields::Fields;
use crate::units::Nanos;

mod download;
mod upload;

/// The maximum number of bytes of a request's body that are kept for a second try.
pub(super) const MAX_RESENT: usize = 64 << 10;
/// The number of fields of most responses, and their size in bytes.
const HEAD_FIELDS: usize = 16;
const HEAD_BYTES: usize = 512;
const SWITCHING_PROTOCOLS: u16 = 101;
/// The status with which an upstream names the protocol to upgrade to.
const UPGRADE_REQUIRED: u16 = 426;

/// The events of a transfer that the exchange has to know of.
enum TransferEvent {
    /// Content of the request's body has arrived.
    RequestContent,
    /// The exchange delays that many bytes of content no longer.
    DelayEnded(usize),
    /// The head of a response has arrived; its body has this framing.
    Head(Framing),
    /// Content of the response's body has arrived, or only its end.
    ResponseContent { is_last: bool },
    /// The response has ended, and the client's socket has taken all of it.
    Over,
}

/// Sends a request to an upstream and its response to the client, both at the same time.
pub(super) struct Transfer<'t, 'c> {
    client: &'t mut Client<'c>,
    upstream: Upstream,
    request: &'t RequestHead,
    timing: Timing,
    upload: Upload,
    download: Download,
    head: ResponseHead,
    rate_credit: Option<BodyRateCredit>,
    throttle: Option<Throttle>,
    /// The bytes of the client's body that were read before, for an earlier try or the decision, and how many of
    /// them are sent.
    sent_before: (Vec<u8>, usize),
    /// The bytes that were read of the client's body, for as long as they can be sent again.
    pub(super) resend: Option<Vec<u8>>,
    /// Whether the client waits for the upstream's 100 (Continue) before it sends its body.
    awaits_continue: bool,
    /// The time when the client last sent a part of its body, and when the upstream last took one.
    client_sent: Nanos,
    upstream_took: Nanos,
    /// The time when the request was sent, or when the upstream last sent something of its final response.
    upstream_sent: Nanos,
    /// The time since when the client takes no bytes.
    client_blocked: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    /// The bytes that were read before are sent.
    Resending,
    /// The gateway waits for the client's content.
    Reading,
    /// Content has arrived, and the exchange delays it.
    Delayed {
        length: usize,
        until: Nanos,
    },
    /// Content has arrived and was admitted. This many bytes of it are still to be sent.
    Sending(usize),
    /// The end of the request is to be sent.
    Finishing,
    /// The upstream takes no more of the body.
    Stopped,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Download {
    Head,
    /// The gateway waits for the upstream's content, or, if the exchange has seen the last part, for the end.
    Body {
        has_seen_last: bool,
    },
    /// Content has arrived and the exchange has seen it. This many bytes of it are still to be sent.
    Sending {
        length: usize,
        is_last: bool,
    },
    Finishing,
    Done,
}

/// How a transfer ended.
pub(super) enum TransferOutcome {
    Over { upstream: Option<Upstream>, rate_credit: Option<BodyRateCredit> },
    Tunnel(Upstream),
    Answer(Box<Response>),
    Failed { failure: Failure, is_begun: bool, resend: Option<Resend> },
}

/// The part of a request's body that can be sent again.
pub(super) struct Resend {
    pub(super) content: Vec<u8>,
    /// The time until which the exchange delays the end of this part; 0 if it does not.
    pub(super) delayed_until: Nanos,
}

pub(super) enum TransferEnd {
    Over,
    Tunnel,
    Answer(Box<Response>),
    Failed(Failure),
}

impl<'t, 'c> Transfer<'t, 'c> {
    pub(super) fn new(
        client: &'t mut Client<'c>,
        upstream: Upstream,
        (request, expects_continue): (&'t RequestHead, bool),
        timing: Timing,
        now: Nanos,
    ) -> Self {
        let upload = if request.framing == Framing::Empty { Upload::Finishing } else { Upload::Reading };
        let rate = timing.min_body_rate.filter(|_| !expects_continue && upload == Upload::Reading);
        let awaits_continue = expects_continue && upload == Upload::Reading && client.expects_continue();
        Self {
            client,
            upstream,
            request,
            timing,
            upload,
            download: Download::Head,
            head: ResponseHead { fields: Fields::with_capacity(HEAD_FIELDS, HEAD_BYTES), ..ResponseHead::default() },
            rate_credit: rate.map(BodyRateCredit::new),
            throttle: timing.response_rate.map(Throttle::new),
            sent_before: (Vec::new(), 0),
            resend: None,
            awaits_continue,
            client_sent: now,
            upstream_took: now,
            upstream_sent: now,
            client_blocked: None,
        }
    }

    /// Sends these bytes of the client's body, which were read before, first.
    pub(super) fn begin_with(&mut self, sent_before: Vec<u8>) {
        if !sent_before.is_empty() {
            (self.sent_before, self.upload, self.awaits_continue) = ((sent_before, 0), Upload::Resending, false);
        }
    }

    pub(super) fn into_outcome(mut self, stopped: TransferEnd) -> TransferOutcome {
        match stopped {
            TransferEnd::Over => {
                let is_sent = self.upload == Upload::Done;
                TransferOutcome::Over { upstream: is_sent.then_some(self.upstream), rate_credit: self.rate_credit }
            }
            TransferEnd::Tunnel => TransferOutcome::Tunnel(self.upstream),
            TransferEnd::Answer(response) => TransferOutcome::Answer(response),
            TransferEnd::Failed(failure) => {
                let is_begun = self.download != Download::Head;
                self.consume_admitted();
                let delayed_until = if let Upload::Delayed { until, .. } = self.upload { until } else { Nanos::ZERO };
                if !is_begun && delayed_until == Nanos::ZERO && matches!(failure, Failure::UpstreamTimeout) {
                    self.upstream.retire();
                }
                let resend = self.resend.map(|content| Resend { content, delayed_until });
                TransferOutcome::Failed { failure, is_begun, resend }
            }
        }
    }

    pub(super) async fn run(
        &mut self,
        exchange: &mut impl Exchange,
        timer: &mut Timer,
        upgrade: Option<&[u8]>,
        is_leaving: impl Fn() -> bool,
    ) -> TransferEnd {
        loop {
            let event = match poll_fn(|task| self.poll(task, timer)).await {
                Ok(event) => event,
                Err(failure) => return TransferEnd::Failed(failure),
            };
            match event {
                TransferEvent::RequestContent => {
                    self.awaits_continue = false;
                    let length = self.client.channel().content().len();
                    let is_head_sent = self.download != Download::Head || !self.upstream.channel().has_unsent();
                    let part = self.client.channel().content();
                    let delay = match exchange.request_body(self.request, part, is_head_sent).await {
                        Ok(delay) => delay,
                        Err(response) if self.download == Download::Head => return TransferEnd::Answer(response),
                        Err(_) => return TransferEnd::Failed(Failure::ClientGone),
                    };
                    // a part about which the exchange had to ask is not late
                    self.upstream_took = timer.now();
                    self.resend = self.resend.take().filter(|sent| sent.len().saturating_add(length) <= MAX_RESENT);
                    if let Some(sent) = &mut self.resend {
                        sent.extend_from_slice(self.client.channel().content());
                    }
                    self.upload = match delay {
                        Nanos::ZERO => Upload::Sending(length),
                        delay => Upload::Delayed { length, until: timer.after(delay) },
                    };
                }
                TransferEvent::DelayEnded(length) => {
                    exchange.delay_ended();
                    // neither is late: the upstream could take no part, and perhaps not answer
                    (self.upstream_took, self.upstream_sent) = (timer.now(), timer.now());
                    self.upload = Upload::Sending(length);
                }
                TransferEvent::Head(framing) => {
                    if let Err(end) = self.respond(exchange, framing, upgrade, timer.wall(), &is_leaving) {
                        return end;
                    }
                }
                TransferEvent::ResponseContent { is_last } => {
                    let content = self.upstream.channel().content();
                    exchange.response_body(content, is_last);
                    self.download = match content.len() {
                        0 => Download::Finishing,
                        length => Download::Sending { length, is_last },
                    };
                }
                TransferEvent::Over => return TransferEnd::Over,
            }
        }
    }

    /// Advances both directions as far as both sides allow.
    fn poll(&mut self, task: &mut Context<'_>, timer: &mut Timer) -> Poll<Result<TransferEvent, Failure>> {
        loop {
            match self.poll_upload(task, timer)? {
                Poll::Ready(Some(event)) => return Poll::Ready(Ok(event)),
                Poll::Ready(None) => continue,
                Poll::Pending => {}
            }
            match self.poll_download(task, timer) {
                Ok(Poll::Ready(event)) => return Poll::Ready(Ok(event)),
                // A cancelled request releases its slot at once, also while the upstream takes nothing, and the upstream
                // is not blamed for what happens to it.
                _ if self.is_client_gone(task) => return Poll::Ready(Err(Failure::ClientGone)),
                Ok(Poll::Pending) => {}
                Err(failure) => return Poll::Ready(Err(failure)),
            }
            let throttled = self.throttled_until(timer.now());
            // a head that waits to be sent with content is sent without it
            if throttled.is_some() || matches!(self.download, Download::Head | Download::Body { .. }) {
                let has_interim = self.download == Download::Head && self.client.channel().has_unsent();
                match self.client.channel().poll_flush(task) {
                    Poll::Ready(Ok(())) => {
                        let blocked_since = self.client_blocked.take();
                        if has_interim {
                            // the gateway read nothing from the upstream meanwhile
                            let blocked = blocked_since.map_or(Nanos::ZERO, |since| timer.now().saturating_sub(since));
                            self.upstream_sent = self.upstream_sent.saturating_add(blocked);
                            continue;
                        }
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                    Poll::Pending => {
                        self.client_blocked.get_or_insert(timer.now());
                    }
                }
            }
            let delayed = if let Upload::Delayed { until, .. } = self.upload { Some(until) } else { None };
            let resumes = [throttled, delayed].into_iter().flatten().min();
            let due = self.due();
            if let Some(at) = resumes.filter(|at| due.as_ref().is_none_or(|(due, _)| at < due)) {
                match timer.poll(task, at) {
                    Poll::Ready(_) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some((due, failure)) = due else { return Poll::Pending };
            return timer.poll(task, due).map(|_| Err(failure));
        }
    }

    /// Whether the client has gone away. While its body is read, the reading tells.
    fn is_client_gone(&mut self, task: &mut Context<'_>) -> bool {
        self.upload != Upload::Reading && self.client.poll_disconnect(task).is_ready()
    }

    /// The time when throttled content may be sent again, if some waits.
    fn throttled_until(&self, now: Nanos) -> Option<Nanos> {
        let throttle = self.throttle.as_ref()?;
        (matches!(self.download, Download::Sending { .. }) && throttle.next > now).then_some(throttle.next)
    }

    /// The next deadline, and the failure that names the side that misses it.
    fn due(&self) -> Option<(Nanos, Failure)> {
        let dues = [
            self.slow_reader_due(),
            self.slow_body_due(),
            self.unread_request_due(),
            self.late_response_due(),
            self.total_due(),
        ];
        dues.into_iter().flatten().min_by_key(|(due, _)| *due)
    }

    /// The deadline of a client that reads its response slowly.
    fn slow_reader_due(&self) -> Option<(Nanos, Failure)> {
        self.client_blocked.map(|since| (since.saturating_add(self.timing.idle), Failure::ClientGone))
    }

    /// The deadline of a client that sends its body slowly, or nothing more of it.
    fn slow_body_due(&self) -> Option<(Nanos, Failure)> {
        if self.upload != Upload::Reading || self.awaits_continue {
            return None;
        }
        let silent = self.client_sent.saturating_add(self.timing.idle);
        let slow = self.rate_credit.and_then(|rate_credit| rate_credit.exhausted_at());
        let awaits_body = self.download == Download::Head || slow.is_some();
        awaits_body.then(|| (slow.map_or(silent, |slow| slow.min(silent)), Failure::BodyTimeout))
    }

    /// The deadline of an upstream that takes nothing of the request.
    fn unread_request_due(&self) -> Option<(Nanos, Failure)> {
        let is_sending = matches!(self.upload, Upload::Resending | Upload::Sending(_) | Upload::Finishing);
        is_sending.then(|| (self.upstream_took.saturating_add(self.timing.idle), Failure::UpstreamTimeout))
    }

    /// The deadline of an upstream that does not answer, or sends nothing more of its response.
    fn late_response_due(&self) -> Option<(Nanos, Failure)> {
        let is_sent = self.awaits_continue || matches!(self.upload, Upload::Stopped | Upload::Done);
        let patience = match self.download {
            Download::Head if is_sent && self.client_blocked.is_none() => self.timing.first_byte,
            Download::Body { .. } if !matches!(self.upload, Upload::Delayed { .. }) => {
                self.timing.idle.max(self.timing.first_byte)
            }
            _ => return None,
        };
        Some((self.upstream_sent.saturating_add(patience), Failure::UpstreamTimeout))
    }

    /// The deadline of the whole exchange, which the side misses that is waited for.
    fn total_due(&self) -> Option<(Nanos, Failure)> {
        let due = self.timing.due?;
        let awaits_body = self.upload == Upload::Reading && self.download == Download::Head && !self.awaits_continue;
        let failure = if self.client_blocked.is_some() {
            Failure::ClientGone
        } else if awaits_body && !self.timing.converses {
            Failure::BodyTimeout
        } else {
            Failure::UpstreamTimeout
        };
        Some((due, failure))
    }
}
