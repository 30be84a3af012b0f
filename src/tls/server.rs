//! TLS for incoming connections.
//!
//! The server name of a client (SNI) and the names in the certificates decide which certificate the gateway presents:
//! a full name takes precedence over a wildcard, which stands for one label. A client that sends no name, or an unknown
//! one, gets the first certificate. The same choice says which certificate a request's host belongs to.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{TlsFault, authorities, certified_key};
use crate::units::Nanos;

/// A certificate chain with its private key, and the names and validity of its first certificate.
pub struct Certificate {
    shown: Arc<CertifiedKey>,
    names: Vec<String>,
    /// The start and the end of the certificate's validity.
    valid: (Nanos, Nanos),
}

/// The certificates of a listener, at least one.
#[derive(Debug)]
pub struct Certificates {
    all: Vec<Certificate>,
    whole: HashMap<String, usize>,
    /// Wildcard names without `*.`, each with the position of its certificate.
    wildcards: HashMap<String, usize>,
}

/// The client certificates that a listener asks for.
#[derive(Clone, Copy)]
pub struct ClientCertificates<'a> {
    /// The trusted authorities, in PEM.
    pub authorities: &'a [u8],
    /// Whether the listener rejects a client without a certificate.
    pub required: bool,
}

/// The TLS terms for clients of a listener.
#[derive(Clone, Copy)]
pub struct ClientTlsTerms<'a> {
    /// Client certificates; absent if the listener asks for none.
    pub clients: Option<ClientCertificates<'a>>,
    /// Whether the listener accepts TLS 1.2 beside 1.3.
    pub allows_1_2: bool,
    /// Whether the listener offers HTTP/2 beside HTTP/1.1.
    pub offers_http2: bool,
}

/// The TLS settings of a listener.
#[derive(Clone)]
pub struct TlsServer {
    /// The configuration of the TLS library.
    pub config: Arc<ServerConfig>,
    /// The certificates that the listener presents.
    pub certificates: Arc<Certificates>,
}

// === impl Certificate ===

impl Certificate {
    /// Reads a certificate chain, up to an authority that clients trust, and its private key; both in PEM.
    pub fn read(certificates: &[u8], key: &[u8]) -> Result<Self, TlsFault> {
        let shown = certified_key(certificates, key)?;
        let (names, valid) = shown.cert.first().and_then(contents).ok_or(TlsFault::Certificate)?;
        Ok(Self { shown: Arc::new(shown), names, valid })
    }

    /// The start and the end of the certificate's validity.
    pub const fn valid(&self) -> (Nanos, Nanos) {
        self.valid
    }

    /// The certificate's host names, in lower case; `*.` stands for one label.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The names in a certificate, and the start and end of its validity.
fn contents(certificate: &CertificateDer<'_>) -> Option<(Vec<String>, (Nanos, Nanos))> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let at = |seconds: i64| Nanos::from_secs(u64::try_from(seconds).unwrap_or_default());
    let validity = certificate.validity();
    Some((names.collect(), (at(validity.not_before.timestamp()), at(validity.not_after.timestamp()))))
}

/// The common name in the subject of a certificate, if there is exactly one.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    match (names.next(), names.next()) {
        (Some(name), None) => name.as_str().ok().map(str::to_owned),
        _ => None,
    }
}

// === impl Certificates ===

impl Certificates {
    /// Indexes the certificates by name. If two have the same name, the first one is presented.
    pub fn new(all: Vec<Certificate>) -> Self {
        let (mut whole, mut wildcards) = (HashMap::new(), HashMap::new());
        for (position, certificate) in all.iter().enumerate() {
            for name in &certificate.names {
                match name.strip_prefix("*.") {
                    Some(rest) => wildcards.entry(rest.to_owned()).or_insert(position),
                    None => whole.entry(name.clone()).or_insert(position),
                };
            }
        }
        Self { all, whole, wildcards }
    }

    /// The position of the certificate for `host`, which is in lower case; the first one if no certificate has that name.
    pub fn choose(&self, host: &str) -> usize {
        let rest = || host.split_once('.').map(|(_, rest)| rest);
        let found = self.whole.get(host).or_else(|| self.wildcards.get(rest()?));
        found.copied().unwrap_or_default()
    }

    /// The position of the certificate for a client that sends `name` as its server name.
    pub fn shown_for(&self, name: Option<&str>) -> usize {
        name.map(|name| self.choose(&name.to_ascii_lowercase())).unwrap_or_default()
    }

    /// The positions of certificates that no client ever gets: an earlier certificate has each of their names.
    pub fn never_shown(&self) -> impl Iterator<Item = usize> {
        let shown =
            |position: &usize| self.whole.values().chain(self.wildcards.values()).any(|other| other == position);
        (1..self.all.len()).filter(move |position| !shown(position))
    }

    /// All certificates.
    pub fn all(&self) -> &[Certificate] {
        &self.all
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let position = self.shown_for(hello.server_name());
        self.all.get(position).map(|certificate| Arc::clone(&certificate.shown))
    }
}

/// The TLS settings of a listener that presents `certificates`.
pub fn server(certificates: Certificates, terms: ClientTlsTerms<'_>) -> Result<TlsServer, TlsFault> {
    let certificates = Arc::new(certificates);
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = if terms.allows_1_2 { &[&version::TLS13, &version::TLS12] } else { &[&version::TLS13] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions).map_err(|_| TlsFault::Unusable)?;
    let builder = match terms.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let roots = Arc::new(authorities(clients.authorities)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier = if clients.required { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().map_err(|_| TlsFault::Authority)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::clone(&certificates) as Arc<dyn ResolvesServerCert>);
    if terms.clients.is_some() {
        // a resumed session has the certificate of its first handshake, which may have expired since then
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = match terms.offers_http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Ok(TlsServer { config: Arc::new(config), certificates })
}

#[cfg(test)]
mod tests;
