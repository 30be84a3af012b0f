//! Keys made of named values, without a request: for operators and for descriptors.

use super::{KeyPart, Value, ValueFault};

/// The entries of a descriptor: keys and values. Clients choose the values, which can be any bytes.
pub type Entries<'e> = [(&'e str, &'e [u8])];

/// The parts of a key, each with its value.
pub type Values<'v> = [(KeyPart, Value<'v>)];

impl KeyPart {
    /// Whether `name` names this part: as [`KeyPart::describe`] shows it (`header x-user`), or as the configuration writes
    /// it without its braces (`header: x-user`, `header:x-user`). Names of header fields are case-insensitive.
    pub fn is_called(&self, name: &str) -> bool {
        let (kind, of) = match name.split_once([':', ' ']) {
            Some((kind, of)) => (kind, of.trim_start()),
            None => (name, ""),
        };
        match self {
            Self::Header(header, _) => kind == "header" && header.as_str().eq_ignore_ascii_case(of),
            Self::Query(query, _) => kind == "query" && query == of,
            Self::Cookie(cookie, _) => kind == "cookie" && cookie == of,
            Self::Group(level) => kind == "group" && level == of,
            Self::Descriptor(entry) => kind == "descriptor" && entry == of,
            Self::PathSegment(segment) => (kind == "path_segment" && segment == of) || name == self.describe(),
            Self::RequestField(path) => (kind == "request_field" && path.to_string() == of) || name == self.describe(),
            Self::JwtClaim(claim) => (kind == "jwt_claim" && claim == of) || name == self.describe(),
            part => name == part.describe(),
        }
    }
}

/// The value of a descriptor for `part`.
pub fn entry<'e>(part: &KeyPart, entries: &Entries<'e>) -> Result<Value<'e>, ValueFault> {
    let KeyPart::Descriptor(name) = part else { return Err(ValueFault::Missing) };
    let found = entries.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| Value::Bytes((*value).into())).ok_or(ValueFault::Missing)
}

/// The value for `part` among `values`.
pub fn named_value<'v>(part: &KeyPart, values: &Values<'v>) -> Result<Value<'v>, ValueFault> {
    let named = values.iter().find(|(named, _)| named == part);
    named.map(|(_, value)| value.clone()).ok_or(ValueFault::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::key::Repeated;
    use crate::ruleset::request_field::FieldPath;

    #[test]
    fn parts_are_called_as_they_are_described_and_as_they_are_written() {
        let header = KeyPart::Header(http::HeaderName::from_static("x-user"), Repeated::Deny);
        for name in ["header x-user", "header:x-user", "header: x-user", "header X-User"] {
            assert!(header.is_called(name), "{name}");
        }
        assert!(!header.is_called("header") && !header.is_called("x-user") && !header.is_called("query x-user"));
        let claim = KeyPart::JwtClaim("org.id".to_owned());
        assert!(claim.is_called("jwt_claim: org.id") && claim.is_called("token claim org.id"));
        assert!(!claim.is_called("token claim org"));
        let field = KeyPart::RequestField(FieldPath(vec!["params".to_owned(), "name".to_owned()]));
        assert!(field.is_called("request_field: params.name") && field.is_called("request field params.name"));
        assert!(!field.is_called("request_field: params"));
        assert!(KeyPart::ClientAddress.is_called("client_address") && !KeyPart::ClientAddress.is_called("client"));
    }
}
