//! TLS: with a server certificate of the trusted authority, and with one of another authority.

use tollgate::redis_client::{Address, Credentials, Layout, Servers};
use tollgate::tls::client;

use crate::redis_link::Caller;
use crate::redis_link::authority::{Authority, Signed};
use crate::redis_link::folder::Folder;
use crate::redis_link::server::Server;

/// The credentials of a client that trusts `authority` and has a certificate of it.
fn credentials(authority: &Authority) -> Credentials {
    let tls = authority.client_config(&[], Some(&authority.sign(&["tollgate"])));
    Credentials { tls: Some(tls.into()), ..Credentials::default() }
}

fn servers(port: u16) -> Servers {
    let server = Address { host: "127.0.0.1".to_owned(), port };
    Servers::new(Layout::Standalone { server, database: 0 }, None)
}

/// Starts a server that demands client certificates of `authority`.
fn start(authority: &Authority, folder: &Folder, name: &str) -> Server {
    let Signed { certificate, key } = authority.sign(&[name]);
    let files = [("ca-cert", authority.pem()), ("cert", certificate), ("key", key)];
    let options = files.map(|(kind, text)| {
        let file = folder.write(&format!("{kind}.pem"), text);
        [format!("--tls-{kind}-file"), file.display().to_string()]
    });
    Server::start_with_tls(&options.as_flattened().iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test]
async fn clients_with_certificates_reach_the_right_server() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let server = start(&authority, &folder, "127.0.0.1");
    let servers = servers(server.port);
    let caller = Caller::of(servers.clone());

    assert!(caller.count("a").await.is_err(), "it does not speak without TLS");
    let trusting = client(Some(authority.pem().as_bytes()), None).unwrap();
    servers.set_credentials(Credentials { tls: Some(trusting.into()), ..Credentials::default() });
    assert!(caller.count("a").await.is_err(), "it wants to see a certificate");
    servers.set_credentials(credentials(&Authority::new()));
    let stranger = caller.count("a").await.unwrap_err();
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
    servers.set_credentials(credentials(&authority));
    assert_eq!(caller.count("a").await, Ok(1));
}

#[tokio::test]
async fn a_certificate_of_another_server_is_not_believed() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let server = start(&authority, &folder, "redis.internal");
    let servers = servers(server.port);
    servers.set_credentials(credentials(&authority));
    let error = Caller::of(servers).count("a").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
