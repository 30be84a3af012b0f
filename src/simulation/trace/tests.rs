use super::*;
use crate::simulation::testing::parse_rate;

type Row = (u64, String, u64, Option<String>);

fn read(text: &str) -> Result<Vec<Row>, String> {
    let mut trace = Trace::new(text.as_bytes(), parse_rate).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    while let Some(row) = trace.next_arrival().map_err(|error| error.to_string())? {
        let key = String::from_utf8_lossy(trace.key(row.key)).into_owned();
        rows.push((row.at.get(), key, row.cost, row.set_rate.map(|rate| rate.to_string())));
    }
    Ok(rows)
}

fn row(at: u64, key: &str, cost: u64) -> Row {
    (at, key.to_owned(), cost, None)
}

#[test]
fn columns_are_found_by_name_and_others_are_ignored() {
    let text = "note,key,cost,t_ns\nx,a,3,5\n,b,,5\n,\"with, comma\",0,7\n";
    assert_eq!(read(text), Ok(vec![row(5, "a", 3), row(5, "b", 1), row(7, "with, comma", 0)]));
}

#[test]
fn cost_is_one_where_there_is_no_such_column() {
    assert_eq!(read("t_ns,key\r\n0,a\r\n18446744073709551615,a\r\n"), Ok(vec![row(0, "a", 1), row(u64::MAX, "a", 1)]));
}

#[test]
fn a_rate_holds_from_the_row_that_sets_it() {
    let text = "t_ns,key,set_rate\n0,a,\n1,a,20/s\n";
    assert_eq!(read(text), Ok(vec![row(0, "a", 1), (1, "a".to_owned(), 1, Some("20/s".to_owned()))]));
}

#[test]
fn byte_order_marks_blank_lines_and_blanks_around_numbers_do_no_harm() {
    assert_eq!(read("\u{feff}t_ns, key ,cost\n\n 1 ,a, 2\n"), Ok(vec![row(1, "a", 2)]));
}

#[test]
fn a_header_alone_is_a_trace_without_rows() {
    assert_eq!(read("t_ns,key\n"), Ok(vec![]));
}

#[test]
fn every_mistake_names_its_row_what_was_found_and_what_was_expected() {
    let whole = "whole nanoseconds from 0 to 18446744073709551615";
    let tokens = "a whole number of tokens from 0 to 18446744073709551615";
    let cases = [
        ("", "the trace is empty: expected a header line with at least the columns `t_ns` and `key`".to_owned()),
        (
            "0,a,1\n1,a,1\n",
            "line 1: found the columns `0`, `a`, `1`, expected at least `t_ns` and `key`: there is no `t_ns`".to_owned(),
        ),
        (
            "t_ns,cost\n0,1\n",
            "line 1: found the columns `t_ns`, `cost`, expected at least `t_ns` and `key`: there is no `key`".to_owned(),
        ),
        ("t_ns,key,t_ns\n", "line 1: found the column `t_ns` twice, expected it once".to_owned()),
        ("t_ns,key\n0,a\nsoon,a\n", format!("line 3, column `t_ns`: found `soon`, expected {whole}")),
        ("t_ns,key\n-5,a\n", format!("line 2, column `t_ns`: found `-5`, expected {whole}")),
        ("t_ns,key\n1.5,a\n", format!("line 2, column `t_ns`: found `1.5`, expected {whole}")),
        ("t_ns,key\n,a\n", format!("line 2, column `t_ns`: found ``, expected {whole}")),
        (
            "t_ns,key\n18446744073709551616,a\n",
            format!("line 2, column `t_ns`: found `18446744073709551616`, expected {whole}"),
        ),
        ("t_ns,key,cost\n0,a,-1\n", format!("line 2, column `cost`: found `-1`, expected {tokens}")),
        ("t_ns,key,cost\n0,a,1e3\n", format!("line 2, column `cost`: found `1e3`, expected {tokens}")),
        ("t_ns,key,cost\n0,a,1\n0,a\n", "line 3: found 2 fields, expected 3 as in the header line".to_owned()),
        (
            "t_ns,key\n0,a\n\n9,a\n8,a\n",
            "line 5, column `t_ns`: found `8`, expected 9 (the time of the row before) or later: rows are in the order of time"
                .to_owned(),
        ),
        (
            "t_ns,key,set_rate\n0,a,20\n",
            "line 2, column `set_rate`: found `20`, which is not a rate; expected a rate like `20/s`".to_owned(),
        ),
    ];
    for (text, message) in cases {
        assert_eq!(read(text), Err(message), "{text:?}");
    }
}

