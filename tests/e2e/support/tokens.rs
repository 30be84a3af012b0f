//! Those who sign tokens, with the keys of `tests/fixtures/keys`.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tollgate::clock::{Clock, SystemClock};

/// Somebody with a key.
pub struct Issuer {
    pub id: Option<&'static str>,
    pub algorithm: Algorithm,
    pub key: EncodingKey,
}

impl Issuer {
    pub fn rsa() -> Self {
        Self { id: Some("rsa"), algorithm: Algorithm::RS256, key: EncodingKey::from_rsa_der(&der("rsa")) }
    }

    /// Another key with the name of the first.
    pub fn other_rsa() -> Self {
        Self { key: EncodingKey::from_rsa_der(&der("rsa-other")), ..Self::rsa() }
    }

    pub fn p256() -> Self {
        Self { id: Some("p256"), algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(&der("p256")) }
    }

    pub fn p384() -> Self {
        Self { id: Some("p384"), algorithm: Algorithm::ES384, key: EncodingKey::from_ec_der(&der("p384")) }
    }

    pub fn ed25519() -> Self {
        Self { id: Some("ed25519"), algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&der("ed25519")) }
    }

    pub fn secret() -> Self {
        let key = EncodingKey::from_secret(b"a secret for tests, of 64 bytes, so that it is good for any hash");
        Self { id: Some("secret"), algorithm: Algorithm::HS256, key }
    }

    /// The same key for another algorithm.
    pub fn with(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Signs.
    pub fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: self.id.map(str::to_owned), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }

    /// A token of this customer that is good for an hour.
    pub fn token(&self, customer: &str) -> String {
        self.sign(&json!({ "sub": customer, "exp": seconds_from_now(3_600) }))
    }
}

/// The set of their keys: the public ones, and secrets.
pub fn key_set(issuers: &[Issuer]) -> String {
    let key = |issuer: &Issuer| {
        let mut key = Jwk::from_encoding_key(&issuer.key, issuer.algorithm).unwrap();
        // good for whatever the key is good for
        key.common.key_algorithm = None;
        key.common.key_id = issuer.id.map(str::to_owned);
        key
    };
    json!({ "keys": issuers.iter().map(key).collect::<Vec<_>>() }).to_string()
}

/// Seconds since 1970.
pub fn seconds_from_now(seconds: i64) -> i64 {
    let now = i64::try_from(SystemClock::new().now().secs_ceil()).unwrap();
    now + seconds
}

/// A token with this header that nobody signed.
pub fn unsigned(header: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

fn der(name: &str) -> Vec<u8> {
    let file = Path::new("tests/fixtures/keys").join(format!("{name}.pem"));
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let body: String = lines.take_while(|line| !line.starts_with("-----END")).collect();
    STANDARD.decode(body).unwrap()
}
