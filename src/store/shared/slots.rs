//! The slots of `concurrency` that requests of this gateway hold. This gateway counts them, to decide while Redis is
//! unavailable, and reports them to Redis for as long as requests hold them: Redis drops slots that are not reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::sleep;

use crate::charge::{AllCharged, Charged};
use crate::store::redis::CallArgument;
use crate::store::shared::calls::Change;
use crate::store::shared::limit::{ChargePart, SLOT_LIFETIME, scaled, slot_name};
use crate::store::shared::{SharedStore, run_bounded};
use crate::units::{Cost, LimitKey, Nanos};

/// The slots of this gateway.
#[derive(Default)]
pub(super) struct Slots {
    last: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The held slots, by number.
    held: BTreeMap<u64, Held>,
    /// The cost of each key that requests hold.
    in_flight: HashMap<LimitKey, Cost>,
    /// Held slots that Redis does not count, by number and key.
    uncounted: BTreeSet<(u64, LimitKey)>,
    /// Ended slots that Redis does not know to have ended, and when they ended.
    ended: Vec<(u64, ChargePart, Nanos)>,
}

/// One slot under each limit of a request.
#[derive(Default)]
struct Held {
    parts: Parts,
    /// Whether Redis may know the slot.
    is_told: bool,
}

pub(super) type Parts = SmallVec<[ChargePart; 1]>;

/// How often this gateway reports its slots to Redis, and how many reports run at a time.
const TELL_EVERY: Nanos = Nanos::new(SLOT_LIFETIME.get() / 3);
const TOLD_AT_ONCE: usize = 100;
/// The most ended slots to remember; Redis lets the others lapse.
const MAX_ENDED: usize = 10_000;

impl Slots {
    /// A number that no other slot of this gateway has.
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Records a slot that Redis granted under the limit of `part`.
    pub(super) fn hold(&self, slot: u64, part: &ChargePart) {
        self.table.lock().hold(slot, part, true);
    }

    /// Decides `parts` by the slots that this gateway holds, with each cost multiplied by the part's factor; holds the
    /// slot if all enforcing limits admit it. Returns the results in order.
    pub(super) fn charge(&self, slot: u64, parts: &[(ChargePart, u64)], now: Nanos) -> AllCharged {
        let mut table = self.table.lock();
        let decide = |(part, cost_multiplier): &(ChargePart, u64)| {
            let rule = part.rule();
            let in_flight =
                table.in_flight.get(&part.key).copied().unwrap_or_default().saturating_mul(*cost_multiplier);
            let before = rule.hold(None, in_flight);
            let (decision, after) = rule.decide(before.clone(), scaled(rule, part.cost, *cost_multiplier), now);
            let state = if part.enforcement.takes(decision) { after } else { before };
            let mut headroom = rule.headroom(state.as_ref(), now);
            headroom.remaining = headroom.remaining.map(|left| left / cost_multiplier.max(&1));
            Charged { decision, headroom }
        };
        let charged: AllCharged = parts.iter().map(decide).collect();
        let all = || parts.iter().map(|(part, _)| part).zip(&charged);
        if !all().any(|(part, charged)| part.enforcement.denies(charged.decision)) {
            let taken = all().filter(|(part, charged)| part.enforcement.takes(charged.decision));
            taken.for_each(|(part, _)| table.hold(slot, part, false));
        }
        charged
    }

    pub(super) fn is_held(&self, slot: u64) -> bool {
        self.table.lock().held.contains_key(&slot)
    }

    /// Drops the slot. Returns its parts that Redis has to know of.
    pub(super) fn let_go(&self, slot: u64) -> Parts {
        let mut table = self.table.lock();
        let Held { parts, is_told } = table.held.remove(&slot).unwrap_or_default();
        for part in &parts {
            table.uncounted.remove(&(slot, part.key));
            if let Some(in_flight) = table.in_flight.get_mut(&part.key) {
                *in_flight = in_flight.saturating_sub(part.cost);
                if *in_flight == 0 {
                    table.in_flight.remove(&part.key);
                }
            }
        }
        if is_told { parts } else { Parts::new() }
    }

    /// All held slots.
    fn all(&self) -> Vec<(u64, ChargePart)> {
        let table = self.table.lock();
        table.held.iter().flat_map(|(slot, held)| held.parts.iter().map(|part| (*slot, part.clone()))).collect()
    }

    /// The slots of these keys that Redis does not count.
    fn uncounted(&self, keys: &[LimitKey]) -> Vec<(u64, ChargePart)> {
        let table = self.table.lock();
        let some = table.uncounted.iter().filter(|(_, key)| keys.contains(key));
        let parts = some.filter_map(|(slot, key)| {
            let part = table.held.get(slot)?.parts.iter().find(|part| part.key == *key)?;
            Some((*slot, part.clone()))
        });
        parts.collect()
    }

    /// Notes that a report of the slot to Redis begins.
    fn note_told(&self, slot: u64) {
        if let Some(held) = self.table.lock().held.get_mut(&slot) {
            held.is_told = true;
        }
    }

    /// Notes that Redis counts the slot under the key.
    fn note_counted(&self, slot: u64, key: LimitKey) {
        self.table.lock().uncounted.remove(&(slot, key));
    }

