//! The network between gateways in virtual time: it delays, holds back and loses messages.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep, sleep_until};
use tollgate::clock::Clock;
use tollgate::cluster::{Platform, Stream};
use tollgate::units::Nanos;

use crate::world::{VirtualClock, ms};

/// The network, with the state of its links.
pub(crate) struct Network(Mutex<Links>);

struct Links {
    random: SmallRng,
    /// The shortest and the longest time that a message takes, in milliseconds.
    delay: (u64, u64),
    /// A pair with slower messages: up to this number of additional milliseconds.
    slow: Option<(Pair, u64)>,
    /// Partitioned pairs: messages between them wait until the link heals.
    partitioned: BTreeSet<Pair>,
    hosts: Vec<Host>,
    pipes: Vec<Arc<Pipe>>,
    /// The number of a gateway whose long work waits, and that work.
    held: Option<(usize, Vec<LongWork>)>,
}

pub(crate) type LongWork = Box<dyn FnOnce() + Send>;

/// The numbers of two gateways, the smaller one first.
pub(crate) type Pair = (usize, usize);

pub(crate) fn pair(one: usize, other: usize) -> Pair {
    (one.min(other), one.max(other))
}

/// The channel on which a gateway receives new connections.
type Accepts = mpsc::Sender<(Stream, SocketAddr)>;

struct Host {
    address: SocketAddr,
    /// The accept channel and the clock of the gateway while it runs.
    running: Option<(Accepts, Arc<VirtualClock>)>,
    /// The host neither answers nor refuses connections.
    is_silent: bool,
}

/// One direction of a connection.
struct Pipe {
    from: usize,
    to: usize,
    state: Mutex<InPipe>,
}

struct InPipe {
    /// A generator of the pipe's own, because the tasks of a gateway that ends are dropped in any order.
    random: SmallRng,
    /// The sent parts with their arrival times. An empty part is the end of the stream; `Nanos::MAX` means that the part
    /// waits for its link.
    parts: VecDeque<(Nanos, Vec<u8>)>,
    latest: Nanos,
    is_broken: bool,
    reader: Option<Waker>,
}

impl InPipe {
    fn push(&mut self, due: Nanos, part: Vec<u8>) {
        self.latest = self.latest.max(due);
        self.parts.push_back((self.latest, part));
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn break_off(&mut self) {
        self.is_broken = true;
        self.wake();
    }
}

impl Links {
    fn one_way(&self, between: Pair, random: &mut SmallRng) -> Nanos {
        let (least, most) = self.delay;
        let more = self.slow.filter(|(slow, _)| *slow == between).map_or(0, |(_, more)| random.random_range(0..=more));
        ms(random.random_range(least..=most) + more)
    }

    fn send(&self, pipe: &Pipe, part: &[u8], now: Nanos) {
        let between = pair(pipe.from, pipe.to);
        let mut state = pipe.state.lock();
        let arrives = now.saturating_add(self.one_way(between, &mut state.random));
        state.push(if self.partitioned.contains(&between) { Nanos::MAX } else { arrives }, part.to_vec());
    }

    fn pipe(&mut self, from: usize, to: usize) -> Arc<Pipe> {
        let state = InPipe {
            random: SmallRng::from_rng(&mut self.random),
            parts: VecDeque::new(),
            latest: Nanos::ZERO,
            is_broken: false,
            reader: None,
        };
        let pipe = Arc::new(Pipe { from, to, state: Mutex::new(state) });
        self.pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
        self.pipes.push(Arc::clone(&pipe));
        pipe
    }

    fn break_off(&self, which: impl Fn(&Pipe) -> bool) {
        self.pipes.iter().filter(|pipe| which(pipe)).for_each(|pipe| pipe.state.lock().break_off());
    }
}

impl Network {
    /// A network with this number of addresses; a message takes from `delay.0` to `delay.1` milliseconds.
    pub(crate) fn new(seed: u64, addresses: u8, delay: (u64, u64)) -> Self {
        let host = |last: u8| Host { address: ([10, 0, 0, last], 7946).into(), running: None, is_silent: false };
        Self(Mutex::new(Links {
            random: SmallRng::seed_from_u64(seed),
            delay,
            slow: None,
            partitioned: BTreeSet::new(),
            hosts: (1..=addresses).map(host).collect(),
            pipes: Vec::new(),
            held: None,
        }))
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.lock().hosts.iter().map(|host| host.address).collect()
    }

    /// Registers a gateway that receives its connections through `accepts`.
    pub(crate) fn start(&self, number: usize, accepts: Accepts, clock: Arc<VirtualClock>) {
        let mut links = self.0.lock();
        // connections of an earlier process at the address are broken off
        links.break_off(|pipe| pipe.from == number || pipe.to == number);
        let host = &mut links.hosts[number];
        (host.running, host.is_silent) = (Some((accepts, clock)), false);
    }

    /// Ends a gateway. If it is `silent`, the others receive nothing from it any more; otherwise its connections are
    /// closed.
    pub(crate) fn end(&self, number: usize, silent: bool) {
        let mut links = self.0.lock();
        let host = &mut links.hosts[number];
        (host.running, host.is_silent) = (None, silent);
        for pipe in links.pipes.iter().filter(|pipe| silent && (pipe.from == number || pipe.to == number)) {
            pipe.state.lock().parts.push_front((Nanos::MAX, Vec::new()));
        }
    }

