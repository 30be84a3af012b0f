//! Words of the configuration: exact, or refused.

use tollgate::config::scalar::{self, InvalidValue};
use tollgate::ruleset::tokens::tokens;
use tollgate::ruleset::{Jitter, Share};
use tollgate::units::Nanos;

use super::input::{Input, mixed};

const TIME: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
const SIZE: [(&str, u128); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    let Ok(text) = str::from_utf8(input.0) else { return };
    match kind {
        b'r' => rate(text),
        b'd' => {
            let read = told(scalar::duration(text)).map(Nanos::get);
            quantity(text, &TIME, read);
            if let Some(nanos) = read {
                assert_eq!(scalar::duration(&Nanos::new(nanos).to_exact_string()), Ok(Nanos::new(nanos)));
            }
        }
        b's' => quantity(text, &SIZE, told(scalar::size(text))),
        b'w' => {
            let expected = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
            assert_eq!(told(scalar::whole(text)), expected);
        }
        b'f' => {
            if let Some(number) = told(scalar::decimal(text)) {
                assert!(number >= 0.0 && number.is_finite() && text.parse() == Ok(number));
            }
        }
        b'p' => {
            if let Some(share) = told(scalar::percent(text)) {
                assert!(share <= Share::WHOLE);
                let (number, scale) = decimal(text).unwrap();
                assert_eq!(number * 10_000, u128::from(share.0) * scale);
            }
        }
        b'o' => {
            if let Some(n) = told(scalar::one_in(text)) {
                let (number, scale) = decimal(text).unwrap();
                assert_eq!(number * u128::from(n), scale);
            }
        }
        b'j' => match told(scalar::jitter(text)) {
            Some(Jitter::Time(time)) => assert!(time > Nanos::ZERO),
            Some(Jitter::Share(share)) => assert!(share > Share(0) && share <= Share::WHOLE),
            None => {}
        },
        // what is near among hundreds of names takes a while to find
        b'z' if mixed(data).is_multiple_of(64) => {
            if let Some(zone) = told(scalar::time_zone(text)) {
                assert!(zone.iana_name().is_some_and(|name| name.eq_ignore_ascii_case(text)));
            }
        }
        b't' => {
            if let Some(cost) = tokens(text) {
                let number: f64 = text.parse().unwrap();
                assert!(number >= 0.0 && (cost as f64 - number).abs() <= 1.0_f64.max(number / 1e15));
            }
        }
        _ => drop(told(scalar::flag(text))),
    }
}

/// A invalid says something.
fn told<T>(read: Result<T, InvalidValue>) -> Option<T> {
    read.map_err(|invalid| assert!(!invalid.message.is_empty() && invalid.hint != Some(String::new()))).ok()
}

fn rate(text: &str) {
    let Some(rate) = told(scalar::rate(text)) else { return };
    assert_eq!(scalar::rate(&rate.to_string()), Ok(rate), "{rate}");
    let (tokens, time) = text.split_once('/').unwrap();
    let (number, scale) = decimal(tokens).unwrap();
    let time = if time.starts_with(|c: char| c.is_ascii_digit()) { time.to_owned() } else { format!("1{time}") };
    let period = scalar::duration(&time).unwrap();
    let written = (number, u128::from(period.get()) * scale);
    assert_eq!(written.0 * u128::from(rate.period().get()), u128::from(rate.tokens()) * written.1, "the same ratio");
}

/// A whole number of units, found by long multiplication.
fn quantity(text: &str, units: &[(&str, u128)], read: Option<u64>) {
    let letters = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(letters);
    let expected = decimal(number).and_then(|(number, scale)| {
        let (_, length) = units.iter().find(|(name, _)| *name == unit)?;
        let product = number.checked_mul(*length)?;
        (product % scale == 0).then(|| u64::try_from(product / scale).ok()).flatten()
    });
    match read {
        Some(read) => assert_eq!(Some(read), expected),
        None if number.len() <= 18 => assert_eq!(expected, None),
        None => {}
    }
}

/// A numerator and a power of ten.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !fraction.is_none_or(is_number) {
        return None;
    }
    let fraction = fraction.unwrap_or_default().trim_end_matches('0');
    let digits = [whole.trim_start_matches('0'), fraction].concat();
    let number = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some((number, 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?))
}