    fn keep_ended(&self, slot: u64, part: ChargePart, now: Nanos) {
        let mut table = self.table.lock();
        if table.ended.len() < MAX_ENDED {
            table.ended.push((slot, part, now));
        }
    }

    /// Takes the ended slots for which `is_told` is true; of these, the ones that have not lapsed yet are returned.
    fn take_ended(&self, is_told: impl Fn(&ChargePart) -> bool, now: Nanos) -> Vec<(u64, ChargePart)> {
        let mut table = self.table.lock();
        let ended = table.ended.extract_if(.., |(_, part, _)| is_told(part));
        let lasting = ended.filter(|(_, _, at)| now.saturating_sub(*at) < SLOT_LIFETIME);
        lasting.map(|(slot, part, _)| (slot, part)).collect()
    }
}

impl Table {
    fn hold(&mut self, slot: u64, part: &ChargePart, is_told: bool) {
        let held = self.held.entry(slot).or_default();
        held.parts.push(part.clone());
        held.is_told |= is_told;
        if !is_told {
            self.uncounted.insert((slot, part.key));
        }
        let in_flight = self.in_flight.entry(part.key).or_default();
        *in_flight = in_flight.saturating_add(part.cost);
    }
}

impl SharedStore {
    /// Reports held slots to Redis again and again, for as long as it is polled.
    pub(super) async fn keep_slots(self: &Arc<Self>) {
        loop {
            sleep(TELL_EVERY.to_duration()).await;
            self.announce_slots(|part| !self.is_unavailable(part)).await;
        }
    }

    /// Reports the held slots for which `is_told` is true to Redis, and the ends that Redis does not know of. Ends early
    /// for a server whose breaker opens.
    pub(super) async fn announce_slots(self: &Arc<Self>, is_told: impl Fn(&ChargePart) -> bool) {
        let renew = |(slot, part): (u64, ChargePart)| {
            let gateway = Arc::clone(self);
            async move {
                if gateway.servers.is_closed(gateway.server(&part)) {
                    gateway.renew_slot(slot, part).await;
                }
            }
        };
        let held = self.slots.all().into_iter().filter(|(_, part)| is_told(part));
        run_bounded(TOLD_AT_ONCE, held.map(renew).collect()).await;
        self.announce_ended_slots(is_told).await;
    }

    /// Reports the slots for which `is_told` is true and whose ends Redis does not know.
    pub(super) async fn announce_ended_slots(self: &Arc<Self>, is_told: impl Fn(&ChargePart) -> bool) {
        let end = |(slot, part): (u64, ChargePart)| {
            let gateway = Arc::clone(self);
            async move {
                match gateway.servers.is_closed(gateway.server(&part)) {
                    true => gateway.end_slot(slot, part).await,
                    false => gateway.slots.keep_ended(slot, part, gateway.clock.now()),
                }
            }
        };
        let ended = self.slots.take_ended(is_told, self.clock.now());
        run_bounded(TOLD_AT_ONCE, ended.into_iter().map(end).collect()).await;
    }

    /// Reports the slots of the keys of `parts` that Redis does not count, and those whose ends it does not know. Returns
    /// whether it now counts all that are held.
    pub(super) async fn announce_slots_of(self: &Arc<Self>, parts: &[ChargePart]) -> bool {
        let keys: SmallVec<[LimitKey; 2]> =
            parts.iter().filter(|part| part.rule().holds_slots()).map(|part| part.key).collect();
        if keys.is_empty() {
            return true;
        }
        self.announce_ended_slots(|part| keys.contains(&part.key)).await;
        for (slot, part) in self.slots.uncounted(&keys) {
            self.renew_slot(slot, part).await;
        }
        self.slots.uncounted(&keys).is_empty()
    }

    async fn renew_slot(self: &Arc<Self>, slot: u64, part: ChargePart) {
        if self.slots.is_held(slot) {
            self.slots.note_told(slot);
            let name = slot_name(self.id, slot);
            if self.call_change(Change::Renew, &[(&part, CallArgument::Slot(&name))]).await.is_ok() {
                self.slots.note_counted(slot, part.key);
            }
            if !self.slots.is_held(slot) {
                // another call reported the end, and may have arrived before the renewal
                self.end_slot(slot, part).await;
            }
        }
    }

    /// Ends the slot of this number.
    pub(super) fn release_slot(self: &Arc<Self>, slot: u64) {
        self.end_slot_later(slot, self.slots.let_go(slot));
    }

    /// Reports the end of a slot to Redis; after the outage, if Redis is unavailable.
    pub(super) fn end_slot_later(self: &Arc<Self>, slot: u64, parts: impl IntoIterator<Item = ChargePart>) {
        for part in parts {
            if self.is_unavailable(&part) {
                self.slots.keep_ended(slot, part, self.clock.now());
            } else {
                let gateway = Arc::clone(self);
                self.spawn_background(async move { gateway.end_slot(slot, part).await });
            }
        }
    }

    async fn end_slot(self: &Arc<Self>, slot: u64, part: ChargePart) {
        let name = slot_name(self.id, slot);
        if self.call_change(Change::Complete, &[(&part, CallArgument::Slot(&name))]).await.is_err() {
            self.slots.keep_ended(slot, part, self.clock.now());
        }
    }
}
