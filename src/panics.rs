//! Containment of panics, which are always bugs: a panic ends the request or the task in which it happens, nothing else.
//!
//! A panic while a request is served ends that request ([`catch_panic`]); a task that has to keep running starts again
//! ([`restart_on_panic`]). Tests cause panics at [`failpoint`]s.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The error of work that panicked. The panic hook has already logged and counted the panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it panicked")]
pub struct Panicked;

/// The pause before a task that panicked starts again, because it may panic again at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `work` and catches its panic. A panic drops the values that `work` owns; data that it was changing may be half
/// changed.
pub async fn catch_panic<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    poll_fn(|task| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(task))) {
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Runs the task that `begin` starts, and starts it again after each panic, until it ends without one.
pub async fn restart_on_panic<W: Future<Output = ()>>(begin: impl FnMut() -> W) {
    restart_on_panic_after(PAUSE, begin).await;
}

async fn restart_on_panic_after<W: Future<Output = ()>>(pause: Duration, mut begin: impl FnMut() -> W) {
    // `begin` itself may panic too
    while catch_panic(async { begin().await }).await == Err(Panicked) {
        tokio::time::sleep(pause).await;
    }
}

/// Panics if a test asks for it: if there is a file `name` in the directory that the environment variable
/// `TOLLGATE_FAILPOINTS` names. The file is removed, so that each file causes one panic. Only builds with debug
/// assertions do this.
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

/// Does nothing: this build has no debug assertions.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn failpoint(_name: &str) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn panics_are_caught_and_lasting_work_begins_anew() {
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
