//! The cost of recording a denial: counting it among the offenders, and adding it to the last decisions.

#![allow(missing_docs, reason = "what criterion makes")]

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use tollgate::ruleset::outcome::OutcomeKind;
use tollgate::telemetry::offenders::{LimitedKey, Offenders};
use tollgate::telemetry::recent::{RecentDecision, RecentDecisions};
use tollgate::units::{LimitKey, Nanos};

fn subject() -> LimitedKey {
    LimitedKey { limit: "per-customer".to_owned(), key: vec![("customer".to_owned(), Some("acme".to_owned()))] }
}

fn spread(number: u64) -> LimitKey {
    LimitKey(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn denials(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a denial is counted");
    let now = Nanos::from_secs(6_000);
    for (name, keys) in [("of one key", 1), ("of 500 keys", 500), ("of keys that come once", u64::MAX)] {
        let offenders = Offenders::default();
        let mut number = 0_u64;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                number = number.wrapping_add(1);
                offenders.denied(spread(number % keys), now, subject);
            });
        });
    }
    group.finish();
    let recent = RecentDecisions::default();
    let subject = Arc::new(subject());
    let mut nanos = 0;
    criterion.bench_function("a denial is noted, one each microsecond", |bencher| {
        bencher.iter(|| {
            nanos += 1_000;
            let at = Nanos::new(nanos);
            recent.record(at, || RecentDecision {
                at,
                outcome: OutcomeKind::Denied,
                route: "orders".to_owned(),
                plan: Some("free".to_owned()),
                subject: Arc::clone(&subject),
                wait: Nanos::ZERO,
                retry_after: Some(Nanos::SECOND),
            });
        });
    });
}

criterion_group!(benches, denials);
criterion_main!(benches);
