//! `tollgate schema`: the JSON Schema of configurations, or their reference.

use std::io::Write;

use clap::Args;

use crate::cli::{OutputError, print};
use crate::config;

/// The arguments of `tollgate schema`.
#[derive(Args, Clone, Debug)]
pub struct SchemaArgs {
    /// Print the reference in Markdown instead, for people
    #[arg(long)]
    pub markdown: bool,
}

/// Prints the JSON Schema of configuration files, or their reference.
pub fn execute(args: &SchemaArgs, out: &mut dyn Write) -> Result<(), OutputError> {
    let text = if args.markdown { config::reference() } else { format!("{:#}\n", config::schema()) };
    print(out, &text)
}
