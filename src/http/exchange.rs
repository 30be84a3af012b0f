//! One request from its head to its end: decided on, sent to an upstream, answered.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::body::Framing;
use super::client::{Client, ClientError, ClientHead};
use super::connection::Presence;
use super::fields::Fields;
use super::head::{RequestHead, ResponseHead, Version};
use super::pace::Pace;
use super::service::{ConnectError, Exchange, Failure, Peer, Response, Service, Timing};
use super::timer::Timer;
use super::tunnel;
use super::upstream::{Destination, Upstream, UpstreamError, open};
use super::worker::Worker;
use crate::units::Nanos;

/// How long a client may take to read an answer of the gateway's own.
const ANSWER_TIME: Nanos = Nanos::from_secs(10);
/// How much of a request's body is kept to be sent again, in bytes.
const MAX_RESENT: usize = 64 << 10;
const SWITCHING_PROTOCOLS: u16 = 101;
/// A status that tells a client which protocol to upgrade to.
const UPGRADE_REQUIRED: u16 = 426;

/// How an exchange ended, for the connection that it was on.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client was sent a whole response. What it still sends of its request's body is owed `patience`.
    Answered {
        /// How long the rest of the body may take.
        patience: Option<Pace>,
    },
    /// The connection or the stream ends at once, without an answer or within one.
    CutOff,
}

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

/// Serves one request.
pub(super) async fn serve<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    request: &RequestHead,
    peer: &Arc<Peer>,
    presence: &mut Presence,
    timer: &mut Timer,
) -> Ended {
    let _request = worker.traffic.request();
    let mut exchange = worker.service.begin(peer, request.version);
    let decided = unless_gone(client, exchange.decide(request)).await;
    presence.set(None);
    match decided {
        None => return Ended::CutOff,
        Some(Err(response)) => return answer(worker, client, &response, timer).await,
        Some(Ok(())) => {}
    }
    let timing = exchange.timing();
    let (mut fresh_only, mut sent_before) = (false, Vec::new());
    loop {
        let destination = match exchange.destination() {
            Ok(destination) => destination,
            Err(response) => return answer(worker, client, &response, timer).await,
        };
        let kept = if fresh_only { None } else { worker.pool.borrow_mut().take(&destination.server, timer.now()) };
        let is_reused = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let due = earlier(timer.after(timing.connect), timing.due);
                let connecting = unless_gone(client, open(&destination.server));
                let connected = match timer.run(due, connecting).await {
                    Ok(None) => return Ended::CutOff,
                    Ok(Some(connected)) => connected.map_err(ConnectError::Failed),
                    Err(_) => Err(ConnectError::TimedOut),
                };
                match connected {
                    Ok(connection) => {
                        worker.pool.borrow_mut().share(&destination.server, &connection, timer.now());
                        connection
                    }
                    Err(error) => match exchange.connect_failed(&error) {
                        Ok(()) => continue,
                        Err(response) => return answer(worker, client, &response, timer).await,
                    },
                }
            }
        };
        let outgoing = match exchange.request_head(request) {
            Ok(outgoing) => outgoing,
            Err(response) => return answer(worker, client, &response, timer).await,
        };
        let upgrade = wanted_upgrade(request, &destination);
        let beginning = Upstream::begin(connection, &destination.server, request, &outgoing, upgrade);
        let due = earlier(timer.after(timing.connect), timing.due);
        let transferred = match timer.run(due, beginning).await {
            Ok(Ok(upstream)) => {
                let mut transfer = Transfer::new(client, upstream, request, timing, timer.now());
                transfer.resend = (is_reused && is_idempotent(&request.method)).then(Vec::new);
                transfer.begin_with(std::mem::take(&mut sent_before));
                let ended = transfer.run(&mut exchange, timer, upgrade.is_some(), || worker.traffic.is_leaving()).await;
                transfer.into_outcome(ended)
            }
            // nothing of the request was sent
            Ok(Err(error)) => Outcome::Failed {
                failure: Failure::UpstreamBroke(error),
                is_begun: false,
                resend: is_reused.then(|| std::mem::take(&mut sent_before)),
            },
            Err(_) => Outcome::Failed { failure: Failure::UpstreamTimeout, is_begun: false, resend: None },
        };
        match transferred {
            Outcome::Over { upstream, patience } => {
                if let Some((socket, kept_for)) = upstream.and_then(Upstream::into_kept) {
                    let keep_alive = kept_for.map_or(destination.keep_alive, |kept| kept.min(destination.keep_alive));
                    worker.pool.borrow_mut().keep(&destination.server, socket, keep_alive, timer.now());
                }
                return Ended::Answered { patience };
            }
            Outcome::Tunnel(upstream) => {
                tunnel::run(client, upstream, &mut exchange, timing, timer).await;
                return Ended::CutOff;
            }
            Outcome::Answer(response) => return answer(worker, client, &response, timer).await,
            Outcome::Failed { failure: Failure::UpstreamBroke(_), is_begun: false, resend: Some(sent) } => {
                exchange.resent();
                (fresh_only, sent_before) = (true, sent);
            }
            Outcome::Failed { failure, is_begun, .. } => {
                let response = exchange.failed(&failure);
                return match (is_begun, &failure) {
                    (true, _) | (_, Failure::ClientGone) => Ended::CutOff,
                    // a stream whose body does not come is reset: the client is not waiting for an answer
                    (false, Failure::BodyTimeout) if matches!(client, Client::Http2(_)) => Ended::CutOff,
                    (false, _) => answer(worker, client, &response, timer).await,
                };
            }
        }
    }
}

