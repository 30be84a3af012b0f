//! `tollgate check`: what is wrong with a configuration, or what it says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::algorithm::{AlgorithmName, Rule};
use crate::cli::source;
use crate::config::{self, LimitSpec, Limits, Problems, Warning};
use crate::ruleset::limit::{Limit, OverLimit, PlanId, Terms};
use crate::ruleset::{Ruleset, key::Key};
use crate::units::Nanos;

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
    limits: Vec<LimitReport>,
}

/// A limit in plain words.
struct LimitReport {
    heading: String,
    /// Who is under it, and what holds for them.
    lines: Vec<(String, String)>,
}

/// Everybody, where a limit does not tell plans apart.
const EVERYBODY: &str = "every request";
/// Those that no plan is known of.
const PLANLESS: &str = "without a plan";
const UNLIMITED: &str = "unlimited";

impl Report {
    fn of_ruleset(file: &Path, ruleset: &Ruleset, warnings: Vec<Warning>) -> Self {
        let counts = [
            (ruleset.matcher.routes().len(), "route"),
            (ruleset.limits.len(), "limit"),
            (ruleset.plans.len(), "plan"),
            (ruleset.upstreams.len(), "upstream"),
        ];
        let counted = counts.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        Self {
            warnings,
            summary: format!("{}: fine: {}", file.display(), counted.join(", ")),
            limits: ruleset.limits.iter().map(|limit| LimitReport::of_limit(limit, &ruleset.plans)).collect(),
        }
    }

    fn of_limits(file: &Path, limits: Limits) -> Self {
        Self {
            summary: format!(
                "{}: fine: limits only, for `check` and `simulate`; `run` needs listeners, upstreams and routes too",
                file.display()
            ),
            limits: limits.limits.iter().map(|limit| LimitReport::of_spec(limit, &limits.plans)).collect(),
            warnings: limits.warnings,
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for warning in &self.warnings {
            writeln!(out, "{warning}")?;
        }
        writeln!(out, "{}", self.summary)?;
        for limit in &self.limits {
            writeln!(out, "\n{}", limit.heading)?;
            for (who, what) in &limit.lines {
                writeln!(out, "  {who}: {what}")?;
            }
        }
        Ok(())
    }
}

impl LimitReport {
    fn of_limit(limit: &Limit, plans: &[String]) -> Self {
        let words = |terms: Terms| match terms {
            Terms::Unlimited => UNLIMITED.to_owned(),
            Terms::Rule(index) => limit.rules.get(index).map(Rule::words).unwrap_or_default(),
        };
        let planless = if plans.is_empty() { EVERYBODY } else { PLANLESS };
        let named =
            plans.iter().enumerate().map(|(index, plan)| (plan.clone(), words(limit.terms(Some(PlanId(index))))));
        let rest = limit.without_plan.map(|terms| (planless.to_owned(), words(terms)));
        let delay = match limit.over_limit {
            OverLimit::Delay { max_wait, max_waiting, .. } => Some((max_wait, max_waiting)),
            OverLimit::Deny(_) => None,
        };
        let mut report = Self::new(&limit.name, limit.algorithm, Some(&limit.key), named.chain(rest).collect(), delay);
        let costs = [("cost", limit.cost.words()), ("charged", limit.charge.words())];
        report.lines.extend(costs.into_iter().filter_map(|(what, words)| Some((what.to_owned(), words?))));
        report
    }

    fn of_spec(spec: &LimitSpec, plans: &[String]) -> Self {
        let words = |plan: Option<&str>| match spec.rule(plan) {
            Ok(Some(rule)) => Some(rule.words()),
            Ok(None) => Some(UNLIMITED.to_owned()),
            // the limit does not name the plan, and sets nothing for those it does not name
            Err(_) => None,
        };
        let planless = if plans.is_empty() { EVERYBODY } else { PLANLESS };
        let named = plans.iter().filter_map(|plan| Some((plan.clone(), words(Some(plan))?)));
        let rest = words(None).map(|words| (planless.to_owned(), words));
        let delay = spec.max_wait.map(|max_wait| (max_wait, spec.max_waiting));
        Self::new(&spec.name, spec.algorithm, None, named.chain(rest).collect(), delay)
    }

    fn new(
        name: &str,
        algorithm: AlgorithmName,
        key: Option<&Key>,
        mut lines: Vec<(String, String)>,
        delay: Option<(Nanos, Option<u64>)>,
    ) -> Self {
        let by = key.map(|key| match key.parts.as_slice() {
            [] => ", one bucket for all".to_owned(),
            parts => {
                let parts: Vec<String> = parts.iter().map(|part| part.describe()).collect();
                format!(", by {}", parts.join(" and "))
            }
        });
        if lines.len() > 1 && lines.iter().all(|(_, words)| Some(words) == lines.first().map(|(_, words)| words)) {
            lines.truncate(1);
            lines.iter_mut().for_each(|(who, _)| EVERYBODY.clone_into(who));
        }
        if let Some((max_wait, max_waiting)) = delay.filter(|(max_wait, _)| *max_wait > Nanos::ZERO) {
            let most = max_waiting.map(|most| format!(", at most {most} at a time")).unwrap_or_default();
            lines.push(("over the limit".to_owned(), format!("wait up to {max_wait}{most}")));
        }
        Self { heading: format!("limit {name} ({}{})", algorithm.as_str(), by.unwrap_or_default()), lines }
    }
}
