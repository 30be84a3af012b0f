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
        tls: Section(&UPSTREAM_TLS), "Makes connections to the nodes speak TLS.";
        http2: Flag, default "false", "Whether the nodes are spoken to in HTTP/2, as gRPC needs.";
        balance: Choice(&["round_robin", "random", "least_requests", "consistent_hash"]), default "round_robin",
            "How a node is chosen.";
        hash_on: KEY_PART, "The part of the request that `balance: consistent_hash` goes by.";
        health_check: Section(&HEALTH_CHECK), "Takes nodes out that do not answer.";
        timeouts: Section(&TIMEOUTS), "How long things may take; then the answer is 504.";
        retries: Section(&RETRIES), "What is tried again on another node.";
        slow_start: Kind::DURATION, default "0s", "How long a node that is healthy again gets less traffic.";
        max_requests: Whole(1, u64::MAX),
            "How many requests may be at its nodes at the same time, each on a connection of its own in HTTP/1.1; \
            further ones are answered 503.";
        max_pending: Whole(0, u64::MAX), default "0",
            "How many requests wait, in turn, for room where there are `max_requests` already, each for \
            `timeouts.pending`.";
        eject: Section(&EJECT), "Leaves nodes alone whose requests fail.";
    }

    NODE "node" {
        address: NODE_ADDRESS, required, "The node.";
        weight: Whole(1, 1_000), default "1", "How many requests it gets for one of the others.";
    }

    UPSTREAM_TLS "upstream_tls" {
        ca: PEM_FILE, "The authorities that are believed; left out, those of the system.";
        cert: PEM_FILE, "The certificate that tollgate shows.";
        key: PEM_FILE, "Its private key.";
        server_name: Text("a host name or an address"),
            "The name in the nodes' certificates; left out, the host of the node.";
    }

    HEALTH_CHECK "health_check" {
        path: Text("a path, like `/healthz`"), required, "What each node is asked for.";
        every: Kind::POSITIVE, default "5s", "The time between two checks.";
        timeout: Kind::POSITIVE, default "1s", "How long a node may take to answer.";
        healthy_after: Whole(1, 1_000), default "2", "Good answers in a row that bring a node back.";
        unhealthy_after: Whole(1, 1_000), default "3", "Failures in a row that take a node out.";
    }

    EJECT "eject" {
        after: Whole(1, 1_000_000), default "5",
            "Failures in a row: a status of 500 or more, a connection that cannot be made or breaks, or no answer in \
            time.";
        for: Kind::POSITIVE, default "30s",
            "How long; twice as long the second time in a row, and so on, up to ten times as long.";
        max_percent: Whole(1, 99), default "50",
            "The most nodes that are left alone at the same time, in percent; an address of a host name is one.";
    }

    TIMEOUTS "timeouts" {
        pending: Kind::POSITIVE, default "1s", "To wait for room, where `max_pending` lets requests wait; then 503.";
        connect: Kind::POSITIVE, default "1s", "To connect, TLS included.";
        first_byte: Kind::POSITIVE, default "30s",
            "From the end of the request, or of its head if the client waits for 100 (Continue), to the head of the response.";
        idle: Kind::POSITIVE, default "60s", "Between two parts of a body.";
        total: Kind::POSITIVE, "From the head of the request to the end of the response.";
        keep_alive: Kind::DURATION, default "4s", "How long an idle connection is kept; `0s` keeps none.";
    }

    RETRIES "retries" {
        attempts: Whole(0, 5), default "1", "How many further nodes are tried.";
        on: List(&Choice(&["connect_error"])), default "[connect_error]",
            "What is tried again: a connection that could not be made.";
    }

    ROUTE "route" {
        name: Text("a name, like `orders`"), required, "The name in metrics and logs.";
        match: Section(&MATCH), "Which requests take it; all of them where it is left out.";
        upstream: OneOf(&[Text("the name of an upstream"), List(&Section(&SHARE))]),
            "Where its requests go, or how several upstreams share them; required where a listener proxies.";
        split_by: KEY_PART,
            "With several upstreams: the part of a request by whose value it always goes to the same one (`customer`, \
            `client_address`, a header or a cookie); at random where it is left out.";
        limits: Set(&Text("the name of a limit")), default "[]", "The limits of its requests.";
        denied: Section(&DENIED), "What a denied request is answered.";
        access: Section(&ACCESS), nonempty, "Who is let in and who is kept out here.";
        bypass: Section(&BYPASS), nonempty, "Who else is never charged here.";
        cors: Section(&ROUTE_CORS), "Whether the upstream answers preflights itself.";
        upgrade: Set(&Choice(&["websocket"])), "Whether connections may become WebSockets.";
        path_parameters: Choice(&["refuse", "allow"]), default "refuse",
            "Whether a path may hold parameters (`/a;x=1`), which servers read in different ways.";
        max_request_body: Size(1, u64::MAX),
            "The most bytes that the body of a request may have; a longer one is answered 413, and its rest is not \
            forwarded.";
        response_bytes_per_second: Text("bytes in each second, like `100KiB/s`"),
            "The pace at which the body of each response is sent.";
        rewrite: Section(&REWRITE), nonempty, "Changes the path on its way to the upstream.";
        request_headers: Section(&HEADER_EDITS), "Changes the header fields of requests.";
        response_headers: Section(&HEADER_EDITS),
            "Changes the header fields of responses; interim responses (103) and trailers pass as they came.";
    }

    SHARE "share" {
        name: Text("the name of an upstream"), required, "The upstream.";
        weight: Whole(1, 1_000_000), required, "Its share, for the sum of all.";
    }

    MATCH "match" {
        hosts: Set(&Text("a host name, like `api.example.com` or `*.example.com`")),
            "The hosts, of which one has to be the request's.";
        path: Text("a path, in which `*` or `{name}` is one segment and a final `**` any number"), default "/**",
            "The path. Limits can count by the segments that it names.";
        methods: METHODS,
            "The methods, of which one has to be the request's. GET takes HEAD too, unless another route with the same \
            hosts and path names HEAD.";
        headers: Named("header field", &VALUE), default "{}",
            "Header fields that all have to be there, each with its value, or `true` for any.";
        query: Named("query parameter", &VALUE), default "{}",
            "Query parameters that all have to be there, each with its value, percent-decoded, or `true` for any.";
    }

    VALUE_MATCH "value_match" {
        regex: Text("a regular expression, like `v[0-9]+`"), required,
            "What the whole value has to match. Look-around and back references are not known: it takes linear time.";
    }

    REWRITE "rewrite" {
        path: Text("a path, like `/v1/status`"), "The whole path, in place of the request's.";
        strip_prefix: PREFIX, "What is taken off the path's beginning.";
        add_prefix: PREFIX, "What is put in front of it then.";
    }

    HEADER_EDITS "header_edits" {
        set: HEADER_VALUES, default "{}", "Fields to set, in place of those with the same name.";
        remove: HEADER_NAMES, default "[]", "Fields to remove; `host` can only be set.";
    }

    ROUTE_CORS "route_cors" {
        preflight: Choice(&["answer", "forward"]), required, "Who answers preflights.";
    }
}
