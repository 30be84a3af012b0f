//! What TLS takes: whose certificates are believed, and the one that is shown.

use std::sync::Arc;

pub use tokio_rustls::rustls::ClientConfig as TlsClient;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate with those between it and one that the server believes, and its key; both in PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate first.
    pub certificates: &'a [u8],
    /// The key.
    pub key: &'a [u8],
}

/// What is wrong, to be said after what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// Of whom to believe.
    #[error("holds no certificate of an authority in PEM")]
    Authority,
    /// Of the system.
    #[error("needs certificates of authorities, and this system has none")]
    NoSystemRoots,
    /// Of the certificate to show.
    #[error("holds no certificate in PEM")]
    Certificate,
    /// Of its key.
    #[error("holds no private key in PEM")]
    Key,
    /// Of both.
    #[error("is not the key of the certificate")]
    OtherKey,
    /// Of the library.
    #[error("cannot be used")]
    Unusable,
}

/// What connections take. `authorities`, in PEM, are believed and nobody else; where they are absent, those of the system
/// are, which are read from where it has them.
pub fn client(authorities: Option<&[u8]>, identity: Option<Identity<'_>>) -> Result<Arc<TlsClient>, TlsFault> {
    let provider = Arc::new(ring::default_provider());
    let versions = TlsClient::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|_| TlsFault::Unusable)?.with_root_certificates(roots(authorities)?);
    let Some(Identity { certificates, key }) = identity else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let certificates = certificates_in(certificates).filter(|found| !found.is_empty()).ok_or(TlsFault::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsFault::Key)?;
    builder.with_client_auth_cert(certificates, key).map(Arc::new).map_err(|_| TlsFault::OtherKey)
}

fn roots(authorities: Option<&[u8]>) -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(authorities) => {
            for certificate in certificates_in(authorities).ok_or(TlsFault::Authority)? {
                roots.add(certificate).map_err(|_| TlsFault::Authority)?;
            }
            if roots.is_empty() { Err(TlsFault::Authority) } else { Ok(roots) }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() { Err(TlsFault::NoSystemRoots) } else { Ok(roots) }
        }
    }
}

fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}
