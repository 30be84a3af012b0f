//! Chooses the form of a response that the client prefers (RFC 9110, section 12.5.1).

use crate::fields::Fields;

/// The full quality, which a range also has if it names none.
const FULL: u16 = 1000;

/// The position in `offers` (types like `text/html`) of the one that the request's `Accept` prefers.
///
/// An offer has the quality of the most specific range that it is in. Among equals the one with the more specific range
/// wins, then the earlier one. If none is acceptable, or all are equally good, the first one wins: a response in a form that
/// the client did not ask for tells it more than 406. Parameters of ranges, other than `q`, are ignored.
pub(super) fn choose(headers: &Fields, offers: &[&str]) -> usize {
    let lines = headers.get_all("accept").filter_map(|line| str::from_utf8(line).ok());
    let ranges: Vec<Range<'_>> = lines.flat_map(elements).filter_map(Range::parse).collect();
    let rank = |offer: &str| {
        let of = ranges.iter().filter_map(|range| Some((range.specificity(offer)?, range.quality)));
        of.max().map(|(specificity, quality)| (quality, specificity)).filter(|(quality, _)| *quality > 0)
    };
    let ranked = offers.iter().enumerate().filter_map(|(position, offer)| Some((rank(offer)?, position)));
    ranked.max_by_key(|(rank, position)| (*rank, std::cmp::Reverse(*position))).map_or(0, |(_, position)| position)
}

/// `text/*;q=0.5`
struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// The quality in thousandths.
    quality: u16,
}

impl<'a> Range<'a> {
    /// Reads a range; `None` if the element is not one. Such an element does not affect the others.
    fn parse(element: &'a str) -> Option<Self> {
        let mut parts = element.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let quality = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| thousandths(value.trim()))
        });
        Some(Self { kind, subtype, quality: quality.unwrap_or(Some(FULL))? })
    }

    /// How closely this range fits `offer`: the type itself is 2, its kind 1, anything 0; `None` if it does not fit.
    fn specificity(&self, offer: &str) -> Option<u8> {
        let (kind, subtype) = offer.split_once('/')?;
        match (self.kind, self.subtype) {
            ("*", "*") => Some(0),
            (own, "*") if own.eq_ignore_ascii_case(kind) => Some(1),
            (own, sub) if own.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subtype) => Some(2),
            _ => None,
        }
    }
}

/// The elements of a list; commas in quotes do not end one.
fn elements(line: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    line.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

/// Reads a quality, from 0 to 1 with up to three decimals: `0.5` is 500.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimals: u16 = format!("{decimals:0<3}").parse().ok()?;
    match (whole, decimals) {
        ("0", decimals) => Some(decimals),
        ("1", 0) => Some(FULL),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERS: [&str; 3] = ["text/plain", "application/json", "text/html"];

    fn chosen(accept: &[&str]) -> &'static str {
        let mut headers = Fields::default();
        for line in accept {
            headers.push("accept", line);
        }
        OFFERS[choose(&headers, &OFFERS)]
    }

    #[test]
    fn the_best_quality_wins() {
        assert_eq!(chosen(&["application/json"]), "application/json");
        assert_eq!(chosen(&["text/html;q=0.8, application/json;q=0.9"]), "application/json");
        assert_eq!(chosen(&["text/html;q=0.801", "application/json;q=0.8"]), "text/html");
        assert_eq!(chosen(&["TEXT/HTML; charset=utf-8; Q=1.000, */*; q=0.1"]), "text/html");
        assert_eq!(chosen(&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"]), "text/html");
        assert_eq!(chosen(&["image/png, text/html;note=\"a, application/json\";q=0.2"]), "text/html");
    }

    #[test]
    fn the_more_specific_range_counts() {
        assert_eq!(chosen(&["text/*, text/plain;q=0.1"]), "text/html");
        assert_eq!(chosen(&["*/*, text/plain;q=0, application/*;q=0.5"]), "text/html");
        assert_eq!(chosen(&["text/*;q=0.5, */*;q=0.4"]), "text/plain");
        assert_eq!(chosen(&["application/json, text/plain, */*"]), "text/plain");
        assert_eq!(chosen(&["application/json, */*"]), "application/json");
    }

    #[test]
    fn without_a_preference_the_first_is_taken() {
        for accept in [&[][..], &[""], &["*/*"], &["image/png"], &["text/*;q=0, application/json;q=0"]] {
            assert_eq!(chosen(accept), "text/plain", "{accept:?}");
        }
    }

    #[test]
    fn unreadable_parts_are_passed_over() {
        for bad in ["html", "text/html;q=2", "text/html;q=0.1234", "text/html;q=x", "text/html;q=-1", "text/html;q="] {
            assert_eq!(chosen(&[bad, "application/json;q=0.1"]), "application/json", "{bad}");
        }
        assert_eq!(chosen(&[",, ,application/json,"]), "application/json");
    }
}
