//! Prints problems for people, each with the line that it is about.

use std::collections::HashMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use clap::ColorChoice;

use crate::config::{ExcerptSource, MAX_BYTES, Problem, Severity};

/// Prints problems with lines of the configuration and of the files that it includes, and reads each file once. Lines of
/// other files are not printed, since they may hold secrets.
pub(super) struct ProblemPrinter<'f> {
    configuration: &'f Path,
    renderer: Renderer,
    /// The files by name; `None` for a file that cannot be read.
    files: HashMap<Arc<str>, Option<ExcerptSource>>,
}

impl<'f> ProblemPrinter<'f> {
    pub(super) fn new(configuration: &'f Path, color: ColorChoice) -> Self {
        let is_colored = match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        let renderer = if is_colored { Renderer::styled() } else { Renderer::plain() };
        Self { configuration, renderer, files: HashMap::new() }
    }

    pub(super) fn print(&mut self, problems: &[Problem], out: &mut dyn Write) -> io::Result<()> {
        for problem in problems {
            write!(out, "{}", problem.headline())?;
            if let Some(excerpt) = self.excerpt(problem) {
                write!(out, "\n{excerpt}")?;
            }
            writeln!(out, "{}", problem.details())?;
        }
        Ok(())
    }

    /// The line that `problem` is about, with the place marked.
    fn excerpt(&mut self, problem: &Problem) -> Option<String> {
        let (name, mark) = (&problem.place.file, problem.place.mark?);
        let is_included = mark.text > 0;
        if !is_included && Path::new(&**name) != self.configuration {
            return None;
        }
        let source = self.files.entry(Arc::clone(name)).or_insert_with(|| {
            let text = fs::read_to_string(&**name).ok().filter(|text| text.len() <= MAX_BYTES)?;
            Some(ExcerptSource::new(&text))
        });
        let excerpt = source.as_ref()?.excerpt(problem)?;
        let snippet = Snippet::source(excerpt.line.as_str())
            .line_start(mark.line)
            .annotation(AnnotationKind::Primary.span(excerpt.marked));
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        Some(self.renderer.render(&[Group::with_level(level).element(snippet)]))
    }
}
