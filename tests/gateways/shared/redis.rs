//! A Redis in virtual time: one server, or a cluster whose servers' clocks differ. It runs the scripts of gateways one
//! after the other, in the order in which they arrive over a network that delays and loses them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use mlua::{Function, Lua, MultiValue};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tollgate::clock::Clock;
use tollgate::store::redis::Encoded;
use tollgate::store::redis::codec::hash_tag;
use tollgate::store::shared::link::{CallError, Reply, Script, Scripts};
use tollgate::units::{LimitKey, Nanos};

use crate::shared::data::{Answer, Data};
use crate::world::{Environment, VirtualClock, ms};

/// See the module.
pub(crate) struct Redis {
    lua: Lua,
    /// The loaded scripts by their texts.
    scripts: BTreeMap<&'static str, Function>,
    data: Rc<RefCell<Data>>,
    pub(crate) network: Arc<Network>,
    /// The offset of each server's clock ahead of the gateways' clocks.
    ahead: Vec<Nanos>,
}

/// The network between gateways and Redis.
pub(crate) struct Network(Mutex<Wire>);

/// The state of a server: the way it handles calls that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisState {
    Up,
    /// The server hangs: calls wait until it continues.
    Hanging,
    /// The server refuses scripts, because it is out of memory.
    OutOfMemory,
    /// The server is stopped.
    Stopped,
}

struct Wire {
    random: SmallRng,
    /// The shortest and the longest time that a message takes, in milliseconds.
    delay: (u64, u64),
    /// The additional delay: up to this number of milliseconds.
    more: u64,
    /// The state of each server.
    servers: Vec<RedisState>,
    /// The partitioned gateways: messages to and from them wait.
    partitioned: BTreeSet<usize>,
    sequence: u64,
    /// The calls by their arrival times; a call that waits has the time `Nanos::MAX`.
    calls: BTreeMap<(Nanos, u64), Call>,
    replies: BTreeMap<(Nanos, u64), (Connection, ReplySender, CallResult)>,
    /// The arrival time of the last message of a connection in each direction: no message overtakes it.
    latest: BTreeMap<(Connection, bool), Nanos>,
}

/// A gateway's number, the number of its link, and the number of the server.
type Connection = (usize, u8, usize);
type CallResult = Result<Reply, CallError>;
/// The sender of the answer; `None` if the gateway has given up the connection.
type ReplySender = Option<oneshot::Sender<(Nanos, CallResult)>>;

struct Call {
    from: Connection,
    script: &'static str,
    encoded: Encoded,
    waiting: ReplySender,
}

impl Redis {
    /// A Redis with message delays from `delay.0` to `delay.1` milliseconds, and one server for each clock offset in
    /// `ahead`.
    pub(crate) fn new(seed: u64, delay: (u64, u64), ahead: Vec<Nanos>) -> Self {
        let wire = Wire {
            random: SmallRng::seed_from_u64(seed),
            delay,
            more: 0,
            servers: vec![RedisState::Up; ahead.len()],
            partitioned: BTreeSet::new(),
            sequence: 0,
            calls: BTreeMap::new(),
            replies: BTreeMap::new(),
            latest: BTreeMap::new(),
        };
        let data = Rc::new(RefCell::new(Data::default()));
        let lua = Lua::new();
        provide(&lua, &data).unwrap();
        Self { lua, scripts: BTreeMap::new(), data, network: Arc::new(Network(Mutex::new(wire))), ahead }
    }

    /// The number of servers.
    pub(crate) const fn servers(&self) -> usize {
        self.ahead.len()
    }

    /// Deletes all keys.
    pub(crate) fn forget(&self) {
        self.data.borrow_mut().clear();
    }

    fn run(&mut self, server: usize, text: &'static str, encoded: Encoded, now: Nanos) -> CallResult {
        self.data.borrow_mut().now = now.saturating_add(self.ahead[server]);
        let script = match self.scripts.get(text) {
            Some(script) => script.clone(),
            None => {
                let script = self.lua.load(text).into_function().unwrap();
                self.scripts.insert(text, script.clone());
                script
            }
        };
        let globals = self.lua.globals();
        globals.set("KEYS", encoded.keys).unwrap();
        globals.set("ARGV", encoded.arguments).unwrap();
        let told: mlua::Value = script.call(()).unwrap_or_else(|error| panic!("a script fails: {error}"));
        let table = told.as_table().unwrap();
        if let Ok(error) = table.get::<String>("err") {
            return Err(CallError::Refused(error));
        }
        Ok(Reply(table.sequence_values().map(|value| field(value.unwrap())).collect()))
    }
}

/// The server that has the bucket of `key`.
pub(crate) fn server_of(key: LimitKey, servers: usize) -> usize {
    server_of_tag(&hash_tag(key), servers)
}

