//! What a listener serves.

/// Whether requests that come in at a listener are proxied, or are questions about requests that another proxy handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serves {
    /// Requests are decided on and forwarded to an upstream.
    #[default]
    Proxy,
    /// Subrequests of a proxy that asks over HTTP, with the request's method, host and target in `X-Forwarded-` fields.
    ForwardAuth {
        /// The status of every answer that is not 2xx, for proxies that understand few; `None` for the answer's own.
        denied_status: Option<u16>,
    },
    /// Envoy's external authorization, version 3.
    ExtAuthz,
    /// Envoy's rate limit service, version 3.
    RateLimitService,
}

impl Serves {
    /// All, as the configuration writes them.
    pub const ALL: [(&str, Self); 4] = [
        ("proxy", Self::Proxy),
        ("forward_auth", Self::ForwardAuth { denied_status: None }),
        ("ext_authz", Self::ExtAuthz),
        ("rate_limit_service", Self::RateLimitService),
    ];

    /// As the configuration writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::ForwardAuth { .. } => "forward_auth",
            Self::ExtAuthz => "ext_authz",
            Self::RateLimitService => "rate_limit_service",
        }
    }

    /// Whether it is asked in gRPC, so over HTTP/2.
    pub const fn speaks_grpc(self) -> bool {
        matches!(self, Self::ExtAuthz | Self::RateLimitService)
    }

    /// Whether what it is asked about takes a route.
    pub const fn goes_by_routes(self) -> bool {
        !matches!(self, Self::RateLimitService)
    }
}
