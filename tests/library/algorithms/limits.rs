//! Random limits: ordinary ones with awkward ratios, and extreme ones.

use tollgate::algorithm::{AlgorithmName, MAX_WAIT};

use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;

/// The kinds of limits to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Small quotas, and rates without whole nanoseconds per token.
    Ordinary,
    /// The smallest and the largest values of all parameters; the algorithm may refuse them.
    Extreme,
}

const YEAR: u64 = 365 * 86_400_000_000_000;

/// A random limit of this algorithm.
pub(crate) fn random_limit(algorithm: AlgorithmName, domain: Domain, random: &mut Random) -> Limit {
    let limit = Limit::new(algorithm);
    match algorithm.as_str() {
        "token_bucket" => limit.with("rate", rate(domain, random)).with("burst", quota(domain, random)),
        "leaky_bucket" => limit.with("rate", rate(domain, random)).with("capacity", quota(domain, random)),
        "leaky_queue" => {
            let capacity = if random.once_in(6) { 0 } else { quota(domain, random) };
            waiting(limit.with("rate", rate(domain, random)).with("capacity", capacity), domain, random)
        }
        "gcra" => {
            let limit = limit.with("rate", rate(domain, random)).with("burst", quota(domain, random));
            if random.once_in(2) {
                return limit;
            }
            let after = random.one_of(&[0, 0, 1, 2, 5]);
            waiting(limit.with("delay_after", after), domain, random)
        }
        "fixed_window" => fixed_window(limit.with("limit", quota(domain, random)), domain, random),
        "quota_reset" | "quota_linear" | "sliding_window" => {
            limit.with("limit", quota(domain, random)).with_duration("window", window(domain, random))
        }
        "sliding_counters" => {
            let limit = limit.with("limit", quota(domain, random)).with_duration("window", window(domain, random));
            match domain {
                Domain::Ordinary => limit.with("slots", random.one_of(&[1, 2, 3, 4, 6, 7, 10])),
                Domain::Extreme if random.once_in(3) => limit,
                Domain::Extreme => limit.with("slots", random.one_of(&[1, 60, 1_000, 1 << 16, 1 << 40, u64::MAX])),
            }
        }
        "sliding_log" => {
            let length = window(domain, random);
            let mut limit = limit.with("limit", quota(domain, random)).with_duration("window", length);
            if random.once_in(3) {
                limit = limit.with("count_denied", true);
            }
            if random.once_in(3) {
                limit = limit.with_duration("min_gap", random.from(1, length));
            }
            limit
        }
        "exponential" => {
            let policy = random.one_of(&["leaky", "strict"]);
            let limit = match domain {
                Domain::Ordinary => limit.with("limit", random.one_of(&[0.5, 1.0, 1.25, 2.5, 5.0, 5.5, 10.25, 100.5])),
                Domain::Extreme => limit.with("limit", random.one_of(&[1e-9, 1e18, 9.223_372_036_854_776e18, 1.5])),
            };
            limit.with_duration("period", window(domain, random)).with("policy", policy)
        }
        "smooth_bursty" => {
            let limit = limit.with("rate", smooth_rate(domain, random));
            let burst = random.one_of(&["500ms", "1s", "3s", "60s"]);
            waiting(if random.once_in(4) { limit } else { limit.with("max_burst", burst) }, domain, random)
        }
        "smooth_warming_up" => {
            let limit = limit.with("rate", smooth_rate(domain, random));
            let limit = match domain {
                Domain::Ordinary => limit.with("warm_up", random.one_of(&["10s", "4s", "2s", "3s", "100ms"])),
                Domain::Extreme => limit.with_duration("warm_up", window(domain, random)),
            };
            let cold = random.one_of(&["1", "1.5", "3", "10"]);
            waiting(if random.once_in(4) { limit } else { limit.with("cold_factor", cold) }, domain, random)
        }
        "cycle" => {
            let mut limit = limit.with("limit", quota(domain, random)).with_duration("period", window(domain, random));
            if random.once_in(2) {
                limit = limit.with("burst", quota(domain, random));
            }
            waiting(limit, domain, random)
        }
        "concurrency" => limit.with("limit", quota(domain, random)),
        "adaptive_concurrency" => adaptive(limit, domain, random),
        other => panic!("no limits are made for `{other}`: add a line here, an oracle and a bound"),
    }
}

