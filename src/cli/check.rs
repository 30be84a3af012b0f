//! `tollgate check`: what is wrong with a configuration, or what it says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::source;
use crate::config::{self, LimitSpec, Limits, Problems, Warning};
use crate::ruleset::limit::Limit;
use crate::ruleset::matcher::Route;
use crate::ruleset::words;
use crate::ruleset::{Jitter, Ruleset};

/// What `tollgate check` takes.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The configuration file; it may hold `limits` only
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Why a check ends without success.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The configuration is refused; what is wrong with it was printed.
    #[error("{}: {errors} {}", file.display(), if *errors == 1 { "error" } else { "errors" })]
    Refused {
        /// The file.
        file: PathBuf,
        /// How many errors it has.
        errors: usize,
    },
    /// Standard output is closed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Prints every error and warning, or every limit in plain words.
pub fn execute(args: &CheckArgs, out: &mut dyn Write) -> Result<(), CheckError> {
    let file = &args.file;
    let checked = source::read_config(file).and_then(|text| match config::holds_limits_only(&text) {
        true => source::open_limits(file).map(|limits| Report::of_limits(file, limits)),
        false => {
            source::open(file).map(|source| Report::of_ruleset(file, &source.loaded.ruleset, source.loaded.warnings))
        }
    });
    match checked {
        Ok(report) => report.print(out)?,
        Err(problems) => {
            print_problems(&problems, out)?;
            let errors = problems.errors.len().saturating_add(problems.more);
            return Err(CheckError::Refused { file: file.clone(), errors });
        }
    }
    Ok(out.flush()?)
}

fn print_problems(problems: &Problems, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{problems}")?;
    for warning in &problems.warnings {
        writeln!(out, "{warning}")?;
    }
    Ok(())
}

/// What a configuration without errors says.
struct Report {
    warnings: Vec<Warning>,
    /// What it is, in a line.
    summary: String,
    parts: Vec<Part>,
}

/// A limit, a route or another part of the configuration in plain words.
struct Part {
    heading: String,
    /// Who is under it, and what holds for them.
    lines: Vec<(String, String)>,
}

impl Report {
    fn of_ruleset(file: &Path, ruleset: &Ruleset, warnings: Vec<Warning>) -> Self {
        let limits: Vec<&Limit> = ruleset.limits.iter().filter(|limit| limit.candidate_of.is_none()).collect();
        let counts = [
            (ruleset.matcher.routes().len(), "route"),
            (limits.len(), "limit"),
            (ruleset.plans.len(), "plan"),
            (ruleset.upstreams.len(), "upstream"),
        ];
        let counted = counts.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        let parts = limits.into_iter().map(|limit| Part::of_limit(limit, ruleset));
        let routes = ruleset.matcher.routes().iter().filter_map(Part::of_route);
        let headers = ruleset.dialects.retry_after_jitter.map(Part::of_jitter);
        Self {
            warnings,
            summary: format!("{}: fine: {}", file.display(), counted.join(", ")),
            parts: parts.chain(routes).chain(headers).collect(),
        }
    }

    fn of_limits(file: &Path, limits: Limits) -> Self {
        Self {
            summary: format!(
                "{}: fine: limits only, for `check` and `simulate`; `run` needs listeners, upstreams and routes too",
                file.display()
            ),
            parts: limits.limits.iter().map(|limit| Part::of_spec(limit, &limits.plans)).collect(),
            warnings: limits.warnings,
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for warning in &self.warnings {
            writeln!(out, "{warning}")?;
        }
        writeln!(out, "{}", self.summary)?;
        for part in &self.parts {
            writeln!(out, "\n{}", part.heading)?;
            for (who, what) in &part.lines {
                writeln!(out, "  {who}: {what}")?;
            }
        }
        Ok(())
    }
}

impl Part {
    fn of_limit(limit: &Limit, ruleset: &Ruleset) -> Self {
        Self { heading: words::heading(&limit.name, limit.algorithm, Some(&limit.key)), lines: ruleset.words(limit) }
    }

    /// A route that sets answers.
    fn of_route(route: &Route) -> Option<Self> {
        let denied = format!("denied with {}, unless the limit sets its own", route.denied.words()?);
        Some(Self { heading: format!("route {}", route.name), lines: vec![words::over_the_limit(denied)] })
    }

    fn of_jitter(jitter: Jitter) -> Self {
        Self { heading: "headers".to_owned(), lines: vec![("Retry-After".to_owned(), jitter.words())] }
    }

    fn of_spec(spec: &LimitSpec, plans: &[String]) -> Self {
        let asks = |plan: Option<&str>| match spec.rule(plan) {
            Ok(Some(rule)) => Some(rule.words()),
            Ok(None) => Some(words::UNLIMITED.to_owned()),
            // the limit does not name the plan, and sets nothing for those it does not name
            Err(_) => None,
        };
        let named = plans.iter().filter_map(|plan| Some((plan.clone(), asks(Some(plan))?)));
        let rest = asks(None).map(|asks| (words::planless(plans).to_owned(), asks));
        let mut lines = words::merged(named.chain(rest).collect());
        let wait = spec.max_wait.and_then(|max_wait| words::waits(max_wait, spec.max_waiting));
        lines.extend(wait.map(words::over_the_limit));
        Self { heading: words::heading(&spec.name, spec.algorithm, None), lines }
    }
}
