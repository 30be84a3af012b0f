//! Sentinel: the current primary. The client asks the sentinels for each new connection, so that it follows a failover.

use redis::{Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::task::JoinSet;

use super::connection::{Connection, failed, within_connect_time};
use super::{Address, Credentials, login, word};

/// One completed step on one of several ways to the primary.
enum Step {
    /// A sentinel has named the primary, or failed to.
    Named(RedisResult<Address>),
    /// The connection to the primary is open, or failed.
    Open(RedisResult<Connection>),
}

/// A connection to the primary of `master`. Asks all `sentinels` at once; the first named server that takes writes wins.
pub(super) async fn primary(
    master: &str,
    sentinels: &[Address],
    username: Option<&str>,
    credentials: &Credentials,
    data: &RedisConnectionInfo,
) -> RedisResult<Connection> {
    let mut steps = JoinSet::new();
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(master);
    for sentinel in sentinels {
        let login = login(username, credentials.sentinel_password.as_deref());
        let (sentinel, tls, question) = (sentinel.clone(), credentials.tls.clone(), question.clone());
        steps.spawn(async move {
            let asked = Connection::ask_once(&sentinel, tls, &login, &question).await;
            Step::Named(asked.and_then(|answer| address(answer, &sentinel)))
        });
    }
    let mut tried: Vec<Address> = Vec::new();
    let mut last = failed("no sentinel answers".to_owned());
    while let Some(step) = steps.join_next().await {
        match step {
            Ok(Step::Named(Ok(address))) if !tried.contains(&address) => {
                tried.push(address.clone());
                let (tls, login) = (credentials.tls.clone(), data.clone());
                steps.spawn(async move {
                    let connection = Connection::open(&address, tls, &login).await;
                    Step::Open(match connection {
                        Ok(connection) => within_connect_time(takes_writes(&connection)).await.map(|()| connection),
                        Err(error) => Err(error),
                    })
                });
            }
            Ok(Step::Named(Ok(_))) => {}
            Ok(Step::Open(Ok(connection))) => return Ok(connection),
            Ok(Step::Named(Err(error)) | Step::Open(Err(error))) => last = error,
            Err(error) => last = failed(error.to_string()),
        }
    }
    Err(last)
}

async fn takes_writes(connection: &Connection) -> RedisResult<()> {
    let mut question = Cmd::new();
    match connection.ask(question.arg("ROLE")).await? {
        Value::Array(role) if role.first().and_then(word) == Some("master") => Ok(()),
        _ => Err(failed("the server that the sentinels name is not the primary".to_owned())),
    }
}

/// The address in the reply of `sentinel`.
fn address(answer: Value, sentinel: &Address) -> RedisResult<Address> {
    let nobody = |what: &'static str| Err(RedisError::from((ErrorKind::Client, what, sentinel.to_string())));
    let Value::Array(parts) = answer else { return nobody("a sentinel knows no master of this name") };
    let [host, port] = parts.as_slice() else { return nobody("a sentinel did not return an address") };
    match (word(host), word(port).and_then(|port| port.parse().ok())) {
        (Some(host), Some(port)) if !host.is_empty() => Ok(Address { host: host.to_owned(), port }),
        _ => nobody("a sentinel did not return an address"),
    }
}
