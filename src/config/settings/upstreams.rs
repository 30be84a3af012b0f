//! The settings of upstreams and routes.

use super::gateway::A_PEM_FILE;
use super::{ACCESS, BYPASS, DENIED, KEY_PART, Kind, Presence, Setting, Table};

const HEADER_NAMES: Kind = Kind::List(&Kind::Text("the name of a header field"));
const HEADER_VALUES: Kind = Kind::Named("header field", &Kind::Text("its value"));
const METHODS: Kind = Kind::List(&Kind::Text("a method, like `GET`"));
const PREFIX: Kind = Kind::Text("the beginning of a path, like `/v1`");

pub(in crate::config) static UPSTREAM: Table = Table {
    name: "upstream",
    settings: &[
        Setting::required(
            "nodes",
            Kind::List(&Kind::OneOf(&[
                Kind::Text("a host and a port, like `10.0.1.1:9000`, or a path, like `unix:/run/orders.sock`"),
                Kind::Section(&NODE),
            ])),
            "The servers. A host name stands for all its addresses.",
        ),
        Setting::optional("tls", Kind::Section(&UPSTREAM_TLS), "Makes connections to the nodes speak TLS."),
        Setting::default("http2", Kind::Flag, "false", "Whether the nodes are spoken to in HTTP/2, as gRPC needs."),
        Setting::default(
            "balance",
            Kind::Choice(&["round_robin", "random", "least_requests", "consistent_hash"]),
            "round_robin",
            "How a node is chosen.",
        ),
        Setting::optional("hash_on", KEY_PART, "The part of the request that `balance: consistent_hash` goes by."),
        Setting::optional("health_check", Kind::Section(&HEALTH_CHECK), "Takes nodes out that do not answer."),
        Setting::optional("timeouts", Kind::Section(&TIMEOUTS), "How long things may take; then the answer is 504."),
        Setting::optional("retries", Kind::Section(&RETRIES), "What is tried again on another node."),
        Setting::default(
            "slow_start",
            Kind::DURATION,
            "0s",
            "How long a node that is healthy again gets less traffic.",
        ),
        Setting::optional(
            "max_requests",
            Kind::Whole(1, u64::MAX),
            "How many requests may be at its nodes at the same time, each on a connection of its own in HTTP/1.1; further ones are \
             answered 503.",
        ),
        Setting::default(
            "max_pending",
            Kind::Whole(0, u64::MAX),
            "0",
            "How many requests wait, in turn, for room where there are `max_requests` already, each for `timeouts.pending`.",
        ),
        Setting::optional("eject", Kind::Section(&EJECT), "Leaves nodes alone whose requests fail."),
    ],
};

pub(in crate::config) static NODE: Table = Table {
    name: "node",
    settings: &[
        Setting::required(
            "address",
            Kind::Text("a host and a port, or a path, like `unix:/run/orders.sock`"),
            "The node.",
        ),
        Setting::default("weight", Kind::Whole(1, 1_000), "1", "How many requests it gets for one of the others."),
    ],
};

pub(in crate::config) static UPSTREAM_TLS: Table = Table {
    name: "upstream_tls",
    settings: &[
        Setting::optional("ca", A_PEM_FILE, "The authorities that are believed; left out, those of the system."),
        Setting::optional("cert", A_PEM_FILE, "The certificate that tollgate shows."),
        Setting::optional("key", A_PEM_FILE, "Its private key."),
        Setting::optional(
            "server_name",
            Kind::Text("a host name or an address"),
            "The name in the nodes' certificates; left out, the host of the node.",
        ),
    ],
};

pub(in crate::config) static HEALTH_CHECK: Table = Table {
    name: "health_check",
    settings: &[
        Setting::required("path", Kind::Text("a path, like `/healthz`"), "What each node is asked for."),
        Setting::default("every", Kind::POSITIVE, "5s", "The time between two checks."),
        Setting::default("timeout", Kind::POSITIVE, "1s", "How long a node may take to answer."),
        Setting::default("healthy_after", Kind::Whole(1, 1_000), "2", "Good answers in a row that bring a node back."),
        Setting::default("unhealthy_after", Kind::Whole(1, 1_000), "3", "Failures in a row that take a node out."),
    ],
};

pub(in crate::config) static EJECT: Table = Table {
    name: "eject",
    settings: &[
        Setting::default(
            "after",
            Kind::Whole(1, 1_000_000),
            "5",
            "Failures in a row: a status of 500 or more, a connection that cannot be made or breaks, or no answer in time.",
        ),
        Setting::default(
            "for",
            Kind::POSITIVE,
            "30s",
            "How long; twice as long the second time in a row, and so on, up to ten times as long.",
        ),
        Setting::default(
            "max_percent",
            Kind::Whole(1, 99),
            "50",
            "The most nodes that are left alone at the same time, in percent; an address of a host name is one.",
        ),
    ],
};

pub(in crate::config) static TIMEOUTS: Table = Table {
    name: "timeouts",
    settings: &[
        Setting::default(
            "pending",
            Kind::POSITIVE,
            "1s",
            "To wait for room, where `max_pending` lets requests wait; then 503.",
        ),
        Setting::default("connect", Kind::POSITIVE, "1s", "To connect, TLS included."),
        Setting::default(
            "first_byte",
            Kind::POSITIVE,
            "30s",
            "From the end of the request to the head of the response.",
        ),
        Setting::default("idle", Kind::POSITIVE, "60s", "Between two parts of a body."),
        Setting::optional("total", Kind::POSITIVE, "From the head of the request to the end of the response."),
        Setting::default("keep_alive", Kind::DURATION, "4s", "How long an idle connection is kept; `0s` keeps none."),
    ],
};

