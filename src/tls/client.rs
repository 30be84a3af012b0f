//! TLS for outgoing connections.

use std::sync::Arc;

pub use tokio_rustls::rustls::ClientConfig as TlsClient;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::{TlsFault, certificates_in};

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
    let builder = versions.map_err(|_| TlsFault::Unusable)?.with_root_certificates(roots(authorities)?);
    let Some(ClientCertificate { certificates, key }) = identity else { return Ok(builder.with_no_client_auth()) };
    let certificates = certificates_in(certificates).filter(|found| !found.is_empty()).ok_or(TlsFault::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsFault::Key)?;
    builder.with_client_auth_cert(certificates, key).map_err(|_| TlsFault::OtherKey)
}

fn roots(authorities: Option<&[u8]>) -> Result<RootCertStore, TlsFault> {
    let Some(authorities) = authorities else {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if roots.is_empty() { Err(TlsFault::NoSystemRoots) } else { Ok(roots) };
    };
    super::authorities(authorities)
}
