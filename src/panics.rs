//! Panics, which no code here means to have: they end what they happen in and nothing beside it.
//!
//! A filter that panics ends its request ([`catch_panic`]), a task that is to go on begins anew ([`restart_on_panic`]). Tests make them
//! panic at [`failpoint`]s.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// It panicked, which has been told and counted where panics are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it panicked")]
pub struct Panicked;

/// How long a task that panicked pauses before it begins anew: it may panic again at once.
const PAUSE: Duration = Duration::from_secs(1);

/// What comes of `work`, also if it panics. What it held is given back then; what it was changing may be half changed.
pub async fn catch_panic<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    poll_fn(|task| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(task))) {
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Does what `begin` begins, until that ends otherwise than by a panic.
pub async fn restart_on_panic<W: Future<Output = ()>>(begin: impl FnMut() -> W) {
    restart_on_panic_after(PAUSE, begin).await;
}

async fn restart_on_panic_after<W: Future<Output = ()>>(pause: Duration, mut begin: impl FnMut() -> W) {
    // that it begins may panic as well
    while catch_panic(async { begin().await }).await == Err(Panicked) {
        tokio::time::sleep(pause).await;
    }
}

/// Panics if a test wants it to: if there is a file `name` in the directory that the environment variable
/// `TOLLGATE_FAILPOINTS` names, once for each such file. Only programs that are built with debug assertions do; in
/// others there is nothing here.
#[cfg(debug_assertions)]
#[track_caller]
pub fn failpoint(name: &str) {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    static WANTED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var_os("TOLLGATE_FAILPOINTS").map(PathBuf::from));
    if wanted.as_ref().is_some_and(|wanted| std::fs::remove_file(wanted.join(name)).is_ok()) {
        std::panic::panic_any("a test wants a panic here");
    }
}

/// Nothing: this is no build for tests.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn failpoint(_name: &str) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn what_panics_is_caught_and_what_is_to_last_begins_anew() {
        assert_eq!(catch_panic(async { 5 }).await, Ok(5));
        let after_a_while = async {
            tokio::task::yield_now().await;
            std::panic::resume_unwind(Box::new(()));
        };
        assert_eq!(catch_panic(after_a_while).await, Err::<(), _>(Panicked));
        let begun = AtomicU32::new(0);
        restart_on_panic_after(Duration::ZERO, || async {
            if begun.fetch_add(1, Ordering::Relaxed) < 3 {
                std::panic::resume_unwind(Box::new(()));
            }
        })
        .await;
        assert_eq!(begun.into_inner(), 4);
    }
}
