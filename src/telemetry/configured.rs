//! The configured values of limits, as metrics to compare the traffic with.

use crate::charge::{Consistency, Mode, Sharing};
use crate::ruleset::Ruleset;
use crate::telemetry::meters::plan_label;
use crate::telemetry::{Samples, names};

impl Samples {
    /// Adds the configured values of the limits in `ruleset`. Candidates are left out: their own metric shows their decisions.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn push_configured(&mut self, ruleset: &Ruleset) {
        for limit in ruleset.limits.iter().filter(|limit| limit.candidate_of.is_none()) {
            self.push_count(&names::LIMIT_MODE, &[&limit.name, word(limit.mode)], true);
            for (plan, rule) in limit.plan_rules() {
                let policy = rule.policy();
                let labels = [limit.name.as_str(), plan_label(ruleset, plan)];
                self.push_count(&names::LIMIT_BURST, &labels, policy.quota);
                if let Some(window) = policy.window {
                    self.push(&names::LIMIT_RATE, &labels, policy.quota as f64 / window.as_secs_f64());
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
