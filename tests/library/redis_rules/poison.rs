//! Keys with data that no script has written: each key heals, and none fails a request.

use tollgate::algorithm::AlgorithmName;
use tollgate::charge::Enforcement;
use tollgate::store::redis::{Bucket, Call, CallArgument, ScriptReply, SharedRule};
use tollgate::store::redis::{Clock, encode, key_name};
use tollgate::units::{LimitKey, Nanos};

use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;
use crate::redis_link::server::Server;
use crate::redis_rules::script::{Scripted, read};

const START: u64 = 1_767_225_600_000_000_000;
const DAY: u64 = 86_400_000_000_000;

const LIMITS: [&str; 15] = [
    "token_bucket rate=1/s burst=3",
    "leaky_bucket rate=7/13s capacity=3",
    "leaky_queue rate=10/s capacity=3",
    "gcra rate=1/s burst=3",
    "fixed_window limit=3 window=60s",
    "fixed_window limit=3 window=day align=calendar",
    "quota_reset limit=3 window=60s",
    "quota_linear limit=3 window=60s",
    "exponential limit=3 period=60s",
    "sliding_log limit=3 window=60s",
    "sliding_window limit=3 window=60s",
    "sliding_counters limit=3 window=60s slots=6",
    "smooth_bursty rate=1/s",
    "cycle limit=3 period=60s",
    "concurrency limit=3",
];

fn nonsense(parameters: &str) -> Vec<Vec<Vec<String>>> {
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let far = "99999999999999999999";
    let long = "9".repeat(40);
    let mut all: Vec<Vec<Vec<String>>> = ["", "nan", "inf", "0x10", ";", ";;", "-1", &"x".repeat(100_000)]
        .iter()
        .map(|text| vec![command(&["SET", text])])
        .collect();
    for state in
        ["", "nan nan nan", "-1 -1 -1", "1 2", "inf 0", "1e999 1 1", "nan 1 1", "0x10 0 0", "m -1", "b 1", "1 2 3 4"]
    {
        all.push(vec![command(&["SET", &format!("{parameters};{state}")])]);
    }
    for state in [
        format!("{far} 0 0"),
        format!("{far} 5"),
        format!("m {long}"),
        format!("s {far}"),
        format!("b {far} 9"),
        format!("1 {far} {far}"),
    ] {
        all.push(vec![command(&["SET", &format!("{parameters};{state}")])]);
    }
    for other in [
        "s 0 0 0 0;1 2 3", "c f 1 0;9 9", "c f 1 x;9 9", "w 0 0;1 1 1", "q 0 0 0 0;s 1", "x l nan 1;1 1 1",
        "y 0 0 0 0;1 1 1",
    ] {
        all.push(vec![command(&["SET", other])]);
    }
    all.push(vec![command(&["RPUSH", "1", "2"])]);
    all.push(vec![command(&["HSET", "a", "1"])]);
    all.push(vec![command(&["SADD", "a", "b"])]);
    all.push(vec![command(&["ZADD", "1", "a"])]);
    all.push(vec![command(&["ZADD", "0", "nan", "0", "~nan"])]);
    all.push(vec![command(&["ZADD", "0", "9999999999999999999:1", "0", "~1"])]);
    all.push(vec![command(&["ZADD", "0", "0000000000000000000:x", "0", "1767225600000000000:1", "0", "~1"])]);
    all.push(vec![command(&["ZADD", "inf", "~7"])]);
    all.push(vec![command(&["ZADD", "1e300", "slot:3", "inf", "~3"])]);
    all.push(vec![command(&["ZADD", "1e300", "slot", "inf", "~3"])]);
    all
}

fn charge(redis: &mut Scripted, rule: &SharedRule, at: u64, slot: u64) -> ScriptReply {
    let slot = format!("s{slot}");
    let call_argument = if rule.rule().holds_slots() { CallArgument::Slot(&slot) } else { CallArgument::Nothing };
    let bucket = Bucket {
        limit: "l",
        rule,
        key: LimitKey(1),
        tag: LimitKey(1),
        cost: 1,
        enforcement: Enforcement::DEFAULT,
        call_argument,
    };
    let buckets = [bucket];
    let reply = redis.call(&encode(Call::Charge, Clock::Given(Nanos::new(at)), "t", &buckets).unwrap());
    let answer = read(&reply, &buckets).unwrap();
    answer.charged(&buckets);
    answer
}

#[test]
fn nonsense_at_a_key_is_counted_and_heals() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    for limit in LIMITS {
        let rule = SharedRule::new(limit.parse::<Limit>().unwrap().build().unwrap(), Nanos::from_secs(10)).unwrap();
        let bucket = Bucket {
            limit: "l",
            rule: &rule,
            key: LimitKey(1),
            tag: LimitKey(1),
            cost: 1,
            enforcement: Enforcement::DEFAULT,
            call_argument: CallArgument::Nothing,
        };
        let key = key_name("t", &bucket);
        let mut healed = 0;
        for poison in nonsense(rule.parameters()) {
            redis::cmd("DEL").arg(&key).exec(&mut redis.connection).unwrap();
            for command in &poison {
                let mut set = redis::cmd(&command[0]);
                set.arg(&key).arg(&command[1..]).exec(&mut redis.connection).unwrap();
            }
            let what = format!("{limit} meets {:.80}", format!("{poison:?}"));
            let first = charge(&mut redis, &rule, START, 0);
            healed += first.healed;
            // when even the longest debt is over, the key works normally again
            let later = START + 2 * DAY;
            let second = charge(&mut redis, &rule, later, 1);
            assert_eq!(second.granted, 1, "{what}");
            assert_eq!(charge(&mut redis, &rule, later, 2).healed, 0, "{what}");
            let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut redis.connection).unwrap();
            assert!(left > 0, "{what}: {left}");
        }
        assert!(healed > 20, "{limit}: {healed} were healed");
    }
}

#[test]
fn values_near_a_state_never_fail_a_request() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let mut random = Random::new(3);
    for limit in LIMITS {
        let rule = SharedRule::new(limit.parse::<Limit>().unwrap().build().unwrap(), Nanos::from_secs(10)).unwrap();
        if matches!(rule.rule().name(), AlgorithmName::SlidingLog | AlgorithmName::SlidingCounters)
            || rule.rule().holds_slots()
        {
            continue;
        }
        let bucket = Bucket {
            limit: "l",
            rule: &rule,
            key: LimitKey(1),
            tag: LimitKey(1),
            cost: 1,
            enforcement: Enforcement::DEFAULT,
            call_argument: CallArgument::Nothing,
        };
        let key = key_name("t", &bucket);
        charge(&mut redis, &rule, START, 0);
        let kept: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut redis.connection).unwrap();
        for slot in 0..300 {
            let mut changed = kept.clone();
            for _ in 0..random.from(1, 3) {
                let at = usize::try_from(random.from(0, changed.len() as u64 - 1)).unwrap();
                match random.from(0, 2) {
                    0 => changed[at] = random.one_of(b"0123456789 ;.e-+xnf\x00\xff"),
                    1 => drop(changed.remove(at)),
                    _ => changed.insert(at, random.one_of(b"0123456789 ;.e-+bsm")),
                }
            }
            redis::cmd("SET").arg(&key).arg(&changed).exec(&mut redis.connection).unwrap();
            charge(&mut redis, &rule, START + slot, slot);
        }
    }
}
