//! `tollgate check`: the errors of a configuration, its meaning in plain words, and the effects of a change.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice};

mod against;
mod problem_printer;
mod report;

use against::ChangeReport;
use problem_printer::ProblemPrinter;
use report::{CheckReport, ConfigPart};

use crate::cli::source::{self, Source};
use crate::cli::{Format, OutputError};
use crate::config::{self, Problems};

/// The arguments of `tollgate check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The configuration file, or a file with only `limits`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Describe the changes from this file to FILE, instead of FILE itself
    #[arg(long, value_name = "OLD")]
    pub against: Option<PathBuf>,
    /// The output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// When to print in colour; `auto` does on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

/// Prints every error and warning; then every limit in plain words, or what changes.
pub fn execute(args: &CheckArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let file = &args.file;
    let checked = match &args.against {
        None => read(file).map(|checked| match checked {
            Checked::Limits(limits) => CheckReport::of_limits(file, limits),
            Checked::Gateway(source) => {
                let report = CheckReport::of_ruleset(file, &source.parts.rules.ruleset, source.warnings);
                report.including(source.text.included.iter().map(|file| file.name.as_str()).collect())
            }
        }),
        Some(old) => {
            // the new file's errors first: the operator is editing that file
            match (read(file), read(old)) {
                (Err(problems), _) => Err(problems),
                (Ok(_), Err(problems)) => return refuse(old, &problems, args, out),
                (Ok(Checked::Limits(_)), _) => return Err(limits_only(file)),
                (_, Ok(Checked::Limits(_))) => return Err(limits_only(old)),
                (Ok(Checked::Gateway(after)), Ok(Checked::Gateway(before))) => {
                    let comparison = ChangeReport::new(old, &before, &after);
                    Ok(CheckReport::of_changes(file, &after.parts.rules.ruleset, after.warnings, comparison))
                }
            }
        }
    };
    match checked {
        Ok(report) => report.print(args, out).and_then(|()| out.flush()).map_err(OutputError)?,
        Err(problems) => return refuse(file, &problems, args, out),
    }
    Ok(())
}

/// A file without errors.
enum Checked {
    Limits(config::Limits),
    Gateway(Box<Source>),
}

fn read(file: &Path) -> Result<Checked, Problems> {
    if source::holds_limits_only(file)? {
        source::open_limits(file).map(Checked::Limits)
    } else {
        source::open(file).map(|source| Checked::Gateway(Box::new(source)))
    }
}

/// The error about a compared file that holds limits only.
fn limits_only(file: &Path) -> Box<dyn Error> {
    format!("{}: holds limits only; --against compares whole configurations", file.display()).into()
}

/// Prints the problems of a refused file. Returns the error, which counts them.
fn refuse(file: &Path, problems: &Problems, args: &CheckArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let errors = problems.errors.len().saturating_add(problems.more);
    let printed = match args.format {
        Format::Text => print_problems(file, problems, args.color, out),
        Format::Json => writeln!(out, "{:#}", report::refused(file, problems, errors)),
    };
    printed.and_then(|()| out.flush()).map_err(OutputError)?;
    Err(format!("{}: {errors} {}", file.display(), if errors == 1 { "error" } else { "errors" }).into())
}

fn print_problems(file: &Path, problems: &Problems, color: ColorChoice, out: &mut dyn Write) -> io::Result<()> {
    let mut printer = ProblemPrinter::new(file, color);
    printer.print(&problems.errors, out)?;
    if problems.more > 0 {
        writeln!(out, "and {} more", problems.more)?;
    }
    printer.print(&problems.warnings, out)
}
