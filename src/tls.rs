//! What TLS takes on either side: certificates and their keys, which of them is shown, and whose are believed.
//!
//! Pure: bytes come in, what is wrong with them goes out. Who reads the files says which file it is.

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

mod client;
mod server;

pub use client::{ClientCertificate, TlsClient, client};
pub use server::{Certificate, Certificates, ClientCertificates, ClientTlsTerms, TlsServer, common_name, server};

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