/// Sends an answer of the gateway's own.
pub(super) async fn answer<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    response: &Response,
    timer: &mut Timer,
) -> Ended {
    if response.closes || worker.traffic.is_leaving() || !client.can_be_drained() {
        client.close();
    }
    let framing = match response.body.len() {
        0 => Framing::Empty,
        length => Framing::Length(u64::try_from(length).unwrap_or(u64::MAX)),
    };
    let declared = itoa::Buffer::new().format(response.body.len()).to_owned();
    let declared = Some(declared.as_bytes()).filter(|_| !matches!(response.status, 204 | 304));
    let (status, fields, wall) = (response.status, &response.fields, timer.wall());
    let head = ClientHead { status, reason: b"", fields, framing, declared, wall };
    if client.begin_response(&head).is_err() {
        return Ended::CutOff;
    }
    let body = if client.takes_body(response.status) { &*response.body } else { &[] };
    let idle = worker.service.settings().idle;
    let (mut sent, mut blocked_since) = (0, timer.now());
    let due = timer.after(ANSWER_TIME);
    let sending = poll_fn(|task| {
        while sent < body.len() {
            match client.poll_send(task, body.get(sent..).unwrap_or_default(), true) {
                Poll::Ready(Ok(length)) => {
                    sent = sent.saturating_add(length);
                    blocked_since = timer.now();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    return timer
                        .poll(task, due.min(blocked_since.saturating_add(idle)))
                        .map(|_| Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        match client.poll_finish(task, &mut None) {
            Poll::Pending => timer
                .poll(task, due.min(blocked_since.saturating_add(idle)))
                .map(|_| Err(io::ErrorKind::TimedOut.into())),
            finished => finished,
        }
    });
    match sending.await {
        Ok(()) => Ended::Answered { patience: None },
        Err(error) => {
            tracing::debug!(%error, "a client went away before its answer");
            Ended::CutOff
        }
    }
}

/// What `work` comes to; `None` where the client goes away before.
async fn unless_gone<W: Future>(client: &mut Client<'_>, work: W) -> Option<W::Output> {
    let mut work = pin!(work);
    poll_fn(|task| match work.as_mut().poll(task) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => client.poll_gone(task).map(|()| None),
    })
    .await
}

/// Methods that may be sent again where nobody knows whether they arrived (RFC 9110, section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE")
}

/// The protocol that a request is to be switched to, where that may be.
fn wanted_upgrade<'r>(request: &'r RequestHead, destination: &Destination) -> Option<&'r [u8]> {
    let wanted = request.fields.get("upgrade").filter(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))?;
    let may = destination.allows_upgrade
        && !destination.server.http2
        && request.version == Version::Http11
        && request.method == "GET"
        && request.framing == Framing::Empty
        && request.fields.lists("connection", "upgrade");
    may.then_some(wanted)
}

