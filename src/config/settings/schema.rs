//! The JSON Schema of the file (draft 2020-12), with which editors complete and check it.
//!
//! It describes the kind and the purpose of each setting. `tollgate check` also finds errors that only the reader knows,
//! such as references to names that the file does not define.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{FILE, Kind, LIMIT, Presence, Setting, Table};
use crate::algorithm::{self, AlgorithmName, Parameter};
use crate::units::Nanos;

const NUMBER: &str = r"[0-9]+(\.[0-9]+)?";
const SIZE_UNITS: &str = "B|KiB|MiB|GiB";
const TIME_UNITS: &str = "ns|us|ms|s|m|h|d";

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

pub(super) fn described(setting: &'static Setting, definitions: &mut Map<String, Value>) -> Value {
    let mut about = setting.about.to_owned();
    if let Presence::Default(default) = setting.presence {
        about.push_str(&format!(" Default: {default}"));
    }
    match value(&setting.kind, definitions) {
        Value::Object(mut schema) => {
            schema.insert("description".to_owned(), about.into());
            if setting.nonempty {
                schema.insert("minProperties".to_owned(), 1.into());
            }
            if setting.presence == Presence::Default("[]") {
                schema.remove("minItems");
            }
            Value::Object(schema)
        }
        other => other,
    }
}

fn value(kind: &'static Kind, definitions: &mut Map<String, Value>) -> Value {
    match kind {
        Kind::Flag => or_variable(flag()),
        Kind::Whole(min, max) => or_variable(whole(*min, *max)),
        Kind::Size(..) => or_variable(number_with(&format!("({SIZE_UNITS})"))),
        Kind::Duration(..) => or_variable(duration()),
        Kind::Choice(words) => or_variable(choice(words)),
        Kind::Text(what) => json!({ "type": ["string", "number", "boolean"], "description": what }),
        Kind::List(kind) => json!({ "type": "array", "minItems": 1, "items": value(kind, definitions) }),
        Kind::Set(kind) => {
            json!({ "type": "array", "minItems": 1, "uniqueItems": true, "items": value(kind, definitions) })
        }
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
            let mut properties = parameters();
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

/// The parameters of all algorithms. What several of them call the same takes the values of each.
fn parameters() -> Map<String, Value> {
    let mut known: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for one in AlgorithmName::ALL.iter().flat_map(|name| name.parameters()) {
        let (schemas, schema) = (known.entry(one.name).or_default(), parameter(one));
        if !schemas.contains(&schema) {
            schemas.push(schema);
        }
    }
    known.into_iter().map(|(name, schemas)| (name.to_owned(), json!({ "anyOf": schemas }))).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    or_variable(match parameter.kind {
        algorithm::ParameterKind::Rate => number_with(&format!("/({NUMBER})?({TIME_UNITS})")),
        algorithm::ParameterKind::Duration => duration(),
        algorithm::ParameterKind::DurationOr(words) => json!({ "anyOf": [duration(), choice(words)] }),
        algorithm::ParameterKind::Whole => whole(parameter.min, parameter.max.unwrap_or(u64::MAX)),
        algorithm::ParameterKind::Decimal => or_quoted("number", &format!("^{NUMBER}$"), &[("minimum", parameter.min)]),
        algorithm::ParameterKind::Flag => flag(),
        algorithm::ParameterKind::Choice(words) => choice(words),
        algorithm::ParameterKind::TimeZone => json!({ "type": "string" }),
    })
}

fn whole(min: u64, max: u64) -> Value {
    let bounds = [("minimum", min), ("maximum", max)];
    or_quoted("integer", "^[0-9]+$", if max == u64::MAX { &bounds[..1] } else { &bounds })
}

fn flag() -> Value {
    or_quoted("boolean", "^(true|false)$", &[])
}

/// The schema of a value of this type within these bounds, or of its text in quotes, which the reader takes as well.
fn or_quoted(kind: &str, pattern: &str, bounds: &[(&str, u64)]) -> Value {
    let mut schema = json!({ "type": [kind, "string"], "pattern": pattern });
    for (bound, number) in bounds {
        schema[*bound] = json!(number);
    }
    schema
}

fn duration() -> Value {
    let mut duration = number_with(&format!("({TIME_UNITS})"));
    duration["examples"] = json!([Nanos::SECOND.to_string()]);
    duration
}

/// A text that is a decimal number before `rest`, a regular expression.
fn number_with(rest: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^{NUMBER}{rest}$") })
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
