//! Common and combined log format: `client ident user [time] "request" status bytes "referer" "user agent"`, also with
//! `host:port` in front, as Apache's `vhost_combined` has it, and behind what syslog or Docker put in front of a line.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr_iter, memchr2, memrchr};

use super::fields::WantedFields;
use super::record::{Record, Unreadable};
use super::stamp;
use crate::gateway::facts::read_address;
use crate::units::Nanos;

/// Reads lines. Remembers the last timestamp, because many lines have the same one.
#[derive(Debug, Default)]
pub(super) struct CommonReader {
    /// The last timestamp as written.
    text: Vec<u8>,
    time: Nanos,
}

/// The bytes between the timestamp, which is in brackets, and the request.
const BEFORE_REQUEST: &[u8] = b"] \"";

impl CommonReader {
    /// The record of a line. A request that is not one (`-`, or the bytes of a scanner) has no target.
    pub(super) fn read(&mut self, line: &[u8], wanted: &WantedFields) -> Result<Record, Unreadable> {
        let Preamble { host, client, user, time, rest } = Preamble::of(line).ok_or(Unreadable::Format)?;
        let (request, rest) = quoted(rest).ok_or(Unreadable::Format)?;
        let (method, target) = request_line(request).unzip();
        let (status, rest) = number_word(rest.trim_ascii_start());
        let (response_bytes, rest) = number_word(rest);
        let mut record = Record {
            logged: self.time(time).ok_or(Unreadable::Time)?,
            within_second: Some(Nanos::ZERO),
            host: host.map(<[u8]>::to_vec),
            client: Some(client.to_vec()),
            customer: unless_dash(user.trim_ascii()).map(unescaped_text),
            method: method.map(|method| String::from_utf8_lossy(method).into_owned()),
            target: target.map(|target| unescaped(target).into_owned()),
            status: status.and_then(|status| u16::try_from(status).ok()),
            response_bytes,
            ..Record::default()
        };
        if wanted.needs_combined_format() {
            let referer = rest.strip_prefix(b"\"").and_then(quoted);
            let agent = referer.and_then(|(_, rest)| quoted(rest.strip_prefix(b" \"")?));
            let values = [(wanted.referer, referer), (wanted.user_agent, agent)];
            let present = values.into_iter().filter_map(|(place, value)| Some((place?, unless_dash(value?.0)?)));
            record.headers.extend(present.map(|(place, value)| (place, unescaped_text(value))));
        }
        Ok(record)
    }

    /// The time of a timestamp, if it can be read.
    fn time(&mut self, text: &[u8]) -> Option<Nanos> {
        if self.text.is_empty() || self.text != text {
            self.time = stamp::common(text)?.time;
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        Some(self.time)
    }
}

/// The parts of a line before its request.
struct Preamble<'l> {
    host: Option<&'l [u8]>,
    client: &'l [u8],
    user: &'l [u8],
    time: &'l [u8],
    /// The line from the request on.
    rest: &'l [u8],
}

impl<'l> Preamble<'l> {
    /// Callers choose the name of the user, but servers escape its quotes: the first `] "` is in front of the request.
    fn of(line: &'l [u8]) -> Option<Self> {
        let is_end = |end: &usize| line.get(*end..).is_some_and(|rest| rest.starts_with(BEFORE_REQUEST));
        let (before, rest) = line.split_at_checked(memchr_iter(b']', line).find(is_end)?)?;
        let (caller, time) = before.split_at_checked(memrchr(b'[', before)?)?;
        let (first, others) = split(caller, b' ')?;
        let (second, user) = split(others, b' ')?;
        let (time, rest) = (time.get(1..)?, rest.get(BEFORE_REQUEST.len()..)?);
        // an address is not an ident: it is the client's, behind the host
        if str::from_utf8(second).is_ok_and(|word| word.parse::<IpAddr>().is_ok()) {
            let (_ident, user) = split(user, b' ')?;
            return Some(Self { host: Some(first), client: second, user, time, rest });
        }
        if second == NO_IDENT || read_address(first).is_some() {
            return Some(Self { host: None, client: first, user, time, rest });
        }
        let (client, user) = behind_prefix(user)?;
        Some(Self { host: None, client, user, time, rest })
    }
}

