use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const MOST: HeadBounds = HeadBounds { first_line: 300, fields: 4096 };

/// What comes of a stream that arrives in parts of these lengths, over and over: the requests that went on whole, what
/// went on of the last one, and why that ended, if it did.
fn read(stream: &[u8], parts: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>, Option<Refused>) {
    let (mut requests, mut whole, mut current) = (Requests::new(MOST), Vec::new(), Vec::new());
    let (mut held, mut arrived) = (Vec::new(), 0);
    let mut parts = parts.iter().copied().cycle();
    loop {
        match requests.admit(&held) {
            Ok(admitted) => current.extend(held.drain(..admitted)),
            Err(refused) => return (whole, current, Some(refused)),
        }
        if requests.is_over() {
            whole.push(std::mem::take(&mut current));
            requests = Requests::new(MOST);
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

/// What an independent reader makes of one whole request: its head's length and its content.
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

/// The content of a body in chunks that ends where `body` does.
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
fn what_is_behind_a_request_waits_for_its_turn() {
    const FIRST: &[u8] = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    const SECOND: &[u8] =
        b"POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0\r\nsum: 1\r\n\r\n";
    const THIRD: &[u8] = b"\r\nGET /c HTTP/1.1\r\nhost: a\r\n\r\n";
    let stream = [FIRST, SECOND, THIRD].concat();
    for part in [1, 2, 3, 7, 64, stream.len()] {
        let (whole, rest, refused) = read(&stream, &[part]);
        assert_eq!((whole, rest.len(), refused), (vec![FIRST.into(), SECOND.into(), THIRD.into()], 0, None), "{part}");
    }
    let mut requests = Requests::new(MOST);
    assert_eq!(requests.admit(&stream), Ok(FIRST.len()));
    assert_eq!(requests.admit(&stream[FIRST.len()..]), Ok(0), "not before it is asked for");
}

#[test]
fn a_head_goes_on_when_it_is_whole_and_a_body_as_it_comes() {
    let mut requests = Requests::new(MOST);
    assert_eq!(requests.admit(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n"), Ok(0));
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\na";
    assert_eq!(requests.admit(head), Ok(head.len()));
    assert_eq!(requests.admit(b"b"), Ok(1));
    assert!(!requests.is_over());
    assert_eq!(requests.admit(b"cGET"), Ok(1));
    assert!(requests.is_over());
}

#[test]
fn the_end_of_a_body_in_chunks_goes_on_when_all_of_it_is_here() {
    let mut requests = Requests::new(MOST);
    let head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(requests.admit(head), Ok(head.len()));
    assert_eq!(requests.admit(b"1\r\nx\r\n0\r\n"), Ok(6));
    assert_eq!(requests.admit(b"0\r\n\r"), Ok(0));
    assert_eq!(requests.admit(b"0\r\n\r\n"), Ok(5));
    assert!(requests.is_over());
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
    // what is no text shows at its first byte
    assert!(matches!(refused(b"\x16\x03\x01"), Some(Refused::Malformed(_))));
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

/// One thing done to a stream: what is at a place is replaced by these bytes.
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
    fn what_goes_on_is_read_alike_by_another_reader_however_it_arrives(
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
