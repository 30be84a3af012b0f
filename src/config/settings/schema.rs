//! The JSON Schema of the file (draft 2020-12), with which editors complete and check it.
//!
//! It describes the kind and the purpose of each setting. `tollgate check` also finds errors that only the reader knows,
//! such as references to names that the file does not define.

use serde_json::{Map, Value, json};

use super::{FILE, Kind, LIMIT, Presence, Setting, Table};
use crate::algorithm::{self, AlgorithmName, Parameter};
use crate::units::Nanos;

/// The schema of the file.
pub(in crate::config) fn schema() -> Value {
    let mut definitions = Map::new();
    definitions
        .insert("variable".to_owned(), json!({ "type": "string", "pattern": "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" }));
    let file = table(&FILE, &mut definitions);
    let limits: Vec<Value> = AlgorithmName::ALL.iter().map(|name| limit(*name, &mut definitions)).collect();
    definitions.insert("limit".to_owned(), json!({ "oneOf": limits }));
    let Value::Object(mut file) = file else { return file };
    file.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    file.insert("title".to_owned(), json!("The configuration of tollgate"));
    file.insert("$defs".to_owned(), Value::Object(definitions));
    Value::Object(file)
}

/// The schema of a mapping with these settings. Adds the definitions of the tables in it to `definitions`.
fn table(table: &'static Table, definitions: &mut Map<String, Value>) -> Value {
    let properties = table.settings.iter().map(|setting| (setting.name.to_owned(), described(setting, definitions)));
    let properties: Map<String, Value> = properties.collect();
    object(properties, table.settings.iter().filter(|setting| setting.presence == Presence::Required))
}

fn object<'s>(properties: Map<String, Value>, required: impl Iterator<Item = &'s Setting>) -> Value {
    let required: Vec<&str> = required.map(|setting| setting.name).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

fn described(setting: &'static Setting, definitions: &mut Map<String, Value>) -> Value {
    let mut about = setting.about.to_owned();
    if let Presence::Default(default) = setting.presence {
        about.push_str(&format!(" Default: {default}"));
    }
    match value(&setting.kind, definitions) {
        Value::Object(mut schema) => {
            schema.insert("description".to_owned(), about.into());
            Value::Object(schema)
        }
        other => other,
    }
}

fn value(kind: &'static Kind, definitions: &mut Map<String, Value>) -> Value {
    match kind {
        Kind::Flag => or_variable(json!({ "type": "boolean" })),
        Kind::Whole(least, most) => or_variable(whole(*least, *most)),
        Kind::Size(..) => or_variable(json!({ "type": "string", "pattern": "^[0-9.]+(B|KiB|MiB|GiB)$" })),
        Kind::Duration(..) => or_variable(duration()),
        Kind::Choice(words) => or_variable(choice(words)),
        Kind::Text(what) => json!({ "type": ["string", "number", "boolean"], "description": what }),
        Kind::List(kind) => json!({ "type": "array", "items": value(kind, definitions) }),
        Kind::Section(section) => {
            if !definitions.contains_key(section.name) {
                definitions.insert(section.name.to_owned(), Value::Null);
                let schema = table(section, definitions);
                definitions.insert(section.name.to_owned(), schema);
            }
            json!({ "$ref": format!("#/$defs/{}", section.name) })
        }
        Kind::Defaults(table, without) => {
            let settings = table.defaults(without);
            object(settings.map(|one| (one.name.to_owned(), described(one, definitions))).collect(), std::iter::empty())
        }
        Kind::Named(_, kind) => json!({ "type": "object", "additionalProperties": value(kind, definitions) }),
        Kind::OneOf(kinds) => {
            let kinds: Vec<Value> = kinds.iter().map(|kind| value(kind, definitions)).collect();
            json!({ "anyOf": kinds })
        }
        Kind::Limit => json!({ "$ref": "#/$defs/limit" }),
        Kind::Parameters(others) => {
            let all = AlgorithmName::ALL.iter().flat_map(|name| name.parameters());
            let mut properties: Map<String, Value> = all.map(|one| (one.name.to_owned(), parameter(one))).collect();
            properties.extend(
                others.settings.iter().map(|setting| (setting.name.to_owned(), described(setting, definitions))),
            );
            object(properties, std::iter::empty())
        }
    }
}

/// The schema of a limit with this algorithm.
fn limit(algorithm: AlgorithmName, definitions: &mut Map<String, Value>) -> Value {
    let Value::Object(mut schema) = table(&LIMIT, definitions) else { return Value::Null };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.extend(algorithm.parameters().iter().map(|one| (one.name.to_owned(), parameter(one))));
        properties.insert("algorithm".to_owned(), json!({ "const": algorithm.as_str() }));
    }
    Value::Object(schema)
}

fn parameter(parameter: &Parameter) -> Value {
    or_variable(match parameter.kind {
        algorithm::ParameterKind::Rate => json!({ "type": "string", "pattern": "^[0-9.]+/[0-9.]*(ns|us|ms|s|m|h|d)$" }),
        algorithm::ParameterKind::Duration => duration(),
        algorithm::ParameterKind::DurationOr(words) => json!({ "anyOf": [duration(), choice(words)] }),
        algorithm::ParameterKind::Whole => whole(0, u64::MAX),
        algorithm::ParameterKind::Decimal => json!({ "type": "number", "minimum": 0 }),
        algorithm::ParameterKind::Flag => json!({ "type": "boolean" }),
        algorithm::ParameterKind::Choice(words) => choice(words),
        algorithm::ParameterKind::TimeZone => json!({ "type": "string" }),
    })
}

fn whole(least: u64, most: u64) -> Value {
    match most {
        u64::MAX => json!({ "type": "integer", "minimum": least }),
        most => json!({ "type": "integer", "minimum": least, "maximum": most }),
    }
}

fn duration() -> Value {
    json!({ "type": "string", "pattern": "^[0-9.]+(ns|us|ms|s|m|h|d)$", "examples": [Nanos::SECOND.to_string()] })
}

/// The schema of a choice; YAML reads some of the words as numbers.
fn choice(words: &[&str]) -> Value {
    let numbers = words.iter().filter_map(|word| word.parse::<f64>().ok()).map(Value::from);
    let words: Vec<Value> = words.iter().map(|word| Value::from(*word)).chain(numbers).collect();
    json!({ "enum": words })
}

/// Accepts an environment variable in place of the value.
fn or_variable(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "$ref": "#/$defs/variable" }] })
}
