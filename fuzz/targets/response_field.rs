//! A number in a response as it passes: what a parser of the whole document finds there, however it comes.

use serde_json::Value;
use tollgate::gateway::field::FieldReader;
use tollgate::ruleset::cost::{ReportedCost, Weight, WeightedField};
use tollgate::ruleset::request_field::FieldPath;
use tollgate::ruleset::tokens::tokens;

use super::input::mixed;

pub(crate) fn run(data: &[u8]) {
    let field = |path: &[&str]| WeightedField {
        path: FieldPath(path.iter().map(|name| (*name).to_owned()).collect()),
        weight: Weight::Times(1),
    };
    let fields = [field(&["usage", "n"]), field(&["usage"]), field(&["usage", "n", "m"])];
    for reader in [FieldReader::of_json(3), FieldReader::of_events(3)] {
        let (mut whole, mut parts) = (reader.clone(), reader);
        whole.feed(&fields, data);
        data.chunks(1 + mixed(data) % 9).for_each(|part| parts.feed(&fields, part));
        assert!(whole.reported_costs().eq(parts.reported_costs()), "it does not matter how bytes come");
    }
    let mut reader = FieldReader::of_json(3);
    reader.feed(&fields, data);
    if data.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() < 100
        && let Ok(document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_slice(data)
    {
        for (field, told) in fields.iter().zip(reader.reported_costs()) {
            let mut found = Some(&document);
            for name in &field.path.0 {
                found = found.and_then(|value| value.as_object()?.get(name));
            }
            match found {
                None | Some(Value::Null) => assert_eq!(told, ReportedCost::Nothing),
                // a float may be written in many ways
                Some(Value::Number(number)) if number.is_f64() => {}
                Some(Value::Number(number)) => {
                    assert_eq!(told, tokens(&number.to_string()).map_or(ReportedCost::Wrong, ReportedCost::Cost));
                }
                Some(_) => assert_eq!(told, ReportedCost::Wrong),
            }
        }
    }
}
