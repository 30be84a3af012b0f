//! `tollgate completions` and `tollgate man`: the shell completions and the manual pages of the commands.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

/// The arguments of `tollgate completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// The arguments of `tollgate man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The folder; it is made where it is missing
    pub folder: PathBuf,
}

/// Prints the script with which a shell completes the commands of `program`.
///
/// Errors: standard output is closed.
pub fn complete(args: &CompletionsArgs, mut program: Command, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tollgate", &mut script);
    out.write_all(&script)
}

/// Writes the manual pages of `program` and its commands.
///
/// Errors: a folder or file cannot be written.
pub fn write_pages(args: &ManArgs, program: Command) -> io::Result<()> {
    let folder = args.folder.display();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{folder} cannot be written: {error}"));
    std::fs::create_dir_all(&args.folder).map_err(named)?;
    clap_mangen::generate_to(program, &args.folder).map_err(named)
}
