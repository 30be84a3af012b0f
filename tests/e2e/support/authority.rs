//! A certificate authority of a test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tokio_rustls::rustls::ClientConfig;
use tollgate::tls::{ClientCertificate, client};

/// A certificate authority that the tests trust.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these hosts.
    pub fn sign(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |_| ())
    }

    /// The certificate of a client.
    pub fn sign_client(&self, common_name: &str) -> Signed {
        self.sign_with(&[], |params| params.distinguished_name.push(DnType::CommonName, common_name))
    }

    /// An expired certificate.
    pub fn sign_expired(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |params| {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        })
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    /// The TLS settings of a client that trusts this authority, offers `protocols`, and shows the certificate `shows`.
    pub fn client_config(&self, protocols: &[&str], shows: Option<&Signed>) -> ClientConfig {
        let identity = |signed: &Signed| (signed.certificate.clone(), signed.key.clone());
        let shows = shows.map(identity);
        let identity = shows
            .as_ref()
            .map(|(certificate, key)| ClientCertificate { certificates: certificate.as_bytes(), key: key.as_bytes() });
        let mut config = client(Some(self.pem().as_bytes()), identity).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}
