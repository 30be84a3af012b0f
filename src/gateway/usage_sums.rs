//! Sums the usage of customers for usage events: tokens and requests of each customer, limit and plan.
//!
//! An ended request adds its real cost to sums that only its worker writes. The task that makes the events takes the sums of
//! all workers every few seconds.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::ruleset::{LimitId, PlanId, UsageEvents};
use crate::stripes::Striped;
use crate::units::Cost;

/// The number of customers at which a worker's sums are taken at once, and the maximum number until they are taken.
const TAKE_THRESHOLD: usize = 1 << 13;
const MAX_CUSTOMERS: usize = 1 << 15;

/// The usage of a customer under one limit and plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageSum {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The name of the plan, if the customer had one.
    pub plan: Option<Arc<str>>,
    /// The cost of its requests, in tokens.
    pub tokens: u64,
    /// The number of ended requests.
    pub requests: u64,
}

/// The sums of customers, by their names.
#[derive(Debug, Default)]
pub struct CustomerSums(HashMap<Arc<str>, SmallVec<[UsageSum; 2]>>);

/// The sums of all workers.
#[derive(Default)]
pub struct UsageSums {
    stripes: Striped<Mutex<CustomerSums>>,
    /// Notified when a worker has sums of many customers.
    threshold_reached: Notify,
    lost: AtomicUsize,
}

// === impl CustomerSums ===

impl CustomerSums {
    /// One sum of one customer.
    pub fn of(customer: Arc<str>, sum: UsageSum) -> Self {
        Self(HashMap::from([(customer, smallvec::smallvec![sum])]))
    }

    /// The number of customers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no customers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each customer with its sums, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &UsageSum)> {
        self.0.iter().flat_map(|(customer, sums)| sums.iter().map(move |sum| (customer, sum)))
    }

    /// Adds the usage of `customer`. Returns whether there was room for it: there are at most `max_customers` customers.
    fn add(&mut self, customer: &Arc<str>, used: &UsageDelta<'_>, max_customers: usize) -> bool {
        if let Some(sums) = self.0.get_mut(customer) {
            used.add_to(sums);
            return true;
        }
        let has_room = self.0.len() < max_customers;
        if has_room {
            used.add_to(self.0.entry(Arc::clone(customer)).or_default());
        }
        has_room
    }

    /// Adds `others`. Returns the number of their sums that found no room: there are at most `max_customers` customers.
    pub fn merge(&mut self, others: Self, max_customers: usize) -> usize {
        let mut lost: usize = 0;
        for (customer, sums) in others.0 {
            for sum in &sums {
                let has_room = self.add(&customer, &UsageDelta::from(sum), max_customers);
                lost = lost.saturating_add(usize::from(!has_room));
            }
        }
        lost
    }
}

/// The usage that is added to a sum.
struct UsageDelta<'a> {
    limit: &'a Arc<str>,
    plan: Option<&'a Arc<str>>,
    tokens: u64,
    requests: u64,
}

impl<'a> From<&'a UsageSum> for UsageDelta<'a> {
    fn from(UsageSum { limit, plan, tokens, requests }: &'a UsageSum) -> Self {
        Self { limit, plan: plan.as_ref(), tokens: *tokens, requests: *requests }
    }
}

impl UsageDelta<'_> {
    /// Clones the names for a new sum only: other workers write their reference counts, too.
    fn add_to(&self, sums: &mut SmallVec<[UsageSum; 2]>) {
        let is_same = |sum: &&mut UsageSum| sum.limit == *self.limit && sum.plan.as_ref() == self.plan;
        match sums.iter_mut().find(is_same) {
            Some(sum) => {
                sum.tokens = sum.tokens.saturating_add(self.tokens);
                sum.requests = sum.requests.saturating_add(self.requests);
            }
            None => sums.push(UsageSum {
                limit: Arc::clone(self.limit),
                plan: self.plan.cloned(),
                tokens: self.tokens,
                requests: self.requests,
            }),
        }
    }
}

// === impl UsageSums ===

