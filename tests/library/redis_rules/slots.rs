//! Expired slots, lost scripts, and the contents of keys.

use tollgate::charge::Enforcement;
use tollgate::store::redis::{Bucket, Call, CallArgument, ScriptReply, SharedRule};
use tollgate::store::redis::{Clock, encode, key_name};
use tollgate::units::{LimitKey, Nanos};

use crate::algorithms::limit::Limit;
use crate::redis_link::server::Server;
use crate::redis_rules::script::{Scripted, read};

pub(super) const START: Nanos = Nanos::from_secs(1_767_225_600);

pub(super) fn shared(limit: &str) -> SharedRule {
    SharedRule::new(limit.parse::<Limit>().unwrap().build().unwrap(), Nanos::from_secs(10)).unwrap()
}

pub(super) fn bucket<'a>(rule: &'a SharedRule, cost: u64, call_argument: CallArgument<'a>) -> Bucket<'a> {
    Bucket {
        limit: "l",
        rule,
        key: LimitKey(1),
        tag: LimitKey(1),
        cost,
        enforcement: Enforcement::DEFAULT,
        call_argument,
    }
}

pub(super) fn call(redis: &mut Scripted, call: Call, at: Nanos, bucket: &Bucket<'_>) -> ScriptReply {
    let buckets = std::slice::from_ref(bucket);
    let reply = redis.call(&encode(call, Clock::Given(at), "t", buckets).unwrap());
    read(&reply, buckets).unwrap()
}

pub(super) fn after(seconds: u64) -> Nanos {
    START.saturating_add(Nanos::from_secs(seconds))
}

#[test]
fn slots_of_a_dead_gateway_come_back_and_renewed_slots_stay() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let rule = shared("concurrency limit=3");
    let slot = |name, cost| bucket(&rule, cost, CallArgument::Slot(name));
    let mut granted = |what, seconds, slot: &Bucket<'_>| call(&mut redis, what, after(seconds), slot).granted;
    assert_eq!(granted(Call::Charge, 0, &slot("a", 2)), 1);
    assert_eq!(granted(Call::Charge, 1, &slot("b", 1)), 1);
    assert_eq!(granted(Call::Charge, 2, &slot("c", 1)), 0);
    granted(Call::Renew, 8, &slot("b", 1));
    // slot a has expired, slot b has not
    assert_eq!(granted(Call::Charge, 10, &slot("c", 2)), 1);
    assert_eq!(granted(Call::Charge, 10, &slot("d", 1)), 0);
    // the slot of a request that ends after the expiry is not freed a second time
    granted(Call::Complete, 11, &slot("a", 2));
    assert_eq!(granted(Call::Charge, 11, &slot("d", 1)), 0);
    // a renewal takes an expired slot again, even beyond the limit
    granted(Call::Renew, 11, &slot("a", 2));
    granted(Call::Complete, 12, &slot("c", 2));
    assert_eq!(granted(Call::Charge, 12, &slot("d", 1)), 0);
    granted(Call::Complete, 12, &slot("a", 2));
    assert_eq!(granted(Call::Charge, 12, &slot("d", 1)), 1);
    // a repeated call takes one slot
    assert_eq!(granted(Call::Charge, 12, &slot("d", 1)), 1);
    assert_eq!(granted(Call::Charge, 12, &slot("e", 1)), 1);
    assert_eq!(granted(Call::Charge, 12, &slot("f", 1)), 0);
    // all slots at once
    assert_eq!(granted(Call::Partial(9), 60, &slot("g", 1)), 3);
    granted(Call::Complete, 60, &slot("g/2", 1));
    assert_eq!(granted(Call::Partial(9), 60, &slot("h", 1)), 1);
}

#[test]
fn requests_charged_in_one_call_leave_what_they_leave_in_calls_of_their_own() {
    const TIMES: u64 = 9;
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let beside = shared("gcra rate=1/h burst=5");
    for limit in [
        "gcra rate=1/h burst=3",
        "leaky_queue rate=1/h capacity=3",
        "fixed_window limit=3 window=1h",
        "sliding_window limit=3 window=1h",
        "quota_linear limit=3 window=1h",
        "sliding_log limit=3 window=1h",
        "sliding_counters limit=3 window=1h slots=4",
        "cycle limit=3 period=1h",
    ] {
        let rule = shared(limit);
        for (enforces, counts_denied, is_alone) in (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0)) {
            let enforcement = Enforcement { enforces, consumes: true, counts_denied };
            let one = Bucket { enforcement, ..bucket(&rule, 1, CallArgument::Nothing) };
            let other = Bucket { limit: "beside", ..bucket(&beside, 1, CallArgument::Nothing) };
            let buckets = [one, other];
            let buckets = if is_alone { &buckets[..1] } else { &buckets };
            let mut left_after = |what, calls| -> Vec<_> {
                redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
                let encoded = encode(what, Clock::Given(START), "t", buckets).unwrap();
                (0..calls).for_each(|_| drop(redis.call(&encoded)));
                let asks = buckets.iter().map(|one| Bucket { enforcement: Enforcement::DRY_RUN, ..one.clone() });
                asks.map(|asks| call(&mut redis, Call::Charge, START, &asks).seen()).collect()
            };
            let one_by_one = left_after(Call::Charge, TIMES);
            let together = left_after(Call::Partial(TIMES), 1);
            assert_eq!(together, one_by_one, "{limit} {enforcement:?}, alone: {is_alone}");
        }
    }
}

