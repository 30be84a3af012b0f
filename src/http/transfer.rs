//! The transfer of a request to an upstream and of its response to the client, both at the same time.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use super::body::Framing;
use super::client::{Client, ClientHead};
use super::head::{RequestHead, ResponseHead, Unreadable, Version};
use super::pace::{BodyRateCredit, Throttle};
use super::service::{Exchange, Failure, Response, Timing};
use super::timer::Timer;
use super::upstream::Upstream;
use crate::fields::Fields;
use crate::units::Nanos;

/// The maximum number of bytes of a request's body that are kept for a second try.
pub(super) const MAX_RESENT: usize = 64 << 10;
/// The number of fields of most responses, and their size in bytes.
const HEAD_FIELDS: usize = 16;
const HEAD_BYTES: usize = 512;
const SWITCHING_PROTOCOLS: u16 = 101;
/// The status with which an upstream names the protocol to upgrade to.
const UPGRADE_REQUIRED: u16 = 426;

/// The events of a transfer that the exchange has to know of.
enum Event {
    /// Content of the request's body has arrived.
    RequestContent,
    /// The head of a response has arrived; its body has this framing.
    Head(Framing),
    /// Content of the response's body has arrived.
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
    pace: Option<BodyRateCredit>,
    throttle: Option<Throttle>,
    /// The bytes of the client's body that were read before, for an earlier try or the decision, and how many of
    /// them are sent.
    sent_before: (Vec<u8>, usize),
    /// The bytes that were read of the client's body, for as long as they can be sent again.
    pub(super) resend: Option<Vec<u8>>,
    /// The time when the client last sent a part of its body, and when the upstream last took one.
    client_sent: Nanos,
    upstream_took: Nanos,
    /// The time when the request was sent, or when the upstream last sent something.
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
    Body,
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
    Over { upstream: Option<Upstream>, patience: Option<BodyRateCredit> },
    Tunnel(Upstream),
    Answer(Response),
    Failed { failure: Failure, is_begun: bool, resend: Option<Vec<u8>> },
}

