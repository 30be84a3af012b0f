//! Bounds the requests that are at an upstream at the same time; others may wait until one of them has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::units::Nanos;

/// The places for requests at an upstream. A place that becomes free goes to the request that has waited longest.
#[derive(Debug)]
pub struct UpstreamLimiter {
    places: Arc<Semaphore>,
    waiting: AtomicU64,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    places: usize,
    /// The number of occupied places that are removed when they become free, because the limit has become smaller.
    surplus: usize,
}

/// A request's place at an upstream; given back when dropped.
#[derive(Debug)]
pub struct UpstreamPermit {
    limiter: Arc<UpstreamLimiter>,
    permit: Option<OwnedSemaphorePermit>,
}

impl UpstreamLimiter {
    /// Creates a limiter of `max` requests.
    pub fn new(max: u64) -> Arc<Self> {
        let places = places(max);
        let size = Mutex::new(Size { places, surplus: 0 });
        Arc::new(Self { places: Arc::new(Semaphore::new(places)), waiting: AtomicU64::new(0), size })
    }

    /// Changes the limit to `max` places. Requests that have a place keep it, and waiting requests go on waiting.
    pub fn resize(&self, max: u64) {
        let (mut size, places) = (self.size.lock(), places(max));
        let more = places.saturating_sub(size.places);
        let stay = more.min(size.surplus);
        self.places.add_permits(more.saturating_sub(stay));
        let fewer = size.places.saturating_sub(places);
        let gone = self.places.forget_permits(fewer);
        size.surplus = size.surplus.saturating_sub(stay).saturating_add(fewer.saturating_sub(gone));
        size.places = places;
    }

    /// Takes a place, if one is free and no request waits for it.
    pub fn try_acquire(self: &Arc<Self>) -> Option<UpstreamPermit> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(UpstreamPermit { limiter: Arc::clone(self), permit: Some(permit) })
    }

    /// Takes a place as soon as one is free. `None` if no place becomes free within `patience`, or if `max_waiting` requests
    /// are already waiting for one.
    pub async fn acquire(self: &Arc<Self>, max_waiting: u64, patience: Nanos) -> Option<UpstreamPermit> {
        let one_more = |waiting: u64| waiting.checked_add(1).filter(|waiting| *waiting <= max_waiting);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let _waits = WaitingGuard(self);
        let permit = timeout(patience.to_duration(), Arc::clone(&self.places).acquire_owned()).await.ok()?.ok()?;
        Some(UpstreamPermit { limiter: Arc::clone(self), permit: Some(permit) })
    }

    /// The number of waiting requests.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn places(max: u64) -> usize {
    usize::try_from(max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// A waiting request, which is counted until this is dropped.
struct WaitingGuard<'a>(&'a UpstreamLimiter);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for UpstreamPermit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut size = self.limiter.size.lock();
        if let Some(fewer) = size.surplus.checked_sub(1) {
            size.surplus = fewer;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use super::*;

    const SECOND: Nanos = Nanos::SECOND;

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_get_places_in_turn_and_others_are_turned_away() {
        let limiter = UpstreamLimiter::new(1);
        let held = limiter.try_acquire().unwrap();
        assert!(limiter.try_acquire().is_none());
        let waits = |limiter: &Arc<UpstreamLimiter>| {
            let limiter = Arc::clone(limiter);
            tokio::spawn(async move { limiter.acquire(2, SECOND).await })
        };
        let (first, second) = (waits(&limiter), waits(&limiter));
        tokio::task::yield_now().await;
        assert_eq!(limiter.waiting(), 2);
        assert!(limiter.acquire(2, SECOND).await.is_none(), "as many wait as may");
        drop(held);
        assert!(limiter.try_acquire().is_none(), "the place is that of the first");
        let first = first.await.unwrap().unwrap();
        assert!(second.await.unwrap().is_none(), "it became too late");
        assert_eq!(limiter.waiting(), 0);
        drop(first);
        assert!(limiter.try_acquire().is_some());
    }

    #[test]
    fn places_that_are_too_many_go_when_they_are_free() {
        let limiter = UpstreamLimiter::new(4);
        let free = |limiter: &Arc<UpstreamLimiter>| from_fn(|| limiter.try_acquire()).collect::<Vec<_>>().len();
        let mut held: Vec<_> = from_fn(|| limiter.try_acquire()).collect();
        assert_eq!(held.len(), 4);
        limiter.resize(1);
        held.truncate(2);
        assert_eq!(free(&limiter), 0);
        // one of the surplus places stays
        limiter.resize(2);
        assert_eq!(free(&limiter), 0);
        held.truncate(1);
        assert_eq!(free(&limiter), 1);
        held.clear();
        assert_eq!(free(&limiter), 2);
        limiter.resize(5);
        assert_eq!(free(&limiter), 5);
        limiter.resize(3);
        assert_eq!(free(&limiter), 3);
    }
}
