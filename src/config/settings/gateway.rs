//! The settings of the gateway itself: its listeners, its bounds on clients, and its response headers.

use super::{
    ACCESS, BYPASS, CLUSTER, CORS, CUSTOMERS, Kind, LIMIT, ROUTE, STATE, STORE, Setting, TRACES, Table, UPSTREAM,
    USAGE_EVENTS, WEBHOOK,
};
use crate::units::Nanos;

const CONNECTIONS_IN_ALL: Kind = Kind::Whole(1, 10_000_000);
const PEM_FILE: Kind = Kind::Text("the name of a file in PEM");
const PEERS: Kind = Kind::List(&Kind::Text("an address or a network, like `10.0.0.0/8`, or `unix`"));
const HEAD_PART: Kind = Kind::Size(64, 512 << 10);

/// The settings at the top of the file.
pub(in crate::config) static FILE: Table = Table {
    name: "file",
    settings: &[
        Setting::optional(
            "include",
            Kind::List(&Kind::Text("the name of a file, in which `*` stands for anything, like `limits/*.yaml`")),
            "Further files, whose upstreams, plans, limits, groups of limits, prices, routes and domains are this file's, too.",
        ),
        Setting::required("listeners", Kind::List(&Kind::Section(&LISTENER)), "Where clients connect to."),
        Setting::optional("admin", Kind::Section(&ADMIN), "The port for operators: metrics, health, inspection."),
        Setting::optional(
            "workers",
            Kind::Whole(1, 1024),
            "How many threads serve clients; one for each core where it is left out. Takes a restart.",
        ),
        Setting::optional("connections", Kind::Section(&CONNECTIONS), "Bounds on the connections of clients."),
        Setting::optional("client_address", Kind::Section(&CLIENT_ADDRESS), "How a client's address is found."),
        Setting::optional("store", Kind::Section(&STORE), "The Redis servers of limits that gateways share."),
        Setting::optional("state", Kind::Section(&STATE), "The file that keeps counts over restarts."),
        Setting::optional("cluster", Kind::Section(&CLUSTER), "The gateways that divide keys among themselves."),
        Setting::optional(
            "upstreams",
            Kind::Named("upstream", &Kind::Section(&UPSTREAM)),
            "Where requests go; required where a listener proxies.",
        ),
        Setting::optional(
            "defaults",
            Kind::Section(&DEFAULTS),
            "What routes, upstreams and limits say that do not say it themselves.",
        ),
        Setting::optional("customers", Kind::Section(&CUSTOMERS), "Who calls, and on which plan."),
        Setting::optional("plans", Kind::List(&Kind::Text("the name of a plan")), "The names of the plans."),
        Setting::optional("limits", Kind::Named("limit", &Kind::Limit), "The limits, by their names."),
        Setting::optional(
            "limit_groups",
            Kind::Named("group", &Kind::List(&Kind::Text("the name of a limit"))),
            "Lists of limits that routes name like one limit.",
        ),
        Setting::optional(
            "prices",
            Kind::Named("model", &Kind::Named("price", &Kind::Text("a decimal number, like `0.15`"))),
            "What a million tokens of each model cost, in money; `default` is any other model. See docs/costs.md.",
        ),
        Setting::optional(
            "routes",
            Kind::List(&Kind::Section(&ROUTE)),
            "Which requests go to which upstream, under which limits; required unless all listeners are rate limit services.",
        ),
        Setting::optional(
            "domains",
            Kind::Named("domain", &Kind::Section(&DOMAIN)),
            "Which descriptors are under which limits; required where a listener is a rate limit service.",
        ),
        Setting::optional("access", Kind::Section(&ACCESS), "Who is let in and who is kept out, on every route."),
        Setting::optional("bypass", Kind::Section(&BYPASS), "Who is never charged, on every route."),
        Setting::optional("cors", Kind::Section(&CORS), "Which sites' scripts may read tollgate's own answers."),
        Setting::optional("usage", Kind::Section(&USAGE), "Lets customers ask where they stand."),
        Setting::optional("webhook", Kind::Section(&WEBHOOK), "Who is told of keys at the marks of `warn_at`."),
        Setting::optional("usage_events", Kind::Section(&USAGE_EVENTS), "Who is sent what customers use, for bills."),
        Setting::optional("traces", Kind::Section(&TRACES), "Who is sent spans of requests (OpenTelemetry)."),
        Setting::optional("headers", Kind::Section(&HEADERS), "The header fields that tell clients where they stand."),
        Setting::default(
            "access_log",
            Kind::OneOf(&[Kind::Choice(&["off", "full"]), Kind::Section(&ACCESS_LOG)]),
            "off",
            "Which requests have a line on standard output. A sampled log also has every denied and failed one.",
        ),
        Setting::optional("request_head", Kind::Section(&REQUEST_HEAD), "Bounds on the heads of requests."),
        Setting::optional(
            "request_body",
            Kind::Section(&REQUEST_BODY),
            "How a body may come: how slowly, and how much of it is held back.",
        ),
    ],
};

