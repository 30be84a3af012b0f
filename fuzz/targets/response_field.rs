//! A number in a response as it passes: what a parser of the whole document finds there, however it comes.

use serde_json::Value;
use tollgate::gateway::field::FieldReader;
use tollgate::ruleset::cost::{ReportedCost, tokens};

use super::input::mixed;

pub(crate) fn run(data: &[u8]) {
    let path = ["usage".to_owned(), "n".to_owned()];
    for reader in [FieldReader::of_json(), FieldReader::of_events()] {
        let (mut whole, mut parts) = (reader.clone(), reader);
        whole.feed(&path, data);
        data.chunks(1 + mixed(data) % 9).for_each(|part| parts.feed(&path, part));
        assert_eq!(whole.told(), parts.told(), "it does not matter how bytes come");
    }
    let mut reader = FieldReader::of_json();
    reader.feed(&path, data);
    if data.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() < 100
        && let Ok(document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_slice(data)
    {
        match document.get("usage").and_then(|usage| usage.get("n")) {
            None | Some(Value::Null) => assert_eq!(reader.told(), ReportedCost::Nothing),
            // a float may be written in many ways
            Some(Value::Number(number)) if number.is_f64() => {}
            Some(Value::Number(number)) => {
                assert_eq!(reader.told(), tokens(&number.to_string()).map_or(ReportedCost::Wrong, ReportedCost::Cost));
            }
            Some(_) => assert_eq!(reader.told(), ReportedCost::Wrong),
        }
    }
}
