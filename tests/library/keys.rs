//! Two requests that differ in a part of a limit's key never share a bucket.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderName;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tollgate::charge::Mode;
use tollgate::fields::Fields;
use tollgate::ruleset::LimitId;
use tollgate::ruleset::key::{self, Facts, Key, KeyHasher, KeyPart, Repeated, Resolved};
use tollgate::ruleset::limit::Share;
use tollgate::units::LimitKey;

/// The values of all parts of a key; two requests with equal tuples have the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tuple {
    customer: Option<String>,
    client: IpAddr,
    host: String,
    header: String,
}

/// Pieces that make concatenated texts ambiguous.
const PIECES: [&str; 12] = ["", "a", "aa", "b", ":", "|", "/", "a|", "|a", "::1", "0", "7f000001"];

fn word(random: &mut StdRng) -> String {
    (0..random.random_range(0..7)).map(|_| PIECES[random.random_range(0..PIECES.len())]).collect()
}

fn tuple(random: &mut StdRng) -> Tuple {
    let small = random.random_range(0..6_u8);
    let client = match random.random_bool(0.5) {
        true => IpAddr::V4(Ipv4Addr::new(10, 0, 0, small)),
        false => IpAddr::V6(Ipv6Addr::from([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, small])),
    };
    Tuple { customer: random.random_bool(0.7).then(|| word(random)), client, host: word(random), header: word(random) }
}

const USER: &str = "x-user";

fn key(hasher: &KeyHasher, parts: &Key, headers: &mut Fields, tuple: &Tuple) -> LimitKey {
    headers.clear();
    headers.push(USER, &tuple.header);
    let client = Some(tuple.client);
    let facts = Facts { host: &tuple.host, client, address: client, ..Facts::of(headers) };
    let resolved =
        Resolved { route: "all", path_pattern: "/**", customer: tuple.customer.as_deref(), ..Resolved::default() };
    let value = |part: &KeyPart| key::value(part, &facts, &resolved);
    let hashed = hasher.key("limit", Mode::Sticky, parts, value).unwrap();
    let known = hasher.clone().of_limits(["another", "limit"]);
    assert_eq!(known.key(LimitId(1), Mode::Sticky, parts, value), Ok(hashed));
    hashed.key
}

#[test]
fn a_million_tuples_have_as_many_keys_as_there_are_different_ones() {
    let parts = [
        KeyPart::Customer,
        KeyPart::ClientAddress,
        KeyPart::Host,
        KeyPart::Header(HeaderName::from_static(USER), Repeated::Deny),
    ];
    let (parts, mut headers) = (Key { parts: parts.to_vec() }, Fields::default());
    let hasher = KeyHasher::new(&[3; 16]);
    let mut random = StdRng::seed_from_u64(1);
    let mut tuples = HashSet::new();
    let mut keys = HashSet::new();
    for _ in 0..1_000_000 {
        let tuple = tuple(&mut random);
        keys.insert(key(&hasher, &parts, &mut headers, &tuple));
        tuples.insert(tuple);
    }
    assert_eq!(keys.len(), tuples.len());
    assert!(tuples.len() > 900_000, "the tuples are different enough to tell: {}", tuples.len());
}

#[test]
fn the_name_of_the_limit_and_the_order_of_the_parts_count() {
    let hasher = KeyHasher::new(&[3; 16]);
    let headers = Fields::default();
    let facts = Facts { method: "a", host: "b", ..Facts::of(&headers) };
    let resolved = Resolved { route: "b", path_pattern: "a", upstream_node: Some("a"), ..Resolved::default() };
    let value = |part: &KeyPart| key::value(part, &facts, &resolved);
    let of = |limit: &str, parts: &[KeyPart]| {
        hasher.key(limit, Mode::Sticky, &Key { parts: parts.to_vec() }, value).unwrap().key
    };
    let keys = [
        of("x", &[]),
        of("y", &[]),
        of("x", &[KeyPart::Method]),
        of("x", &[KeyPart::Host]),
        of("x", &[KeyPart::Method, KeyPart::Host]),
        of("x", &[KeyPart::Host, KeyPart::Method]),
        of("xa", &[KeyPart::Host]),
    ];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
}

