//! The laws, each checked for every algorithm. A law's name says what a walk under it shows.

mod agreement;
mod bounds;
mod carry;
mod debit;
mod grant;
mod headroom;
mod idle;
mod merge;
mod plans;
mod probes;
mod rebuilt;
mod refund;
mod retry;
mod shift;

use tollgate::algorithm::{AlgorithmName, Rule};

use crate::algorithms::arrivals::Clock;
use crate::algorithms::explore::{Plan, explore};
use crate::algorithms::limit::Limit;
use crate::algorithms::limits::Domain;
use crate::algorithms::walk::{Law, Watch};

/// All laws that hold on any walk, for the regressions.
pub(crate) const ALL: [(&str, Watch); 15] = [
    (agreement::WHAT, agreement::watch),
    (bounds::WHAT, bounds::watch),
    (retry::WHAT, retry::watch),
    (retry::UNMOVED, retry::watch_unmoved),
    (headroom::WHAT, headroom::watch),
    (headroom::GROWTH, headroom::watch_growth),
    (idle::WHAT, idle::watch),
    (refund::WHAT, refund::watch),
    (carry::WHAT, carry::watch),
    (plans::WHAT, plans::watch),
    (debit::WHAT, debit::watch),
    (grant::WHAT, grant::watch),
    (shift::WHAT, shift::watch),
    (merge::WHAT, merge::watch),
    (retry::LARGEST, retry::watch_largest),
];

/// The time (in the year 2116) up to which answers have to be exact.
const HORIZON: u64 = 1 << 62;

fn everywhere(plan: Plan, (what, watch): (&str, Watch)) {
    let broken: Vec<String> =
        AlgorithmName::ALL.iter().filter_map(|algorithm| explore(what, *algorithm, plan, watch).err()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The part of `CASES` for one algorithm, in thousandths, so that all algorithms together make `CASES` comparisons.
const SHARE: u64 = 67;

macro_rules! agreement {
    ($($test:ident $algorithm:literal,)*) => {
        $(#[test]
        fn $test() {
            let algorithm = crate::algorithms::limit::named($algorithm).expect("an algorithm");
            let explored = explore(agreement::WHAT, algorithm, Plan::ordinary(SHARE), agreement::watch);
            explored.unwrap_or_else(|broken| panic!("{broken}"));
        })*

        #[test]
        fn every_algorithm_is_compared_with_its_definition() {
            let compared = [$($algorithm,)* "adaptive_concurrency"];
            assert!(AlgorithmName::ALL.iter().all(|known| compared.contains(&known.as_str())));
        }
    };
}

agreement! {
    token_bucket_decides_as_defined "token_bucket",
    leaky_bucket_decides_as_defined "leaky_bucket",
    leaky_queue_decides_as_defined "leaky_queue",
    gcra_decides_as_defined "gcra",
    fixed_window_decides_as_defined "fixed_window",
    quota_reset_decides_as_defined "quota_reset",
    quota_linear_decides_as_defined "quota_linear",
    exponential_decides_as_defined "exponential",
    sliding_log_decides_as_defined "sliding_log",
    sliding_window_decides_as_defined "sliding_window",
    sliding_counters_decides_as_defined "sliding_counters",
    smooth_bursty_decides_as_defined "smooth_bursty",
    smooth_warming_up_decides_as_defined "smooth_warming_up",
    cycle_decides_as_defined "cycle",
    concurrency_decides_as_defined "concurrency",
}

#[test]
fn extreme_limits_are_refused_or_decide_as_defined() {
    everywhere(
        Plan { domain: Domain::Extreme, clock: Clock::Forward, per_mille: 8 },
        (agreement::WHAT, agreement::watch),
    );
}

#[test]
fn grants_return_used_tokens() {
    everywhere(Plan::ordinary(4), (grant::WHAT, grant::watch));
}

#[test]
fn no_more_is_admitted_than_the_bound_in_any_time() {
    everywhere(Plan::ordinary(8), (bounds::WHAT, bounds::watch));
}

#[test]
fn no_more_is_admitted_than_the_bound_when_the_clock_steps_back() {
    let plan = Plan { domain: Domain::Ordinary, clock: Clock::StepsBack, per_mille: 10 };
    everywhere(plan, (bounds::WHAT, bounds::watch));
}

#[test]
fn a_denied_request_is_denied_until_its_retry_time_and_admitted_at_it() {
    everywhere(Plan::ordinary(8), (retry::WHAT, retry::watch));
}

#[test]
fn denials_and_cost_0_leave_the_state_alone() {
    everywhere(Plan::ordinary(8), (retry::UNMOVED, retry::watch_unmoved));
}

#[test]
fn the_largest_cost_is_the_largest_that_a_key_is_ever_admitted_with() {
    everywhere(Plan::ordinary(3), (retry::LARGEST, retry::watch_largest));
    let plan = Plan { domain: Domain::Extreme, ..Plan::ordinary(3) };
    everywhere(plan, (retry::LARGEST, retry::watch_largest));
}

#[test]
fn remaining_is_the_largest_cost_that_is_admitted_at_once() {
    everywhere(Plan::ordinary(8), (headroom::WHAT, headroom::watch));
}

#[test]
fn remaining_grows_and_is_full_when_headroom_says() {
    everywhere(Plan::ordinary(5), (headroom::GROWTH, headroom::watch_growth));
}

#[test]
fn an_idle_state_decides_as_a_fresh_one() {
    everywhere(Plan::ordinary(4), (idle::WHAT, idle::watch));
}

#[test]
fn a_refunded_charge_was_never_made() {
    everywhere(Plan::ordinary(4), (refund::WHAT, refund::watch));
}

#[test]
fn used_tokens_stay_used_when_a_limit_changes() {
    everywhere(Plan::ordinary(4), (carry::WHAT, carry::watch));
}

#[test]
fn two_plans_together_admit_no_more_than_the_bound_of_the_larger_one() {
    everywhere(Plan::ordinary(4), (plans::WHAT, plans::watch));
}

#[test]
fn debits_count_like_admissions_and_are_refilled_in_time() {
    everywhere(Plan::ordinary(6), (debit::WHAT, debit::watch));
    let plan = Plan { domain: Domain::Extreme, ..Plan::ordinary(3) };
    everywhere(plan, (debit::WHAT, debit::watch));
}

#[test]
fn a_state_decides_on_another_clock_as_on_its_own() {
    everywhere(Plan::ordinary(6), (shift::WHAT, shift::watch));
}

#[test]
fn a_merged_state_is_no_more_generous_than_either() {
    everywhere(Plan::ordinary(3), (merge::WHAT, merge::watch));
}

#[test]
fn a_limit_can_be_built_again_from_its_arguments() {
    for domain in [Domain::Ordinary, Domain::Extreme] {
        everywhere(Plan { domain, ..Plan::ordinary(2) }, (rebuilt::WHAT, rebuilt::watch));
    }
}

#[test]
fn nothing_panics_at_the_extremes_at_any_time() {
    let plan = Plan { domain: Domain::Extreme, clock: Clock::Anything, per_mille: 8 };
    everywhere(plan, ("everything can be asked", watch_everything));
}

/// Calls every function and checks no answer.
fn watch_everything(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(probes::AskEverything))
}
