use proptest::prelude::*;

use super::*;

fn rate_of(text: &str) -> Option<(u64, u64)> {
    rate(text).ok().map(|rate| (rate.tokens(), rate.period().get()))
}

fn nanos(text: &str) -> Option<u64> {
    duration(text).ok().map(Nanos::get)
}

#[test]
fn rates_are_exact_ratios() {
    assert_eq!(rate_of("100/s"), Some((100, 1_000_000_000)));
    assert_eq!(rate_of("5000/h"), Some((5_000, 3_600_000_000_000)));
    assert_eq!(rate_of("0.5/s"), Some((5, 10_000_000_000)));
    assert_eq!(rate_of("2.5/s"), Some((25, 10_000_000_000)));
    assert_eq!(rate_of("2.50/s"), rate_of("2.5/s"));
    assert_eq!(rate_of("10/500ms"), Some((10, 500_000_000)));
    assert_eq!(rate_of("7/13s"), Some((7, 13_000_000_000)));
    assert_eq!(rate_of("1/333333333ns"), Some((1, 333_333_333)));
    assert_eq!(rate_of("30/60s"), Some((30, 60_000_000_000)));
    assert_eq!(rate_of("1/1.5s"), Some((1, 1_500_000_000)));
    assert_eq!(rate_of("2000000000/s"), Some((2_000_000_000, 1_000_000_000)));
    assert_eq!(rate_of("1/365d"), Some((1, 31_536_000_000_000_000)));
    assert_eq!(rate_of("9007199254740993/106751d"), None, "finer than a state can hold, and not rounded to fit");
}

#[test]
fn invalid_rates_are_refused() {
    let bad = [
        "", "/", "10", "/s", "10/", "10/s/s", "-1/s", "+1/s", "0/s", "0.0/s", "10/0s", "10/ s", "10 /s", "1e3/s",
        "nan/s", "inf/s", "10/S", "10/sec", "10/week", "1./s", ".5/s", "1/2/3s", "10/s ", "99999999999999999999/s",
        "1/99999999999d", "0.00000000000000000001/s", "١/s",
    ];
    for text in bad {
        assert!(rate(text).is_err(), "{text}");
    }
}

#[test]
fn hints_say_what_was_meant() {
    let hint = |invalid: Option<InvalidValue>| invalid.and_then(|invalid| invalid.hint).unwrap_or_default();
    assert_eq!(hint(rate("10").err()), "did you mean `10/s`?");
    assert_eq!(hint(rate("10r/s").err()), "did you mean `10/s`?");
    assert_eq!(hint(rate("10/min").err()), "did you mean `10/m`?");
    assert_eq!(hint(duration("5").err()), "did you mean `5s`?");
    assert_eq!(hint(duration("5min").err()), "did you mean `5m`?");
    assert_eq!(hint(duration("2week").err()), "a week is `7d`");
    assert_eq!(hint(size("64K").err()), "did you mean `64KiB`?");
    assert_eq!(hint(size("64").err()), "did you mean `64B`?");
    assert_eq!(hint(whole("1_000").err()), "write `1000`");
    assert_eq!(hint(flag("yes").err()), "write `true`");
    assert_eq!(hint(time_zone("Europe/Berln").err()), "did you mean `Europe/Berlin`?");
    assert_eq!(hint(one_in("0.3").err()), "the nearest is `one_in: 3`");
}

#[test]
fn durations_are_whole_nanoseconds() {
    assert_eq!(nanos("0s"), Some(0));
    assert_eq!(nanos("250ms"), Some(250_000_000));
    assert_eq!(nanos("1.5s"), Some(1_500_000_000));
    assert_eq!(nanos("0.000000001s"), Some(1));
    assert_eq!(nanos("3650d"), Some(315_360_000_000_000_000));
    assert_eq!(nanos("213503d"), Some(18_446_659_200_000_000_000));
    for bad in
        ["", "s", "5", "-1s", "0.5ns", "1.0000000001s", "1h30m", "1 s", "213504d", "1e3s", "NaN", "inf", "1.s", "१s"]
    {
        assert!(duration(bad).is_err(), "{bad}");
    }
}

#[test]
fn sizes_are_whole_bytes() {
    assert_eq!(size("64KiB"), Ok(65_536));
    assert_eq!(size("512B"), Ok(512));
    assert_eq!(size("1.5KiB"), Ok(1_536));
    assert_eq!(size("17179869183GiB"), Ok(18_446_744_072_635_809_792));
    for bad in ["", "64", "64KB", "0.3B", "17179869184GiB", "KiB", "-1B"] {
        assert!(size(bad).is_err(), "{bad}");
    }
}

