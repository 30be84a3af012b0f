//! Log lines: JSON on standard error for events of tollgate itself, JSON on standard output for requests.
//!
//! Each log has a thread of its own that writes it. When a reader is too slow and the queue is full, the gateway drops
//! lines rather than delay requests, and counts them like lines that cannot be written. Lines that a client can cause with
//! each request are logged only up to a number in a second.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;
use prometheus::IntCounter;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

use crate::telemetry::{names, opts};
use crate::units::Nanos;

/// Lines that were left out because there were too many of their kind.
pub(super) static LINES_LEFT_OUT: LazyLock<IntCounter> = LazyLock::new(|| {
    IntCounter::with_opts(opts(&names::LOG_LINES_LEFT_OUT)).expect("the name of a metric is a good one")
});

/// The lines of each log that were not written; set when logging is set up.
static QUEUES: OnceLock<[(&str, Losses); 2]> = OnceLock::new();

/// How many lines of each log, by its name, were not written: the queue was full, or writing failed.
pub(super) fn dropped() -> impl Iterator<Item = (&'static str, u64)> {
    QUEUES.get().into_iter().flatten().map(|(log, losses)| (*log, losses.total()))
}

/// The target of access log lines.
pub const ACCESS: &str = "tollgate::access";

/// The default of `RUST_LOG`. It hides pingora's lines about failed requests, which tollgate logs with route and upstream,
/// and about clients that disconnect, with which anybody could fill the log.
const DEFAULT_FILTER: &str = "warn,pingora_proxy=off,pingora_core::protocols=error,tollgate=info";

/// How many lines may wait to be written.
const QUEUE: usize = 16_384;

/// On drop, writes the lines that are still queued, unless nobody reads them.
#[derive(Debug)]
pub struct LoggingGuard(Option<[WorkerGuard; 2]>);

/// The longest time that the write of queued lines may take at the end.
const LAST_LINES: Nanos = Nanos::from_secs(2);

