//! A log of charges, ordered by time.

use std::collections::{VecDeque, vec_deque};
use std::iter::Peekable;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Charges with their times, at most one for each time, and their sum.
///
/// Packed: a word of 64 bits with the time, and, unless the cost is 1, a second one with the cost, marked by its highest
/// bit. So a charge takes 8 or 16 bytes. The capacity is up to four times the charges, or a few words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    words: VecDeque<u64>,
    total: u64,
}

/// The bit that makes a word a cost.
const COST: u64 = 1 << 63;
/// A capacity of up to this many words is not given back.
const FEW: usize = 64;

/// The charges at the front of a log that are to be dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Front {
    words: usize,
    cost: u64,
}

impl Log {
    /// The largest time that can be kept (the year 2262).
    pub const LAST: u64 = COST - 1;
    /// The largest cost that is kept; a larger one counts as this.
    pub const MAX_COST: u64 = 1 << 62;

    /// The sum of the costs.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The charges, oldest first.
    pub fn iter(&self) -> Charges<'_> {
        self.iter_after(Front::default())
    }

    /// The charges after `front`, oldest first.
    pub fn iter_after(&self, front: Front) -> Charges<'_> {
        Charges { words: self.words.range(front.words.min(self.words.len())..).peekable() }
    }

    /// The time of the newest charge.
    pub fn newest(&self) -> Option<u64> {
        let mut words = self.words.iter().rev();
        words.find(|word| **word < COST).copied()
    }

    /// The charges at the front for whose times `gone` holds.
    pub fn front(&self, gone: impl Fn(u64) -> bool) -> Front {
        let mut front = Front::default();
        for (at, cost) in self.iter() {
            if !gone(at) {
                break;
            }
            front.words = front.words.saturating_add(words_for(cost));
            front.cost = front.cost.saturating_add(cost);
        }
        front
    }

    /// Drops the charges that [`Log::front`] found, and gives memory back where most of it is unused.
    pub fn forget(&mut self, front: Front) {
        self.words.drain(..front.words.min(self.words.len()));
        self.total = self.total.saturating_sub(front.cost);
        let room = self.words.capacity();
        if room > FEW && self.words.len() < room / 4 {
            self.words.shrink_to(self.words.len().saturating_mul(2));
        }
    }

    /// Adds a charge, at the newest time if `at` is earlier.
    pub fn push(&mut self, at: u64, cost: u64) {
        let last = self.words.len().saturating_sub(1);
        match self.newest() {
            Some(newest) if at <= newest => {
                let position = if self.words.back() == Some(&newest) { last } else { last.saturating_sub(1) };
                self.change(position, |before| before.saturating_add(cost));
            }
            _ => {
                self.words.push_back(at.min(Self::LAST));
                self.total = self.total.saturating_add(1);
                self.change(self.words.len().saturating_sub(1), |_| cost);
            }
        }
    }

    /// Joins the oldest charges, at the time of the newest of them, as long as the others still sum up to `limit` or
    /// more. A rule that admits nothing while the sum is `limit` or more decides the same with the joined charges.
    pub fn fold(&mut self, limit: u64) {
        loop {
            let mut charges = self.iter();
            let (Some((_, oldest)), Some(_)) = (charges.next(), charges.next()) else {
                return;
            };
            if self.total.saturating_sub(oldest) < limit {
                return;
            }
            self.words.drain(..words_for(oldest));
            self.total = self.total.saturating_sub(oldest);
            self.change(0, |next| next.saturating_add(oldest));
        }
    }

    /// Takes `cost` off the newest charge for whose time `wanted` holds; changes nothing if there is none.
    pub fn take_back(&mut self, cost: u64, wanted: impl Fn(u64) -> bool) {
        let Some(position) = self.words.iter().rposition(|word| *word < COST && wanted(*word)) else {
            return;
        };
        self.change(position, |before| before.saturating_sub(cost));
    }

    /// Changes the cost of the charge whose time is at `position`, to at most [`Log::MAX_COST`]; drops the charge at 0.
    fn change(&mut self, position: usize, new: impl Fn(u64) -> u64) {
        let behind = position.saturating_add(1);
        let cost_word = self.words.get(behind).copied().filter(|word| *word >= COST);
        let before = cost_word.map_or(1, |word| word & !COST);
        let after = new(before).min(Self::MAX_COST);
        self.total = self.total.saturating_sub(before).saturating_add(after);
        match (cost_word, after) {
            (Some(_), 2..) => self.words[behind] = COST | after,
            (Some(_), _) => drop(self.words.remove(behind)),
            (None, 2..) => self.words.insert(behind, COST | after),
            (None, _) => {}
        }
        if after == 0 {
            self.words.remove(position);
        }
    }

    /// Whether the words are a valid log: times in ascending order, each with its cost.
    fn is_sound(&self) -> bool {
        let words: usize = self.iter().map(|(_, cost)| words_for(cost)).fold(0, usize::saturating_add);
        let times: Vec<u64> = self.iter().map(|(at, _)| at).collect();
        let ascending = times.is_sorted_by(|earlier, later| earlier < later);
        ascending
            && words == self.words.len()
            && self.iter().all(|(at, cost)| at < COST && (1..=Self::MAX_COST).contains(&cost))
    }

    /// Whether there is no charge.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

