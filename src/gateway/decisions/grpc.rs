//! One question and one answer in gRPC (PROTOCOL-HTTP2): a message in a frame each way, and the outcome in trailers.
//!
//! The engine reads the question whole; [`Answer::grpc_status`](super::Answer) is the status of a failed call.

use prost::Message;

use crate::fields::Fields;
use crate::gateway::request_context::GRPC;
use crate::gateway::respond::{Answer, grpc_type};
use crate::http::head::{RequestHead, Version};
use crate::http::service::Response;

/// The length of the prefix of a message: a byte for whether it is compressed, and 4 bytes for its length.
const PREFIX: usize = 5;

/// The message of a call to `method`.
pub(super) fn decode_request<M: Message + Default>(head: &RequestHead, body: &[u8], method: &str) -> Result<M, Answer> {
    if head.version != Version::Http2 {
        return Err(Answer::Malformed("this listener is asked in gRPC, which is spoken over HTTP/2"));
    }
    if head.target != method.as_bytes() {
        return Err(Answer::NoRoute);
    }
    if head.method != "POST" {
        return Err(Answer::MethodNotAllowed { allow: "POST" });
    }
    if grpc_type(&head.fields).is_none() {
        return Err(Answer::Malformed("the content type is not application/grpc"));
    }
    let (prefix, message) = body.split_first_chunk().ok_or(Answer::Malformed("the message has no frame"))?;
    let [compressed, length @ ..]: [u8; PREFIX] = *prefix;
    let length = u32::from_be_bytes(length);
    if compressed != 0 {
        return Err(Answer::Malformed("the message is compressed, which nothing here is"));
    }
    if usize::try_from(length).ok() != Some(message.len()) {
        return Err(Answer::Malformed("the frame has another length than its message"));
    }
    M::decode(message).map_err(|_| Answer::Malformed("the message cannot be read"))
}

/// The response to a call that succeeded.
pub(super) fn encode_response(message: &impl Message) -> Response {
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(length.saturating_add(PREFIX));
    body.push(0);
    body.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    body.extend_from_slice(&message.encode_to_vec());
    let (mut fields, mut trailers) = (Fields::default(), Box::<Fields>::default());
    fields.push("content-type", GRPC);
    trailers.push("grpc-status", "0");
    Response { status: 200, fields, body, trailers: Some(trailers), ..Response::default() }
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) raw_value: Vec<u8>,
}

/// `envoy.config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}

/// Replaces the fields of the same name, or adds the field if there are none.
const OVERWRITE_IF_EXISTS_OR_ADD: i32 = 2;

impl HeaderValue {
    pub(super) fn new(name: &[u8], value: &[u8]) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Self { key: text(name), value: text(value), raw_value: Vec::new() }
    }
}

impl HeaderValueOption {
    pub(super) fn new(name: &[u8], value: &[u8]) -> Self {
        Self { header: Some(HeaderValue::new(name, value)), append_action: OVERWRITE_IF_EXISTS_OR_ADD }
    }

    /// The options that make up `fields`.
    pub(super) fn all(fields: &Fields) -> Vec<Self> {
        fields.iter().map(|field| Self::new(field.name, field.value)).collect()
    }
}
