//! Access logs: lines in common and combined format and of JSON, whoever wrote them.

use std::io::Cursor;
use std::path::PathBuf;

use http::header;
use tollgate::replay::fields::WantedFields;
use tollgate::replay::reading::{LineReader, MergedLogs, Options};
use tollgate::replay::record::LogLine;
use tollgate::replay::source;
use tollgate::units::Nanos;

use super::input::mixed;

fn wanted() -> WantedFields {
    WantedFields {
        headers: vec![header::REFERER, header::USER_AGENT, http::HeaderName::from_static("x-api-key")],
        response_headers: vec![http::HeaderName::from_static("x-cost")],
        referer: Some(0),
        user_agent: Some(1),
        ..WantedFields::default()
    }
}

thread_local! {
    /// For all inputs: what a reader is made with takes longer than most of them.
    static READER: std::cell::RefCell<LineReader> = std::cell::RefCell::new(LineReader::new(&[], wanted()));
}

pub(crate) fn run(data: &[u8]) {
    let mut reader = LineReader::new(&[], wanted());
    let mut lines = 0;
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = if number == 0 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        lines += u64::from(!line.is_empty());
        let read = reader.read(line, false);
        // it does not matter which lines came before
        READER.with_borrow_mut(|used| assert_eq!(used.read(line, false), read));
        match &read {
            Ok(record) => {
                assert!(record.headers.iter().all(|(position, _)| *position < 3));
                assert!(record.target.as_ref().is_none_or(|target| !target.is_empty()));
                // white space in front of an object is passed over, a form feed too, which JSON does not know
                let object = line.trim_ascii_start();
                if object.starts_with(b"{") {
                    let read = serde_json::from_slice::<serde::de::IgnoredAny>(object);
                    assert!(read.is_ok(), "{read:?}: {}", line.escape_ascii());
                }
            }
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
    written_and_read(data);
    // so much is set up for a whole log that it is done now and then
    if mixed(data).is_multiple_of(32) {
        whole(data, lines);
    }
}

/// A request is read as it was logged.
fn written_and_read(target: &[u8]) {
    let mut escaped = String::new();
    for byte in target {
        match byte {
            b'"' | b'\\' => escaped.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => escaped.push(char::from(*byte)),
            byte => escaped.push_str(&format!("\\x{byte:02X}")),
        }
    }
    let line = format!("192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET {escaped} HTTP/1.1\" 404 12");
    READER.with_borrow_mut(|reader| {
        let record = reader.read(line.as_bytes(), false).unwrap();
        let expected = if target.is_empty() { None } else { Some(target) };
        assert_eq!(record.target.as_deref(), expected, "{line}");
        assert_eq!((record.status, record.response_bytes), (Some(404), Some(12)));
        assert_eq!(record.logged, Nanos::from_secs(971_211_336));
    });
}

/// Every line is shown once, in order of time.
fn whole(data: &[u8], lines: u64) {
    let input = [b"\n".as_slice(), data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data)].concat();
    let Ok((logs, _)) = source::open(&[PathBuf::from("-")], Cursor::new(input)) else { return };
    let options = Options {
        mappings: Vec::new(),
        wanted: wanted(),
        times_are_starts: data.len().is_multiple_of(2),
        reorder: Nanos::from_secs(60),
    };
    let mut reading = MergedLogs::new(logs, options);
    let (mut shown, mut last) = (0, Nanos::ZERO);
    let read = reading.run(|line| {
        shown += 1;
        if let LogLine::Request { at, .. } = line {
            assert!(at >= last);
            last = at;
        }
        Ok(())
    });
    assert!(read.is_ok());
    assert_eq!(shown, lines);
}
