//! The settings of the gateway itself: its listeners, its bounds on clients, and its response headers.

use super::Kind::{self, *};
use super::{
    ACCESS, BYPASS, CLUSTER, CORS, CUSTOMERS, LIMIT, ROUTE, STATE, STORE, TRACES, UPSTREAM, USAGE_EVENTS, WEBHOOK,
};
use crate::units::Nanos;

const CONNECTIONS_IN_ALL: Kind = Whole(1, 10_000_000);
pub(super) const PEM_FILE: Kind = Text("the name of a file in PEM");
/// The range of timeouts for decisions that wait for another machine.
pub(super) const CALL: Kind = Duration(Nanos::new(1_000_000), Nanos::SECOND);
const ADDRESS_HEADER: Kind =
    Text("`x-forwarded-for` or `forwarded`, or the name of a header field with one address, like `x-real-ip`");
const PEERS: Kind = List(&Text("an address or a network, like `10.0.0.0/8`, or `unix`"));
const HEAD_PART: Kind = Size(64, 512 << 10);

tables! {
    /// The settings at the top of the file.
    FILE "file" {
        include: List(&Text("the name of a file, in which `*` stands for anything, like `limits/*.yaml`")),
            "Further files; their upstreams, plans, limits, groups of limits, prices, routes and domains are added to \
            those of this file.";
        listeners: List(&Section(&LISTENER)),
            "The addresses that clients connect to; required unless the file has only `limits` or is included.";
        admin: Section(&ADMIN), "The port for operators: metrics, health, inspection.";
        workers: Whole(1, 1024),
            "The number of threads that serve clients. Default: one for each core. A change needs a restart.";
        connections: Section(&CONNECTIONS), "Bounds on the connections of clients.";
        client_address: Section(&CLIENT_ADDRESS), "How the address of a client is found.";
        store: Section(&STORE), "The Redis servers of limits that gateways share.";
        state: Section(&STATE), "The file that keeps the states of limits over restarts.";
        cluster: Section(&CLUSTER), "The gateways that divide keys among themselves.";
        upstreams: Named("upstream", &Section(&UPSTREAM)), nonempty,
            "The servers that requests are forwarded to; required if a listener proxies.";
        defaults: Section(&DEFAULTS), "Default settings of routes, upstreams and limits.";
        customers: Section(&CUSTOMERS), "How callers are identified, and which plans they have.";
        plans: List(&Text("the name of a plan")), default "[]", "The names of the plans.";
        limits: Named("limit", &Limit), "The limits, by their names.";
        limit_groups: Named("group", &List(&Text("the name of a limit"))),
            "Lists of limits; a route names such a list like one limit.";
        prices: Named("model", &Named("price", &Text("a decimal number, like `0.15`"))), nonempty,
            "The prices of a million tokens of each model, in money; `default` stands for any other model. See \
            docs/costs.md.";
        routes: List(&Section(&ROUTE)),
            "The routes: the requests that take each, their upstream and their limits; required unless all listeners \
            are rate limit services.";
        path_case: Choice(&["exact", "ignore"]), default "exact",
            "Whether routes tell `/Login` from `/login`. With `ignore` they do not, as in Express and ASP.NET; \
            forwarded paths and segments in keys keep their case.";
        domains: Named("domain", &Section(&DOMAIN)),
            "The limits of descriptors, by domain; required if a listener is a rate limit service.";
        access: Section(&ACCESS), nonempty, "The callers that are allowed or denied on every route.";
        bypass: Section(&BYPASS), nonempty, "The requests that are never charged on any route.";
        cors: Section(&CORS), "The sites whose scripts may read tollgate's own answers.";
        usage: Section(&USAGE), "Lets customers ask for their plan and for what is left of each limit.";
        webhook: Section(&WEBHOOK), "Sends a message when a key reaches a mark of `warn_at`.";
        usage_events: Section(&USAGE_EVENTS), "Sends the usage of customers, for billing.";
        traces: Section(&TRACES), "Exports spans of requests (OpenTelemetry).";
        headers: Section(&HEADERS), "The header fields that tell clients their limits and what is left of them.";
        access_log: OneOf(&[Choice(&["off", "full"]), Section(&ACCESS_LOG)]), default "off",
            "The requests that are logged on standard output. A sampled log also has each denied and failed request.";
        request_head: Section(&REQUEST_HEAD), "Bounds on the heads of requests.";
        request_body: Section(&REQUEST_BODY),
            "Bounds on the bodies of requests: how slowly they may arrive, and how much of them is held back.";
    }

    /// A default is a whole setting: a route with its own `request_headers` takes over none of the fields here.
    DEFAULTS "defaults" {
        routes: Defaults(&ROUTE, &["name", "match"]), "Default settings of routes.";
        upstreams: Defaults(&UPSTREAM, &["nodes"]), "Default settings of upstreams.";
        limits: Defaults(&LIMIT, &["algorithm", "key", "plans", "windows", "candidate"]), "Default settings of limits.";
    }

    LISTENER "listener" {
        address: Text("an address and a port, like `0.0.0.0:8080`, or a path, like `unix:/run/tollgate.sock`"),
            required, "The address or the path that it listens on.";
        mode: Text("permission bits in octal"), default "660", "The permissions of the path: who may connect to it.";
        serves: Choice(&["proxy", "forward_auth", "ext_authz", "rate_limit_service"]), default "proxy",
            "Whether it forwards requests, or answers other proxies that ask about theirs; see docs/decisions.md.";
        denied_status: Whole(400, 499),
            "With `forward_auth`: the status of all answers but 2xx, for proxies that understand few statuses.";
        tls: Section(&LISTENER_TLS), "The settings for TLS; without them connections are in plain text.";
        http2: Flag,
            "Whether it speaks HTTP/2 beside HTTP/1.1. Default: over TLS, and where other proxies ask in gRPC.";
        proxy_protocol: PEERS, default "[]",
            "The balancers that must begin a connection with the PROXY protocol, version 1 or 2.";
        max_connections: CONNECTIONS_IN_ALL, "The maximum number of its connections.";
    }

    DOMAIN "domain" {
        plan: Text("the key of an entry"),
            "The entry whose value is the name of the plan; a descriptor without it has no plan.";
        descriptors: List(&Section(&DESCRIPTOR)), required, "The first entries that descriptors may have.";
    }

    DESCRIPTOR "descriptor" {
        key: Text("the key of an entry, like `remote_address`"), required, "The key of the entry.";
        value: Text("a value, in which `*` stands for anything"), "The value of the entry. Default: any value.";
        limits: List(&Text("the name of a limit")), default "[]",
            "The limits of a descriptor that ends with this entry.";
        deny: Flag, default "false", "Whether a descriptor that ends with this entry is always denied.";
        descriptors: List(&Section(&DESCRIPTOR)), "The entries that may follow this one.";
    }

    LISTENER_TLS "listener_tls" {
        certificates: Set(&Section(&CERTIFICATE)), required,
            "The certificates; clients that name no host, or a host of no certificate, get the first.";
        client_certificates: Section(&CLIENT_CERTIFICATES), "Asks clients for certificates.";
        min_version: Choice(&["1.2", "1.3"]), default "1.2", "The oldest version of TLS that is accepted.";
    }

    CERTIFICATE "certificate" {
        cert: PEM_FILE, required, "The certificate, with the intermediate ones behind it.";
        key: PEM_FILE, required, "Its private key.";
    }

    CLIENT_CERTIFICATES "client_certificates" {
        ca: PEM_FILE, required, "The authorities whose certificates are accepted.";
        required: Flag, default "true", "Whether a client without a certificate is refused.";
    }

    ADMIN "admin" {
        address: Text("an address and a port, like `127.0.0.1:9090`"), default "127.0.0.1:9090",
            "The address that operators connect to.";
        token_file: Text("the name of a file"),
            "The file of the token that changes over the port need; without it, nobody can change anything.";
        audit_log: Text("the name of a file, like `audit.log`"),
            "The file to which each change over the port is appended as a line. Default: the change is logged.";
        hosts: Set(&Text("a host name without a port, like `tollgate.internal`")),
            "The host names by which browsers may reach the port, beside `localhost` and addresses.";
        top_denied_metrics: Whole(0, 20), default "0",
            "The number of most denied keys that have a metric of their own.";
        replay_logs: Set(&Text("the name of a file, like `access.log.1`")),
            "The access logs on which operators may try changes of limits. Default: none.";
    }

    CONNECTIONS "connections" {
        max: CONNECTIONS_IN_ALL,
            "The maximum number of connections. Default: as many as there are file descriptors for.";
        max_per_client: CONNECTIONS_IN_ALL, "The maximum number of connections of one client.";
        idle: Kind::POSITIVE, default "60s", "How long a connection may stay without a request.";
    }

    CLIENT_ADDRESS "client_address" {
        trusted_proxies: PEERS, default "[]", "The proxies whose header fields about clients are believed.";
        header: ADDRESS_HEADER, default "x-forwarded-for",
            "The field in which they write the client's address. Clients without a valid address share one bucket.";
        hops: Whole(1, 100),
            "The position of the client's address in the list, counted from the right. Default: the first address \
            that is no trusted proxy.";
        ipv4_prefix: Whole(8, 32), default "32", "How many leading bits of an IPv4 address identify a client.";
        ipv6_prefix: Whole(48, 128), default "64", "How many leading bits of an IPv6 address identify a client.";
    }

    USAGE "usage" {
        path: Text("a path, like `/.tollgate/usage`"), default "/.tollgate/usage",
            "The path at which a customer asks for its plan and for what is left of each limit, free of charge. A \
            request with a wrong credential is charged under those limits of a route that need no customer: of the \
            route that takes this path, or else of the first route with such limits. While they deny, a right \
            credential is denied, too.";
    }

    HEADERS "headers" {
        ietf: Flag, default "true", "Whether responses have `RateLimit` and `RateLimit-Policy`.";
        ietf_06: Flag, default "false",
            "Whether responses have `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds from now), as drafts up \
            to 06 and Kong do.";
        x_ratelimit: Choice(&["off", "delta", "epoch"]), default "delta",
            "Whether responses have `X-RateLimit-*`, with the reset in seconds from now or since 1970.";
        retry_after_jitter: Text("a share of the time, like `10%`, or a length of time, like `5s`"),
            "The largest random addition to the retry time in an answer, so that clients do not return all at once.";
    }

    ACCESS_LOG "access_log" {
        sample: Text("a share above 0 and up to 1, like `0.01`"), "The share of requests that is logged.";
        one_in: Whole(1, 0xffff_ffff), "One request in this many is logged.";
    }

    REQUEST_HEAD "request_head" {
        max_target: HEAD_PART, default "8KiB", "The longest request target; beyond it the answer is 414.";
        max_header: HEAD_PART, default "8KiB", "The longest header field; beyond it the answer is 431.";
        max_headers_total: Size(256, 512 << 10), default "32KiB",
            "The largest size of all header fields together; beyond it the answer is 431.";
        max_headers: Whole(1, 256), default "128", "The maximum number of header fields; beyond it the answer is 431.";
        timeout: Kind::POSITIVE, default "10s", "How long a head may take to arrive; then the answer is 408.";
    }

    REQUEST_BODY "request_body" {
        // every working link is faster, and a client that sends at this rate still holds a connection at little cost
        min_rate: OneOf(&[Choice(&["off"]), Text("bytes in each second, like `100B/s`")]), default "100B/s",
            "The minimum rate at which a body has to arrive; a slower request is answered 408.";
        grace: Kind::POSITIVE, default "20s", "How long a body may arrive more slowly at first.";
        max_held: Size(1 << 10, 64 << 20), default "1MiB",
            "How much of a body is held back until the fields that limits need (`request_field`) have arrived.";
    }
}
