//! Services that are asked for customers over HTTP.

use std::sync::Arc;

use http::Uri;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::upstream::{OwnRequest, fetch};
use crate::tls::TlsClient;

/// The longest answer that is read.
const MAX_ANSWER: usize = 64 << 10;

/// What a service is asked, and what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// `{"credential": "sha256:..."}` is answered with 404, or with 200 and the JSON that a Redis hash would hold.
    Plain,
    /// Unkey's `/v2/keys.verifyKey`.
    Unkey,
}

/// A service, and how it is asked. No `Debug`: its token is a secret.
pub struct HttpService {
    /// Where it is.
    pub url: Uri,
    /// What `https` takes.
    pub tls: Option<Arc<TlsClient>>,
    /// What it is shown as `Authorization: Bearer`.
    pub token: Option<String>,
    /// What it is asked, and what it answers.
    pub contract: Contract,
}

impl HttpService {
    /// The customer of a credential, which `field` stands for, as JSON; `None` if it is nobody's.
    ///
    /// Errors: what keeps the service from telling, without anything that it said.
    pub(super) async fn ask(&self, credential: &[u8], field: &str) -> Result<Option<Vec<u8>>, String> {
        let question = match self.contract {
            Contract::Plain => json!({ "credential": field }),
            // What it counts itself is not spent.
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

/// What Unkey answers, as far as it is of use.
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

/// The customer of a key as Unkey knows it: its identity, or the key alone where it has none. The plan and the rest are in
/// the `meta` of the key, or in that of the identity.
fn of_unkey(body: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let UnkeyAnswer { data } = serde_json::from_slice(body).map_err(|_| "what it answers is not understood")?;
    // what Unkey would deny by its own limits is a customer's all the same; a code that is not known lets nobody in
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
    let said = |name: &str| metas.iter().find_map(|meta| meta.get(name)).cloned();
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