#[test]
fn a_script_that_redis_has_lost_is_loaded_again() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let rule = shared("gcra rate=1/s burst=2");
    let bucket = bucket(&rule, 1, CallArgument::Nothing);
    assert_eq!(call(&mut redis, Call::Charge, START, &bucket).granted, 1);
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut redis.connection).unwrap();
    assert_eq!(call(&mut redis, Call::Charge, START, &bucket).granted, 1);
    assert_eq!(call(&mut redis, Call::Charge, START, &bucket).granted, 0);
}

#[test]
fn a_denial_writes_nothing_and_no_key_stays_for_good() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    for (limit, argument) in [
        ("gcra rate=1/s burst=2", CallArgument::Nothing),
        ("fixed_window limit=2 window=1h", CallArgument::Nothing),
        ("quota_reset limit=2 window=1h", CallArgument::Nothing),
        ("quota_linear limit=2 window=1h", CallArgument::Nothing),
        ("sliding_log limit=2 window=1h", CallArgument::Nothing),
        ("sliding_counters limit=2 window=1h", CallArgument::Nothing),
        ("sliding_window limit=2 window=1h", CallArgument::Nothing),
        ("exponential limit=2 period=1h", CallArgument::Nothing),
        ("smooth_bursty rate=1/h", CallArgument::Nothing),
        ("smooth_warming_up rate=1/h warm_up=1h", CallArgument::Nothing),
        ("cycle limit=2 period=1h", CallArgument::Nothing),
        ("concurrency limit=2", CallArgument::Slot("a")),
    ] {
        let rule = shared(limit);
        let bucket = bucket(&rule, 2, argument);
        let key = key_name("t", &bucket);
        // with Redis's own clock
        let mut charge = |bucket: &Bucket<'_>| {
            let buckets = std::slice::from_ref(bucket);
            let clock = Clock::Redis { near: START };
            let reply = redis.call(&encode(Call::Charge, clock, "t", buckets).unwrap());
            let granted = read(&reply, buckets).unwrap().granted;
            let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut redis.connection).unwrap();
            let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut redis.connection).unwrap();
            (granted, dump, left)
        };
        let (granted, before, left) = charge(&bucket);
        assert_eq!(granted, 1, "{limit}");
        assert!(left > 1_000, "{limit}: {left}");
        let denied = Bucket {
            call_argument: if rule.rule().holds_slots() { CallArgument::Slot("b") } else { CallArgument::Nothing },
            ..bucket
        };
        let (granted, after, left_after) = charge(&denied);
        assert_eq!((granted, after), (0, before), "{limit}");
        assert!(left_after <= left, "{limit}");
        redis::cmd("DEL").arg(&key).exec(&mut redis.connection).unwrap();
    }
}

#[test]
fn a_question_writes_nothing_even_where_it_asks_about_a_state_of_other_parameters() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    for [asked, charged] in [
        ["gcra rate=1/1s burst=5", "gcra rate=10/3600s burst=10"],
        ["cycle limit=5 period=5s", "cycle limit=10 period=3600s"],
        ["exponential limit=5 period=5s", "exponential limit=10 period=3600s"],
        ["sliding_window limit=5 window=2s", "sliding_window limit=10 window=3600s"],
    ] {
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        let [asked, charged] = [shared(asked), shared(charged)];
        assert_eq!(call(&mut redis, Call::Charge, START, &bucket(&charged, 10, CallArgument::Nothing)).granted, 1);
        let key = key_name("t", &bucket(&charged, 1, CallArgument::Nothing));
        let before = kept(&mut redis, &key);
        for cost in [0, 1] {
            let enforcement = Enforcement { consumes: false, ..Enforcement::DEFAULT };
            let question = Bucket { enforcement, ..bucket(&asked, cost, CallArgument::Nothing) };
            call(&mut redis, Call::Charge, after(1), &question);
            assert_eq!(kept(&mut redis, &key), before, "{} at {cost}", asked.parameters());
        }
    }
}

/// What Redis has at a key, and when it expires.
fn kept(redis: &mut Scripted, key: &str) -> (Vec<u8>, i64) {
    let content = redis::cmd("DUMP").arg(key).query(&mut redis.connection).unwrap();
    (content, redis::cmd("PEXPIRETIME").arg(key).query(&mut redis.connection).unwrap())
}
