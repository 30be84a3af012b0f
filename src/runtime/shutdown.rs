//! The end: readiness fails, accepting stops, requests in flight finish, and the process ends as soon as they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin::Readiness;
use crate::admin::reloads::Reloads;
use crate::proxy::Gateway;
use crate::store::SharedStore;
use crate::units::Nanos;

/// How long requests in flight may take to finish.
pub const GRACE: Nanos = Nanos::from_secs(60);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(10);

/// Runs `server` until a signal ends it. SIGTERM and SIGINT finish what is in flight, a second one does not wait.
pub(super) fn run_until_idle(server: Server, gateway: &Gateway, readiness: Arc<Readiness>, reloads: Arc<Reloads>) {
    let (finished, has_finished) = channel::<()>();
    let hurry = Arc::new(AtomicBool::new(false));
    let watch = Signals { readiness: Arc::clone(&readiness), hurry: Arc::clone(&hurry), reloads };
    let serving = std::thread::spawn(move || {
        server.run(RunArgs { shutdown_signal: Box::new(watch) });
        drop(finished);
    });
    // pingora sleeps through the whole grace period, idle or not; returning from here ends the process before.
    let mut idle_before = false;
    while has_finished.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let settled = gateway.store.shared().is_none_or(SharedStore::is_settled);
        let idle = readiness.is_stopping() && gateway.active.load(Ordering::Relaxed) == 0 && settled;
        if (idle && idle_before) || hurry.load(Ordering::Relaxed) {
            break;
        }
        idle_before = idle;
    }
    if serving.is_finished() && serving.join().is_err() {
        tracing::error!("the server ended with a panic");
    }
    tracing::info!("stopped");
}

/// Which signals end the server, and which makes it reload.
struct Signals {
    readiness: Arc<Readiness>,
    hurry: Arc<AtomicBool>,
    reloads: Arc<Reloads>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let (mut terminate, mut interrupt, mut hangup) =
            (listen(SignalKind::terminate()), listen(SignalKind::interrupt()), listen(SignalKind::hangup()));
        loop {
            tokio::select! {
                () = next(&mut terminate) => break,
                () = next(&mut interrupt) => break,
                () = next(&mut hangup) => self.reloads.signal(),
            }
        }
        tracing::info!("stopping: finishing the requests in flight; a second signal does not wait for them");
        self.readiness.stop();
        let hurry = Arc::clone(&self.hurry);
        tokio::spawn(async move {
            tokio::select! {
                () = next(&mut terminate) => {}
                () = next(&mut interrupt) => {}
            }
            hurry.store(true, Ordering::Relaxed);
        });
        ShutdownSignal::GracefulTerminate
    }
}

fn listen(kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|error| tracing::error!(%error, ?kind, "cannot listen for a signal")).ok()
}

/// The next signal; never, if it cannot be listened for.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
