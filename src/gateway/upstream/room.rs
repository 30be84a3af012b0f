//! Bounds the requests that are at an upstream at the same time; others may wait until one of them has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::units::Nanos;

/// The places for requests at an upstream. A place that becomes free goes to the request that has waited longest.
#[derive(Debug)]
pub struct Room {
    places: Arc<Semaphore>,
    waiting: AtomicU64,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    places: usize,
    /// The number of occupied places that are removed when they become free, because the room has shrunk.
    surplus: usize,
}

/// A request's place at an upstream; given back when dropped.
#[derive(Debug)]
pub struct RoomPlace {
    room: Arc<Room>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Creates room for `max` requests.
    pub fn new(max: u64) -> Arc<Self> {
        let places = places(max);
        let size = Mutex::new(Size { places, surplus: 0 });
        Arc::new(Self { places: Arc::new(Semaphore::new(places)), waiting: AtomicU64::new(0), size })
    }

    /// Changes the room to `max` places. Requests that have a place keep it, and waiting requests go on waiting.
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
    pub fn enter(self: &Arc<Self>) -> Option<RoomPlace> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(RoomPlace { room: Arc::clone(self), permit: Some(permit) })
    }

    /// Takes a place as soon as one is free. `None` if no place becomes free within `patience`, or if `max_waiting` requests
    /// are already waiting for one.
    pub async fn wait(self: &Arc<Self>, max_waiting: u64, patience: Nanos) -> Option<RoomPlace> {
        let one_more = |waiting: u64| waiting.checked_add(1).filter(|waiting| *waiting <= max_waiting);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let _waits = Waits(self);
        let permit = timeout(patience.to_duration(), Arc::clone(&self.places).acquire_owned()).await.ok()?.ok()?;
        Some(RoomPlace { room: Arc::clone(self), permit: Some(permit) })
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
struct Waits<'a>(&'a Room);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for RoomPlace {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut size = self.room.size.lock();
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
    async fn who_waits_gets_places_in_turn_and_others_are_turned_away() {
        let room = Room::new(1);
        let held = room.enter().unwrap();
        assert!(room.enter().is_none());
        let waits = |room: &Arc<Room>| {
            let room = Arc::clone(room);
            tokio::spawn(async move { room.wait(2, SECOND).await })
        };
        let (first, second) = (waits(&room), waits(&room));
        tokio::task::yield_now().await;
        assert_eq!(room.waiting(), 2);
        assert!(room.wait(2, SECOND).await.is_none(), "as many wait as may");
        drop(held);
        assert!(room.enter().is_none(), "the place is that of the first");
        let first = first.await.unwrap().unwrap();
        assert!(second.await.unwrap().is_none(), "it became too late");
        assert_eq!(room.waiting(), 0);
        drop(first);
        assert!(room.enter().is_some());
    }

    #[test]
    fn places_that_are_too_many_go_when_they_are_free() {
        let room = Room::new(4);
        let free = |room: &Arc<Room>| from_fn(|| room.enter()).collect::<Vec<_>>().len();
        let mut held: Vec<_> = from_fn(|| room.enter()).collect();
        assert_eq!(held.len(), 4);
        room.resize(1);
        held.truncate(2);
        assert_eq!(free(&room), 0);
        // one of the surplus places stays
        room.resize(2);
        assert_eq!(free(&room), 0);
        held.truncate(1);
        assert_eq!(free(&room), 1);
        held.clear();
        assert_eq!(free(&room), 2);
        room.resize(5);
        assert_eq!(free(&room), 5);
        room.resize(3);
        assert_eq!(free(&room), 3);
    }
}
