use rcgen::{CertificateParams, KeyPair};

use super::*;

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
fn what_is_no_certificate_and_what_is_not_its_key_is_told_apart() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let certificate = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let read = |certificate: &str, key: &str| Certificate::read(certificate.as_bytes(), key.as_bytes()).map(drop);
    assert_eq!(read(&certificate, &key.serialize_pem()), Ok(()));
    assert_eq!(read(&certificate, &other.serialize_pem()), Err(TlsFault::OtherKey));
    assert_eq!(read(&certificate, &certificate), Err(TlsFault::Key));
    assert_eq!(read(&key.serialize_pem(), &key.serialize_pem()), Err(TlsFault::Certificate));
    assert_eq!(read("", ""), Err(TlsFault::Certificate));
}
