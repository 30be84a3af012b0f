//! TLS: with a server certificate of the trusted authority, and with one of another authority.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tollgate::redis_client::{Address, Credentials, Layout, Servers};
use tollgate::tls::{ClientCertificate, client};

use crate::redis_link::Caller;
use crate::redis_link::server::{Folder, Server};

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    /// The options of a server that demands client certificates of this authority.
    pub(crate) fn server_options(&self, folder: &Folder, name: &str) -> Vec<String> {
        let Signed { certificate, key } = self.sign(name);
        let files = [("ca", self.pem()), ("cert", certificate), ("key", key)];
        let option = |(kind, text): (&str, String)| {
            let file = folder.write(&format!("{kind}.pem"), &text);
            [format!("--tls-{}-file", if kind == "ca" { "ca-cert" } else { kind }), file]
        };
        files.into_iter().flat_map(option).collect()
    }

    /// The credentials of a client that trusts this authority and has a certificate of it.
    pub(crate) fn credentials(&self) -> Credentials {
        let Signed { certificate, key } = self.sign("tollgate");
        let identity = ClientCertificate { certificates: certificate.as_bytes(), key: key.as_bytes() };
        let tls = client(Some(self.pem().as_bytes()), Some(identity)).unwrap();
        Credentials { tls: Some(tls.into()), ..Credentials::default() }
    }
}

fn servers(port: u16) -> Servers {
    let server = Address { host: "127.0.0.1".to_owned(), port };
    Servers::new(Layout::Standalone { server, database: 0 }, None)
}

fn start(authority: &Authority, folder: &Folder, name: &str) -> Server {
    let options = authority.server_options(folder, name);
    Server::start_with_tls(&options.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test]
async fn who_shows_a_certificate_and_sees_the_right_one_is_answered() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let server = start(&authority, &folder, "127.0.0.1");
    let servers = servers(server.port);
    let caller = Caller::of(servers.clone());

    assert!(caller.count("a").await.is_err(), "it does not speak without TLS");
    let trusting = client(Some(authority.pem().as_bytes()), None).unwrap();
    servers.set_credentials(Credentials { tls: Some(trusting.into()), ..Credentials::default() });
    assert!(caller.count("a").await.is_err(), "it wants to see a certificate");
    servers.set_credentials(Authority::new().credentials());
    let stranger = caller.count("a").await.unwrap_err();
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
    servers.set_credentials(authority.credentials());
    assert_eq!(caller.count("a").await, Ok(1));
}

#[tokio::test]
async fn a_certificate_of_another_server_is_not_believed() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let server = start(&authority, &folder, "redis.internal");
    let servers = servers(server.port);
    servers.set_credentials(authority.credentials());
    let error = Caller::of(servers).count("a").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
