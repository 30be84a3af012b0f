//! `tollgate run`: the gateway.

use std::hash::Hasher;
use std::path::PathBuf;

use clap::Args;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::cli::source::{self, Source};
use crate::config::Problems;
use crate::runtime::{self, Setup, StartError};
use crate::telemetry::logging;

/// What `tollgate run` takes.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Why the gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong, or the directory that it names.
    #[error("{0}")]
    Config(#[from] Problems),
    /// It cannot start.
    #[error("{0}")]
    Start(#[from] StartError),
    /// The demo cannot start.
    #[error("{0}; --listen, --admin and --upstream choose other addresses")]
    Demo(#[source] StartError),
    /// Logging is set up already.
    #[error("cannot set up logging: {0}")]
    Logging(#[from] tracing_subscriber::util::TryInitError),
    /// Standard output is closed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs the gateway until it is told to stop.
pub fn execute(args: &RunArgs) -> Result<(), RunError> {
    let source = source::open(&args.config)?;
    let guard = logging::start()?;
    for warning in &source.loaded.warnings {
        tracing::warn!("{warning}");
    }
    let setup = assemble(source);
    runtime::prepare(setup)?.run();
    drop(guard);
    Ok(())
}

/// A gateway from a configuration and what it names.
pub(super) fn assemble(Source { loaded, directory, tokens, text }: Source) -> Setup {
    Setup {
        listeners: loaded.server.listeners,
        admin: loaded.server.admin,
        ruleset: loaded.ruleset,
        directory,
        tokens,
        hash: hash(&text),
        sample: None,
    }
}

/// Identifies a text: the same everywhere, to see whether nodes run the same configuration.
fn hash(text: &str) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    format!("{:032x}", hasher.finish128().as_u128())
}
