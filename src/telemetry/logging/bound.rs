//! How many lines of one kind are logged: clients can make something be said for each of their requests, and that must
//! not fill a disk.

use std::collections::HashMap;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use super::LEFT_OUT;
use crate::units::Nanos;

/// The most lines of one kind in a second.
const MOST: u32 = 10;

/// Who says something for as often as operators or files ask, which is seldom, and each line matters.
const UNBOUNDED: [&str; 2] = ["tollgate::runtime", "tollgate::cli"];

/// Leaves out lines of the same place in the program beyond [`MOST`] in a second; a line for tests and searches for faults
/// (`debug` and below) never.
pub(super) struct Bound<C> {
    now: C,
    /// For each place in the program, the second and how many lines it said in that.
    said: Mutex<HashMap<Identifier, (Nanos, u32)>>,
}

impl<C: Fn() -> Nanos> Bound<C> {
    pub(super) fn new(now: C) -> Self {
        Self { now, said: Mutex::default() }
    }

    fn may_say(&self, place: Identifier) -> bool {
        let now = (self.now)();
        let mut said = self.said.lock();
        let (since, count) = said.entry(place).or_insert((now, 0));
        if now.saturating_sub(*since) >= Nanos::SECOND {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= MOST
    }
}

impl<S, C: Fn() -> Nanos + 'static> Filter<S> for Bound<C> {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let about = event.metadata();
        let is_bounded = *about.level() <= Level::INFO && !UNBOUNDED.iter().any(|who| about.target().starts_with(who));
        let is_said = !is_bounded || self.may_say(about.callsite());
        if !is_said {
            LEFT_OUT.inc();
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

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn of_each_kind_some_lines_a_second_are_logged() {
        let (clock, lines) = (Arc::new(AtomicU64::new(5)), Lines::default());
        let (read, kept) = (Arc::clone(&clock), lines.clone());
        let bound = Bound::new(move || Nanos::new(read.load(Ordering::Relaxed)));
        let layer = fmt::layer().with_writer(move || kept.clone()).with_filter(bound);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for second in 0..3 {
                clock.store(second * Nanos::SECOND.get() + 5, Ordering::Relaxed);
                for number in 0..50 {
                    tracing::warn!(number, "one");
                    tracing::info!("other");
                    tracing::debug!("searched");
                    tracing::error!(target: "tollgate::runtime::reload", "asked");
                }
            }
        });
        let said = String::from_utf8(lines.0.lock().clone()).unwrap();
        let count = |word: &str| said.lines().filter(|line| line.contains(word)).count();
        assert_eq!((count("one"), count("other"), count("searched"), count("asked")), (30, 30, 150, 150));
    }
}