#[test]
fn values_that_gateways_and_versions_share_never_change() {
    let parts = Key {
        parts: vec![
            KeyPart::Customer,
            KeyPart::ClientAddress,
            KeyPart::Header(HeaderName::from_static(USER), Repeated::Deny),
        ],
    };
    let mut headers = Fields::default();
    let tuple = Tuple {
        customer: Some("acme".to_owned()),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        host: "h".to_owned(),
        header: "a|b".to_owned(),
    };
    let stable = key(&KeyHasher::stable(), &parts, &mut headers, &tuple);
    assert_eq!(stable, LimitKey(183_123_317_176_293_697_726_016_253_721_429_734_147));
    assert_ne!(stable, key(&KeyHasher::new(&[3; 16]), &parts, &mut headers, &tuple));
    assert_eq!(parts.kind(), 15_841_845_490_791_582_189);
}

#[test]
fn keys_of_a_customer_have_one_home_where_nodes_divide_keys_and_no_other_keys_do() {
    let alone = KeyHasher::new(&[3; 16]);
    let divided = KeyHasher::new(&[3; 16]).divided();
    let mut headers = Fields::default();
    let tuple = |customer: &str, header: usize| Tuple {
        customer: Some(customer.to_owned()),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        host: "h".to_owned(),
        header: header.to_string(),
    };
    let by_both =
        Key { parts: vec![KeyPart::Header(HeaderName::from_static(USER), Repeated::Deny), KeyPart::Customer] };
    let mut keys = |hasher: &KeyHasher, parts: &Key, customer: &str| -> Vec<LimitKey> {
        (0..20).map(|header| key(hasher, parts, &mut headers, &tuple(customer, header))).collect()
    };
    let homes = |keys: &[LimitKey]| keys.iter().map(|key| key.hash_partition()).collect::<HashSet<_>>();
    let acme = keys(&divided, &by_both, "acme");
    assert_eq!((acme.iter().collect::<HashSet<_>>().len(), homes(&acme).len()), (20, 1));
    let whole = keys(&divided, &Key { parts: vec![KeyPart::Customer] }, "acme");
    assert_eq!(homes(&whole), homes(&acme));
    assert!(homes(&keys(&divided, &by_both, "other")).is_disjoint(&homes(&acme)));
    assert_eq!(homes(&keys(&alone, &by_both, "acme")).len(), 20);
    // a key without the customer as a part does not change
    let by_header = Key { parts: vec![KeyPart::Header(HeaderName::from_static(USER), Repeated::Deny)] };
    assert_eq!(keys(&divided, &by_header, "acme"), keys(&alone, &by_header, "acme"));
}

#[test]
fn a_share_covers_as_many_keys_as_it_says_and_a_larger_one_covers_them_too() {
    let (parts, mut headers) = (Key { parts: vec![KeyPart::Host] }, Fields::default());
    let covered = |share: Share, keys: &[LimitKey]| keys.iter().filter(|key| share.contains_key_hash(**key)).count();
    let keys: Vec<LimitKey> = (0..100_000)
        .map(|number: u32| {
            let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let tuple = Tuple { customer: None, client, host: number.to_string(), header: String::new() };
            key(&KeyHasher::stable(), &parts, &mut headers, &tuple)
        })
        .collect();
    for millionths in [0, 1_000, 125_000, 500_000, 999_000, 1_000_000] {
        let expected = 100_000 * i64::from(millionths) / 1_000_000;
        let found = i64::try_from(covered(Share(millionths), &keys)).unwrap();
        // five standard deviations at the widest
        assert!((found - expected).abs() < 800, "{millionths}: {found}");
    }
    assert_eq!((covered(Share(0), &keys), covered(Share::WHOLE, &keys)), (0, keys.len()));
    assert!(
        keys.iter().filter(|key| Share(1_000).contains_key_hash(**key)).all(|key| Share(1_001).contains_key_hash(*key))
    );
}
