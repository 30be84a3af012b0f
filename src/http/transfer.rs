//! A request on its way to an upstream and its response on its way back, both at once.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use super::body::Framing;
use super::client::{Client, ClientHead};
use super::head::{RequestHead, ResponseHead, Unreadable, Version};
use super::pace::{Pace, Throttle};
use super::service::{Exchange, Failure, Response, Timing};
use super::timer::Timer;
use super::upstream::{Upstream, UpstreamError};
use crate::fields::Fields;
use crate::units::Nanos;

/// How much of a request's body is kept to be sent again, in bytes.
const MAX_RESENT: usize = 64 << 10;
/// How many fields most responses have, and how many bytes they take.
const HEAD_FIELDS: usize = 16;
const HEAD_BYTES: usize = 512;
const SWITCHING_PROTOCOLS: u16 = 101;
/// A status that tells a client which protocol to upgrade to.
const UPGRADE_REQUIRED: u16 = 426;

/// What a client and an upstream do next, as far as somebody has to know of it.
enum Event {
    /// Content of the request's body came.
    RequestContent,
    /// A head of a response is there, with a body that is delimited like this.
    Head(Framing),
    /// Content of the response's body came.
    ResponseContent { is_last: bool },
    /// The response is over, with the client's socket having all of it.
    Over,
}

