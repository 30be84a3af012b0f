//! `tollgate health`: whether a gateway serves, for health checks of containers.

use std::error::Error;
use std::time::Duration;

use clap::Args;

use crate::cli::remote::{Remote, RemoteArgs};

/// The arguments of `tollgate health`.
#[derive(Args, Clone, Debug)]
pub struct HealthArgs {
    /// The gateway
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The timeout of the question.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks the gateway whether it serves.
pub fn execute(args: &HealthArgs) -> Result<(), Box<dyn Error>> {
    let remote = Remote::new(&args.remote, None);
    let admin = remote.admin();
    let (status, reason) = remote
        .status_of("/readyz", TIMEOUT)
        .map_err(|error| format!("no gateway answers at {admin}: {error}; --admin takes another address"))?;
    let reason = reason.trim().replace(char::is_control, " ");
    match status {
        200 if reason == "ready" => Ok(()),
        503 => Err(format!("the gateway at {admin} does not serve: {reason}").into()),
        _ => Err(format!(
            "the server at {admin} is not an admin port, or refuses the request with status {status}: {reason}; \
             --admin takes another address"
        )
        .into()),
    }
}