/// A default is a whole setting: a route with its own `request_headers` takes over none of the fields here.
pub(in crate::config) static DEFAULTS: Table = Table {
    name: "defaults",
    settings: &[
        Setting::optional("routes", Kind::Defaults(&ROUTE, &["name", "match"]), "Of every route."),
        Setting::optional("upstreams", Kind::Defaults(&UPSTREAM, &["nodes"]), "Of every upstream."),
        Setting::optional(
            "limits",
            Kind::Defaults(&LIMIT, &["algorithm", "key", "plans", "windows", "candidate"]),
            "Of every limit.",
        ),
    ],
};

pub(in crate::config) static LISTENER: Table = Table {
    name: "listener",
    settings: &[
        Setting::required(
            "address",
            Kind::Text("an address and a port, like `0.0.0.0:8080`, or a path, like `unix:/run/tollgate.sock`"),
            "Where it listens.",
        ),
        Setting::default("mode", Kind::Text("what of `rwxrwxrwx` is set, in octal"), "660", "Who may open the path."),
        Setting::default(
            "serves",
            Kind::Choice(&["proxy", "forward_auth", "ext_authz", "rate_limit_service"]),
            "proxy",
            "Whether it proxies requests, or answers other proxies about theirs; see docs/decisions.md.",
        ),
        Setting::optional(
            "denied_status",
            Kind::Whole(400, 499),
            "With `forward_auth`: the status of every answer that is not 2xx, for proxies that understand few.",
        ),
        Setting::optional("tls", Kind::Section(&LISTENER_TLS), "Makes it speak TLS."),
        Setting::optional(
            "http2",
            Kind::Flag,
            "Whether it speaks HTTP/2 beside HTTP/1.1; left out, it does so over TLS, and where it is asked in gRPC.",
        ),
        Setting::default(
            "proxy_protocol",
            PEERS,
            "[]",
            "The balancers that must begin a connection with the PROXY protocol, version 1 or 2.",
        ),
        Setting::optional("max_connections", CONNECTIONS_IN_ALL, "How many connections it may have."),
    ],
};

pub(in crate::config) static DOMAIN: Table = Table {
    name: "domain",
    settings: &[
        Setting::optional(
            "plan",
            Kind::Text("the key of an entry"),
            "The entry whose value is the name of the plan; descriptors without it have no plan.",
        ),
        Setting::required("descriptors", Kind::List(&Kind::Section(&DESCRIPTOR)), "What descriptors may begin with."),
    ],
};

pub(in crate::config) static DESCRIPTOR: Table = Table {
    name: "descriptor",
    settings: &[
        Setting::required("key", Kind::Text("the key of an entry, like `remote_address`"), "The key of the entry."),
        Setting::optional(
            "value",
            Kind::Text("a value, in which `*` stands for anything"),
            "The value of the entry; any value where it is left out.",
        ),
        Setting::optional(
            "limits",
            Kind::List(&Kind::Text("the name of a limit")),
            "The limits of a descriptor that ends with this entry.",
        ),
        Setting::default(
            "deny",
            Kind::Flag,
            "false",
            "Whether a descriptor that ends with this entry is always denied.",
        ),
        Setting::optional("descriptors", Kind::List(&Kind::Section(&DESCRIPTOR)), "What may follow."),
    ],
};

pub(in crate::config) static LISTENER_TLS: Table = Table {
    name: "listener_tls",
    settings: &[
        Setting::required(
            "certificates",
            Kind::List(&Kind::Section(&CERTIFICATE)),
            "The certificates; a client without a matching server name is shown the first.",
        ),
        Setting::optional("client_certificates", Kind::Section(&CLIENT_CERTIFICATES), "Asks clients for certificates."),
        Setting::default("min_version", Kind::Choice(&["1.2", "1.3"]), "1.2", "The oldest version of TLS."),
    ],
};

pub(in crate::config) static CERTIFICATE: Table = Table {
    name: "certificate",
    settings: &[
        Setting::required("cert", PEM_FILE, "The certificate, with the intermediate ones behind it."),
        Setting::required("key", PEM_FILE, "Its private key."),
    ],
};

pub(in crate::config) static CLIENT_CERTIFICATES: Table = Table {
    name: "client_certificates",
    settings: &[
        Setting::required("ca", PEM_FILE, "The authorities whose certificates are accepted."),
        Setting::default("required", Kind::Flag, "true", "Whether a client without a certificate is turned away."),
    ],
};

pub(in crate::config) static ADMIN: Table = Table {
    name: "admin",
    settings: &[
        Setting::default(
            "address",
            Kind::Text("an address and a port, like `127.0.0.1:9090`"),
            "127.0.0.1:9090",
            "Where operators connect to.",
        ),
        Setting::optional(
            "token_file",
            Kind::Text("the name of a file"),
            "The file with the token of those who may change something; nobody may without it.",
        ),
        Setting::optional(
            "audit_log",
            Kind::Text("the name of a file, like `audit.log`"),
            "The file to which each change made over the port is added as a line; left out, the log gets it.",
        ),
        Setting::optional(
            "hosts",
            Kind::List(&Kind::Text("a host name without a port, like `tollgate.internal`")),
            "The names by which browsers may reach the port, beside `localhost` and addresses.",
        ),
        Setting::default(
            "top_denied_metrics",
            Kind::Whole(0, 20),
            "0",
            "How many of the keys that are denied most have a metric of their own.",
        ),
        Setting::optional(
            "replay_logs",
            Kind::List(&Kind::Text("the name of a file, like `access.log.1`")),
            "The access logs on which operators may try changes of limits; none where it is left out.",
        ),
    ],
};

