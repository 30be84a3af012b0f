//! `tollgate check`: what is wrong with a configuration, or what it says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::algorithm::{AlgorithmName, Rule};
use crate::cli::source;
use crate::config::{self, LimitSpec, Limits, Problems, Warning};
use crate::ruleset::denied::{Body, Denied};
use crate::ruleset::limit::{Limit, LimitId, OverLimit, PlanId, Share, Terms};
use crate::ruleset::matcher::Route;
use crate::ruleset::{Jitter, Ruleset, key::Key};
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
    parts: Vec<Part>,
}

/// A limit, a route or another part of the configuration in plain words.
struct Part {
    heading: String,
    /// Who is under it, and what holds for them.
    lines: Vec<(String, String)>,
}

/// Everybody, where a limit does not tell plans apart.
const EVERYBODY: &str = "every request";
/// Those that no plan is known of.
const PLANLESS: &str = "without a plan";
const UNLIMITED: &str = "unlimited";
const OVER_THE_LIMIT: &str = "over the limit";

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
        let mut lines = merged(terms(limit, &ruleset.plans));
        let costs = [("cost", limit.cost.words()), ("charged", limit.charge.words())];
        lines.extend(over_the_limit(limit, ruleset).map(|words| (OVER_THE_LIMIT.to_owned(), words)));
        lines.extend(costs.into_iter().filter_map(|(what, words)| Some((what.to_owned(), words?))));
        if limit.enabled < Share::WHOLE {
            lines.push((
                "applies to".to_owned(),
                format!("{} of the keys, always the same ones", percent(limit.enabled)),
            ));
        }
        if limit.shadow {
            lines.push(("shadow".to_owned(), "counts and reports what it would do, and never does it".to_owned()));
        }
        let position = ruleset.limits.iter().position(|other| std::ptr::eq(other, limit)).map(LimitId);
        let candidates =
            ruleset.limits.iter().filter(|other| other.candidate_of.is_some() && other.candidate_of == position);
        for candidate in candidates {
            let algorithm = candidate.algorithm.as_str();
            let words = merged(terms(candidate, &ruleset.plans));
            lines.extend(words.into_iter().map(|(who, words)| (format!("candidate ({algorithm}), {who}"), words)));
        }
        Self { heading: heading(&limit.name, limit.algorithm, Some(&limit.key)), lines }
    }

    /// A route that sets answers.
    fn of_route(route: &Route) -> Option<Self> {
        let words = format!("denied with {}, unless the limit sets its own", answer(&route.denied)?);
        Some(Self { heading: format!("route {}", route.name), lines: vec![(OVER_THE_LIMIT.to_owned(), words)] })
    }

    fn of_jitter(jitter: Jitter) -> Self {
        let most = match jitter {
            Jitter::Share(share) => percent(share),
            Jitter::Time(time) => time.to_string(),
        };
        let words = format!("up to {most} later than a retry would be admitted, never earlier");
        Self { heading: "headers".to_owned(), lines: vec![("Retry-After".to_owned(), words)] }
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
        let mut lines = merged(named.chain(rest).collect());
        let wait = spec.max_wait.and_then(|max_wait| waits(max_wait, spec.max_waiting));
        lines.extend(wait.map(|words| (OVER_THE_LIMIT.to_owned(), words)));
        Self { heading: heading(&spec.name, spec.algorithm, None), lines }
    }
}

fn heading(name: &str, algorithm: AlgorithmName, key: Option<&Key>) -> String {
    let by = key.map(|key| match key.parts.as_slice() {
        [] => ", one bucket for all".to_owned(),
        parts => {
            let parts: Vec<String> = parts.iter().map(|part| part.describe()).collect();
            format!(", by {}", parts.join(" and "))
        }
    });
    format!("limit {name} ({}{})", algorithm.as_str(), by.unwrap_or_default())
}

/// What holds for each plan, and for requests without one.
fn terms(limit: &Limit, plans: &[String]) -> Vec<(String, String)> {
    let words = |terms: Terms| match terms {
        Terms::Unlimited => UNLIMITED.to_owned(),
        Terms::Rule(index) => limit.rules.get(index).map(Rule::words).unwrap_or_default(),
    };
    let planless = if plans.is_empty() { EVERYBODY } else { PLANLESS };
    let named = plans.iter().enumerate().map(|(index, plan)| (plan.clone(), words(limit.terms(Some(PlanId(index))))));
    named.chain(limit.without_plan.map(|terms| (planless.to_owned(), words(terms)))).collect()
}

/// One line where the same holds for all.
fn merged(mut lines: Vec<(String, String)>) -> Vec<(String, String)> {
    if lines.len() > 1 && lines.iter().all(|(_, words)| Some(words) == lines.first().map(|(_, words)| words)) {
        lines.truncate(1);
        lines.iter_mut().for_each(|(who, _)| EVERYBODY.clone_into(who));
    }
    lines
}

/// What becomes of requests over the limit, where that is not the usual denial.
fn over_the_limit(limit: &Limit, ruleset: &Ruleset) -> Option<String> {
    match &limit.over_limit {
        OverLimit::Deny(denied) => answer(denied).map(|answer| format!("denied with {answer}")),
        OverLimit::Delay { max_wait, max_waiting, denied } => {
            let after = answer(denied).map(|answer| format!("denied with {answer}"));
            match (waits(*max_wait, *max_waiting), after) {
                (Some(wait), Some(denied)) => Some(format!("{wait}; else {denied}")),
                (wait, denied) => wait.or(denied),
            }
        }
        OverLimit::Divert(upstream) => {
            let upstream = ruleset.upstreams.get(upstream.0).map_or("", |upstream| &upstream.name);
            Some(format!("passes, to the upstream {upstream}"))
        }
        OverLimit::Mark(header) => Some(format!("passes, and the upstream is told in {header}")),
    }
}

fn waits(max_wait: Nanos, max_waiting: Option<u64>) -> Option<String> {
    let most = max_waiting.map(|most| format!(", at most {most} at a time")).unwrap_or_default();
    (max_wait > Nanos::ZERO).then(|| format!("wait up to {max_wait}{most}"))
}

fn percent(share: Share) -> String {
    format!("{} %", f64::from(share.0) / 10_000.0)
}

/// What is set of an answer.
fn answer(denied: &Denied) -> Option<String> {
    let status = denied.status.map(|status| format!("status {status}"));
    let grpc_status = denied.grpc_status.map(|status| format!("grpc-status {status}"));
    let body = denied.body.as_ref().map(|body| match body {
        Body::Text(_) => "a body of its own".to_owned(),
        Body::Negotiated(bodies) => {
            let names: Vec<&str> = bodies.iter().map(|(content_type, _)| content_type.as_str()).collect();
            format!("a body of its own as {}", names.join(" or "))
        }
    });
    let headers: Vec<&str> = denied.headers.iter().map(|(name, _)| name.as_str()).collect();
    let headers = (!headers.is_empty()).then(|| format!("headers of its own ({})", headers.join(", ")));
    let parts: Vec<String> = [status, grpc_status, body, headers].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
