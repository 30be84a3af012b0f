//! Issuers of tokens, with the keys of `tests/fixtures/keys`.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, Header};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RsaKeyPair};
use ring::{hmac, signature::RsaEncoding};
use serde_json::{Value, json};
use tollgate::clock::{Clock, SystemClock};

/// An issuer of tokens with its key.
pub struct Issuer {
    pub id: Option<&'static str>,
    pub algorithm: Algorithm,
    /// The key in DER, or the secret.
    pub key: Vec<u8>,
}

impl Issuer {
    pub fn rsa() -> Self {
        Self { id: Some("rsa"), algorithm: Algorithm::RS256, key: der("rsa") }
    }

    /// An issuer with another key under the same key ID.
    pub fn other_rsa() -> Self {
        Self { key: der("rsa-other"), ..Self::rsa() }
    }

    pub fn p256() -> Self {
        Self { id: Some("p256"), algorithm: Algorithm::ES256, key: der("p256") }
    }

    pub fn p384() -> Self {
        Self { id: Some("p384"), algorithm: Algorithm::ES384, key: der("p384") }
    }

    pub fn ed25519() -> Self {
        Self { id: Some("ed25519"), algorithm: Algorithm::EdDSA, key: der("ed25519") }
    }

    pub fn secret() -> Self {
        let key = b"a secret for tests, of 64 bytes, so that it is good for any hash".to_vec();
        Self { id: Some("secret"), algorithm: Algorithm::HS256, key }
    }

    /// The same key with another algorithm.
    pub fn with(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// A signed token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: self.id.map(str::to_owned), ..Header::new(self.algorithm) };
        let message = unsigned(&serde_json::to_value(header).unwrap(), claims, "");
        let message = message.trim_end_matches('.');
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(self.signature(message.as_bytes())))
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let secret = |hash| hmac::sign(&hmac::Key::new(hash, &self.key), message).as_ref().to_vec();
        let rsa = |padding: &'static dyn RsaEncoding| {
            let key = RsaKeyPair::from_der(&self.key).unwrap();
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(padding, &SystemRandom::new(), message, &mut signature).unwrap();
            signature
        };
        let elliptic =
            |curve| elliptic(curve, &self.key).sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec();
        match self.algorithm {
            Algorithm::HS256 => secret(hmac::HMAC_SHA256),
            Algorithm::HS384 => secret(hmac::HMAC_SHA384),
            Algorithm::HS512 => secret(hmac::HMAC_SHA512),
            Algorithm::RS256 => rsa(&signature::RSA_PKCS1_SHA256),
            Algorithm::RS384 => rsa(&signature::RSA_PKCS1_SHA384),
            Algorithm::RS512 => rsa(&signature::RSA_PKCS1_SHA512),
            Algorithm::PS256 => rsa(&signature::RSA_PSS_SHA256),
            Algorithm::PS384 => rsa(&signature::RSA_PSS_SHA384),
            Algorithm::PS512 => rsa(&signature::RSA_PSS_SHA512),
            Algorithm::ES256 => elliptic(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::ES384 => elliptic(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDSA => edwards(&self.key).sign(message).as_ref().to_vec(),
            other => panic!("{other:?} is not signed with here"),
        }
    }

    /// The public key, or the secret, as a JWK without restrictions of its use.
    fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = |name: &str, key: EcdsaKeyPair| {
            let (x, y) = key.public_key().as_ref()[1..].split_at(key.public_key().as_ref().len() / 2);
            json!({ "kty": "EC", "crv": name, "x": text(x), "y": text(y) })
        };
        let mut key = match self.algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => json!({ "kty": "oct", "k": text(&self.key) }),
            Algorithm::ES256 => point("P-256", elliptic(&signature::ECDSA_P256_SHA256_FIXED_SIGNING, &self.key)),
            Algorithm::ES384 => point("P-384", elliptic(&signature::ECDSA_P384_SHA384_FIXED_SIGNING, &self.key)),
            Algorithm::EdDSA => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": text(edwards(&self.key).public_key().as_ref()) })
            }
            _ => {
                let key = RsaKeyPair::from_der(&self.key).unwrap();
                let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({ "kty": "RSA", "n": text(&n), "e": text(&e) })
            }
        };
        if let Some(id) = self.id {
            key["kid"] = id.into();
        }
        key
    }

    /// A token of this customer that is valid for an hour.
    pub fn token(&self, customer: &str) -> String {
        self.sign(&json!({ "sub": customer, "exp": seconds_from_now(3_600) }))
    }
}

/// The issuers' keys as a JWK set: the public ones, and secrets.
pub fn key_set(issuers: &[Issuer]) -> String {
    json!({ "keys": issuers.iter().map(Issuer::jwk).collect::<Vec<_>>() }).to_string()
}

/// The Unix time in `seconds` from now.
pub fn seconds_from_now(seconds: i64) -> i64 {
    let now = i64::try_from(SystemClock::new().now().secs_ceil()).unwrap();
    now + seconds
}

/// An unsigned token with this header.
pub fn unsigned(header: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

fn elliptic(curve: &'static EcdsaSigningAlgorithm, der: &[u8]) -> EcdsaKeyPair {
    EcdsaKeyPair::from_pkcs8(curve, der, &SystemRandom::new()).unwrap()
}

fn edwards(der: &[u8]) -> Ed25519KeyPair {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).unwrap()
}

fn der(name: &str) -> Vec<u8> {
    let file = Path::new("tests/fixtures/keys").join(format!("{name}.pem"));
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let body: String = lines.take_while(|line| !line.starts_with("-----END")).collect();
    STANDARD.decode(body).unwrap()
}
