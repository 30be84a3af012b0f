//! The settings of shared and stored data: Redis, the state file, queues of messages, the cluster.

use super::gateway::{A_PEM_FILE, CALL};
use super::{Kind, Setting, Table};
use crate::units::Nanos;

const SERVER: Kind = Kind::Text("a server, like `redis://127.0.0.1:6379/0` or `rediss://redis.internal:6379`");
const FILE_NAME: Kind = Kind::Text("the name of a file");
const USER: Kind = Kind::Text("the name of a user of Redis");

pub(in crate::config) static STORE: Table = Table {
    name: "store",
    settings: &[
        Setting::optional("redis", SERVER, "One server. Exactly one of `redis`, `sentinel` and `cluster` is there."),
        Setting::optional("sentinel", Kind::Section(&SENTINEL), "A server and its replicas, as sentinels see them."),
        Setting::optional("cluster", Kind::List(&SERVER), "Some servers of a Redis Cluster."),
        Setting::optional("username", USER, "The user, if it is not in the address."),
        Setting::optional("password_file", FILE_NAME, "The file that holds the password, if it is not in the address."),
        Setting::optional("tls", Kind::Section(&STORE_TLS), "The files of TLS, with `rediss://` or sentinels."),
        Setting::default(
            "prefix",
            Kind::Text("letters, digits, `-`, `_`, `.` and `:`, 1 to 64 of them"),
            "tollgate",
            "What the names of all keys in Redis begin with.",
        ),
        Setting::default("timeout", CALL, "10ms", "How long a decision waits for Redis; then `on_store_down` holds."),
        Setting::default(
            "sync_every",
            Kind::Duration(Nanos::new(10_000_000), Nanos::from_secs(10)),
            "100ms",
            "How often gateways exchange what they counted under `consistency: eventual`.",
        ),
        Setting::optional(
            "nodes",
            Kind::Whole(1, 10_000),
            "How many gateways there are; left out, as many as Redis has seen lately.",
        ),
        Setting::optional(
            "key_file",
            FILE_NAME,
            "The file of the secret that hides customers' keys in the names of Redis keys.",
        ),
    ],
};

pub(in crate::config) static SENTINEL: Table = Table {
    name: "sentinel",
    settings: &[
        Setting::required("master", Kind::Text("a name, like `mymaster`"), "What the sentinels call the servers."),
        Setting::required(
            "nodes",
            Kind::List(&Kind::Text("a host and a port, like `10.0.0.1:26379`")),
            "The sentinels.",
        ),
        Setting::optional("username", USER, "The user at the sentinels."),
        Setting::optional("password_file", FILE_NAME, "The file of the sentinels' password."),
    ],
};

pub(in crate::config) static STORE_TLS: Table = Table {
    name: "store_tls",
    settings: &[
        Setting::optional("ca", A_PEM_FILE, "The authorities that are believed; left out, those of the system."),
        Setting::optional("cert", A_PEM_FILE, "The certificate that tollgate shows."),
        Setting::optional("key", A_PEM_FILE, "Its private key."),
    ],
};

pub(in crate::config) static STATE: Table = Table {
    name: "state",
    settings: &[
        Setting::required("file", Kind::Text("the name of a file, like `tollgate.state`"), "The file."),
        Setting::default(
            "every",
            Kind::Duration(Nanos::new(100_000_000), Nanos::MAX),
            "10s",
            "How often it is written; a crash loses what was counted since.",
        ),
    ],
};

pub(in crate::config) static WEBHOOK: Table = Table {
    name: "webhook",
    settings: &[
        Setting::required("upstream", Kind::Text("the name of an upstream"), "Where the receiver is."),
        Setting::default("path", Kind::Text("a path"), "/", "What is posted to."),
        Setting::required(
            "secret_file",
            FILE_NAME,
            "The file of the secret that messages are signed with: `whsec_` and 24 to 64 bytes in base64; former ones may follow, a line each.",
        ),
        Setting::required(
            "queue",
            Kind::Text("the name of a directory, like `webhook.queue`"),
            "Where messages are kept until they are delivered.",
        ),
        Setting::default(
            "max_queue",
            Kind::Size(64 << 10, 1 << 30),
            "16MiB",
            "How large the queue may be; messages that find no room are lost.",
        ),
        Setting::default(
            "keep",
            Kind::Duration(Nanos::SECOND, Nanos::MAX),
            "24h",
            "How long a message is tried to be delivered.",
        ),
    ],
};

