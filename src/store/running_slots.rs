//! What requests of this process hold where gateways divide keys, and which gateways count it: the key's owner, and those
//! that owned it before and may not have given it away yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::charge::{Charge, Slot, Taken};
use crate::cluster::wire::{HeldSlot, StateBatch};
use crate::cluster::{Peer, PeerCharge, WireRule};
use crate::store::local::is_overflow;
use crate::units::{LimitKey, Nanos};

/// What is held, and what was until a moment ago.
#[derive(Debug, Default)]
pub(super) struct RunningSlots(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    /// By their numbers.
    held: HashMap<u64, RunningSlot>,
    /// What has ended, and when: the last ones.
    ended: VecDeque<(Nanos, PeerCharge, Counters)>,
}

#[derive(Debug)]
struct RunningSlot {
    part: PeerCharge,
    /// Who counts it, or did before: whoever was told of it last stands last.
    counters: Counters,
    /// When that one was told; none while that is not certain.
    reported: Option<Nanos>,
}

/// Where something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedAt {
    /// In this process.
    Here,
    /// At the gateway of this number.
    There(u32),
}

/// Each once.
pub(super) type Counters = SmallVec<[CountedAt; 1]>;

/// For so long it is remembered what has ended: until this process sees at the latest that another gateway owns the key,
/// which may have got the state with what was ended before that was known where it was.
const REMEMBERED: Nanos = Nanos::from_secs(3);
const MAX_REMEMBERED: usize = 16_384;

/// So many slots are told of at once: some 200 KB.
const MAX_PER_REPORT: usize = 4_096;

impl CountedAt {
    /// At this gateway, if it is another one.
    pub(super) fn at(peer: Option<&Peer>) -> Self {
        peer.map_or(Self::Here, |peer| Self::There(peer.number))
    }

    /// Where a charge was taken.
    pub(super) const fn of(charge: &Charge) -> Self {
        match charge.taken {
            Taken::Owner { node, .. } => Self::There(node),
            _ => Self::Here,
        }
    }
}

impl RunningSlots {
    /// `part` is held from here on, and counted at `counted_at`.
    pub(super) fn begins(&self, part: PeerCharge, counted_at: CountedAt, now: Nanos) {
        let slot = RunningSlot { counters: Counters::from_slice(&[counted_at]), reported: Some(now), part };
        self.0.lock().held.insert(slot.part.slot, slot);
    }

    /// Whether it is held.
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.lock().held.contains_key(&number)
    }

    /// It is held no more. What was held, and where it may be counted.
    pub(super) fn ends(&self, number: u64, now: Nanos) -> Option<(PeerCharge, Counters)> {
        let mut slots = self.0.lock();
        let RunningSlot { part, counters, .. } = slots.held.remove(&number)?;
        while let Some((at, ..)) = slots.ended.front()
            && (now.saturating_sub(*at) > REMEMBERED || slots.ended.len() >= MAX_REMEMBERED)
        {
            slots.ended.pop_front();
        }
        slots.ended.push_back((now, part.clone(), counters.clone()));
        Some((part, counters))
    }

    /// What has ended lately, of keys that others own now who, as `owner` says, have not been told of that end.
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
        let unreported = lately.filter_map(|(_, part, counters)| {
            let peer = owner(part.key).filter(|peer| !counters.contains(&CountedAt::There(peer.number)))?;
            counters.push(CountedAt::There(peer.number));
            Some((peer, part.clone()))
        });
        unreported.collect()
    }

    /// What is held and has to be told: to other gateways, and to this one. `peer` says who counts a key now, if it is
    /// another one, by who was told last. Those that know since `since` or later are left out; the others count as told
    /// once that is certain (see [`RunningSlots::reported`]).
    pub(super) fn unreported(
        &self,
        process: u64,
        peer: impl Fn(LimitKey, CountedAt) -> Option<Arc<Peer>>,
        since: Nanos,
        now: Nanos,
    ) -> (Vec<(Arc<Peer>, StateBatch)>, Vec<StateBatch>) {
        let mut there: HashMap<(u32, u64), (Arc<Peer>, Vec<StateBatch>)> = HashMap::new();
        let mut here: HashMap<u64, Vec<StateBatch>> = HashMap::new();
        for (number, RunningSlot { part, counters, reported }) in &mut self.0.lock().held {
            let last = counters.last().copied().unwrap_or(CountedAt::Here);
            let peer = peer(part.key, last);
            let counted_at = CountedAt::at(peer.as_deref());
            if counted_at == last && reported.is_some_and(|reported| reported >= since) {
                continue;
            }
            if counted_at != last {
                counters.retain(|known| *known != counted_at);
                counters.push(counted_at);
            }
            let held = HeldSlot { slot: Slot { process, number: *number }, key: part.key, cost: part.cost, rule: 0 };
            match peer {
                None => {
                    *reported = Some(now);
                    add(here.entry(part.form.id()).or_default(), &part.form, held);
                }
                Some(peer) => {
                    *reported = None;
                    let fresh = || (Arc::clone(&peer), Vec::new());
                    let (_, all) = there.entry((peer.number, part.form.id())).or_insert_with(fresh);
                    add(all, &part.form, held);
                }
            }
        }
        let there = there.into_values();
        let there = there.flat_map(|(peer, all)| all.into_iter().map(move |states| (Arc::clone(&peer), states)));
        (there.collect(), here.into_values().flatten().collect())
    }

    /// The gateway of this number knows since `now` of what stands in `states`.
    pub(super) fn set_reported(&self, peer: u32, states: &StateBatch, now: Nanos) {
        let mut running = self.0.lock();
        for held in &states.held {
            if let Some(slot) = running
                .held
                .get_mut(&held.slot.number)
                .filter(|slot| slot.counters.last() == Some(&CountedAt::There(peer)))
            {
                slot.reported = Some(now);
            }
        }
    }
}

/// Adds `held`, of a limit with this form, to the last of `all`, or to a new one.
fn add(all: &mut Vec<StateBatch>, form: &WireRule, held: HeldSlot) {
    match all.last_mut().filter(|states| states.held.len() < MAX_PER_REPORT) {
        Some(states) => states.held.push(held),
        None => all.push(StateBatch {
            limit: (**form.limit()).clone(),
            rules: vec![form.parameters().clone()],
            count: 0,
            cells: Vec::new(),
            held: vec![held],
        }),
    }
}
