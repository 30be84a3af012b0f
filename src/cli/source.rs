//! Reads the configuration and its files, for `run` and `check` alike, so that both refuse the same.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use crate::cluster::settings::ClusterSettings;
use crate::config::{
    self, ConfigText, ConfiguredOverrides, DirectorySource, IncludedFile, Limits, Listener, LoadedConfig, Mark,
    NamedFile, Place, Problem, Problems, Server, StateSettings, TrialSetting, UpstreamTls, Warning,
};
use crate::customers::Directory;
use crate::files::{self, FileVersion, ReadError};
use crate::gateway::upstream::TlsConnector;
use crate::redis_client::Servers;
use crate::ruleset::Endpoint;
use crate::runtime::config_source::{CompiledConfig, GatewayParts};
use crate::runtime::descriptors::{self, FdBudget, Needs};
use crate::runtime::state::StateFile;

mod cluster;
pub mod directory;
mod include;
mod listeners;
mod lookup;
mod named_files;
mod operators;
mod postgres;
mod senders;
mod store;
mod tokens;

use directory::RowContext;
use named_files::{Files, or_collect};
use store::OpenStore;

/// A configuration with the content of the files that it names.
pub struct Source {
    /// The parts of a gateway.
    pub parts: GatewayParts,
    /// The settings that cannot change while a gateway runs.
    pub fixed: FixedSettings,
    /// The source of the customer directory, if the configuration names one.
    pub directory: Option<DirectorySource>,
    /// The file that keeps limit states over restarts, if the configuration names one.
    pub state: Option<StateSettings>,
    /// The reader of the overrides in the rows of the directory.
    pub overrides: ConfiguredOverrides,
    /// Warnings about the configuration and its files.
    pub warnings: Vec<Warning>,
    /// The configuration's text, and the files that it includes.
    pub text: SourceText,
}

/// The text of a configuration, the files that it includes, and the settings that are tried in place of theirs.
#[derive(Debug)]
pub struct SourceText {
    text: String,
    included: Vec<IncludedFile>,
    changes: Vec<TrialSetting>,
}

impl SourceText {
    /// The names of the files that it includes.
    pub fn included(&self) -> impl Iterator<Item = &str> {
        self.included.iter().map(|file| file.name.as_str())
    }

    /// A hash of the texts, the same at every gateway, to see whether gateways run the same configuration.
    pub fn hash(&self) -> u128 {
        if self.included.is_empty() {
            return files::hash(self.text.as_bytes());
        }
        let texts = [&self.text].into_iter().chain(self.included.iter().map(|file| &file.text));
        let hashes: Vec<u8> = texts.flat_map(|text| files::hash(text.as_bytes()).to_le_bytes()).collect();
        files::hash(&hashes)
    }
}

impl<'t> From<&'t SourceText> for ConfigText<'t> {
    fn from(SourceText { text, included, changes }: &'t SourceText) -> Self {
        Self { text, included, changes }
    }
}

/// The state that is kept between two readings of the same configuration.
#[derive(Clone, Default)]
pub struct ReloadCache {
    /// Settings that are tried in place of those of the files.
    changes: Vec<TrialSetting>,
    /// The settings in force that cannot change; `None` before the first reading.
    fixed: Option<FixedSettings>,
    directory: Option<directory::OpenDirectory>,
    groups: Option<directory::OpenGroups>,
    keys: Option<tokens::OpenKeys>,
}

/// The settings that cannot change while a gateway runs, beside others of the same sections, which can.
#[derive(Clone)]
pub struct FixedSettings {
    /// The listeners, the admin address and the number of workers.
    pub server: Server,
    store: Option<OpenStore>,
    cluster: Option<ClusterSettings>,
}

impl Source {
    /// Reads a configuration that is in no file; the caller has its customers.
    pub fn of_text(text: String, name: &str) -> Result<Self, Problems> {
        let text = SourceText { text, included: Vec::new(), changes: Vec::new() };
        let loaded = LoadedConfig { directory: None, ..config::load(&text, name, &environment)? };
        let mut files = Files { config: Path::new(name), seen: &mut Vec::new() };
        read_files(loaded, text, &mut ReloadCache::default(), &mut files)
    }
}

