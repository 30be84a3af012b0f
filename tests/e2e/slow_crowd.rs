//! Many slow clients at once: in sending heads or bodies, or in reading, on the first request of a connection and on later
//! ones. Normal clients do not notice, and the slow ones are closed at their deadlines.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::gettid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{interval, timeout};

use crate::support::client::request;
use crate::support::gateway::ALL;
use crate::support::{Client, Gateway, PATIENCE, SetOnDrop, now, wait_until};

/// The length of a large response in bytes.
const LARGE: usize = 10_000_000;
/// The content of responses.
static PART: [u8; 64 << 10] = [b'x'; 64 << 10];
/// The numbers of normal clients, which send one request after the other: to the gateway, and directly to the upstream.
const GOOD: usize = 4;
const PAST: usize = 2;

/// The ways to be slow. Fewer clients are slow in reading, because the gateway reads a part of each response ahead.
const WAYS: [Way; 8] = [Way::Head, Way::Body, Way::Head, Way::Body, Way::Head, Way::Body, Way::Head, Way::Reading];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Head,
    Body,
    Reading,
}

/// An upstream for thousands of connections: `/large` has a large response, every other path a small one; it reads bodies
/// to their end first.
struct Upstream {
    address: SocketAddr,
    /// The duration of each large response that the client did not read to its end.
    broken_off: Arc<Mutex<Vec<Duration>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Upstream {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let broken_off = Arc::<Mutex<Vec<Duration>>>::default();
        let noted = Arc::clone(&broken_off);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let noted = Arc::clone(&noted);
                tokio::spawn(async move { answer(stream, &noted).await });
            }
        });
        Self { address, broken_off, _runtime: runtime }
    }
}

async fn answer(mut stream: TcpStream, broken_off: &Mutex<Vec<Duration>>) -> Option<()> {
    // otherwise the kernel buffers a part of each large response that no client reads
    socket2::SockRef::from(&stream).set_send_buffer_size(16 << 10).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            (stream.read_buf(&mut read).await.ok()? > 0).then_some(())?;
        };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or("0", str::trim);
        let whole = end + length.parse::<usize>().ok()?;
        while read.len() < whole {
            (stream.read_buf(&mut read).await.ok()? > 0).then_some(())?;
        }
        let is_large = head.contains("/large");
        read.drain(..whole);
        let length = if is_large { LARGE } else { 1000 };
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes()).await.ok()?;
        let began = now();
        for begin in (0..length).step_by(PART.len()) {
            let part = &PART[..PART.len().min(length - begin)];
            if stream.write_all(part).await.is_err() {
                broken_off.lock().push(now() - began);
                return None;
            }
        }
    }
}

/// The slow clients, and their results.
struct Attack {
    to: SocketAddr,
    /// The time between two bytes of a slow client.
    pause: Duration,
    /// The time after which slow readers leave; they do not notice that the gateway has closed them.
    reading: Duration,
    over: AtomicBool,
    /// The number of slow clients now, and the number so far.
    slow: AtomicUsize,
    begun: AtomicUsize,
    /// The time until the gateway closed each slow client, with its way to be slow.
    lasted: Mutex<Vec<(Way, Duration)>>,
}

impl Attack {
    /// Runs one slow client: slow on the first request of its connection or on a later one, again and again until the
    /// attack is over.
    async fn run(self: Arc<Self>, number: usize) {
        let (way, later) = (WAYS[number % WAYS.len()], number / WAYS.len() % 2 == 1);
        let mut is_new = true;
        let mut tries = interval(self.pause);
        while !self.over.load(Ordering::Relaxed) {
            if self.once(way, later, &mut is_new).await.is_none() {
                tries.tick().await;
            }
        }
    }