pub(in crate::config) static CONNECTIONS: Table = Table {
    name: "connections",
    settings: &[
        Setting::optional(
            "max",
            CONNECTIONS_IN_ALL,
            "How many connections there may be; left out, as many as there are file descriptors for.",
        ),
        Setting::optional("max_per_client", CONNECTIONS_IN_ALL, "How many connections one client may have."),
        Setting::default("idle", Kind::POSITIVE, "60s", "How long a connection may be without a request."),
    ],
};

pub(in crate::config) static CLIENT_ADDRESS: Table = Table {
    name: "client_address",
    settings: &[
        Setting::default("trusted_proxies", PEERS, "[]", "The proxies that are believed about clients."),
        Setting::default(
            "header",
            Kind::Text(
                "`x-forwarded-for` or `forwarded`, or the name of a header field with one address, like `x-real-ip`",
            ),
            "x-forwarded-for",
            "Where they write the client's address. What is no address has one bucket for all.",
        ),
        Setting::optional(
            "hops",
            Kind::Whole(1, 100),
            "Which entry of the list is the client, from the right; left out, the first that is no trusted proxy.",
        ),
        Setting::default("ipv4_prefix", Kind::Whole(8, 32), "32", "How many bits of an IPv4 address name a client."),
        Setting::default("ipv6_prefix", Kind::Whole(48, 128), "64", "How many bits of an IPv6 address name a client."),
    ],
};

pub(in crate::config) static USAGE: Table = Table {
    name: "usage",
    settings: &[Setting::default(
        "path",
        Kind::Text("a path"),
        "/.tollgate/usage",
        "Where a customer asks for its plan and what is left of each limit, free of charge. A wrong credential is charged under \
         the limits that need no customer, of the route that a request for this path takes or else of the first with such limits.",
    )],
};

pub(in crate::config) static HEADERS: Table = Table {
    name: "headers",
    settings: &[
        Setting::default("ietf", Kind::Flag, "true", "Whether responses have `RateLimit` and `RateLimit-Policy`."),
        Setting::default(
            "ietf_06",
            Kind::Flag,
            "false",
            "Whether they have `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds from now), as drafts up to 06 and Kong do.",
        ),
        Setting::default(
            "x_ratelimit",
            Kind::Choice(&["off", "delta", "epoch"]),
            "delta",
            "Whether responses have `X-RateLimit-*`, with the reset in seconds from now or since 1970.",
        ),
        Setting::optional(
            "retry_after_jitter",
            Kind::Text("a share of the time, like `10%`, or a length of time, like `5s`"),
            "The most that is added to `Retry-After` at random, so that denied clients do not return all at once.",
        ),
    ],
};

pub(in crate::config) static ACCESS_LOG: Table = Table {
    name: "access_log",
    settings: &[
        Setting::optional(
            "sample",
            Kind::Text("a share above 0 and up to 1, like `0.01`"),
            "The share that is logged.",
        ),
        Setting::optional("one_in", Kind::Whole(1, 0xffff_ffff), "One request in so many is logged."),
    ],
};

pub(in crate::config) static REQUEST_HEAD: Table = Table {
    name: "request_head",
    settings: &[
        Setting::default("max_target", HEAD_PART, "8KiB", "The longest request target; beyond it the answer is 414."),
        Setting::default("max_header", HEAD_PART, "8KiB", "The longest header field; beyond it the answer is 431."),
        Setting::default("max_headers_total", Kind::Size(256, 512 << 10), "32KiB", "All header fields together."),
        Setting::default("max_headers", Kind::Whole(1, 256), "128", "How many header fields there may be."),
        Setting::default("timeout", Kind::POSITIVE, "10s", "How long a head may take to arrive; then it is 408."),
    ],
};

pub(in crate::config) static REQUEST_BODY: Table = Table {
    name: "request_body",
    settings: &[
        Setting::default(
            "min_rate",
            Kind::OneOf(&[Kind::Choice(&["off"]), Kind::Text("bytes in each second, like `100B/s`")]),
            "100B/s",
            "The least at which a body has to come; a slower one is answered 408.",
        ),
        Setting::default("grace", Kind::POSITIVE, "20s", "How long a body may be slower than that at first."),
        Setting::default(
            "max_held",
            Kind::Size(1 << 10, 64 << 20),
            "1MiB",
            "How much of a body is held back until the `request_field`s that limits go by have come.",
        ),
    ],
};

/// The range of timeouts for decisions that wait for another machine.
pub(super) const CALL: Kind = Kind::Duration(Nanos::new(1_000_000), Nanos::SECOND);
pub(super) const A_PEM_FILE: Kind = PEM_FILE;
