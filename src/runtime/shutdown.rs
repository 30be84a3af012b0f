//! Shutdown: readiness fails, the process accepts no connections, requests in flight finish, then the process ends.
//! A panic of the server thread also ends the process, with an error.

use std::any::Any;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

use super::accept_gate::AcceptGate;
use super::upgrade::Upgrader;
use super::workers::WorkerThreads;
use crate::admin::reloads::Reloads;
use crate::gateway::Gateway;
use crate::lifecycle::Phase;
use crate::panics::failpoint;
use crate::units::Nanos;

/// The longest time that a shutdown waits for requests in flight.
pub const GRACE_PERIOD: Nanos = Nanos::from_secs(60);
/// How often the main thread checks whether they are finished.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How often it saves meanwhile, since the process may be killed before they are finished.
const SAVE_INTERVAL: Nanos = Nanos::from_secs(2);

/// The parts of the gateway that signals act on.
pub(super) struct SignalTargets {
    pub(super) reloads: Arc<Reloads>,
    pub(super) gate: Arc<AcceptGate>,
    pub(super) upgrader: Upgrader,
    pub(super) held: HeldSignals,
}

/// The signals that wait until the gateway serves, because it needs handlers for them from the beginning: SIGHUP and
/// SIGUSR2, which would end the process, and in process 1 also SIGTERM and SIGINT, which the system would drop there.
#[derive(Debug)]
pub struct HeldSignals {
    hangup: Signal,
    upgrade: Signal,
    /// SIGTERM and SIGINT; `None` where they end the process at once until it serves.
    ends: Option<[Signal; 2]>,
}

impl HeldSignals {
    /// Sets the handlers of the process.
    pub fn new() -> io::Result<Self> {
        Self::of(std::process::id() == 1)
    }

    /// As [`HeldSignals::new`]; process 1 of a container `is_init`.
    fn of(is_init: bool) -> io::Result<Self> {
        // tokio sets handlers in a runtime only; whichever runtime runs later delivers the signals
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let _guard = runtime.enter();
        let ends = || Ok::<_, io::Error>([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]);
        let ends = if is_init { Some(ends()?) } else { None };
        Ok(Self { hangup: signal(SignalKind::hangup())?, upgrade: signal(SignalKind::user_defined2())?, ends })
    }
}

/// The process that goes on when this one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitMode {
    NoSuccessor,
    /// The process that has taken over.
    Successor,
}

/// The server thread panicked. This thread handles no request: it starts the threads of the services, and waits for
/// signals.
#[derive(Debug, thiserror::Error)]
#[error(
    "the server thread panicked: {0}; if it could not start a thread, allow more (`ulimit -u`, `TasksMax=` of systemd, \
         `pids.max`); if too many files are open, allow more descriptors (`ulimit -n`, `LimitNOFILE=` of systemd)"
)]
pub struct ServerPanicked(String);

/// Runs `server` until a signal ends it. SIGTERM and SIGINT let requests in flight finish, a second one does not wait;
/// SIGUSR2 does the same once the new process has taken over. `save` saves what the process holds in memory; it is called
/// while requests finish, when nothing else saves any more.
pub(super) fn run_until_idle(
    server: Server,
    workforce: WorkerThreads,
    gateway: &Gateway,
    targets: SignalTargets,
    save: impl Fn(),
) -> Result<ExitMode, ServerPanicked> {
    let mut workers = workforce.start().map_err(|error| ServerPanicked(format!("cannot start a worker: {error}")))?;
    let (finished, has_finished) = channel::<()>();
    let lifecycle = &gateway.traffic.lifecycle;
    let watch = SignalHandler { targets: Mutex::new(targets), gateway: gateway.clone() };
    let serving = std::thread::spawn(move || {
        failpoint("server_thread");
        server.run(RunArgs { shutdown_signal: Box::new(watch) });
        drop(finished);
    });
    // pingora sleeps through the whole grace period, idle or not; returning from here ends the process earlier
    let (mut has_ended, mut saves_at) = (false, None);
    while !has_ended {
        has_ended = has_finished.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Disconnected);
        // the shutdown waits for an incomplete request head only if a successor serves the other clients
        let waits = || lifecycle.is_handed_over() && gateway.traffic.has_partial_head();
        // in the cluster the successor has this gateway's place: nothing here settles with other gateways any more
        let is_settled = || {
            if lifecycle.is_handed_over() {
                gateway.store.shared().is_none_or(|shared| shared.is_settled())
            } else {
                gateway.store.is_settled()
            }
        };
        // check the store last: requests leave records there when they end, and a settled gateway answers no other
        // gateway
        let is_idle = || !waits() && gateway.traffic.is_idle() && is_settled();
        match lifecycle.phase() {
            Phase::Stopped => break,
            Phase::Draining if is_idle() => break,
            Phase::Draining => {
                let now = gateway.clock.now();
                if now >= *saves_at.get_or_insert(now.saturating_add(SAVE_INTERVAL)) {
                    save();
                    saves_at = None;
                }
            }
            _ => {}
        }
        if let Some(position) = workers.iter().position(JoinHandle::is_finished) {
            let error = match workers.swap_remove(position).join() {
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic_message(&*panic),
            };
            return Err(ServerPanicked(format!("a worker has ended: {error}")));
        }
    }
    if has_ended && let Err(panic) = serving.join() {
        return Err(ServerPanicked(panic_message(&*panic)));
    }
    Ok(if lifecycle.is_handed_over() { ExitMode::Successor } else { ExitMode::NoSuccessor })
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("without a message").to_owned()
}

