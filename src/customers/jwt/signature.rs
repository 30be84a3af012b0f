//! Verification of signatures with ring.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// The provider of cryptography. It only verifies: it cannot sign, and it makes no key sets.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() })),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes this process verify tokens with ring.
pub(super) fn install() {
    // a second call finds the provider installed and changes nothing
    let _before = PROVIDER.install_default().err();
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Error> {
        let secret = |hash| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(secret) => {
                hmac::verify(&hmac::Key::new(hash, secret), message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Error::new()),
        };
        let rsa = |parameters: &RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::SecretOrDer(_) => Err(Error::new()),
        };
        let public = |algorithm: &'static dyn VerificationAlgorithm| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(key) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Error::new()),
        };
        match self.algorithm {
            Algorithm::HS256 => secret(hmac::HMAC_SHA256),
            Algorithm::HS384 => secret(hmac::HMAC_SHA384),
            Algorithm::HS512 => secret(hmac::HMAC_SHA512),
            Algorithm::RS256 => rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => public(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => public(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => public(&ED25519),
            _ => Err(Error::new()),
        }
    }
}
