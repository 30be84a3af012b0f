//! From the decisions of all limits of a request to one verdict, and the numbers that clients are told.

use crate::algorithm::{Charge, Charged, Decision, Denial, Headroom, Policy};
use crate::ruleset::Ruleset;
use crate::ruleset::limit::LimitId;
use crate::units::Nanos;

/// What becomes of a request under all its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Admitted or denied.
    pub outcome: Outcome,
    /// Where the request's key stands under each limit, in the order of the route's limits.
    pub standings: Vec<Standing>,
    /// The position in `standings` of the limit that clients are told about where there is room for one only: on a
    /// denial the one that denies for longest, otherwise the one with the least left.
    pub tightest: Option<usize>,
}

/// Admitted or denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every limit admits; the request waits for the longest wait among them.
    Admit {
        /// Zero for at once.
        wait: Nanos,
    },
    /// At least one limit denies, and nothing was charged.
    Deny(Denial),
}

/// Where a key stands under one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Which limit.
    pub limit: LimitId,
    /// What that limit said of the request.
    pub decision: Decision,
    /// What the limit promises.
    pub policy: Policy,
    /// What is left of it.
    pub headroom: Headroom,
}

impl Standing {
    /// The share of the quota in use, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
    pub fn utilization(&self) -> f64 {
        match self.headroom.remaining {
            Some(remaining) => 1.0 - (remaining.min(self.policy.quota) as f64 / self.policy.quota.max(1) as f64),
            None => 0.0,
        }
    }
}

impl Verdict {
    /// A request that no limit applies to.
    pub const UNLIMITED: Self =
        Self { outcome: Outcome::Admit { wait: Nanos::ZERO }, standings: Vec::new(), tightest: None };

    /// Combines what came of `charges`.
    pub fn new(ruleset: &Ruleset, charges: &[Charge], charged: &[Charged]) -> Self {
        let standings: Vec<Standing> = charges
            .iter()
            .zip(charged)
            .map(|(charge, charged)| Standing {
                limit: LimitId(charge.limit),
                decision: charged.decision,
                policy: ruleset.limits[charge.limit].rule(&charge.rule).policy(),
                headroom: charged.headroom,
            })
            .collect();
        let denials = standings.iter().enumerate().filter_map(|(position, standing)| match standing.decision {
            Decision::Deny(denial) => Some((position, denial)),
            Decision::Admit { .. } => None,
        });
        match denials.max_by_key(|(_, denial)| severity(*denial)) {
            Some((position, denial)) => Self { outcome: Outcome::Deny(denial), standings, tightest: Some(position) },
            None => {
                let wait = standings.iter().map(|standing| wait(standing.decision)).max().unwrap_or_default();
                let tightest = (0..standings.len()).min_by_key(|position| {
                    let headroom = standings[*position].headroom;
                    (headroom.remaining.unwrap_or(u64::MAX), std::cmp::Reverse(headroom.until_more))
                });
                Self { outcome: Outcome::Admit { wait }, standings, tightest }
            }
        }
    }

    /// Turns an admission into a denial by the limit at `position` of the standings.
    pub fn deny(&mut self, position: usize, denial: Denial) {
        if let Some(standing) = self.standings.get_mut(position) {
            standing.decision = Decision::Deny(denial);
            self.outcome = Outcome::Deny(denial);
            self.tightest = Some(position);
        }
    }

    /// The limits that denied the request.
    pub fn violated(&self) -> impl Iterator<Item = LimitId> {
        self.standings.iter().filter(|standing| !standing.decision.is_admitted()).map(|standing| standing.limit)
    }
}

/// A denial for good outweighs every denial that ends, and one whose end nobody knows yields to all others.
fn severity(denial: Denial) -> Nanos {
    match denial {
        Denial::Busy => Nanos::ZERO,
        Denial::Later { retry_after } => retry_after,
        Denial::Never { .. } => Nanos::MAX,
    }
}

fn wait(decision: Decision) -> Nanos {
    match decision {
        Decision::Admit { wait } => wait,
        Decision::Deny(_) => Nanos::ZERO,
    }
}