pub(in crate::config) static RETRIES: Table = Table {
    name: "retries",
    settings: &[
        Setting::default("attempts", Kind::Whole(0, 5), "1", "How many further nodes are tried."),
        Setting::default(
            "on",
            Kind::List(&Kind::Choice(&["connect_error"])),
            "[connect_error]",
            "What is tried again: a connection that could not be made.",
        ),
    ],
};

pub(in crate::config) static ROUTE: Table = Table {
    name: "route",
    settings: &[
        Setting::required("name", Kind::Text("a name, like `orders`"), "The name in metrics and logs."),
        Setting::optional("match", Kind::Section(&MATCH), "Which requests take it; all of them where it is left out."),
        Setting::optional(
            "upstream",
            Kind::OneOf(&[Kind::Text("the name of an upstream"), Kind::List(&Kind::Section(&SHARE))]),
            "Where its requests go, or how several upstreams share them; required where a listener proxies.",
        ),
        Setting::optional(
            "split_by",
            KEY_PART,
            "With several upstreams: the part of a request by whose value it always goes to the same one (`customer`, \
             `client_address`, a header or a cookie); at random where it is left out.",
        ),
        Setting::default("limits", Kind::List(&Kind::Text("the name of a limit")), "[]", "The limits of its requests."),
        Setting::optional("denied", Kind::Section(&DENIED), "What a denied request is answered."),
        Setting::optional("access", Kind::Section(&ACCESS), "Who is let in and who is kept out here."),
        Setting::optional("bypass", Kind::Section(&BYPASS), "Who else is never charged here."),
        Setting::optional("cors", Kind::Section(&ROUTE_CORS), "Whether the upstream answers preflights itself."),
        Setting::optional(
            "upgrade",
            Kind::List(&Kind::Choice(&["websocket"])),
            "Whether connections may become WebSockets.",
        ),
        Setting::default(
            "path_parameters",
            Kind::Choice(&["refuse", "allow"]),
            "refuse",
            "Whether a path may hold parameters (`/a;x=1`), which servers read in different ways.",
        ),
        Setting::optional(
            "max_request_body",
            Kind::Size(1, u64::MAX),
            "The most bytes that the body of a request may have; a longer one is answered 413, and its rest is not forwarded.",
        ),
        Setting::optional(
            "response_bytes_per_second",
            Kind::Text("bytes in each second, like `100KiB/s`"),
            "The pace at which the body of each response is sent.",
        ),
        Setting::optional("rewrite", Kind::Section(&REWRITE), "Changes the path on its way to the upstream."),
        Setting::optional("request_headers", Kind::Section(&HEADER_EDITS), "Changes the header fields of requests."),
        Setting::optional("response_headers", Kind::Section(&HEADER_EDITS), "Changes the header fields of responses."),
    ],
};

pub(in crate::config) static SHARE: Table = Table {
    name: "share",
    settings: &[
        Setting::required("name", Kind::Text("the name of an upstream"), "The upstream."),
        Setting::required("weight", Kind::Whole(1, 1_000_000), "Its share, for the sum of all."),
    ],
};

pub(in crate::config) static MATCH: Table = Table {
    name: "match",
    settings: &[
        Setting::optional(
            "hosts",
            Kind::List(&Kind::Text("a host name, like `api.example.com` or `*.example.com`")),
            "The hosts, of which one has to be the request's.",
        ),
        Setting::default(
            "path",
            Kind::Text("a path, in which `*` or `{name}` is one segment and a final `**` any number"),
            "/**",
            "The path. Limits can count by the segments that it names.",
        ),
        Setting::optional("methods", METHODS, "The methods, of which one has to be the request's."),
        Setting::default(
            "headers",
            Kind::Named("header field", &VALUE),
            "{}",
            "Header fields that all have to be there, each with its value, or `true` for any.",
        ),
        Setting::default(
            "query",
            Kind::Named("query parameter", &VALUE),
            "{}",
            "Query parameters that all have to be there, each with its value, percent-decoded, or `true` for any.",
        ),
    ],
};

const VALUE: Kind = Kind::OneOf(&[Kind::Flag, Kind::Text("its value"), Kind::Section(&VALUE_MATCH)]);

pub(in crate::config) static VALUE_MATCH: Table = Table {
    name: "value_match",
    settings: &[Setting {
        name: "regex",
        kind: Kind::Text("a regular expression, like `v[0-9]+`"),
        presence: Presence::Required,
        about: "What the whole value has to match. Look-around and back references are not known: it takes linear time.",
    }],
};

pub(in crate::config) static REWRITE: Table = Table {
    name: "rewrite",
    settings: &[
        Setting::optional("path", Kind::Text("a path"), "The whole path, in place of the request's."),
        Setting::optional("strip_prefix", PREFIX, "What is taken off the path's beginning."),
        Setting::optional("add_prefix", PREFIX, "What is put in front of it then."),
    ],
};

pub(in crate::config) static HEADER_EDITS: Table = Table {
    name: "header_edits",
    settings: &[
        Setting::default("set", HEADER_VALUES, "{}", "Fields to set, in place of those with the same name."),
        Setting::default("remove", HEADER_NAMES, "[]", "Fields to remove; `host` can only be set."),
    ],
};

pub(in crate::config) static ROUTE_CORS: Table = Table {
    name: "route_cors",
    settings: &[Setting::required("preflight", Kind::Choice(&["answer", "forward"]), "Who answers preflights.")],
};
