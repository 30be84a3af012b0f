//! `tollgate schema`: the JSON Schema of configurations, or their reference.

use std::io::{self, Write};

use clap::Args;

use crate::config;

/// The arguments of `tollgate schema`.
#[derive(Args, Clone, Debug)]
pub struct SchemaArgs {
    /// Print the reference for people instead, in Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// Prints the JSON Schema of configuration files, or their reference.
///
/// Errors: standard output is closed.
pub fn execute(args: &SchemaArgs, out: &mut dyn Write) -> io::Result<()> {
    match args.markdown {
        true => out.write_all(config::reference().as_bytes()),
        false => writeln!(out, "{:#}", config::schema()),
    }
}
