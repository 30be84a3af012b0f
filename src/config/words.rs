//! The form of words and values in messages, and the words that operators probably meant.

use std::cmp::Reverse;

/// The longest value that a message shows, in characters.
const MAX_SHOWN: usize = 60;

/// The length from which a mix of letters and digits looks like a key or a token.
const LIKE_A_TOKEN: usize = 12;

/// The length and the number of digits from which several such words, joined by `-` or `_`, look like a token. Names of
/// things have few digits.
const LIKE_TOKENS: (usize, usize) = (20, 6);

/// The number of letters from which the beginning of a word stands for it.
const BEGINNING: usize = 5;

/// Words of other gateways and rate limiters, each with the word for the same thing here.
const OF_OTHERS: [(&str, &str); 30] = [
    ("backend", "upstream"),
    ("backends", "upstreams"),
    ("bind", "address"),
    ("block", "deny"),
    ("capacity", "burst"),
    ("client_ip", "client_address"),
    ("clusters", "upstreams"),
    ("consumer", "customer"),
    ("consumers", "customers"),
    ("distributed", "shared"),
    ("dry_run", "shadow"),
    ("endpoints", "nodes"),
    ("global", "all"),
    ("global", "shared"),
    ("interval", "window"),
    ("ip", "client_address"),
    ("lb_policy", "balance"),
    ("local", "sticky"),
    ("memory", "sticky"),
    ("metrics", "admin"),
    ("period", "window"),
    ("rate_limit", "limits"),
    ("redis", "shared"),
    ("reject", "deny"),
    ("remote_addr", "client_address"),
    ("servers", "nodes"),
    ("service", "upstream"),
    ("services", "upstreams"),
    ("targets", "nodes"),
    ("user", "customer"),
];

/// The hint for a near miss.
pub(super) fn did_you_mean(near: &str) -> String {
    format!("did you mean `{near}`?")
}

/// Lists words as `` `a`, `b` or `c` ``.
pub(super) fn alternatives<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    listed(words, "or")
}

/// Lists words as `` `a`, `b` and `c` ``.
pub(super) fn all_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    listed(words, "and")
}

fn listed<'a>(words: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

/// A value in backquotes, unless it is long or might be a secret.
pub(super) fn shown(text: &str) -> String {
    match text.chars().count() <= MAX_SHOWN && !may_be_secret(text) {
        true => format!("`{}`", text.escape_debug()),
        false => hidden(text),
    }
}

/// The description of a value that must not be shown.
pub(super) fn hidden(text: &str) -> String {
    format!("text of {} characters (not shown)", text.chars().count())
}

/// Whether a text looks like a secret: an address with user data or a query, or a long run of letters and digits.
pub(super) fn may_be_secret(text: &str) -> bool {
    let digits = |run: &str| run.bytes().filter(u8::is_ascii_digit).count();
    let mixed = |run: &str| digits(run) > 0 && run.bytes().any(|byte| byte.is_ascii_alphabetic());
    let mut tokens = text.split(|c: char| !c.is_ascii_alphanumeric());
    let mut joined = text.split(|c: char| !c.is_ascii_alphanumeric() && !"-_+=".contains(c));
    let (long, with_digits) = LIKE_TOKENS;
    let has_query = |(path, query): (&str, &str)| !path.contains(' ') && query.contains('=');
    text.contains('@')
        || text.split_once('?').is_some_and(has_query)
        || tokens.any(|run| run.len() >= LIKE_A_TOKEN && mixed(run))
        || joined.any(|run| run.len() >= long && mixed(run) && digits(run) >= with_digits)
}

/// The word in `known` of which `word` is probably a misspelling.
///
/// Case, `-` and `_` make no difference. Beyond that, one edit for every three letters is allowed; a letter swapped with its
/// neighbour is one edit, and so is the missing end of a word of which five letters are there.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = plain(word);
    let length = wanted.chars().count();
    let allowed = (length / 3).max(1);
    let begins = |candidate: &str| length >= BEGINNING && candidate.starts_with(&wanted);
    known
        .into_iter()
        .filter(|candidate| begins(candidate) || candidate.chars().count().abs_diff(length) <= allowed)
        .map(|candidate| match begins(candidate) {
            true => (1, candidate),
            false => (strsim::osa_distance(&wanted, &plain(candidate)), candidate),
        })
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        // of several equally near words, the one with the longest common beginning
        .min_by_key(|(distance, candidate)| (*distance, Reverse(common_start(&wanted, candidate))))
        .map(|(_, candidate)| candidate)
}

/// The word in `known` that stands for a word of other gateways.
pub(super) fn translated<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = plain(word);
    let ours = |(theirs, ours): &(&str, &str)| known.iter().copied().find(|known| *theirs == word && known == ours);
    OF_OTHERS.iter().find_map(ours)
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
        assert_eq!(nearest("listen", ["cluster", "listeners"]), Some("listeners"));
        assert_eq!(nearest("window", known), None);
        assert_eq!(nearest("dely", ["deny", "delay"]), Some("delay"));
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("x", ["a", "b"]), None);
    }

    #[test]
    fn words_of_others_are_translated_where_ours_is_known() {
        let known = ["client_address", "all"];
        assert_eq!(translated("client-ip", &known), Some("client_address"));
        assert_eq!(translated("global", &known), Some("all"));
        assert_eq!(translated("global", &["sticky", "shared"]), Some("shared"));
        assert_eq!(translated("servers", &known), None);
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!(alternatives([]), "nothing");
        assert_eq!(alternatives(["a"]), "`a`");
        assert_eq!(alternatives(["a", "b", "c"]), "`a`, `b` or `c`");
        assert_eq!(all_of(["a", "b"]), "`a` and `b`");
    }

    #[test]
    fn possible_secrets_are_not_shown() {
        let open = ["10/s", "1/333333333ns", "api2.example.com:9000", "per-customer-orders-eu-west-1", "10.0.0.0/33"];
        for text in open {
            assert_eq!(shown(text), format!("`{text}`"));
        }
        let secret = [
            "sk_live_51HxTq9Zk3aBcD",
            "550e8400-e29b-41d4-a716-446655440000",
            "redis://:hunter2@host",
            "Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc",
        ];
        for text in secret {
            assert!(!shown(text).contains('`'), "{text}");
        }
        assert_eq!(shown(&"x".repeat(61)), "text of 61 characters (not shown)");
        assert_eq!(shown("a\nb"), "`a\\nb`");
    }
}
