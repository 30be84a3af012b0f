//! `POST /v1/keys/...`: one key, asked about and corrected.

use http::StatusCode;

use super::{PlainResponse, failure, pretty_json};
use crate::gateway::Gateway;
use crate::gateway::keys::{BadKey, KeyQuestion};
use crate::store::{Amendment, Unamended};

/// What is to be done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Peek,
    Reset,
    Grant,
}

impl Verb {
    /// By the last part of the path.
    pub(super) fn called(name: &str) -> Option<Self> {
        match name {
            "peek" => Some(Self::Peek),
            "reset" => Some(Self::Reset),
            "grant" => Some(Self::Grant),
            _ => None,
        }
    }
}

/// Does it for the question in `body`.
pub(super) async fn answer(gateway: &Gateway, verb: Verb, body: &[u8]) -> PlainResponse {
    match done(gateway, verb, body).await {
        Ok(answer) => answer,
        Err(bad) => {
            let status = match bad {
                BadKey::NoLimit { .. } | BadKey::NotMet { .. } => StatusCode::NOT_FOUND,
                _ => StatusCode::BAD_REQUEST,
            };
            failure(status, &bad.to_string())
        }
    }
}

async fn done(gateway: &Gateway, verb: Verb, body: &[u8]) -> Result<PlainResponse, BadKey> {
    let question = KeyQuestion::from_json(body)?;
    let amendment = match verb {
        Verb::Peek => return Ok(pretty_json(&question.peek(gateway).await?)),
        Verb::Reset => Amendment::Afresh,
        Verb::Grant => question.grant()?,
    };
    Ok(match question.amend(gateway, amendment).await? {
        Ok(answer) => {
            // who asked is not known, that somebody did is
            let key: Vec<String> = answer
                .key
                .iter()
                .map(|part| format!("{}={}", part.part, part.value.as_deref().unwrap_or("")))
                .collect();
            let change = match amendment {
                Amendment::Afresh => "starts afresh".to_owned(),
                Amendment::Grant(tokens) => format!("is given back up to {tokens} tokens"),
            };
            tracing::info!(limit = answer.limit, key = key.join(", "), "by the admin port, a key {change}");
            pretty_json(&answer)
        }
        Err(unamended) => {
            let status = match unamended {
                Unamended::Holds | Unamended::Elsewhere(_) => StatusCode::CONFLICT,
                Unamended::Away => StatusCode::SERVICE_UNAVAILABLE,
            };
            failure(status, &format!("the limit cannot do this: {unamended}"))
        }
    })
}
