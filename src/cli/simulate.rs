//! `tollgate simulate`: runs limits on a virtual clock.

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::iter;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::source;
use crate::simulation::plot::{self, Column};
use crate::simulation::report::{LimitReport, TokenTally};
use crate::simulation::rows::Rows;
use crate::simulation::run::{Run, Upstream};
use crate::simulation::series::Series;
use crate::simulation::{SimulatedLimit, SimulationError, Traffic, render, run_traffic};
use crate::units::{Nanos, Rate};

mod subjects;
mod traffic;
pub(super) mod values;

pub(super) use traffic::NO_TRAFFIC;
pub use traffic::{Spread, TrafficArgs};
use values::{duration, factor, longer_than_nothing, servers};

/// The arguments of `tollgate simulate`.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// The configuration file, or a file with only `limits`
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The limit to run
    #[arg(long, value_name = "NAME")]
    pub limit: String,
    /// The plan whose parameters apply
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// More limits to run on the same traffic, side by side
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub compare: Vec<String>,
    /// The traffic: recorded or generated
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// How long the upstream takes for a request, for limits on requests in flight
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    pub hold: Nanos,
    /// The number of requests that the upstream serves at the same time, while others wait in its queue; for limits on
    /// requests in flight [default: unlimited]
    #[arg(long, value_name = "NUMBER", value_parser = servers, allow_negative_numbers = true)]
    pub servers: Option<NonZeroUsize>,
    /// The length of the window in which to count the largest number of admitted tokens [default: the limit's own]
    #[arg(long, value_name = "DURATION", value_parser = longer_than_nothing)]
    pub window: Option<Nanos>,
    /// The rate of an abuser as a multiple of the limit's rate, rounded to a thousandth. The report says how soon the limit
    /// denies the abuser, which it never does for a multiple up to 1
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = factor, allow_negative_numbers = true)]
    pub abuse: f64,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// The file to write a chart of the run to; its name must end in .svg
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// The format of the output.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A summary with a column for each limit
    Table,
    /// All decisions, one line for each request
    Csv,
    /// The summary as JSON, for programs
    Json,
}

/// Runs the command: a trace named `-` comes from `input`, and the result goes to `output`.
pub fn execute(args: &SimulateArgs, input: impl Read, output: impl Write) -> Result<(), Box<dyn Error>> {
    let limits = source::open_limits(&args.config)?;
    let names = iter::once(&args.limit).chain(&args.compare);
    let subjects = names.map(|name| subjects::subject(&limits, name, args.plan.as_deref()));
    let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
    simulate(args, subjects, input, output)
}

/// Runs `subjects`. It is no error if the reader closes the output early.
fn simulate(
    args: &SimulateArgs,
    subjects: Vec<SimulatedLimit>,
    input: impl Read,
    output: impl Write,
) -> Result<(), Box<dyn Error>> {
    args.plot.as_deref().map_or(Ok(()), check_picture)?;
    if args.format == Format::Csv && subjects.len() > 1 {
        return Err("--format csv prints the rows of one limit: leave out --compare, or print a table or json".into());
    }
    let upstream = Upstream { hold: args.hold, servers: args.servers };
    let start = |subject| Run::new(subject, upstream).map_err(|invalid| invalid.to_string());
    let mut runs = subjects.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut columns = if args.plot.is_some() { runs.iter().map(column).collect() } else { Vec::new() };
    let mut traffic = args.traffic.open(input)?;
    let printed = match args.format {
        Format::Csv => print_rows(&mut *traffic, &mut runs, &mut columns, args.traffic.duration, output),
        Format::Table | Format::Json => {
            let tallies = runs.iter().map(|run| TokenTally::new(run, args.window, Some(args.abuse))).collect();
            tally(&mut *traffic, &mut runs, &mut columns, args.traffic.duration, tallies)
                .and_then(|reports| print_reports(&reports, args.format, output).map_err(SimulationError::Write))
        }
    };
    match printed {
        Err(SimulationError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        printed => printed.map_err(|error| args.traffic.named(error))?,
    }
    if let Some(path) = &args.plot {
        let picture = plot::svg(&columns)?;
        fs::write(path, picture).map_err(|error| format!("cannot write the picture {}: {error}", path.display()))?;
    }
    Ok(())
}

fn column(run: &Run) -> Column {
    let (subject, rule) = (run.subject(), run.rule());
    Column {
        title: format!("{} ({})", subject.name, subject.algorithm.as_str()),
        words: rule.describe_above(subject.floor),
        rate: subject.long_run_rate(rule).map(Rate::per_second),
        series: Series::default(),
    }
}

fn print_rows(
    traffic: &mut dyn Traffic,
    runs: &mut [Run],
    columns: &mut [Column],
    until: Option<Nanos>,
    output: impl Write,
) -> Result<(), SimulationError> {
    let mut rows = Rows::new(output)?;
    run_traffic(traffic, runs, |traffic, number, arrival, outcome| {
        if let Some(column) = columns.get_mut(number) {
            column.series.add(arrival, outcome);
        }
        rows.write(traffic.key(arrival.key), arrival, outcome)
    })?;
    for (column, run) in columns.iter_mut().zip(runs) {
        column.series.finish(run.finish(), until);
    }
    Ok(rows.finish()?)
}

fn tally(
    traffic: &mut dyn Traffic,
    runs: &mut [Run],
    columns: &mut [Column],
    until: Option<Nanos>,
    mut tallies: Vec<TokenTally>,
) -> Result<Vec<LimitReport>, SimulationError> {
    run_traffic(traffic, runs, |_, number, arrival, outcome| {
        if let Some(column) = columns.get_mut(number) {
            column.series.add(arrival, outcome);
        }
        if let Some(tally) = tallies.get_mut(number) {
            tally.add(arrival, outcome);
        }
        Ok(())
    })?;
    let mut columns = columns.iter_mut();
    let finish = |(tally, run): (TokenTally, &mut Run)| {
        let passes = run.finish();
        if let Some(column) = columns.next() {
            column.series.finish(passes, until);
        }
        tally.finish(passes)
    };
    Ok(tallies.into_iter().zip(runs).map(finish).collect())
}

fn print_reports(reports: &[LimitReport], format: Format, mut output: impl Write) -> io::Result<()> {
    match format {
        Format::Json => writeln!(output, "{:#}", render::json(reports))?,
        Format::Table | Format::Csv => output.write_all(render::table(reports).as_bytes())?,
    }
    output.flush()
}

fn check_picture(path: &Path) -> Result<(), Box<dyn Error>> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg")) {
        return Ok(());
    }
    Err(format!("--plot: found `{}`, expected a file name that ends in .svg", path.display()).into())
}

#[cfg(test)]
mod tests;
