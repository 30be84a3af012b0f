//! The sums of the current interval, and the events of ended intervals that wait for room in the queue.

use ring::digest::{Context, SHA256};
use serde_json::json;

use crate::gateway::usage_sums::{CustomerSums, UsageSum};
use crate::runtime::courier::rfc3339;
use crate::units::Nanos;

/// The maximum number of customers in an interval: with more, it ends early.
pub(super) const MAX_CUSTOMERS: usize = 1 << 16;
/// The length of an event's identifier, in bytes of the hash.
const ID_BYTES: usize = 16;

/// Identifies a process among all that ever send events.
pub(super) type Instance = u128;

/// The usage that is not in the queue yet.
///
/// The process, the number of the interval, the customer, the limit and the plan identify an event. An ended interval never
/// changes, so two events in the queue with the same identifier are equal.
#[derive(Debug)]
pub(super) struct Ledger {
    instance: Instance,
    /// The number of the current interval.
    interval: u64,
    /// The start of the current interval.
    since: Nanos,
    sums: CustomerSums,
    /// The events of ended intervals.
    ended: Vec<Vec<u8>>,
    /// Whether there are changes that are not saved.
    pub(super) is_changed: bool,
}

impl Ledger {
    /// The ledger of a process that starts at `now`.
    pub(super) fn new(instance: Instance, now: Nanos) -> Self {
        Self { instance, interval: 0, since: now, sums: CustomerSums::default(), ended: Vec::new(), is_changed: false }
    }

    pub(super) const fn instance(&self) -> Instance {
        self.instance
    }

    /// Whether the interval has room for the customers of `sums`.
    pub(super) fn has_room_for(&self, sums: &CustomerSums) -> bool {
        self.sums.len().saturating_add(sums.len()) <= MAX_CUSTOMERS
    }

    /// Adds usage. Returns the number of sums for which there was no room.
    pub(super) fn add(&mut self, sums: CustomerSums) -> usize {
        self.is_changed |= !sums.is_empty();
        self.sums.merge(sums, MAX_CUSTOMERS)
    }

    /// The end of the current interval: a whole multiple of `every`.
    pub(super) fn due(&self, every: Nanos) -> Nanos {
        last_end(self.since, every).saturating_add(every)
    }

    /// Whether the interval is over: its end has come, or the wall clock was set back to before its start.
    pub(super) fn is_due(&self, every: Nanos, now: Nanos) -> bool {
        now < self.since || now >= self.due(every)
    }

    /// Ends the interval; if events of the one before still wait, the interval continues instead. The next interval starts
    /// now if the wall clock was set back.
    pub(super) fn end_interval(&mut self, source: &str, every: Nanos, now: Nanos) {
        if !self.ended.is_empty() {
            return;
        }
        let end = Some(last_end(now, every)).filter(|end| *end > self.since).unwrap_or(now.max(self.since));
        self.ended = self.open_events(source, end);
        self.is_changed |= !self.ended.is_empty();
        self.sums = CustomerSums::default();
        (self.interval, self.since) = (self.interval.saturating_add(1), end.min(now));
    }

    /// The events that wait for room in the queue.
    pub(super) fn ended(&self) -> &[Vec<u8>] {
        &self.ended
    }

    /// Removes the first `count` waiting events: they are in the queue.
    pub(super) fn queued(&mut self, count: usize) {
        self.is_changed |= count > 0;
        drop(self.ended.drain(..count.min(self.ended.len())));
    }

    /// All events that would exist if the interval ended at `now`.
    pub(super) fn events(&self, source: &str, now: Nanos) -> Vec<Vec<u8>> {
        let open = self.open_events(source, now.max(self.since));
        self.ended.iter().cloned().chain(open).collect()
    }

    fn open_events(&self, source: &str, end: Nanos) -> Vec<Vec<u8>> {
        self.sums.iter().map(|(customer, sum)| self.event(source, (customer, sum), end)).collect()
    }

    fn event(&self, source: &str, (customer, sum): (&str, &UsageSum), end: Nanos) -> Vec<u8> {
        let mut data = json!({
            "limit": &*sum.limit,
            "tokens": sum.tokens,
            "requests": sum.requests,
            "interval_start": rfc3339(self.since),
            "interval_end": rfc3339(end),
        });
        if let Some(plan) = &sum.plan {
            data["plan"] = json!(&**plan);
        }
        let event = json!({
            "specversion": "1.0",
            "id": self.id(customer, sum),
            "source": source,
            "type": "tollgate.usage",
            "subject": customer,
            // within the interval, so billing assigns the event to the right month or year
            "time": rfc3339(self.since),
            "datacontenttype": "application/json",
            "data": data,
        });
        event.to_string().into_bytes()
    }

