//! The settings of upstreams and routes.

use super::Kind::{self, *};
use super::gateway::PEM_FILE;
use super::{ACCESS, BYPASS, DENIED, KEY_PART};

const HEADER_NAMES: Kind = List(&Text("the name of a header field"));
const HEADER_VALUES: Kind = Named("header field", &Text("its value"));
const METHODS: Kind = Set(&Text("a method, like `GET`"));
const NODE_ADDRESS: Kind = Text("a host and a port, like `10.0.1.1:9000`, or a path, like `unix:/run/orders.sock`");
const PREFIX: Kind = Text("the beginning of a path, like `/v1`");
const VALUE: Kind = OneOf(&[Flag, Text("its value"), Section(&VALUE_MATCH)]);

tables! {
    UPSTREAM "upstream" {
        nodes: Set(&OneOf(&[NODE_ADDRESS, Section(&NODE)])), required,
            "The servers. A host name stands for all its addresses.";
        tls: Section(&UPSTREAM_TLS), "The settings for TLS; without them connections are in plain text.";
        http2: Flag, default "false", "Whether tollgate speaks HTTP/2 with the nodes, as gRPC needs.";
        balance: Choice(&["round_robin", "random", "least_requests", "consistent_hash"]), default "round_robin",
            "How a node is chosen.";
        hash_on: KEY_PART,
            "The part of the request whose hash chooses the node with `balance: consistent_hash`; docs/guide.md lists \
            those that can.";
        health_check: Section(&HEALTH_CHECK), "Takes nodes out that do not answer checks.";
        timeouts: Section(&TIMEOUTS), "How long each step of a request may take; then the answer is 504.";
        retries: Section(&RETRIES), "The failures after which a request is tried on another node.";
        slow_start: Kind::DURATION, default "0s",
            "How long the share of a node that is healthy again grows, evenly, from a hundredth to all of its weight.";
        max_requests: Whole(1, u64::MAX),
            "The maximum number of requests at its nodes at the same time, each on a connection of its own in \
            HTTP/1.1; further requests are answered 503.";
        max_pending: Whole(0, u64::MAX), default "0",
            "The maximum number of requests that wait, in turn, while there are `max_requests`; each waits at most \
            `timeouts.pending`.";
        eject: Section(&EJECT), "Takes nodes out whose requests fail.";
    }

    NODE "node" {
        address: NODE_ADDRESS, required, "The node.";
        weight: Whole(1, 1_000), default "1", "How many requests it gets for each request to a node of weight 1.";
    }

    UPSTREAM_TLS "upstream_tls" {
        ca: PEM_FILE, "The trusted certificate authorities. Default: those of the system.";
        cert: PEM_FILE, "The client certificate that tollgate presents.";
        key: PEM_FILE, "Its private key.";
        server_name: Text("a host name or an address"),
            "The name in the nodes' certificates. Default: the host of the node.";
    }

    HEALTH_CHECK "health_check" {
        path: Text("a path, like `/healthz`"), required,
            "The path that each node is asked for, by GET. A status from 200 to 299 is good; anything else, a redirect \
            too, is a failure.";
        every: Kind::POSITIVE, default "5s", "The time between two checks.";
        timeout: Kind::POSITIVE, default "1s", "How long a node may take to answer.";
        healthy_after: Whole(1, 1_000), default "2", "The number of good answers in a row that bring a node back.";
        unhealthy_after: Whole(1, 1_000), default "3", "The number of failures in a row that take a node out.";
    }

    EJECT "eject" {
        after: Whole(1, 1_000_000), default "5",
            "The number of failures in a row that take a node out. A failure is a status of 500 or more, a connection \
            that cannot be made or breaks, or no answer in time.";
        for: Kind::POSITIVE, default "30s",
            "How long a node is out; the n-th time in a row n times as long, at most ten times.";
        max_percent: Whole(1, 99), default "50",
            "The largest percent of nodes that are ejected at the same time; each address of a host name is a node.";
    }

    TIMEOUTS "timeouts" {
        pending: Kind::POSITIVE, default "1s",
            "The time that a request waits for others to end (`max_pending`); then the answer is 503.";
        connect: Kind::POSITIVE, default "1s", "The time to connect, TLS included.";
        first_byte: Kind::POSITIVE, default "30s",
            "The time from the end of the request, or of its head if the client waits for 100 (Continue), to the head \
            of the response.";
        idle: Kind::POSITIVE, default "60s", "The time between two parts of a body.";
        total: Kind::POSITIVE, "The time from the head of the request to the end of the response.";
        keep_alive: Kind::DURATION, default "4s", "How long an idle connection is kept; `0s` keeps none.";
    }

    RETRIES "retries" {
        attempts: Whole(0, 5), default "1", "The number of further nodes that are tried.";
        on: List(&Choice(&["connect_error"])), default "[connect_error]",
            "The failures after which another node is tried: a connection that could not be made.";
    }

    ROUTE "route" {
        name: Text("a name, like `orders`"), required, "The name in metrics and logs.";
        match: Section(&MATCH), "The requests that take the route. Default: all.";
        upstream: OneOf(&[Text("the name of an upstream"), List(&Section(&SHARE))]),
            "The upstream of its requests, or several upstreams that share them; required if a listener proxies.";
        split_by: KEY_PART,
            "With several upstreams: the part of a request (`customer`, `client_address`, a header or a cookie) that \
            chooses the upstream, so that the same value always goes to the same one. Default: at random.";
        limits: Set(&Text("the name of a limit")), default "[]", "The limits of its requests.";
        denied: Section(&DENIED), "The answer to a denied request.";
        access: Section(&ACCESS), nonempty, "The callers that are allowed or denied on this route.";
        bypass: Section(&BYPASS), nonempty, "Further requests that are never charged on this route.";
        cors: Section(&ROUTE_CORS), "Whether tollgate answers preflights of this route or forwards them.";
        upgrade: Set(&Choice(&["websocket"])), "Whether connections may become WebSockets.";
        path_parameters: Choice(&["refuse", "allow"]), default "refuse",
            "Whether a path may hold parameters (`/a;x=1`), which servers read in different ways.";
        max_request_body: Size(1, u64::MAX),
            "The largest size of a request's body; a longer one is answered 413, and its rest is not forwarded.";
        response_bytes_per_second: Text("bytes in each second, like `100KiB/s`"),
            "The pace at which the body of each response is sent.";
        rewrite: Section(&REWRITE), nonempty, "Changes the path on its way to the upstream.";
        request_headers: Section(&HEADER_EDITS), "Changes the header fields of requests.";
        response_headers: Section(&HEADER_EDITS),
            "Changes the header fields of responses; interim responses (103) and trailers pass as they came.";
    }

    SHARE "share" {
        name: Text("the name of an upstream"), required, "The upstream.";
        weight: Whole(1, 1_000_000), required, "Its share of the requests, relative to the sum of all weights.";
    }

    MATCH "match" {
        hosts: Set(&Text("a host name, like `api.example.com` or `*.example.com`")),
            "The hosts; the request's host must be one of them.";
        path: Text("a path, in which `*` or `{name}` is one segment and a final `**` any number"), default "/**",
            "The path. Limits can count by the segments that it names.";
        methods: METHODS,
            "The methods; the request's method must be one of them. GET takes HEAD too, unless another route with the \
            same hosts and path names HEAD.";
        headers: Named("header field", &VALUE), default "{}",
            "Header fields that the request must have, each with its value, or `true` for any value.";
        query: Named("query parameter", &VALUE), default "{}",
            "Query parameters that the request must have, each with its value, percent-decoded, or `true` for any \
            value.";
    }

    VALUE_MATCH "value_match" {
        regex: Text("a regular expression, like `v[0-9]+`"), required,
            "The expression that the whole value must match. It knows no look-around and no back references, so that \
            it takes linear time.";
    }

    REWRITE "rewrite" {
        path: Text("a path, like `/v1/status`"), "The whole path, in place of the request's.";
        strip_prefix: PREFIX, "The prefix that is removed from the path.";
        add_prefix: PREFIX, "The prefix that is then put in front of the path.";
    }

    HEADER_EDITS "header_edits" {
        set: HEADER_VALUES, default "{}", "Fields to set, in place of those with the same name.";
        remove: HEADER_NAMES, default "[]", "Fields to remove; `host` can only be set.";
    }

    ROUTE_CORS "route_cors" {
        preflight: Choice(&["answer", "forward"]), required,
            "Whether tollgate answers preflights or forwards them to the upstream.";
    }
}
