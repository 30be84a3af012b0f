//! The TLS settings of clients and servers: certificates and their keys, the choice of a certificate, trusted authorities.
//!
//! Pure: bytes come in, faults go out. The caller, which reads the files, names the file that is at fault.

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

mod client;
mod server;

pub use client::{ClientCertificate, TlsClient, client};
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
