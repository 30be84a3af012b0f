//! The queues of requests that wait for their turn: how many may wait, and for how long they hold a place.
//!
//! The order is that of the charges: the store tells each request when its turn comes, so that the first request is served
//! first without a list. A queue only counts the waiting requests, for limits that bound their number.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::algorithm::{Decision, Denial};
use crate::ruleset::limit::OverLimit;
use crate::ruleset::verdict::Verdict;
use crate::units::Nanos;

/// The waiting requests of one limit, over all its keys.
#[derive(Debug)]
pub struct Queue {
    max_waiting: Option<u64>,
    max_wait: Nanos,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The time at which each request passes, with a number that makes it unique.
    turns: BTreeSet<(Nanos, u64)>,
    next_number: u64,
}

/// A place in a queue; given back when dropped.
#[derive(Debug)]
pub struct QueuePlace {
    waiting: Arc<Mutex<Waiting>>,
    turn: (Nanos, u64),
}

/// The error of a request that finds no place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullQueue {
    /// The position of the limit's standing in the verdict.
    pub position: usize,
    /// The time after which to retry; at least 1 ns.
    pub retry_after: Nanos,
}

/// Takes a place in the queue of every limit that makes an admitted request wait, until the request passes: after the
/// longest of its waits. If queues are full, takes none, and returns the one that stays full for longest.
pub fn enter_all(queues: &[Queue], verdict: &Verdict, now: Nanos) -> Result<Vec<QueuePlace>, FullQueue> {
    let Decision::Admit { wait: longest } = verdict.outcome else { return Ok(Vec::new()) };
    let passes = now.saturating_add(longest);
    let (mut places, mut full) = (Vec::new(), None::<FullQueue>);
    for (position, standing) in verdict.standings.iter().enumerate() {
        let turn = match standing.decision {
            Decision::Admit { wait } if standing.enforces && wait > Nanos::ZERO => now.saturating_add(wait),
            _ => continue,
        };
        match queues[standing.limit.0].enter(passes) {
            Ok(place) => places.push(place),
            Err(free) => {
                let retry_after = retry_after(free, turn, now);
                if full.is_none_or(|full| full.retry_after < retry_after) {
                    full = Some(FullQueue { position, retry_after });
                }
            }
        }
    }
    full.map_or(Ok(places), Err)
}

/// Lengthens the denial of a request that would come to a full queue when its limits admit it.
pub fn await_places(queues: &[Queue], verdict: &mut Verdict, now: Nanos) {
    let until_places = verdict.standings.iter().filter(|standing| standing.enforces).filter_map(|standing| {
        let queue = &queues[standing.limit.0];
        let wait = match standing.decision {
            Decision::Admit { wait } => wait,
            Decision::Deny(Denial::Later { retry_after }) => retry_after.saturating_add(queue.max_wait),
            Decision::Deny(Denial::Busy | Denial::Never { .. }) => return None,
        };
        let turn = now.saturating_add(wait);
        queue.room(turn).err().map(|free| retry_after(free, turn, now))
    });
    if let Some(longest) = until_places.max() {
        verdict.lengthen_denial(longest);
    }
}

/// The time after which to retry a request whose turn would come at `turn`, if the first place becomes free at `free`.
fn retry_after(free: Nanos, turn: Nanos, now: Nanos) -> Nanos {
    free.min(turn).saturating_sub(now).max(Nanos::new(1))
}

impl Queue {
    /// Creates the queue of a limit. Requests that wait in its predecessor `before` keep their places.
    pub fn new(over_limit: &OverLimit, before: Option<&Self>) -> Self {
        let (max_waiting, max_wait) = match over_limit {
            OverLimit::Delay { max_waiting, max_wait, .. } => (*max_waiting, *max_wait),
            OverLimit::Deny(_) | OverLimit::Divert(_) | OverLimit::Mark(_) => (None, Nanos::ZERO),
        };
        Self { max_waiting, max_wait, waiting: before.map(|before| Arc::clone(&before.waiting)).unwrap_or_default() }
    }

    /// Takes a place for a request that passes at this time. `Err` if all places are taken: the time at which the first one
    /// becomes free.
    pub fn enter(&self, passes: Nanos) -> Result<QueuePlace, Nanos> {
        let mut waiting = self.waiting.lock();
        self.room_in(&waiting, passes)?;
        let number = waiting.next_number;
        waiting.next_number = number.wrapping_add(1);
        waiting.turns.insert((passes, number));
        Ok(QueuePlace { waiting: Arc::clone(&self.waiting), turn: (passes, number) })
    }

    /// The `decision` on a request that takes no place: a denial if the request would have to wait and all places are taken.
    pub fn decide_without_place(&self, decision: Decision, now: Nanos) -> Decision {
        let turn = match decision {
            Decision::Admit { wait } if wait > Nanos::ZERO => now.saturating_add(wait),
            decided => return decided,
        };
        match self.room(turn) {
            Ok(()) => decision,
            Err(free) => Decision::later(retry_after(free, turn, now)),
        }
    }

    /// `Err` if all places are taken: the time at which the first one becomes free.
    fn room(&self, turn: Nanos) -> Result<(), Nanos> {
        if self.max_waiting.is_none() { Ok(()) } else { self.room_in(&self.waiting.lock(), turn) }
    }

    fn room_in(&self, waiting: &Waiting, turn: Nanos) -> Result<(), Nanos> {
        let taken = waiting.turns.len() as u64;
        match self.max_waiting.is_some_and(|max| taken >= max) {
            true => Err(waiting.turns.first().map_or(turn, |(first, _)| *first)),
            false => Ok(()),
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.waiting.lock().turns.remove(&self.turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::denied::Denied;

    fn queue(max_waiting: Option<u64>, before: Option<&Queue>) -> Queue {
        Queue::new(&OverLimit::Delay { max_wait: Nanos::SECOND, max_waiting, denied: Denied::default() }, before)
    }

    #[test]
    fn when_all_places_are_taken_the_next_is_told_when_the_first_becomes_free() {
        let queue = queue(Some(2), None);
        let first = queue.enter(Nanos::new(10)).unwrap();
        let second = queue.enter(Nanos::new(20)).unwrap();
        assert_eq!(queue.enter(Nanos::new(30)).unwrap_err(), Nanos::new(10));
        drop(first);
        let third = queue.enter(Nanos::new(30)).unwrap();
        assert_eq!(queue.enter(Nanos::new(40)).unwrap_err(), Nanos::new(20));
        drop((second, third));
        assert!(queue.waiting.lock().turns.is_empty());
    }

    #[test]
    fn without_a_bound_any_number_may_wait() {
        let queue = queue(None, None);
        let places: Vec<QueuePlace> = (0..1000).filter_map(|_| queue.enter(Nanos::new(10)).ok()).collect();
        assert_eq!(places.len(), 1000);
    }

    #[test]
    fn a_waiting_request_keeps_its_place_when_the_limit_changes() {
        let before = queue(Some(2), None);
        let first = before.enter(Nanos::new(10)).unwrap();
        let after = queue(Some(1), Some(&before));
        assert_eq!(after.enter(Nanos::new(30)).unwrap_err(), Nanos::new(10));
        drop(first);
        assert!(after.enter(Nanos::new(30)).is_ok());
    }
}