/// What servers write in place of an ident, which they do not know.
const NO_IDENT: &[u8] = b"-";

/// The client and the user of a line with words in front of them: the client is an address with no ident behind it.
fn behind_prefix(mut words: &[u8]) -> Option<(&[u8], &[u8])> {
    loop {
        let (word, others) = split(words, b' ')?;
        match split(others, b' ')? {
            (NO_IDENT, user) if read_address(word).is_some() => return Some((word, user)),
            _ => words = others,
        }
    }
}

/// The method and the target of a request line such as `GET /path HTTP/1.1`.
pub(super) fn request_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (method, rest) = split(text, b' ')?;
    let (target, version) = rest.split_at_checked(memrchr(b' ', rest)?)?;
    (version.starts_with(b" HTTP/") && !method.is_empty() && !target.is_empty()).then_some((method, target))
}

/// The parts before and after the first `sign`.
fn split(text: &[u8], sign: u8) -> Option<(&[u8], &[u8])> {
    let (before, rest) = text.split_at_checked(memchr(sign, text)?)?;
    Some((before, rest.get(1..)?))
}

/// The text up to the closing quote, as written (the opening quote is already read), and the rest. A backslash escapes the
/// next byte.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        match text.get(at)? {
            b'"' => return Some((text.get(..at)?, text.get(at + 1..)?)),
            _ => from = at + 2,
        }
    }
}

/// The text of a field; `None` if it is a dash or empty.
fn unless_dash(text: &[u8]) -> Option<&[u8]> {
    (!matches!(text, b"-" | b"")).then_some(text)
}

/// The first word of `text`, if it is a number, and the text after the space behind that word.
fn number_word(text: &[u8]) -> (Option<u64>, &[u8]) {
    let (word, rest) = split(text, b' ').unwrap_or((text, &[]));
    let digits = Some(word).filter(|word| word.iter().all(u8::is_ascii_digit));
    (digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok()), rest)
}

fn unescaped_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(bytes)).into_owned()
}

