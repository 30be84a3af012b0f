use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;
use crate::ruleset::cost::Weight;
use crate::ruleset::request_field::{FieldPath, FieldValue};

fn path(text: &str) -> Vec<String> {
    text.split('.').map(str::to_owned).collect()
}

fn field(path: Vec<String>) -> WeightedField {
    WeightedField { path: FieldPath(path), weight: Weight::Times(1) }
}

fn read(mut reader: FieldReader, wanted: &[&str], text: &str) -> Vec<ReportedCost> {
    let fields: Vec<WeightedField> = wanted.iter().map(|wanted| field(path(wanted))).collect();
    reader.feed(&fields, text.as_bytes());
    reader.reported_costs().collect()
}

fn json(text: &str) -> ReportedCost {
    read(FieldReader::of_json(1), &["usage.total_tokens"], text)[0]
}

fn events(text: &str) -> ReportedCost {
    read(FieldReader::of_events(1), &["usage.total_tokens"], text)[0]
}

#[test]
fn the_field_is_found_at_its_place_only() {
    assert_eq!(
        json(r#"{"id": 1, "usage": {"a": [3, {"total_tokens": 4}], "total_tokens": 12}}"#),
        ReportedCost::Cost(12)
    );
    assert_eq!(json(r#"{"total_tokens": 1, "x": {"usage": {"total_tokens": 2}}}"#), ReportedCost::Nothing);
    assert_eq!(json(r#"{"usage": [{"total_tokens": 2}]}"#), ReportedCost::Nothing);
    assert_eq!(json(r#"[{"usage": {"total_tokens": 2}}]"#), ReportedCost::Nothing);
    assert_eq!(json(r#"{"us\u0061ge": {"total\u005ftokens": 2.1e1 }}"#), ReportedCost::Cost(21));
    assert_eq!(json(r#"{"usage2": {"total_tokens": 2}, "usag": {"total_tokens": 2}}"#), ReportedCost::Nothing);
}

#[test]
fn a_value_that_is_no_cost_is_wrong_and_null_is_nothing() {
    for wrong in ["-1", "1e400", "\"7\"", "true", "{}", "[7]", "1e99", "99999999999999999999999", "-0.5"] {
        assert_eq!(json(&format!(r#"{{"usage": {{"total_tokens": {wrong}}}}}"#)), ReportedCost::Wrong, "{wrong}");
    }
    assert_eq!(json(r#"{"usage": {"total_tokens": null}}"#), ReportedCost::Nothing);
    assert_eq!(json(r#"{"usage": {"total_tokens": 0.2}}"#), ReportedCost::Cost(1));
    assert_eq!(
        json(r#"{"usage": {"total_tokens": 000000000000000000000000000000000000000000001}}"#),
        ReportedCost::Wrong
    );
}

#[test]
fn the_last_of_several_counts() {
    assert_eq!(json(r#"{"usage": {"total_tokens": 1, "total_tokens": 2}}"#), ReportedCost::Cost(2));
    assert_eq!(json(r#"{"usage": {"total_tokens": 1}, "usage": {}}"#), ReportedCost::Nothing);
    assert_eq!(
        json("{\"usage\": {\"total_tokens\": 1}}\n{\"usage\": {\"total_tokens\": 2}}\n{\"done\": 1}"),
        ReportedCost::Cost(2)
    );
}

#[test]
fn a_body_that_is_no_json_has_no_fields() {
    for broken in
        ["<html>", "{usage: 1}", r#"{"a" 1, "usage": {"total_tokens": 1}}"#, r#"{]"usage": {"total_tokens": 1}}"#]
    {
        assert_eq!(json(broken), ReportedCost::Nothing, "{broken}");
    }
    assert_eq!(json(&"[".repeat(1_000_000)), ReportedCost::Nothing);
    assert_eq!(json(r#"{"usage": {"total_tokens": 1"#), ReportedCost::Nothing, "the number may go on");
}

#[test]
fn of_events_the_last_with_the_field_counts() {
    let stream = "data: {\"usage\": null}\n\n: a comment\nevent: x\ndata:{\"usage\": {\ndata: \"total_tokens\": 5}}\n\n\
                  data: {\"choices\": []}\r\n\r\ndata: [DONE]\r\n\r\n";
    assert_eq!(events(stream), ReportedCost::Cost(5));
    assert_eq!(events("data: {\"usage\": {\"total_tokens\": 5}}"), ReportedCost::Cost(5), "without an end");
    assert_eq!(events("\rdata: {\"usage\":\rdata: {\"total_tokens\": 7}}\r\rdata: no\r\r"), ReportedCost::Cost(7));
    assert_eq!(events("datum: {\"usage\": {\"total_tokens\": 5}}\n\n"), ReportedCost::Nothing);
    assert_eq!(events("data: broken {\n\ndata: {\"usage\": {\"total_tokens\": 5}}\n\n"), ReportedCost::Cost(5));
}

#[test]
fn several_fields_are_read_in_one_pass() {
    use ReportedCost::{Cost, Nothing, Wrong};
    let wanted = ["usage.prompt", "usage.completion", "usage", "usage.prompt.cached", "total"];
    let read = |text: &str| read(FieldReader::of_json(5), &wanted, text);
    let whole = r#"{"total": 9, "usage": {"completion": 5, "prompt": 7, "promp": 1}}"#;
    assert_eq!(read(whole), [Cost(7), Cost(5), Wrong, Nothing, Cost(9)]);
    let nested = r#"{"usage": {"prompt": {"cached": 2, "completion": 3}}, "completion": 4}"#;
    assert_eq!(read(nested), [Wrong, Nothing, Wrong, Cost(2), Nothing]);
    let twice = r#"{"usage": {"prompt": 1, "completion": 1}, "usage": {"prompt": 2}, "total": -1}"#;
    assert_eq!(read(twice), [Cost(2), Nothing, Wrong, Nothing, Wrong]);
}

#[test]
fn each_field_counts_as_the_last_event_with_it_says() {
    let stream = "data: {\"message\": {\"usage\": {\"input\": 25, \"output\": 1}}}\n\n\
                  data: {\"usage\": {\"output\": 7}}\n\ndata: {\"usage\": {\"output\": 15}}\n\n\
                  data: {\"usage\": null}\n\ndata: [DONE]\n\n";
    let told = read(FieldReader::of_events(3), &["message.usage.input", "usage.output", "usage.other"], stream);
    assert_eq!(told, [ReportedCost::Cost(25), ReportedCost::Cost(15), ReportedCost::Nothing]);
}

/// Documents in which the names of the path are common.
fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0_u64..1000).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\"\\\\\u{0}-\u{1f}é𝄞]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let names = prop_oneof![Just("a".to_owned()), Just("é\"𝄞".to_owned()), "[aAb\"\\\\é]{0,3}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..5).prop_map(|members| Value::from(Map::from_iter(members))),
        ]
    })
}

/// The text, with every character that is not printable ASCII as `\uXXXX`.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            ' '..='~' => out.push(character),
            other => other.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

fn expected(document: &Value, path: &[String]) -> ReportedCost {
    let mut value = document;
    for name in path {
        match value.as_object().and_then(|object| object.get(name)) {
            Some(inner) => value = inner,
            None => return ReportedCost::Nothing,
        }
    }
    match value {
        Value::Null => ReportedCost::Nothing,
        Value::Number(number) => tokens(&number.to_string()).map_or(ReportedCost::Wrong, ReportedCost::Cost),
        _ => ReportedCost::Wrong,
    }
}

/// The fields of a body that is read in these pieces; `Err` if the body is ambiguous.
fn read_request<'b>(
    wanted: &[&str],
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> Result<Vec<FieldValue>, &'static str> {
    let paths: Vec<FieldPath> = wanted.iter().map(|wanted| FieldPath(path(wanted))).collect();
    let mut reader = RequestReader::new(paths.clone().into(), MAX_KEY_LENGTH);
    let mut decided = None;
    for piece in pieces {
        match reader.feed(piece) {
            ReadProgress::Ambiguous(why) => return Err(why),
            ReadProgress::Sufficient => {
                decided.get_or_insert_with(|| reader.decide());
            }
            ReadProgress::Incomplete => assert!(decided.is_none(), "what was enough stays enough"),
        }
    }
    let decided = decided.unwrap_or_else(|| reader.decide());
    Ok(paths.iter().map(|path| decided.get(path).clone()).collect())
}

/// The value of a field of a request, in words; it is the same however the body is cut.
fn of_request(wanted: &str, body: &str) -> String {
    let said = |pieces: Vec<&[u8]>| match read_request(&[wanted], pieces).map(|mut values| values.remove(0)) {
        Err(_) => "ambiguous".to_owned(),
        Ok(FieldValue::Missing) => "missing".to_owned(),
        Ok(FieldValue::Unreadable) => "unreadable".to_owned(),
        Ok(FieldValue::Text(text)) => format!("{:?}", String::from_utf8(text).unwrap()),
        Ok(FieldValue::Number(number)) => number,
    };
    let whole = said(vec![body.as_bytes()]);
    assert_eq!(said(body.as_bytes().chunks(1).collect()), whole, "byte by byte: {body}");
    whole
}

#[test]
fn a_field_of_a_request_is_a_text_or_a_number_at_its_place() {
    let name = |body: &str| of_request("params.name", body);
    assert_eq!(name(r#"{"method": "tools/call", "params": {"name": "get_weather", "x": [1]}}"#), "\"get_weather\"");
    assert_eq!(name(r#"{"params": {"n\u0061me": "\ud834\udd1e\n\u0000é"}}"#), "\"𝄞\\n\\0é\"");
    assert_eq!(name(r#"{"params": {"name": -12}}"#), "-12");
    assert_eq!(name(r#"{"params": {"name": ""}}"#), "\"\"");
    for missing in
        ["{}", r#"{"params": {}}"#, r#"{"params": null}"#, r#"{"params": {"name": null}}"#, r#"{"name": "x"}"#]
    {
        assert_eq!(name(missing), "missing", "{missing}");
    }
}

#[test]
fn a_field_that_is_no_text_or_number_and_a_body_that_is_no_json_object_cannot_be_read() {
    let name = |body: &str| of_request("params.name", body);
    for value in ["true", "{}", "[\"x\"]", r#""\ud800""#, r#""\ud800x""#, "1111111111111111111111111111111111111"] {
        assert_eq!(name(&format!(r#"{{"params": {{"name": {value}}}}}"#)), "unreadable", "{value}");
    }
    assert_eq!(name(&format!(r#"{{"params": {{"name": "{}"}}}}"#, "x".repeat(1024))).len(), 1026);
    assert_eq!(name(&format!(r#"{{"params": {{"name": "{}"}}}}"#, "x".repeat(1025))), "unreadable");
    for body in [
        "",
        "name=x",
        "[]",
        "7",
        "null",
        "\u{feff}{}",
        "{params: {}}",
        r#"{"params": "x"}"#,
        r#"{"params": [{"name": "x"}]}"#,
        r#"[{"params": {"name": "x"}}]"#,
        r#"{"params": {"name": "x"#,
        r#"{"a": 1, "b": }"#,
    ] {
        assert_eq!(name(body), "unreadable", "{body}");
    }
    let invalid = read_request(&["a"], [&b"{\"a\": \"\xff\"}"[..]]).unwrap();
    assert!(invalid == [FieldValue::Unreadable], "it is no UTF-8");
}

#[test]
fn a_body_with_two_readings_is_found_out_wherever_they_are() {
    let name = |body: &str| of_request("params.name", body);
    for ambiguous in [
        r#"{"params": {"name": "a", "name": "b"}}"#,
        r#"{"params": {"name": "a"}, "params": {"name": "b"}}"#,
        r#"{"params": {}, "params": {"name": "b"}}"#,
        r#"{"params": {"name": "a", "NAME": "b"}}"#,
        r#"{"params": {"name": "a"}, "param\u017f": 1}"#,
        r#"{"Params": null, "params": {"name": "b"}}"#,
        r#"{"params": {"name": "a"}} {"params": {"name": "b"}}"#,
        r#"{"params": {"name": "a"}, /* "params": */ }"#,
    ] {
        assert_eq!(name(ambiguous), "ambiguous", "{ambiguous}");
    }
    assert_eq!(name(r#"{"params": {"NAME": "b"}}"#), "unreadable");
    assert_eq!(
        name(r#"{"x": {"params": {"name": "a", "name": "b"}}, "params": {"y": {"name": 1}, "name": "c"}}"#),
        "\"c\""
    );
    // after a body without a readable field anything may follow
    for garbage in ["<?xml {\"params\": 1}", "--boundary\r\n{\"params\": 1}", "[{}] {}"] {
        assert_eq!(name(garbage), "unreadable", "{garbage}");
    }
}

/// The value of a field of a request by a parser of whole documents; `Err` if the body is ambiguous.
fn expected_of_request(document: &Value, path: &[String]) -> Result<FieldValue, ()> {
    let Some((name, rest)) = path.split_first() else {
        return Ok(match document {
            Value::Null => FieldValue::Missing,
            Value::String(text) => FieldValue::Text(text.as_bytes().to_vec()),
            Value::Number(number) => FieldValue::Number(number.to_string()),
            _ => FieldValue::Unreadable,
        });
    };
    let object = match document {
        Value::Null => return Ok(FieldValue::Missing),
        Value::Object(object) => object,
        _ => return Ok(FieldValue::Unreadable),
    };
    let same: Vec<&String> = object.keys().filter(|key| key.to_lowercase() == name.to_lowercase()).collect();
    match same[..] {
        [] => Ok(FieldValue::Missing),
        [one] if one == name => expected_of_request(&object[one], rest),
        [_] => Ok(FieldValue::Unreadable),
        _ => Err(()),
    }
}

proptest! {
    #[test]
    fn it_reads_what_a_parser_of_whole_documents_reads(
        document in documents(),
        pretty in any::<bool>(),
        in_ascii in any::<bool>(),
        paths in prop::collection::vec(
            prop::collection::vec(prop_oneof![Just("a".to_owned()), Just("é\"𝄞".to_owned()), Just("b".to_owned())], 1..4),
            1..5,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        as_events in any::<bool>(),
    ) {
        let mut text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.unwrap();
        if in_ascii {
            text = escaped(&text.replace('\n', " "));
        }
        if as_events {
            text = format!("data: {}\n\n", text.replace('\n', "\ndata: "));
        }
        let fields: Vec<WeightedField> = paths.into_iter().map(field).collect();
        let mut reader = match as_events {
            true => FieldReader::of_events(fields.len()),
            false => FieldReader::of_json(fields.len()),
        };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        cuts.windows(2).for_each(|ends| reader.feed(&fields, &text.as_bytes()[ends[0]..ends[1]]));
        let expected: Vec<ReportedCost> = fields.iter().map(|field| expected(&document, &field.path.0)).collect();
        prop_assert_eq!(reader.reported_costs().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn it_reads_of_a_request_what_a_parser_of_whole_documents_reads(
        document in documents(),
        in_ascii in any::<bool>(),
        paths in prop::collection::vec(
            prop::collection::vec(prop_oneof![Just("a"), Just("é\"𝄞"), Just("b")], 1..4),
            1..4,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let text = document.to_string();
        let text = if in_ascii { escaped(&text) } else { text };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|ends| &text.as_bytes()[ends[0]..ends[1]]);
        let paths: Vec<String> = paths.iter().map(|path| path.join(".")).collect();
        let wanted: Vec<&str> = paths.iter().map(String::as_str).collect();
        let read = read_request(&wanted, pieces);
        // a generated document may hold a number of more digits than the reader reads
        let fits = |value: &FieldValue| !matches!(value, FieldValue::Number(number) if number.len() > 32);
        let expected: Result<Vec<FieldValue>, ()> =
            wanted.iter().map(|wanted| match document {
                Value::Null => Ok(FieldValue::Unreadable),
                _ => expected_of_request(&document, &path(wanted)),
            }).collect();
        let expected = expected.map(|values| {
            values.into_iter().map(|value| if fits(&value) { value } else { FieldValue::Unreadable }).collect::<Vec<_>>()
        });
        prop_assert!(read.is_err() == expected.is_err() && read.ok() == expected.ok(), "{text}");
    }

    #[test]
    fn whatever_comes_it_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), as_events in any::<bool>()) {
        let mut reader = if as_events { FieldReader::of_events(2) } else { FieldReader::of_json(2) };
        reader.feed(&[field(path("a.b")), field(path("a"))], &bytes);
        prop_assert_eq!(reader.reported_costs().count(), 2);
        drop(read_request(&["a.b", "a"], [&*bytes]));
    }
}
