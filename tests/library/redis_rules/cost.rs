//! The cost of a call to Redis, beside a plain SET.

use std::time::Instant;

use tollgate::charge::Enforcement;
use tollgate::store::redis::{Bucket, Call, CallArgument, SharedRule};
use tollgate::store::redis::{Clock, Encoded, encode};
use tollgate::units::{LimitKey, Nanos};

use crate::algorithms::limit::Limit;
use crate::redis_link::server::Server;
use crate::redis_rules::script::Scripted;

const CALLS: u32 = 100_000;

/// Prints the calls per second, pipelined, and Redis's own time for each.
#[expect(clippy::print_stdout, reason = "a report")]
fn measure(redis: &mut Scripted, what: &str, mut run: impl FnMut(&mut Scripted)) {
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut redis.connection).unwrap();
    let start = Instant::now();
    run(redis);
    let passed = start.elapsed().as_secs_f64();
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connection).unwrap();
    let command = if what.starts_with("SET") { "cmdstat_set:" } else { "cmdstat_evalsha:" };
    let line = stats.lines().find(|line| line.starts_with(command)).unwrap();
    let each = line.split(',').find_map(|part| part.strip_prefix("usec_per_call=")).unwrap();
    println!("{what:<40} {:>9.0} calls/s {each:>8} us each in Redis", f64::from(CALLS) / passed);
}

#[test]
#[ignore = "a measurement: cargo test --test library redis_rules -- --ignored --nocapture cost"]
fn costs_of_calls_are_measured() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    measure(&mut redis, "SET key value PX 10000", |redis| {
        for _ in 0..CALLS / 500 {
            let mut pipe = redis::pipe();
            for key in 0..500 {
                pipe.cmd("SET").arg(format!("k{key}")).arg("1795298463 581283000 0").arg("PX").arg(10_000).ignore();
            }
            pipe.exec(&mut redis.connection).unwrap();
        }
    });
    for (limit, count) in [
        ("gcra rate=1000000/s burst=1000000", 1),
        ("gcra rate=1000000/s burst=1000000", 3),
        ("gcra rate=1/h burst=1", 1),
        ("fixed_window limit=1000000000 window=1h", 1),
        ("quota_reset limit=1000000000 window=1h", 1),
        ("quota_linear limit=1000000000 window=1h", 1),
        ("sliding_window limit=1000000000 window=1h", 1),
        ("sliding_counters limit=1000000000 window=1h", 1),
        ("sliding_log limit=10000 window=1h", 1),
        ("exponential limit=1000000000 period=1h", 1),
        ("smooth_bursty rate=1000000/s", 1),
        ("smooth_warming_up rate=1000000/s warm_up=1s", 1),
        ("cycle limit=1000000000 period=1h", 1),
        ("concurrency limit=1000000000", 1),
    ] {
        let rule = SharedRule::new(limit.parse::<Limit>().unwrap().build().unwrap(), Nanos::SECOND).unwrap();
        let names = ["a", "b", "c"];
        let call = |number: u32| -> Encoded {
            let slot = format!("slot{number}");
            let buckets: Vec<Bucket<'_>> = names[..count]
                .iter()
                .map(|name| Bucket {
                    limit: name,
                    rule: &rule,
                    key: LimitKey(u128::from(number % 500)),
                    tag: LimitKey(1),
                    cost: 1,
                    enforcement: Enforcement::DEFAULT,
                    call_argument: if rule.rule().holds_slots() {
                        CallArgument::Slot(&slot)
                    } else {
                        CallArgument::Nothing
                    },
                })
                .collect();
            let near = Nanos::from_secs(1_767_225_600);
            encode(Call::Charge, Clock::Redis { near }, "t", &buckets).unwrap()
        };
        let calls: Vec<Encoded> = (0..CALLS).map(call).collect();
        measure(&mut redis, &format!("{limit} x{count}"), |redis| drop(redis.call_all(&calls)));
    }
}
