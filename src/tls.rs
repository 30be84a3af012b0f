//! The TLS settings of clients and servers: certificates and their keys, the choice of a certificate, trusted authorities.
//!
//! Pure: bytes come in, faults go out. The caller, which reads the files, names the file that is at fault.

use std::sync::Arc;

pub use tokio_rustls::rustls::ClientConfig as TlsClient;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore};

mod server;

pub use server::{Certificate, Certificates, ClientCertificates, ClientTlsTerms, TlsServer, common_name, server};

/// The mark of a key in PEM that a passphrase protects: in its first line (PKCS#8), or in a header (PKCS#1, SEC1).
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// The fault of a TLS setting; its text follows the name of the file or setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// In the certificates of trusted authorities.
    #[error("holds no certificate of an authority in PEM")]
    Authority,
    /// In the system's certificates of authorities.
    #[error("needs certificates of authorities, and this system has none")]
    NoSystemRoots,
    /// In the certificate to present.
    #[error("holds no certificate in PEM")]
    Certificate,
    /// In that certificate: the key belongs to a later one of the chain.
    #[error("does not begin with the certificate of the key")]
    Order,
    /// In the private key of that certificate.
    #[error("holds no private key in PEM")]
    Key,
    /// In the private key: a passphrase protects it.
    #[error("holds a private key that is encrypted")]
    EncryptedKey,
    /// In the private key: the TLS library does not sign with keys of this algorithm or length.
    #[error("holds a private key of a kind that is not supported")]
    UnsupportedKey,
    /// In the pair: the key belongs to another certificate.
    #[error("is not the key of the certificate")]
    OtherKey,
    /// In the TLS library, which rejects the settings.
    #[error("cannot be used")]
    Unusable,
}

impl TlsFault {
    /// Whether the fault is in the file of the private key.
    pub const fn is_in_key(self) -> bool {
        matches!(self, Self::Key | Self::EncryptedKey | Self::UnsupportedKey | Self::OtherKey)
    }

    /// What to do about the fault, if there is more to say than the fault does.
    pub const fn hint(self) -> Option<&'static str> {
        match self {
            Self::NoSystemRoots => Some("name them: `tls: {ca: ca.pem}`"),
            Self::Order => Some("the certificate itself comes first, the intermediate ones behind it"),
            Self::EncryptedKey => Some("`openssl pkey -in KEY -out NEW` writes it without its passphrase"),
            Self::UnsupportedKey => {
                Some("RSA of 2048 to 4096 bits, ECDSA with P-256 or P-384, and Ed25519 are supported")
            }
            Self::Authority | Self::Certificate | Self::Key | Self::OtherKey | Self::Unusable => None,
        }
    }
}

/// A certificate chain, up to an authority that the server trusts, and its private key; both in PEM.
#[derive(Clone, Copy)]
pub struct ClientCertificate<'a> {
    /// The chain, the client's own certificate first.
    pub certificates: &'a [u8],
    /// The private key.
    pub key: &'a [u8],
}

/// The TLS settings of outgoing connections. They trust the `authorities`, in PEM, and no others; without `authorities`,
/// they trust those of the operating system, read from its usual place.
pub fn client(authorities: Option<&[u8]>, identity: Option<ClientCertificate<'_>>) -> Result<TlsClient, TlsFault> {
    let provider = Arc::new(ring::default_provider());
    let versions = TlsClient::builder_with_provider(provider).with_safe_default_protocol_versions();
    let roots = authorities.map_or_else(system_authorities, self::authorities)?;
    let builder = versions.map_err(|_| TlsFault::Unusable)?.with_root_certificates(roots);
    let Some(ClientCertificate { certificates, key }) = identity else { return Ok(builder.with_no_client_auth()) };
    let identity = certified_key(certificates, key)?;
    Ok(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))))
}

/// The certificate chain, of at least one certificate, with its private key; both in PEM.
fn certified_key(certificates: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsFault> {
    let chain = certificates_in(certificates).filter(|chain| !chain.is_empty()).ok_or(TlsFault::Certificate)?;
    let is_encrypted = || key.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
    let unread = |_| if is_encrypted() { TlsFault::EncryptedKey } else { TlsFault::Key };
    let key = PrivateKeyDer::from_pem_slice(key).map_err(unread)?;
    let key = ring::sign::any_supported_type(&key).map_err(|_| TlsFault::UnsupportedKey)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let is_key_of = |other: &CertificateDer<'static>| {
                CertifiedKey::new(vec![other.clone()], Arc::clone(&certified.key)).keys_match().is_ok()
            };
            Err(if certified.cert.iter().any(is_key_of) { TlsFault::Order } else { TlsFault::OtherKey })
        }
        Err(_) => Err(TlsFault::Unusable),
    }
}

/// The certificates of authorities that the operating system trusts.
fn system_authorities() -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsFault::NoSystemRoots) } else { Ok(roots) }
}

/// The certificates of authorities in `pem`; at least one.
fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(pem).ok_or(TlsFault::Authority)? {
        roots.add(certificate).map_err(|_| TlsFault::Authority)?;
    }
    if roots.is_empty() { Err(TlsFault::Authority) } else { Ok(roots) }
}

fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}