/// Reads a configuration and the files that it names; their paths are relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    open_changed(path, &[])
}

/// As [`open`], with `changes` in place of the settings in the files.
pub fn open_changed(path: &Path, changes: &[TrialSetting]) -> Result<Source, Problems> {
    let mut kept = ReloadCache { changes: changes.to_vec(), ..ReloadCache::default() };
    open_again(path, &mut kept, &mut Vec::new())
}

/// As [`open`], but reuses the `kept` parts whose settings and files did not change. `seen` gets every file that was read.
pub fn open_again(path: &Path, kept: &mut ReloadCache, seen: &mut Vec<FileVersion>) -> Result<Source, Problems> {
    let files = &mut Files { config: path, seen };
    let text = SourceText { changes: kept.changes.clone(), ..read_source(files)? };
    let loaded = config::load(&text, &name(path), &environment);
    let loaded = loaded.map_err(|problems| with_customer_files(problems, &text, files))?;
    read_files(loaded, text, kept, files)
}

/// Reads the files that a configuration names. Problems carry the warnings about the configuration and about the files before.
fn read_files(
    mut loaded: LoadedConfig,
    text: SourceText,
    kept: &mut ReloadCache,
    files: &mut Files<'_>,
) -> Result<Source, Problems> {
    let mut warnings = mem::take(&mut loaded.warnings);
    let source = read_parts(loaded, text, kept, (files, &mut warnings));
    source.map_err(|problems| Problems { warnings, ..problems })
}

