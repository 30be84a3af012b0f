//! What other gateways charge here, because this one owns the keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::algorithm::{AlgorithmName, Completion, Parameters};
use crate::charge::{Charge, Manner, RuleRef};
use crate::cluster::moving::{Received, Walk};
use crate::cluster::serve::{Desk, Guest};
use crate::cluster::wire::{Identity, States, Told, Wanted};
use crate::store::local::Binding;
use crate::store::{LimitSpec, Store};
use crate::units::{Cost, LimitKey, Nanos};

/// What processes of other gateways hold here while requests run.
#[derive(Debug, Default)]
pub(super) struct Guests(Mutex<HashMap<u64, Held>>);

/// What one process holds.
#[derive(Debug, Default)]
struct Held {
    slots: HashMap<u64, (Arc<Limits>, Charge)>,
    /// What was given back before it was taken: the last ones.
    early: HashSet<u64>,
    early_in_order: VecDeque<u64>,
}

/// So many that came before their charges are remembered.
const MOST_EARLY: usize = 16_384;

/// The limits of one connection.
#[derive(Debug)]
struct Limits {
    /// Grows, and is replaced where limits start afresh.
    binding: RwLock<Binding>,
    /// By the number of the parameters on the connection: the position in the binding; none for those that are not understood.
    positions: RwLock<Vec<Option<usize>>>,
}

/// One connection's side.
struct Visit {
    store: Arc<Store>,
    boot: u64,
    limits: Arc<Limits>,
}

impl Desk for Store {
    fn receive(self: Arc<Self>, boot: u64) -> Arc<dyn Guest> {
        let limits = Limits { binding: RwLock::new(Binding::empty()), positions: RwLock::default() };
        Arc::new(Visit { store: self, boot, limits: Arc::new(limits) })
    }

    fn release(&self, boot: u64, now: Nanos) {
        let held = self.guests.0.lock().remove(&boot);
        for (limits, charge) in held.into_iter().flat_map(|held| held.slots.into_values()) {
            self.let_go(&limits, charge, Completion::UNMEASURED, now);
        }
    }

    fn take(&self, limit: &Identity, key: LimitKey) -> Option<States> {
        self.local.take(limit, key)
    }

    fn take_moved(&self, walk: &mut Walk, to: &dyn Fn(LimitKey) -> Option<usize>, now: Nanos) -> Vec<(usize, States)> {
        self.local.take_moved(walk, to, now)
    }

    fn put(&self, states: &States) -> Received {
        self.local.put(states)
    }
}

impl Store {
    fn let_go(&self, limits: &Limits, charge: Charge, end: Completion, now: Nanos) {
        self.local.complete(&limits.binding.read(), &[charge], end, now);
    }
}

impl Visit {
    /// The charge of `key` under these parameters; `None` if they are not understood.
    fn charge_of(&self, rule: u32, key: LimitKey, cost: Cost, manner: Manner) -> Option<Charge> {
        let position = usize::try_from(rule).ok()?;
        let limit = (*self.limits.positions.read().get(position)?)?;
        Some(Charge::new(limit, RuleRef::Listed(0), key, cost, manner))
    }

    /// Takes note of what is held from here on, unless it was given back already.
    fn hold(&self, slot: u64, charge: &Charge, now: Nanos) {
        let mut guests = self.store.guests.0.lock();
        let held = guests.entry(self.boot).or_default();
        if held.early.remove(&slot) {
            drop(guests);
            self.store.let_go(&self.limits, charge.clone(), Completion::UNMEASURED, now);
        } else {
            held.slots.insert(slot, (Arc::clone(&self.limits), charge.clone()));
        }
    }
}

impl Guest for Visit {
    fn learn(&self, limit: &Identity, parameters: &Parameters) {
        let algorithm = AlgorithmName::ALL.iter().copied().find(|name| name.as_str() == limit.algorithm);
        let rule = algorithm.and_then(|algorithm| Some((algorithm, parameters.rule(algorithm)?)));
        let mut positions = self.limits.positions.write();
        positions.push(rule.map(|(algorithm, rule)| {
            let spec = LimitSpec { max_keys: limit.max_keys, ..LimitSpec::bare(&limit.name, algorithm, limit.key) };
            self.store.local.adopt(&mut self.limits.binding.write(), &spec, rule)
        }));
    }

    fn unknown(&self, wanted: &[Wanted]) -> Vec<(Arc<Identity>, LimitKey)> {
        let binding = self.limits.binding.read();
        let unknown = wanted.iter().filter_map(|wanted| {
            let charge = self.charge_of(wanted.rule, wanted.key, wanted.cost, wanted.manner)?;
            Some((Arc::new(self.store.local.misses(&binding, &charge)?), wanted.key))
        });
        unknown.collect()
    }

    fn charge(&self, wanted: &[Wanted], now: Nanos) -> Option<Vec<Told>> {
        let charges = wanted.iter().map(|wanted| self.charge_of(wanted.rule, wanted.key, wanted.cost, wanted.manner));
        let mut batch = charges.collect::<Option<Vec<Charge>>>()?;
        if self.limits.binding.read().is_stale(&batch) {
            self.store.local.renew(&mut self.limits.binding.write());
        }
        let charged = self.store.local.charge(&self.limits.binding.read(), &mut batch, now);
        let mut all = wanted.iter().zip(&batch).zip(&charged);
        let admitted = all.all(|((wanted, _), charged)| !wanted.manner.binds || charged.decision.is_admitted());
        let told = wanted.iter().zip(batch).zip(charged).map(|((wanted, charge), charged)| {
            if wanted.slot > 0 && admitted && charged.decision.is_admitted() && wanted.manner.takes {
                self.hold(wanted.slot, &charge, now);
            }
            Told { charged, common: (charge.key != wanted.key).then_some(charge.key) }
        });
        Some(told.collect())
    }

    fn refund(&self, rule: u32, key: LimitKey, cost: Cost, full_at: Nanos, now: Nanos) {
        if let Some(charge) = self.charge_of(rule, key, cost, Manner::USUAL) {
            self.store.local.refund(&self.limits.binding.read(), &[(charge, full_at)], now);
        }
    }

    fn debit(&self, rule: u32, key: LimitKey, cost: Cost, now: Nanos) {
        if let Some(charge) = self.charge_of(rule, key, cost, Manner::USUAL) {
            self.store.local.debit(&self.limits.binding.read(), &[charge], now);
        }
    }

    fn complete(&self, slot: u64, end: Completion, now: Nanos) {
        let held = {
            let mut guests = self.store.guests.0.lock();
            let process = guests.entry(self.boot).or_default();
            let held = process.slots.remove(&slot);
            if held.is_none() && process.early.insert(slot) {
                process.early_in_order.push_back(slot);
                if process.early_in_order.len() > MOST_EARLY
                    && let Some(oldest) = process.early_in_order.pop_front()
                {
                    process.early.remove(&oldest);
                }
            }
            held
        };
        if let Some((limits, charge)) = held {
            self.store.let_go(&limits, charge, end, now);
        }
    }
}
