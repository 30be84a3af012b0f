//! Masks values that may be secret: only their beginning and their length are shown.

use crate::ruleset::key::{KeyPart, Value};
use crate::ruleset::{CredentialSource, CustomerRules};

/// The beginning of a secret, enough to tell it from others (at most 4 bytes and a quarter of it), and its length.
pub(super) fn mask(secret: &[u8]) -> String {
    const MAX_SHOWN: usize = 4;
    let shown = secret.iter().take(MAX_SHOWN.min(secret.len() / 4)).take_while(|byte| byte.is_ascii_alphanumeric());
    let shown: String = shown.map(|byte| char::from(*byte)).collect();
    format!("{shown}... ({} {})", secret.len(), if secret.len() == 1 { "byte" } else { "bytes" })
}

/// The value that a request has for `part` of a key, masked if it may be secret.
pub(in crate::gateway) fn masked_value(part: &KeyPart, value: &Value<'_>, customers: Option<&CustomerRules>) -> String {
    match value {
        Value::Address(address) => address.to_string(),
        Value::Bytes(bytes) if may_be_secret(part, customers) => mask(bytes),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Whether credentials are read from this part of a key, or its name suggests a secret.
pub(crate) fn may_be_secret(part: &KeyPart, customers: Option<&CustomerRules>) -> bool {
    const WORDS: [&str; 10] =
        ["auth", "key", "token", "secret", "session", "password", "passwd", "cookie", "credential", "sig"];
    let of_body;
    let name = match part {
        KeyPart::Cookie(..) => return true,
        KeyPart::Header(name, _) => name.as_str(),
        KeyPart::Query(name, _) | KeyPart::Descriptor(name) => name,
        KeyPart::RequestField(path) => {
            of_body = path.to_string();
            &of_body
        }
        _ => return false,
    };
    let reads = |source: &CredentialSource| match (source, part) {
        (CredentialSource::Header(of), KeyPart::Header(name, _)) => of == name,
        (CredentialSource::Query(of), KeyPart::Query(name, _)) => of == name,
        (CredentialSource::Jwt(rules), KeyPart::Header(name, _)) => rules.header.as_ref() == Some(name),
        _ => false,
    };
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word)) || customers.is_some_and(|rules| rules.identify.iter().any(reads))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::ruleset::key::Repeated;

    #[test]
    fn a_secret_is_never_shown_whole_nor_by_more_than_its_beginning() {
        assert_eq!(mask(b""), "... (0 bytes)");
        assert_eq!(mask(b"a"), "... (1 byte)");
        assert_eq!(mask(b"abc"), "... (3 bytes)");
        assert_eq!(mask(b"free-key"), "fr... (8 bytes)");
        assert_eq!(mask(b"a-very-long-secret-that-goes-on"), "a... (31 bytes)");
        assert_eq!(mask("élégant!".as_bytes()), "... (10 bytes)");
    }

    #[test]
    fn a_key_with_a_credential_shows_it_masked() {
        let value = Value::Bytes(Cow::Borrowed(b"0123456789abcdef"));
        let rules = CustomerRules {
            identify: vec![CredentialSource::Query("who".to_owned())],
            anonymous: None,
            plan_from: None,
            unknown: crate::ruleset::UnknownCredential::Deny,
        };
        let header = |name: &'static str| KeyPart::Header(http::HeaderName::from_static(name), Repeated::Deny);
        for part in [
            header("authorization"),
            KeyPart::Cookie("a".to_owned(), Repeated::Deny),
            KeyPart::Query("who".to_owned(), Repeated::Deny),
        ] {
            assert_eq!(masked_value(&part, &value, Some(&rules)), "0123... (16 bytes)");
        }
        assert_eq!(masked_value(&header("x-user"), &value, Some(&rules)), "0123456789abcdef");
    }
}
