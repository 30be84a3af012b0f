//! `tollgate completions` and `tollgate man`: the shell completions and the manual pages of the commands.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::{OutputError, print};

/// The arguments of `tollgate completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell to complete in
    pub shell: Shell,
}

/// The arguments of `tollgate man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The folder to write to; created if missing
    pub folder: PathBuf,
}

/// Prints the script with which a shell completes the commands of `program`.
pub fn complete(args: &CompletionsArgs, mut program: Command, out: &mut dyn Write) -> Result<(), OutputError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tollgate", &mut script);
    print(out, &String::from_utf8_lossy(&script))
}

/// Writes the manual pages of `program` and its commands.
///
/// Errors: a folder or file cannot be written.
pub fn write_pages(args: &ManArgs, program: Command) -> io::Result<()> {
    let folder = args.folder.display();
    let named = |error: io::Error| match error.kind() {
        ErrorKind::AlreadyExists => io::Error::new(error.kind(), format!("{folder} is not a folder")),
        kind => io::Error::new(kind, format!("{folder} cannot be written: {error}")),
    };
    std::fs::create_dir_all(&args.folder).map_err(named)?;
    clap_mangen::generate_to(program, &args.folder).map_err(named)
}