    /// Sets a pair whose messages take up to this number of additional milliseconds.
    pub(crate) fn slow(&self, slow: Option<(Pair, u64)>) {
        self.0.lock().slow = slow;
    }

    /// Partitions these pairs until [`Network::heal`].
    pub(crate) fn part(&self, partitioned: impl IntoIterator<Item = Pair>) {
        self.0.lock().partitioned.extend(partitioned);
    }

    pub(crate) fn heal(&self, now: Nanos) {
        let links = &mut *self.0.lock();
        links.partitioned.clear();
        for pipe in &links.pipes {
            let is_dead = [pipe.from, pipe.to].iter().any(|number| links.hosts[*number].running.is_none());
            let state = &mut *pipe.state.lock();
            let due = now.saturating_add(links.one_way(pair(pipe.from, pipe.to), &mut state.random));
            for (arrives, _) in state.parts.iter_mut().filter(|(arrives, _)| *arrives == Nanos::MAX && !is_dead) {
                *arrives = due;
            }
            state.latest = if is_dead { Nanos::MAX } else { due };
            state.wake();
        }
    }

    /// Breaks the connections between two gateways.
    pub(crate) fn cut(&self, between: Pair) {
        self.0.lock().break_off(|pipe| pair(pipe.from, pipe.to) == between);
    }

    /// Keeps the long work of a gateway from now on, until [`Network::release_work`].
    pub(crate) fn hold_work(&self, number: usize) {
        self.0.lock().held = Some((number, Vec::new()));
    }

    pub(crate) fn has_held_work(&self) -> bool {
        self.0.lock().held.as_ref().is_some_and(|(_, held)| !held.is_empty())
    }

    pub(crate) fn release_work(&self) -> Vec<LongWork> {
        self.0.lock().held.take().map_or_else(Vec::new, |(_, held)| held)
    }
}

/// The network interface of one gateway.
pub(crate) struct Port {
    pub(crate) number: usize,
    pub(crate) network: Arc<Network>,
    pub(crate) clock: Arc<VirtualClock>,
}

#[async_trait]
impl Platform for Port {
    async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let there = self.network.0.lock().hosts.iter().position(|host| host.address == to).unwrap();
        let between = pair(self.number, there);
        let one_way = || {
            let links = &mut *self.network.0.lock();
            let mut random = SmallRng::from_rng(&mut links.random);
            links.one_way(between, &mut random).to_duration()
        };
        sleep(one_way()).await;
        let opened = self.open(there);
        sleep(one_way()).await;
        match opened {
            Ok(stream) => Ok(stream),
            Err(true) => Err(io::ErrorKind::ConnectionRefused.into()),
            Err(false) => std::future::pending().await,
        }
    }

    fn spawn_long(&self, work: LongWork) {
        if let Some((number, held)) = &mut self.network.0.lock().held
            && *number == self.number
        {
            return held.push(work);
        }
        work();
    }
}

impl Port {
    /// Opens a connection; the error says whether the other side refused it.
    fn open(&self, there: usize) -> Result<Stream, bool> {
        let mut links = self.network.0.lock();
        let Host { running, is_silent, .. } = &links.hosts[there];
        if *is_silent || links.partitioned.contains(&pair(self.number, there)) {
            return Err(false);
        }
        let (accepts, clock) = running.clone().ok_or(true)?;
        let (asks, answers) = (links.pipe(self.number, there), links.pipe(there, self.number));
        let own = links.hosts[self.number].address;
        drop(links);
        let stream = |reads: &Arc<Pipe>, writes: &Arc<Pipe>, clock: &Arc<VirtualClock>| {
            let reader = Reader { pipe: Arc::clone(reads), clock: Arc::clone(clock), arrives: None };
            let (pipe, network, clock) = (Arc::clone(writes), Arc::clone(&self.network), Arc::clone(clock));
            Stream::new(reader, Writer { pipe, network, clock })
        };
        accepts.try_send((stream(&asks, &answers, &clock), own)).map_err(|_| true)?;
        Ok(stream(&answers, &asks, &self.clock))
    }
}

struct Reader {
    pipe: Arc<Pipe>,
    clock: Arc<VirtualClock>,
    arrives: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, task: &mut Context<'_>, read: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { pipe, clock, arrives } = self.get_mut();
        let mut pipe = pipe.state.lock();
        if pipe.is_broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        pipe.reader = Some(task.waker().clone());
        match pipe.parts.front_mut() {
            Some((due, part)) if *due <= clock.now() => {
                let length = part.len().min(read.remaining());
                read.put_slice(&part[..length]);
                part.drain(..length);
                // the mark of the end stays in the queue
                if length > 0 && part.is_empty() {
                    pipe.parts.pop_front();
                }
                Poll::Ready(Ok(()))
            }
            Some((due, _)) if *due < Nanos::MAX => {
                let sleep = arrives.insert(Box::pin(sleep_until(clock.instant(*due))));
                assert!(sleep.as_mut().poll(task).is_pending(), "time has steps of a millisecond");
                Poll::Pending
            }
            Some(_) | None => Poll::Pending,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.pipe.state.lock().is_broken = true;
    }
}

struct Writer {
    pipe: Arc<Pipe>,
    network: Arc<Network>,
    clock: Arc<VirtualClock>,
}

impl Writer {
    fn send(&self, part: &[u8]) {
        self.network.0.lock().send(&self.pipe, part, self.clock.now());
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        if self.pipe.state.lock().is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.send(part);
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.send(&[]);
    }
}
