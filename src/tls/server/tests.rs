use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::tls::ClientCertificate;

/// A private key on a curve that TLS does not use.
const SECP256K1: &str = "-----BEGIN PRIVATE KEY-----
MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQg1Dg+qdvxl3Nb5JLKlNlM
lEpAVsp+DbDJy/+wF4ncyTahRANCAAQdtNLZCkPP2iO5+eOGdDvZrGGKQUkLuJnd
zeFEcM3iyFgl2vqXwWSRLNyXgwbNjhOJ48tnoVSK2EfUP/jtLnRX
-----END PRIVATE KEY-----
";

fn certificate(names: &[&str]) -> Certificate {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    Certificate::read(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

#[test]
fn a_whole_name_goes_before_a_wildcard_and_the_first_is_for_everybody_else() {
    let certificates = Certificates::new(vec![
        certificate(&["default.example"]),
        certificate(&["*.a.example", "a.example"]),
        certificate(&["X.A.example"]),
        certificate(&["a.example"]),
    ]);
    for (name, position) in [
        ("default.example", 0),
        ("a.example", 1),
        ("y.a.example", 1),
        ("x.a.example", 2),
        ("z.y.a.example", 0),
        ("b.example", 0),
        ("127.0.0.1", 0),
        ("", 0),
    ] {
        assert_eq!(certificates.choose(name), position, "{name}");
    }
    assert_eq!(certificates.shown_for(Some("X.A.Example")), 2);
    assert_eq!(certificates.shown_for(None), 0);
    assert_eq!(certificates.never_shown().collect::<Vec<_>>(), [3]);
}

#[test]
fn errors_tell_a_bad_certificate_from_a_key_of_another() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let certificate = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let read = |certificate: &str, key: &str| Certificate::read(certificate.as_bytes(), key.as_bytes()).map(drop);
    assert_eq!(read(&certificate, &key.serialize_pem()), Ok(()));
    assert_eq!(read(&certificate, &other.serialize_pem()), Err(TlsFault::OtherKey));
    assert_eq!(read(&certificate, &certificate), Err(TlsFault::Key));
    assert_eq!(read(&key.serialize_pem(), &key.serialize_pem()), Err(TlsFault::Certificate));
    assert_eq!(read("", ""), Err(TlsFault::Certificate));
}

#[test]
fn keys_that_cannot_be_used_and_chains_in_the_wrong_order_are_told_apart() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let signed_by =
        |key: &KeyPair| CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(key).unwrap().pem();
    let (certificate, above) = (signed_by(&key), signed_by(&other));
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let with_header = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMAA=\n-----END RSA PRIVATE KEY-----\n";
    for (certificates, key, result) in [
        (certificate.clone() + &above, &*key.serialize_pem(), Ok(())),
        (above.clone() + &certificate, &key.serialize_pem(), Err(TlsFault::Order)),
        (certificate.clone(), encrypted, Err(TlsFault::EncryptedKey)),
        (certificate.clone(), with_header, Err(TlsFault::EncryptedKey)),
        (certificate, SECP256K1, Err(TlsFault::UnsupportedKey)),
    ] {
        let (certificates, key) = (certificates.as_bytes(), key.as_bytes());
        assert_eq!(Certificate::read(certificates, key).map(drop), result);
        let identity = ClientCertificate { certificates, key };
        assert_eq!(crate::tls::client(Some(certificates), Some(identity)).map(drop), result);
    }
}