fn read_parts(
    loaded: LoadedConfig,
    text: SourceText,
    kept: &mut ReloadCache,
    (files, warnings): (&mut Files<'_>, &mut Vec<Warning>),
) -> Result<Source, Problems> {
    let mut errors = Vec::new();
    let listeners = or_collect(listeners::open(&loaded.server, files, warnings), &mut errors);
    let upstream_tls = or_collect(upstream_tls(&loaded.upstream_tls, files), &mut errors);
    let fixed = or_collect(open_fixed(&loaded, kept.fixed.as_ref(), files), &mut errors);
    let access = or_collect(operators::read(&loaded.operators, &text, files), &mut errors);
    let senders = or_collect(senders::read(&loaded, files), &mut errors);
    let (Some((listeners, listener_configs)), Some(upstream_tls), Some(fixed), Some(access), Some(senders)) =
        (listeners, upstream_tls, fixed, access, senders)
    else {
        errors.sort_by_key(|problem| problem.place.mark);
        return Err(with_customer_files(errors.into(), &text, files));
    };
    let groups = directory::open_groups(loaded.groups.as_ref(), &loaded.overrides, &mut kept.groups, files)?;
    let context = RowContext { overrides: &loaded.overrides, groups: &groups };
    // before the directory, because its rows come into force as they are read
    let tokens = loaded
        .jwks
        .as_ref()
        .map(|jwks| tokens::open(jwks, (&loaded.ruleset.plans, &groups), &mut kept.keys, files))
        .transpose()
        .map_err(|problems| {
            let named = loaded.directory.as_ref().and_then(DirectorySource::file);
            with_directory(problems, named, context, files)
        })?;
    let customers = match &loaded.directory {
        Some(DirectorySource::Postgres(query)) => Some(&query.snapshot_file),
        other => other.as_ref().and_then(DirectorySource::file),
    };
    let written = [
        customers,
        loaded.state.as_ref().map(|state| &state.file),
        loaded.operators.audit_log.as_ref(),
        loaded.webhook.as_ref().map(|webhook| &webhook.queue),
        loaded.usage_events.as_ref().map(|events| &events.queue),
    ];
    files.check_written(written.into_iter().flatten())?;
    let directory = match &loaded.directory {
        None => Arc::default(),
        Some(named) => {
            let servers = fixed.store.as_ref().map(|store| &store.settings.servers);
            open_directory(named, servers, context, &mut kept.directory, files)?
        }
    };
    if tokens.is_some() {
        // tokens refer to customers by name
        directory.index_names();
    }
    warnings.extend(beyond_descriptors(&name(files.config), &loaded));
    warnings.extend(directory::warnings(loaded.directory.as_ref(), kept.directory.as_ref()));
    warnings.extend(postgres::warnings(loaded.directory.as_ref(), &directory));
    let directory_hash = directory::hash(&directory, kept);
    kept.fixed = Some(fixed.clone());
    let state = loaded.state.as_ref();
    let parts = GatewayParts {
        listeners,
        admin: fixed.server.admin,
        workers: fixed.server.workers.unwrap_or_else(descriptors::workers),
        access,
        rules: CompiledConfig {
            ruleset: loaded.ruleset,
            directory,
            groups,
            tokens,
            listeners: listener_configs,
            upstream_tls,
            hash: format!("{:032x}", text.hash()),
            directory_hash,
        },
        state: state.map(|state| StateFile { path: files.path(&state.file), every: state.every }),
        store: fixed.store.as_ref().map(|store| store.settings.clone()),
        cluster: fixed.cluster.clone(),
        senders,
        warnings: warnings.iter().map(ToString::to_string).collect(),
    };
    let LoadedConfig { directory, state, overrides, .. } = loaded;
    Ok(Source { parts, fixed, directory, state, overrides, warnings: mem::take(warnings), text })
}

/// Reads the files of the settings that cannot change while a gateway runs. Refuses others than those `in_force`.
fn open_fixed(
    loaded: &LoadedConfig,
    in_force: Option<&FixedSettings>,
    files: &mut Files<'_>,
) -> Result<FixedSettings, Problems> {
    let mut errors = Vec::new();
    let store = loaded.store.clone().and_then(|configured| or_collect(store::open(configured, files), &mut errors));
    let cluster =
        loaded.cluster.as_ref().and_then(|configured| or_collect(cluster::open(configured, files), &mut errors));
    Problems::check(errors)?;
    let mut fixed = FixedSettings { server: loaded.server.clone(), store, cluster };
    if let Some(in_force) = in_force {
        refuse_fixed(files.config, in_force.changes(&fixed))?;
        if let (Some(store), Some(in_force)) = (&mut fixed.store, &in_force.store) {
            store.take_over(in_force);
        }
    }
    Ok(fixed)
}

/// Reads the TLS files of the upstreams; the connectors have the upstreams' positions.
fn upstream_tls(
    upstreams: &[Option<UpstreamTls>],
    files: &mut Files<'_>,
) -> Result<Vec<Option<Arc<TlsConnector>>>, Problems> {
    let mut errors = Vec::new();
    let connectors = upstreams.iter().map(|configured| {
        let UpstreamTls { files: named, server_name } = configured.as_ref()?;
        let (client, hash) = or_collect(files.tls_client(named), &mut errors)?;
        Some(Arc::new(TlsConnector::new(client, server_name.clone(), hash)))
    });
    let connectors = connectors.collect();
    Problems::check(errors)?;
    Ok(connectors)
}

/// Opens the directory that the configuration names; `servers` are those of the store.
fn open_directory(
    source: &DirectorySource,
    servers: Option<&Servers>,
    context: RowContext<'_>,
    kept: &mut Option<directory::OpenDirectory>,
    files: &mut Files<'_>,
) -> Result<Arc<Directory>, Problems> {
    match source {
        DirectorySource::File { file, is_writable } => {
            directory::open_in_file(file, *is_writable, context, kept, files)
        }
        DirectorySource::Redis(hash) => {
            let servers = servers.ok_or_else(|| problem(&name(files.config), None, "names no store"))?;
            Ok(directory::open_lookup(lookup::redis(hash, servers), context, kept))
        }
        DirectorySource::Http(service) => Ok(directory::open_lookup(lookup::http(service, files)?, context, kept)),
        DirectorySource::Postgres(query) => {
            directory::open_database(postgres::database(query, context.overrides.levels(), files)?, context, kept)
        }
    }
}

/// Warns if `connections.max` needs more descriptors than a process that is started like this one has.
fn beyond_descriptors(file: &str, loaded: &LoadedConfig) -> Option<Warning> {
    let limit = descriptors::limit();
    let needs = Needs {
        workers: loaded.server.workers.unwrap_or_else(descriptors::workers),
        listeners: loaded.server.listeners.len(),
        peers: loaded.cluster.as_ref().map(|cluster| cluster.peers.others()),
        has_lookups: matches!(loaded.directory, Some(DirectorySource::Http(_))),
        has_sample: false,
    };
    let room = FdBudget::within(limit, needs);
    let most = loaded.ruleset.connections.most.filter(|most| *most > room.clients)?;
    let place = Place { file: file.into(), mark: None, path: "connections.max".to_owned() };
    let warning = Problem::warning(place, "is more than there are descriptors for, upstreams counted in");
    let expected = format!("at most {}, as a process may have {limit} descriptors here", room.clients);
    Some(warning.found(most.to_string()).expected(expected).hint(
        "raise what the system allows (`ulimit -n`, `LimitNOFILE=` of systemd), or leave `max` out: it follows from that",
    ))
}

/// Adds the errors of the files about customers that a refused configuration names.
fn with_customer_files(problems: Problems, text: &SourceText, files: &mut Files<'_>) -> Problems {
    let file = name(files.config);
    let Some(named) = config::load_customer_files(text, &file, &environment) else { return problems };
    let groups = match directory::open_groups(named.groups.as_ref(), &named.overrides, &mut None, files) {
        Ok(groups) => groups,
        // without the groups, the groups of customers cannot be checked
        Err(others) => return together(problems, others, &file),
    };
    let problems = match named.jwks.map(|jwks| tokens::open(&jwks, (&named.plans, &groups), &mut None, files)) {
        Some(Err(others)) => together(problems, others, &file),
        Some(Ok(_)) | None => problems,
    };
    let context = RowContext { overrides: &named.overrides, groups: &groups };
    with_directory(problems, named.directory.as_ref(), context, files)
}

/// Adds the errors of the customers' file; nothing in the file comes into force.
fn with_directory(
    problems: Problems,
    named: Option<&NamedFile>,
    context: RowContext<'_>,
    files: &mut Files<'_>,
) -> Problems {
    match named.map(|named| directory::open_file(named, context, files)) {
        Some(Err(others)) => together(problems, others, &name(files.config)),
        Some(Ok(_)) | None => problems,
    }
}

/// Merges two lists of problems; the errors of the configuration `file` come first.
fn together(mut problems: Problems, others: Problems, file: &str) -> Problems {
    problems.errors.extend(others.errors);
    problems.errors.sort_by_key(|problem| (*problem.place.file != *file, problem.place.mark));
    problems.more = problems.more.saturating_add(others.more);
    problems
}

/// A setting that would change, but cannot while a gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRequired {
    /// The setting's path in the configuration.
    pub path: &'static str,
    /// The value in force; of a secret, only whether there is one.
    pub before: String,
    /// The new value.
    pub after: String,
    /// The purpose of a restart, like `other addresses`.
    pub what: &'static str,
}

