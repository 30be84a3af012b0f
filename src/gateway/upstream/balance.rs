//! Chooses among the usable instances of an upstream. Pure: randomness and the memory of past turns are passed in.

use std::hash::Hasher;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::RngExt;
use siphasher::sip::SipHasher13;

use crate::units::LimitKey;

/// An instance that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// Its address.
    pub(super) name: &'a str,
    /// Its share, at least 1.
    pub(super) weight: u64,
    /// The requests it is working on.
    pub(super) in_flight: u64,
    /// Its current weight in smooth weighted round robin.
    pub(super) current_weight: &'a AtomicI64,
}

/// Smooth weighted round robin: every candidate gains its weight each turn; the one with the most is chosen, and loses the
/// weights of all candidates. Returns a position in `candidates`, as the other functions do.
///
/// Turns under the same weights never leave the bounds to which current weights are cut here; those under larger weights,
/// before a change, would otherwise give one candidate many turns in a row.
pub(super) fn round_robin(candidates: &[Candidate<'_>]) -> Option<usize> {
    let weight = |candidate: &Candidate<'_>| i64::try_from(candidate.weight).unwrap_or(i64::MAX);
    let total = candidates.iter().map(weight).fold(0, i64::saturating_add);
    let max = i64::try_from(candidates.len()).unwrap_or(i64::MAX).saturating_mul(total);
    for candidate in candidates {
        let current = candidate.current_weight.load(Ordering::Relaxed).clamp(-total, max);
        candidate.current_weight.store(current.saturating_add(weight(candidate)), Ordering::Relaxed);
    }
    let current = |(_, candidate): &(usize, &Candidate<'_>)| candidate.current_weight.load(Ordering::Relaxed);
    let (position, chosen) = candidates.iter().enumerate().rev().max_by_key(current)?;
    chosen.current_weight.store(chosen.current_weight.load(Ordering::Relaxed).saturating_sub(total), Ordering::Relaxed);
    Some(position)
}

/// A random candidate, by weight.
pub(super) fn random(candidates: &[Candidate<'_>], random: &mut impl RngExt) -> Option<usize> {
    let total: u64 = candidates.iter().map(|candidate| candidate.weight).sum();
    if total == 0 {
        return None;
    }
    let mut ticket = random.random_range(0..total);
    candidates.iter().position(|candidate| match ticket.checked_sub(candidate.weight) {
        Some(rest) => {
            ticket = rest;
            false
        }
        None => true,
    })
}

/// The candidate with the fewest requests for its weight, counting this request; a random one among equals.
pub(super) fn least_requests(candidates: &[Candidate<'_>], random: &mut impl RngExt) -> Option<usize> {
    let load = |candidate: &Candidate<'_>| {
        let work = u128::from(candidate.in_flight) + 1;
        (work << 32) / u128::from(candidate.weight.max(1))
    };
    let least = candidates.iter().map(load).min()?;
    let equals = candidates.iter().enumerate().filter(|(_, candidate)| load(candidate) == least);
    let equals: Vec<usize> = equals.map(|(position, _)| position).collect();
    equals.get(random.random_range(0..equals.len())).copied()
}

/// Weighted rendezvous hashing (Thaler and Ravishankar 1998; logarithmic weights): every candidate draws a number from the
/// hash and its own name, and the highest one wins. If a candidate is removed, only its own hashes move.
#[expect(clippy::cast_precision_loss, reason = "a draw needs no more than 53 bits")]
pub(super) fn rendezvous(candidates: &[Candidate<'_>], hash: LimitKey) -> Option<usize> {
    let draw = |candidate: &Candidate<'_>| {
        let mut hasher = SipHasher13::new();
        hasher.write_u128(hash.0);
        hasher.write(candidate.name.as_bytes());
        let uniform = ((hasher.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -(candidate.weight.max(1) as f64) / uniform.ln()
    };
    let best = candidates.iter().map(draw).enumerate();
    best.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const NAMES: [&str; 4] = ["a:1", "b:1", "c:1", "d:1"];

    fn candidates(weights: &[u64]) -> Vec<Candidate<'static>> {
        let named = weights.iter().zip(NAMES);
        let candidate = |(weight, name): (&u64, _)| Candidate {
            name,
            weight: *weight,
            in_flight: 0,
            current_weight: Box::leak(Box::default()),
        };
        named.map(candidate).collect()
    }

    fn counts(nodes: impl Iterator<Item = usize>) -> [usize; 4] {
        nodes.fold([0; 4], |mut counts, node| {
            counts[node] += 1;
            counts
        })
    }

    #[test]
    fn round_robin_follows_the_weights_and_does_not_bunch() {
        let candidates = candidates(&[1, 2, 1]);
        let chosen: Vec<usize> = (0..8).filter_map(|_| round_robin(&candidates)).collect();
        assert_eq!(chosen, [1, 0, 2, 1, 1, 0, 2, 1]);
    }

    #[test]
    fn random_and_rendezvous_follow_the_weights() {
        let mut rng = StdRng::seed_from_u64(1);
        let nodes = candidates(&[1000, 3000]);
        let drawn = counts((0..10_000).filter_map(|_| random(&nodes, &mut rng)));
        assert!((2300..2700).contains(&drawn[0]), "{drawn:?}");
        let hashed = counts((0..10_000_u128).filter_map(|hash| rendezvous(&nodes, LimitKey(hash))));
        assert!((2300..2700).contains(&hashed[0]), "{hashed:?}");
    }

    #[test]
    fn when_a_node_goes_only_its_own_values_move() {
        let all = candidates(&[1, 1, 1, 1]);
        let without: Vec<Candidate<'static>> =
            all.iter().copied().filter(|candidate| candidate.name != NAMES[2]).collect();
        let name = |among: &[Candidate<'static>], hash| among[rendezvous(among, hash).unwrap()].name;
        for hash in (0..1000).map(LimitKey) {
            let before = name(&all, hash);
            if before != NAMES[2] {
                assert_eq!(name(&without, hash), before);
            }
        }
    }

    #[test]
    fn least_requests_minds_the_weight() {
        let mut nodes = candidates(&[1000, 3000]);
        nodes[0].in_flight = 1;
        nodes[1].in_flight = 4;
        assert_eq!(least_requests(&nodes, &mut StdRng::seed_from_u64(1)), Some(1));
        nodes[1].in_flight = 6;
        assert_eq!(least_requests(&nodes, &mut StdRng::seed_from_u64(1)), Some(0));
    }

    #[test]
    fn without_candidates_there_is_no_choice() {
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(round_robin(&[]), None);
        assert_eq!(random(&[], &mut rng), None);
        assert_eq!(least_requests(&[], &mut rng), None);
        assert_eq!(rendezvous(&[], LimitKey(1)), None);
    }
}
