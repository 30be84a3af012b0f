//! The link to Redis, with real servers and with fake ones: each call gets its own answer or an error.

#![allow(clippy::disallowed_methods, reason = "waits for real servers with a deadline")]

#[path = "../e2e/support/authority.rs"]
#[allow(dead_code, unreachable_pub, reason = "made for more tests than these")]
mod authority;
mod cluster;
#[path = "../e2e/support/folder.rs"]
#[allow(unreachable_pub, reason = "made for more tests than these")]
mod folder;
mod hostile;
mod login;
mod outage;
#[path = "../e2e/support/ports.rs"]
#[allow(unreachable_pub, reason = "made for more tests than these")]
mod ports;
mod sentinel;
pub(crate) mod server;
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::PATIENCE;
use tollgate::store::redis::{Encoded, Field};
use tollgate::store::shared::link::{CallError, Link, Script, Scripts, Servers};

/// Increments a counter, and returns it with the argument.
const COUNT: &str = "return {ARGV[1], redis.call('INCR', KEYS[1])}";

/// A link of one thread, and a script.
struct Caller {
    link: Link,
    script: Script,
}

impl Caller {
    fn of(servers: Servers) -> Self {
        Self { link: Link::new(servers, 1), script: Script::new(COUNT) }
    }

    fn to(port: u16) -> Self {
        Self::of(Servers::at("127.0.0.1", port))
    }

    /// Increments the counter at `key`, and returns it. Fails if the answer belongs to another call.
    async fn count(&self, key: &str) -> Result<i64, CallError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let word = format!("{key} {:x}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let encoded = Encoded { keys: vec![key.to_owned()], arguments: vec![word.clone()] };
        let called = tokio::time::timeout(PATIENCE, self.link.call(&self.script, &encoded)).await;
        let reply = called.expect("a call ends")?;
        match reply.fields().as_slice() {
            [Field::Text(text), Field::Integer(number)] if *text == word.as_bytes() => Ok(*number),
            other => panic!("asked for {word}, told {other:?}"),
        }
    }

    /// Repeats the call with a short timeout until it succeeds.
    async fn count_again(&self, key: &str) -> i64 {
        let again = async {
            let mut looks = tokio::time::interval(Duration::from_millis(3));
            loop {
                looks.tick().await;
                let counting = tokio::time::timeout(Duration::from_millis(100), self.count(key));
                if let Ok(Ok(number)) = counting.await {
                    return number;
                }
            }
        };
        tokio::time::timeout(PATIENCE, again).await.expect("an answer at last")
    }
}
