//! Texts in which `*` stands for anything: values in descriptors, names of files.

use memchr::memmem;

/// A text in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The parts between the stars.
    parts: Vec<String>,
}

impl Pattern {
    /// Parses a pattern; `None` if `text` has no `*`.
    pub fn new(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { parts: text.split('*').map(str::to_owned).collect() })
    }

    /// Whether every value matches the pattern.
    pub fn is_any(&self) -> bool {
        self.parts.iter().all(String::is_empty)
    }

    /// Whether `value` matches the pattern.
    pub fn matches(&self, value: &[u8]) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else { return false };
        let inner = value.strip_prefix(first.as_bytes()).and_then(|rest| rest.strip_suffix(last.as_bytes()));
        let Some(mut inner) = inner else { return false };
        between.iter().all(|part| match memmem::find(inner, part.as_bytes()) {
            Some(found) => {
                inner = inner.get(found.saturating_add(part.len())..).unwrap_or_default();
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_stands_between_their_stars() {
        for (pattern, fits, others) in [
            ("/v1/*", vec!["/v1/", "/v1/a/b"], vec!["/v1", "/v2/", "x/v1/"]),
            ("*.jpg", vec![".jpg", "a.jpg"], vec!["a.jpg?"]),
            ("a*b*c", vec!["abc", "axbxc", "abbc"], vec!["ac", "acb", "abcd"]),
            ("ab*ba", vec!["abba", "ab.ba"], vec!["aba"]),
            ("*", vec!["", "a"], vec![]),
        ] {
            let parsed = Pattern::new(pattern).unwrap();
            assert!(fits.iter().all(|value| parsed.matches(value.as_bytes())), "{pattern}");
            assert!(!others.iter().any(|value| parsed.matches(value.as_bytes())), "{pattern}");
        }
        assert_eq!(Pattern::new("plain"), None);
        assert!(Pattern::new("**").unwrap().is_any());
    }
}
