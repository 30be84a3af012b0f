//! Reads the configuration and its files, for `run` and `check` alike, so that both refuse the same.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use crate::cluster::settings::ClusterSettings;
use crate::config::{
    ConfigText, CustomerSources, DirectorySource, Limits, Listener, LoadedConfig, Mark, NamedFile, Place, Problem,
    Problems, Server, StateSettings, TrialSetting, UpstreamTls, Warning,
};
use crate::customers::Directory;
use crate::files::{self, FileVersion};
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
use named_files::{Files, Refused, all_read};
use store::OpenStore;

/// A configuration with the content of the files that it names.
pub struct Source {
    /// The parts of a gateway.
    pub parts: GatewayParts,
    /// The settings that cannot change while a gateway runs.
    pub fixed: FixedSettings,
    /// The sources of customers that the configuration names.
    pub customers: CustomerSources,
    /// The file that keeps limit states over restarts, if the configuration names one.
    pub state: Option<StateSettings>,
    /// Warnings about the configuration and its files.
    pub warnings: Vec<Warning>,
    /// The configuration's text, and the files that it includes.
    pub text: ConfigText<'static>,
}

/// The state that is kept between two readings of the same configuration.
#[derive(Clone, Default)]
pub struct ReloadCache {
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
        let mut files = Files::new(Path::new(name));
        let text = ConfigText::new(name, text);
        let mut loaded = text.load(&environment)?;
        loaded.customers.directory = None;
        let source = read_files(loaded, text, &mut ReloadCache::default(), &mut files);
        files.finish(source)
    }
}

/// Reads a configuration and the files that it names; their paths are relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    open_changed(path, &[])
}

/// As [`open`], with `changes` in place of the settings in the files.
pub fn open_changed(path: &Path, changes: &[TrialSetting]) -> Result<Source, Problems> {
    let mut files = Files::new(path);
    let source = open_files(changes, &mut ReloadCache::default(), &mut files);
    files.finish(source)
}

/// As [`open`], but reuses the `kept` parts whose settings and files did not change. `seen` gets every file that was read.
pub fn open_again(path: &Path, kept: &mut ReloadCache, seen: &mut Vec<FileVersion>) -> Result<Source, Problems> {
    let mut files = Files::new(path);
    let source = open_files(&[], kept, &mut files);
    seen.append(&mut files.seen);
    files.finish(source)
}

fn open_files(changes: &[TrialSetting], kept: &mut ReloadCache, files: &mut Files<'_>) -> Result<Source, Refused> {
    let text = ConfigText { changes: changes.to_vec(), ..read_text(files)? };
    match text.load(&environment) {
        Ok(loaded) => read_files(loaded, text, kept, files),
        Err(problems) => {
            let refused = files.refuse(problems);
            if let Some(customers) = text.load_customers(&environment) {
                check_customers(&customers, files);
            }
            Err(refused)
        }
    }
}

