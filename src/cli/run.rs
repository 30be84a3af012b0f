//! `tollgate run`: runs the gateway.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::cli::init::{FirstConfig, ON_COMMAND_LINE};
use crate::cli::source::directory::resolve_path;
use crate::cli::source::{self, ReloadCache, Source};
use crate::clock::{Clock, SystemClock};
use crate::config::Problems;
use crate::files::FileVersion;
use crate::runtime::reload::{CompiledConfig, ConfigSource, LoadResult, LoadedConfig, Loader};
use crate::runtime::senders::SenderSettings;
use crate::runtime::state::StateFile;
use crate::runtime::{self, HeldSignals, Setup, descriptors};
use crate::telemetry::logging::{self, LoggingGuard};

/// The arguments of `tollgate run`.
#[derive(Args, Clone, Debug)]
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
            let mut loader = FileLoader::new(config);
            let (files, source) = loader.read();
            (parts(source?, config), Some(ConfigSource { loader: Box::new(loader), files }))
        }
        None => {
            let text = args.first.text(&[]).unwrap_or_default();
            (parts(Source::of_text(text, ON_COMMAND_LINE)?, Path::new(ON_COMMAND_LINE)), None)
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

/// The parts of a gateway, from a configuration and the files that it names.
pub(super) fn parts(
    Source {
        loaded,
        directory,
        groups,
        tokens,
        store,
        cluster,
        listeners,
        upstream_tls,
        access,
        webhook,
        usage_events,
        traces,
        text,
    }: Source,
    config: &Path,
) -> LoadedConfig {
    // sorted, so that the order in the file does not matter: sockets refer to listeners by position
    let mut listeners: Vec<_> =
        loaded.server.listeners.iter().map(|listener| listener.address.clone()).zip(listeners).collect();
    listeners.sort_by(|(one, _), (other, _)| one.cmp(other));
    let (listeners, listener_configs) =
        listeners.into_iter().map(|(address, config)| (address, Arc::new(config))).unzip();
    LoadedConfig {
        listeners,
        admin: loaded.server.admin,
        workers: loaded.server.workers.unwrap_or_else(descriptors::workers),
        access,
        state: loaded.state.map(|state| StateFile { path: resolve_path(config, &state.file), every: state.every }),
        rules: CompiledConfig {
            ruleset: loaded.ruleset,
            directory,
            groups,
            tokens,
            listeners: listener_configs,
            upstream_tls,
            hash: format!("{:032x}", text.hash()),
        },
        store,
        cluster,
        senders: SenderSettings { webhook, usage_events, traces },
        warnings: loaded.warnings.iter().map(ToString::to_string).collect(),
    }
}

/// Reads a configuration from its file, at the start and at each reload.
struct FileLoader {
    config: PathBuf,
    kept: ReloadCache,
}

impl FileLoader {
    fn new(config: &Path) -> Self {
        Self { config: config.to_owned(), kept: ReloadCache::default() }
    }

    fn read(&mut self) -> (Vec<FileVersion>, Result<Source, Problems>) {
        let mut files = Vec::new();
        let source = source::open_again(&self.config, &mut self.kept, &mut files);
        if let Ok(source) = &source {
            self.kept.server.get_or_insert_with(|| source.loaded.server.clone());
        }
        (files, source)
    }
}

impl Loader for FileLoader {
    fn load(&mut self) -> LoadResult {
        let (files, source) = self.read();
        let outcome = source.map(|source| parts(source, &self.config)).map_err(|problems| {
            let more = (problems.more > 0).then(|| format!("and {} more", problems.more));
            problems.errors.iter().map(ToString::to_string).chain(more).collect()
        });
        LoadResult { files, outcome }
    }
}
