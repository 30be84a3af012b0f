//! The request that a caller of `explain` asks about.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Method, Uri};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::fields::Fields;
use crate::gateway::facts::Head;
use crate::ruleset::is_dropped;

const HOST: &str = "host";
const CONTENT_LENGTH: &str = "content-length";

/// A request as a client would send it. No `Debug`: its fields may hold credentials.
pub struct Question {
    method: Method,
    target: String,
    headers: Fields,
    client: Option<IpAddr>,
    secure: bool,
    body: Vec<u8>,
}

/// Why a question cannot be answered. Holds no value of a header field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// The text is not a question in JSON.
    #[error(
        "{0}; a question is like {{\"method\": \"GET\", \"url\": \"http://HOST/PATH\", \"headers\": {{\"NAME\": \"VALUE\"}}, \"client\": \"192.0.2.1\", \"body\": {{}}}}, of which all but the url may be left out"
    )]
    Json(String),
    /// The method is not an HTTP method.
    #[error("the method is not an HTTP method: {0:?}")]
    Method(String),
    /// The URL cannot be read.
    #[error("the url cannot be read; write it like http://api.example.com/v1/orders?page=2")]
    Url,
    /// The URL holds a user name or a password, which clients send in a header.
    #[error("the url contains a user name or a password; write them as a header, as clients send them")]
    UserInfo,
    /// Neither the URL nor a header names the host.
    #[error("the url names no host; write it like http://HOST/PATH, or add the header `host`")]
    NoHost,
    /// The name of a header field is not valid.
    #[error("this is not the name of a header field: {0:?}")]
    HeaderName(String),
    /// The value of a header field is not valid.
    #[error("the value of the header field {0} holds characters that no header field may hold")]
    HeaderValue(HeaderName),
    /// A header field in JSON is neither a text nor a list of texts.
    #[error("the value of the header field {0:?} is neither a text nor a list of texts")]
    HeaderKind(String),
    /// The client is not an IP address.
    #[error("the client is not an IP address: {0:?}")]
    Client(String),
}

/// A request as `POST /v1/explain` takes it in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct RequestJson {
    #[serde(default = "get")]
    method: String,
    url: String,
    /// An object of texts and lists of texts. The type accepts any value, because serde's error message about a wrong value
    /// would show it.
    #[serde(default)]
    headers: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// The body: a text is sent as it is, any other JSON value as JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    body: Value,
}

impl RequestJson {
    /// A request with these header fields, in their order, from `client`.
    pub fn new(
        method: &str,
        url: &str,
        fields: impl IntoIterator<Item = (String, String)>,
        client: Option<IpAddr>,
    ) -> Self {
        let mut headers = Map::new();
        for (name, value) in fields {
            if let Value::Array(values) = headers.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
                values.push(Value::String(value));
            }
        }
        let client = client.map(|client| client.to_string());
        Self {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: Value::Object(headers),
            client,
            body: Value::Null,
        }
    }
}

fn get() -> String {
    Method::GET.to_string()
}

impl Question {
    /// A request with `method` for `url`, which may be a path alone if `fields` name the host. `client` is the other end of
    /// the connection; `None` if it is unknown.
    pub fn new(
        method: &str,
        url: &str,
        fields: impl IntoIterator<Item = (String, String)>,
        client: Option<IpAddr>,
    ) -> Result<Self, QuestionError> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| QuestionError::Method(method.to_owned()))?;
        let mut headers = Fields::default();
        for (name, value) in fields {
            let name = HeaderName::try_from(&name).map_err(|_| QuestionError::HeaderName(name))?;
            let value = HeaderValue::try_from(value.trim_matches([' ', '\t']))
                .map_err(|_| QuestionError::HeaderValue(name.clone()))?;
            if !is_dropped(&name) {
                headers.push(name, value);
            }
        }
        headers.remove_nominated();
        let target = target(url, &mut headers)?;
        Ok(Self { method, target, headers, client, secure: url.starts_with("https://"), body: Vec::new() })
    }

    /// The same request with this body. Clients send its length along, unless they send it in chunks.
    pub fn with_body(self, body: Vec<u8>) -> Self {
        let mut headers = self.headers;
        if !body.is_empty() && !headers.contains(CONTENT_LENGTH) && !headers.contains("transfer-encoding") {
            headers.push_number(CONTENT_LENGTH, u64::try_from(body.len()).unwrap_or(u64::MAX));
        }
        Self { headers, body, ..self }
    }

    /// Reads a question that is written as JSON.
    pub fn from_json(text: &[u8]) -> Result<Self, QuestionError> {
        let RequestJson { method, url, headers, client, body } =
            serde_json::from_slice(text).map_err(|error| QuestionError::Json(error.to_string()))?;
        let client = client.map(|client| client.parse().map_err(|_| QuestionError::Client(client))).transpose()?;
        let headers = match headers {
            Value::Object(headers) => headers,
            Value::Null => Map::new(),
            _ => return Err(QuestionError::Json("the headers are no object".to_owned())),
        };
        let mut fields = Vec::new();
        for (name, value) in headers {
            let values = if let Value::Array(values) = value { values } else { vec![value] };
            for value in values {
                match value {
                    Value::String(text) => fields.push((name.clone(), text)),
                    _ => return Err(QuestionError::HeaderKind(name)),
                }
            }
        }
        let body = match body {
            Value::Null => Vec::new(),
            Value::String(text) => text.into_bytes(),
            json => json.to_string().into_bytes(),
        };
        Ok(Self::new(&method, &url, fields, client)?.with_body(body))
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn head(&self) -> Head<'_> {
        Head {
            method: self.method.as_str(),
            raw_target: self.target.as_bytes(),
            headers: &self.headers,
            peer: self.client,
            secure: self.secure,
            tls_info: None,
            streams_body: false,
        }
    }
}

