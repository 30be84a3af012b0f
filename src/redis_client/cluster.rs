//! Cluster: which server holds which slots. Learnt from any of them, and anew whenever one turns out not to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use crc16::{State, XMODEM};
use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, failed};
use super::shared_future::SharedFuture;
use super::{Address, CONNECT_TIME, Servers, word};
use crate::units::Nanos;

/// What is known of a cluster.
#[derive(Default)]
pub(super) struct Cluster {
    topology: ArcSwapOption<Topology>,
    learning: Mutex<Option<Learning>>,
    /// Whether a server did not do what was expected of it.
    is_doubted: AtomicBool,
}

/// Who holds which slots: first and last slot, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Topology(Vec<(u16, u16, Address)>);

type Learning = SharedFuture<RedisResult<Arc<Topology>>>;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;
/// How long nobody is asked again after an answer or a failure.
const PAUSE: Nanos = Nanos::new(100_000_000);
/// How many servers are asked at once, beside those of the configuration.
const MOST_ASKED: usize = 16;

/// The slot of a key: that of what stands in its first braces, or of all of it where nothing does.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    State::<XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

// === impl Cluster ===

impl Cluster {
    /// Who holds what, as far as is known; where that is in doubt it is learnt anew beside, and where nothing is known first.
    pub(super) async fn topology(&self, servers: &Servers, seeds: &[Address]) -> RedisResult<Arc<Topology>> {
        let known = self.topology.load_full();
        if let Some(known) = known {
            if self.is_doubted.load(Ordering::Relaxed) {
                drop(self.learn(servers, seeds));
            }
            return Ok(known);
        }
        let learnt = self.learn(servers, seeds).land().await;
        learnt.unwrap_or_else(|| Err(failed("given up".to_owned())))
    }

    /// Who holds what, as far as is known.
    pub(super) fn known(&self) -> Option<Arc<Topology>> {
        self.topology.load_full()
    }

    /// A server did not do what was expected of it.
    pub(super) fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Begins to learn, unless that is done now or was just done.
    fn learn(&self, servers: &Servers, seeds: &[Address]) -> Learning {
        let mut learning = self.learning.lock();
        if let Some(learning) = learning.as_ref().filter(|learning| !learning.is_over()) {
            return learning.clone();
        }
        self.is_doubted.store(false, Ordering::Relaxed);
        let known = self.topology.load_full().unwrap_or_default();
        let begun = SharedFuture::begin_with_rest(learn(servers.clone(), asked(seeds, &known)), PAUSE);
        *learning = Some(begun.clone());
        begun
    }

    fn learnt(&self, topology: Topology) -> Arc<Topology> {
        let topology = Arc::new(topology);
        self.topology.store(Some(Arc::clone(&topology)));
        topology
    }
}

/// Those of the configuration, and some of those that are known.
fn asked(seeds: &[Address], known: &Topology) -> Vec<Address> {
    let mut asked = seeds.to_vec();
    for (_, _, address) in &known.0 {
        if asked.len() < seeds.len().saturating_add(MOST_ASKED) && !asked.contains(address) {
            asked.push(address.clone());
        }
    }
    asked
}

/// Asks all at once; the first who answers is believed.
async fn learn(servers: Servers, asked: Vec<Address>) -> RedisResult<Arc<Topology>> {
    let credentials = servers.0.credentials.load_full();
    let login = servers.login(&credentials);
    let mut asking = JoinSet::new();
    for address in asked {
        let (tls, login) = (credentials.tls.clone(), login.clone());
        asking.spawn(async move {
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            let ask = async { Connection::open(&address, tls, &login).await?.ask(&question).await };
            let late = |_| Err(failed("it takes too long to answer".to_owned()));
            let answer = timeout(CONNECT_TIME.to_duration(), ask).await.unwrap_or_else(late)?;
            Topology::read(answer, &address.host).ok_or_else(|| failed(format!("{address} knows of no slots")))
        });
    }
    let mut last = failed("the cluster has no servers".to_owned());
    while let Some(answer) = asking.join_next().await {
        match answer {
            Ok(Ok(topology)) => return Ok(servers.0.cluster.learnt(topology)),
            Ok(Err(error)) => last = error,
            Err(error) => last = failed(error.to_string()),
        }
    }
    Err(last)
}

// === impl Topology ===

impl Topology {
    /// From the answer to `CLUSTER SLOTS` of the server at `host`, which is meant where it names none; `None` if that says
    /// nothing.
    fn read(answer: Value, host: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let range = |range: &Value| {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok().filter(|last| *last < SLOTS)?);
            let [named, Value::Int(port), ..] = primary.as_slice() else { return None };
            let host = match word(named) {
                Some("?") => return None,
                Some("") | None => host,
                Some(named) => named,
            };
            let address = Address { host: host.to_owned(), port: u16::try_from(*port).ok()? };
            Some((first, last, address))
        };
        let mut ranges: Vec<_> = ranges.iter().filter_map(range).collect();
        ranges.sort_by_key(|(first, ..)| *first);
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// Who holds `slot`, if anybody does.
    pub(super) fn holder(&self, slot: u16) -> Option<&Address> {
        let behind = self.0.partition_point(|(first, ..)| *first <= slot);
        let (_, last, address) = self.0.get(behind.checked_sub(1)?)?;
        (slot <= *last).then_some(address)
    }

    /// All who hold slots; one may be named several times.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Address> {
        self.0.iter().map(|(_, _, address)| address)
    }
}

/// Where a server says that a key is now; `asked` is that server.
pub(super) fn redirected(error: &RedisError, asked: &Address) -> Option<Address> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = if host.is_empty() { asked.host.as_str() } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_published_function() {
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31c3);
        assert_eq!(slot_of("123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{}{bar}"), State::<XMODEM>::calculate(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec()), Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_slot_has_the_holder_that_was_said_or_none() {
        let ranges = [
            range(10_923, 16_383, text("c"), 3),
            range(0, 5_460, text(""), 1),
            range(5_461, 5_461, Value::Nil, 2),
            range(6_000, 6_001, text("?"), 4),
        ];
        let topology = Topology::read(Value::Array(ranges.to_vec()), "asked").unwrap();
        let holder = |slot| topology.holder(slot).map(ToString::to_string);
        assert_eq!(holder(0).as_deref(), Some("asked:1"));
        assert_eq!(holder(5_460).as_deref(), Some("asked:1"));
        assert_eq!(holder(5_461).as_deref(), Some("asked:2"));
        assert_eq!(holder(5_462), None);
        assert_eq!(holder(6_000), None);
        assert_eq!(holder(16_383).as_deref(), Some("c:3"));
    }

    #[test]
    fn nonsense_is_no_topology() {
        for answer in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(-1, 5, text("a"), 1)]),
            Value::Array(vec![range(0, 16_384, text("a"), 1)]),
            Value::Array(vec![range(0, 5, text("a"), 65_536)]),
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(1), Value::Array(vec![])])]),
        ] {
            assert_eq!(Topology::read(answer, "asked"), None);
        }
    }
}
