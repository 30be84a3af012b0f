use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::http::body::{Decoder, Step};

const BOUNDS: HeadBounds = HeadBounds { first_line: 300, fields: 4096 };

/// Reads a stream that arrives in parts of these lengths, which repeat. Returns the requests that were read completely,
/// the bytes read of the last one, and the refusal, if there was one.
fn read(stream: &[u8], parts: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>, Option<Refused>) {
    let (mut whole, mut current, mut held, mut arrived) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let (mut reader, mut head, mut body) = (HeadReader::default(), RequestHead::default(), None::<Decoder>);
    let mut parts = parts.iter().copied().cycle();
    loop {
        let taken = match &mut body {
            None => match reader.request(&held, BOUNDS, &mut head) {
                Ok(Some(length)) => {
                    body = Some(Decoder::new(head.framing));
                    length
                }
                Ok(None) => 0,
                Err(refused) => return (whole, current, Some(refused)),
            },
            Some(decoder) => match decoder.step(&held) {
                Ok(Step::Skip(length)) => length,
                Ok(Step::Data(length)) => {
                    decoder.consumed(length);
                    length
                }
                Ok(Step::NeedMore) => 0,
                Ok(Step::End) => {
                    whole.push(std::mem::take(&mut current));
                    (reader, body) = (HeadReader::default(), None);
                    continue;
                }
                Err(refused) => return (whole, current, Some(refused)),
            },
        };
        current.extend(held.drain(..taken));
        if taken > 0 {
            continue;
        }
        if arrived == stream.len() {
            return (whole, current, None);
        }
        let next = stream.len().min(arrived + parts.next().unwrap_or(1).max(1));
        held.extend_from_slice(&stream[arrived..next]);
        arrived = next;
    }
}

/// The result of an independent reader for one whole request: the length of its head, and its content.
fn read_otherwise(request: &[u8]) -> Option<(usize, Vec<u8>)> {
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(length) = head.parse(request).ok()? else { return None };
    let body = &request[length..];
    let named = |name: &str| {
        let fields = head.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        fields.map(|field| String::from_utf8_lossy(field.value).into_owned()).collect::<Vec<_>>()
    };
    let content = match (named("content-length").as_slice(), named("transfer-encoding").as_slice()) {
        ([], []) => (body.is_empty()).then(Vec::new),
        ([said], []) => (said.parse() == Ok(body.len())).then(|| body.to_vec()),
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => unchunk(body),
        _ => None,
    };
    content.map(|content| (length, content))
}

/// The content of a chunked body, if the body ends exactly where `body` does.
fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let httparse::Status::Complete((line, size)) = httparse::parse_chunk_size(body).ok()? else { return None };
        body = &body[line..];
        if size == 0 {
            let trailers = body.strip_suffix(b"\r\n")?;
            let whole = trailers.is_empty() || (trailers.ends_with(b"\r\n") && !trailers.starts_with(b"\r\n"));
            return (whole && !trailers.windows(4).any(|bytes| bytes == b"\r\n\r\n")).then_some(content);
        }
        let (chunk, rest) = body.split_at_checked(usize::try_from(size).ok()?)?;
        content.extend_from_slice(chunk);
        body = rest.strip_prefix(b"\r\n")?;
    }
}

#[test]
fn requests_that_come_together_are_read_one_by_one() {
    const FIRST: &[u8] = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    const SECOND: &[u8] =
        b"POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0\r\nsum: 1\r\n\r\n";
    const THIRD: &[u8] = b"\r\nGET /c HTTP/1.1\r\nhost: a\r\n\r\n";
    let stream = [FIRST, SECOND, THIRD].concat();
    for part in [1, 2, 3, 7, 64, stream.len()] {
        let (whole, rest, refused) = read(&stream, &[part]);
        assert_eq!((whole, rest.len(), refused), (vec![FIRST.into(), SECOND.into(), THIRD.into()], 0, None), "{part}");
    }
}