/// The server that gets a call.
fn server_of_call(encoded: &Encoded, servers: usize) -> usize {
    let tag = |key: &String| server_of_tag(key.split(['{', '}']).nth(1).unwrap(), servers);
    let all: BTreeSet<usize> = encoded.keys.iter().map(tag).collect();
    let [server] = Vec::from_iter(all)[..] else { panic!("keys of several servers: {:?}", encoded.keys) };
    server
}

/// The server that has the keys with a hash tag; the first server if the tag is no number.
fn server_of_tag(tag: &str, servers: usize) -> usize {
    u128::from_str_radix(tag, 16).map_or(0, |tag| (tag % servers as u128) as usize)
}

/// Provides the functions that Redis offers to scripts.
fn provide(lua: &Lua, data: &Rc<RefCell<Data>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let data = Rc::clone(data);
        let command = move |lua: &Lua, arguments: MultiValue| {
            let words: Vec<Vec<u8>> = arguments
                .into_iter()
                .map(|value| Ok(lua.coerce_string(value)?.unwrap().as_bytes().to_vec()))
                .collect::<mlua::Result<_>>()?;
            match data.borrow_mut().run(&words) {
                Ok(answer) => shown(lua, answer),
                Err(error) if raises => Err(mlua::Error::RuntimeError(error)),
                Err(error) => Ok(mlua::Value::Table(lua.create_table_from([("err", error)])?)),
            }
        };
        redis.set(name, lua.create_function(command)?)?;
    }
    let error_reply = |lua: &Lua, error: String| lua.create_table_from([("err", error)]);
    redis.set("error_reply", lua.create_function(error_reply)?)?;
    lua.globals().set("redis", redis)
}

fn shown(lua: &Lua, answer: Answer) -> mlua::Result<mlua::Value> {
    Ok(match answer {
        Answer::Nothing => mlua::Value::Boolean(false),
        Answer::Number(number) => mlua::Value::Integer(number),
        Answer::Text(text) => mlua::Value::String(lua.create_string(text)?),
        Answer::Status(status) => mlua::Value::Table(lua.create_table_from([("ok", status)])?),
        Answer::List(texts) => {
            let texts = texts.into_iter().map(|text| lua.create_string(text)).collect::<mlua::Result<Vec<_>>>()?;
            mlua::Value::Table(lua.create_sequence_from(texts)?)
        }
    })
}

/// A field of a script's reply, converted as Redis does.
fn field(value: mlua::Value) -> Value {
    match value {
        mlua::Value::Integer(number) => Value::Int(number),
        mlua::Value::Number(number) => Value::Int(number as i64),
        mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        other => panic!("a script answers with {other:?}"),
    }
}

impl Environment for Redis {
    /// Runs the calls that have arrived by `until`, and delivers the replies that are due.
    fn pass(&mut self, until: Nanos) {
        let network = Arc::clone(&self.network);
        loop {
            let Some((at, call)) = network.0.lock().arrived(until) else { break };
            let state = network.0.lock().state(&call);
            let told = match state {
                RedisState::Stopped => Err(CallError::Unreachable("connection refused".to_owned())),
                RedisState::OutOfMemory => Err(CallError::Refused("OOM".to_owned())),
                RedisState::Up | RedisState::Hanging => self.run(call.from.2, call.script, call.encoded, at),
            };
            network.0.lock().answer(call.from, call.waiting, told, at);
        }
        network.0.lock().hand_over(until);
    }
}

impl Wire {
    fn time(&mut self, connection: Connection, is_back: bool, now: Nanos) -> Nanos {
        if self.partitioned.contains(&connection.0) {
            return Nanos::MAX;
        }
        let (least, most) = self.delay;
        let takes = self.random.random_range(least..=most) + self.random.random_range(0..=self.more);
        let latest = self.latest.entry((connection, is_back)).or_default();
        *latest = now.saturating_add(ms(takes)).max(*latest);
        *latest
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// The next call that arrives by `until` at a server that does not hang, with its time.
    fn arrived(&mut self, until: Nanos) -> Option<(Nanos, Call)> {
        let mut arrived = self.calls.range(..=(until, u64::MAX));
        let key = *arrived.find(|(_, call)| self.state(call) != RedisState::Hanging)?.0;
        Some((key.0, self.calls.remove(&key)?))
    }

    /// The state of the server that gets `call`.
    fn state(&self, call: &Call) -> RedisState {
        self.servers[call.from.2]
    }

    fn call(&mut self, call: Call, now: Nanos) {
        let key = (self.time(call.from, false, now), self.next());
        self.calls.insert(key, call);
    }

    fn answer(&mut self, to: Connection, waiting: ReplySender, told: CallResult, at: Nanos) {
        let key = (self.time(to, true, at), self.next());
        self.replies.insert(key, (to, waiting, told));
    }

    fn hand_over(&mut self, until: Nanos) {
        while let Some(first) = self.replies.first_entry().filter(|first| first.key().0 <= until) {
            let (due, _) = *first.key();
            let (_, waiting, told) = first.remove();
            // a cancelled request does not receive the reply
            drop(waiting.map(|waiting| waiting.send((due, told))));
        }
    }

    fn give_up(&mut self, which: impl Fn(Connection) -> bool) {
        self.calls.values_mut().filter(|call| which(call.from)).for_each(|call| call.waiting = None);
        self.replies.values_mut().filter(|(to, ..)| which(*to)).for_each(|(_, waiting, _)| *waiting = None);
    }
}

impl Network {
    /// A link of a gateway, with a connection to each server.
    pub(crate) fn link(self: &Arc<Self>, number: (usize, u8), clock: &Arc<VirtualClock>) -> Box<dyn Scripts> {
        Box::new(Link { number, network: Arc::clone(self), clock: Arc::clone(clock) })
    }