/// Reads the files that a configuration names.
fn read_files(
    mut loaded: LoadedConfig,
    text: ConfigText<'static>,
    kept: &mut ReloadCache,
    files: &mut Files<'_>,
) -> Result<Source, Refused> {
    files.warnings.append(&mut loaded.warnings);
    let listeners = listeners::open(&loaded.server, files);
    let upstream_tls = upstream_tls(&loaded.upstream_tls, files);
    let fixed = open_fixed(&loaded, kept.fixed.as_ref(), files);
    let access = operators::read(&loaded.operators, &text, files);
    let senders = senders::read(&loaded, files);
    if files.has_errors() {
        check_customers(&loaded.customers, files);
    }
    let ((listeners, listener_configs), upstream_tls) = (listeners?, upstream_tls?);
    let (fixed, access, senders) = (fixed?, access?, senders?);
    let customers = &loaded.customers;
    let groups = directory::open_groups(customers, &mut kept.groups, files)?;
    let context = RowContext { overrides: &customers.overrides, groups: &groups };
    // before the directory, because its rows come into force as they are read
    let tokens = customers.jwks.as_ref().map(|jwks| tokens::open(jwks, context, &mut kept.keys, files)).transpose();
    if tokens.is_err() {
        check_directory(customers, context, files);
    }
    let tokens = tokens?;
    files.check_written(written_files(&loaded))?;
    let directory = match &customers.directory {
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
    files.warnings.extend(beyond_descriptors(&name(files.config), &loaded));
    files.warnings.extend(directory::warnings(customers.directory.as_ref(), &directory));
    files.warnings.extend(postgres::warnings(customers.directory.as_ref(), &directory));
    let directory_hash = directory::hash(&directory, kept);
    kept.fixed = Some(fixed.clone());
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
            hash: format!("{:032x}", hash(&text)),
            directory_hash,
        },
        state: loaded.state.as_ref().map(|state| StateFile { path: files.path(&state.file), every: state.every }),
        store: fixed.store.as_ref().map(|store| store.settings.clone()),
        cluster: fixed.cluster.clone(),
        senders,
        warnings: files.warnings.iter().map(ToString::to_string).collect(),
    };
    let LoadedConfig { customers, state, .. } = loaded;
    Ok(Source { parts, fixed, customers, state, warnings: mem::take(&mut files.warnings), text })
}

/// A hash of the texts, the same at every gateway, to see whether gateways run the same configuration.
fn hash(text: &ConfigText<'_>) -> u128 {
    if text.included.is_empty() {
        return files::hash(text.text.as_bytes());
    }
    let texts = [&*text.text].into_iter().chain(text.included.iter().map(|file| file.text.as_str()));
    let hashes: Vec<u8> = texts.flat_map(|text| files::hash(text.as_bytes()).to_le_bytes()).collect();
    files::hash(&hashes)
}

