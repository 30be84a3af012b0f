//! Sentinel: the link finds the primary, and finds the new one after a failover.

use std::sync::Arc;

use tollgate::redis_client::{Address, Credentials, Layout, Servers};
use tollgate::store::shared::link::CallError;

use crate::redis_link::Caller;
use crate::redis_link::folder::Folder;
use crate::redis_link::ports::free_port;
use crate::redis_link::server::{Server, wait_until};

const SERVERS: [&str; 4] = ["--requirepass", "open-sesame", "--masterauth", "open-sesame"];

fn start_sentinel(folder: &Folder, primary: u16) -> Server {
    let port = free_port();
    let config = format!(
        "port {port}
bind 127.0.0.1
requirepass watchword
sentinel monitor mymaster 127.0.0.1 {primary} 1
sentinel auth-pass mymaster open-sesame
sentinel down-after-milliseconds mymaster 300
sentinel failover-timeout mymaster 2000
"
    );
    let file = folder.write(&format!("sentinel-{port}.conf"), &config).display().to_string();
    Server::spawn(port, &[&file, "--sentinel"]).with_password("watchword")
}

fn servers(master: &str, sentinels: &[u16]) -> Servers {
    let address = |port: &u16| Address { host: "127.0.0.1".to_owned(), port: *port };
    let sentinels = sentinels.iter().map(address).collect();
    let servers = Servers::new(Layout::Sentinel { master: master.to_owned(), sentinels, username: None }, None);
    servers.set_credentials(Credentials {
        password: Some(Arc::from("open-sesame")),
        sentinel_password: Some(Arc::from("watchword")),
        ..Credentials::default()
    });
    servers
}

#[tokio::test]
async fn a_failover_is_followed() {
    failover("KILL").await;
}

/// The primary hangs: its connections stay open, and nothing arrives on them any more.
#[tokio::test]
async fn a_failover_from_a_primary_that_hangs_is_followed() {
    failover("STOP").await;
}

async fn failover(signal: &str) {
    let folder = Folder::new();
    let primary = Server::start_with(&SERVERS).with_password("open-sesame");
    let of = ["--replicaof", "127.0.0.1", &primary.port.to_string()];
    let replica = Server::start_with(&[SERVERS.as_slice(), &of].concat()).with_password("open-sesame");
    wait_until("the replica to follow", || primary.command(&["INFO", "replication"]).contains("state=online"));
    let sentinel = start_sentinel(&folder, primary.port);
    let known = || sentinel.try_command(&["SENTINEL", "REPLICAS", "mymaster"]);
    wait_until("the sentinel to know the replica", || known().is_ok_and(|known| known.contains("slave")));

    let caller = Caller::of(servers("mymaster", &[free_port(), sentinel.port]));
    assert_eq!(caller.count("a").await, Ok(1));
    assert_eq!(primary.command(&["GET", "a"]), "1");
    wait_until("the replica to have it", || replica.command(&["GET", "a"]) == "1");
    primary.signal(signal);
    assert_eq!(caller.count_again("a").await, 2);
    assert_eq!(replica.command(&["GET", "a"]), "2");
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_and_sentinels_that_are_none_are_errors() {
    let folder = Folder::new();
    let primary = Server::start_with(&SERVERS).with_password("open-sesame");
    let sentinel = start_sentinel(&folder, primary.port);
    let unknown = Caller::of(servers("another", &[sentinel.port])).count("a").await.unwrap_err();
    assert!(unknown.to_string().contains("knows no master of this name"), "{unknown}");
    let none = Caller::of(servers("mymaster", &[primary.port])).count("a").await;
    assert!(none.is_err(), "{none:?}");
    let away = Caller::of(servers("mymaster", &[free_port()])).count("a").await;
    assert!(matches!(away, Err(CallError::Unreachable(_))), "{away:?}");
    assert_eq!(Caller::of(servers("mymaster", &[primary.port, sentinel.port])).count("a").await, Ok(1));
}

/// The sentinels have not noticed the change yet.
#[tokio::test]
async fn a_server_that_takes_no_writes_is_not_the_primary() {
    let folder = Folder::new();
    let primary = Server::start_with(&SERVERS).with_password("open-sesame");
    let sentinel = start_sentinel(&folder, primary.port);
    primary.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = Caller::of(servers("mymaster", &[sentinel.port])).count("a").await.unwrap_err();
    assert!(refused.to_string().contains("not the primary"), "{refused}");
}
