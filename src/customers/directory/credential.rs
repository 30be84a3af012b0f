//! Credentials as hashes.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::ruleset::key::sha256;

/// The prefix of a credential that is written as its SHA-256.
const PREFIX: &[u8] = b"sha256:";
/// The number of digits of a credential's SHA-256 in its id, which does not reveal the credential.
const ID_DIGITS: usize = 12;

/// A keyed hash of 128 bits, of a credential, a name or a token.
pub(in crate::customers) type KeyedHash = [u64; 2];

/// The SHA-256 of a credential that a row gives by `sha256:` and this hash, or as clients present it. `None` if it begins
/// with `sha256:` and no valid hash follows.
pub(super) fn digest_of(written: &[u8]) -> Option<[u8; 32]> {
    match written.split_at_checked(PREFIX.len()) {
        Some((prefix, digits)) if prefix.eq_ignore_ascii_case(PREFIX) => from_hex(digits),
        _ => Some(sha256(written)),
    }
}

/// `sha256:` and the SHA-256 of a credential in hexadecimal digits.
pub fn field_of(presented: &[u8]) -> String {
    PREFIX.iter().copied().map(char::from).chain(hex_of(sha256(presented))).collect()
}

fn hex_of(digest: [u8; 32]) -> impl Iterator<Item = char> {
    let digits = digest.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16))
}

/// The id of a key: the first digits of its SHA-256, however the directory writes it. It tells the few credentials of a
/// customer apart, and cannot be presented as a credential.
pub(super) fn key_id(written: &str) -> String {
    let digest = digest_of(written.as_bytes()).unwrap_or_else(|| sha256(written.as_bytes()));
    hex_of(digest).take(ID_DIGITS).collect()
}

/// Whether the text has the form of such an id.
pub fn is_key_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = [0; 32];
    if digits.len() != bytes.len().saturating_mul(2) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The maker of keyed hashes; its seed is a secret.
#[derive(Clone, Copy)]
pub(in crate::customers) struct Hashes(SipHasher13);

impl Hashes {
    pub(in crate::customers) fn new(seed: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(seed))
    }

    /// The hash of a name, of the SHA-256 of a credential, or of a token.
    pub(in crate::customers) fn of(&self, bytes: &[u8]) -> KeyedHash {
        let mut hasher = self.0;
        hasher.write(bytes);
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_written_in_either_case_and_in_64_digits() {
        let field = field_of(b"key");
        assert_eq!(field, "sha256:2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683");
        for written in ["key", &field, &field.to_ascii_uppercase()] {
            assert_eq!(digest_of(written.as_bytes()), Some(sha256(b"key")), "{written}");
        }
        for bad in ["sha256:", "sha256:00", &format!("{field}0"), &field.replace("70e", "g0e")] {
            assert!(digest_of(bad.as_bytes()).is_none(), "{bad}");
        }
        assert_eq!(digest_of(b"sha256"), Some(sha256(b"sha256")));
    }
}
