//! The webhook's messages and their signatures, in the format of standardwebhooks.com, whose libraries can verify them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac::{HMAC_SHA256, Key, sign};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::gateway::crossings::Crossing;
use crate::runtime::courier::rfc3339;
use crate::units::Nanos;

/// The prefix of a secret.
const PREFIX: &str = "whsec_";
/// The length of an identifier, in bytes.
const ID_BYTES: usize = 16;

/// The secrets that messages are signed with: the current one first, then earlier ones.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

/// A message as the queue keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    /// The identifier, the same for every message about the same event.
    pub(super) id: String,
    /// The time of the event, by the wall clock.
    pub(super) at: Nanos,
    /// The content, in JSON.
    pub(super) body: String,
}

impl Secrets {
    /// Reads the lines of a file; `None` if a line is no secret, or if there is no secret.
    pub fn read(text: &str) -> Option<Self> {
        let secret = |line: &str| {
            let bytes = STANDARD.decode(line.trim().strip_prefix(PREFIX)?).ok()?;
            (24..=64).contains(&bytes.len()).then_some(bytes)
        };
        let secrets: Option<Vec<Vec<u8>>> = text.lines().filter(|line| !line.trim().is_empty()).map(secret).collect();
        secrets.filter(|secrets| !secrets.is_empty()).map(Self)
    }

    /// The signatures of a message that is sent `seconds` after 1970, one for each secret.
    pub(super) fn sign(&self, message: &Message, seconds: u64) -> String {
        let content = format!("{}.{seconds}.{}", message.id, message.body);
        let signature = |secret: &Vec<u8>| {
            let signature = sign(&Key::new(HMAC_SHA256, secret), content.as_bytes());
            format!("v1,{}", STANDARD.encode(signature))
        };
        self.0.iter().map(signature).collect::<Vec<_>>().join(" ")
    }

    /// The identifier of an event; `identity` cannot be derived from it.
    fn id(&self, identity: &[u8]) -> String {
        let key = Key::new(HMAC_SHA256, self.0.first().map_or(&[], Vec::as_slice));
        let hash = sign(&key, &[b"tollgate webhook: identifiers", identity].concat());
        format!("msg_{}", URL_SAFE_NO_PAD.encode(hash.as_ref().get(..ID_BYTES).unwrap_or_default()))
    }
}

impl Message {
    /// The message about a crossing.
    pub(super) fn of(crossing: &Crossing, secrets: &Secrets) -> Self {
        let Crossing { identity, at, subject, plan, mark, used, quota, remaining, window, full_at } = crossing;
        let key: Map<String, Value> =
            subject.key.iter().map(|(part, value)| (part.clone(), value.clone().into())).collect();
        let body = json!({
            "type": "limit.warning",
            "timestamp": rfc3339(*at),
            "data": {
                "limit": subject.limit,
                "key": key,
                "plan": plan,
                "at_percent": mark,
                "used_percent": used,
                "quota": quota,
                "remaining": remaining,
                "window_seconds": window.map(Nanos::as_secs_f64),
                "whole_at": rfc3339(rounded_up(*full_at)),
            },
        });
        Self { id: secrets.id(identity), at: *at, body: body.to_string() }
    }

    /// Encodes the message for the queue.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // encoding text and a number never fails
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Decodes a message from the queue; `None` if the bytes are no message.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The end of the millisecond that `time` is in, for a quota that is whole from this time on: a window that ends at midnight ends
/// on the next day.
fn rounded_up(time: Nanos) -> Nanos {
    const MILLISECOND: u64 = 1_000_000;
    Nanos::new(time.get().checked_next_multiple_of(MILLISECOND).unwrap_or(time.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::offenders::LimitedKey;

    fn crossing(mark: u8) -> Crossing {
        Crossing {
            identity: vec![1, mark],
            at: Nanos::new(1_700_000_000_123_456_789),
            subject: LimitedKey {
                limit: "per-key".to_owned(),
                key: vec![("customer".to_owned(), Some("acme".to_owned()))],
            },
            plan: Some("free".to_owned()),
            mark,
            used: 83,
            quota: 1000,
            remaining: 170,
            window: Some(Nanos::from_secs(3_600)),
            full_at: Nanos::new(1_700_003_599_999_999_321),
        }
    }

    /// The example of the specification.
    #[test]
    fn messages_are_signed_as_the_specification_shows() {
        let secrets = Secrets::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let body = r#"{"test": 2432232314}"#.to_owned();
        let message = Message { id: "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned(), at: Nanos::ZERO, body };
        assert_eq!(secrets.sign(&message, 1_614_265_330), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn the_same_crossing_has_the_same_identifier_which_no_other_has() {
        let [today, other] = [[1; 24], [2; 24]].map(|bytes| format!("whsec_{}", STANDARD.encode(bytes)));
        let (one, both) = (Secrets::read(&today).unwrap(), Secrets::read(&format!("{today}\n{other}")).unwrap());
        let message = Message::of(&crossing(80), &one);
        assert_eq!(message.id, Message::of(&crossing(80), &both).id, "a former secret stays for a while");
        assert_ne!(message.id, Message::of(&crossing(95), &one).id);
        assert_ne!(message.id, Message::of(&crossing(80), &Secrets::read(&other).unwrap()).id);
        assert_eq!(
            both.sign(&message, 7),
            format!("{} {}", one.sign(&message, 7), Secrets::read(&other).unwrap().sign(&message, 7))
        );
        assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
    }

    #[test]
    fn a_message_says_who_has_used_how_much_of_what() {
        let secrets = Secrets::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body: Value = serde_json::from_str(&Message::of(&crossing(80), &secrets).body).unwrap();
        let expected = json!({
            "type": "limit.warning",
            "timestamp": "2023-11-14T22:13:20.123Z",
            "data": {
                "limit": "per-key",
                "key": { "customer": "acme" },
                "plan": "free",
                "at_percent": 80,
                "used_percent": 83,
                "quota": 1000,
                "remaining": 170,
                "window_seconds": 3600.0,
                "whole_at": "2023-11-14T23:13:20.000Z",
            },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_text_that_is_no_secret_is_not_taken_for_one() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for wrong in ["", "\n", "hello", "whsec_", "whsec_!!!!", &of(23), &of(65), &format!("{}\nhello", of(24))] {
            assert!(Secrets::read(wrong).is_none(), "{wrong}");
        }
        assert!(Secrets::read(&format!(" {} \r\n\n{}\n", of(24), of(64))).is_some());
    }
}
