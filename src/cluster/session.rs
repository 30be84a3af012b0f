//! The asking side of one connection: sends requests in batches, and matches answers to them by number.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

use super::connection::{Connection, Reader, Writer};
use super::wire::{Answer, Ask, ChargeRequest, Items, LimitIdentity};
use crate::algorithm::{Parameters, Rule};
use crate::charge::Enforcement;
use crate::units::{Cost, LimitKey};

/// A limit's parameters as other gateways learn them.
#[derive(Debug)]
pub struct WireRule {
    /// Identifies it in this process.
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

    /// Identifies it in this process.
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

/// The charge of one limit in a request to another gateway.
#[derive(Clone, Debug)]
pub struct PeerCharge {
    /// The limit and its parameters.
    pub form: Arc<WireRule>,
    /// Which bucket.
    pub key: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// Whether the limit enforces its decision, and when it consumes tokens.
    pub enforcement: Enforcement,
    /// The number of the slot that the request holds while it runs; 0 for none.
    pub slot: u64,
}

impl PeerCharge {
    /// The charge as it is sent to a gateway that knows the parameters under this number.
    pub(super) const fn wanted(&self, rule: u32) -> ChargeRequest {
        let Self { key, cost, enforcement, slot, .. } = *self;
        ChargeRequest { rule, key, cost, enforcement, slot }
    }
}

/// Called with the answer, or with `None` when no answer can come any more.
pub(super) type ReplyCallback = Box<dyn FnOnce(Option<Answer>) + Send>;

/// A connection to send requests over.
pub(super) struct Session {
    /// The process on the other side.
    pub(super) process: u64,
    queue: Outgoing<Asked>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
    /// The numbers under which the other side knows parameters.
    known: Mutex<HashMap<u64, u32>>,
}

#[derive(Default)]
struct Waiting {
    callbacks: BTreeMap<u64, ReplyCallback>,
    /// The connection has ended: no callback is added any more.
    is_over: bool,
}

/// The number of a request, and the request.
type Asked = (u64, Ask);

/// The most requests that wait for an answer.
const MAX_WAITING: usize = 16_384;
/// The most parameters that the other side of a connection learns. Customers may have that many of their own.
const MAX_RULES: usize = 65_536;

/// A request and its parameters.
pub(super) struct Question<'a> {
    /// The parameters that the request refers to, by position.
    pub(super) forms: &'a [&'a WireRule],
    /// Makes the request from the numbers of the parameters.
    pub(super) ask: &'a dyn Fn(&[u32]) -> Ask,
}

impl Session {
    /// Uses `connection` in tasks of its own, until it ends or this value is dropped. `ring` is the hash of the ring that goes
    /// out with every frame.
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
                biased;
                () = queue.ended() => {}
                () = read(reader, &weak) => {}
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

    /// Sends a request. Whether it goes out: otherwise `on_reply` is not called.
    pub(super) fn ask(&self, question: &Question<'_>, on_reply: ReplyCallback) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_over || waiting.callbacks.len() >= MAX_WAITING {
                return false;
            }
            waiting.callbacks.insert(number, on_reply);
        }
        // locked until the request is queued: the parameters that it refers to go out before it
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
            // the other side of the next connection learns them anew
            self.end();
        }
        true
    }

    /// Waits until no answer can come any more.
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

    /// Calls every waiting callback with `None`.
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

// === outgoing queue ===

/// Items that wait to be sent over a connection: all that have been queued meanwhile go out in one write.
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

/// The most items that wait. With more, the other side does not read, and the connection is cut.
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

    /// Ends the connection in both directions.
    pub(super) fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
        self.0.some.notify_one();
        self.0.ended.notify_waiters();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.0.is_ended.load(Ordering::Acquire)
    }

    /// Waits until the connection has ended.
    pub(super) async fn ended(&self) {
        let ended = self.0.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        if !self.is_ended() {
            ended.await;
        }
    }

    /// Sends until the connection ends. Each frame begins with the number in `head`, if there is one.
    pub(super) async fn send_all(&self, mut writer: Writer, head: Option<Arc<AtomicU64>>) {
        loop {
            self.0.some.notified().await;
            let items = std::mem::take(&mut *self.0.items.lock());
            if self.is_ended() {
                return;
            }
            let head = head.as_ref().map(|head| head.load(Ordering::Relaxed));
            let sent = tokio::select! {
                biased;
                () = self.ended() => return,
                sent = writer.send(head, &items) => sent,
            };
            if sent.is_err() {
                self.end();
                return;
            }
        }
    }
}
