//! Redis Cluster: three servers with a third of the slots each, while slots move.

use std::pin::pin;

use tollgate::redis_client::{Address, Layout, Servers, slot_of};
use tollgate::store::redis::Encoded;
use tollgate::store::redis::codec::hash_tag;
use tollgate::store::shared::link::{CallError, Scripts};
use tollgate::units::LimitKey;

use crate::redis_link::Caller;
use crate::redis_link::ports::free_port;
use crate::redis_link::server::PATIENCE;
use crate::redis_link::server::{Server, wait_until};

struct Cluster(Vec<Server>);

/// The slots of each of the three servers.
const SHARES: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

impl Cluster {
    fn start() -> Self {
        let servers: Vec<Server> = SHARES.iter().map(|_| start_member()).collect();
        for (server, (first, last)) in servers.iter().zip(SHARES) {
            server.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        let cluster = Self(servers);
        for other in &cluster.0[1..] {
            cluster.meet(other);
        }
        wait_until("the cluster to agree", || cluster.0.iter().all(|server| cluster.agrees(server)));
        cluster
    }

    fn meet(&self, other: &Server) {
        let (port, bus) = (other.port.to_string(), other.bus_port.to_string());
        self.0[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }

    fn agrees(&self, server: &Server) -> bool {
        let info = server.command(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") && info.contains("cluster_size:3")
    }

    fn caller(&self) -> Caller {
        let seed = |server: &Server| Address { host: "127.0.0.1".to_owned(), port: server.port };
        Caller::of(Servers::new(Layout::Cluster { seeds: self.0.iter().map(seed).collect() }, None))
    }

    /// The server that has the key at first.
    fn home(&self, key: &str) -> usize {
        SHARES.iter().position(|(first, last)| (*first..=*last).contains(&slot_of(key))).unwrap()
    }
}

fn start_member() -> Server {
    let bus = free_port();
    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus.to_string()];
    let lenient = ["--cluster-require-full-coverage", "no"];
    let mut server = Server::start_with(&[options.as_slice(), &lenient].concat());
    server.bus_port = bus;
    server
}

/// A key on the server with this number.
fn key_at(cluster: &Cluster, server: usize, name: &str) -> String {
    (0..).map(|number| format!("{name}-{number}")).find(|key| cluster.home(key) == server).unwrap()
}

#[tokio::test]
async fn keys_are_found_wherever_they_are_and_wander() {
    let cluster = Cluster::start();
    let caller = cluster.caller();
    for round in 1..=2 {
        for number in 0..30 {
            let key = format!("key-{number}");
            assert_eq!(caller.count(&key).await, Ok(round));
            assert_eq!(cluster.0[cluster.home(&key)].command(&["GET", &key]), round.to_string());
        }
    }
    cluster.0.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
    for server in 0..3 {
        assert_eq!(caller.count(&key_at(&cluster, server, "flushed")).await, Ok(1));
    }

    let keys = vec![key_at(&cluster, 0, "a"), key_at(&cluster, 0, "b")];
    let encoded = Encoded { keys, arguments: vec!["x".to_owned()] };
    let refused = caller.link.call(&caller.script, &encoded).await;
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");

    // a slot migrates: first its new keys, then all of it
    let key = key_at(&cluster, 0, "wanders");
    let slot = slot_of(&key).to_string();
    let (from, to) = (cluster.0[0].command(&["CLUSTER", "MYID"]), cluster.0[1].command(&["CLUSTER", "MYID"]));
    cluster.0[1].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
    cluster.0[0].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    assert_eq!(caller.count(&key).await, Ok(1));
    assert_eq!(caller.count(&key).await, Ok(2));
    cluster.0[1].command(&["SCRIPT", "FLUSH"]);
    assert_eq!(caller.count(&key).await, Ok(3));
    // one of the two keys still exists on the old server, the other does not
    let [there, gone] = ["there", "gone"].map(|name| format!("{{{key}}}:{name}"));
    cluster.0[0].command(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    cluster.0[0].command(&["SET", &there, "1"]);
    cluster.0[0].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    let encoded = Encoded { keys: vec![there.clone(), gone], arguments: vec!["x".to_owned()] };
    let apart = caller.link.call(&caller.script, &encoded).await;
    cluster.0[0].command(&["DEL", &there]);
    assert!(matches!(apart, Err(CallError::Moving(_))), "{apart:?}");
    for server in [1, 0, 2] {
        cluster.0[server].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]);
    }
    assert_eq!(caller.count(&key).await, Ok(4));
    assert_eq!(cluster.0[1].command(&["GET", &key]), "4");
    let moved = || {
        let refusals = cluster.0[0].command(&["INFO", "errorstats"]);
        refusals.lines().find(|line| line.starts_with("errorstat_MOVED")).map(str::to_owned)
    };
    let learnt = async {
        loop {
            let before = moved();
            caller.count(&key).await.unwrap();
            if moved() == before {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, learnt).await.expect("to be learnt that another server has the slot");
}

#[tokio::test]
async fn a_server_that_hangs_or_ends_holds_up_its_own_keys_only() {
    let mut cluster = Cluster::start();
    let caller = cluster.caller();
    let keys: Vec<String> = (0..3).map(|server| key_at(&cluster, server, "key")).collect();
    for key in &keys {
        assert_eq!(caller.count(key).await, Ok(1));
    }
    cluster.0[0].signal("STOP");
    let mut meanwhile = 0;
    let mut hangs = pin!(caller.count(&keys[0]));
    let hung = loop {
        tokio::select! {
            biased;
            hung = &mut hangs => break hung,
            others = async { tokio::join!(caller.count(&keys[1]), caller.count(&keys[2])) } => {
                assert!(matches!(others, (Ok(_), Ok(_))), "{others:?}");
                meanwhile += 1;
            }
        }
    };
    assert!(hung.is_err() && meanwhile > 0, "{hung:?} after {meanwhile} others");
    cluster.0[0].signal("KILL");
    drop(cluster.0.remove(0));
    let gone = tokio::time::timeout(PATIENCE, async { while caller.count(&keys[0]).await.is_ok() {} });
    gone.await.expect("an error");
    for _ in 0..10 {
        assert!(caller.count(&keys[0]).await.is_err());
        assert!(caller.count(&keys[1]).await.is_ok());
        assert!(caller.count(&keys[2]).await.is_ok());
    }
}

#[tokio::test]
async fn a_replica_that_takes_over_from_a_server_that_hangs_is_found() {
    let cluster = Cluster::start();
    let caller = cluster.caller();
    let key = key_at(&cluster, 2, "key");
    assert_eq!(caller.count(&key).await, Ok(1));
    let replica = start_member();
    cluster.meet(&replica);
    let primary = cluster.0[2].command(&["CLUSTER", "MYID"]);
    wait_until("the replica to follow", || replica.try_command(&["CLUSTER", "REPLICATE", &primary]).is_ok());
    wait_until("the replica to have all", || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    });
    wait_until("the replica to know all", || replica.command(&["CLUSTER", "NODES"]).contains("10923-16383"));
    cluster.0[2].signal("STOP");
    wait_until("the failover to begin", || replica.try_command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).is_ok());
    wait_until("the replica to take over", || replica.command(&["ROLE"]).contains("master"));
    assert_eq!(caller.count_again(&key).await, 2);
}

#[tokio::test]
async fn buckets_of_one_tag_lie_in_one_slot() {
    let seeds = vec![Address { host: "127.0.0.1".to_owned(), port: 1 }];
    let caller = Caller::of(Servers::new(Layout::Cluster { seeds }, None));
    for tag in [0, 0x1234, u128::MAX].map(LimitKey) {
        assert_eq!(caller.link.slot(tag), slot_of(&format!("tollgate:{{{}}}:limit", hash_tag(tag))));
        assert_eq!(Caller::to(1).link.slot(tag), 0);
    }
}

#[tokio::test]
async fn a_server_that_is_in_no_cluster_is_an_error() {
    let server = Server::start();
    let caller = Cluster(vec![server]).caller();
    let answer = caller.count("a").await;
    assert!(answer.is_err(), "{answer:?}");
}
