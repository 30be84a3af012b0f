//! The keys that tokens are verified with: a JSON Web Key Set (RFC 7517).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};

/// The range of an RSA modulus, in bits: shorter ones are insecure, longer ones only cost time.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=4_096;

/// The maximum number of keys: a token that does not name its key is tried with all keys of a matching algorithm.
const MAX_KEYS: usize = 100;

/// The maximum size of a key set, in bytes.
pub const MAX_KEY_SET: usize = 1 << 20;

const RSA: [Algorithm; 6] =
    [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];
/// HMAC algorithms, each with the shortest allowed secret, in bytes (RFC 7518, section 3.2).
const HMAC: [(Algorithm, usize); 3] = [(Algorithm::HS256, 32), (Algorithm::HS384, 48), (Algorithm::HS512, 64)];

/// The keys of a set that can verify tokens.
#[derive(Debug)]
pub struct Keys(pub(super) Vec<Key>);

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) id: Option<String>,
    /// The algorithms that the key can be used with; at least one.
    algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// A fault in a key set. Shows no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct KeyFault {
    /// The line and the column, if the text is no JSON.
    pub position: Option<(usize, usize)>,
    /// The path to the value, if the text is JSON (`keys[0].n`).
    pub path: String,
    /// The fault; the message follows the path.
    pub message: String,
}

impl KeyFault {
    fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { position: None, path: path.into(), message: message.into() }
    }
}

impl Keys {
    /// Reads a key set. Skips keys of unknown kinds and keys that are not for signatures, because the sets of issuers
    /// contain such keys. Returns also the faults of other keys that cannot be used.
    ///
    /// Errors: the faults of a set without any key that can be used.
    pub fn parse(text: &str) -> Result<(Self, Vec<KeyFault>), Vec<KeyFault>> {
        let set: Value = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|error| {
            // the library's own message may quote the text
            let position = Some((error.line().max(1), error.column().max(1)));
            vec![KeyFault { position, path: String::new(), message: "cannot be read as JSON from here on".to_owned() }]
        })?;
        let Some(entries) = set.get("keys").and_then(Value::as_array) else {
            return Err(vec![KeyFault::at("keys", "is missing, or is no list")]);
        };
        if entries.len() > MAX_KEYS {
            return Err(vec![KeyFault::at("keys", format!("holds more than {MAX_KEYS} keys"))]);
        }
        let (mut keys, mut faults) = (Vec::new(), Vec::new());
        for (position, entry) in entries.iter().enumerate() {
            match read(entry, &format!("keys[{position}]")) {
                Ok(key) => keys.extend(key),
                Err(fault) => faults.push(fault),
            }
        }
        if keys.is_empty() && faults.is_empty() {
            faults.push(KeyFault::at("keys", "holds no key that tokens could be verified with"));
        }
        match keys.is_empty() {
            true => Err(faults),
            false => Ok((Self(keys), faults)),
        }
    }

    /// Whether one of the keys can be used with one of the `accepted` algorithms; an empty list accepts all.
    pub fn fit(&self, accepted: &[Algorithm]) -> bool {
        self.0.iter().any(|key| !key.usable_with(accepted).is_empty())
    }
}

impl Key {
    /// The algorithms of this key among the `accepted` ones; an empty list accepts all.
    pub(super) fn usable_with(&self, accepted: &[Algorithm]) -> Vec<Algorithm> {
        let is_accepted = |algorithm: &Algorithm| accepted.is_empty() || accepted.contains(algorithm);
        self.algorithms.iter().copied().filter(is_accepted).collect()
    }
}

