//! The gateway's own code from a connection to a verdict and an access log, on a clock that the test sets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::algorithm::Decision;
use tollgate::cli::source;
use tollgate::clock::{Clock, ManualClock, WorkerClock};
use tollgate::gateway::active_config::ActiveConfig;
use tollgate::gateway::admit;
use tollgate::gateway::awaited_body::BodySource;
use tollgate::gateway::bans::Bans;
use tollgate::gateway::crossings::Crossings;
use tollgate::gateway::facts::Head;
use tollgate::gateway::request_context::RequestContext;
use tollgate::gateway::spans::Spans;
use tollgate::gateway::usage_sums::UsageSums;
use tollgate::gateway::{Gateway, GatewayState, WorkerGateway};
use tollgate::http::head::{RequestHead, ResponseHead};
use tollgate::http::listener::Peer;
use tollgate::ruleset::key::KeyHasher;
use tollgate::store::Store;
use tollgate::telemetry::{DenialRecorder, Telemetry};
use tollgate::units::Nanos;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// A gateway without listening sockets.
pub struct Stage {
    gateway: WorkerGateway,
    clock: Arc<ManualClock>,
    /// The running requests, by the times at which they end.
    running: BTreeMap<(Nanos, Reverse<u64>), RequestContext>,
    count: u64,
    log: Arc<Mutex<Vec<u8>>>,
    _logging: tracing::subscriber::DefaultGuard,
}

/// A request, and the upstream's response to it.
pub struct Asked<'a> {
    pub at: Nanos,
    /// The last byte of the client's address 127.0.0.`from`.
    pub from: u8,
    pub method: &'a str,
    pub target: &'a str,
    pub fields: &'a [(&'a str, &'a str)],
    pub status: u16,
    pub took: Nanos,
}

struct ClockTimer(Arc<ManualClock>);

impl FormatTime for ClockTimer {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        write!(to, "{}", jiff::Timestamp::from_nanosecond(self.0.now().get().into()).unwrap())
    }
}

#[derive(Clone)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stage {
    /// A gateway with the configuration at `path`.
    pub async fn new(path: &Path) -> Self {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Kept(Arc::clone(&log));
        // in the gateway's format, but without the time
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_level(false)
            .with_target(false)
            .with_timer(ClockTimer(Arc::clone(&clock)))
            .with_writer(move || kept.clone());
        let logging = tracing::subscriber::set_default(subscriber.finish());
        let rules = source::open(path).unwrap_or_else(|error| panic!("{error}")).parts.rules;
        let store = Arc::new(Store::default());
        let hasher = KeyHasher::new(&[7; 16]);
        let pools = rules.pools(None);
        let live = ActiveConfig::new((rules, pools), None, &store, hasher.clone(), &Telemetry::new().unwrap());
        let time = WorkerClock::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let gateway = Gateway::new(GatewayState {
            active: Arc::new(ArcSwap::from_pointee(live)),
            store,
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            hasher,
            traffic: Arc::default(),
            default_max_connections: usize::MAX,
            denial_recorder: DenialRecorder::default(),
            bans: Bans::default(),
            crossings: Crossings::default(),
            usage_sums: UsageSums::default(),
            spans: Spans::default(),
        });
        let gateway = WorkerGateway::new(gateway, time);
        Self { gateway, clock, running: BTreeMap::new(), count: 0, log, _logging: logging }
    }

    /// Sends a request; returns whether a limit denies it. Times must not go back.
    pub async fn ask(&mut self, asked: &Asked<'_>) -> bool {
        self.end_until(asked.at);
        self.set_time(asked.at);
        let mut request = RequestHead { method: asked.method.to_owned(), ..RequestHead::default() };
        request.target.extend_from_slice(asked.target.as_bytes());
        asked.fields.iter().for_each(|(name, value)| request.fields.push(name, value));
        let peer = Rc::new(Peer::new(Some([127, 0, 0, asked.from].into()), None));
        let mut context = RequestContext::new(&self.gateway, Rc::clone(&peer), request.version, asked.at);
        let admitted = admit::admit(&mut context, &Head::of(&request, &peer), BodySource::Unavailable).await;
        let denied = context.verdict.is_denied();
        match admitted {
            Err(answer) => {
                context.own_answer.cause = Some(answer.cause());
                context.own_answer.status = Some(answer.status());
                context.status = Some(answer.status());
            }
            Ok(()) => {
                let Decision::Admit { wait } = context.verdict.outcome else { panic!("admitted and denied") };
                context.status = Some(asked.status);
                context.attempts.is_answered = true;
                let live = Arc::clone(&context.active);
                if let Some(tally) = &mut context.cost_meter {
                    let head = ResponseHead { status: asked.status, ..ResponseHead::default() };
                    tally.mark_forwarded();
                    tally.response_head(&live.ruleset, asked.method, &head);
                    tally.response_body(&live.ruleset, b"", true);
                }
                self.count += 1;
                let end = asked.at.saturating_add(wait).saturating_add(asked.took);
                self.running.insert((end, Reverse(self.count)), context);
            }
        }
        denied
    }

    /// Ends all running requests, and returns the access log.
    pub fn finish(mut self) -> String {
        self.end_until(Nanos::MAX);
        String::from_utf8(self.log.lock().clone()).unwrap()
    }

    fn end_until(&mut self, now: Nanos) {
        while let Some(first) = self.running.first_entry().filter(|first| first.key().0 <= now) {
            let ((end, _), context) = first.remove_entry();
            self.set_time(end);
            drop(context);
        }
    }

    fn set_time(&self, now: Nanos) {
        self.clock.set(now);
        self.gateway.time().tick();
    }
}
