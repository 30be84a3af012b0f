//! Reads the fields of a request's body that limits depend on, while the body arrives.

use std::sync::Arc;

use super::json::{FoundValue, Json, ParseMode};
use crate::ruleset::request_field::{FieldPath, FieldValue, RequestFields};

/// Looks for fields in a request's body, which has to be one JSON object.
#[derive(Clone, Debug)]
pub struct RequestReader {
    json: Json,
    paths: Arc<[FieldPath]>,
    /// Whether the request is decided on: later parts of the body must not contradict the decision.
    is_decided: bool,
}

/// The progress of reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// Fields may still come.
    Incomplete,
    /// No more is needed.
    Sufficient,
    /// The body can be read in two ways.
    Ambiguous(&'static str),
}

const TWICE: ReadProgress = ReadProgress::Ambiguous("the JSON of the body names a field twice that a limit goes by");
const BROKEN: ReadProgress = ReadProgress::Ambiguous("the body begins as JSON and does not go on as JSON");

impl RequestReader {
    /// Creates a reader of the fields at `paths` that keeps texts of up to `longest_text` bytes.
    pub fn new(paths: Arc<[FieldPath]>, longest_text: usize) -> Self {
        Self { json: Json::new(ParseMode::Strict, paths.len(), longest_text), paths, is_decided: false }
    }

    /// Reads the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) -> ReadProgress {
        self.json.feed(&self.paths, bytes);
        let searches = &self.json.searches;
        let mut found = searches.iter().map(|search| &search.found);
        let is_found = found.clone().all(Option::is_some);
        if searches.iter().any(|search| search.is_twice) {
            TWICE
        } else if self.json.is_broken() {
            let is_relied_on = self.is_decided || is_found;
            let has_value = found.any(|found| matches!(found, Some(FoundValue::Text(_) | FoundValue::Number(_))));
            if is_relied_on && has_value { BROKEN } else { ReadProgress::Sufficient }
        } else if is_found || self.json.is_whole() {
            ReadProgress::Sufficient
        } else {
            ReadProgress::Incomplete
        }
    }

    /// The values of the fields, as far as the body was read; a field that has not arrived is unreadable. These values
    /// decide on the request.
    pub fn decide(&mut self) -> RequestFields {
        self.is_decided = true;
        if self.json.is_broken() {
            // no value in this body counts, so the rest of the body does not matter
            self.json.searches.clear();
            return RequestFields::Unreadable;
        }
        let is_whole = self.json.is_whole();
        let value = |found: Option<&FoundValue>| match found {
            None if is_whole => FieldValue::Missing,
            Some(FoundValue::Text(text)) if str::from_utf8(text).is_ok() => FieldValue::Text(text.clone()),
            Some(FoundValue::Number(number)) => FieldValue::Number(number.text().to_owned()),
            None | Some(FoundValue::Text(_) | FoundValue::Other) => FieldValue::Unreadable,
        };
        let values = self.json.searches.iter().map(|search| value(search.found.as_ref())).collect();
        RequestFields::Read { paths: Arc::clone(&self.paths), values }
    }
}