    /// Sets the state of a server from `now` on.
    pub(crate) fn serve(&self, server: usize, state: RedisState, now: Nanos) {
        let mut wire = self.0.lock();
        wire.servers[server] = state;
        // calls that arrived while the server hung run now
        let (late, later): (BTreeMap<_, _>, _) =
            std::mem::take(&mut wire.calls).into_iter().partition(|((at, _), _)| *at < now);
        wire.calls = later;
        wire.calls.extend(late.into_iter().map(|((_, number), call)| ((now, number), call)));
    }

    /// Sets the additional delay of each message: up to this number of milliseconds.
    pub(crate) fn slow(&self, more: u64) {
        self.0.lock().more = more;
    }

    /// Partitions a gateway from Redis.
    pub(crate) fn part(&self, gateway: usize) {
        self.0.lock().partitioned.insert(gateway);
    }

    /// Ends the partition; the messages that were not given up meanwhile arrive.
    pub(crate) fn heal(&self, gateway: usize, now: Nanos) {
        let mut wire = self.0.lock();
        wire.partitioned.remove(&gateway);
        let waits = |at: Nanos, of: Connection| at == Nanos::MAX && of.0 == gateway;
        let (held, calls): (BTreeMap<_, _>, _) =
            std::mem::take(&mut wire.calls).into_iter().partition(|((at, _), call)| waits(*at, call.from));
        wire.calls = calls;
        for ((_, number), call) in held.into_iter().filter(|(_, call)| call.waiting.is_some()) {
            let at = wire.time(call.from, false, now);
            wire.calls.insert((at, number), call);
        }
        let (held, replies): (BTreeMap<_, _>, _) =
            std::mem::take(&mut wire.replies).into_iter().partition(|((at, _), reply)| waits(*at, reply.0));
        wire.replies = replies;
        for ((_, number), reply) in held {
            let at = wire.time(reply.0, true, now);
            wire.replies.insert((at, number), reply);
        }
    }

    /// Breaks the connections of a gateway: calls in flight may still run, but get no reply.
    pub(crate) fn cut(&self, gateway: usize) {
        self.0.lock().give_up(|connection| connection.0 == gateway);
    }
}

struct Link {
    /// The gateway's number, and the number of this link.
    number: (usize, u8),
    network: Arc<Network>,
    clock: Arc<VirtualClock>,
}

#[async_trait]
impl Scripts for Link {
    async fn call(&self, script: &Script, encoded: &Encoded) -> CallResult {
        let (tells, told) = oneshot::channel();
        let from = (self.number.0, self.number.1, server_of_call(encoded, self.servers()));
        let call = Call { from, script: script.text(), encoded: encoded.clone(), waiting: Some(tells) };
        self.network.0.lock().call(call, self.clock.now());
        let Ok((due, told)) = told.await else {
            return Err(CallError::Broken("the connection broke off".to_owned()));
        };
        sleep_until(self.clock.instant(due)).await;
        told
    }

    fn slot_of(&self, hash_tag: &str) -> u16 {
        server_of_tag(hash_tag, self.servers()) as u16
    }

    fn slot(&self, tag: LimitKey) -> u16 {
        self.slot_of(&hash_tag(tag))
    }

    fn slots(&self) -> usize {
        self.servers()
    }

    fn server(&self, slot: u16) -> usize {
        slot.into()
    }

    fn servers(&self) -> usize {
        self.network.0.lock().servers.len()
    }

    fn server_name(&self, server: usize) -> Option<String> {
        (server < self.servers()).then(|| format!("redis-{server}"))
    }

    fn close(&self, server: usize) {
        self.network.0.lock().give_up(|connection| connection == (self.number.0, self.number.1, server));
    }

    async fn open(&self) {}
}
