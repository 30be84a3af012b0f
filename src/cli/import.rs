//! `tollgate import`: converts configurations of other proxies and rate limit services.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::cli::source;
use crate::config::import::Import;
use crate::config::{self, Problems};

/// The arguments of `tollgate import`.
#[derive(Args, Clone, Debug)]
pub struct ImportArgs {
    /// The files: of envoyproxy/ratelimit, each with a domain, or of Limitador; or one of nginx, HAProxy, Envoy, Kong or Traefik
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// The errors of `tollgate import`.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file cannot be read, or the converted configuration is invalid.
    #[error("{0}")]
    Refused(#[from] Problems),
    /// Standard output or standard error is closed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Prints the configuration to `out`, and notes about settings that are not carried over unchanged to `err`.
pub fn execute(args: &ImportArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), ImportError> {
    let mut import = Import::default();
    for file in &args.files {
        import.add(&source::read_config(file)?, &file.display().to_string())?;
    }
    let text = import.to_yaml();
    config::load(&text, "the configuration that was written", &|_| None)?;
    import.notes().iter().try_for_each(|note| writeln!(err, "{note}"))?;
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
