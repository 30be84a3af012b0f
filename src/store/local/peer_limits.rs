//! Limits that other gateways charge here, under the names that they sent; this gateway's configuration may lack them.

use std::sync::atomic::Ordering;

use super::{Binding, BoundLimit, LocalStore};
use crate::algorithm::Rule;
use crate::charge::Charge;
use crate::store::LimitSpec;

impl Binding {
    /// A binding without limits.
    pub const fn empty() -> Self {
        Self { limits: Vec::new() }
    }

    /// Whether a limit of `batch` has started afresh since it was bound.
    pub fn is_stale(&self, batch: &[Charge]) -> bool {
        let tables = batch.iter().filter_map(|charge| Some(&self.limits.get(charge.limit)?.table));
        tables.into_iter().any(|table| table.abandoned.load(Ordering::Relaxed))
    }
}

impl LocalStore {
    /// Adds a limit with one set of parameters, as another gateway described it, and returns its position. Does not
    /// change the settings that this gateway's configuration has for the limit.
    pub fn adopt(&self, binding: &mut Binding, spec: &LimitSpec<'_>, rule: Rule) -> usize {
        let table = self.table(spec);
        let rules = vec![(table.number(&rule), rule)];
        binding.limits.push(BoundLimit { table, rules });
        binding.limits.len().saturating_sub(1)
    }

    /// Binds the limits that have started afresh to their new tables.
    pub fn renew(&self, binding: &mut Binding) {
        for limit in &mut binding.limits {
            if !limit.table.abandoned.load(Ordering::Relaxed) {
                continue;
            }
            let table = self.table(&limit.table.spec());
            let rules = limit.rules.iter().map(|(_, rule)| (table.number(rule), rule.clone())).collect();
            *limit = BoundLimit { table, rules };
        }
    }
}
