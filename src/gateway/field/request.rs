//! Reads the fields of a request's body that limits go by, while it comes.

use std::sync::Arc;

use super::json::{Found, Json, Rules};
use crate::ruleset::request_field::{FieldPath, FieldValue, RequestFields};

/// Looks for fields in the one JSON object that a request's body is.
#[derive(Clone, Debug)]
pub struct RequestReader {
    json: Json,
    paths: Arc<[FieldPath]>,
    /// Whether the request was decided on: what comes from here on must not say otherwise.
    is_decided: bool,
}

/// How far a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Fields may still come.
    Part,
    /// No more is needed.
    Enough,
    /// It has two readings.
    Ambiguous(&'static str),
}

const TWICE: Seen = Seen::Ambiguous("the JSON of the body names a field twice that a limit goes by");
const BROKEN: Seen = Seen::Ambiguous("the body begins as JSON and does not go on as JSON");

impl RequestReader {
    /// A reader that looks for the fields at `paths`, and keeps texts of so many bytes.
    pub fn new(paths: Arc<[FieldPath]>, longest_text: usize) -> Self {
        Self { json: Json::new(Rules::Strict, paths.len(), longest_text), paths, is_decided: false }
    }

    /// The next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) -> Seen {
        self.json.feed(&self.paths, bytes);
        let searches = &self.json.searches;
        let mut found = searches.iter().map(|search| &search.found);
        let is_found = found.clone().all(Option::is_some);
        match () {
            () if searches.iter().any(|search| search.is_twice) => TWICE,
            () if self.json.is_broken() => {
                let is_relied_on = self.is_decided || is_found;
                let tells = found.any(|found| matches!(found, Some(Found::Text(_) | Found::Number(_))));
                if is_relied_on && tells { BROKEN } else { Seen::Enough }
            }
            () if is_found || self.json.is_whole() => Seen::Enough,
            () => Seen::Part,
        }
    }

    /// What the fields say, as far as was read; fields that did not come yet cannot be read. The request is decided on by it.
    pub fn decide(&mut self) -> RequestFields {
        self.is_decided = true;
        if self.json.is_broken() {
            // nothing that it said counts, so it may go on as it likes
            self.json.searches.clear();
            return RequestFields::Unreadable;
        }
        let is_whole = self.json.is_whole();
        let value = |found: Option<&Found>| match found {
            None if is_whole => FieldValue::Missing,
            Some(Found::Text(text)) if str::from_utf8(text).is_ok() => FieldValue::Text(text.clone()),
            Some(Found::Number(number)) => FieldValue::Number(number.text().to_owned()),
            None | Some(Found::Text(_) | Found::Other) => FieldValue::Unreadable,
        };
        let values = self.json.searches.iter().map(|search| value(search.found.as_ref())).collect();
        RequestFields::Read { paths: Arc::clone(&self.paths), values }
    }
}