/// The bytes without the escapes of the server that wrote the log: `\xHH`, or a backslash before the byte itself.
fn unescaped(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', bytes).is_none() {
        return Cow::Borrowed(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'\\', [b'x', high, low, rest @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or_default();
                plain.extend(u8::try_from(digit(high) * 16 + digit(low)));
                rest
            }
            (b'\\', [hidden, rest @ ..]) => {
                plain.push(*hidden);
                rest
            }
            (byte, rest) => {
                plain.push(*byte);
                rest
            }
        };
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Record, Unreadable> {
        let wanted = WantedFields { referer: Some(0), user_agent: Some(1), ..WantedFields::default() };
        CommonReader::default().read(line.as_bytes(), &wanted)
    }

    const COMBINED: &str =
        r#"192.0.2.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326 "http://x/" "Agent \"7\"""#;

    #[test]
    fn a_combined_line_tells_all_that_it_holds() {
        let record = read(COMBINED).unwrap();
        assert_eq!(record.logged, Nanos::from_secs(971_211_336));
        assert_eq!((record.client.as_deref(), record.customer.as_deref()), (Some(&b"192.0.2.7"[..]), Some("ann")));
        assert_eq!((record.method.as_deref(), record.target.as_deref()), (Some("GET"), Some(&b"/a?b=c"[..])));
        assert_eq!((record.status, record.response_bytes), (Some(200), Some(2326)));
        assert_eq!(record.headers, [(0, "http://x/".into()), (1, "Agent \"7\"".into())]);
        let (common, _) = COMBINED.split_once(" \"http").unwrap();
        assert_eq!(read(common).unwrap(), Record { headers: Vec::new(), ..record });
    }

    #[test]
    fn a_field_that_a_line_lacks_is_left_open() {
        let record = read(r#"::1 - - [10/Oct/2000:13:55:36 -0700] "-" 408 - "-" "-""#).unwrap();
        assert_eq!((record.customer, record.method, record.target), (None, None, None));
        assert_eq!((record.status, record.response_bytes), (Some(408), None));
        assert!(record.headers.is_empty());
        for garbage in [r"\x16\x03\x01", "GET", "GET /x", " / HTTP/1.1", "\\\""] {
            let line = COMBINED.replace("GET /a?b=c HTTP/1.1", garbage);
            assert_eq!(read(&line).unwrap().target, None, "{garbage}");
        }
    }

    #[test]
    fn numbers_are_whole_words() {
        for (text, expected) in [
            ("200 2326", (Some(200), "2326")),
            ("200", (Some(200), "")),
            ("0 ", (Some(0), "")),
            ("- 7", (None, "7")),
            ("20x 7", (None, "7")),
            (" 7", (None, "7")),
            ("18446744073709551615 7", (Some(u64::MAX), "7")),
            ("18446744073709551616 7", (None, "7")),
            ("x", (None, "")),
            ("", (None, "")),
        ] {
            let (number, rest) = number_word(text.as_bytes());
            assert_eq!((number, str::from_utf8(rest).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn a_client_may_be_in_brackets() {
        let line = COMBINED.replace("192.0.2.7", "[2001:db8::7]:4711");
        let record = read(&line).unwrap();
        assert_eq!(record.client.as_deref(), Some(&b"[2001:db8::7]:4711"[..]));
        assert_eq!((record.logged, record.customer.as_deref()), (Nanos::from_secs(971_211_336), Some("ann")));
    }

    #[test]
    fn the_host_may_be_in_front_of_the_client() {
        for host in ["example.com:443", "example.com"] {
            let line = format!("{host} {COMBINED}");
            let expected = Record { host: Some(host.as_bytes().into()), ..read(COMBINED).unwrap() };
            assert_eq!(read(&line).unwrap(), expected);
        }
    }

    #[test]
    fn a_line_begins_behind_what_syslog_or_docker_put_in_front() {
        for prefix in [
            "Nov 26 12:00:00 web1 nginx: ",
            "<190>Nov 26 12:00:00 192.0.2.99 nginx: ",
            "2026-11-26T12:00:00+00:00 web1 nginx[12]: ",
            "nginx-1  | ",
            "nginx-1 | ",
        ] {
            assert_eq!(read(&format!("{prefix}{COMBINED}")), read(COMBINED), "{prefix}");
            // without an address it is not known where the line begins
            let named = COMBINED.replace("192.0.2.7", "host.example");
            assert_eq!(read(&format!("{prefix}{named}")), Err(Unreadable::Format), "{prefix}");
        }
        for client in ["host.example", "unix:"] {
            let named = COMBINED.replace("192.0.2.7", client).replace("ann", "x 192.0.2.9 - y");
            let record = read(&named).unwrap();
            assert_eq!(record.client.as_deref(), Some(client.as_bytes()));
            assert_eq!(record.customer.as_deref(), Some("x 192.0.2.9 - y"));
        }
    }

    #[test]
    fn the_name_of_a_user_hides_no_request() {
        for name in ["a[b", "a]b", "[", r#"x] \"GET"#, "a [10/Oct/2030:13:55:36 -0700]", r#""""#] {
            let line = COMBINED.replace("ann", name);
            let record = read(&line).unwrap();
            assert_eq!(
                (record.logged, record.method.as_deref()),
                (Nanos::from_secs(971_211_336), Some("GET")),
                "{name}"
            );
            assert_eq!(record.customer.as_deref(), Some(name.replace('\\', "").as_str()));
        }
    }

    #[test]
    fn escapes_are_undone() {
        let line = COMBINED.replace("/a?b=c", r#"/\x22a\"\\"#).replace("ann", "a\\x20b");
        let record = read(&line).unwrap();
        assert_eq!(record.target.as_deref(), Some(&b"/\"a\"\\"[..]));
        assert_eq!(record.customer.as_deref(), Some("a b"));
    }

    #[test]
    fn a_line_of_another_form_is_an_error() {
        assert_eq!(read("error: no space left"), Err(Unreadable::Format));
        assert_eq!(read(&COMBINED.replace("Oct", "Okt")), Err(Unreadable::Time));
        for cut in 0..60 {
            assert!(read(COMBINED.get(..cut).unwrap()).is_err());
        }
        assert_eq!(read(COMBINED.get(..40).unwrap()), Err(Unreadable::Format));
    }
}
