//! A bounded cache of tokens that were verified before: a new token replaces the one in its slot.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use super::Token;

/// The maximum number of cached tokens; a power of two.
const PLACES: usize = 4_096;

/// Tokens by their keyed hashes, so that no dump of the memory shows one. Each hash has exactly one slot.
pub(super) struct VerifiedTokens {
    hasher: SipHasher13,
    places: Box<[TokenSlot]>,
}

/// A slot for one token.
type TokenSlot = Mutex<Option<(Hash, Arc<Token>)>>;

/// A hash of 128 bits.
type Hash = (u64, u64);

impl VerifiedTokens {
    pub(super) fn new(seed: &[u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(seed), places: (0..PLACES).map(|_| Mutex::default()).collect() }
    }

    fn hash(&self, token: &[u8]) -> Hash {
        let hash = self.hasher.hash(token);
        (hash.h1, hash.h2)
    }

    /// The cached token that is written as `token`.
    pub(super) fn find(&self, token: &[u8]) -> Option<Arc<Token>> {
        let hash = self.hash(token);
        match &*self.place(hash)?.lock() {
            Some((known, token)) if *known == hash => Some(Arc::clone(token)),
            _ => None,
        }
    }

    /// Caches `token`, which is written as `written`.
    pub(super) fn put(&self, written: &[u8], token: &Arc<Token>) {
        let hash = self.hash(written);
        if let Some(place) = self.place(hash) {
            *place.lock() = Some((hash, Arc::clone(token)));
        }
    }

    fn place(&self, (hash, _): Hash) -> Option<&TokenSlot> {
        self.places.get(usize::try_from(hash % PLACES as u64).ok()?)
    }
}

impl fmt::Debug for VerifiedTokens {
    /// Shows nothing: the seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifiedTokens")
    }
}