/// Sends a request to an upstream and its response to the client, both at once.
pub(super) struct Transfer<'t, 'c> {
    client: &'t mut Client<'c>,
    upstream: Upstream,
    request: &'t RequestHead,
    timing: Timing,
    upload: Upload,
    download: Download,
    head: ResponseHead,
    pace: Option<Pace>,
    throttle: Option<Throttle>,
    /// What was taken of the client's body before, by an earlier try or for the decision, and how much of that is sent.
    sent_before: (Vec<u8>, usize),
    /// What was taken of the client's body, as long as it can be sent again.
    pub(super) resend: Option<Vec<u8>>,
    /// When the client last sent a part of its body, and when the upstream took one.
    client_sent: Nanos,
    upstream_took: Nanos,
    /// When the request was sent, or the upstream last sent something.
    upstream_sent: Nanos,
    /// Since when the client takes nothing of what is sent.
    client_blocked: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    /// What was taken before is sent.
    Resending,
    /// The client's content is waited for.
    Reading,
    /// Content is here; it was admitted, and so much of it is to be sent.
    Sending(usize),
    /// The end is to be sent.
    Finishing,
    /// The upstream takes no more.
    Stopped,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Download {
    Head,
    Body,
    /// Content is here; it was looked at, and so much of it is to be sent.
    Sending {
        length: usize,
        is_last: bool,
    },
    Finishing,
    Done,
}

/// How a transfer ended.
pub(super) enum TransferEnd {
    Over { upstream: Option<Upstream>, patience: Option<Pace> },
    Tunnel(Upstream),
    Answer(Response),
    Failed { failure: Failure, is_begun: bool, resend: Option<Vec<u8>> },
}

pub(super) enum End {
    Over,
    Tunnel,
    Answer(Response),
    Failed(Failure),
}

impl<'t, 'c> Transfer<'t, 'c> {
    pub(super) fn new(
        client: &'t mut Client<'c>,
        upstream: Upstream,
        (request, asks_first): (&'t RequestHead, bool),
        timing: Timing,
        now: Nanos,
    ) -> Self {
        let upload = if request.framing == Framing::Empty { Upload::Finishing } else { Upload::Reading };
        let rate = timing.min_body_rate.filter(|_| !asks_first && upload == Upload::Reading);
        Self {
            client,
            upstream,
            request,
            timing,
            upload,
            download: Download::Head,
            head: ResponseHead { fields: Fields::with_capacity(HEAD_FIELDS, HEAD_BYTES), ..ResponseHead::default() },
            pace: rate.map(Pace::new),
            throttle: timing.response_rate.map(Throttle::new),
            sent_before: (Vec::new(), 0),
            resend: None,
            client_sent: now,
            upstream_took: now,
            upstream_sent: now,
            client_blocked: None,
        }
    }

    /// What was taken of the client's body before goes out first.
    pub(super) fn begin_with(&mut self, sent_before: Vec<u8>) {
        if !sent_before.is_empty() {
            (self.sent_before, self.upload) = ((sent_before, 0), Upload::Resending);
        }
    }

    pub(super) fn into_outcome(self, end: End) -> TransferEnd {
        match end {
            End::Over => {
                let is_sent = self.upload == Upload::Done;
                TransferEnd::Over { upstream: is_sent.then_some(self.upstream), patience: self.pace }
            }
            End::Tunnel => TransferEnd::Tunnel(self.upstream),
            End::Answer(response) => TransferEnd::Answer(response),
            End::Failed(failure) => {
                let is_begun = self.download != Download::Head;
                TransferEnd::Failed { failure, is_begun, resend: self.resend }
            }
        }
    }

    pub(super) async fn run(
        &mut self,
        exchange: &mut impl Exchange,
        timer: &mut Timer,
        may_switch: bool,
        is_leaving: impl Fn() -> bool,
    ) -> End {
        loop {
            let event = match poll_fn(|task| self.poll(task, timer)).await {
                Ok(event) => event,
                Err(failure) => return End::Failed(failure),
            };
            match event {
                Event::RequestContent => {
                    let length = self.client.content().len();
                    if let Err(response) = exchange.request_body(self.client.content()).await {
                        return match self.download {
                            Download::Head => End::Answer(response),
                            _ => End::Failed(Failure::ClientGone),
                        };
                    }
                    // a part that had to wait its turn is not late
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
                Event::Over => return End::Over,
            }
        }
    }

    /// Passes the head of a response on.
    fn respond(
        &mut self,
        exchange: &mut impl Exchange,
        framing: Framing,
        may_switch: bool,
        wall: Nanos,
        is_leaving: &impl Fn() -> bool,
    ) -> Option<End> {
        let status = self.head.status;
        if status == SWITCHING_PROTOCOLS {
            if !may_switch {
                return Some(End::Failed(Unreadable("it switches to a protocol nobody asked for").into()));
            }
            let mut fields = match exchange.response_head(&self.head) {
                Ok(fields) => fields,
                Err(response) => return Some(End::Answer(response)),
            };
            pass_upgrade(&self.head, &mut fields);
            return Some(match self.begin_response(&fields, Framing::Empty, wall) {
                Ok(()) => End::Tunnel,
                Err(_) => End::Failed(Failure::ClientGone),
            });
        }
        if status < 200 {
            if status == 100 && self.pace.is_none() && self.upload == Upload::Reading {
                self.pace = self.timing.min_body_rate.map(Pace::new);
            }
            if self.client.takes_interim() {
                let mut fields = Fields::default();
                self.head.fields.end_to_end().for_each(|field| fields.push_field(field));
                if self.begin_response(&fields, Framing::Empty, wall).is_err() {
                    return Some(End::Failed(Failure::ClientGone));
                }
            }
            return None;
        }
        let mut fields = match exchange.response_head(&self.head) {
            Ok(fields) => fields,
            Err(response) => return Some(End::Answer(response)),
        };
        // of which HTTP/2 knows nothing (RFC 9113, section 8.2.2)
        if status == UPGRADE_REQUIRED && self.request.version != Version::Http2 {
            pass_upgrade(&self.head, &mut fields);
        }
        // a client that has not sent its body may send it now, or the next request
        let is_owed_body = self.upload != Upload::Done && self.request.fields.contains("expect");
        if is_leaving() || is_owed_body {
            self.client.close();
        }
        if self.begin_response(&fields, framing, wall).is_err() {
            return Some(End::Failed(Failure::ClientGone));
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
        let declared = self.head.fields.get("content-length").filter(|_| framing == Framing::Empty);
        let reason = &self.head.reason;
        let status = self.head.status;
        self.client.begin_response(&ClientHead { status, reason, fields, framing, declared, wall })
    }

    /// Goes on as far as both sides let it.
    fn poll(&mut self, task: &mut Context<'_>, timer: &mut Timer) -> Poll<Result<Event, Failure>> {
        loop {
            match self.poll_upload(task, timer)? {
                Poll::Ready(Some(event)) => return Poll::Ready(Ok(event)),
                Poll::Ready(None) => continue,
                Poll::Pending => {}
            }
            if let Poll::Ready(event) = self.poll_download(task, timer)? {
                return Poll::Ready(Ok(event));
            }
            let resumes = self.resumes(timer.now());
            // a head that waits for content leaves without it
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

    /// When content goes on to be sent that waits for its time.
    fn resumes(&self, now: Nanos) -> Option<Nanos> {
        let throttle = self.throttle.as_ref()?;
        (matches!(self.download, Download::Sending { .. }) && throttle.next > now).then_some(throttle.next)
    }

    /// One step towards the upstream. Ready with nothing where another step can be made at once.
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
                        pace.came(self.client.content().len(), timer.now());
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
                        pace.awaits(timer.now());
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
                        // the client is not to blame for the time that the upstream took
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
            Upload::Stopped => Ok(Poll::Pending),
            Upload::Done => match self.client.poll_gone(task) {
                Poll::Ready(()) => Err(Failure::ClientGone),
                Poll::Pending => Ok(Poll::Pending),
            },
        }
    }

    /// The upstream takes nothing more. It may have answered before it closed, so its response is still waited for.
    fn stop_upload(&mut self, timer: &Timer) -> Poll<Option<Event>> {
        self.upload = Upload::Stopped;
        self.upstream_sent = timer.now();
        Poll::Ready(None)
    }

    /// One step towards the client. Ready with an event, or pending.
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

    /// What has to happen next by when, and who is to blame if it does not.
    fn due(&self) -> Option<(Nanos, Failure)> {
        let Timing { first_byte, idle, due, .. } = self.timing;
        let blocked = self.client_blocked.map(|since| (since.saturating_add(idle), Failure::ClientGone));
        let upload = match self.upload {
            Upload::Reading => {
                let silent = self.client_sent.saturating_add(idle);
                let slow = self.pace.and_then(|pace| pace.runs_out());
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
        let total = due.map(|due| (due, Failure::UpstreamTimeout));
        [blocked, upload, download, total].into_iter().flatten().min_by_key(|(due, _)| *due)
    }
}

/// A response that names a protocol says so on this connection too.
fn pass_upgrade(head: &ResponseHead, fields: &mut Fields) {
    if let Some(protocol) = head.fields.get("upgrade") {
        fields.push("upgrade", protocol);
        fields.push("connection", "upgrade");
    }
}

impl From<UpstreamError> for Failure {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Io(error) => Self::UpstreamBroke(error),
            UpstreamError::Unreadable(unreadable) => Self::Unreadable(unreadable),
        }
    }
}
