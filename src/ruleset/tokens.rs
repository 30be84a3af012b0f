//! Numbers of tokens as programs write them.

use crate::units::Cost;

/// The number of tokens that a program wrote: whole, or rounded up. `None` where it is negative, no number, too large, or
/// not whole and above 2⁵³, where it is not exact.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the bounds are checked")]
pub fn tokens(text: &str) -> Option<Cost> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    match text.parse::<Cost>() {
        Ok(whole) => Some(whole),
        Err(_) => text.parse::<f64>().ok().filter(|number| *number <= EXACT).map(|number| number.ceil() as Cost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_tokens_is_whole_or_rounded_up() {
        let numbers = [("7", 7), ("7.0", 7), ("7.2", 8), ("1e3", 1000), ("18446744073709551615", u64::MAX)];
        for (text, cost) in numbers {
            assert_eq!(tokens(text), Some(cost), "{text}");
        }
        for text in ["", "-1", "+1", "NaN", "inf", "1e400", "1e16", "0x10", "7 tokens", "18446744073709551616"] {
            assert_eq!(tokens(text), None, "{text}");
        }
    }
}
