//! Two plans that use one key in turn, one with a multiple of the other's tokens.

use tollgate::algorithm::{Decision, Rule};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{LimitKey, Nanos};

use super::bounds::{arrivals, within};
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Admitted, Law, Step, Walk};

pub(super) const WHAT: &str = "two plans together admit no more than the bound of the larger one";

pub(super) fn watch(limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    let larger = limit.times(3);
    let rules = [rule.clone(), larger.build().unwrap_or_else(|_| rule.clone())];
    let store = LocalStore::for_one_thread();
    let binding = store.bind(&[LimitSpec {
        name: "l",
        algorithm: limit.algorithm,
        mode: Mode::Sticky,
        key_kind: 0,
        is_reset: false,
        rules: &rules,
        max_keys: 1,
        may_refund: false,
    }]);
    (!rule.holds_slots())
        .then(|| -> Box<dyn Law> { Box::new(TwoPlans { larger, store, binding, requests: 0, admitted: Vec::new() }) })
}

struct TwoPlans {
    larger: Limit,
    store: LocalStore,
    binding: Binding,
    requests: usize,
    admitted: Vec<Admitted>,
}

impl Law for TwoPlans {
    fn before(&mut self, _walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let Step::Ask { at, cost } = step else { return Ok(()) };
        let charge = Charge::new(0, RuleRef::Listed(self.requests % 2), LimitKey(1), cost, Enforcement::DEFAULT);
        self.requests += 1;
        let charged = self.store.charge(&self.binding, &mut [charge], Nanos::new(at));
        if let (Decision::Admit { wait }, 1..) = (charged[0].decision, cost) {
            self.admitted.push(Admitted { at, cost, wait: wait.get() });
        }
        Ok(())
    }

    fn end(&mut self, _walk: &Walk<'_>) -> Result<(), String> {
        let bound = arrivals(&self.larger);
        within(&self.admitted, "arrive", |first, last, most| bound(first.at, last.at, most))
    }
}
