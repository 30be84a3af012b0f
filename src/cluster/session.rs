//! The asking side of one connection: sends requests in batches, and matches answers to requests by number.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use serde::Serialize;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};

use super::connection::{Connection, Reader, Writer};
use super::wire::{Answer, Ask, ChargeRequest, Items, LimitIdentity};
use crate::algorithm::{Parameters, Rule};

/// A limit's parameters as other gateways learn them.
#[derive(Debug)]
pub struct WireRule {
    /// A hash of the limit and the parameters: equal ones are the same for the other gateways.
    id: u64,
    limit: Arc<LimitIdentity>,
    parameters: Parameters,
}

impl WireRule {
    /// The parameters of `rule` of `limit`.
    pub fn new(limit: &Arc<LimitIdentity>, rule: &Rule) -> Self {
        // with a seed of this process, because clients choose some parameters
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let parameters = Parameters::of(rule);
        let id = SEED.hash_one((&**limit, format!("{parameters:?}")));
        Self { id, limit: Arc::clone(limit), parameters }
    }

    /// Identifies the limit and the parameters in this process.
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
pub type PeerCharge = ChargeRequest<Arc<WireRule>>;

/// A callback for the answer, or for `None` when no answer can arrive any more.
pub(super) type ReplyCallback = Box<dyn FnOnce(Option<Answer>) + Send>;

/// A connection for sending requests.
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
    callbacks: BTreeMap<u64, ReplyCallback>,
    /// Whether the connection has ended: then no callback is added any more.
    is_over: bool,
}

/// The number of a request, and the request.
type Asked = (u64, Ask);

/// The maximum number of requests that wait for an answer.
const MAX_WAITING: usize = 16_384;
/// The maximum number of parameters that the other side learns per connection. Each customer may have its own parameters.
const MAX_RULES: usize = 65_536;

impl Session {
    /// Starts a task that serves `connection` until it ends or this value is dropped. Each frame begins with `ring`, the
    /// hash of the ring.
    pub(super) fn begin(connection: Connection, ring: Arc<AtomicU64>) -> Arc<Self> {
        let Connection { reader, writer, other } = connection;
        let (queue, queued) = Outgoing::new();
        let session = Arc::new(Self {
            process: other.process,
            queue,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            known: Mutex::default(),
        });
        let weak = Arc::downgrade(&session);
        tokio::spawn(async move {
            queued.serve(writer, Some(&ring), read(reader, &weak)).await;
            if let Some(session) = weak.upgrade() {
                session.give_up();
            }
        });
        session
    }

    /// Whether answers can still arrive.
    pub(super) fn is_open(&self) -> bool {
        !self.queue.items.is_closed()
    }

    /// Sends the request that `ask` makes from the numbers of the parameters `rules`. Returns whether it was sent:
    /// otherwise `on_reply` is not called.
    pub(super) fn ask(&self, rules: &[&WireRule], ask: impl FnOnce(&[u32]) -> Ask, on_reply: ReplyCallback) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_over || waiting.callbacks.len() >= MAX_WAITING {
                return false;
            }
            waiting.callbacks.insert(number, on_reply);
        }
        // locked until the request is queued: the parameters that it refers to must be sent before it
        let mut known = self.known.lock();
        let mut numbers = SmallVec::<[u32; 4]>::new();
        for rule in rules {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            numbers.push(*known.entry(rule.id).or_insert_with(|| {
                let learn = Ask::Learn { limit: (*rule.limit).clone(), parameters: rule.parameters.clone() };
                self.queue.push((number, learn));
                next
            }));
        }
        self.queue.push((number, ask(&numbers)));
        if known.len() > MAX_RULES {
            // the other side of the next connection learns them again
            self.queue.end();
        }
        true
    }

    /// Whether this side has ended the connection, because the other side has learned too many parameters.
    pub(super) fn is_full(&self) -> bool {
        self.known.lock().len() > MAX_RULES
    }

    /// Waits until no answer can arrive any more.
    pub(super) async fn ended(&self) {
        self.queue.items.closed().await;
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
        self.queue.end();
        self.give_up();
    }
}

async fn read(mut reader: Reader, session: &Weak<Session>) {
    while let Ok(frame) = reader.frame().await {
        let Some(session) = session.upgrade() else { return };
        for item in Items::answered(frame) {
            let Some((number, answer)) = item else { return };
            session.answered(number, answer);
        }
    }
}

// === outgoing queue ===

/// The queue of items to send over a connection: all items that are queued during a write go out together in the next one.
pub(super) struct Outgoing<T> {
    items: mpsc::Sender<T>,
    /// Notified when this side ends the connection.
    end: Arc<Notify>,
}

/// The receiving end of an [`Outgoing`] queue, which the connection's task has.
pub(super) struct Queued<T> {
    items: mpsc::Receiver<T>,
    end: Arc<Notify>,
}

/// The maximum number of queued items. With more, the other side does not read, and the connection is closed.
const MAX_QUEUED: usize = 65_536;

impl<T> Outgoing<T> {
    pub(super) fn new() -> (Self, Queued<T>) {
        let ((sender, receiver), end) = (mpsc::channel(MAX_QUEUED), Arc::default());
        (Self { items: sender, end: Arc::clone(&end) }, Queued { items: receiver, end })
    }

    /// Queues an item. Ends the connection if there is no room.
    pub(super) fn push(&self, item: T) {
        if self.items.try_send(item).is_err() {
            self.end();
        }
    }

    /// Ends the connection in both directions.
    fn end(&self) {
        self.end.notify_one();
    }
}

impl<T: Serialize> Queued<T> {
    /// Sends the items while `reading` receives, until one of the two ends or this side ends the connection; dropping this
    /// ends it too. Each frame begins with the number in `head`, if there is one.
    pub(super) async fn serve(self, mut writer: Writer, head: Option<&AtomicU64>, reading: impl Future<Output = ()>) {
        let Self { items: mut queue, end } = self;
        let writing = async {
            loop {
                let mut items = Vec::new();
                let head = match queue.recv_many(&mut items, MAX_QUEUED).await {
                    0 => return,
                    _ => head.map(|head| head.load(Ordering::Relaxed)),
                };
                if writer.send(head, &items).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = end.notified() => {}
            () = reading => {}
            () = writing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{AlgorithmName, Arguments, Value};

    #[test]
    fn parameters_made_again_have_the_same_number() {
        let of = |name: &str, limit| {
            let identity = LimitIdentity { name: name.to_owned(), algorithm: String::new(), key_kind: 0, max_keys: 1 };
            let mut arguments = Arguments::default();
            arguments.set("limit", Value::Whole(limit));
            WireRule::new(&Arc::new(identity), &AlgorithmName::Concurrency.build(&arguments).unwrap()).id()
        };
        assert_eq!(of("a", 1), of("a", 1));
        assert!(of("a", 1) != of("a", 2) && of("a", 1) != of("b", 1));
    }
}
