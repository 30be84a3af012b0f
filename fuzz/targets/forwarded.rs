//! Whose word about a client's address is believed: the same as a slow and plain walk finds.

use std::net::{IpAddr, SocketAddr};

use http::HeaderValue;
use tollgate::fields::Fields;
use tollgate::gateway::facts::{client_address, read_address};
use tollgate::ruleset::{AddressHeader, ClientAddress, TrustedPeers};
use tollgate::units::Prefixes;

use super::input::Input;

const PEERS: [&str; 7] =
    ["10.0.0.1", "192.0.2.1", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8:1::1", "127.0.0.1", "unix"];
const TRUSTED: [&[&str]; 5] =
    [&[], &["10.0.0.0/8"], &["10.0.0.0/8", "2001:db8::/48"], &["0.0.0.0/0", "::/0"], &["127.0.0.0/8", "192.0.2.1/32"]];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    // the last one has come over a path
    let peer: Option<IpAddr> = input.one_of(&PEERS).parse().ok();
    let networks = input.one_of(&TRUSTED).iter().map(|net| net.parse().unwrap()).collect();
    let trusted_proxies = TrustedPeers { networks, unix: !input.0.len().is_multiple_of(2) };
    let prefixes = Prefixes { ipv4: 32, ipv6: 48 + input.byte() % 81 };
    let rules = ClientAddress { trusted_proxies, prefixes, ..ClientAddress::default() };
    let mut headers = Fields::default();
    for line in input.0.split(|byte| *byte == b'\n') {
        assert_eq!(read_address(line), library(line), "addresses are those that the library reads");
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.push("x-forwarded-for", value);
        }
    }
    from_the_right(peer, input.0, &rules);
    let found = client_address(peer, &headers, &rules);
    assert_eq!(found, reference(peer, &headers, &rules));
    if let Some(address) = found {
        assert_eq!(address, address.to_canonical());
        let counted = prefixes.network(address);
        assert_eq!(prefixes.network(counted), counted);
        assert_eq!(counted.is_ipv4(), address.is_ipv4());
        if let (IpAddr::V6(counted), IpAddr::V6(address)) = (counted, address) {
            let hidden = 128 - u32::from(prefixes.ipv6);
            let differs = counted.to_bits() ^ address.to_bits();
            assert!(differs == 0 || 128 - differs.leading_zeros() <= hidden);
        }
    }
}

/// What a client sends itself, in front of what proxies add, is what it is taken for only where all proxies are trusted.
fn from_the_right(peer: Option<IpAddr>, lines: &[u8], rules: &ClientAddress) {
    const CLAIMED: &str = "203.0.113.9";
    let rules = ClientAddress { header: AddressHeader::Forwarded, ..rules.clone() };
    let found = |first: Option<String>| {
        let mut headers = Fields::default();
        first.iter().for_each(|first| headers.push("forwarded", first.as_bytes()));
        for line in lines.split(|byte| *byte == b'\n') {
            if let Ok(value) = HeaderValue::from_bytes(line) {
                headers.push("forwarded", value);
            }
        }
        client_address(peer, &headers, &rules)
    };
    let (honest, claimed) = (found(None), found(Some(format!("for={CLAIMED}"))));
    assert!(claimed == honest || claimed == CLAIMED.parse().ok());
}

/// An address, perhaps in brackets or with a port, and all of it perhaps in quotes; none with a zone.
fn library(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok().filter(|text| !text.contains('%'))?;
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(bracketed).or_else(with_port)
}

/// All lines as one, from the right.
fn reference(peer: Option<IpAddr>, headers: &Fields, rules: &ClientAddress) -> Option<IpAddr> {
    let TrustedPeers { networks, unix } = &rules.trusted_proxies;
    let is_trusted = |address: &Option<IpAddr>| match address {
        Some(address) => networks.iter().any(|net| net.contains(address)),
        None => *unix,
    };
    let mut client = peer.map(|peer| peer.to_canonical());
    let lines: Vec<&[u8]> = headers.get_all("x-forwarded-for").collect();
    let all = lines.join(&b","[..]);
    let mut hops: Vec<&[u8]> = all.split(|byte| *byte == b',').collect();
    if lines.is_empty() {
        hops.clear();
    }
    while is_trusted(&client)
        && let Some(hop) = hops.pop()
    {
        client = Some(library(hop.trim_ascii())?.to_canonical());
    }
    client
}
