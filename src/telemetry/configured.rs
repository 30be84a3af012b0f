//! The configured values of limits, as metrics to compare the traffic with.

use prometheus::{GaugeVec, IntGaugeVec, Registry};

use crate::charge::{Consistency, Mode, Sharing};
use crate::ruleset::Ruleset;
use crate::ruleset::limit::PlanTerms;
use crate::telemetry::meters::{each_plan, plan_name};
use crate::telemetry::{gauge, names, opts, registered};

/// The metrics of the ruleset in force.
#[derive(Clone, Debug)]
pub(super) struct ConfiguredLimitMetrics {
    rate: GaugeVec,
    burst: IntGaugeVec,
    mode: IntGaugeVec,
}

impl ConfiguredLimitMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            rate: registered(registry, GaugeVec::new(opts(&names::LIMIT_RATE), names::LIMIT_RATE.labels)?)?,
            burst: gauge(registry, &names::LIMIT_BURST)?,
            mode: gauge(registry, &names::LIMIT_MODE)?,
        })
    }

    /// Sets the metrics to `ruleset` alone. Candidates are left out: their own metric shows their decisions.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub(super) fn set(&self, ruleset: &Ruleset) {
        self.rate.reset();
        self.burst.reset();
        self.mode.reset();
        for limit in ruleset.limits.iter().filter(|limit| limit.candidate_of.is_none()) {
            self.mode.with_label_values(&[limit.name.as_str(), word(limit.mode)]).set(1);
            for plan in each_plan(ruleset) {
                let PlanTerms::Rule(rule) = limit.terms(plan) else { continue };
                let Some(policy) = limit.rules.get(rule).map(|rule| rule.policy()) else { continue };
                let labels = [limit.name.as_str(), plan_name(&ruleset.plans, plan)];
                self.burst.with_label_values(&labels).set(i64::try_from(policy.quota).unwrap_or(i64::MAX));
                if let Some(window) = policy.window {
                    self.rate.with_label_values(&labels).set(policy.quota as f64 / window.as_secs_f64());
                }
            }
        }
    }
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Sticky => "sticky",
        Mode::Shared(Sharing { consistency, .. }) => match consistency {
            Consistency::Exact => "exact",
            Consistency::Leased { .. } => "leased",
            Consistency::Eventual => "eventual",
        },
    }
}
