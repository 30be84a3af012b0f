//! Credentials as hashes.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::ruleset::key::sha256;

/// The prefix of a credential that is written as its SHA-256.
const PREFIX: &[u8] = b"sha256:";
/// The number of digits of a credential's SHA-256 in its id, which does not reveal the credential.
const ID_DIGITS: usize = 12;

/// A keyed hash of 128 bits, of a credential or of a name.
pub(super) type KeyedHash = [u64; 2];

/// A credential as a directory writes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenCredential<'t> {
    /// The credential itself, as clients present it.
    Plain(&'t [u8]),
    /// The SHA-256 of the credential.
    Hashed([u8; 32]),
}

impl<'t> WrittenCredential<'t> {
    /// Reads a row's credential; `None` if it begins with `sha256:` and no valid hash follows.
    pub(super) fn read(text: &'t [u8]) -> Option<Self> {
        match text.split_at_checked(PREFIX.len()) {
            Some((prefix, digits)) if prefix.eq_ignore_ascii_case(PREFIX) => from_hex(digits).map(Self::Hashed),
            _ => Some(Self::Plain(text)),
        }
    }

    /// The SHA-256 of a credential that a client presents.
    pub(super) fn hashed(presented: &[u8]) -> Self {
        Self::Hashed(sha256(presented))
    }
}

/// `sha256:` and the SHA-256 of a credential in hexadecimal digits.
pub fn field_of(presented: &[u8]) -> String {
    let digits = sha256(presented).into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    PREFIX.iter().copied().map(char::from).chain(digits).collect()
}

/// The id of a key: the first digits of its SHA-256, however the directory writes it. It tells the few credentials of a
/// customer apart, and cannot be presented as a credential.
pub(super) fn key_id(written: &str) -> String {
    let hashed = match WrittenCredential::read(written.as_bytes()) {
        Some(WrittenCredential::Hashed(_)) => written.to_ascii_lowercase(),
        Some(WrittenCredential::Plain(_)) | None => field_of(written.as_bytes()),
    };
    hashed.chars().skip(PREFIX.len()).take(ID_DIGITS).collect()
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
pub(super) struct Hashes(SipHasher13);

impl Hashes {
    pub(super) fn new(seed: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(seed))
    }

    /// Presenting the written hash of a credential does not match that credential: the two kinds have different tags.
    pub(super) fn credential(&self, credential: WrittenCredential<'_>) -> KeyedHash {
        match credential {
            WrittenCredential::Plain(text) => self.tagged(0, text),
            WrittenCredential::Hashed(hash) => self.tagged(1, &hash),
        }
    }

    pub(super) fn name(&self, name: &[u8]) -> KeyedHash {
        self.tagged(2, name)
    }

    fn tagged(&self, tag: u8, bytes: &[u8]) -> KeyedHash {
        let mut hasher = self.0;
        hasher.write_u8(tag);
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
        assert!(WrittenCredential::read(field.as_bytes()) == Some(WrittenCredential::hashed(b"key")));
        assert!(
            WrittenCredential::read(field.to_ascii_uppercase().as_bytes()) == Some(WrittenCredential::hashed(b"key"))
        );
        for bad in ["sha256:", "sha256:00", &format!("{field}0"), &field.replace("70e", "g0e")] {
            assert!(WrittenCredential::read(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(WrittenCredential::read(b"sha256") == Some(WrittenCredential::Plain(b"sha256")));
    }

    #[test]
    fn knowing_the_hash_of_a_credential_is_not_knowing_the_credential() {
        let hashes = Hashes::new(&[1; 16]);
        let field = field_of(b"key");
        let row = WrittenCredential::read(field.as_bytes()).map(|written| hashes.credential(written));
        assert_ne!(row, Some(hashes.credential(WrittenCredential::Plain(field.as_bytes()))));
        assert_eq!(row, Some(hashes.credential(WrittenCredential::hashed(b"key"))));
    }
}