    async fn once(&self, way: Way, later: bool, is_new: &mut bool) -> Option<()> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_recv_buffer_size(256).ok()?;
        let mut stream = socket.connect(self.to).await.ok()?;
        if later {
            stream.write_all(request("GET", "/", &[]).as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            while !answer.ends_with(&[b'x'; 1000]) {
                (stream.read_buf(&mut answer).await.ok()? > 0).then_some(())?;
            }
        }
        let began = now();
        self.slow.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(usize::from(std::mem::take(is_new)), Ordering::Relaxed);
        let ended = self.be_slow(&mut stream, way).await;
        self.slow.fetch_sub(1, Ordering::Relaxed);
        if ended {
            self.lasted.lock().push((way, now() - began));
        }
        Some(())
    }

    /// Whether the gateway closed the connection.
    async fn be_slow(&self, stream: &mut TcpStream, way: Way) -> bool {
        let first = match way {
            Way::Head => "GET / HTTP/1.1\r\nhost: test\r\nx-drip: ".to_owned(),
            Way::Body => request("POST", "/", &[("content-length", "100000")]),
            Way::Reading => request("GET", "/large", &[]),
        };
        if stream.write_all(first.as_bytes()).await.is_err() {
            return true;
        }
        let began = now();
        let (mut byte, mut reads) = ([0], interval(self.pause));
        while !self.over.load(Ordering::Relaxed) {
            match way {
                Way::Head | Way::Body => {
                    let answered = timeout(self.pause, stream.read(&mut byte)).await.is_ok();
                    if answered || stream.write_all(b"x").await.is_err() {
                        return true;
                    }
                }
                // the end of the connection comes after all bytes that the kernel has buffered
                Way::Reading if now() - began > self.reading => return false,
                Way::Reading => {
                    reads.tick().await;
                    drop(timeout(self.pause, stream.read(&mut byte)).await);
                }
            }
        }
        false
    }
}

/// The observations of normal clients.
#[derive(Default)]
struct Seen {
    times: Vec<Duration>,
    errors: Vec<String>,
}

impl Seen {
    /// Sends requests until `over` is set.
    fn asking(to: SocketAddr, over: &AtomicBool) -> Self {
        let mut seen = Self::default();
        let mut client = Client::connect(to);
        let mut number: usize = 0;
        while !over.load(Ordering::Relaxed) {
            // from time to time on a new connection
            if number.is_multiple_of(50) {
                client = Client::connect(to);
            }
            number += 1;
            let began = now();
            client.send_request("GET", "/", &[]);
            match client.next() {
                Some(response) if response.status == 200 && response.whole => seen.times.push(now() - began),
                other => {
                    seen.errors.push(format!("{:?}", other.map(|response| response.status)));
                    client = Client::connect(to);
                }
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        seen
    }

    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.errors.extend(other.errors);
    }

    fn quantile(&mut self, per_thousand: usize) -> Duration {
        self.times.sort_unstable();
        self.times[(self.times.len() - 1) * per_thousand / 1000]
    }
}

/// The observations of all normal clients.
#[derive(Default)]
struct Good {
    through: Seen,
    /// The observations of clients that use the upstream directly: they show the effect of slow clients on the shared
    /// machine, without the gateway.
    past: Seen,
}

impl Good {
    /// Runs all normal clients while `meanwhile` runs.
    fn ask(&mut self, gateway: SocketAddr, upstream: SocketAddr, meanwhile: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            let asking =
                |to, count| (0..count).map(|_| scope.spawn(move || Seen::asking(to, over))).collect::<Vec<_>>();
            let (through, past) = (asking(gateway, GOOD), asking(upstream, PAST));
            {
                let _over = SetOnDrop(over);
                meanwhile();
            }
            through.into_iter().for_each(|asking| self.through.add(asking.join().unwrap()));
            past.into_iter().for_each(|asking| self.past.add(asking.join().unwrap()));
        });
    }
}

/// Gives this thread CPU time only when no other thread wants it. A thread with low priority would still finish its time
/// slice while another could run.
fn give_way() {
    let thread = gettid().as_raw_nonzero().to_string();
    let status = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status().unwrap();
    assert!(status.success(), "chrt: {status}");
}

/// Runs `work` while no core of the machine sleeps, with threads that take no time from others: the time that the host of a
/// virtual machine needs to wake a core must not be measured.
fn awake<T>(work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                give_way();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _over = SetOnDrop(&over);
        work()
    })
}

