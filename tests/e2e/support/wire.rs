//! HTTP/1.1 on a socket, in bytes: heads, and bodies by length, in chunks or until the connection closes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::PATIENCE;

/// The first line and the fields of a message.
#[derive(Clone, Debug)]
pub struct Head {
    /// The bytes as received, with the empty line at the end.
    pub raw: Vec<u8>,
    pub first_line: String,
    pub fields: Vec<(String, String)>,
}

impl Head {
    fn parse(raw: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Self { raw, first_line, fields: lines.filter_map(field).collect() }
    }

    /// The values of all fields of this name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of the only field of this name.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} is there more than once: {self:?}");
        all.first().copied()
    }

    /// The position-th word of the first line.
    pub fn word(&self, position: usize) -> &str {
        self.first_line.split(' ').nth(position).unwrap_or_default()
    }

    fn is_chunked(&self) -> bool {
        self.all("transfer-encoding").iter().any(|value| value.eq_ignore_ascii_case("chunked"))
    }

    fn content_length(&self) -> Option<u64> {
        self.all("content-length").first()?.parse().ok()
    }
}

/// The framing of a message's body, with the number of remaining bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunks,
    UntilClose,
    Over,
}

impl Framing {
    pub fn of_request(head: &Head) -> Self {
        match (head.is_chunked(), head.content_length()) {
            (true, _) => Self::Chunks,
            (false, Some(length)) => Self::Length(length),
            (false, None) => Self::Over,
        }
    }

    pub fn of_response(head: &Head, to_head_request: bool) -> Self {
        let status = head.word(1);
        if to_head_request || status.starts_with('1') || matches!(status, "204" | "304") {
            return Self::Over;
        }
        match Self::of_request(head) {
            Self::Over => Self::UntilClose,
            framing => framing,
        }
    }
}

/// A connection, with the bytes that were read but not used yet.
#[derive(Debug)]
pub struct Wire {
    pub stream: TcpStream,
    ahead: Vec<u8>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, ahead: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    pub fn close(&self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }

    /// Reads more bytes; false at the end of the stream.
    fn more(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let length = self.stream.read(&mut buffer)?;
        self.ahead.extend(buffer.iter().take(length));
        Ok(length > 0)
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        self.ahead.drain(..length).collect()
    }

    fn need(&mut self) -> io::Result<()> {
        if self.more()? { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|pair| pair == b"\r\n") {
                let mut line = self.take(end + 2);
                line.truncate(end);
                return Ok(line);
            }
            self.need()?;
        }
    }

    /// The next head; `None` if the other side closes the connection before one.
    pub fn head(&mut self) -> io::Result<Option<Head>> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.ahead[looked..].windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(Some(Head::parse(self.take(looked + end + 4))));
            }
            looked = self.ahead.len().saturating_sub(3);
            if !self.more()? {
                return if self.ahead.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The next part of the body as it arrives; `None` at its end.
    pub fn part(&mut self, framing: &mut Framing) -> io::Result<Option<Vec<u8>>> {
        match *framing {
            Framing::Over | Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                if self.ahead.is_empty() {
                    self.need()?;
                }
                let length = self.ahead.len().min(usize::try_from(left).unwrap());
                *framing = Framing::Length(left - length as u64);
                Ok(Some(self.take(length)))
            }
            Framing::UntilClose => {
                if self.ahead.is_empty() && !self.more()? {
                    *framing = Framing::Over;
                    return Ok(None);
                }
                let length = self.ahead.len();
                Ok(Some(self.take(length)))
            }
            Framing::Chunks => {
                let size = String::from_utf8_lossy(&self.line()?).into_owned();
                let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                    .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                if size == 0 {
                    while !self.line()?.is_empty() {}
                    *framing = Framing::Over;
                    return Ok(None);
                }
                while self.ahead.len() < size + 2 {
                    self.need()?;
                }
                let mut chunk = self.take(size + 2);
                chunk.truncate(size);
                Ok(Some(chunk))
            }
        }
    }

    /// The whole body, and whether it is complete.
    pub fn content(&mut self, mut framing: Framing) -> (Vec<u8>, bool) {
        let mut content = Vec::new();
        loop {
            match self.part(&mut framing) {
                Ok(Some(part)) => content.extend(part),
                Ok(None) => return (content, true),
                Err(_) => return (content, false),
            }
        }
    }

    /// Whether the other side sends something, or closes the connection, before the read times out.
    pub fn has_more(&mut self) -> bool {
        !self.ahead.is_empty()
            || match self.more() {
                Ok(_) => true,
                Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            }
    }

    /// Whether the other side closes the connection without a further byte.
    pub fn is_ended(&mut self) -> bool {
        self.ahead.is_empty()
            && match self.more() {
                Ok(more) => !more,
                Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            }
    }
}

/// `bytes` as one chunk.
pub fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
