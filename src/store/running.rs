//! What requests of this process hold where gateways divide keys, and which gateways count it: the key's owner, and those
//! that owned it before and may not have given it away yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::charge::{Charge, Slot, Taken};
use crate::cluster::wire::{Held, States};
use crate::cluster::{Form, Part, Peer};
use crate::store::local::is_overflow;
use crate::units::{LimitKey, Nanos};

/// What is held, and what was until a moment ago.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Runs>);

#[derive(Debug, Default)]
struct Runs {
    /// By their numbers.
    held: HashMap<u64, Run>,
    /// What has ended, and when: the last ones.
    ended: VecDeque<(Nanos, Part, Spots)>,
}

#[derive(Debug)]
struct Run {
    part: Part,
    /// Who counts it, or did before: whoever was told of it last stands last.
    spots: Spots,
    /// When that one was told; none while that is not certain.
    told: Option<Nanos>,
}

/// Where something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In this process.
    Here,
    /// At the gateway of this number.
    There(u32),
}

/// Each once.
pub(super) type Spots = SmallVec<[Spot; 1]>;

/// For so long it is remembered what has ended: until this process sees at the latest that another gateway owns the key,
/// which may have got the state with what was ended before that was known where it was.
const REMEMBERED: Nanos = Nanos::from_secs(3);
const MOST_REMEMBERED: usize = 16_384;

/// So many slots are told of at once: some 200 KB.
const MOST_AT_ONCE: usize = 4_096;

impl Spot {
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

impl Running {
    /// `part` is held from here on, and counted at `spot`.
    pub(super) fn begins(&self, part: Part, spot: Spot, now: Nanos) {
        let run = Run { spots: Spots::from_slice(&[spot]), told: Some(now), part };
        self.0.lock().held.insert(run.part.slot, run);
    }

    /// Whether it is held.
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.lock().held.contains_key(&number)
    }

    /// It is held no more. What was held, and where it may be counted.
    pub(super) fn ends(&self, number: u64, now: Nanos) -> Option<(Part, Spots)> {
        let mut runs = self.0.lock();
        let Run { part, spots, .. } = runs.held.remove(&number)?;
        while let Some((at, ..)) = runs.ended.front()
            && (now.saturating_sub(*at) > REMEMBERED || runs.ended.len() >= MOST_REMEMBERED)
        {
            runs.ended.pop_front();
        }
        runs.ended.push_back((now, part.clone(), spots.clone()));
        Some((part, spots))
    }

    /// What has ended lately, of keys that others own now who, as `owner` says, have not been told of that end.
    pub(super) fn untold_ends(
        &self,
        owner: impl Fn(LimitKey) -> Option<Arc<Peer>>,
        now: Nanos,
    ) -> Vec<(Arc<Peer>, Part)> {
        let mut runs = self.0.lock();
        let lately = runs
            .ended
            .iter_mut()
            .filter(|(at, part, _)| now.saturating_sub(*at) <= REMEMBERED && !is_overflow(part.key));
        let untold = lately.filter_map(|(_, part, spots)| {
            let peer = owner(part.key).filter(|peer| !spots.contains(&Spot::There(peer.number)))?;
            spots.push(Spot::There(peer.number));
            Some((peer, part.clone()))
        });
        untold.collect()
    }

    /// What is held and has to be told: to other gateways, and to this one. `peer` says who counts a key now, if it is
    /// another one, by who was told last. Those that know since `since` or later are left out; the others count as told
    /// once that is certain (see [`Running::told`]).
    pub(super) fn untold(
        &self,
        process: u64,
        peer: impl Fn(LimitKey, Spot) -> Option<Arc<Peer>>,
        since: Nanos,
        now: Nanos,
    ) -> (Vec<(Arc<Peer>, States)>, Vec<States>) {
        let mut there: HashMap<(u32, u64), (Arc<Peer>, Vec<States>)> = HashMap::new();
        let mut here: HashMap<u64, Vec<States>> = HashMap::new();
        for (number, Run { part, spots, told }) in &mut self.0.lock().held {
            let last = spots.last().copied().unwrap_or(Spot::Here);
            let peer = peer(part.key, last);
            let spot = Spot::at(peer.as_deref());
            if spot == last && told.is_some_and(|told| told >= since) {
                continue;
            }
            if spot != last {
                spots.retain(|known| *known != spot);
                spots.push(spot);
            }
            let held = Held { slot: Slot { process, number: *number }, key: part.key, cost: part.cost, rule: 0 };
            match peer {
                None => {
                    *told = Some(now);
                    add(here.entry(part.form.id()).or_default(), &part.form, held);
                }
                Some(peer) => {
                    *told = None;
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
    pub(super) fn told(&self, peer: u32, states: &States, now: Nanos) {
        let mut running = self.0.lock();
        for held in &states.held {
            if let Some(run) =
                running.held.get_mut(&held.slot.number).filter(|run| run.spots.last() == Some(&Spot::There(peer)))
            {
                run.told = Some(now);
            }
        }
    }
}

/// Adds `held`, of a limit with this form, to the last of `all`, or to a new one.
fn add(all: &mut Vec<States>, form: &Form, held: Held) {
    match all.last_mut().filter(|states| states.held.len() < MOST_AT_ONCE) {
        Some(states) => states.held.push(held),
        None => all.push(States {
            limit: (**form.limit()).clone(),
            rules: vec![form.parameters().clone()],
            count: 0,
            cells: Vec::new(),
            held: vec![held],
        }),
    }
}
