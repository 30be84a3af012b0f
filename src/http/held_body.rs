//! The body of a request that is decided on: the decision reads it, and the engine holds back what was read.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::body_rate::BodyRateCredit;
use super::client::Client;
use super::service::{Failure, IncomingBody, Timing};
use super::timer::{Timer, earlier};
use crate::units::Nanos;

/// The body and its client. The decision, which may read the body, and [`HeldBody::run`], which notices that the client goes
/// away, poll the client in turn.
pub(super) struct HeldBody<'e, 'c>(RefCell<State<'e, 'c>>);

struct State<'e, 'c> {
    client: &'e mut Client<'c>,
    timer: &'e mut Timer,
    /// The bytes that were read.
    held: Vec<u8>,
    /// Whether the decision waits for the body. It then polls the client itself.
    is_awaited: bool,
    /// The reason why no more of the body can be read.
    failure: Option<Failure>,
}

impl<'e, 'c> HeldBody<'e, 'c> {
    pub(super) fn new(client: &'e mut Client<'c>, timer: &'e mut Timer) -> Self {
        Self(RefCell::new(State { client, timer, held: Vec::new(), is_awaited: false, failure: None }))
    }

    /// The result of a decision on this body. Fails if the client goes away, or if the decision waits for a body that cannot
    /// be read.
    pub(super) async fn run<D: Future>(&self, mut decision: Pin<&mut D>) -> Result<D::Output, Failure> {
        poll_fn(|task| {
            if let Poll::Ready(decided) = decision.as_mut().poll(task) {
                return Poll::Ready(Ok(decided));
            }
            let State { client, is_awaited, failure, .. } = &mut *self.0.borrow_mut();
            match is_awaited {
                true => failure.take().map_or(Poll::Pending, |failure| Poll::Ready(Err(failure))),
                false => client.poll_disconnect(task).map(|()| Err(Failure::ClientGone)),
            }
        })
        .await
    }

    /// The bytes that were read and not taken.
    pub(super) fn into_held(self) -> Vec<u8> {
        self.0.into_inner().held
    }

    /// Waits for the body by `poll`. If it cannot be read, this waits until [`HeldBody::run`] ends the decision.
    async fn wait<T>(&self, mut poll: impl FnMut(&mut State<'_, '_>, &mut Context<'_>) -> Poll<T>) -> T {
        poll_fn(|task| {
            let state = &mut *self.0.borrow_mut();
            let read = if state.failure.is_none() { poll(state, task) } else { Poll::Pending };
            state.is_awaited = read.is_pending();
            read
        })
        .await
    }
}

impl IncomingBody for HeldBody<'_, '_> {
    async fn read_arrived(&self, mut read: impl FnMut(&[u8]) -> bool) -> bool {
        poll_fn(|task| {
            let state = &mut *self.0.borrow_mut();
            // a client that sends `expect` sends no body before it is answered
            Poll::Ready(!state.client.expects_continue() && state.poll_read(task, &mut read).is_ready())
        })
        .await
    }

    async fn read_awaited(&self, timing: &Timing, mut read: impl FnMut(&[u8]) -> bool) {
        let Timing { idle, due, min_body_rate, .. } = *timing;
        let (mut rate_credit, mut came) = (min_body_rate.map(BodyRateCredit::new), self.0.borrow().timer.now());
        let reading = self.wait(|state, task| {
            let client = &mut *state.client;
            let is_gone = client.expects_continue() && client.send_continue(state.timer.wall()).is_err();
            if is_gone || matches!(client.channel().poll_flush(task), Poll::Ready(Err(_))) {
                return state.fail(Failure::ClientGone);
            }
            let before = state.held.len();
            if state.poll_read(task, &mut read).is_ready() {
                return Poll::Ready(());
            }
            let (now, bytes) = (state.timer.now(), state.held.len().saturating_sub(before));
            if bytes > 0 {
                came = now;
            }
            if let Some(rate_credit) = &mut rate_credit {
                rate_credit.record_bytes(bytes, now);
                rate_credit.start_waiting(now);
            }
            let slow = rate_credit.and_then(|rate_credit| rate_credit.exhausted_at());
            ready!(state.timer.poll(task, earlier(earlier(came.saturating_add(idle), slow), due)));
            state.fail(Failure::BodyTimeout)
        });
        reading.await;
    }

    async fn take_whole(&self, max: usize, within: Nanos) -> Result<Vec<u8>, Failure> {
        let due = self.0.borrow().timer.after(within);
        let mut left = Some(max);
        let reading = self.wait(|state, task| {
            let mut fits = |part: &[u8]| {
                left = left.and_then(|left| left.checked_sub(part.len()));
                left.is_some()
            };
            if state.poll_read(task, &mut fits).is_ready() {
                let held = std::mem::take(&mut state.held);
                return Poll::Ready(left.map(|_| held).ok_or(Failure::BodyTooLarge));
            }
            state.timer.poll(task, due).map(|_| Err(Failure::BodyTimeout))
        });
        reading.await
    }
}

impl State<'_, '_> {
    /// Gives `read` the available parts of the body and holds them. Ready once `read` needs no more or the body has ended. If the
    /// first part suffices, it stays in the client's buffer.
    fn poll_read(&mut self, task: &mut Context<'_>, read: &mut impl FnMut(&[u8]) -> bool) -> Poll<()> {
        loop {
            match ready!(self.client.poll_body(task)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(()),
                Err(failure) => return self.fail(failure),
            }
            let content = self.client.channel().content();
            let (needs_more, length) = (read(content), content.len());
            if needs_more || !self.held.is_empty() {
                self.held.extend_from_slice(content);
                self.client.channel().consume(length);
            }
            if !needs_more {
                return Poll::Ready(());
            }
        }
    }

    /// Notes that no more of the body can be read.
    fn fail<T>(&mut self, failure: Failure) -> Poll<T> {
        self.failure = Some(failure);
        Poll::Pending
    }
}
