//! HTTP services that look up customers.

use std::sync::Arc;

use http::Uri;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::upstream::{OwnRequest, fetch};
use crate::tls::TlsClient;

/// The maximum size of a response, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The format of requests to a service and of its responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// The request is `{"credential": "sha256:..."}`; the response is 404, or 200 with the JSON that a Redis hash would
    /// hold.
    Plain,
    /// Unkey's `/v2/keys.verifyKey`.
    Unkey,
}

/// The settings of a service. No `Debug`: its token is a secret.
pub struct HttpService {
    /// The URL of the service.
    pub url: Uri,
    /// The TLS settings for `https`.
    pub tls: Option<Arc<TlsClient>>,
    /// The token in `Authorization: Bearer`.
    pub token: Option<String>,
    /// The format of requests and responses.
    pub contract: Contract,
}

impl HttpService {
    /// The customer of a credential, of which `field` is the hash, as JSON; `None` if no customer has it.
    ///
    /// Errors: why the service gives no answer, without any text from it.
    pub(super) async fn ask(&self, credential: &[u8], field: &str) -> Result<Option<Vec<u8>>, String> {
        let question = match self.contract {
            Contract::Plain => json!({ "credential": field }),
            // a cost of 0, so that the look-up spends none of the key's credits at Unkey
            Contract::Unkey => match str::from_utf8(credential) {
                Ok(key) => json!({ "key": key, "credits": { "cost": 0 } }),
                Err(_) => return Ok(None),
            },
        };
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut fields = vec![("content-type", "application/json"), ("accept", "application/json")];
        fields.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        let question = question.to_string();
        let request = OwnRequest {
            method: "POST",
            url: &self.url,
            tls: self.tls.as_ref(),
            fields: &fields,
            body: question.as_bytes(),
            max_answer: MAX_ANSWER,
        };
        let answer = fetch(request).await.map_err(|error| error.to_string())?;
        match (answer.status, self.contract) {
            (200, Contract::Plain) => Ok(Some(answer.body)),
            (200, Contract::Unkey) => of_unkey(&answer.body),
            (404, Contract::Plain) => Ok(None),
            (status, _) => Err(format!("it answers with status {status}")),
        }
    }
}

/// The used part of Unkey's response.
#[derive(Deserialize)]
struct UnkeyAnswer {
    data: UnkeyKey,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UnkeyKey {
    code: String,
    #[serde(default)]
    key_id: Option<String>,
    #[serde(default)]
    meta: Option<Map<String, Value>>,
    #[serde(default)]
    identity: Option<UnkeyIdentity>,
    /// In milliseconds since 1970.
    #[serde(default)]
    expires: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UnkeyIdentity {
    external_id: String,
    #[serde(default)]
    meta: Option<Map<String, Value>>,
}

/// The customer of an Unkey key: its identity, or the key itself if it has none. The plan and other terms are in the `meta`
/// of the key or, if absent there, of the identity.
fn of_unkey(body: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let UnkeyAnswer { data } = serde_json::from_slice(body).map_err(|_| "its answer cannot be read")?;
    // a key over Unkey's own limits still belongs to a customer; with an unknown code, it belongs to none
    match data.code.as_str() {
        "VALID" | "DISABLED" | "INSUFFICIENT_PERMISSIONS" | "USAGE_EXCEEDED" | "RATE_LIMITED" => {}
        "EXPIRED" if data.expires.is_some() => {}
        _ => return Ok(None),
    }
    let (name, of_identity) = match data.identity {
        Some(UnkeyIdentity { external_id, meta }) => (Some(external_id), meta),
        None => (data.key_id, None),
    };
    let metas = [data.meta.unwrap_or_default(), of_identity.unwrap_or_default()];
    let said = |name: &str| metas.iter().filter_map(|meta| meta.get(name)).find(|value| !value.is_null()).cloned();
    let mut customer = json!({ "customer": name, "suspended": data.code == "DISABLED" });
    for name in ["plan", "overrides", "time_zone", "groups"] {
        if let Some(value) = said(name) {
            customer[name] = value;
        }
    }
    if let Some(end) = data.expires.and_then(|end| Timestamp::from_millisecond(end).ok()) {
        customer["valid_until"] = end.to_string().into();
    }
    Ok(Some(customer.to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn customer(data: Value) -> Option<Value> {
        let body = json!({ "meta": { "requestId": "req_1" }, "data": data }).to_string();
        of_unkey(body.as_bytes()).unwrap().map(|customer| serde_json::from_slice(&customer).unwrap())
    }

    #[test]
    fn a_key_of_unkey_is_a_customer() {
        let identity =
            json!({ "id": "id_1", "externalId": "acme", "meta": { "plan": "pro", "time_zone": "Asia/Tokyo" } });
        assert_eq!(
            customer(json!({ "valid": true, "code": "VALID", "keyId": "key_1", "identity": identity,
                "meta": { "plan": "free", "color": "red" }, "expires": 1_735_689_600_500_i64, "credits": 3 })),
            Some(json!({ "customer": "acme", "plan": "free", "time_zone": "Asia/Tokyo", "suspended": false,
                "valid_until": "2025-01-01T00:00:00.5Z" }))
        );
        let nothing = json!({ "plan": null });
        let of_identity = json!({ "externalId": "acme", "meta": { "plan": "pro" } });
        assert_eq!(
            customer(json!({ "code": "VALID", "meta": nothing, "identity": of_identity })),
            Some(json!({ "customer": "acme", "plan": "pro", "suspended": false }))
        );
        let alone =
            customer(json!({ "valid": false, "code": "DISABLED", "keyId": "key_1", "meta": { "plan": "free" } }));
        assert_eq!(alone, Some(json!({ "customer": "key_1", "plan": "free", "suspended": true })));
        for code in ["NOT_FOUND", "FORBIDDEN", "EXPIRED", "A_NEW_ONE"] {
            assert_eq!(customer(json!({ "valid": false, "code": code, "keyId": "key_1" })), None);
        }
        for code in ["RATE_LIMITED", "USAGE_EXCEEDED", "INSUFFICIENT_PERMISSIONS"] {
            assert!(customer(json!({ "valid": false, "code": code, "keyId": "key_1" })).is_some());
        }
        let expired = customer(json!({ "valid": false, "code": "EXPIRED", "keyId": "key_1", "expires": 0 })).unwrap();
        assert_eq!(expired["valid_until"], "1970-01-01T00:00:00Z");
        assert!(of_unkey(b"{\"data\": {\"valid\": true}}").is_err());
    }
}