/// The handler of signals: some end the server, others start a reload or an upgrade.
struct SignalHandler {
    /// Locked while the server runs.
    targets: Mutex<SignalTargets>,
    gateway: Gateway,
}

#[async_trait]
impl ShutdownSignalWatch for SignalHandler {
    async fn recv(&self) -> ShutdownSignal {
        let mut targets = self.targets.lock().await;
        let SignalTargets { reloads, gate, upgrader, held: HeldSignals { hangup, upgrade, ends: held } } =
            &mut *targets;
        let [mut terminate, mut interrupt] = match held.take() {
            Some(held) => held.map(Some),
            None => [SignalKind::terminate(), SignalKind::interrupt()].map(listen),
        };
        // before this point, a signal ends the process at once, or waits
        gate.mark_accepting();
        let mut ends = async || {
            tokio::select! {
                () = next(&mut terminate) => {}
                () = next(&mut interrupt) => {}
            }
        };
        let is_taken_over = 'signals: loop {
            tokio::select! {
                () = ends() => break false,
                Some(()) = hangup.recv() => reloads.signal(),
                Some(()) = upgrade.recv() => {
                    let mut preparing = pin!(upgrader.prepare());
                    let successor = loop {
                        tokio::select! {
                            () = ends() => break 'signals false,
                            Some(()) = hangup.recv() => reloads.signal(),
                            successor = &mut preparing => break successor,
                        }
                    };
                    let Some(successor) = successor else { continue };
                    // a signal has to wait: one process, this one or the successor, must own the state
                    let mut handing_over = pin!(upgrader.hand_over(successor));
                    tokio::select! {
                        () = ends() => break handing_over.await,
                        taken_over = &mut handing_over => if taken_over { break true },
                    }
                }
            }
        };
        tracing::info!("stopping: finishing the requests in flight; a second signal does not wait for them");
        if is_taken_over {
            gate.lifecycle().mark_handed_over();
        }
        gate.lifecycle().close();
        if let Some(cluster) = self.gateway.store.cluster().filter(|_| !is_taken_over) {
            cluster.leave();
        }
        let traffic = Arc::clone(gate.traffic());
        tokio::spawn(async move {
            tokio::select! {
                () = next(&mut terminate) => {}
                () = next(&mut interrupt) => {}
            }
            traffic.lifecycle.stop();
        });
        gate.close().await;
        ShutdownSignal::GracefulTerminate
    }
}

fn listen(kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|error| tracing::error!(%error, ?kind, "cannot listen for a signal")).ok()
}

/// Waits for the next signal; for ever if the process cannot listen for it.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal as SignalNumber, getpid, kill_process};

    use super::*;

    #[test]
    fn process_1_keeps_a_signal_to_end_that_comes_while_it_starts() {
        for (number, position) in [(SignalNumber::TERM, 0), (SignalNumber::INT, 1)] {
            let mut held = HeldSignals::of(true).unwrap();
            kill_process(getpid(), number).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let came = async {
                tokio::time::timeout(Duration::from_secs(60), held.ends.as_mut().unwrap()[position].recv()).await
            };
            assert_eq!(runtime.block_on(came), Ok(Some(())));
        }
    }
}
