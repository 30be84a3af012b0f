//! `tollgate import`: configurations of other rate limit services as one of tollgate's.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::cli::source;
use crate::config::import::Import;
use crate::config::{self, Problems};

/// What `tollgate import` takes.
#[derive(Args, Clone, Debug)]
pub struct ImportArgs {
    /// The files: of envoyproxy/ratelimit, each with a domain, or of Limitador; or one of nginx, HAProxy, Envoy, Kong or Traefik
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Why nothing is imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file cannot be read, or what came of it would be refused.
    #[error("{0}")]
    Refused(#[from] Problems),
    /// Standard output or standard error is closed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Prints the configuration to `out`, and what is not carried over as it was to `err`.
pub fn execute(args: &ImportArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), ImportError> {
    let mut import = Import::default();
    for file in &args.files {
        import.add(&source::read_config(file)?, &file.display().to_string())?;
    }
    let text = import.written();
    config::load(&text, "the configuration that was written", &|_| None)?;
    import.notes().iter().try_for_each(|note| writeln!(err, "{note}"))?;
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
