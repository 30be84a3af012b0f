//! The slots that requests of this process hold where gateways divide keys, and the gateways that count each slot: the
//! owner of its key, and earlier owners that may still have the state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::charge::{Charge, ChargeSource, Slot};
use crate::cluster::wire::{HeldSlot, StateBatch};
use crate::cluster::{Peer, PeerCharge, WireRule};
use crate::store::local::is_overflow;
use crate::units::{LimitKey, Nanos};

/// Slots that are held, and slots that ended a moment ago.
#[derive(Debug, Default)]
pub(super) struct RunningSlots(Mutex<SlotTable>);

#[derive(Debug, Default)]
struct SlotTable {
    /// By number.
    held: BTreeMap<u64, RunningSlot>,
    /// The slots that ended last, and when.
    ended: VecDeque<(Nanos, PeerCharge, CountingGateways)>,
}

#[derive(Debug)]
struct RunningSlot {
    part: PeerCharge,
    /// The gateways that count the slot or counted it before; the last one is the one it was last reported to.
    counted_by: CountingGateways,
    /// When the slot was reported to that gateway; `None` until the gateway has confirmed it.
    reported: Option<Nanos>,
}

/// The gateway that counts a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedAt {
    /// This gateway.
    Local,
    /// The gateway of this number.
    Peer(u32),
}

/// The gateways that may count a slot, each once.
pub(super) type CountingGateways = SmallVec<[CountedAt; 1]>;

/// The slots to report to a gateway; to this one if there is no peer.
type SlotReport = (Option<Arc<Peer>>, Vec<StateBatch>);

/// How long an ended slot is remembered: by then this process sees every new owner of its key, which may have received
/// a state that still counts the slot.
const REMEMBERED: Nanos = Nanos::from_secs(3);
const MAX_REMEMBERED: usize = 16_384;

/// How many slots are reported in one message: some 200 KB.
const MAX_PER_REPORT: usize = 4_096;

impl CountedAt {
    /// `peer`, or this gateway if there is none.
    pub(super) fn at(peer: Option<&Peer>) -> Self {
        peer.map_or(Self::Local, |peer| Self::Peer(peer.number))
    }

    /// The gateway that a charge was made at.
    pub(super) const fn of(charge: &Charge) -> Self {
        match charge.taken_from {
            ChargeSource::Owner(node) => Self::Peer(node),
            _ => Self::Local,
        }
    }
}

impl RunningSlots {
    /// Records that a request holds `part` from now on, and that the gateway `counted_at` counts it.
    pub(super) fn begins(&self, part: PeerCharge, counted_at: CountedAt, now: Nanos) {
        let slot = RunningSlot { counted_by: CountingGateways::from_slice(&[counted_at]), reported: Some(now), part };
        self.0.lock().held.insert(slot.part.slot, slot);
    }

    /// Whether a request holds the slot.
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.lock().held.contains_key(&number)
    }

    /// Ends a slot. Returns its charge, and the gateways that may count it.
    pub(super) fn ends(&self, number: u64, now: Nanos) -> Option<(PeerCharge, CountingGateways)> {
        let mut slots = self.0.lock();
        let RunningSlot { part, counted_by, .. } = slots.held.remove(&number)?;
        while let Some((at, ..)) = slots.ended.front()
            && (now.saturating_sub(*at) > REMEMBERED || slots.ended.len() >= MAX_REMEMBERED)
        {
            slots.ended.pop_front();
        }
        slots.ended.push_back((now, part.clone(), counted_by.clone()));
        Some((part, counted_by))
    }

    /// Slots that ended recently, whose keys now belong to other gateways that do not know of the end yet.
    pub(super) fn unreported_ends(
        &self,
        owner: impl Fn(LimitKey) -> Option<Arc<Peer>>,
        now: Nanos,
    ) -> Vec<(Arc<Peer>, PeerCharge)> {
        let mut slots = self.0.lock();
        let lately = slots
            .ended
            .iter_mut()
            .filter(|(at, part, _)| now.saturating_sub(*at) <= REMEMBERED && !is_overflow(part.key));
        let unreported = lately.filter_map(|(_, part, counted_by)| {
            let peer = owner(part.key).filter(|peer| !counted_by.contains(&CountedAt::Peer(peer.number)))?;
            counted_by.push(CountedAt::Peer(peer.number));
            Some((peer, part.clone()))
        });
        unreported.collect()
    }

    /// The slots that have to be reported, each batch with the gateway that counts them now; `None` if it is this one.
    /// `peer` returns the gateway that counts a key now, if it is another one; it gets the gateway that was told last.
    /// Slots that were reported at `since` or later are left out. Those of other gateways count as reported once the
    /// gateway confirms (see [`RunningSlots::set_reported`]).
    pub(super) fn unreported(
        &self,
        process: u64,
        peer: impl Fn(LimitKey, CountedAt) -> Option<Arc<Peer>>,
        since: Nanos,
        now: Nanos,
    ) -> Vec<(Option<Arc<Peer>>, StateBatch)> {
        let mut batches: BTreeMap<(Option<u32>, u64), SlotReport> = BTreeMap::new();
        for (number, RunningSlot { part, counted_by, reported }) in &mut self.0.lock().held {
            let last = counted_by.last().copied().unwrap_or(CountedAt::Local);
            let peer = peer(part.key, last);
            let counted_at = CountedAt::at(peer.as_deref());
            if counted_at == last && reported.is_some_and(|reported| reported >= since) {
                continue;
            }
            if counted_at != last {
                counted_by.retain(|known| *known != counted_at);
                counted_by.push(counted_at);
            }
            *reported = peer.is_none().then_some(now);
            let held = HeldSlot { slot: Slot { process, number: *number }, key: part.key, cost: part.cost, rule: 0 };
            let place = (peer.as_ref().map(|peer| peer.number), part.rule.id());
            let (_, all) = batches.entry(place).or_insert_with(|| (peer, Vec::new()));
            add(all, &part.rule, held);
        }
        let batches = batches.into_values();
        batches.flat_map(|(peer, all)| all.into_iter().map(move |states| (peer.clone(), states))).collect()
    }

    /// Notes that the slots in `states` were reported at `now` to the gateway of this number.
    pub(super) fn set_reported(&self, peer: u32, states: &StateBatch, now: Nanos) {
        let mut running = self.0.lock();
        for held in &states.held {
            if let Some(slot) = running
                .held
                .get_mut(&held.slot.number)
                .filter(|slot| slot.counted_by.last() == Some(&CountedAt::Peer(peer)))
            {
                slot.reported = Some(now);
            }
        }
    }
}

/// Adds `held`, under the parameters `rule`, to the last of `all`, or to a new one.
fn add(all: &mut Vec<StateBatch>, rule: &WireRule, held: HeldSlot) {
    match all.last_mut().filter(|states| states.held.len() < MAX_PER_REPORT) {
        Some(states) => states.held.push(held),
        None => all.push(StateBatch {
            limit: (**rule.limit()).clone(),
            rules: vec![rule.parameters().clone()],
            count: 0,
            cells: Bytes::new(),
            held: vec![held],
        }),
    }
}
