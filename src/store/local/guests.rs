//! Limits that other gateways charge here, as they named them: whether this one's configuration has them or not.

use std::sync::atomic::Ordering;

use super::{Binding, BoundLimit, LimitTable, LocalStore};
use crate::algorithm::Rule;
use crate::charge::Charge;
use crate::store::LimitSpec;

impl Binding {
    /// Of no limits yet.
    pub const fn empty() -> Self {
        Self { limits: Vec::new() }
    }

    /// Whether a limit of `batch` has been started afresh since.
    pub fn is_stale(&self, batch: &[Charge]) -> bool {
        let tables = batch.iter().filter_map(|charge| Some(&self.limits.get(charge.limit)?.table));
        tables.into_iter().any(|table| table.abandoned.load(Ordering::Relaxed))
    }
}

impl LocalStore {
    /// Adds a limit with one set of parameters, of which another gateway told, and returns its position. What this one's
    /// configuration says of the limit stays.
    pub fn adopt(&self, binding: &mut Binding, spec: &LimitSpec<'_>, rule: Rule) -> usize {
        let table = self.table(spec);
        let rules = vec![(table.number(&rule), rule)];
        binding.limits.push(BoundLimit { table, rules });
        binding.limits.len().saturating_sub(1)
    }

    /// Takes the limits that have been started afresh for what they are now.
    pub fn renew(&self, binding: &mut Binding) {
        for limit in &mut binding.limits {
            if !limit.table.abandoned.load(Ordering::Relaxed) {
                continue;
            }
            let LimitTable { name, algorithm, key, max_keys, .. } = &*limit.table;
            let max_keys = max_keys.load(Ordering::Relaxed);
            let spec = LimitSpec { max_keys, ..LimitSpec::bare(name, *algorithm, *key) };
            let table = self.table(&spec);
            let rules = limit.rules.iter().map(|(_, rule)| (table.number(rule), rule.clone())).collect();
            *limit = BoundLimit { table, rules };
        }
    }
}
