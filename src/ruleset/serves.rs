//! The kinds of service that a listener provides.

/// Whether a listener proxies requests, or answers questions about requests that another proxy handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerService {
    /// The gateway decides about requests and forwards them to an upstream.
    #[default]
    Proxy,
    /// Subrequests of a proxy that asks over HTTP, with the request's method, host and target in `X-Forwarded-` fields.
    ForwardAuth {
        /// The status of answers that are not 2xx, for proxies that understand few statuses; `None` for the answer's own.
        denied_status: Option<u16>,
    },
    /// Envoy's external authorization, version 3.
    ExtAuthz,
    /// Envoy's rate limit service, version 3.
    RateLimitService,
}

impl ListenerService {
    /// All kinds, with their names in the configuration.
    pub const ALL: [(&str, Self); 4] = [
        ("proxy", Self::Proxy),
        ("forward_auth", Self::ForwardAuth { denied_status: None }),
        ("ext_authz", Self::ExtAuthz),
        ("rate_limit_service", Self::RateLimitService),
    ];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::ForwardAuth { .. } => "forward_auth",
            Self::ExtAuthz => "ext_authz",
            Self::RateLimitService => "rate_limit_service",
        }
    }

    /// Whether clients ask over gRPC, and so over HTTP/2.
    pub const fn speaks_grpc(self) -> bool {
        matches!(self, Self::ExtAuthz | Self::RateLimitService)
    }

    /// Whether the requests that it is asked about take routes.
    pub const fn uses_routes(self) -> bool {
        !matches!(self, Self::RateLimitService)
    }
}