// === how a log is written down: as its words ===

impl Serialize for Log {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.words.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Log {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = VecDeque::deserialize(deserializer)?;
        let mut read = Self { words, total: 0 };
        read.total = read.iter().fold(0, |total: u64, (_, cost)| total.saturating_add(cost));
        match read.is_sound() {
            true => Ok(read),
            false => Err(D::Error::custom("a log of charges that no limit wrote")),
        }
    }
}

const fn words_for(cost: u64) -> usize {
    if cost == 1 { 1 } else { 2 }
}

/// See [`Log::iter`].
#[derive(Clone, Debug)]
pub struct Charges<'a> {
    words: Peekable<vec_deque::Iter<'a, u64>>,
}

impl Iterator for Charges<'_> {
    /// The time and the cost of a charge.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let at = *self.words.next()?;
        let cost = self.words.next_if(|word| **word >= COST).map_or(1, |word| word & !COST);
        Some((at, cost))
    }
}

// === impl Front ===

impl Front {
    /// The sum of the costs.
    pub const fn cost(self) -> u64 {
        self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(charges: &[(u64, u64)]) -> Log {
        let mut log = Log::default();
        for (at, cost) in charges {
            log.push(*at, *cost);
        }
        log
    }

    fn charges(log: &Log) -> Vec<(u64, u64)> {
        assert_eq!(log.total(), log.iter().map(|(_, cost)| cost).sum::<u64>());
        log.iter().collect()
    }

    #[test]
    fn a_log_takes_40_bytes_and_8_or_16_for_each_charge() {
        assert_eq!(size_of::<Log>(), 40);
        assert_eq!(log(&[(1, 1), (2, 1), (3, 5)]).words.len(), 4);
    }

    #[test]
    fn charges_come_out_as_they_went_in_one_for_each_time() {
        let log = log(&[(3, 1), (3, 1), (4, 7), (5, 1), (2, 4), (6, 1)]);
        assert_eq!(charges(&log), [(3, 2), (4, 7), (5, 5), (6, 1)]);
        assert_eq!(log.newest(), Some(6));
    }

    #[test]
    fn the_front_goes_and_the_memory_with_it() {
        let mut log = Log::default();
        for at in 0..1000 {
            log.push(at, 1 + at % 2);
        }
        let front = log.front(|at| at < 997);
        assert_eq!(charges(&log).len(), 1000);
        assert_eq!(log.iter_after(front).next(), Some((997, 2)));
        log.forget(front);
        assert_eq!(charges(&log), [(997, 2), (998, 1), (999, 2)]);
        assert!(log.words.capacity() < 20);
    }

    #[test]
    fn a_cost_is_taken_back_where_it_stands() {
        let mut log = log(&[(1, 1), (2, 3), (3, 1)]);
        log.take_back(1, |at| at == 2);
        assert_eq!(charges(&log), [(1, 1), (2, 2), (3, 1)]);
        log.take_back(1, |at| at == 2);
        assert_eq!(charges(&log), [(1, 1), (2, 1), (3, 1)]);
        log.take_back(9, |at| at == 2);
        log.take_back(1, |at| at == 4);
        assert_eq!(charges(&log), [(1, 1), (3, 1)]);
    }

    #[test]
    fn charges_that_more_than_fill_the_limit_are_joined() {
        let mut log = log(&[(1, 1), (2, 2), (3, 1), (4, 1), (5, 1)]);
        log.fold(3);
        assert_eq!(charges(&log), [(3, 4), (4, 1), (5, 1)]);
        log.push(6, 9);
        log.fold(3);
        assert_eq!(charges(&log), [(6, 15)]);
    }
}
