use super::*;
use crate::algorithm::Value;

const fn at(nanos: u64) -> Nanos {
    Nanos::new(nanos)
}

fn build(limit: u64, window: u64) -> Result<QuotaLinear, InvalidParameter> {
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Whole(limit));
    arguments.set("window", Value::Duration(at(window)));
    QuotaLinear::build(&arguments)
}

/// The state after requests of these costs at these times, all of which must be admitted.
fn after(rule: &QuotaLinear, requests: &[(u64, Cost)]) -> Option<Quota> {
    requests.iter().fold(None, |state, (time, cost)| {
        let (decision, state) = rule.decide(state, *cost, at(*time));
        assert_eq!(decision, Decision::ADMIT);
        state
    })
}

#[test]
fn nothing_passes_after_the_quota_until_the_window_ends_and_then_one_by_one() {
    let rule = build(5, 100).unwrap();
    let spent = after(&rule, &[(0, 1), (10, 2), (30, 2)]);
    assert_eq!(rule.decide(spent, 1, at(30)), (Decision::later(at(70)), spent));
    // the balance is 1 at 100, and grows by 1 in 20
    assert_eq!(rule.decide(spent, 2, at(30)).0, Decision::later(at(90)));
    let state = rule.decide(spent, 1, at(100)).1;
    assert_eq!(rule.decide(state, 1, at(100)).0, Decision::later(at(20)));
    let headroom = rule.headroom(state.as_ref(), at(160));
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(3), at(20), at(40)));
    // the balance is 5 at 180: bursty again
    assert_eq!(spent.map(|state| rule.evictability(&state)), Some(Evictability::Fresh(at(180))));
    assert_eq!(rule.decide(spent, 5, at(180)).1, after(&rule, &[(180, 5)]));
}

#[test]
fn an_unspent_quota_is_whole_when_the_window_ends() {
    let rule = build(5, 100).unwrap();
    let state = after(&rule, &[(7, 4)]);
    assert_eq!(rule.decide(state, 2, at(106)), (Decision::later(at(1)), state));
    assert_eq!(rule.decide(state, 5, at(107)).0, Decision::ADMIT);
    assert_eq!(rule.decide(state, 6, at(107)), (Decision::never(5), state));
}

#[test]
fn a_limit_of_one_stays_bursty() {
    let rule = build(1, 100).unwrap();
    let state = after(&rule, &[(7, 1)]);
    assert_eq!(rule.decide(state, 1, at(8)).0, Decision::later(at(99)));
    assert_eq!(after(&rule, &[(7, 1), (107, 1), (207, 1)]), after(&rule, &[(207, 1)]));
}

#[test]
fn a_refund_undoes_the_charge_as_long_as_nothing_came_of_it() {
    let rule = build(5, 100).unwrap();
    let before = after(&rule, &[(0, 3)]);
    let spent = after(&rule, &[(0, 3), (10, 2)]).unwrap();
    let full_at = at(180);
    assert_eq!(rule.evictability(&spent), Evictability::Fresh(full_at));
    assert_eq!(rule.refund(spent, 2, full_at, at(10)), before);
    // the other three, charged in the same window
    assert_eq!(rule.refund(spent, 3, at(100), at(10)), after(&rule, &[(0, 2)]));
    assert_eq!(rule.refund(spent, 2, full_at, at(100)), None);
    assert_eq!(rule.refund(spent, 2, at(55), at(10)), Some(spent));
    // smooth: a token of 20 ns comes back as far as its 20 ns have not passed yet
    let smooth = after(&rule, &[(0, 5), (100, 1)]).unwrap();
    assert_eq!(rule.headroom(rule.refund(smooth, 1, at(200), at(100)).as_ref(), at(100)).remaining, Some(1));
    assert_eq!(rule.refund(smooth, 1, at(200), at(200)), None);
}

#[test]
fn used_tokens_stay_used_under_another_limit() {
    let old = build(5, 100).unwrap();
    let carry = |limit, window, state: Option<Quota>, now| {
        let new = build(limit, window).unwrap();
        let state = new.migrate_state(&old, state.unwrap(), at(now));
        let headroom = new.headroom(state.as_ref(), at(now));
        (headroom.remaining, headroom.until_full)
    };
    let bursty = after(&old, &[(0, 4)]);
    assert_eq!(carry(9, 100, bursty, 50), (Some(5), at(50)));
    assert_eq!(carry(9, 300, bursty, 50), (Some(5), at(250)));
    assert_eq!(carry(9, 10, bursty, 50), (Some(5), at(50)));
    // the window, of which the quota is not spent, is over at 100
    assert_eq!(carry(3, 100, bursty, 50), (Some(0), at(50)));
    let spent = after(&old, &[(0, 5)]);
    assert_eq!(carry(9, 100, spent, 50), (Some(4), at(50)));
    let short = build(9, 10).unwrap();
    assert!(
        short.keeps_old_parameters(&old, &bursty.unwrap(), 1, at(50))
            && !short.keeps_old_parameters(&old, &spent.unwrap(), 1, at(50))
    );
    let carried = short.migrate_state(&old, spent.unwrap(), at(50));
    let back = Quota::Bursty { start: Packed::new(at(0)), left: Packed::new(0) };
    assert_eq!(old.migrate_state(&short, carried.unwrap(), at(60)), Some(back), "there and back");
    let smooth = after(&old, &[(0, 5), (100, 1)]);
    assert_eq!(carry(9, 100, smooth, 110), (Some(0), at(90)));
    assert_eq!(carry(2, 100, smooth, 150), (Some(1), at(50)));
    assert_eq!(carry(2, 200, smooth, 150), (Some(1), at(100)));
    assert_eq!(carry(1, 100, smooth, 150), (Some(1), at(0)), "is never smooth");
    assert_eq!(carry(1, 100, smooth, 103), (Some(0), at(17)), "waits for the balance to have a token");
    assert_eq!(carry(1, 10, old.debit(smooth, 10, at(100)), 100), (Some(0), at(220)));
    // 5 of 5 used, and 10 owed
    assert_eq!(carry(10, 100, old.debit(smooth, 10, at(100)), 100), (Some(0), at(200)));
}

#[test]
fn a_state_takes_20_bytes() {
    assert_eq!((size_of::<Quota>(), align_of::<Quota>()), (20, 4));
}

#[test]
fn large_limits_work_and_larger_ones_are_refused() {
    let rule = build(1 << 63, 1).unwrap();
    let state = after(&rule, &[(7, 1 << 63)]);
    assert_eq!(rule.decide(state, 1, at(7)).0, Decision::later(at(1)));
    assert!(build((1 << 63) - 1, 1_000_000_000).is_ok());
    let error = build(u64::MAX, u64::MAX - 1).unwrap_err().to_string();
    assert!(error.starts_with("`limit` is more than can be counted exactly over"));
}
