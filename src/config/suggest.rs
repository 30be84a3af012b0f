//! Near misses: finds the word that the operator probably meant.

use std::cmp::Reverse;

/// The word in `known` of which `word` is probably a misspelling.
///
/// Case, `-` and `_` make no difference. Beyond that, one edit for every three letters is allowed; a letter swapped with its
/// neighbour is one edit.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = plain(word);
    let length = wanted.chars().count();
    let allowed = (length / 3).max(1);
    known
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed)
        .map(|candidate| (strsim::osa_distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        // of several equally near words, the one with the longest common beginning
        .min_by_key(|(distance, candidate)| (*distance, Reverse(common_start(&wanted, candidate))))
        .map(|(_, candidate)| candidate)
}

fn common_start(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}

fn plain(word: &str) -> String {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["rate", "burst", "delay_after", "over_limit"];
        assert_eq!(nearest("rat", known), Some("rate"));
        assert_eq!(nearest("brust", known), Some("burst"));
        assert_eq!(nearest("Delay-After", known), Some("delay_after"));
        assert_eq!(nearest("overlimit", known), Some("over_limit"));
        assert_eq!(nearest("window", known), None);
        assert_eq!(nearest("dely", ["deny", "delay"]), Some("delay"));
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("x", ["a", "b"]), None);
    }
}