impl UsageSums {
    /// Takes the sums of each worker since the last call.
    pub fn take(&self) -> Vec<CustomerSums> {
        self.stripes.iter().map(|stripe| mem::take(&mut *stripe.lock())).collect()
    }

    /// The number of sums that were lost since the last call because a worker had too many customers.
    pub fn take_lost(&self) -> usize {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Waits until a worker has so many customers that its sums should be taken.
    pub async fn wait_for_threshold(&self) {
        self.threshold_reached.notified().await;
    }

    /// Adds the cost of a request of `customer` under `plan`, for each limit.
    pub(super) fn add(
        &self,
        events: &UsageEvents,
        (customer, plan): (&Arc<str>, Option<PlanId>),
        costs: impl Iterator<Item = (LimitId, Cost)>,
    ) {
        let Some(stripe) = self.stripes.mine() else { return };
        let plan = plan.and_then(|plan| events.plans.get(plan.0));
        let mut sums = stripe.lock();
        for (limit, tokens) in costs {
            let Some(Some(limit)) = events.limits.get(limit.0) else { continue };
            if !sums.add(customer, &UsageDelta { limit, plan, tokens, requests: 1 }, MAX_CUSTOMERS) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        if sums.len() >= TAKE_THRESHOLD {
            self.threshold_reached.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::UpstreamId;

    fn used(limit: &str, plan: Option<&str>, tokens: u64) -> UsageSum {
        UsageSum { limit: limit.into(), plan: plan.map(Arc::from), tokens, requests: 1 }
    }

    fn sums(all: &[(&str, UsageSum)]) -> CustomerSums {
        let mut sums = CustomerSums::default();
        for (customer, used) in all {
            assert!(sums.add(&(*customer).into(), &used.into(), MAX_CUSTOMERS));
        }
        sums
    }

    #[test]
    fn sums_of_a_customer_are_kept_apart_by_limit_and_plan() {
        let free = used("a", Some("free"), 2);
        let mut sums = sums(&[("acme", free.clone()), ("acme", used("a", None, 3)), ("acme", free.clone())]);
        assert_eq!(sums.merge(self::sums(&[("acme", used("b", None, 7)), ("acme", free)]), 1), 0);
        let mut told: Vec<_> = sums.iter().map(|(_, sum)| (&*sum.limit, sum.tokens, sum.requests)).collect();
        told.sort_unstable();
        assert_eq!((sums.len(), told), (1, vec![("a", 3, 1), ("a", 6, 3), ("b", 7, 1)]));
    }

    #[test]
    fn sums_of_customers_beyond_the_bound_are_counted_as_lost() {
        let mut sums = sums(&[("acme", used("a", None, 1))]);
        let others = self::sums(&[("acme", used("a", None, 1)), ("b", used("a", None, 1)), ("c", used("a", None, 1))]);
        assert_eq!((sums.merge(others, 2), sums.len()), (1, 2));
        assert_eq!(sums.iter().map(|(_, sum)| sum.tokens).sum::<u64>(), 3);
    }

    #[test]
    fn a_worker_with_many_customers_asks_to_have_them_taken_and_loses_those_beyond_the_bound() {
        let all = UsageSums::default();
        let limits = vec![None, Some("a".into())];
        let events = UsageEvents { upstream: UpstreamId(0), path: String::new(), limits, plans: vec!["free".into()] };
        for customer in 0..=MAX_CUSTOMERS {
            let costs = [(LimitId(0), 7), (LimitId(1), 2), (LimitId(2), 7)];
            all.add(&events, (&customer.to_string().into(), Some(PlanId(0))), costs.into_iter());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(all.wait_for_threshold());
        assert_eq!((all.take_lost(), all.take_lost()), (1, 0));
        let taken = all.take();
        let free = used("a", Some("free"), 2);
        assert!(taken.iter().flat_map(CustomerSums::iter).all(|(_, sum)| *sum == free));
        assert_eq!(taken.iter().map(CustomerSums::len).sum::<usize>(), MAX_CUSTOMERS);
        assert!(all.take().iter().all(CustomerSums::is_empty));
    }
}