#[test]
fn a_line_that_is_too_long_is_refused() {
    let text = format!("t_ns,key\n0,{}\n", "x".repeat(1 << 20));
    assert_eq!(read(&text), Err("line 2 is longer than 1048576 bytes".to_owned()));
}

#[test]
fn a_found_field_is_shown_on_one_line_and_shortened() {
    let error = read(&format!("t_ns,key\n\"{}\t{}\",a\n", "x".repeat(30), "y".repeat(1000))).unwrap_err();
    assert!(
        error.starts_with(&format!("line 2, column `t_ns`: found `{}\\t{}...`", "x".repeat(30), "y".repeat(9))),
        "{error}"
    );
    let mut trace = Trace::new(&b"t_ns,key,set_rate\n0,a,\xff\xfe\n"[..], parse_rate).unwrap();
    let error = trace.next_arrival().unwrap_err().to_string();
    assert!(error.ends_with(", which is not text; expected a rate like `20/s`"), "{error}");
}

#[test]
fn keys_are_bytes_and_keep_their_numbers() {
    let mut trace = Trace::new(&b"t_ns,key\n0,\xff\n0,b\n0,\xff\n0,\n"[..], parse_rate).unwrap();
    let numbers: Vec<KeyNumber> =
        std::iter::from_fn(|| trace.next_arrival().unwrap()).map(|arrival| arrival.key).collect();
    assert_eq!(numbers, [0, 1, 0, 2].map(KeyNumber));
    assert_eq!([0, 1, 2].map(|key| trace.key(KeyNumber(key))), [&b"\xff"[..], b"b", b""]);
}

#[test]
fn a_quote_that_is_not_closed_on_its_line_swallows_no_rows() {
    for (text, line, field) in [
        ("t_ns,key\n0,a\n1,\"b\n2,c\n3,d", 3, 2),
        ("t_ns,key\r\n\r\n0,\"a\r\nb\"\r\n", 3, 2),
        ("t_ns,key,cost\n0,\"a,1\n1,b,1\n", 2, 2),
        ("t_ns,key\n0,a\n\n1,\"b", 4, 2),
        ("t_ns,key\n0,\"a\"\"\n", 2, 2),
        ("t_ns,\"key\n0,a\n", 1, 2),
        ("\"t_ns,key\n0,a\n", 1, 1),
    ] {
        let error = read(text).unwrap_err();
        let place = format!("line {line}, field {field}: found a quote that is not closed");
        assert!(error.starts_with(&place), "{text:?}: {error}");
    }
}

#[test]
fn quotes_are_read_as_everywhere() {
    let keys = |text: &str| read(text).map(|rows| rows.into_iter().map(|row| row.1).collect::<Vec<_>>());
    for field in
        ["\"\"", "\"a,\"\"b\"\"\"", "a\"b", "\"a\"b", "\"\"\"\"", "\"\"\"a\"", "\"\"b\"\"", " \"c\"", "\"a\rb\""]
    {
        let text = format!("key,t_ns\n{field},5\n");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let expected = reader.records().map(|row| row.unwrap()[0].to_owned()).collect();
        assert_eq!(keys(&text), Ok(expected), "{field}");
    }
}

#[test]
fn lines_are_counted_as_an_editor_counts_them() {
    for text in ["t_ns,key\r\n0,a\r\nx,a\r\n", "t_ns,key\n\nx,a\n", "\r\nt_ns,key\r\nx,a"] {
        assert!(read(text).unwrap_err().starts_with("line 3, column `t_ns`"), "{text:?}");
    }
}
