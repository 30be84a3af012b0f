//! The commands: their arguments and their output.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

pub mod check;
pub mod completions;
pub mod demo;
pub mod explain;
pub mod health;
pub mod import;
pub mod init;
pub mod keys;
pub mod remote;
pub mod replay;
pub mod run;
pub mod schema;
pub mod simulate;
pub mod source;
pub mod top;

/// A rate-limiting gateway.
#[derive(Parser)]
#[command(name = "tollgate", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway
    Run(run::RunArgs),
    /// Check a configuration for errors, and describe its limits or its changes
    ///
    /// Prints all errors and warnings, each with its position, the value found, the value expected and a hint. If the
    /// file has no errors, describes every limit in plain words: how much each plan gets, at once and over time, and
    /// what happens to requests above the limit.
    ///
    /// With --against, describes the changes from another file instead, and what they do to the current usage of
    /// customers: whether it still counts, which limits start afresh, and which changes a running gateway refuses until
    /// it is restarted. A reload follows the same rules.
    ///
    /// Exit status 0: no errors, perhaps warnings; 1: errors.
    Check(check::CheckArgs),
    /// Explain how the gateway would handle a request: its route, caller, limits, keys and costs
    ///
    /// Reads the configuration and the files that it names, and takes the same steps as the gateway, but sends no request
    /// and charges nothing. Of credentials it shows only the beginning.
    ///
    /// To see where the keys of a running gateway stand, POST the same request as JSON to /explain on its admin port,
    /// like {"method": "GET", "url": "http://HOST/PATH", "headers": {"x-api-key": "KEY"}, "client": "192.0.2.1"}.
    Explain(explain::ExplainArgs),
    /// Print the JSON Schema of configurations, for completion and checks in editors
    ///
    /// For an editor with the YAML language server, run "tollgate schema > tollgate.schema.json" and begin the
    /// configuration with the line "# yaml-language-server: $schema=tollgate.schema.json".
    Schema(schema::SchemaArgs),
    /// Check whether a gateway is ready: exit status 0 if it is, 1 if not
    Health(health::HealthArgs),
    /// Convert the configuration of another proxy or rate limit service
    ///
    /// From nginx (the output of `nginx -T`), HAProxy, Envoy, Kong and Traefik, converts the routes, upstreams and limits.
    /// From envoyproxy/ratelimit (one file for each domain) and Limitador, makes a configuration that serves as Envoy's
    /// rate limit service. Settings that cannot be converted exactly are listed on standard error, with their positions,
    /// and appear in the configuration as comments. The exit status is 1 if the printed configuration has errors.
    Import(import::ImportArgs),
    /// Write a first configuration for an upstream, with a limit or with plans
    Init(init::InitArgs),
    /// Run a gateway with sample plans in front of a sample upstream, and print requests to try
    Demo(demo::DemoArgs),
    /// Run limits on a virtual clock and report their decisions
    Simulate(simulate::SimulateArgs),
    /// Replay access logs through a configuration's limits and report the requests that they would deny
    Replay(replay::ReplayArgs),
    /// Show the limits of a running gateway and the keys that it denies most
    Top(top::TopArgs),
    /// Show or change the state of a key of a running gateway
    Keys(keys::KeysArgs),
    /// Print a completion script for a shell
    ///
    /// For bash: tollgate completions bash > /etc/bash_completion.d/tollgate
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of these commands to a folder, like /usr/local/share/man/man1
    Man(completions::ManArgs),
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people
    Text,
    /// One JSON object, for programs
    Json,
}

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

/// Prints a whole text.
fn print(out: &mut dyn Write, text: &str) -> Result<(), OutputError> {
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The message about a file that cannot be written.
fn unwritten(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Runs the command that the process was started with. Exit status 0: done; 1: it failed, and standard error says why;
/// 2: the command line is wrong; 3: `replay` denied more requests than `--fail-if-denied` allows.
pub fn main() -> ExitCode {
    let cli = parse();
    // not locked, because another thread writes the access log there
    let mut out = io::stdout();
    let mut err = io::stderr();
    let done: Result<ExitCode, Box<dyn Error>> = match cli.command {
        Command::Run(args) => success(run::execute(&args)),
        Command::Check(args) => success(check::execute(&args, &mut out)),
        Command::Schema(args) => success(schema::execute(&args, &mut out)),
        Command::Explain(args) => success(explain::execute(&args, &mut out)),
        Command::Health(args) => success(health::execute(&args)),
        Command::Import(args) => success(import::execute(&args, &mut out, &mut err)),
        Command::Init(args) => success(init::execute(&args, &mut out)),
        Command::Demo(args) => success(demo::execute(&args, &mut out)),
        Command::Simulate(args) => success(simulate::execute(&args, io::stdin().lock(), &mut out)),
        Command::Top(args) => success(top::execute(&args, &mut out)),
        Command::Keys(args) => success(keys::execute(&args, &mut out)),
        Command::Completions(args) => success(completions::complete(&args, Cli::command(), &mut out)),
        Command::Man(args) => success(completions::write_pages(&args, Cli::command())),
        Command::Replay(args) => replay::execute(&args, io::stdin(), &mut out, &mut err),
    };
    match done {
        Ok(status) => status,
        Err(failure) if is_closed_early(&*failure) => ExitCode::FAILURE,
        Err(failure) => {
            // if standard error is closed, there is no other place for the message
            drop(writeln!(err, "{failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of standard output has closed it, as `head` does when it has enough: nobody waits for a message.
fn is_closed_early(failure: &(dyn Error + 'static)) -> bool {
    failure.downcast_ref::<OutputError>().is_some_and(|OutputError(error)| error.kind() == ErrorKind::BrokenPipe)
}

/// The exit status of a command that has no status of its own: success if it is done.
fn success(done: Result<(), impl Into<Box<dyn Error>>>) -> Result<ExitCode, Box<dyn Error>> {
    done.map(|()| ExitCode::SUCCESS).map_err(Into::into)
}

/// Parses the command line. If it is wrong, prints its errors and ends the process.
fn parse() -> Cli {
    let cli = Cli::parse();
    if let Command::Simulate(args) = &cli.command
        && !args.traffic.is_complete()
    {
        let mut program = Cli::command();
        program.build();
        let command = program.find_subcommand_mut("simulate");
        let mut fallback = Cli::command();
        let command = command.unwrap_or(&mut fallback);
        command.error(clap::error::ErrorKind::MissingRequiredArgument, simulate::NO_TRAFFIC).exit();
    }
    cli
}
