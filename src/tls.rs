//! The TLS settings of clients and servers: certificates and their keys, the choice of a certificate, trusted authorities.
//!
//! Pure: bytes come in, faults go out. The caller, which reads the files, names the file that is at fault.

use std::sync::Arc;

pub use tokio_rustls::rustls::ClientConfig as TlsClient;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

mod server;

pub use server::{Certificate, Certificates, ClientCertificates, ClientTlsTerms, TlsServer, common_name, server};

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
    /// In the private key of that certificate.
    #[error("holds no private key in PEM")]
    Key,
    /// In the pair: the key belongs to another certificate.
    #[error("is not the key of the certificate")]
    OtherKey,
    /// In the TLS library, which rejects the settings.
    #[error("cannot be used")]
    Unusable,
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
    let certificates = certificates_in(certificates).filter(|found| !found.is_empty()).ok_or(TlsFault::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsFault::Key)?;
    builder.with_client_auth_cert(certificates, key).map_err(|_| TlsFault::OtherKey)
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