/// A setting that cannot change while a gateway runs.
struct ComparedSetting {
    path: &'static str,
    compared: String,
    /// The value for messages; `None` for a secret.
    shown: Option<String>,
}

impl ComparedSetting {
    fn plain(path: &'static str, text: String) -> Self {
        Self { path, compared: text.clone(), shown: Some(text) }
    }
}

impl FixedSettings {
    /// The settings because of which a gateway that runs with these settings refuses `wanted`.
    pub fn changes(&self, wanted: &Self) -> Vec<RestartRequired> {
        type SettingsOf = fn(&FixedSettings) -> Vec<ComparedSetting>;
        let sections: [(&str, SettingsOf); 4] = [
            ("other addresses", |fixed| addresses(&fixed.server)),
            ("another number of threads", |fixed| workers(&fixed.server)),
            ("another cluster", |fixed| cluster::compared_settings(fixed.cluster.as_ref())),
            ("another store", |fixed| store::compared_settings(fixed.store.as_ref())),
        ];
        let mut changes = Vec::new();
        for (what, settings) in sections {
            let pairs = settings(self).into_iter().zip(settings(wanted));
            let changed = pairs.filter(|(before, after)| before.compared != after.compared);
            changes.extend(changed.map(|(before, after)| RestartRequired {
                path: after.path,
                before: before.shown.unwrap_or_else(|| "the secret".to_owned()),
                after: after.shown.unwrap_or_else(|| "another secret".to_owned()),
                what,
            }));
        }
        changes
    }
}