#[test]
fn whole_numbers_are_not_rounded() {
    assert_eq!(whole("0"), Ok(0));
    assert_eq!(whole("9223372036854775808"), Ok(1 << 63));
    assert_eq!(whole("18446744073709551615"), Ok(u64::MAX));
    for bad in ["", "18446744073709551616", "-1", "+1", "1.0", "1e3", "0x10", "ten", "1 000"] {
        assert!(whole(bad).is_err(), "{bad}");
    }
}

#[test]
fn decimals_are_finite_and_not_negative() {
    assert_eq!(decimal("5"), Ok(5.0));
    assert_eq!(decimal("5.5"), Ok(5.5));
    for bad in ["", "-1", ".5", "5.", "1e3", "NaN", ".inf", "inf", &"9".repeat(400)] {
        assert!(decimal(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_share_is_one_in_a_whole_number() {
    assert_eq!(one_in("0.01"), Ok(100));
    assert_eq!(one_in("1"), Ok(1));
    assert_eq!(one_in("0.125"), Ok(8));
    for bad in ["0", "0.3", "1.5", "2", "-0.1", "1%", "0.0000000001"] {
        assert!(one_in(bad).is_err(), "{bad}");
    }
}

#[test]
fn shares_are_exact() {
    let shares =
        [("0", 0), ("100", 1_000_000), ("12.5", 125_000), ("0.0001", 1), ("99.9999", 999_999), ("1.50", 15_000)];
    for (text, millionths) in shares {
        assert_eq!(percent(text), Ok(Share(millionths)), "{text}");
    }
    for bad in ["100.0001", "0.00001", "-1", "", "x", "5 %", "12.5%"] {
        assert!(percent(bad).is_err(), "{bad}");
    }
    for (text, millionths) in [("0", 0), ("1", 1_000_000), ("0.01", 10_000), ("0.000001", 1), ("1.0", 1_000_000)] {
        assert_eq!(fraction(text), Ok(Share(millionths)), "{text}");
    }
    for (bad, message) in
        [("1.000001", "is more than 1"), ("0.0000001", "has more than six decimals"), ("1%", "is not a decimal number")]
    {
        assert_eq!(fraction(bad).unwrap_err().message, message, "{bad}");
    }
    let held = |share: u32| [0, u32::MAX / 2, u32::MAX].map(|roll| Share(share).contains_roll(roll));
    assert_eq!(
        [held(0), held(1), held(500_000), held(1_000_000)].map(|held| held.map(u8::from)),
        [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    );
    assert_eq!(jitter("10%"), Ok(Jitter::Share(Share(100_000))));
    assert_eq!(jitter("1.5s"), Ok(Jitter::Time(Nanos::new(1_500_000_000))));
    for bad in ["0%", "0s", "10", "%", "101%", "ten%"] {
        assert!(jitter(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn rates_survive_being_shown(tokens in 1..=Rate::MAX_TOKENS, period in 1_u64..) {
        let original = Rate::new(tokens, Nanos::new(period)).unwrap();
        prop_assert_eq!(rate(&original.to_string()), Ok(original));
    }

    #[test]
    fn durations_written_are_durations_read(count in 0_u64..213_503, unit in 0_usize..7) {
        let (length, name) = TIME_UNITS[unit];
        prop_assert_eq!(duration(&format!("{count}{name}")), Ok(Nanos::new(count * length)));
    }

    #[test]
    fn durations_survive_being_shown(nanos: u64) {
        prop_assert_eq!(duration(&Nanos::new(nanos).to_exact_string()), Ok(Nanos::new(nanos)));
    }

    #[test]
    fn decimals_in_rates_are_exact(whole in 0_u64..1_000_000, thousandths in 1_u64..1000) {
        let read = rate(&format!("{whole}.{thousandths:03}/s")).unwrap();
        let left = u128::from(read.tokens()) * 1_000 * 1_000_000_000;
        let right = u128::from(whole * 1_000 + thousandths) * u128::from(read.period().get());
        prop_assert_eq!(left, right);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC*|[0-9./a-zA-Zµ +_-]{0,24}|[0-9]{0,30}(\\.[0-9]{0,30})?(/[0-9]*)?[a-zA-Z]{0,3}") {
        drop((rate(&text), duration(&text), size(&text), whole(&text)));
        drop((decimal(&text), one_in(&text), flag(&text), time_zone(&text)));
        drop((percent(&text), fraction(&text), jitter(&text)));
    }
}
