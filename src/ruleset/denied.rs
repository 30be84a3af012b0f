//! The answer to a request over a limit, where a limit or a route has one of its own.

use http::HeaderName;

use crate::template::Template;

/// The settings of an answer; the rest has the defaults: 429 with problem+json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// The status, 400 to 599.
    pub status: Option<u16>,
    /// The `grpc-status` for gRPC clients, 1 to 16.
    pub grpc_status: Option<u16>,
    /// The body in place of problem+json.
    pub body: Option<Body>,
    /// Header fields of the answer, in place of the default ones of the same names.
    pub headers: Vec<(HeaderName, Template)>,
}

/// The body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// One text for all clients: plain text, unless [`Denied::headers`] sets another content type.
    Text(Template),
    /// The body of these that the client prefers; never empty, each content type once.
    Negotiated(Vec<(ContentType, Template)>),
}

/// The content type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// `text/plain`
    Text,
    /// `application/json`
    Json,
    /// `text/html`
    Html,
}

impl ContentType {
    /// The type without parameters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Json => "application/json",
            Self::Html => "text/html",
        }
    }
}

impl Denied {
    /// These settings, and those of `other` where nothing is set here.
    #[must_use]
    pub fn or<'a>(&'a self, other: &'a Self) -> DeniedAnswer<'a> {
        DeniedAnswer {
            status: self.status.or(other.status),
            grpc_status: self.grpc_status.or(other.grpc_status),
            body: self.body.as_ref().or(other.body.as_ref()),
            headers: if self.headers.is_empty() { &other.headers } else { &self.headers },
        }
    }
}

/// The combined settings of a limit and a route for an answer; see [`Denied`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DeniedAnswer<'a> {
    /// [`Denied::status`]
    pub status: Option<u16>,
    /// [`Denied::grpc_status`]
    pub grpc_status: Option<u16>,
    /// [`Denied::body`]
    pub body: Option<&'a Body>,
    /// [`Denied::headers`]
    pub headers: &'a [(HeaderName, Template)],
}