/// The request target that a client sends for `url`. The host in the URL becomes the `host` header, unless there is one.
fn target(url: &str, headers: &mut Fields) -> Result<String, QuestionError> {
    // clients do not send the fragment
    let url = url.split('#').next().unwrap_or_default();
    let after_scheme = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let target = match after_scheme {
        Some(rest) => {
            let uri: Uri = url.parse().map_err(|_| QuestionError::Url)?;
            let authority = uri.authority().ok_or(QuestionError::NoHost)?.as_str();
            if authority.contains('@') {
                return Err(QuestionError::UserInfo);
            }
            if !headers.contains(HOST) {
                headers.push(HOST, authority);
            }
            match rest.find(['/', '?']).map(|end| rest.split_at(end).1) {
                None => "/".to_owned(),
                Some(query) if query.starts_with('?') => format!("/{query}"),
                Some(path) => path.to_owned(),
            }
        }
        None if url.starts_with('/') || url == "*" => url.to_owned(),
        None => return Err(QuestionError::Url),
    };
    if !headers.contains(HOST) {
        return Err(QuestionError::NoHost);
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(url: &str, fields: &[(&str, &str)]) -> Result<(String, String), QuestionError> {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let question = Question::new("GET", url, fields, None)?;
        Ok((question.target.clone(), String::from_utf8(question.headers.get(HOST).unwrap().to_vec()).unwrap()))
    }

    #[test]
    fn a_url_becomes_what_a_client_sends() {
        let sent = |target: &str, host: &str| Ok((target.to_owned(), host.to_owned()));
        assert_eq!(asked("http://a.example:8080/v1//x%41?y=1#z", &[]), sent("/v1//x%41?y=1", "a.example:8080"));
        assert_eq!(asked("https://a.example", &[]), sent("/", "a.example"));
        assert_eq!(asked("http://a.example?y", &[]), sent("/?y", "a.example"));
        assert_eq!(asked("/v1", &[("Host", "b")]), sent("/v1", "b"));
        assert_eq!(asked("http://a.example/v1", &[("host", "b")]), sent("/v1", "b"));
    }

    #[test]
    fn errors_of_a_question_do_not_show_its_secrets() {
        assert_eq!(asked("/v1", &[]), Err(QuestionError::NoHost));
        assert_eq!(asked("a.example/v1", &[]), Err(QuestionError::Url));
        assert_eq!(asked("http:///v1", &[]), Err(QuestionError::Url));
        let json = |text: &str| Question::from_json(text.as_bytes()).err().map(|error| error.to_string());
        for (text, says) in [
            ("", "EOF"),
            ("[]", "expected"),
            (r#"{"method": "GET"}"#, "missing field `url`"),
            (r#"{"url": "http://a/", "header": {}}"#, "unknown field `header`"),
            (r#"{"url": "http://a/", "method": "G T"}"#, "method"),
            (r#"{"url": "http://a/", "client": "nobody"}"#, "IP address"),
            (r#"{"url": "http://a/", "headers": "canary"}"#, "the headers are no object"),
            (r#"{"url": "http://a/", "headers": {"a b": "canary"}}"#, "a b"),
            (r#"{"url": "http://user:canary@a/"}"#, "write them as a header"),
            (r#"{"url": "http://a/", "headers": {"authorization": "canary\n"}}"#, "authorization"),
            (r#"{"url": "http://a/", "headers": {"authorization": {"canary": 1}}}"#, "authorization"),
        ] {
            let said = json(text).unwrap();
            assert!(said.contains(says) && !said.contains("canary"), "{text}: {said}");
        }
        assert_eq!(json(r#"{"url": "http://a/", "headers": {"x": ["1", "2"]}, "client": "::1"}"#), None);
    }
}
