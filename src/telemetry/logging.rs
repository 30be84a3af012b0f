//! Log lines: JSON on standard error for what happens to tollgate, JSON on standard output for requests.
//!
//! Both are written by a thread of their own. When a reader is too slow and the queue is full, lines are dropped
//! rather than requests delayed; and of what clients can make be said for each of their requests, so many lines are
//! logged in a second and no more.

use std::sync::LazyLock;

use prometheus::IntCounter;
use tracing::Level;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

mod bound;

use bound::Bound;

use crate::telemetry::names;
use crate::telemetry::opts;
use crate::units::Nanos;

/// Lines that were left out because there were too many of their kind.
pub(super) static LEFT_OUT: LazyLock<IntCounter> = LazyLock::new(|| {
    IntCounter::with_opts(opts(&names::LOG_LINES_LEFT_OUT)).expect("the name of a metric is a good one")
});

/// The target of access log lines.
pub const ACCESS: &str = "tollgate::access";

/// What is logged unless `RUST_LOG` says otherwise. What pingora has to say about requests that fail is said again, with
/// route and upstream, by tollgate; what it says about clients that break off lets anybody fill the log.
const DEFAULT_FILTER: &str = "warn,pingora_proxy=off,pingora_core::protocols=error,tollgate=info";

/// How many lines may wait to be written.
const QUEUE: usize = 16_384;

/// Writes what is still queued when dropped, unless nobody reads it.
#[derive(Debug)]
pub struct LoggingGuard(Option<[WorkerGuard; 2]>);

/// How long it may take at the end to write what is queued.
const LAST_LINES: Nanos = Nanos::from_secs(2);

impl Drop for LoggingGuard {
    fn drop(&mut self) {
        // nothing is sent: it is over when there is no sender any more
        let (written, is_written) = std::sync::mpsc::channel::<()>();
        let guards = self.0.take();
        // where nobody reads standard output, the guards complain there, and that would never end
        let write = std::thread::Builder::new().spawn(move || {
            drop(guards);
            drop(written);
        });
        if write.is_ok() {
            is_written.recv_timeout(LAST_LINES.to_duration()).unwrap_or_default();
        }
    }
}

/// Sets logging up for the process. `RUST_LOG` chooses what is logged about tollgate itself (default: `info`, and of
/// the libraries only warnings). What libraries say below `info` is left out whatever it says: they show whole heads
/// there, credentials included. `now` is the time.
///
/// Errors: logging was set up before.
pub fn start(now: impl Fn() -> Nanos + Send + Sync + 'static) -> Result<LoggingGuard, TryInitError> {
    let (events, events_guard) = queued(std::io::stderr());
    let (access, access_guard) = queued(std::io::stdout());
    let chosen = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let is_access = filter_fn(|metadata| metadata.target() == ACCESS);
    let shows_no_heads =
        filter_fn(|metadata| metadata.target().starts_with("tollgate") || *metadata.level() <= Level::INFO);
    let wanted = chosen.and(is_access.clone().not()).and(shows_no_heads).and(Bound::new(now));
    let events = fmt::layer().json().flatten_event(true).with_writer(events).with_filter(wanted);
    let access = fmt::layer()
        .json()
        .flatten_event(true)
        .with_level(false)
        .with_target(false)
        .with_writer(access)
        .with_filter(is_access);
    tracing_subscriber::registry().with(events).with(access).try_init()?;
    // what is left out anyway is not even looked at, many times a request
    log::set_max_level(log::LevelFilter::Info);
    Ok(LoggingGuard(Some([events_guard, access_guard])))
}

fn queued(writer: impl std::io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE).finish(writer)
}