fn earlier(due: Nanos, other: Option<Nanos>) -> Nanos {
    other.map_or(due, |other| other.min(due))
}

// === Transfer ===

/// Sends a request to an upstream and its response to the client, both at once.
struct Transfer<'t, 'c> {
    client: &'t mut Client<'c>,
    upstream: Upstream,
    request: &'t RequestHead,
    timing: Timing,
    upload: Upload,
    download: Download,
    head: ResponseHead,
    pace: Option<Pace>,
    /// What an earlier try took of the client's body, and how much of that is sent again.
    sent_before: (Vec<u8>, usize),
    /// What was taken of the client's body, as long as it can be sent again.
    resend: Option<Vec<u8>>,
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
    /// What an earlier try sent is sent again.
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
enum Outcome {
    Over { upstream: Option<Upstream>, patience: Option<Pace> },
    Tunnel(Upstream),
    Answer(Response),
    Failed { failure: Failure, is_begun: bool, resend: Option<Vec<u8>> },
}

enum End {
    Over,
    Tunnel,
    Answer(Response),
    Failed(Failure),
}

impl<'t, 'c> Transfer<'t, 'c> {
    fn new(
        client: &'t mut Client<'c>,
        upstream: Upstream,
        request: &'t RequestHead,
        timing: Timing,
        now: Nanos,
    ) -> Self {
        let upload = if request.framing == Framing::Empty { Upload::Finishing } else { Upload::Reading };
        // a client that asks first sends nothing before the upstream agrees
        let asks_first = request.fields.contains("expect");
        let rate = timing.min_body_rate.filter(|_| !asks_first && upload == Upload::Reading);
        Self {
            client,
            upstream,
            request,
            timing,
            upload,
            download: Download::Head,
            head: ResponseHead::default(),
            pace: rate.map(Pace::new),
            sent_before: (Vec::new(), 0),
            resend: None,
            client_sent: now,
            upstream_took: now,
            upstream_sent: now,
            client_blocked: None,
        }
    }

    /// What an earlier try took of the client's body goes out first.
    fn begin_with(&mut self, sent_before: Vec<u8>) {
        if !sent_before.is_empty() {
            (self.sent_before, self.upload) = ((sent_before, 0), Upload::Resending);
        }
    }

    fn into_outcome(self, end: End) -> Outcome {
        match end {
            End::Over => {
                let is_sent = self.upload == Upload::Done;
                Outcome::Over { upstream: is_sent.then_some(self.upstream), patience: self.pace }
            }
            End::Tunnel => Outcome::Tunnel(self.upstream),
            End::Answer(response) => Outcome::Answer(response),
            End::Failed(failure) => {
                let is_begun = self.download != Download::Head;
                Outcome::Failed { failure, is_begun, resend: self.resend }
            }
        }
    }

    async fn run(
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
                return Some(End::Failed(super::head::Unreadable("it switches to a protocol nobody asked for").into()));
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
                self.head.fields.end_to_end().for_each(|(name, value)| fields.push(name, value));
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
            // a head that waits for content leaves without it
            if matches!(self.download, Download::Head | Download::Body) {
                match self.client.poll_flush(task) {
                    Poll::Ready(Ok(())) => self.client_blocked = None,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                    Poll::Pending => {
                        self.client_blocked.get_or_insert(timer.now());
                    }
                }
            }
            let Some((due, failure)) = self.due() else { return Poll::Pending };
            return timer.poll(task, due).map(|_| Err(failure));
        }
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
                Poll::Ready(Err(ClientError::Gone)) => Err(Failure::ClientGone),
                Poll::Ready(Err(ClientError::Refused(refused))) => Err(Failure::Refused(refused)),
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
                    let content = content.get(..length).unwrap_or(content);
                    match self.client.poll_send(task, content, is_last) {
                        Poll::Ready(Ok(sent)) => {
                            self.upstream.consume(sent);
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
