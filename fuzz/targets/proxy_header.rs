//! Heads of the PROXY protocol: however they come in, and not a byte more than the head is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::http::proxy_protocol::{MAX_HEADER, read};

use super::input::Pieces;

fn reading(data: &[u8], most: usize) -> (Option<Option<IpAddr>>, usize) {
    let mut stream = Pieces { left: data, most };
    let read = match pin!(read(&mut stream)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => read.ok(),
        Poll::Pending => panic!("all bytes are there"),
    };
    (read, data.len() - stream.left.len())
}

pub(crate) fn run(data: &[u8]) {
    let (said, length) = reading(data, usize::MAX);
    assert!(length <= MAX_HEADER);
    assert_eq!(reading(data, 1), (said, length), "a byte at a time");
    assert_eq!(said, reference(data));
    if said.is_some() {
        let head = &data[..length];
        assert_eq!(reading(head, 7), (said, length), "what comes behind it is not looked at");
        assert_eq!(reading(&head[..length - 1], usize::MAX).0, None, "a head that is cut is none");
    }
}

fn reference(data: &[u8]) -> Option<Option<IpAddr>> {
    match data {
        [
            b'\r',
            b'\n',
            b'\r',
            b'\n',
            0,
            b'\r',
            b'\n',
            b'Q',
            b'U',
            b'I',
            b'T',
            b'\n',
            command,
            family,
            high,
            low,
            rest @ ..,
        ] => {
            let length = usize::from(*high) * 256 + usize::from(*low);
            let said = rest.get(..length).filter(|_| length <= 536)?;
            match (command, family) {
                (0x20, _) | (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Some(None),
                (0x21, 0x11) if length >= 12 => {
                    Some(Some(IpAddr::V4(Ipv4Addr::new(said[0], said[1], said[2], said[3]))))
                }
                (0x21, 0x21) if length >= 36 => {
                    let bits = said[..16].iter().fold(0, |bits: u128, byte| bits << 8 | u128::from(*byte));
                    Some(Some(IpAddr::V6(Ipv6Addr::from_bits(bits))))
                }
                _ => None,
            }
        }
        data => {
            let end = data.windows(2).take(106).position(|two| two == b"\r\n")?;
            let line = str::from_utf8(&data[..end]).ok()?;
            if line.contains('\n') {
                return None;
            }
            if line == "PROXY UNKNOWN" || line.starts_with("PROXY UNKNOWN ") {
                return Some(None);
            }
            let rest = line.strip_prefix("PROXY TCP")?;
            let (family, rest) = rest.split_once(' ')?;
            let words: Vec<&str> = rest.split(' ').collect();
            let [from, to, ports @ ..] = &*words else { return None };
            let [_, _] = ports else { return None };
            let is_port = |word: &&str| word.parse::<u16>().is_ok() && !word.starts_with('+');
            let (from, to): (IpAddr, IpAddr) = (from.parse().ok()?, to.parse().ok()?);
            let fits = match family {
                "4" => from.is_ipv4() && to.is_ipv4(),
                "6" => from.is_ipv6() && to.is_ipv6(),
                _ => false,
            };
            (fits && ports.iter().all(is_port)).then_some(Some(from))
        }
    }
}