#[test]
fn the_end_of_a_chunked_body_is_read_when_all_of_it_is_here() {
    let mut body = Decoder::new(Framing::Chunked);
    assert_eq!((body.step(b"1\r\nx"), body.step(b"x\r\n")), (Ok(Step::Skip(3)), Ok(Step::Data(1))));
    assert!(body.ends_behind(1, b"\r\n0\r\n\r\n") && !body.ends_behind(1, b"\r\n0\r\nsum: 1\r\n\r\n"));
    body.consumed(1);
    assert_eq!(body.step(b"\r\n0\r\n"), Ok(Step::Skip(2)));
    assert_eq!(body.step(b"0\r\n\r"), Ok(Step::NeedMore));
    assert_eq!((body.step(b"0\r\n\r\nGET"), body.is_over()), (Ok(Step::Skip(5)), true));
}

fn with(field: &[u8]) -> Result<Option<Framing>, Refused> {
    let (mut head, request) = (RequestHead::default(), [b"POST / HTTP/1.1\r\n", field, b"\r\n\r\n"].concat());
    let read = HeadReader::default().request(&request, BOUNDS, &mut head)?;
    Ok(read.map(|_| head.framing))
}

#[test]
fn a_request_says_in_one_way_how_long_its_body_is() {
    assert_eq!(with(b"host: a"), Ok(Some(Framing::Empty)));
    assert_eq!(with(b"Content-Length:  12\t"), Ok(Some(Framing::Length(12))));
    assert_eq!(with(b"content-length: 0"), Ok(Some(Framing::Empty)));
    assert_eq!(with(b"transfer-encoding: Chunked"), Ok(Some(Framing::Chunked)));
    assert_eq!(with(b"content-length: 18446744073709551615"), Ok(Some(Framing::Length(u64::MAX))));
    for field in [
        &b"content-length: 1, 1"[..],
        b"content-length: +1",
        b"content-length:",
        b"content-length: 1 1",
        b"content-length: 18446744073709551616",
        b"content-length: 0x1",
        b"content-length: 1\r\ncontent-length: 1",
        b"content-length: 1\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        b"transfer-encoding: xchunked",
        b"transfer-encoding: chunked, gzip",
        b"transfer-encoding: chunked, chunked",
        b"transfer-encoding: ,chunked",
        b"transfer-encoding: chunked,",
        b"transfer-encoding: gzip;q=1, chunked",
        b"transfer-encoding:",
        b"transfer-encoding : chunked",
        b" host: a",
        b"nonsense",
        b": a",
        b"x: a\0",
        b"x: a\rb",
        b"x: a\x7f",
        b"x\xff: a",
        b"connection: close, Host",
        b"connection: x-forwarded-for",
        b"connection: a, b, c, d, e, f, g, h, i, j",
    ] {
        assert!(matches!(with(field), Err(Refused::Malformed(_))), "{}", field.escape_ascii());
    }
    assert_eq!(with(b"transfer-encoding: gzip, chunked"), Err(Refused::CodingUnknown));
    let old = read(b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", &[100]).2;
    assert!(matches!(old, Some(Refused::Malformed(_))));
}

#[test]
fn a_first_line_is_three_words() {
    for line in [
        &b"GET /a b HTTP/1.1"[..],
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET /",
        b"GET / HTTP/1.2",
        b"GET / HTTP/2.0",
        b"GET / http/1.1",
        b"GET /\t HTTP/1.1",
        b"GET /#a HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"G\0T / HTTP/1.1",
    ] {
        let refused = read(&[line, b"\r\n\r\n"].concat(), &[1000]).2;
        assert!(matches!(refused, Some(Refused::Malformed(_))), "{}", line.escape_ascii());
    }
    assert_eq!(read(b"M-SEARCH * HTTP/1.0\r\n\r\n", &[3]).0.len(), 1);
}

/// The framing of the body of a response with this head to a GET.
fn response(head: &str) -> Result<Framing, Unreadable> {
    let mut response = ResponseHead::default();
    HeadReader::default().response(format!("{head}\r\n\r\n").as_bytes(), &mut response)?.unwrap();
    response.framing("GET")
}

#[test]
fn a_response_says_in_one_way_where_it_ends() {
    assert_eq!(response("HTTP/1.1 200 OK\r\ncontent-length: 5"), Ok(Framing::Length(5)));
    assert_eq!(response("HTTP/1.1 200\r\ntransfer-encoding: chunked"), Ok(Framing::Chunked));
    assert_eq!(response("HTTP/1.1 200\r\ntransfer-encoding \t: chunked"), Ok(Framing::Chunked));
    assert_eq!(response("HTTP/1.0 200 OK\nx: y"), Ok(Framing::UntilClose));
    assert_eq!(response("HTTP/1.1 204 No Content\r\ncontent-length: 5"), Ok(Framing::Empty));
    assert_eq!(response("HTTP/1.1 304 Not Modified"), Ok(Framing::Empty));
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5",
        "HTTP/1.1 200 OK\r\ncontent-length: five",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked",
        "HTTP/1.1 200 OK\r\nx y: z",
        "HTTP/1.1 200 OK\r\nx: y\r\n : z",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/2.0 200 OK",
        "nonsense",
    ] {
        assert!(response(head).is_err(), "{head}");
    }
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused() {
    for chunks in [
        &b"0x1\r\nx\r\n0\r\n\r\n"[..],
        b"+1\r\nx\r\n0\r\n\r\n",
        b"-1\r\nx\r\n0\r\n\r\n",
        b" 1\r\nx\r\n0\r\n\r\n",
        b"1 \r\nx\r\n0\r\n\r\n",
        b"1;a\nb\r\nx\r\n0\r\n\r\n",
        b"1;a\0b\r\nx\r\n0\r\n\r\n",
        b"1;a\rb\r\nx\r\n0\r\n\r\n",
        b"00000000000000001\r\nx\r\n0\r\n\r\n",
        b"10000000000000000\r\nx\r\n0\r\n\r\n",
        b"1\r\nxyz0\r\n\r\n",
        b"1\r\nx0\r\n\r\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1\nx\n0\n\n",
        b"1\r\nx\r\n0\n\n",
        b"1\r\nx\r\n0\r\n\n",
        b"1\r\nx\r\n0\r\nnonsense\r\n\r\n",
        b"1\r\nx\r\n0\r\n folded: x\r\n\r\n",
        b"1\r\nx\r\n\r\n",
        b"g\r\n",
        b"\r\n",
    ] {
        let stream = [b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", chunks].concat();
        for part in [1, 5, stream.len()] {
            let (whole, _, refused) = read(&stream, &[part]);
            assert_eq!(whole.len(), 0, "{}", chunks.escape_ascii());
            assert!(matches!(refused, Some(Refused::Malformed(_))), "{}: {refused:?}", chunks.escape_ascii());
        }
    }
}

#[test]
fn no_more_is_held_than_the_bounds_say() {
    let refused = |stream: &[u8]| read(stream, &[100]).2;
    assert!(matches!(refused(&b"x".repeat(1000)), Some(Refused::TargetTooLong(_))));
    let method = [b"x".repeat(1000), b" / HTTP/1.1\r\n\r\n".to_vec()].concat();
    for part in [100, method.len()] {
        assert!(matches!(read(&method, &[part]).2, Some(Refused::TargetTooLong(_))), "{part}");
    }
    let long = [b"GET / HTTP/1.1\r\n".to_vec(), b"x: ".to_vec(), b"y".repeat(10_000)].concat();
    assert!(matches!(refused(&long), Some(Refused::HeadTooLarge(_))));
    let many = [b"GET / HTTP/1.1\r\n".to_vec(), b"x: y\r\n".repeat(2000)].concat();
    assert!(matches!(refused(&many), Some(Refused::HeadTooLarge(_))));
    let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    assert!(matches!(refused(&[chunked.clone(), b"1;".repeat(1000)].concat()), Some(Refused::Malformed(_))));
    assert!(matches!(
        refused(&[chunked, b"0\r\n".to_vec(), b"x: y\r\n".repeat(5000)].concat()),
        Some(Refused::HeadTooLarge(_))
    ));
    // bytes that are not text are refused at the first byte
    assert!(matches!(refused(b"\x16\x03\x01"), Some(Refused::Malformed(_))));
}

#[test]
fn a_server_says_for_how_long_it_keeps_a_connection() {
    let said = |value: &str| {
        let mut head = ResponseHead::default();
        head.fields.push("Keep-Alive", value);
        head.keep_alive_timeout()
    };
    assert_eq!((said("timeout=5, max=100"), said("max=1,Timeout = \"3\"")), (Some(5), Some(3)));
    for unsaid in ["max=5", "timeout=-3", "timeout=99999999999999999999", "timeout", ""] {
        assert_eq!(said(unsaid), None, "{unsaid}");
    }
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    vec(select(&b"ab\r\n0123:; GETPOST/HTTP1."[..]), 0..40)
}

fn a_request() -> impl Strategy<Value = Vec<u8>> {
    let plain = Just(b"GET /x?y HTTP/1.1\r\nhost: a\r\nx-y: \xff z\r\n\r\n".to_vec());
    let with_length = content().prop_map(|content| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", content.len());
        [head.into_bytes(), content].concat()
    });
    let in_chunks = (vec((content(), any::<bool>()), 0..4), any::<bool>()).prop_map(|(chunks, trailer)| {
        let mut request = b"PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for (chunk, extended) in chunks.iter().filter(|(chunk, _)| !chunk.is_empty()) {
            let extension = if *extended { ";a=\"b c\"" } else { "" };
            request.extend(format!("{:X}{extension}\r\n", chunk.len()).into_bytes());
            request.extend_from_slice(chunk);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(if trailer { b"0\r\nSum: 1\r\n\r\n" } else { b"0\r\n\r\n" });
        request
    });
    prop_oneof![plain, with_length, in_chunks]
}

/// One mutation of a stream: the bytes at a position are replaced by others.
fn a_mutation() -> impl Strategy<Value = (prop::sample::Index, usize, Vec<u8>)> {
    let bits: &[&[u8]] = &[
        b"",
        b"\r",
        b"\n",
        b"\r\n",
        b" ",
        b"\0",
        b":",
        b"0",
        b"1",
        b"f",
        b"\t",
        b"\xff",
        b"#",
        b";",
        b"Content-Length: 1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"HTTP/1.0",
    ];
    (any::<prop::sample::Index>(), 0..3_usize, select(bits.to_vec()).prop_map(<[u8]>::to_vec))
}

proptest! {
    #[test]
    fn requests_are_told_apart_however_they_arrive(
        sent in vec(a_request(), 1..5),
        parts in vec(1..60_usize, 1..6),
    ) {
        let (whole, rest, refused) = read(&sent.concat(), &parts);
        prop_assert_eq!((whole, rest.len(), refused), (sent, 0, None));
    }

    #[test]
    fn a_request_is_read_alike_by_another_reader_however_it_arrives(
        sent in vec(a_request(), 1..4),
        mutations in vec(a_mutation(), 1..4),
        parts in vec(1..60_usize, 1..6),
    ) {
        let mut stream = sent.concat();
        for (place, length, bytes) in mutations {
            let place = place.index(stream.len() + 1);
            let end = stream.len().min(place + length);
            stream.splice(place..end, bytes);
        }
        let at_once = read(&stream, &[stream.len()]);
        let (whole, _, refused) = read(&stream, &parts);
        prop_assert_eq!((&at_once.0, at_once.2.is_some()), (&whole, refused.is_some()));
        for request in &at_once.0 {
            prop_assert!(read_otherwise(request).is_some(), "{}", request.escape_ascii());
        }
    }
}
