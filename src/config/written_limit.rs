//! Limits as the configuration writes them: names and arguments, not yet rules.

use crate::algorithm::{AlgorithmName, Arguments, InvalidParameter, Rule};
use crate::charge::Mode;
use crate::ruleset::{PlanId, limit};
use crate::units::{Cost, Nanos};

/// A limit as the configuration writes it, from which a simulation starts.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenLimit {
    /// The name in the configuration.
    pub name: String,
    /// The algorithm of every plan.
    pub algorithm: AlgorithmName,
    /// The mode: where the limit's states are.
    pub mode: Mode,
    /// The limit's own parameters; may be incomplete where plans set the rest.
    pub base: Arguments,
    /// The plans that the limit names, in its order, each with the limit's own parameters and the plan's on top; `None` where the
    /// limit does not apply to the plan.
    pub plans: Vec<(String, Option<Arguments>)>,
    /// `over_limit.delay.max_wait`; part of the arguments too.
    pub max_wait: Option<Nanos>,
    /// `over_limit.delay.max_waiting`.
    pub max_waiting: Option<u64>,
    /// `priority`: the percents of the room that requests of each plan may use.
    pub priority: Vec<u8>,
    /// `charge.denied`: whether denied requests take tokens too.
    pub charges_denied: bool,
}

impl WrittenLimit {
    /// The arguments for `plan`: its own if the limit names the plan, else the limit's; `None` if the plan is unlimited.
    pub fn arguments(&self, plan: Option<&str>) -> Option<&Arguments> {
        let named = self.plans.iter().find(|(name, _)| Some(name.as_str()) == plan);
        match named {
            Some((_, arguments)) => arguments.as_ref(),
            None => Some(&self.base),
        }
    }

    /// The limit's own arguments, and those of all plans that it names.
    pub fn all_arguments(&self) -> impl Iterator<Item = &Arguments> {
        std::iter::once(&self.base).chain(self.plans.iter().filter_map(|(_, arguments)| arguments.as_ref()))
    }

    /// How many tokens requests of `plan`, one of `plans`, have to leave for others under `rule`.
    pub fn floor(&self, rule: &Rule, plan: Option<&str>, plans: &[String]) -> Cost {
        let plan = plans.iter().position(|known| Some(known.as_str()) == plan).map(PlanId);
        limit::floor(rule, &self.priority, plan)
    }

    /// The rule for `plan`; `None` if the plan is unlimited.
    ///
    /// Errors: the limit does not name the plan, and its own parameters are incomplete.
    pub fn rule(&self, plan: Option<&str>) -> Result<Option<Rule>, InvalidParameter> {
        self.arguments(plan).map(|arguments| self.algorithm.build(arguments).map(Rule::canonical)).transpose()
    }
}