struct Plan {
    slow: usize,
    rounds: usize,
    /// The duration of each part of a round: without the slow clients, and then with all of them.
    part: Duration,
    /// The number of slow clients that start in a tenth of a second.
    rate: usize,
    pause: Duration,
    /// The deadline for heads, bodies, reading and idle connections.
    deadline: Duration,
    reading: Duration,
}

struct Outcome {
    without: Good,
    with: Good,
    lasted: Vec<(Way, Duration)>,
    /// The number of clients that were slow at once.
    at_once: usize,
    memory: (u64, u64),
    computed: Duration,
}

fn run(plan: &Plan) -> Outcome {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).unwrap();
    let upstream = Upstream::start();
    let deadline = format!("{}ms", plan.deadline.as_millis());
    let config = format!(
        "connections: {{ idle: {deadline} }}\nrequest_head: {{ timeout: {deadline} }}\n\
         request_body: {{ min_rate: 100B/s, grace: {deadline} }}\n\
         upstreams: {{ origin: {{ nodes: [\"{}\"], timeouts: {{ idle: {deadline} }} }} }}\n{ALL}",
        upstream.address
    );
    let gateway = Gateway::start(&config);
    // in reality, slow clients use the CPUs of other machines
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).on_thread_start(give_way).enable_all().build().unwrap();
    let stay = || {
        let began = now();
        while now() - began < plan.part {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    };
    let mut outcome = Outcome {
        without: Good::default(),
        with: Good::default(),
        lasted: Vec::new(),
        at_once: 0,
        memory: (0, 0),
        computed: Duration::ZERO,
    };
    Good::default().ask(gateway.address, upstream.address, stay);
    outcome.memory.0 = gateway.process.memory();
    for _ in 0..plan.rounds {
        outcome.without.ask(gateway.address, upstream.address, stay);
        let attack = Arc::new(Attack {
            to: gateway.address,
            pause: plan.pause,
            reading: plan.reading,
            over: AtomicBool::new(false),
            slow: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            lasted: Mutex::default(),
        });
        let computed = gateway.process.processor_time();
        outcome.with.ask(gateway.address, upstream.address, || {
            let coming = Arc::clone(&attack);
            let (count, rate) = (plan.slow, plan.rate);
            runtime.spawn(async move {
                let mut tenths = interval(Duration::from_millis(100));
                for number in 0..count {
                    if number.is_multiple_of(rate) {
                        tenths.tick().await;
                    }
                    tokio::spawn(Arc::clone(&coming).run(number));
                }
            });
            while attack.begun.load(Ordering::Relaxed) < plan.slow {
                let before = attack.begun.load(Ordering::Relaxed);
                wait_until("more of them to be slow", || attack.begun.load(Ordering::Relaxed) > before);
            }
            stay();
            // on a busy machine this may take any time
            wait_until("some of each kind to be ended", || {
                let lasted = attack.lasted.lock();
                let has = |way| lasted.iter().any(|(of, _)| *of == way);
                has(Way::Head) && has(Way::Body) && !upstream.broken_off.lock().is_empty()
            });
            outcome.at_once = outcome.at_once.max(attack.slow.load(Ordering::Relaxed));
            outcome.memory.1 = outcome.memory.1.max(gateway.process.memory());
        });
        outcome.computed += gateway.process.processor_time() - computed;
        let broken_off = std::mem::take(&mut *upstream.broken_off.lock());
        outcome.lasted.extend(broken_off.into_iter().map(|lasted| (Way::Reading, lasted)));
        attack.over.store(true, Ordering::Relaxed);
        wait_until("the slow ones to be gone", || attack.slow.load(Ordering::Relaxed) == 0);
        outcome.lasted.append(&mut attack.lasted.lock());
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        upstream.broken_off.lock().clear();
    }
    outcome
}

