//! `tollgate health`: whether a gateway serves, for health checks of containers.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::cli::remote::RemoteArgs;

/// The arguments of `tollgate health`.
#[derive(Args, Clone, Debug)]
pub struct HealthArgs {
    /// The gateway
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The reason why a gateway does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The gateway cannot be reached.
    #[error("no gateway answers at {0}: {1}; --admin takes another address")]
    Silent(String, std::io::Error),
    /// The gateway responds that it does not serve, and why.
    #[error("the gateway at {0} does not serve: {1}")]
    NotReady(String, String),
}

/// The timeout of the connection attempt and of each read and write.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of a response that are read.
const LONGEST_ANSWER: u64 = 4096;

/// Asks the gateway whether it serves.
pub fn execute(args: &HealthArgs) -> Result<(), HealthError> {
    let admin = args.remote.admin.trim_start_matches("http://").trim_end_matches('/');
    let answer = ask(admin).map_err(|error| HealthError::Silent(admin.to_owned(), error))?;
    if answer.split(' ').nth(1) == Some("200") {
        return Ok(());
    }
    let reason = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
    Err(HealthError::NotReady(admin.to_owned(), reason.trim().escape_debug().to_string()))
}

fn ask(admin: &str) -> std::io::Result<String> {
    let mut connected = Err(std::io::Error::other("the name has no address"));
    for address in admin.to_socket_addrs()? {
        connected = connected.or_else(|_| TcpStream::connect_timeout(&address, PATIENCE));
    }
    let mut stream = connected?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => return Err(error),
        // the bytes that have arrived are enough to decide
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
