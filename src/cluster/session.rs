//! The asking side of one connection: questions go out together, answers come back under their numbers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

use super::connection::{Connection, Reader, Writer};
use super::wire::{Answer, Ask, Items, LimitIdentity};
use crate::algorithm::{Parameters, Rule};

/// A limit's parameters as other gateways are told of them.
#[derive(Debug)]
pub struct WireRule {
    /// Tells it from every other of this process.
    id: u64,
    limit: Arc<LimitIdentity>,
    parameters: Parameters,
}

impl WireRule {
    /// `rule` of `limit`.
    pub fn new(limit: &Arc<LimitIdentity>, rule: &Rule) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, limit: Arc::clone(limit), parameters: Parameters::of(rule) }
    }

    /// Tells it from every other of this process.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The limit.
    pub const fn limit(&self) -> &Arc<LimitIdentity> {
        &self.limit
    }

    /// The parameters.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

/// What is told of an answer, if one comes.
pub(super) type ReplyCallback = Box<dyn FnOnce(Option<Answer>) + Send>;

/// A connection that questions go out on.
pub(super) struct Session {
    /// The process on the other side.
    pub(super) process: u64,
    queue: Outgoing<Asked>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
    /// The numbers by which the other side knows parameters.
    known: Mutex<HashMap<u64, u32>>,
}

#[derive(Default)]
struct Waiting {
    callbacks: HashMap<u64, ReplyCallback>,
    /// Nobody is told of anything any more.
    is_over: bool,
}

/// Questions that have to go out one right after the other.
type Asked = (u64, Ask);

/// The most questions that wait for an answer: more would be of use to nobody.
const MAX_WAITING: usize = 16_384;
/// The most parameters that a connection is told of. Customers may have as many of their own.
const MAX_RULES: usize = 65_536;

/// Questions and their parameters.
pub(super) struct Question<'a> {
    /// The parameters that it refers to by their positions here.
    pub(super) forms: &'a [&'a WireRule],
    /// The question, made with the numbers of the parameters.
    pub(super) ask: &'a dyn Fn(&[u32]) -> Ask,
}

impl Session {
    /// Talks over `connection` in tasks of its own, until it ends or nobody holds this value. `ring` tells what the
    /// cluster looks like from here whenever something goes out.
    pub(super) fn begin(connection: Connection, ring: Arc<AtomicU64>) -> Arc<Self> {
        let Connection { reader, writer, other } = connection;
        let session = Arc::new(Self {
            process: other.process,
            queue: Outgoing::default(),
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            known: Mutex::default(),
        });
        let queue = session.queue.clone();
        tokio::spawn(async move { queue.send_all(writer, Some(ring)).await });
        let (weak, queue) = (Arc::downgrade(&session), session.queue.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = read(reader, &weak) => {}
                () = queue.ended() => {}
            }
            queue.end();
            if let Some(session) = weak.upgrade() {
                session.give_up();
            }
        });
        session
    }

    /// Whether answers can still come.
    pub(super) fn is_open(&self) -> bool {
        !self.queue.is_ended()
    }

    /// Asks. Whether the question goes out: otherwise `on_reply` is not called.
    pub(super) fn ask(&self, question: &Question<'_>, on_reply: ReplyCallback) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_over || waiting.callbacks.len() >= MAX_WAITING {
                return false;
            }
            waiting.callbacks.insert(number, on_reply);
        }
        // held until the question is queued: what it refers to goes out before it
        let mut known = self.known.lock();
        let mut asks: Vec<Asked> = Vec::with_capacity(1);
        let mut numbers: smallvec::SmallVec<[u32; 4]> = smallvec::SmallVec::new();
        for form in question.forms {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            numbers.push(*known.entry(form.id).or_insert_with(|| {
                let learn = Ask::Learn { limit: (*form.limit).clone(), parameters: form.parameters.clone() };
                asks.push((number, learn));
                next
            }));
        }
        asks.push((number, (question.ask)(&numbers)));
        self.queue.push(asks);
        if known.len() > MAX_RULES {
            // the next connection is told anew
            self.end();
        }
        true
    }

    /// Returns once none can.
    pub(super) async fn ended(&self) {
        self.queue.ended().await;
    }

    /// Cuts the connection.
    fn end(&self) {
        self.queue.end();
    }

    fn answered(&self, number: u64, answer: Answer) {
        let on_reply = self.waiting.lock().callbacks.remove(&number);
        if let Some(on_reply) = on_reply {
            on_reply(Some(answer));
        }
    }

    /// Tells everybody who waits that nothing comes.
    fn give_up(&self) {
        let callbacks = {
            let mut waiting = self.waiting.lock();
            waiting.is_over = true;
            std::mem::take(&mut waiting.callbacks)
        };
        callbacks.into_values().for_each(|on_reply| on_reply(None));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
        self.give_up();
    }
}

async fn read(mut reader: Reader, session: &std::sync::Weak<Session>) {
    while let Ok(frame) = reader.frame().await {
        let Some(session) = session.upgrade() else { return };
        for item in Items::answered(frame) {
            let Some((number, answer)) = item else { return };
            session.answered(number, answer);
        }
    }
}

// === what goes out ===

/// What waits to go out on a connection: everything that has come together meanwhile goes in one write.
pub(super) struct Outgoing<T>(Arc<Shared<T>>);

struct Shared<T> {
    items: Mutex<Vec<T>>,
    some: Notify,
    is_ended: AtomicBool,
    ended: Notify,
}

impl<T> Clone for Outgoing<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Outgoing<T> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            items: Mutex::default(),
            some: Notify::new(),
            is_ended: AtomicBool::new(false),
            ended: Notify::new(),
        }))
    }
}

/// The most items that wait: the other side does not read them.
const MAX_QUEUED: usize = 65_536;

impl<T: Serialize> Outgoing<T> {
    pub(super) fn push(&self, items: impl IntoIterator<Item = T>) {
        let queued = {
            let mut queue = self.0.items.lock();
            queue.extend(items);
            queue.len()
        };
        if queued > MAX_QUEUED {
            self.end();
        }
        self.0.some.notify_one();
    }

    /// Nothing goes out or comes in any more.
    pub(super) fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
        self.0.some.notify_one();
        self.0.ended.notify_waiters();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.0.is_ended.load(Ordering::Acquire)
    }

    /// Returns once that is so.
    pub(super) async fn ended(&self) {
        let ended = self.0.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        if !self.is_ended() {
            ended.await;
        }
    }

    /// Sends until the end. Each frame stands behind the number of `head`, if there is one.
    pub(super) async fn send_all(&self, mut writer: Writer, head: Option<Arc<AtomicU64>>) {
        loop {
            self.0.some.notified().await;
            let items = std::mem::take(&mut *self.0.items.lock());
            if self.is_ended() {
                return;
            }
            let head = head.as_ref().map(|head| head.load(Ordering::Relaxed));
            let sent = tokio::select! {
                sent = writer.send(head, &items) => sent,
                () = self.ended() => return,
            };
            if sent.is_err() {
                self.end();
                return;
            }
        }
    }
}