pub(in crate::config) static USAGE_EVENTS: Table = Table {
    name: "usage_events",
    settings: &[
        Setting::required("upstream", Kind::Text("the name of an upstream"), "Where the receiver is."),
        Setting::default("path", Kind::Text("a path"), "/", "What is posted to."),
        Setting::optional(
            "token_file",
            FILE_NAME,
            "The file of the token that is shown to the receiver: `authorization: Bearer TOKEN`.",
        ),
        Setting::default("source", Kind::Text("a URI"), "tollgate", "The `source` of the events."),
        Setting::default(
            "every",
            Kind::Duration(Nanos::SECOND, Nanos::from_secs(24 * 3_600)),
            "1m",
            "The length of the intervals that are summed; they end at whole multiples of it since 1970, UTC.",
        ),
        Setting::optional(
            "limits",
            Kind::List(&Kind::Text("the name of a limit")),
            "The limits whose usage is told. Without it all but those that count requests that run.",
        ),
        Setting::required(
            "queue",
            Kind::Text("the name of a directory, like `usage.queue`"),
            "Where events are kept until they are delivered.",
        ),
        Setting::default(
            "max_queue",
            Kind::Size(64 << 10, 1 << 30),
            "64MiB",
            "How large the queue may be. While it is full, intervals get longer.",
        ),
    ],
};

pub(in crate::config) static TRACES: Table = Table {
    name: "traces",
    settings: &[
        Setting::required("upstream", Kind::Text("the name of an upstream"), "Where the collector is."),
        Setting::default("path", Kind::Text("a path"), "/v1/traces", "What is posted to."),
        Setting::default(
            "sample",
            Kind::Text("a share from 0 to 1, like `0.01`"),
            "0.01",
            "The share of requests that have a span, where no trusted proxy has decided that in `traceparent`.",
        ),
        Setting::optional(
            "token_file",
            FILE_NAME,
            "The file of the token that is shown to the collector: `authorization: Bearer TOKEN`.",
        ),
        Setting::default("service", Kind::Text("a name"), "tollgate", "The `service.name` of the spans."),
        Setting::default(
            "max_spans",
            Kind::Whole(512, 1_000_000),
            "4096",
            "How many spans may wait until they are sent, about 2 KiB each; beyond that they are dropped and counted.",
        ),
    ],
};

pub(in crate::config) static CLUSTER: Table = Table {
    name: "cluster",
    settings: &[
        Setting::required(
            "self",
            Kind::Text("an address and a port, like `10.0.0.1:7946`"),
            "Where the others reach this gateway.",
        ),
        Setting::optional("listen", Kind::Text("an address and a port"), "Where it listens for them, if not there."),
        Setting::required(
            "peers",
            Kind::OneOf(&[
                Kind::List(&Kind::OneOf(&[Kind::Text("an address and a port"), Kind::Section(&CLUSTER_PEER)])),
                Kind::Section(&CLUSTER_NAME),
            ]),
            "All gateways of the cluster, this one among them, or the name in DNS that has their addresses.",
        ),
        Setting::optional(
            "min_members",
            Kind::Whole(1, 256),
            "How many gateways have to be there before this one is ready; left out, half of the list.",
        ),
        Setting::required("secret_file", FILE_NAME, "The file of the secret that all gateways know."),
        Setting::default("timeout", CALL, "50ms", "How long a decision waits for the owner of its key."),
    ],
};

pub(in crate::config) static CLUSTER_PEER: Table = Table {
    name: "peer",
    settings: &[
        Setting::required("address", Kind::Text("an address and a port"), "Where the gateway is."),
        Setting::default("weight", Kind::Whole(1, 1_000), "1", "How many keys it owns for one of the others."),
    ],
};

pub(in crate::config) static CLUSTER_NAME: Table = Table {
    name: "peers",
    settings: &[
        Setting::required("dns", Kind::Text("a name in DNS, like `tollgate.internal`"), "The name."),
        Setting::optional("port", Kind::Whole(1, 65_535), "The port of every gateway; left out, that of `self`."),
        Setting::default(
            "every",
            Kind::Duration(Nanos::new(100_000_000), Nanos::from_secs(600)),
            "5s",
            "How often the name is looked up.",
        ),
    ],
};
