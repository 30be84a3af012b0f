//! Hands each accepted connection to the worker with the fewest connections.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::connection;
use super::service::Service;
use super::socket::RawSocket;
use super::traffic::ArrivalGuard;
use super::worker::Worker;

/// A connection that one worker accepted for another.
pub struct HandedOverConnection {
    listener: usize,
    descriptor: OwnedFd,
    arriving: ArrivalGuard,
    load: LoadGuard,
}

/// The number of connections of each worker, and the channel to each.
pub struct Workers {
    all: Vec<(AtomicUsize, mpsc::UnboundedSender<HandedOverConnection>)>,
}

/// Counts one connection of a worker, until dropped.
pub struct LoadGuard {
    workers: Arc<Workers>,
    worker: usize,
}

impl Workers {
    /// The counters and channels of `count` workers, and the receiver of each worker.
    pub fn new(count: usize) -> (Arc<Self>, Vec<mpsc::UnboundedReceiver<HandedOverConnection>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let all = senders.into_iter().map(|sender| (AtomicUsize::new(0), sender)).collect();
        (Arc::new(Self { all }), receivers)
    }

    /// The worker with the fewest connections; `own` if no other worker has fewer.
    fn least_loaded(&self, own: usize) -> usize {
        let load = |worker: usize| self.all.get(worker).map_or(usize::MAX, |(load, _)| load.load(Ordering::Relaxed));
        (0..self.all.len()).fold(own, |least, worker| if load(worker) < load(least) { worker } else { least })
    }

    fn load(self: &Arc<Self>, worker: usize) -> LoadGuard {
        if let Some((load, _)) = self.all.get(worker) {
            load.fetch_add(1, Ordering::Relaxed);
        }
        LoadGuard { workers: Arc::clone(self), worker }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        if let Some((load, _)) = self.workers.all.get(self.worker) {
            load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Serves a connection that the worker `own` accepted, or hands it to a worker with fewer connections.
pub fn accepted<S: Service>(
    worker: &Rc<Worker<S>>,
    (workers, own): (&Arc<Workers>, usize),
    listener: usize,
    raw: RawSocket,
    arriving: ArrivalGuard,
) {
    let least = workers.least_loaded(own);
    let load = workers.load(least);
    match workers.all.get(least) {
        Some((_, other)) if least != own => match raw.into_descriptor() {
            // a worker that has ended drops the connection
            Ok(descriptor) => drop(other.send(HandedOverConnection { listener, descriptor, arriving, load })),
            Err(error) => tracing::debug!(%error, "a connection ended on its way to another worker"),
        },
        _ => serve(worker, listener, raw, arriving, load),
    }
}

/// Serves the connections that other workers hand over, as long as this is polled.
pub async fn receive<S: Service>(worker: &Rc<Worker<S>>, mut received: mpsc::UnboundedReceiver<HandedOverConnection>) {
    while let Some(HandedOverConnection { listener, descriptor, arriving, load }) = received.recv().await {
        match RawSocket::from_descriptor(descriptor) {
            Ok(raw) => serve(worker, listener, raw, arriving, load),
            Err(error) => tracing::debug!(%error, "a connection ended on its way to another worker"),
        }
    }
}

fn serve<S: Service>(worker: &Rc<Worker<S>>, listener: usize, raw: RawSocket, arriving: ArrivalGuard, load: LoadGuard) {
    let (clock, worker) = (Rc::clone(&worker.clock), Rc::clone(worker));
    tokio::task::spawn_local(async move {
        clock.run(pin!(connection::serve(worker, listener, raw, arriving))).await;
        drop(load);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_to_the_worker_that_has_the_fewest() {
        let (workers, _receivers) = Workers::new(3);
        let mut held = Vec::new();
        for _ in 0..9 {
            // all connections are accepted by the same worker
            held.push(workers.load(workers.least_loaded(1)));
        }
        let counts = |workers: &Workers| -> Vec<usize> {
            workers.all.iter().map(|(load, _)| load.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(counts(&workers), [3, 3, 3]);
        held.retain(|load| load.worker != 2);
        assert_eq!((counts(&workers), workers.least_loaded(1)), (vec![3, 3, 0], 2));
    }
}
