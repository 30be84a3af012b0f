//! `tollgate import`: converts configurations of other proxies and rate limit services.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::cli::{print, source};
use crate::config;
use crate::config::import::Import;

/// The arguments of `tollgate import`.
#[derive(Args, Clone, Debug)]
pub struct ImportArgs {
    /// One file of nginx, HAProxy, Envoy, Kong or Traefik, or one or more of envoyproxy/ratelimit or Limitador
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Prints the configuration to `out`, and notes about settings that are not carried over unchanged to `err`. Also prints a
/// configuration that tollgate refuses, before the error says why.
pub fn execute(args: &ImportArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut import = Import::default();
    for file in &args.files {
        let added = import.add(&source::read_config(file)?, &file.display().to_string());
        if let Err(problems) = &added {
            problems.warnings.iter().try_for_each(|note| writeln!(err, "{note}"))?;
        }
        added?;
    }
    let text = import.to_yaml();
    import.notes().iter().try_for_each(|note| writeln!(err, "{note}"))?;
    print(out, &text)?;
    config::load(&text, "the configuration that was written", &|_| None)?;
    Ok(())
}