/// One key; `None` if it cannot be used here.
fn read(entry: &Value, path: &str) -> Result<Option<Key>, KeyFault> {
    let Some(entry) = entry.as_object() else {
        return Err(KeyFault::at(path, "is no key"));
    };
    let for_signatures = entry.get("use").is_none_or(|of| of == "sig")
        && entry.get("key_ops").and_then(Value::as_array).is_none_or(|ops| ops.iter().any(|op| op == "verify"));
    if !for_signatures {
        return Ok(None);
    }
    let kind = entry.get("kty").and_then(Value::as_str);
    let (algorithms, key) = match (kind, entry.get("crv").and_then(Value::as_str)) {
        (None, _) => return Err(KeyFault::at(format!("{path}.kty"), "is missing, or is no text")),
        (Some("RSA"), _) => (RSA.to_vec(), rsa(entry, path)?),
        (Some("EC"), Some("P-256")) => (vec![Algorithm::ES256], elliptic(entry, path, 32)?),
        (Some("EC"), Some("P-384")) => (vec![Algorithm::ES384], elliptic(entry, path, 48)?),
        (Some("OKP"), Some("Ed25519")) => (vec![Algorithm::EdDSA], edwards(entry, path)?),
        (Some("oct"), _) => secret(entry, path)?,
        _ => return Ok(None),
    };
    let algorithms = match entry.get("alg").map(|name| name.as_str().and_then(|name| name.parse().ok())) {
        None => algorithms,
        Some(Some(only)) if algorithms.contains(&only) => vec![only],
        Some(Some(_)) => {
            return Err(KeyFault::at(format!("{path}.alg"), "is an algorithm that the key is not good for"));
        }
        // an unknown algorithm
        Some(None) => return Ok(None),
    };
    let id = entry.get("kid").and_then(Value::as_str).map(str::to_owned);
    Ok(Some(Key { id, algorithms, key }))
}

fn rsa(entry: &Map<String, Value>, path: &str) -> Result<DecodingKey, KeyFault> {
    let (modulus, exponent) = (bytes(entry, path, "n")?, bytes(entry, path, "e")?);
    let bits = bits(&modulus);
    if !RSA_BITS.contains(&bits) {
        let message = format!("has {bits} bits; RSA keys need {} to {}", RSA_BITS.start(), RSA_BITS.end());
        return Err(KeyFault::at(format!("{path}.n"), message));
    }
    let odd = exponent.last().is_some_and(|last| last % 2 == 1);
    if !odd || !(2..=33).contains(&self::bits(&exponent)) {
        return Err(KeyFault::at(format!("{path}.e"), "is no exponent of an RSA key"));
    }
    let significant = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
    Ok(DecodingKey::from_rsa_raw_components(&significant(&modulus), &significant(&exponent)))
}

fn elliptic(entry: &Map<String, Value>, path: &str, length: usize) -> Result<DecodingKey, KeyFault> {
    let (x, y) = (bytes_of(entry, path, "x", length)?, bytes_of(entry, path, "y", length)?);
    /// The prefix of an uncompressed point's coordinates (SEC 1, section 2.3.3).
    const UNCOMPRESSED: &[u8] = &[4];
    Ok(DecodingKey::from_ec_der(&[UNCOMPRESSED, &x, &y].concat()))
}

fn edwards(entry: &Map<String, Value>, path: &str) -> Result<DecodingKey, KeyFault> {
    Ok(DecodingKey::from_ed_der(&bytes_of(entry, path, "x", 32)?))
}

fn secret(entry: &Map<String, Value>, path: &str) -> Result<(Vec<Algorithm>, DecodingKey), KeyFault> {
    let secret = bytes(entry, path, "k")?;
    let good = HMAC.into_iter().filter(|(_, least)| secret.len() >= *least).map(|(algorithm, _)| algorithm).collect();
    let algorithms: Vec<Algorithm> = good;
    match algorithms.is_empty() {
        true => Err(KeyFault::at(format!("{path}.k"), "is shorter than 32 bytes, which is too short for a secret")),
        false => Ok((algorithms, DecodingKey::from_secret(&secret))),
    }
}

fn bytes_of(entry: &Map<String, Value>, path: &str, name: &str, length: usize) -> Result<Vec<u8>, KeyFault> {
    let bytes = bytes(entry, path, name)?;
    match bytes.len() == length {
        true => Ok(bytes),
        false => Err(KeyFault::at(format!("{path}.{name}"), format!("is not {length} bytes long"))),
    }
}

fn bytes(entry: &Map<String, Value>, path: &str, name: &str) -> Result<Vec<u8>, KeyFault> {
    let fault = |message: &str| KeyFault::at(format!("{path}.{name}"), message);
    let text = entry.get(name).and_then(Value::as_str).ok_or_else(|| fault("is missing, or is no text"))?;
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| fault("is not in base64url"))
}

/// The length of a big-endian number, in bits.
fn bits(bytes: &[u8]) -> usize {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let rest = bytes.get(zeros..).unwrap_or_default();
    let leading = rest.first().map_or(0, |byte| byte.leading_zeros() as usize);
    rest.len().saturating_mul(8).saturating_sub(leading)
}
