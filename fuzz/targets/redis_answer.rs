//! What the script answers, from a Redis that may say anything: read or refused, and what is made of it keeps its bounds.

use tollgate::algorithm::Decision;
use tollgate::charge::Enforcement;
use tollgate::config;
use tollgate::store::redis::{Bucket, CallArgument, Field, ScriptReply, SharedRule};
use tollgate::units::{LimitKey, Nanos};

use super::input::Input;

const LIMITS: &str = "
limits:
  a: { algorithm: token_bucket, rate: 10/s, burst: 20 }
  b: { algorithm: gcra, rate: 7/13s, burst: 5, delay_after: 2, over_limit: { delay: { max_wait: 1s } } }
  c: { algorithm: leaky_queue, rate: 1/333333333ns, capacity: 9, over_limit: { delay: { max_wait: 5s } } }
  d: { algorithm: fixed_window, limit: 10, window: 1m }
  e: { algorithm: fixed_window, limit: 10, window: month, align: calendar, timezone: Europe/Berlin }
  f: { algorithm: quota_reset, limit: 18446744073709551615, window: 1d }
  g: { algorithm: quota_linear, limit: 5, window: 10s }
  h: { algorithm: exponential, limit: 2.5, period: 10s, policy: strict }
  i: { algorithm: exponential, limit: 10, period: 1h, policy: leaky }
  j: { algorithm: sliding_window, limit: 10, window: 13s }
  k: { algorithm: sliding_log, limit: 5, window: 15m, count_denied: true }
  l: { algorithm: sliding_counters, limit: 100, window: 1m }
  m: { algorithm: smooth_bursty, rate: 5/s, max_burst: 1s }
  n: { algorithm: smooth_warming_up, rate: 5/s, warm_up: 4s, over_limit: { delay: { max_wait: 2s } } }
  o: { algorithm: cycle, limit: 10, period: 1s }
  p: { algorithm: concurrency, limit: 3 }
  q: { algorithm: leaky_bucket, rate: 2000000000/s, capacity: 1 }
  r: { algorithm: token_bucket, rate: 1/365d, burst: 1 }
";

thread_local! {
    static RULES: Vec<SharedRule> = {
        let limits = config::load_limits(LIMITS, "limits", &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
        let rules = limits.limits.iter().map(|limit| limit.rule(None).unwrap().unwrap());
        rules.map(|rule| SharedRule::new(rule, Nanos::from_secs(60)).unwrap()).collect()
    };
}

/// A rule of each sort that can be kept in Redis.
pub(crate) fn rules(with: impl FnOnce(&[SharedRule])) {
    RULES.with(|rules| with(rules));
}

const COSTS: [u64; 6] = [1, 0, 5, 20, 1 << 40, u64::MAX];

pub(crate) fn run(data: &[u8]) {
    rules(|rules| {
        let mut input = Input(data);
        let count = 1 + input.byte() % 2;
        let manners = [
            Enforcement::DEFAULT,
            Enforcement { counts_denied: true, ..Enforcement::DEFAULT },
            Enforcement { enforces: false, ..Enforcement::DEFAULT },
        ];
        let buckets: Vec<Bucket<'_>> = (0..count)
            .map(|number| Bucket {
                limit: "l",
                rule: input.one_of(rules),
                key: LimitKey(number.into()),
                tag: LimitKey(0),
                cost: *input.one_of(&COSTS),
                enforcement: *input.one_of(&manners),
                call_argument: CallArgument::Nothing,
            })
            .collect();
        let fields: Vec<Field<'_>> = input
            .0
            .split(|byte| *byte == b'\n')
            .map(|line| match line {
                [b'!', ..] => Field::Other,
                [b':', number @ ..] => str::from_utf8(number)
                    .ok()
                    .and_then(|number| number.parse().ok())
                    .map_or(Field::Other, Field::Integer),
                text => Field::Text(text),
            })
            .collect();
        let Ok(answer) = ScriptReply::parse(&fields, &buckets) else { return };
        assert!(answer.healed <= buckets.len());
        let (charged, seen) = answer.charged(&buckets);
        assert_eq!((charged.len(), seen.len(), answer.seen().len()), (buckets.len(), buckets.len(), buckets.len()));
        for charged in &charged {
            if let Decision::Admit { wait } = charged.decision {
                assert!(wait <= Nanos::MAX);
            }
        }
        assert_eq!(answer.was_fresh().count(), buckets.len());
        let mut each = answer.each(&buckets);
        for charged in each.by_ref().take(3) {
            assert_eq!(charged.len(), buckets.len());
        }
        assert_eq!(each.into_seen().len(), buckets.len());
    });
}
