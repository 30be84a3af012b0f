//! Which trace a request belongs to, by its W3C `traceparent`. The field itself is passed on as it came.

use crate::fields::Fields;

const FIELD: &str = "traceparent";

/// The trace id of a well-formed `traceparent`, which has to be the only one: 32 hexadecimal digits.
pub fn id(headers: &Fields) -> Option<&str> {
    let mut fields = headers.get_all(FIELD);
    let field = str::from_utf8(fields.next().filter(|_| fields.next().is_none())?).ok()?;
    let mut parts = field.split('-');
    let version = hex::<2>(parts.next()?).filter(|version| *version != "ff")?;
    let trace = hex::<32>(parts.next()?).filter(is_not_zero)?;
    hex::<16>(parts.next()?).filter(is_not_zero)?;
    hex::<2>(parts.next()?)?;
    // later versions may go on
    (version != "00" || parts.next().is_none()).then_some(trace)
}

fn hex<const LENGTH: usize>(part: &str) -> Option<&str> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (part.len() == LENGTH && part.bytes().all(is_digit)).then_some(part)
}

fn is_not_zero(part: &&str) -> bool {
    part.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(fields: &[&[u8]]) -> Option<String> {
        let mut headers = Fields::default();
        for field in fields {
            headers.push(FIELD, field);
        }
        id(&headers).map(str::to_owned)
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_id_is_taken_from_a_field_that_is_well_formed() {
        let whole = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(id_of(&[whole.as_bytes()]).as_deref(), Some(TRACE));
        let later = format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later");
        assert_eq!(id_of(&[later.as_bytes()]).as_deref(), Some(TRACE));
    }

    #[test]
    fn everything_else_is_no_trace() {
        let zeros = "0".repeat(32);
        for field in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{zeros}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}0-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "\u{e4}".repeat(16)),
            format!("00-{}\"-00f067aa0ba902b7-01", "a".repeat(31)),
        ] {
            assert_eq!(id_of(&[field.as_bytes()]), None, "{field}");
        }
        let whole = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(id_of(&[whole.as_bytes(), whole.as_bytes()]), None);
        assert_eq!(id_of(&[]), None);
    }
}
