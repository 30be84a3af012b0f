//! Corrections of what another gateway was asked to charge: refunds, debits and ends of requests. No request waits for them;
//! they are sent again over the next connection until the other side has said to have made them, which it does once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::peer::{Part, Peer};
use super::session::{Form, Question, Session, Told};
use super::wire::{Answer, Ask, Change};
use crate::algorithm::Completion;
use crate::units::Nanos;

/// Corrections that the other side has not said to have made.
pub(super) struct Pending {
    boot: u64,
    last: u64,
    changes: BTreeMap<u64, Unmade>,
}

struct Unmade {
    correction: Correction,
    is_sent: bool,
}

/// A correction of charges.
#[derive(Clone, Debug)]
pub enum Correction {
    /// Takes a charge back, whose bucket was going to be whole at `full_at` on the other side's clock.
    Refund {
        /// What was charged.
        part: Part,
        /// When it was going to be whole.
        full_at: Nanos,
    },
    /// Charges whatever the limit says.
    Debit(Part),
    /// Gives back what was held.
    Complete(Part, Completion),
}

/// The most corrections that wait for a gateway that is away: about 30 MB.
const MOST_PENDING: usize = 100_000;

impl Pending {
    /// Numbers go on from `now`, so that none comes again where the same process knows the same gateway anew.
    pub(super) const fn new(now: Nanos) -> Self {
        Self { boot: 0, last: now.get(), changes: BTreeMap::new() }
    }

    /// Those that can be sent go over another connection now, to the process `boot`. Returns how many are of no use to it.
    pub(super) fn arrived(&mut self, boot: u64) -> usize {
        let lost = if self.boot == boot { 0 } else { std::mem::take(&mut self.changes).len() };
        self.boot = boot;
        self.changes.values_mut().for_each(|change| change.is_sent = false);
        lost
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Peer {
    /// Makes `correction`, when that can be done.
    pub fn correct(&self, correction: Correction) {
        let mut pending = self.pending.lock();
        pending.last = pending.last.saturating_add(1);
        let number = pending.last;
        pending.changes.insert(number, Unmade { correction, is_sent: false });
        if pending.changes.len() > MOST_PENDING {
            pending.changes.pop_first();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        drop(pending);
        self.urgent.notify_one();
    }

    /// Gives back what is held for `part`, if anything may be.
    pub(super) fn complete(&self, part: &Part, end: Completion) {
        if part.slot > 0 {
            self.correct(Correction::Complete(part.clone(), end));
        }
    }

    /// Sends what has not been sent over `session`.
    pub(super) fn send_corrections(self: &Arc<Self>, session: &Session) {
        let mut pending = self.pending.lock();
        let unsent = pending.changes.iter_mut().filter(|(_, change)| !change.is_sent);
        for (number, change) in unsent {
            let (peer, number) = (Arc::clone(self), *number);
            let told = move |answer| {
                if let Some(Answer::Done) = answer {
                    peer.pending.lock().changes.remove(&number);
                }
            };
            change.is_sent = change.correction.send(number, session, Box::new(told));
            if !change.is_sent {
                return;
            }
        }
    }
}

impl Correction {
    fn send(&self, number: u64, session: &Session, told: Told) -> bool {
        let (form, ask): (&Form, Box<dyn Fn(u32) -> Change + '_>) = match self {
            Self::Refund { part: Part { form, key, cost, .. }, full_at } => {
                (form, Box::new(|rule| Change::Refund { rule, key: *key, cost: *cost, full_at: *full_at }))
            }
            Self::Debit(Part { form, key, cost, .. }) => {
                (form, Box::new(|rule| Change::Debit { rule, key: *key, cost: *cost }))
            }
            Self::Complete(Part { form, key, slot, .. }, end) => {
                (form, Box::new(|rule| Change::Complete { rule, key: *key, slot: *slot, end: *end }))
            }
        };
        let ask = |numbers: &[u32]| Ask::Change { number, change: ask(numbers.first().copied().unwrap_or_default()) };
        session.ask(&Question { forms: &[form], ask: &ask }, told)
    }
}
