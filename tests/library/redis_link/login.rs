//! Passwords, users, and the rights that a user needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate::redis_client::{Address, Credentials, Layout, Servers};
use tollgate::store::redis::SCRIPT;
use tollgate::store::shared::link::CallError;

use crate::redis_link::Caller;
use crate::redis_link::server::Server;

pub(crate) fn with_password(password: &str) -> Credentials {
    Credentials { password: Some(Arc::from(password)), ..Credentials::default() }
}

fn servers(port: u16, database: u32, username: Option<&str>) -> Servers {
    let server = Address { host: "127.0.0.1".to_owned(), port };
    Servers::new(Layout::Standalone { server, database }, username.map(str::to_owned))
}

#[tokio::test]
async fn a_password_opens_and_another_one_is_refused_and_not_told() {
    let server = Server::start_with(&["--requirepass", "open-sesame"]);
    let servers = servers(server.port, 0, None);
    let caller = Caller::of(servers.clone());
    let refused = caller.count("a").await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
    servers.set_credentials(with_password("canary"));
    let refused = caller.count("a").await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
    assert!(!refused.to_string().contains("canary"));
    servers.set_credentials(with_password("open-sesame"));
    assert_eq!(caller.count("a").await, Ok(1));
    assert_eq!(caller.count("a").await, Ok(2));
}

#[tokio::test]
async fn a_number_of_a_database_is_taken() {
    let server = Server::start();
    assert_eq!(Caller::of(servers(server.port, 3, None)).count("a").await, Ok(1));
    assert_eq!(Caller::of(servers(server.port, 0, None)).count("a").await, Ok(1));
    let none = Caller::of(servers(server.port, 99, None)).count("a").await;
    assert!(none.is_err(), "{none:?}");
}

/// The rights that the documentation of `redis_client` and of `link` lists for a user.
const ALLOWED: [&str; 18] = [
    "+select", "+evalsha", "+eval", "+time", "+get", "+set", "+del", "+pexpire", "+pttl", "+type", "+zadd", "+zcard",
    "+zrange", "+zrangebylex", "+zrangebyscore", "+zrem", "+zremrangebyrank", "+zremrangebyscore",
];

#[tokio::test]
async fn a_user_needs_no_more_than_is_said() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "tollgate", "on", ">open-sesame", "~tollgate:*", "resetchannels", "-@all", "+incr"];
    assert_eq!(server.command(&[user.as_slice(), &ALLOWED].concat()), "ok");
    let servers = servers(server.port, 0, Some("tollgate"));
    servers.set_credentials(with_password("open-sesame"));
    let caller = Caller::of(servers);
    assert_eq!(caller.count("tollgate:a").await, Ok(1));
    let elsewhere = caller.count("other:a").await;
    assert!(matches!(elsewhere, Err(CallError::Refused(_))), "{elsewhere:?}");
    assert_eq!(caller.count("tollgate:a").await, Ok(2));
    server.command(&["ACL", "SETUSER", "tollgate", "-incr"]);
    let forbidden = caller.count("tollgate:a").await;
    assert!(matches!(forbidden, Err(CallError::Refused(_))), "{forbidden:?}");
}

#[test]
fn the_script_calls_nothing_else() {
    let calls = SCRIPT.split("redis.call(").chain(SCRIPT.split("redis.pcall("));
    let called: BTreeSet<String> = calls
        .filter(|rest| rest.starts_with('\''))
        .map(|rest| {
            let name = rest.split('\'').nth(1).unwrap();
            format!("+{}", name.to_lowercase())
        })
        .collect();
    let allowed: BTreeSet<String> = ALLOWED.iter().map(|name| (*name).to_owned()).collect();
    assert!(!called.is_empty());
    let missing: Vec<_> = called.difference(&allowed).collect();
    assert!(missing.is_empty(), "{missing:?} is not in the list");
    let link = include_str!("../../../src/store/shared/link.rs");
    for name in ALLOWED.iter().skip(1) {
        assert!(link.contains(name), "the documentation does not say {name}");
    }
}