pub(super) enum TransferEnd {
    Over,
    Tunnel,
    Answer(Response),
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
        Self {
            client,
            upstream,
            request,
            timing,
            upload,
            download: Download::Head,
            head: ResponseHead { fields: Fields::with_capacity(HEAD_FIELDS, HEAD_BYTES), ..ResponseHead::default() },
            pace: rate.map(BodyRateCredit::new),
            throttle: timing.response_rate.map(Throttle::new),
            sent_before: (Vec::new(), 0),
            resend: None,
            client_sent: now,
            upstream_took: now,
            upstream_sent: now,
            client_blocked: None,
        }
    }

    /// Sends these bytes of the client's body, which were read before, first.
    pub(super) fn begin_with(&mut self, sent_before: Vec<u8>) {
        if !sent_before.is_empty() {
            (self.sent_before, self.upload) = ((sent_before, 0), Upload::Resending);
        }
    }

    pub(super) fn into_outcome(mut self, stopped: TransferEnd) -> TransferOutcome {
        match stopped {
            TransferEnd::Over => {
                let is_sent = self.upload == Upload::Done;
                TransferOutcome::Over { upstream: is_sent.then_some(self.upstream), patience: self.pace }
            }
            TransferEnd::Tunnel => TransferOutcome::Tunnel(self.upstream),
            TransferEnd::Answer(response) => TransferOutcome::Answer(response),
            TransferEnd::Failed(failure) => {
                let is_begun = self.download != Download::Head;
                self.consume_admitted();
                if !is_begun && matches!(failure, Failure::UpstreamTimeout) {
                    self.upstream.retire();
                }
                TransferOutcome::Failed { failure, is_begun, resend: self.resend }
            }
        }
    }

    pub(super) async fn run(
        &mut self,
        exchange: &mut impl Exchange,
        timer: &mut Timer,
        may_switch: bool,
        is_leaving: impl Fn() -> bool,
    ) -> TransferEnd {
        loop {
            let event = match poll_fn(|task| self.poll(task, timer)).await {
                Ok(event) => event,
                Err(failure) => return TransferEnd::Failed(failure),
            };
            match event {
                Event::RequestContent => {
                    let length = self.client.content().len();
                    if let Err(response) = exchange.request_body(self.client.content()).await {
                        return match self.download {
                            Download::Head => TransferEnd::Answer(response),
                            _ => TransferEnd::Failed(Failure::ClientGone),
                        };
                    }
                    // a part that the exchange held back for a while is not late
                    self.upstream_took = timer.now();
                    self.resend = self.resend.take().filter(|sent| sent.len().saturating_add(length) <= MAX_RESENT);
                    if let Some(sent) = &mut self.resend {
                        sent.extend_from_slice(self.client.content());
                    }
                    self.upload = Upload::Sending(length);
                }
                Event::Head(framing) => {
                    if let Some(end) = self.respond(exchange, framing, may_switch, timer.wall(), &is_leaving) {
                        return end;
                    }
                }
                Event::ResponseContent { is_last } => {
                    let content = self.upstream.content();
                    exchange.response_body(content, is_last);
                    self.download = Download::Sending { length: content.len(), is_last };
                }
                Event::Over => return TransferEnd::Over,
            }
        }
    }

    /// Passes the head of a response to the client.
    fn respond(
        &mut self,
        exchange: &mut impl Exchange,
        framing: Framing,
        may_switch: bool,
        wall: Nanos,
        is_leaving: &impl Fn() -> bool,
    ) -> Option<TransferEnd> {
        let status = self.head.status;
        if status == SWITCHING_PROTOCOLS {
            if !may_switch {
                return Some(TransferEnd::Failed(
                    Unreadable("it switches to a protocol that the client did not request").into(),
                ));
            }
            let mut fields = match exchange.response_head(&self.head) {
                Ok(fields) => fields,
                Err(response) => return Some(TransferEnd::Answer(response)),
            };
            self.head.pass_upgrade(&mut fields);
            return Some(match self.begin_response(&fields, Framing::Empty, wall) {
                Ok(()) => TransferEnd::Tunnel,
                Err(_) => TransferEnd::Failed(Failure::ClientGone),
            });
        }
        if status < 200 {
            if status == 100 && self.pace.is_none() && self.upload == Upload::Reading {
                self.pace = self.timing.min_body_rate.map(BodyRateCredit::new);
            }
            if self.client.accepts_interim() {
                let mut fields = Fields::default();
                self.head.fields.end_to_end().for_each(|field| fields.push_field(field));
                if self.begin_response(&fields, Framing::Empty, wall).is_err() {
                    return Some(TransferEnd::Failed(Failure::ClientGone));
                }
            }
            return None;
        }
        let mut fields = match exchange.response_head(&self.head) {
            Ok(fields) => fields,
            Err(response) => return Some(TransferEnd::Answer(response)),
        };
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
        if self.begin_response(&fields, framing, wall).is_err() {
            return Some(TransferEnd::Failed(Failure::ClientGone));
        }
        self.download = match framing {
            Framing::Empty => {
                exchange.response_body(&[], true);
                Download::Finishing
            }
            _ => Download::Body,
        };
        None
    }

    fn begin_response(&mut self, fields: &Fields, framing: Framing, wall: Nanos) -> io::Result<()> {
        let reason = &self.head.reason;
        let status = self.head.status;
        // a response to GET would have had this length; 204 and interim responses have none (RFC 9110, section 8.6)
        let declares = status == 304 || (self.request.method == "HEAD" && status > 199 && status != 204);
        let declared = self.head.fields.get("content-length").filter(|_| declares);
        self.client.begin_response(&ClientHead { status, reason, fields, framing, declared, wall })
    }

    /// Advances both directions as far as both sides allow.
    fn poll(&mut self, task: &mut Context<'_>, timer: &mut Timer) -> Poll<Result<Event, Failure>> {
        loop {
            match self.poll_upload(task, timer)? {
                Poll::Ready(Some(event)) => return Poll::Ready(Ok(event)),
                Poll::Ready(None) => continue,
                Poll::Pending => {}
            }
            // a cancelled request gives back its slot at once, also while the upstream takes nothing
            if self.upload != Upload::Reading && self.client.poll_disconnect(task).is_ready() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            if let Poll::Ready(event) = self.poll_download(task, timer)? {
                return Poll::Ready(Ok(event));
            }
            let resumes = self.resumes(timer.now());
            // a head that waits to be sent with content is sent without it
            if resumes.is_some() || matches!(self.download, Download::Head | Download::Body) {
                match self.client.poll_flush(task) {
                    Poll::Ready(Ok(())) => self.client_blocked = None,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                    Poll::Pending => {
                        self.client_blocked.get_or_insert(timer.now());
                    }
                }
            }
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

    /// The time when throttled content may be sent again, if some waits.
    fn resumes(&self, now: Nanos) -> Option<Nanos> {
        let throttle = self.throttle.as_ref()?;
        (matches!(self.download, Download::Sending { .. }) && throttle.next > now).then_some(throttle.next)
    }

    /// Makes one step towards the upstream. Ready with `None` if another step is possible at once.
    fn poll_upload(&mut self, task: &mut Context<'_>, timer: &Timer) -> Result<Poll<Option<Event>>, Failure> {
        match self.upload {
            Upload::Resending => {
                let (content, sent) = &mut self.sent_before;
                match self.upstream.poll_send(task, content.get(*sent..).unwrap_or_default(), false) {
                    Poll::Ready(Ok(0)) => {
                        self.upload = Upload::Reading;
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Ok(length)) => {
                        *sent = sent.saturating_add(length);
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                    Poll::Pending => Ok(Poll::Pending),
                }
            }
            Upload::Reading => match self.client.poll_body(task) {
                Poll::Ready(Ok(true)) => {
                    if let Some(pace) = &mut self.pace {
                        pace.record_bytes(self.client.content().len(), timer.now());
                    }
                    self.client_sent = timer.now();
                    Ok(Poll::Ready(Some(Event::RequestContent)))
                }
                Poll::Ready(Ok(false)) => {
                    self.upload = Upload::Finishing;
                    Ok(Poll::Ready(None))
                }
                Poll::Ready(Err(error)) => Err(error.into()),
                Poll::Pending => {
                    if let Some(pace) = &mut self.pace {
                        pace.start_waiting(timer.now());
                    }
                    match self.upstream.poll_flush(task) {
                        Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                        _ => Ok(Poll::Pending),
                    }
                }
            },
            Upload::Sending(length) => {
                let content = self.client.content();
                let is_last = length == content.len() && self.client.ends_with_content();
                let content = content.get(..length).unwrap_or(content);
                match self.upstream.poll_send(task, content, is_last) {
                    Poll::Ready(Ok(sent)) => {
                        self.client.consume(sent);
                        self.upstream_took = timer.now();
                        // the client is not responsible for the time that the upstream took
                        self.client_sent = self.upstream_took;
                        self.upload = match length.saturating_sub(sent) {
                            0 => Upload::Reading,
                            left => Upload::Sending(left),
                        };
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                    Poll::Pending => Ok(Poll::Pending),
                }
            }
            Upload::Finishing => match self.upstream.poll_finish(task) {
                Poll::Ready(Ok(())) => {
                    self.upload = Upload::Done;
                    self.pace = None;
                    self.upstream_sent = timer.now();
                    Ok(Poll::Ready(None))
                }
                Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                Poll::Pending => Ok(Poll::Pending),
            },
            Upload::Stopped | Upload::Done => Ok(Poll::Pending),
        }
    }

    /// Stops the upload, because the upstream takes no more. It may have answered before, so the gateway still
    /// waits for that.
    fn stop_upload(&mut self, timer: &Timer) -> Poll<Option<Event>> {
        self.consume_admitted();
        self.upload = Upload::Stopped;
        self.upstream_sent = timer.now();
        Poll::Ready(None)
    }

    /// Consumes the rest of the content that was admitted: a second try takes it from `resend`.
    fn consume_admitted(&mut self) {
        if let Upload::Sending(left) = self.upload {
            self.client.consume(left);
        }
    }

    /// Makes steps towards the client until there is an event or nothing more is possible.
    fn poll_download(&mut self, task: &mut Context<'_>, timer: &Timer) -> Result<Poll<Event>, Failure> {
        loop {
            match self.download {
                Download::Head => {
                    return match self.upstream.poll_head(task, &mut self.head, &self.request.method) {
                        Poll::Ready(Ok(framing)) => {
                            self.upstream_sent = timer.now();
                            Ok(Poll::Ready(Event::Head(framing)))
                        }
                        Poll::Ready(Err(error)) => Err(error.into()),
                        Poll::Pending => Ok(Poll::Pending),
                    };
                }
                Download::Body => match self.upstream.poll_body(task) {
                    Poll::Ready(Ok(true)) => {
                        self.upstream_sent = timer.now();
                        let is_last = self.upstream.ends_with_content();
                        return Ok(Poll::Ready(Event::ResponseContent { is_last }));
                    }
                    Poll::Ready(Ok(false)) => self.download = Download::Finishing,
                    Poll::Ready(Err(error)) => return Err(error.into()),
                    Poll::Pending => return Ok(Poll::Pending),
                },
                Download::Sending { length, is_last } => {
                    let content = self.upstream.content();
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
                    match self.client.poll_send(task, content, ends) {
                        Poll::Ready(Ok(sent)) => {
                            self.upstream.consume(sent);
                            if let Some(throttle) = &mut self.throttle {
                                throttle.sent(sent, timer.now());
                            }
                            self.client_blocked = None;
                            self.download = match length.saturating_sub(sent) {
                                0 => Download::Body,
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
                Download::Finishing => match self.client.poll_finish(task, &mut self.upstream.take_trailers()) {
                    Poll::Ready(Ok(())) => {
                        self.download = Download::Done;
                        return Ok(Poll::Ready(Event::Over));
                    }
                    Poll::Ready(Err(_)) => return Err(Failure::ClientGone),
                    Poll::Pending => {
                        self.client_blocked.get_or_insert(timer.now());
                        return Ok(Poll::Pending);
                    }
                },
                Download::Done => return Ok(Poll::Ready(Event::Over)),
            }
        }
    }

    /// The next deadline, and the failure that names the side that misses it.
    fn due(&self) -> Option<(Nanos, Failure)> {
        let Timing { first_byte, idle, due, .. } = self.timing;
        let blocked = self.client_blocked.map(|since| (since.saturating_add(idle), Failure::ClientGone));
        let upload = match self.upload {
            Upload::Reading => {
                let silent = self.client_sent.saturating_add(idle);
                let slow = self.pace.and_then(|pace| pace.exhausted_at());
                let awaits_body = self.download == Download::Head || slow.is_some();
                awaits_body.then(|| (slow.map_or(silent, |slow| slow.min(silent)), Failure::BodyTimeout))
            }
            Upload::Resending | Upload::Sending(_) | Upload::Finishing => {
                Some((self.upstream_took.saturating_add(idle), Failure::UpstreamTimeout))
            }
            Upload::Stopped | Upload::Done => None,
        };
        let download = match self.download {
            Download::Head if matches!(self.upload, Upload::Stopped | Upload::Done) => {
                Some(self.upstream_sent.saturating_add(first_byte))
            }
            Download::Body => Some(self.upstream_sent.saturating_add(idle.max(first_byte))),
            _ => None,
        };
        let download = download.map(|due| (due, Failure::UpstreamTimeout));
        let total = due.map(|due| match self.upload {
            _ if self.client_blocked.is_some() => (due, Failure::ClientGone),
            // a body of no declared length may be a stream that waits for the response, as in gRPC
            Upload::Reading
                if self.download == Download::Head && matches!(self.request.framing, Framing::Length(_)) =>
            {
                (due, Failure::BodyTimeout)
            }
            _ => (due, Failure::UpstreamTimeout),
        });
        [blocked, upload, download, total].into_iter().flatten().min_by_key(|(due, _)| *due)
    }
}
