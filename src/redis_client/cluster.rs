//! Cluster: the servers and their slots. Any server can tell them; the client asks again after a redirect or a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use crc16::{State, XMODEM};
use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value};
use tokio::task::JoinSet;

use super::connection::{Connection, failed};
use super::shared_future::SharedFuture;
use super::{Address, Servers, word};
use crate::units::Nanos;

/// The client's knowledge of a cluster.
#[derive(Default)]
pub(super) struct Cluster {
    topology: ArcSwapOption<Topology>,
    /// The servers so far: the one at position `n` has the number `n` + 1 for as long as the cluster has it.
    numbered: Mutex<Vec<Address>>,
    learning: Mutex<Option<Learning>>,
    /// Whether a failure or a redirect has put `topology` in doubt.
    is_doubted: AtomicBool,
}

/// The ranges of slots, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Topology(Vec<Range>);

/// Slots that one server holds.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    server: Address,
    /// The server's number: 1 to [`MAX_SERVERS`].
    number: usize,
}

type Learning = SharedFuture<RedisResult<Arc<Topology>>>;

/// The number of slots in a cluster.
pub const SLOTS: u16 = 16_384;
/// The highest number of a server. Redis advises at most 1,000 servers in a cluster.
pub const MAX_SERVERS: usize = 1_024;
/// How long the client waits after an answer or a failure before it asks again.
const PAUSE: Nanos = Nanos::new(100_000_000);
/// How many servers the client asks at once, in addition to the configured ones.
const MAX_ASKED: usize = 16;

/// The slot of a key: that of the text in its first braces, or of the whole key if there is no such text.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    State::<XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

// === impl Cluster ===

impl Cluster {
    /// The servers and their slots, as far as the client knows them. If they are in doubt, it asks again in the
    /// background; if it knows none, it waits for the answer.
    pub(super) async fn topology(&self, servers: &Servers, seeds: &[Address]) -> RedisResult<Arc<Topology>> {
        let known = self.topology.load_full();
        if let Some(known) = known {
            if self.is_doubted.load(Ordering::Relaxed) {
                drop(self.learn(servers, seeds));
            }
            return Ok(known);
        }
        let learnt = self.learn(servers, seeds).wait().await;
        learnt.unwrap_or_else(|| Err(failed("given up".to_owned())))
    }

    /// The servers and their slots, as far as the client knows them.
    pub(super) fn known(&self) -> Option<Arc<Topology>> {
        self.topology.load_full()
    }

    /// The server with this number, whether or not it still holds slots.
    pub(super) fn numbered(&self, number: usize) -> Option<Address> {
        self.numbered.lock().get(number.checked_sub(1)?).cloned()
    }

    /// Marks the known slots as doubtful, after a failure or a redirect.
    pub(super) fn mark_topology_stale(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Begins to ask for the slots, unless the client is asking now or asked a moment ago.
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

    fn learnt(&self, mut topology: Topology) -> Arc<Topology> {
        topology.number(&mut self.numbered.lock());
        let topology = Arc::new(topology);
        self.topology.store(Some(Arc::clone(&topology)));
        topology
    }
}

/// The servers to ask: the configured ones, and some of the known ones.
fn asked(seeds: &[Address], known: &Topology) -> Vec<Address> {
    let mut asked = seeds.to_vec();
    for server in known.holders() {
        if asked.len() < seeds.len().saturating_add(MAX_ASKED) && !asked.contains(server) {
            asked.push(server.clone());
        }
    }
    asked
}

/// Asks all servers at once and takes the first valid answer.
async fn learn(servers: Servers, asked: Vec<Address>) -> RedisResult<Arc<Topology>> {
    let credentials = servers.0.credentials.load_full();
    let login = servers.login(&credentials);
    let mut asking = JoinSet::new();
    for address in asked {
        let (tls, login) = (credentials.tls.clone(), login.clone());
        asking.spawn(async move {
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            let answer = Connection::ask_once(&address, tls, &login, &question).await?;
            Topology::read(answer, &address.host)
                .ok_or_else(|| failed(format!("{address} did not return a valid slot table")))
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
    /// Reads the reply to `CLUSTER SLOTS` of the server at `host`; a range without a host name belongs to that server.
    /// `None` if the reply names no slots.
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
            let server = Address { host: host.to_owned(), port: u16::try_from(*port).ok()? };
            Some(Range { first, last, server, number: 0 })
        };
        let mut ranges: Vec<_> = ranges.iter().filter_map(range).collect();
        ranges.sort_by_key(|range| range.first);
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// Numbers the servers. New ones are appended to `numbered`, or take the places of servers that the cluster no longer
    /// has if there are [`MAX_SERVERS`].
    fn number(&mut self, numbered: &mut Vec<Address>) {
        for server in self.holders() {
            if numbered.contains(server) {
                continue;
            }
            if numbered.len() < MAX_SERVERS {
                numbered.push(server.clone());
            } else if let Some(gone) = numbered.iter_mut().find(|known| !self.holders().any(|one| one == *known)) {
                *gone = server.clone();
            }
        }
        for Range { server, number, .. } in &mut self.0 {
            let position = numbered.iter().position(|known| known == server);
            *number = position.map_or(0, |position| position.saturating_add(1));
        }
    }

    fn range(&self, slot: u16) -> Option<&Range> {
        let behind = self.0.partition_point(|range| range.first <= slot);
        self.0.get(behind.checked_sub(1)?).filter(|range| slot <= range.last)
    }

    /// The server that holds `slot`, if there is one.
    pub(super) fn holder(&self, slot: u16) -> Option<&Address> {
        self.range(slot).map(|range| &range.server)
    }

    /// The number of the server that holds `slot`; 0 if there is none.
    pub(super) fn holder_number(&self, slot: u16) -> usize {
        self.range(slot).map_or(0, |range| range.number)
    }

    /// All servers that hold slots; a server may appear several times.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Address> {
        self.0.iter().map(|range| &range.server)
    }
}

/// The server to which `error` redirects; `asked` is the server that sent it.
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
    fn a_server_keeps_its_number() {
        let topology = |ports: &[i64]| {
            let ranges = ports.iter().zip(0..).map(|(port, slot)| range(slot, slot, text("h"), *port));
            Topology::read(Value::Array(ranges.collect()), "asked").unwrap()
        };
        let mut known = Vec::new();
        let mut numbers = |ports: &[i64]| {
            let mut topology = topology(ports);
            topology.number(&mut known);
            let all = 0..=u16::try_from(ports.len()).unwrap();
            all.map(|slot| topology.holder_number(slot)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&[7, 8, 7]), [1, 2, 1, 0], "nobody holds the last slot");
        assert_eq!(numbers(&[8, 9]), [2, 3, 0]);
        let many: Vec<i64> = (10..10 + i64::try_from(MAX_SERVERS).unwrap() - 3).collect();
        numbers(&many);
        assert_eq!(numbers(&[9, 5_000, 8]), [3, 1, 2, 0], "the first one is gone");
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
