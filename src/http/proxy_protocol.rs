//! The PROXY protocol: a header in which a load balancer names the client of a connection.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, versions 1 and 2. Bytes after the header are not read.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, in bytes.
const MAX_LINE: usize = 107;
/// The maximum length that version 2 may declare: the longest addresses, and room for extensions.
const MAX_DECLARED: u16 = 536;

/// The longest header, in bytes: one of version 2.
pub const MAX_HEADER: usize = 16 + MAX_DECLARED as usize;

/// The address of the client; `None` if the connection is the balancer's own or the client is unknown. Reads exactly the
/// header from the stream, at most [`MAX_HEADER`] bytes.
///
/// Errors: those of the stream, and `InvalidData` for bytes that are not such a header.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut begin = [0; SIGNATURE.len()];
    stream.read_exact(&mut begin).await?;
    match begin {
        begin if begin == *SIGNATURE => read_binary(stream).await,
        begin if begin.starts_with(b"PROXY ") => read_line(stream, &begin).await,
        _ => Err(bad("a trusted peer begins without the PROXY protocol")),
    }
}

async fn read_line(stream: &mut (impl AsyncRead + Unpin), begin: &[u8]) -> io::Result<Option<IpAddr>> {
    let mut line = begin.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_LINE || line.ends_with(b"\n") {
            return Err(bad("the line of the PROXY protocol does not end"));
        }
        line.push(stream.read_u8().await?);
    }
    let text = str::from_utf8(&line).map_err(|_| bad("the line of the PROXY protocol is not ASCII"))?;
    from_line(text.trim_end_matches("\r\n"))
}

fn from_line(line: &str) -> io::Result<Option<IpAddr>> {
    const BAD: &str = "the line of the PROXY protocol cannot be read";
    let words: Vec<&str> = line.split(' ').collect();
    let is_port = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    match *words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", family @ ("TCP4" | "TCP6"), from, to, from_port, to_port] => {
            let address = |text: &str| text.parse::<IpAddr>().map_err(|_| bad(BAD));
            let (from, to) = (address(from)?, address(to)?);
            let is_of_family = |address: &IpAddr| address.is_ipv4() == (family == "TCP4");
            match [from, to].iter().all(is_of_family) && [&from_port, &to_port].into_iter().all(is_port) {
                true => Ok(Some(from)),
                false => Err(bad(BAD)),
            }
        }
        _ => Err(bad(BAD)),
    }
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    const BAD: &str = "the head of the PROXY protocol cannot be read";
    let (command, family, length) = (stream.read_u8().await?, stream.read_u8().await?, stream.read_u16().await?);
    if length > MAX_DECLARED {
        return Err(bad("the PROXY protocol says too much"));
    }
    let mut said = vec![0; usize::from(length)];
    stream.read_exact(&mut said).await?;
    match (command, family) {
        // LOCAL: the balancer's own connection, such as a health check
        (0x20, _) => Ok(None),
        (0x21, 0x11) => {
            first::<4>(&said, 12).map(|address| Some(Ipv4Addr::from(address).into())).ok_or_else(|| bad(BAD))
        }
        (0x21, 0x21) => {
            first::<16>(&said, 36).map(|address| Some(Ipv6Addr::from(address).into())).ok_or_else(|| bad(BAD))
        }
        // not TCP, or without an IP address
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Ok(None),
        _ => Err(bad(BAD)),
    }
}

/// The first bytes of `said`, which must have at least `least` bytes.
fn first<const LENGTH: usize>(said: &[u8], least: usize) -> Option<[u8; LENGTH]> {
    said.first_chunk().copied().filter(|_| said.len() >= least)
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of reading `sent`, and the number of bytes left.
    fn reading(mut sent: &[u8]) -> (io::Result<Option<IpAddr>>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (runtime.block_on(read(&mut sent)), sent.len())
    }

    fn binary(command: u8, family: u8, said: &[u8]) -> Vec<u8> {
        let length = u16::try_from(said.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family][..], &length, said].concat()
    }

    #[test]
    fn both_versions_say_whom_a_connection_is_for_and_nothing_more_is_read() {
        let v4 = [&[192, 0, 2, 1, 10, 0, 0, 1, 0, 80, 0, 81][..], b"\x04\0\0"].concat();
        let v6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1], &[0; 20]].concat();
        for (sent, client) in [
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n".to_vec(), Some("192.0.2.1")),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n".to_vec(), Some("2001:db8::1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("192.0.2.1")),
            (binary(0x21, 0x21, &v6), Some("2001:db8::1")),
            (binary(0x20, 0x00, b""), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            let (read, left) = reading(&[&sent[..], b"GET / HTTP/1.1"].concat());
            assert_eq!((read.unwrap(), left), (client.map(|client| client.parse().unwrap()), 14), "{sent:?}");
            for end in 0..sent.len() {
                assert!(reading(&sent[..end]).0.is_err(), "{end} bytes of {sent:?}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_header_are_refused() {
        for sent in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.1 10.0.0.1 56324\r\n",
            b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 1 99999\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 1 +2\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\nPROXY TCP4",
            b"PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n",
            &[b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat(),
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x22, 0x11, &[0; 12]),
            &binary(0x21, 0x13, &[0; 12]),
            &binary(0x21, 0x11, &[0; 11]),
            &binary(0x21, 0x21, &[0; 35]),
            &binary(0x21, 0x11, &[0; 600]),
        ] {
            assert!(reading(sent).0.is_err(), "{sent:?}");
        }
    }
}