/// Asserts the guarantees for any number of slow clients: no normal client sees an error, and no slow client stays much
/// longer than allowed.
fn hold(plan: &Plan, outcome: &Outcome) {
    for seen in [&outcome.without, &outcome.with].into_iter().flat_map(|good| [&good.through, &good.past]) {
        assert!(seen.errors.is_empty(), "{} of {}: {:?}", seen.errors.len(), seen.times.len(), seen.errors.first());
    }
    for way in [Way::Head, Way::Body, Way::Reading] {
        let lasted: Vec<Duration> =
            outcome.lasted.iter().filter(|(of, _)| *of == way).map(|(_, lasted)| *lasted).collect();
        let longest = lasted.iter().max().unwrap_or_else(|| panic!("nobody's {way:?} was ended"));
        let most = if way == Way::Reading { plan.reading } else { plan.deadline + PATIENCE };
        assert!(*longest < most, "{way:?}: {longest:?}");
    }
}

fn tell(plan: &Plan, outcome: &mut Outcome) -> String {
    let mut text = format!("{} slow clients, {} rounds of {:?} each:\n", plan.slow, plan.rounds, plan.part);
    let Good { through: without, past: past_without } = &mut outcome.without;
    let Good { through: with, past: past_with } = &mut outcome.with;
    for (name, seen) in [
        ("without", without),
        ("with", with),
        ("without, of the upstream itself", past_without),
        ("with, of the upstream itself", past_with),
    ] {
        let (median, p99, p999) = (seen.quantile(500), seen.quantile(990), seen.quantile(999));
        let (count, errors) = (seen.times.len(), seen.errors.len());
        writeln!(text, "{name}: {count} requests, {errors} errors, median {median:?}, p99 {p99:?}, p99.9 {p999:?}")
            .unwrap();
    }
    for way in [Way::Head, Way::Body, Way::Reading] {
        let lasted = outcome.lasted.iter().filter(|(of, _)| *of == way).map(|(_, lasted)| *lasted);
        let (count, longest) = (lasted.clone().count(), lasted.max());
        writeln!(text, "{way:?}: {count} ended, the longest after {longest:?} (deadline {:?})", plan.deadline).unwrap();
    }
    let (before, most) = outcome.memory;
    let (at_once, computed) = (outcome.at_once, outcome.computed);
    writeln!(
        text,
        "{at_once} at once; memory {} MiB before, {} MiB at most; computed {computed:?}",
        before >> 20,
        most >> 20
    )
    .unwrap();
    text
}

#[expect(clippy::print_stderr, reason = "figures for whoever runs the tests")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn hundreds_of_slow_clients_are_ended_and_others_see_no_error() {
    let plan = Plan {
        slow: 300,
        rounds: 1,
        part: Duration::from_secs(4),
        rate: 50,
        pause: Duration::from_millis(200),
        deadline: Duration::from_secs(2),
        reading: PATIENCE * 2,
    };
    let mut outcome = run(&plan);
    say(&tell(&plan, &mut outcome));
    hold(&plan, &outcome);
    let grown = outcome.memory.1.saturating_sub(outcome.memory.0);
    assert!(grown < 100 << 20, "{grown} bytes");
}

/// `cargo test --release --test e2e -- --ignored --nocapture thousands_of_slow_clients`, on a machine that does little
/// else. The figures of the upstream show what slow clients cost everything on the machine.
#[test]
#[ignore = "takes minutes, and measures"]
fn thousands_of_slow_clients_do_not_slow_down_others() {
    let plan = Plan {
        slow: 4000,
        rounds: 3,
        part: Duration::from_secs(25),
        // as many as end in the same time
        rate: 40,
        pause: Duration::from_secs(2),
        deadline: Duration::from_secs(10),
        reading: Duration::from_secs(20),
    };
    let mut outcome = awake(|| run(&plan));
    say(&tell(&plan, &mut outcome));
    hold(&plan, &outcome);
    let (without, with) = (outcome.without.through.quantile(990), outcome.with.through.quantile(990));
    assert!(with < without + without / 5, "p99 {without:?} without them, {with:?} with them");
}