    fn id(&self, customer: &str, UsageSum { limit, plan, .. }: &UsageSum) -> String {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.instance.to_le_bytes());
        hash.update(&self.interval.to_le_bytes());
        for part in [Some(customer), Some(&**limit), plan.as_deref()] {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(&length.to_le_bytes());
            hash.update(part.unwrap_or_default().as_bytes());
        }
        let hash = hash.finish();
        hash.as_ref().iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The latest end of an interval that is not after `now`.
fn last_end(now: Nanos, every: Nanos) -> Nanos {
    let every = every.get().max(1);
    Nanos::new((now.get() / every).saturating_mul(every))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const MINUTE: Nanos = Nanos::from_secs(60);

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn used(customer: &str, tokens: u64) -> CustomerSums {
        let sum = UsageSum { limit: "per-month".into(), plan: Some("pro".into()), tokens, requests: 1 };
        CustomerSums::of(customer.into(), sum)
    }

    fn read(events: &[Vec<u8>]) -> Vec<Value> {
        events.iter().map(|event| serde_json::from_slice(event).unwrap()).collect()
    }

    fn ids(events: &[Vec<u8>]) -> Vec<String> {
        read(events).iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn an_interval_becomes_events_that_stay_as_they_are() {
        let mut ledger = Ledger::new(7, at(90));
        assert_eq!(ledger.due(MINUTE), at(120));
        assert_eq!(ledger.add(used("acme", 3)), 0);
        ledger.add(used("acme", 4));
        let open = ledger.events("https://eu", at(100));
        ledger.end_interval("https://eu", MINUTE, at(121));
        assert_eq!(ids(&open), ids(ledger.ended()), "what is saved meanwhile is the same event");
        let expected = json!({
            "specversion": "1.0",
            "id": ids(&open)[0],
            "source": "https://eu",
            "type": "tollgate.usage",
            "subject": "acme",
            "time": "1970-01-01T00:01:30.000Z",
            "datacontenttype": "application/json",
            "data": {
                "limit": "per-month",
                "plan": "pro",
                "tokens": 7,
                "requests": 2,
                "interval_start": "1970-01-01T00:01:30.000Z",
                "interval_end": "1970-01-01T00:02:00.000Z",
            },
        });
        let ended = read(ledger.ended());
        assert_eq!(ended, [expected]);

        // the queue is full: the next interval continues until there is room
        ledger.add(used("acme", 10));
        ledger.end_interval("https://eu", MINUTE, at(180));
        ledger.add(used("acme", 10));
        assert_eq!(read(ledger.ended()), ended);
        ledger.queued(1);
        ledger.end_interval("https://eu", MINUTE, at(250));
        let next = read(ledger.ended());
        assert_ne!(next[0]["id"], ended[0]["id"]);
        let data = &next[0]["data"];
        assert_eq!((&data["tokens"], &data["interval_end"]), (&json!(20), &json!("1970-01-01T00:04:00.000Z")));
        assert_eq!(ledger.due(MINUTE), at(300));
    }

    #[test]
    fn no_two_sums_have_an_identifier_in_common() {
        let mut seen = std::collections::BTreeSet::new();
        for instance in [1, 2] {
            let mut ledger = Ledger::new(instance, at(0));
            for _ in 0..2 {
                for customer in ["a", "b"] {
                    for plan in [None, Some("p"), Some("")] {
                        let sum = UsageSum { limit: "l".into(), plan: plan.map(Into::into), tokens: 1, requests: 1 };
                        ledger.add(CustomerSums::of(customer.into(), sum));
                    }
                }
                ledger.end_interval("s", MINUTE, at(1));
                seen.extend(ids(ledger.ended()));
                ledger.queued(6);
            }
        }
        assert_eq!(seen.len(), 24);
    }

    #[test]
    fn a_clock_that_was_set_back_ends_the_interval_at_its_start_and_the_next_goes_by_the_new_time() {
        let mut ledger = Ledger::new(7, at(600));
        assert!(!ledger.is_due(MINUTE, at(659)) && ledger.is_due(MINUTE, at(660)));
        ledger.add(used("acme", 1));
        assert!(ledger.is_due(MINUTE, at(5)));
        ledger.end_interval("s", MINUTE, at(5));
        let data = &read(ledger.ended())[0]["data"];
        assert_eq!(data["interval_start"], data["interval_end"]);
        assert_eq!((ledger.due(MINUTE), ledger.is_due(MINUTE, at(6))), (MINUTE, false));
    }
}