impl Drop for LoggingGuard {
    fn drop(&mut self) {
        // nothing is sent: the channel closes when the thread drops its sender
        let (written, is_written) = std::sync::mpsc::channel::<()>();
        let guards = self.0.take();
        // if nobody reads standard output, the guards write a complaint there, which never ends: so a thread drops them
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
/// the libraries only warnings). Lines of libraries below `info` are left out whatever it chooses: they contain whole
/// heads of requests, credentials included. `now` returns the time.
///
/// Errors: logging was set up before.
pub fn start(now: impl Fn() -> Nanos + Send + Sync + 'static) -> Result<LoggingGuard, TryInitError> {
    let (events, events_guard, events_losses) = queued("events", io::stderr());
    let (access, access_guard, access_losses) = queued("access", io::stdout());
    let (chosen, wrong) = match EnvFilter::try_from_default_env() {
        Ok(chosen) => (chosen, None),
        Err(error) => (EnvFilter::new(DEFAULT_FILTER), std::env::var_os(EnvFilter::DEFAULT_ENV).map(|_| error)),
    };
    let is_access = filter_fn(|metadata| metadata.target() == ACCESS);
    let shows_no_heads =
        filter_fn(|metadata| metadata.target().starts_with("tollgate") || *metadata.level() <= Level::INFO);
    let wanted = chosen.and(is_access.clone().not()).and(shows_no_heads).and(LineRateLimiter::new(now));
    let events = fmt::layer().json().flatten_event(true).with_writer(events).with_filter(wanted);
    let access = fmt::layer()
        .json()
        .flatten_event(true)
        .with_level(false)
        .with_target(false)
        .with_writer(access)
        .with_filter(is_access);
    tracing_subscriber::registry().with(events).with(access).try_init()?;
    QUEUES.get_or_init(|| [("events", events_losses), ("access", access_losses)]);
    // lines that are left out anyway stop before the filters: libraries make many of them for a request
    log::set_max_level(log::LevelFilter::Info);
    if let Some(error) = wrong {
        tracing::warn!(%error, default = DEFAULT_FILTER, "RUST_LOG is wrong; the default is used");
    }
    Ok(LoggingGuard(Some([events_guard, access_guard])))
}

fn queued(log: &'static str, inner: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard, Losses) {
    let failed = Arc::new(AtomicU64::new(0));
    let writer = CountingWriter { log, inner, failed: Arc::clone(&failed), lost: 0 };
    let (queue, guard) = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE).finish(writer);
    let full = queue.error_counter();
    (queue, guard, Losses { full, failed })
}

/// The lines of a log that were not written.
#[derive(Debug)]
struct Losses {
    /// The lines lost because the queue was full.
    full: ErrorCounter,
    /// The lines lost because writing failed.
    failed: Arc<AtomicU64>,
}

impl Losses {
    fn total(&self) -> u64 {
        let full = u64::try_from(self.full.dropped_lines()).unwrap_or(u64::MAX);
        full.saturating_add(self.failed.load(Ordering::Relaxed))
    }
}

/// Counts the lines that cannot be written, and logs the first of them and the end of the failure, because no other code
/// gets these errors. The next line begins on a line of its own.
struct CountingWriter<W> {
    /// The name of the log.
    log: &'static str,
    inner: W,
    failed: Arc<AtomicU64>,
    /// The lines lost since a write succeeded. If there are any, the log may end with a part of a line.
    lost: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    /// Writes one line.
    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let (log, lost) = (self.log, self.lost);
        let written = match lost {
            0 => self.inner.write_all(line),
            _ => self.inner.write_all(&[b"\n", line].concat()),
        };
        match &written {
            Ok(()) if lost > 0 => {
                tracing::warn!(log, lost, "the log is written again");
                self.lost = 0;
            }
            Ok(()) => {}
            Err(error) => {
                if lost == 0 {
                    tracing::error!(log, %error, "the log cannot be written: lines are lost until it can be");
                }
                self.lost = lost.saturating_add(1);
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The most lines of one kind in a second.
const MAX_LINES: u32 = 10;

/// The modules without a bound: they log when operators act or files change, which is rare, and each line matters. The
/// audit log bounds the lines of callers without the token itself.
const UNBOUNDED: [&str; 3] = ["tollgate::runtime", "tollgate::cli", "tollgate::admin"];

/// Leaves out lines of the same place in the program beyond [`MAX_LINES`] in a second, but never lines for debugging (`debug`
/// and below).
struct LineRateLimiter<C> {
    now: C,
    /// For each place in the program, the start of its second and the number of its lines in that second.
    line_counts: Mutex<HashMap<Identifier, (Nanos, u32)>>,
}

impl<C: Fn() -> Nanos> LineRateLimiter<C> {
    fn new(now: C) -> Self {
        Self { now, line_counts: Mutex::default() }
    }

    fn allows(&self, place: Identifier) -> bool {
        let now = (self.now)();
        let mut line_counts = self.line_counts.lock();
        let (since, count) = line_counts.entry(place).or_insert((now, 0));
        if now.saturating_sub(*since) >= Nanos::SECOND {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= MAX_LINES
    }
}

impl<S, C: Fn() -> Nanos + 'static> Filter<S> for LineRateLimiter<C> {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let about = event.metadata();
        let is_bounded = *about.level() <= Level::INFO && !UNBOUNDED.iter().any(|who| about.target().starts_with(who));
        let is_said = !is_bounded || self.allows(about.callsite());
        if !is_said {
            LINES_LEFT_OUT.inc();
        }
        is_said
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, fmt};

    use super::*;

    /// Keeps the logged lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A disk that becomes full in the middle of the second line, and has room again for the third.
    struct Disk {
        lines: Lines,
        writes: u32,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            match self.writes {
                2 => self.lines.write(&bytes[..2]),
                3 => Err(io::ErrorKind::StorageFull.into()),
                _ => self.lines.write(bytes),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_a_torn_one_begins_on_a_line_of_its_own() {
        let lines = Lines::default();
        let (mut queue, guard, losses) = queued("access", Disk { lines: lines.clone(), writes: 0 });
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            queue.write_all(line.as_bytes()).unwrap();
        }
        drop(guard);
        assert_eq!(String::from_utf8_lossy(&lines.0.lock()), "one\ntw\nthree\nfour\n");
        assert_eq!(losses.total(), 1, "the torn line");
    }

    #[test]
    fn the_first_lost_line_and_the_end_of_the_losses_are_logged() {
        /// A disk that is full for the second and the third write.
        struct Full(u32);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                if (2..=3).contains(&self.0) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let kept = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || kept.clone());
        let mut writer = CountingWriter { log: "access", inner: Full(0), failed: Arc::default(), lost: 0 };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let written = [(); 5].map(|()| writer.write_all(b"line\n").is_ok());
            assert_eq!(written, [true, false, false, true, true]);
        });
        let said = String::from_utf8(lines.0.lock().clone()).unwrap();
        let said: Vec<&str> = said.lines().collect();
        let [lost, again] = said[..] else { panic!("{said:?}") };
        assert!(lost.contains("ERROR") && lost.contains("the log cannot be written"), "{lost}");
        assert!(again.contains("the log is written again log=\"access\" lost=2"), "{again}");
    }

    #[test]
    fn of_each_kind_some_lines_a_second_are_logged() {
        let (clock, lines) = (Arc::new(AtomicU64::new(5)), Lines::default());
        let (read, kept) = (Arc::clone(&clock), lines.clone());
        let bound = LineRateLimiter::new(move || Nanos::new(read.load(Ordering::Relaxed)));
        let layer = fmt::layer().with_writer(move || kept.clone()).with_filter(bound);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for second in 0..3 {
                clock.store(second * Nanos::SECOND.get() + 5, Ordering::Relaxed);
                for number in 0..50 {
                    tracing::warn!(number, "one");
                    tracing::info!("other");
                    tracing::debug!("searched");
                    tracing::error!(target: "tollgate::runtime::reload", "asked");
                    tracing::info!(target: "tollgate::admin::audit", "changed");
                }
            }
        });
        let said = String::from_utf8(lines.0.lock().clone()).unwrap();
        let count = |word: &str| said.lines().filter(|line| line.contains(word)).count();
        assert_eq!((count("one"), count("other"), count("searched")), (30, 30, 150));
        assert_eq!((count("asked"), count("changed")), (150, 150));
    }
}
