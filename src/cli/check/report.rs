//! The output of `tollgate check`.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::problem_printer::ProblemPrinter;
use super::{ChangeReport, CheckArgs};
use crate::cli::Format;
use crate::config::{Limits, Problem, Problems, Warning, WrittenLimit};
use crate::ruleset::limit::Limit;
use crate::ruleset::matcher::Route;
use crate::ruleset::words::{self, DescriptionLine};
use crate::ruleset::{Jitter, Ruleset};

/// The meaning of a configuration without errors, or its changes.
pub(super) struct CheckReport {
    warnings: Vec<Warning>,
    /// The first lines of the report: the file, its counts, and the files that it includes.
    summary: Vec<String>,
    parts: Vec<ConfigPart>,
    /// The number of routes, limits, plans and upstreams; empty for a file that holds limits only.
    counts: Vec<(usize, &'static str)>,
    /// Whether a running gateway refuses the file; `None` if it is not compared with another one.
    needs_restart: Option<bool>,
}

/// A limit, a route or another part of the configuration in plain words.
pub(super) struct ConfigPart {
    pub(super) heading: String,
    /// For each line, its subject (a plan, for example) and the words about it.
    pub(super) lines: Vec<DescriptionLine>,
}

impl CheckReport {
    pub(super) fn of_ruleset(file: &Path, ruleset: &Ruleset, warnings: Vec<Warning>) -> Self {
        let limits: Vec<&Limit> = ruleset.limits.iter().filter(|limit| limit.candidate_of.is_none()).collect();
        let counts = vec![
            (ruleset.matcher.routes().len(), "route"),
            (limits.len(), "limit"),
            (ruleset.plans.len(), "plan"),
            (ruleset.upstreams.len(), "upstream"),
        ];
        let counted =
            counts.iter().map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" }));
        let counted: Vec<String> = counted.collect();
        let parts = limits.into_iter().map(|limit| ConfigPart::of_limit(limit, ruleset));
        let routes = ruleset.matcher.routes().iter().filter_map(ConfigPart::of_route);
        let headers = ruleset.dialects.retry_after_jitter.map(ConfigPart::of_jitter);
        Self {
            warnings,
            summary: vec![format!("{}: fine: {}", file.display(), counted.join(", "))],
            parts: parts.chain(routes).chain(headers).collect(),
            counts,
            needs_restart: None,
        }
    }

    /// Adds the files that the configuration includes.
    pub(super) fn including(mut self, files: Vec<&str>) -> Self {
        if !files.is_empty() {
            self.summary.push(format!("includes {}", files.join(", ")));
        }
        self
    }

    pub(super) fn of_limits(file: &Path, limits: Limits) -> Self {
        Self {
            summary: vec![format!(
                "{}: fine: limits only, for `check` and `simulate`; `run` needs listeners, upstreams and routes too",
                file.display()
            )],
            parts: limits.limits.iter().map(|limit| ConfigPart::of_spec(limit, &limits.plans)).collect(),
            warnings: limits.warnings,
            counts: Vec::new(),
            needs_restart: None,
        }
    }

    pub(super) fn of_changes(file: &Path, ruleset: &Ruleset, warnings: Vec<Warning>, changes: ChangeReport) -> Self {
        let mut report = Self::of_ruleset(file, ruleset, warnings);
        let ChangeReport { summary, parts, needs_restart } = changes;
        report.summary.push(summary);
        Self { parts, needs_restart: Some(needs_restart), ..report }
    }

    pub(super) fn print(&self, args: &CheckArgs, out: &mut dyn Write) -> io::Result<()> {
        match args.format {
            Format::Text => self.print_text(ProblemPrinter::new(&args.file, args.color), out),
            Format::Json => writeln!(out, "{:#}", self.to_json()),
        }
    }

    fn print_text(&self, mut printer: ProblemPrinter<'_>, out: &mut dyn Write) -> io::Result<()> {
        printer.print(&self.warnings, out)?;
        for line in &self.summary {
            writeln!(out, "{line}")?;
        }
        for part in &self.parts {
            writeln!(out, "\n{}", part.heading)?;
            for (who, what) in &part.lines {
                writeln!(out, "  {who}: {what}")?;
            }
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let parts = self.parts.iter().map(|part| {
            let lines = part.lines.iter().map(|(who, what)| json!({ "about": who, "words": what }));
            json!({ "heading": part.heading, "lines": lines.collect::<Vec<_>>() })
        });
        let counts = self.counts.iter().map(|(count, what)| (format!("{what}s"), json!(count)));
        let parts: Vec<Value> = parts.collect();
        let mut report = json!({
            "result": "fine",
            "errors": [],
            "error_count": 0,
            "warnings": self.warnings.iter().map(problem).collect::<Vec<_>>(),
            "summary": self.summary,
            "counts": counts.collect::<serde_json::Map<_, _>>(),
        });
        match self.needs_restart {
            None => report["parts"] = json!(parts),
            Some(needs_restart) => {
                report["changes"] = json!(parts);
                report["needs_restart"] = json!(needs_restart);
            }
        }
        report
    }
}

/// The errors and warnings of `file`, as JSON.
pub(super) fn refused(file: &Path, problems: &Problems, errors: usize) -> Value {
    json!({
        "result": "refused",
        "file": file.display().to_string(),
        "errors": problems.errors.iter().map(problem).collect::<Vec<_>>(),
        "error_count": errors,
        "warnings": problems.warnings.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn problem(problem: &Problem) -> Value {
    json!({
        "file": &*problem.place.file,
        "line": problem.place.mark.map(|mark| mark.line),
        "column": problem.place.mark.map(|mark| mark.column),
        "path": problem.place.path,
        "message": problem.message,
        "found": problem.found,
        "expected": problem.expected,
        "hint": problem.hint,
    })
}

impl ConfigPart {
    fn of_limit(limit: &Limit, ruleset: &Ruleset) -> Self {
        Self { heading: words::heading(&limit.name, limit.algorithm, Some(&limit.key)), lines: ruleset.describe(limit) }
    }

    /// The part for a route that sets its own denial response; `None` for other routes.
    fn of_route(route: &Route) -> Option<Self> {
        let denied = format!("denied with {}, unless the limit sets its own", route.denied.describe()?);
        Some(Self { heading: format!("route {}", route.name), lines: vec![words::over_the_limit(denied)] })
    }

    fn of_jitter(jitter: Jitter) -> Self {
        Self { heading: "headers".to_owned(), lines: vec![("Retry-After".to_owned(), jitter.describe())] }
    }

    fn of_spec(spec: &WrittenLimit, plans: &[String]) -> Self {
        let asks = |plan: Option<&str>| match spec.rule(plan) {
            Ok(Some(rule)) => Some(rule.describe_above(spec.floor(&rule, plan, plans))),
            Ok(None) => Some(words::UNLIMITED.to_owned()),
            // the limit does not name the plan, and has no parameters for plans that it does not name
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
