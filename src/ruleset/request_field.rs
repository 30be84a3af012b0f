//! The values of the fields in a request's body on which limits depend.

use std::fmt;
use std::sync::Arc;

use crate::ruleset::tokens::tokens;
use crate::units::Cost;

/// The longest text that can be part of a key, in bytes.
pub const MAX_KEY_LENGTH: usize = 1 << 10;

/// The names on the way to a field in JSON: `usage.total_tokens` is two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldPath(pub Vec<String>);

impl FieldPath {
    /// The most names in a path.
    pub const MAX_NAMES: usize = 16;
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

impl AsRef<Self> for FieldPath {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// The fields of a request's body. `Debug` shows no values: prompts and secrets may be among them.
#[derive(Clone)]
pub enum RequestFields {
    /// The request has no body.
    NoBody,
    /// The values of these fields.
    Read {
        /// The fields.
        paths: Arc<[FieldPath]>,
        /// The values, in the same order.
        values: Vec<FieldValue>,
    },
    /// The body cannot be read.
    Unreadable,
}

/// A number of tokens that requests give in a field of their bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFieldCost {
    /// The field.
    pub path: FieldPath,
    /// The largest number that is accepted, and the cost of a request whose field cannot be read.
    pub max: Cost,
    /// The cost where the field is missing.
    pub missing: Cost,
}

impl RequestFieldCost {
    /// The cost of a request with this body; `max` where the body is not known.
    pub fn of(&self, body: Option<&RequestFields>) -> Cost {
        body.map_or(self.max, |body| body.get(&self.path).believed(self.max, self.missing))
    }

    /// The cost where the field is missing, unless it is the maximum, which a limit need not be able to admit.
    pub fn written(&self) -> Option<Cost> {
        Some(self.missing).filter(|missing| *missing != self.max)
    }

    /// The cost in plain words.
    pub fn describe(&self) -> String {
        let Self { path, max, missing } = self;
        format!("what {path} of the request's JSON says, at least 1 and at most {max}; {missing} without it")
    }
}

/// The value of a field.
#[derive(Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// The field is absent, or null.
    Missing,
    /// A value that is neither a text nor a number, or cannot be read.
    Unreadable,
    /// A text.
    Text(Vec<u8>),
    /// A number, as it is written.
    Number(String),
}

impl RequestFields {
    /// The value of the field at `path`.
    pub fn get(&self, path: &FieldPath) -> &FieldValue {
        match self {
            Self::NoBody => &FieldValue::Missing,
            Self::Unreadable => &FieldValue::Unreadable,
            Self::Read { paths, values } => {
                let mut read = paths.iter().zip(values);
                read.find(|(known, _)| *known == path).map_or(&FieldValue::Unreadable, |(_, value)| value)
            }
        }
    }
}

impl FieldValue {
    /// The value as part of a key: a text of at most [`MAX_KEY_LENGTH`] bytes, or a whole number in its usual spelling.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_slice()).filter(|text| text.len() <= MAX_KEY_LENGTH),
            Self::Number(number) => {
                let usual = number.parse::<i128>().is_ok_and(|whole| whole.to_string() == *number);
                usual.then_some(number.as_bytes())
            }
            Self::Missing | Self::Unreadable => None,
        }
    }

    /// The number of tokens that is accepted from a client: at least 1, and `max` where the value is larger or no such
    /// number; `missing` where there is no value.
    pub fn believed(&self, max: Cost, missing: Cost) -> Cost {
        match self {
            Self::Missing => missing,
            Self::Number(number) => tokens(number).filter(|cost| *cost <= max).map_or(max, |cost| cost.max(1)),
            Self::Text(_) | Self::Unreadable => max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_cannot_talk_its_cost_down() {
        let number = |text: &str| FieldValue::Number(text.to_owned()).believed(100, 7);
        assert_eq!((number("5"), number("4.2"), number("1e2"), number("100")), (5, 5, 100, 100));
        assert_eq!((number("0"), number("0.0")), (1, 1));
        for wrong in ["-1", "-0", "101", "1e400", "99999999999999999999999"] {
            assert_eq!(number(wrong), 100, "{wrong}");
        }
        assert_eq!(FieldValue::Missing.believed(100, 7), 7);
        assert_eq!(FieldValue::Text(b"5".to_vec()).believed(100, 7), 100);
        assert_eq!(FieldValue::Unreadable.believed(100, 7), 100);
    }

    #[test]
    fn a_number_has_one_spelling_to_be_counted_by() {
        let text = |number: &str| FieldValue::Number(number.to_owned()).text().is_some();
        for usual in ["0", "7", "-7", "18446744073709551616"] {
            assert!(text(usual), "{usual}");
        }
        for other in ["007", "-0", "1.0", "1e3", "1E3", "+1"] {
            assert!(!text(other), "{other}");
        }
    }
}