/// The files and directories that tollgate writes.
fn written_files(loaded: &LoadedConfig) -> impl Iterator<Item = &NamedFile> {
    let customers = match &loaded.customers.directory {
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
    written.into_iter().flatten()
}

/// Reads the files of the settings that cannot change while a gateway runs. Refuses others than those `in_force`.
fn open_fixed(
    loaded: &LoadedConfig,
    in_force: Option<&FixedSettings>,
    files: &mut Files<'_>,
) -> Result<FixedSettings, Refused> {
    let store = loaded.store.clone().map(|configured| store::open(configured, files)).transpose();
    let cluster = loaded.cluster.as_ref().map(|configured| cluster::open(configured, files)).transpose();
    let mut fixed = FixedSettings { server: loaded.server.clone(), store: store?, cluster: cluster? };
    if let Some(in_force) = in_force {
        refuse_fixed(in_force.changes(&fixed), files)?;
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
) -> Result<Vec<Option<Arc<TlsConnector>>>, Refused> {
    let mut connector = |UpstreamTls { files: named, server_name }: &UpstreamTls| {
        let (client, hash) = files.tls_client(named)?;
        Ok(Arc::new(TlsConnector::new(client, server_name.clone(), hash)))
    };
    all_read(upstreams.iter().map(|configured| configured.as_ref().map(&mut connector).transpose()))
}

/// Opens the directory that the configuration names; `servers` are those of the store.
fn open_directory(
    source: &DirectorySource,
    servers: Option<&Servers>,
    context: RowContext<'_>,
    kept: &mut Option<directory::OpenDirectory>,
    files: &mut Files<'_>,
) -> Result<Arc<Directory>, Refused> {
    match source {
        DirectorySource::File { file, is_writable } => {
            directory::open_in_file(file, *is_writable, context, kept, files)
        }
        DirectorySource::Redis(hash) => {
            let servers = servers.ok_or_else(|| files.refuse(problem(&name(files.config), None, "names no store")))?;
            Ok(directory::open_lookup(lookup::redis(hash, servers), context, kept))
        }
        DirectorySource::Http(service) => Ok(directory::open_lookup(lookup::http(service, files)?, context, kept)),
        DirectorySource::Postgres(query) => {
            let database = postgres::database(query, context.overrides.levels(), files)?;
            directory::open_database(database, context, kept, files)
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
        has_lookups: matches!(loaded.customers.directory, Some(DirectorySource::Http(_))),
        has_sample: false,
    };
    let room = FdBudget::within(limit, needs);
    let max = loaded.ruleset.connections.max.filter(|max| *max > room.clients)?;
    let place = Place { file: file.into(), mark: None, path: "connections.max".to_owned() };
    let warning = Problem::warning(place, "is more than there are descriptors for, upstreams counted in");
    let expected = format!("at most {}, as a process may have {limit} descriptors here", room.clients);
    Some(warning.found(max.to_string()).expected(expected).hint(
        "raise what the system allows (`ulimit -n`, `LimitNOFILE=` of systemd), or leave `max` out: it follows from that",
    ))
}

/// Adds the errors of the files about customers that a refused configuration names.
fn check_customers(customers: &CustomerSources, files: &mut Files<'_>) {
    // without the groups, the groups of customers cannot be checked
    let Ok(groups) = directory::open_groups(customers, &mut None, files) else { return };
    let context = RowContext { overrides: &customers.overrides, groups: &groups };
    if let Some(jwks) = &customers.jwks {
        // only the errors count
        _ = tokens::open(jwks, context, &mut None, files);
    }
    check_directory(customers, context, files);
}

/// Adds the errors of the customers' file; nothing in the file comes into force.
fn check_directory(customers: &CustomerSources, context: RowContext<'_>, files: &mut Files<'_>) {
    if let Some(DirectorySource::File { file, .. }) = &customers.directory {
        _ = directory::open_file(file, context, files);
    }
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

/// Refuses the configuration if there are settings that cannot change.
fn refuse_fixed(fixed: Vec<RestartRequired>, files: &mut Files<'_>) -> Result<(), Refused> {
    let file: Arc<str> = name(files.config).into();
    let errors = fixed.into_iter().map(|RestartRequired { path, before, after, what }| {
        let place = Place { file: Arc::clone(&file), mark: None, path: path.to_owned() };
        let handover = if path == "listeners" { ", or hand over with SIGUSR2 if their ports are free" } else { "" };
        Problem::error(place, "cannot change while tollgate runs")
            .found(after)
            .expected(format!("{before}, as at the start"))
            .hint(format!("restart tollgate for {what}{handover}; nothing of this file is in force before"))
    });
    files.check(errors.collect())
}

/// Reads the limits of a configuration, which need not have other sections.
pub fn open_limits(path: &Path) -> Result<Limits, Problems> {
    open_text(path)?.load_limits(&environment)
}

/// Whether the configuration at `path` holds limits only.
pub fn holds_limits_only(path: &Path) -> Result<bool, Problems> {
    Ok(open_text(path)?.holds_limits_only())
}

fn open_text(path: &Path) -> Result<ConfigText<'static>, Problems> {
    let mut files = Files::new(path);
    let text = read_text(&mut files);
    files.finish(text)
}

/// Reads a configuration and the files that it includes.
fn read_text(files: &mut Files<'_>) -> Result<ConfigText<'static>, Refused> {
    let text = ConfigText::new(name(files.config), files.config_text()?);
    let included = include::read(&text.named_includes(&environment), files)?;
    Ok(ConfigText { included, ..text })
}

/// Reads the text of a configuration. A file that is too large is not read to its end.
pub fn read_config(path: &Path) -> Result<String, Problems> {
    let mut files = Files::new(path);
    let text = files.config_text();
    files.finish(text)
}

/// The value of `${NAME}` in a configuration: the environment variable of this name.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A problem with a line of a file, or with the whole file.
fn problem(file: &str, line: Option<usize>, message: impl Into<String>) -> Problem {
    let mark = line.map(|line| Mark { line, ..Mark::START });
    Problem::error(Place { file: file.into(), mark, path: String::new() }, message)
}
