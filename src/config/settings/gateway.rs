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
            "Further files, whose upstreams, plans, limits, groups of limits, prices, routes and domains are this \
            file's, too.";
        listeners: List(&Section(&LISTENER)),
            "Where clients connect to; required except in files of `limits` only and in files that another one includes.";
        admin: Section(&ADMIN), "The port for operators: metrics, health, inspection.";
        workers: Whole(1, 1024),
            "How many threads serve clients; one for each core where it is left out. Takes a restart.";
        connections: Section(&CONNECTIONS), "Bounds on the connections of clients.";
        client_address: Section(&CLIENT_ADDRESS), "How a client's address is found.";
        store: Section(&STORE), "The Redis servers of limits that gateways share.";
        state: Section(&STATE), "The file that keeps counts over restarts.";
        cluster: Section(&CLUSTER), "The gateways that divide keys among themselves.";
        upstreams: Named("upstream", &Section(&UPSTREAM)), nonempty,
            "Where requests go; required where a listener proxies.";
        defaults: Section(&DEFAULTS), "What routes, upstreams and limits say that do not say it themselves.";
        customers: Section(&CUSTOMERS), "Who calls, and on which plan.";
        plans: List(&Text("the name of a plan")), default "[]", "The names of the plans.";
        limits: Named("limit", &Limit), "The limits, by their names.";
        limit_groups: Named("group", &List(&Text("the name of a limit"))),
            "Lists of limits that routes name like one limit.";
        prices: Named("model", &Named("price", &Text("a decimal number, like `0.15`"))), nonempty,
            "What a million tokens of each model cost, in money; `default` is any other model. See docs/costs.md.";
        routes: List(&Section(&ROUTE)),
            "Which requests go to which upstream, under which limits; required unless all listeners are rate limit \
            services.";
        path_case: Choice(&["exact", "ignore"]), default "exact",
            "Whether `/Login` is another path than `/login` for routes. With `ignore` it is not, as in Express and ASP.NET; \
            forwarded paths and segments in keys keep their case.";
        domains: Named("domain", &Section(&DOMAIN)),
            "Which descriptors are under which limits; required where a listener is a rate limit service.";
        access: Section(&ACCESS), nonempty, "Who is let in and who is kept out, on every route.";
        bypass: Section(&BYPASS), nonempty, "Who is never charged, on every route.";
        cors: Section(&CORS), "Which sites' scripts may read tollgate's own answers.";
        usage: Section(&USAGE), "Lets customers ask where they stand.";
        webhook: Section(&WEBHOOK), "Who is told of keys at the marks of `warn_at`.";
        usage_events: Section(&USAGE_EVENTS), "Who is sent what customers use, for bills.";
        traces: Section(&TRACES), "Who is sent spans of requests (OpenTelemetry).";
        headers: Section(&HEADERS), "The header fields that tell clients where they stand.";
        access_log: OneOf(&[Choice(&["off", "full"]), Section(&ACCESS_LOG)]), default "off",
            "Which requests have a line on standard output. A sampled log also has every denied and failed one.";
        request_head: Section(&REQUEST_HEAD), "Bounds on the heads of requests.";
        request_body: Section(&REQUEST_BODY), "How a body may come: how slowly, and how much of it is held back.";
    }

    /// A default is a whole setting: a route with its own `request_headers` takes over none of the fields here.
    DEFAULTS "defaults" {
        routes: Defaults(&ROUTE, &["name", "match"]), "Of every route.";
        upstreams: Defaults(&UPSTREAM, &["nodes"]), "Of every upstream.";
        limits: Defaults(&LIMIT, &["algorithm", "key", "plans", "windows", "candidate"]), "Of every limit.";
    }

    LISTENER "listener" {
        address: Text("an address and a port, like `0.0.0.0:8080`, or a path, like `unix:/run/tollgate.sock`"),
            required, "Where it listens.";
        mode: Text("what of `rwxrwxrwx` is set, in octal"), default "660", "Who may open the path.";
        serves: Choice(&["proxy", "forward_auth", "ext_authz", "rate_limit_service"]), default "proxy",
            "Whether it proxies requests, or answers other proxies about theirs; see docs/decisions.md.";
        denied_status: Whole(400, 499),
            "With `forward_auth`: the status of every answer that is not 2xx, for proxies that understand few.";
        tls: Section(&LISTENER_TLS), "Makes it speak TLS.";
        http2: Flag,
            "Whether it speaks HTTP/2 beside HTTP/1.1; left out, it does so over TLS, and where it is asked in gRPC.";
        proxy_protocol: PEERS, default "[]",
            "The balancers that must begin a connection with the PROXY protocol, version 1 or 2.";
        max_connections: CONNECTIONS_IN_ALL, "How many connections it may have.";
    }

    DOMAIN "domain" {
        plan: Text("the key of an entry"),
            "The entry whose value is the name of the plan; descriptors without it have no plan.";
        descriptors: List(&Section(&DESCRIPTOR)), required, "What descriptors may begin with.";
    }

    DESCRIPTOR "descriptor" {
        key: Text("the key of an entry, like `remote_address`"), required, "The key of the entry.";
        value: Text("a value, in which `*` stands for anything"),
            "The value of the entry; any value where it is left out.";
        limits: List(&Text("the name of a limit")), default "[]",
            "The limits of a descriptor that ends with this entry.";
        deny: Flag, default "false", "Whether a descriptor that ends with this entry is always denied.";
        descriptors: List(&Section(&DESCRIPTOR)), "What may follow.";
    }

    LISTENER_TLS "listener_tls" {
        certificates: Set(&Section(&CERTIFICATE)), required,
            "The certificates; a client without a matching server name is shown the first.";
        client_certificates: Section(&CLIENT_CERTIFICATES), "Asks clients for certificates.";
        min_version: Choice(&["1.2", "1.3"]), default "1.2", "The oldest version of TLS.";
    }

    CERTIFICATE "certificate" {
        cert: PEM_FILE, required, "The certificate, with the intermediate ones behind it.";
        key: PEM_FILE, required, "Its private key.";
    }

    CLIENT_CERTIFICATES "client_certificates" {
        ca: PEM_FILE, required, "The authorities whose certificates are accepted.";
        required: Flag, default "true", "Whether a client without a certificate is turned away.";
    }

    ADMIN "admin" {
        address: Text("an address and a port, like `127.0.0.1:9090`"), default "127.0.0.1:9090",
            "Where operators connect to.";
        token_file: Text("the name of a file"),
            "The file with the token of those who may change something; nobody may without it.";
        audit_log: Text("the name of a file, like `audit.log`"),
            "The file to which each change made over the port is added as a line; left out, the log gets it.";
        hosts: Set(&Text("a host name without a port, like `tollgate.internal`")),
            "The names by which browsers may reach the port, beside `localhost` and addresses.";
        top_denied_metrics: Whole(0, 20), default "0",
            "How many of the keys that are denied most have a metric of their own.";
        replay_logs: Set(&Text("the name of a file, like `access.log.1`")),
            "The access logs on which operators may try changes of limits; none where it is left out.";
    }

    CONNECTIONS "connections" {
        max: CONNECTIONS_IN_ALL,
            "How many connections there may be; left out, as many as there are file descriptors for.";
        max_per_client: CONNECTIONS_IN_ALL, "How many connections one client may have.";
        idle: Kind::POSITIVE, default "60s", "How long a connection may be without a request.";
    }

    CLIENT_ADDRESS "client_address" {
        trusted_proxies: PEERS, default "[]", "The proxies that are believed about clients.";
        header: ADDRESS_HEADER, default "x-forwarded-for",
            "Where they write the client's address. What is no address has one bucket for all.";
        hops: Whole(1, 100),
            "Which entry of the list is the client, from the right; left out, the first that is no trusted proxy.";
        ipv4_prefix: Whole(8, 32), default "32", "How many bits of an IPv4 address name a client.";
        ipv6_prefix: Whole(48, 128), default "64", "How many bits of an IPv6 address name a client.";
    }

    USAGE "usage" {
        path: Text("a path, like `/.tollgate/usage`"), default "/.tollgate/usage",
            "Where a customer asks for its plan and what is left of each limit, free of charge. A wrong credential is \
            charged under the limits that need no customer, of the route that a request for this path takes or else of \
            the first with such limits; where these deny it, they deny a right one, too.";
    }

    HEADERS "headers" {
        ietf: Flag, default "true", "Whether responses have `RateLimit` and `RateLimit-Policy`.";
        ietf_06: Flag, default "false",
            "Whether they have `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds from now), as drafts up to 06 \
            and Kong do.";
        x_ratelimit: Choice(&["off", "delta", "epoch"]), default "delta",
            "Whether responses have `X-RateLimit-*`, with the reset in seconds from now or since 1970.";
        retry_after_jitter: Text("a share of the time, like `10%`, or a length of time, like `5s`"),
            "The most that is added to the retry time in an answer at random, so that denied clients do not return all at once.";
    }

    ACCESS_LOG "access_log" {
        sample: Text("a share above 0 and up to 1, like `0.01`"), "The share that is logged.";
        one_in: Whole(1, 0xffff_ffff), "One request in so many is logged.";
    }

    REQUEST_HEAD "request_head" {
        max_target: HEAD_PART, default "8KiB", "The longest request target; beyond it the answer is 414.";
        max_header: HEAD_PART, default "8KiB", "The longest header field; beyond it the answer is 431.";
        max_headers_total: Size(256, 512 << 10), default "32KiB", "All header fields together.";
        max_headers: Whole(1, 256), default "128", "How many header fields there may be.";
        timeout: Kind::POSITIVE, default "10s", "How long a head may take to arrive; then it is 408.";
    }

    REQUEST_BODY "request_body" {
        // every working link is faster, and a client that sends at this rate still holds a connection at little cost
        min_rate: OneOf(&[Choice(&["off"]), Text("bytes in each second, like `100B/s`")]), default "100B/s",
            "The least at which a body has to come; a slower one is answered 408.";
        grace: Kind::POSITIVE, default "20s", "How long a body may be slower than that at first.";
        max_held: Size(1 << 10, 64 << 20), default "1MiB",
            "How much of a body is held back until the `request_field`s that limits go by have come.";
    }
}