fn rate(domain: Domain, random: &mut Random) -> String {
    const USUAL: [&str; 10] =
        ["3/s", "10/s", "7/13s", "1/333333333ns", "333/s", "2.5/s", "1000/h", "30/60s", "1/1000ns", "1/s"];
    match domain {
        Domain::Ordinary => match random.from(0, 3) {
            0 => random.one_of(&USUAL).to_owned(),
            1 => format!("{}/{}ns", random.from(1, 9), random.from(1, 40)),
            2 => format!("{}/{}ns", random.from(1, 50), random.from(1, 3_000_000_000)),
            _ => format!("{}/{}s", random.from(1, 1000), random.from(1, 60)),
        },
        Domain::Extreme => {
            let tokens = random.one_of(&[1_u64, 2, 2_000_000_000, (1 << 33) - 1, 1 << 33]);
            let period = random.one_of(&[1, 1_000_000_000, 86_400_000_000_000, YEAR, 100 * YEAR]);
            format!("{tokens}/{period}ns")
        }
    }
}

/// Rates that differ for algorithms that count in whole microseconds.
fn smooth_rate(domain: Domain, random: &mut Random) -> String {
    match domain {
        Domain::Ordinary => {
            random.one_of(&["333/s", "10/s", "5/s", "0.5/s", "2.5/s", "100/s", "7/s", "1000/h"]).to_owned()
        }
        Domain::Extreme => rate(domain, random),
    }
}

fn quota(domain: Domain, random: &mut Random) -> u64 {
    match domain {
        Domain::Ordinary if random.once_in(10) => random.one_of(&[100, 1_000, 1_000_000]),
        Domain::Ordinary => random.from(1, 12),
        Domain::Extreme => random.one_of(&[1, 2, 1 << 31, 1 << 32, 1 << 53, 1 << 63, u64::MAX]),
    }
}

fn window(domain: Domain, random: &mut Random) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    match domain {
        Domain::Ordinary => match random.from(0, 3) {
            0 => random.one_of(&[SECOND, 2_500_000_000, 60 * SECOND, 333_333_333, 4 * SECOND]),
            1 => random.from(1, 30),
            2 => random.from(1_000, 10_000_000_000),
            _ => random.from(1, 120) * SECOND,
        },
        Domain::Extreme => random.one_of(&[1, 2, 1_000, SECOND, YEAR, 100 * YEAR, 1 << 62, u64::MAX]),
    }
}

/// The limit with or without a longest wait.
fn waiting(limit: Limit, domain: Domain, random: &mut Random) -> Limit {
    let span = random.one_of(&limit.spans());
    let wait = match (domain, random.from(0, 5)) {
        (_, 0) => return limit,
        (Domain::Ordinary, 1) => 3650 * 86_400_000_000_000,
        (Domain::Ordinary, 2) => 1,
        (Domain::Ordinary, 3) => span,
        (Domain::Ordinary, _) => random.from(0, span.saturating_mul(5)),
        (Domain::Extreme, _) => random.one_of(&[0, 1, 3_650 * 86_400_000_000_000, 100 * YEAR]),
    };
    limit.with_duration(MAX_WAIT, wait)
}

/// A window that is aligned to the epoch, or to the calendar of a time zone whose clocks change at unusual times.
fn fixed_window(limit: Limit, domain: Domain, random: &mut Random) -> Limit {
    const ZONES: [&str; 9] = [
        "UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Asia/Kathmandu",
        "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia",
    ];
    if random.once_in(12) {
        let limit =
            limit.with("window", random.one_of(&["day", "week", "month", "1d", "7d"])).with("align", "calendar");
        return if random.once_in(8) { limit } else { limit.with("timezone", random.one_of(&ZONES)) };
    }
    limit.with_duration("window", window(domain, random))
}

fn adaptive(limit: Limit, domain: Domain, random: &mut Random) -> Limit {
    let (one, two) = (quota(domain, random), quota(domain, random));
    let limit = limit.with("min", one.min(two)).with("max", one.max(two));
    if random.once_in(2) { limit } else { limit.with_duration("target", window(domain, random)) }
}