fn addresses(server: &Server) -> Vec<ComparedSetting> {
    let named = |listener: &Listener| match &listener.address {
        Endpoint::Inet(address) => address.to_string(),
        Endpoint::Path(at) => format!("{} (mode {:o})", listener.address, at.mode),
    };
    let mut listeners: Vec<String> = server.listeners.iter().map(named).collect();
    listeners.sort_unstable();
    vec![
        ComparedSetting::plain("listeners", listeners.join(", ")),
        ComparedSetting::plain("admin.address", server.admin.to_string()),
    ]
}

fn workers(server: &Server) -> Vec<ComparedSetting> {
    let count = server.workers.map_or("one for each core".to_owned(), |count| count.to_string());
    vec![ComparedSetting::plain("workers", count)]
}

/// Refuses the configuration at `path` if there are settings that cannot change.
fn refuse_fixed(path: &Path, fixed: Vec<RestartRequired>) -> Result<(), Problems> {
    let file: Arc<str> = name(path).into();
    let errors = fixed.into_iter().map(|RestartRequired { path, before, after, what }| {
        let place = Place { file: Arc::clone(&file), mark: None, path: path.to_owned() };
        Problem::error(place, "cannot change while tollgate runs")
            .found(after)
            .expected(format!("{before}, as at the start"))
            .hint(format!("restart tollgate for {what}; nothing of this file is in force before"))
    });
    Problems::check(errors.collect())
}

/// Reads the limits of a configuration, which need not have other sections.
pub fn open_limits(path: &Path) -> Result<Limits, Problems> {
    config::load_limits(&read_text(path)?, &name(path), &environment)
}

/// Whether the configuration at `path` holds limits only.
pub fn holds_limits_only(path: &Path) -> Result<bool, Problems> {
    Ok(config::holds_limits_only(&read_text(path)?))
}

fn read_text(path: &Path) -> Result<SourceText, Problems> {
    read_source(&mut Files { config: path, seen: &mut Vec::new() })
}

/// Reads a configuration and the files that it includes.
fn read_source(files: &mut Files<'_>) -> Result<SourceText, Problems> {
    let text = read_config_seen(files.config, files.seen)?;
    let included = config::included_files(&text, &name(files.config), &environment);
    Ok(SourceText { included: include::read(&included, files)?, text, changes: Vec::new() })
}

/// Reads the text of a configuration. A file that is too large is not read to its end.
pub fn read_config(path: &Path) -> Result<String, Problems> {
    read_config_seen(path, &mut Vec::new())
}

fn read_config_seen(path: &Path, seen: &mut Vec<FileVersion>) -> Result<String, Problems> {
    let (bytes, looked) = files::read(path, config::MAX_BYTES);
    seen.push(looked);
    let bytes = bytes.map_err(|reason| {
        let problem = problem(&name(path), None, reason.to_string());
        match reason {
            ReadError::TooLarge(_) => problem.hint("customers belong in the file that `customers.directory` names"),
            ReadError::Failed(_) | ReadError::NoFile(_) => problem,
        }
    })?;
    decode(bytes, path)
}

/// The value of `${NAME}` in a configuration: the environment variable of this name.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn decode(bytes: Vec<u8>, path: &Path) -> Result<String, Problems> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = valid.split(|byte| *byte == b'\n').count();
        let message = match error.as_bytes() {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is in UTF-16",
            _ => "the line is not in UTF-8",
        };
        problem(&name(path), Some(line), message).expected("text in UTF-8").into()
    })
}

/// A problem with a line of a file, or with the whole file.
fn problem(file: &str, line: Option<usize>, message: impl Into<String>) -> Problem {
    let mark = line.map(|line| Mark { line, ..Mark::START });
    Problem::error(Place { file: file.into(), mark, path: String::new() }, message)
}
