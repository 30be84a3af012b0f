//! `tollgate run`: runs the gateway.

use std::error::Error;
use std::mem;
use std::path::PathBuf;

use clap::Args;

use crate::cli::init::{FirstConfig, ON_COMMAND_LINE};
use crate::cli::source::{self, ReloadCache, Source};
use crate::clock::{Clock, SystemClock};
use crate::runtime::config_source::{ConfigSource, LoadResult, Loader};
use crate::runtime::{self, HeldSignals, Setup};
use crate::telemetry::logging::{self, LoggingGuard};

/// The arguments of `tollgate run`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "tollgate run --config <FILE>\n       tollgate run --upstream <URL> [OPTIONS]")]
pub struct RunArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present_any = FIRST, conflicts_with_all = FIRST)]
    pub config: Option<PathBuf>,
    /// A first try without a file
    #[command(flatten)]
    pub first: FirstConfig,
}

/// The arguments of a first configuration, which stand in place of a file.
const FIRST: [&str; 4] = ["upstream", "limit", "listen", "admin"];

/// Runs the gateway until it is told to stop.
pub fn execute(args: &RunArgs) -> Result<(), Box<dyn Error>> {
    let signals = hold_signals()?;
    let (parts, origin) = match &args.config {
        Some(config) => {
            let (mut kept, mut files) = (ReloadCache::default(), Vec::new());
            let parts = source::open_again(config, &mut kept, &mut files)?.parts;
            let loader =
                Box::new(FileLoader { config: config.clone(), in_force: kept, loaded: ReloadCache::default() });
            (parts, Some(ConfigSource { loader, files }))
        }
        None => {
            let text = args.first.text(&[]).unwrap_or_default();
            (Source::of_text(text, ON_COMMAND_LINE)?.parts, None)
        }
    };
    let guard = start_logging()?;
    for warning in &parts.warnings {
        tracing::warn!("{warning}");
    }
    let ended = runtime::prepare(Setup { signals, parts, origin, sample: None })?.run();
    drop(guard);
    Ok(ended?)
}

/// Holds back the signals of the process until the gateway handles them.
pub(super) fn hold_signals() -> Result<HeldSignals, String> {
    HeldSignals::new().map_err(|error| format!("cannot handle signals: {error}"))
}

/// Starts the log of the process.
pub(super) fn start_logging() -> Result<LoggingGuard, String> {
    let clock = SystemClock::new();
    logging::start(move || clock.now()).map_err(|error| format!("cannot set up logging: {error}"))
}

/// Reads a configuration from its file at each reload.
struct FileLoader {
    config: PathBuf,
    /// The parts of the configuration in force, which the next reading compares with.
    in_force: ReloadCache,
    /// The parts of the last reading, which may not have come into force.
    loaded: ReloadCache,
}

impl Loader for FileLoader {
    fn load(&mut self) -> LoadResult {
        let mut files = Vec::new();
        self.loaded = self.in_force.clone();
        let source = source::open_again(&self.config, &mut self.loaded, &mut files);
        let outcome = source.map(|source| source.parts).map_err(|problems| {
            let more = (problems.more > 0).then(|| format!("and {} more", problems.more));
            problems.errors.iter().map(ToString::to_string).chain(more).collect()
        });
        LoadResult { files, outcome }
    }

    fn confirm(&mut self) {
        self.in_force = mem::take(&mut self.loaded);
    }
}
