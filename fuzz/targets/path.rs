//! Request targets: one spelling for each path, the same as a slow and plain reading of the rules finds.

use tollgate::gateway::facts::{canonical_host, path_and_query};
use tollgate::ruleset::path::{PathPattern, matched_form, without_parameters};

const HOST: &str = "a.example";

pub(crate) fn run(data: &[u8]) {
    let read = path_and_query("GET", data, HOST);
    let expected = reference(data);
    match &read {
        Ok((path, query)) => {
            assert_eq!(Some(((**path).to_owned(), query.map(str::to_owned))), expected);
            is_canonical(path);
            let again = match query {
                Some(query) => format!("{path}?{query}"),
                None => path.to_string(),
            };
            let again_read = path_and_query("GET", again.as_bytes(), HOST).unwrap();
            assert_eq!((&*again_read.0, again_read.1), (&**path, *query), "the second time changes nothing");
            let bare = without_parameters(path).unwrap_or_else(|| path.to_string());
            assert!(!bare.contains(';') && !bare.contains("%3B"));
            let resolved = path_and_query("GET", bare.as_bytes(), HOST).unwrap().0;
            assert_eq!(resolved, bare, "without its parameters it leads nowhere else");
            if let Ok(pattern) = PathPattern::parse(&bare)
                && !bare.contains('*')
            {
                assert!(pattern.matches(&matched(&bare)), "a path that is written as a pattern matches itself");
            }
        }
        Err(_) => assert_eq!(expected, None),
    }
    if let Ok(text) = str::from_utf8(data)
        && let Ok(pattern) = PathPattern::parse(text)
    {
        assert_eq!(PathPattern::parse(&pattern.to_string()).as_ref(), Ok(&pattern));
        let is_any = |piece: &str| piece.starts_with(['*', '{']);
        let alike: Vec<&str> = text.split('/').map(|piece| if is_any(piece) { "x" } else { piece }).collect();
        let alike = alike.join("/");
        assert_eq!(path_and_query("GET", alike.as_bytes(), HOST).unwrap().0, alike, "patterns can be requested");
        assert!(pattern.matches(&matched(&alike)));
    }
}

/// The form of a canonical path that patterns match.
fn matched(path: &str) -> String {
    let form = matched_form(path).unwrap_or_else(|| path.to_owned());
    assert!(!form.contains("%2B") && !form.contains("%2A") && matched_form(&form).is_none());
    form
}

fn is_canonical(path: &str) {
    assert!(path.starts_with('/') && !path.contains("//") && !path.contains(['?', '#', '\\', ' ']));
    assert!(path.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(path.split('/').all(|segment| !matches!(segment, "." | "..")));
    for (at, _) in path.match_indices('%') {
        let digits = path.get(at + 1..at + 3).unwrap();
        assert!(digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F')));
        let byte = u8::from_str_radix(digits, 16).unwrap();
        assert!(!byte.is_ascii_alphanumeric() && !b"-._~/\\".contains(&byte) && byte > 0x1f && byte != 0x7f);
    }
}

/// Slow and plain: the texts are replaced until nothing is left to replace.
fn reference(data: &[u8]) -> Option<(String, Option<String>)> {
    let text = str::from_utf8(data).ok().filter(|text| text.bytes().all(|byte| matches!(byte, 0x21..=0x7e)))?;
    if text.contains(['#', '\\']) {
        return None;
    }
    let absolute = ["http://", "https://"].iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = match absolute {
        Some(absolute) => {
            let authority: String = absolute.chars().take_while(|c| !matches!(c, '/' | '?')).collect();
            if canonical_host(&authority).ok()?.0 != HOST {
                return None;
            }
            absolute.strip_prefix(&*authority)?
        }
        None => text.strip_prefix('/').map(|_| text)?,
    };
    let mut halves = rest.splitn(2, '?');
    let (path, query) = (halves.next()?, halves.next());
    let mut spelt = String::from("/");
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let (value, was_encoded) = match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?].map(char::from);
                let value = digits[0].to_digit(16)? * 16 + digits[1].to_digit(16)?;
                (u8::try_from(value).ok()?, true)
            }
            byte => (byte, false),
        };
        let means_itself = value.is_ascii_alphanumeric() || b"-._~:@!$&'(),=".contains(&value);
        let never_plain = b"\"<>[]^`{|}".contains(&value);
        match (means_itself, was_encoded) {
            (_, true) if value <= 0x1f || matches!(value, b'/' | b'\\' | 0x7f) => return None,
            (false, true) => spelt.push_str(&format!("%{value:02X}")),
            (false, false) if never_plain => spelt.push_str(&format!("%{value:02X}")),
            _ => spelt.push(char::from(value)),
        }
    }
    // what is left of each segment without parameters
    let mut pieces = spelt.split('/').skip(1).peekable();
    while let Some(piece) = pieces.next() {
        let bare = piece.replace("%3B", ";").split(';').next().unwrap_or_default().to_owned();
        let leads_elsewhere = matches!(&*bare, "." | "..") || bare.is_empty() && pieces.peek().is_some();
        if leads_elsewhere && (piece.contains(';') || piece.contains("%3B")) {
            return None;
        }
    }
    loop {
        let mut next = spelt.replace("//", "/");
        if next == spelt {
            next = spelt.replacen("/./", "/", 1);
        }
        if next == spelt && spelt.ends_with("/.") {
            next.pop();
        }
        if next == spelt {
            let segments: Vec<&str> = spelt.split('/').collect();
            if let Some(at) = segments.iter().position(|segment| *segment == "..") {
                if at < 2 {
                    return None;
                }
                let (before, behind) = (&segments[..at - 1], &segments[at + 1..]);
                next = [before, behind].concat().join("/");
                if behind.is_empty() {
                    next.push('/');
                }
            }
        }
        if next == spelt {
            return Some((spelt, query.map(str::to_owned)));
        }
        spelt = next;
    }
}
