//! The settings of shared and stored data: Redis, the state file, queues of messages, the cluster.

use super::Kind::{self, *};
use super::gateway::{CALL, PEM_FILE};
use crate::units::Nanos;

const SERVER: Kind = Text("a server, like `redis://127.0.0.1:6379/0` or `rediss://redis.internal:6379`");
const FILE_NAME: Kind = Text("the name of a file");
const USER: Kind = Text("the name of a user of Redis");

tables! {
    STORE "store" {
        redis: SERVER, "One server. Exactly one of `redis`, `sentinel` and `cluster` is there.";
        sentinel: Section(&SENTINEL), "A server and its replicas, found through sentinels.";
        cluster: Set(&SERVER), "Some servers of a Redis Cluster.";
        username: USER, "The user, if it is not in the address.";
        password_file: FILE_NAME, "The file that holds the password, if it is not in the address.";
        tls: Section(&STORE_TLS), "The files for TLS, with `rediss://` or sentinels.";
        prefix: Text("letters, digits, `-`, `_`, `.` and `:`, 1 to 64 of them"), default "tollgate",
            "The prefix of all keys in Redis.";
        timeout: CALL, default "10ms", "How long a decision waits for Redis; then `on_store_down` decides.";
        sync_every: Duration(Nanos::new(10_000_000), Nanos::from_secs(10)), default "100ms",
            "How often gateways exchange what they counted under `consistency: eventual`.";
        nodes: Whole(1, 10_000),
            "The lowest number of gateways by which `divide` divides, also where Redis has seen fewer lately. Default: 1.";
        key_file: FILE_NAME, "The file of the secret that hides customers' keys in the names of Redis keys.";
    }

    SENTINEL "sentinel" {
        master: Text("a name without blanks, like `mymaster`"), required,
            "The name under which the sentinels know the servers.";
        nodes: Set(&Text("a host and a port, like `10.0.0.1:26379`")), required, "The sentinels.";
        username: USER, "The user for the sentinels.";
        password_file: FILE_NAME, "The file of the password for the sentinels.";
    }

    STORE_TLS "store_tls" {
        ca: PEM_FILE, "The trusted certificate authorities. Default: those of the system.";
        cert: PEM_FILE, "The client certificate that tollgate presents.";
        key: PEM_FILE, "Its private key.";
    }

    STATE "state" {
        file: Text("the name of a file, like `tollgate.state`"), required, "The file that keeps the states.";
        every: Duration(Nanos::new(100_000_000), Nanos::MAX), default "10s",
            "How often it is written; a crash loses the counts since.";
    }

    WEBHOOK "webhook" {
        upstream: Text("the name of an upstream"), required, "The upstream of the receiver.";
        path: Text("a path, like `/tollgate`"), default "/", "The path that messages are posted to.";
        secret_file: FILE_NAME, required,
            "The file of the secret that messages are signed with: `whsec_` and 24 to 64 bytes in base64; former ones \
            may follow, a line each.";
        queue: Text("the name of a directory, like `webhook.queue`"), required,
            "The directory that keeps messages until they are delivered.";
        max_queue: Size(64 << 10, 1 << 30), default "16MiB",
            "The largest size of the queue; messages that find no room are lost.";
        keep: Duration(Nanos::SECOND, Nanos::MAX), default "24h", "How long tollgate tries to deliver a message.";
    }

    USAGE_EVENTS "usage_events" {
        upstream: Text("the name of an upstream"), required, "The upstream of the receiver.";
        path: Text("a path, like `/api/v1/events`"), default "/", "The path that events are posted to.";
        token_file: FILE_NAME, "The file of the token that is sent to the receiver: `authorization: Bearer TOKEN`.";
        source: Text("a URI"), default "tollgate", "The `source` of the events.";
        every: Duration(Nanos::SECOND, Nanos::from_secs(24 * 3_600)), default "1m",
            "The length of the intervals over which usage is summed; they end at whole multiples of it since 1970, \
            UTC.";
        limits: Set(&Text("the name of a limit")),
            "The limits whose usage is sent. Default: all except those that count running requests.";
        queue: Text("the name of a directory, like `usage.queue`"), required,
            "The directory that keeps events until they are delivered.";
        max_queue: Size(64 << 10, 1 << 30), default "64MiB",
            "The largest size of the queue. While it is full, intervals get longer.";
    }

    TRACES "traces" {
        upstream: Text("the name of an upstream"), required, "The upstream of the collector.";
        path: Text("a path, like `/v1/traces`"), default "/v1/traces", "The path that spans are posted to.";
        sample: Text("a share from 0 to 1, like `0.01`"), default "0.01",
            "The share of requests that have a span, unless a trusted proxy decides it in `traceparent`.";
        token_file: FILE_NAME, "The file of the token that is sent to the collector: `authorization: Bearer TOKEN`.";
        service: Text("a name"), default "tollgate", "The `service.name` of the spans.";
        max_spans: Whole(512, 1_000_000), default "4096",
            "The maximum number of spans that wait to be sent, about 2 KiB each; further spans are dropped and \
            counted.";
    }

    CLUSTER "cluster" {
        self: Text("an address and a port, like `10.0.0.1:7946`"), required,
            "The address at which the other gateways reach this one.";
        listen: Text("an address and a port"), "The address that it listens on for them, if it is not `self`.";
        peers: OneOf(&[Set(&OneOf(&[Text("an address and a port"), Section(&CLUSTER_PEER)])), Section(&CLUSTER_NAME)]),
            required, "All gateways of the cluster, this one among them, or the name in DNS that has their addresses.";
        min_members: Whole(1, 256),
            "The number of members, this gateway included, that it needs to be ready. Default: half of the list, rounded \
            up; with `dns` 1, after 10 s.";
        secret_file: Text("the name of a file that holds the same secret on all gateways, like `cluster.key`"), required,
            "The file of the secret that all gateways know.";
        timeout: CALL, default "50ms", "How long a decision waits for the owner of its key.";
    }

    CLUSTER_PEER "peer" {
        address: Text("an address and a port, like `10.0.0.1:7946`"), required, "The address of the gateway.";
        weight: Whole(1, 1_000), default "1", "How many keys it owns for each key of a gateway of weight 1.";
    }

    CLUSTER_NAME "peers" {
        dns: Text("a name in DNS, like `tollgate.internal`"), required,
            "The name that has the addresses of all gateways.";
        port: Whole(1, 65_535), "The port of every gateway. Default: the port of `self`.";
        every: Duration(Nanos::new(100_000_000), Nanos::from_secs(600)), default "5s",
            "How often the name is looked up.";
    }
}
