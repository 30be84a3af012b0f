//! Reads the configuration and its files, for `run` and `check` alike, so that both refuse the same.

use std::path::Path;
use std::sync::Arc;

use crate::cluster::settings::Settings as ClusterSettings;
use crate::config::{
    self, Change, ConfigText, ConfiguredOverrides, DirectorySource, IncludedFile, Limits, Listener, LoadedConfig, Mark,
    NamedFile, Place, Problem, Problems, Server, UpstreamTls, Warning,
};
use crate::customers::directory::GroupTable;
use crate::customers::{Directory, TokenVerifier};
use crate::files::{self, FileVersion, ReadError};
use crate::gateway::upstream::TlsConnector;
use crate::http::listener::ListenerConfig;
use crate::redis_client::Servers;
use crate::ruleset::Endpoint;
use crate::runtime::descriptors::{self, FdBudget, Needs};
use crate::runtime::reload::{AccessRules, StoreSettings};
use crate::runtime::traces::Settings as TraceSettings;
use crate::runtime::usage_events::Settings as UsageSettings;
use crate::runtime::webhook::Settings as WebhookSettings;

mod cluster;
pub mod directory;
mod include;
mod listeners;
mod lookup;
mod operators;
mod postgres;
mod senders;
mod store;
mod tokens;

use store::StoreSource;

/// A configuration with the content of the files that it names.
#[derive(Debug)]
pub struct Source {
    /// The configuration.
    pub loaded: LoadedConfig,
    /// Its customers; none if it names no directory.
    pub directory: Arc<Directory>,
    /// The groups that customers may belong to.
    pub groups: Arc<GroupTable>,
    /// The rules and keys that verify tokens of customers (JWT), if there are any.
    pub tokens: Option<TokenVerifier>,
    /// The Redis store of what gateways share, if one is configured.
    pub store: Option<StoreSettings>,
    /// The cluster of gateways that keeps sticky limits together, if one is configured.
    pub cluster: Option<ClusterSettings>,
    /// The settings of each listener.
    pub listeners: Vec<ListenerConfig>,
    /// The TLS connector of each upstream; `None` for an upstream without TLS.
    pub upstream_tls: Vec<Option<Arc<TlsConnector>>>,
    /// The access rules of the admin listener.
    pub access: AccessRules,
    /// The webhook's queue and secrets, if there is a webhook.
    pub webhook: Option<WebhookSettings>,
    /// The settings for sending usage events, if they are sent.
    pub usage_events: Option<UsageSettings>,
    /// The settings for sending spans, if they are sent.
    pub traces: Option<TraceSettings>,
    /// The configuration's text, and the files that it includes.
    pub text: SourceText,
}

/// The text of a configuration, the files that it includes, and the settings that are tried in place of theirs.
#[derive(Debug)]
pub struct SourceText {
    text: String,
    included: Vec<IncludedFile>,
    changes: Vec<Change>,
}

impl SourceText {
    /// The names of the files that it includes.
    pub fn included(&self) -> impl Iterator<Item = &str> {
        self.included.iter().map(|file| file.name.as_str())
    }

    /// A hash of the texts, the same on every node, to see whether nodes run the same configuration.
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
#[derive(Debug, Default)]
pub struct ReloadCache {
    /// The server settings in force; addresses and the number of workers cannot change.
    pub server: Option<Server>,
    /// Settings that are tried in place of those of the files.
    changes: Vec<Change>,
    store: Option<store::StoreInForce>,
    cluster: Option<ClusterSettings>,
    directory: Option<directory::OpenDirectory>,
    groups: Option<directory::OpenGroups>,
    keys: Option<tokens::OpenKeys>,
}

impl Source {
    /// Reads a configuration that is in no file, and has neither customers nor a store.
    pub fn of_text(text: String, name: &str) -> Result<Self, Problems> {
        let text = SourceText { text, included: Vec::new(), changes: Vec::new() };
        let loaded = config::load(&text, name, &environment)?;
        let here = Path::new("");
        Ok(Self {
            directory: Arc::default(),
            groups: Arc::new(GroupTable::default()),
            tokens: None,
            store: None,
            cluster: None,
            listeners: listeners::open(here, &loaded.server, &mut Vec::new())?.0,
            upstream_tls: upstream_tls(here, &loaded.upstream_tls, &mut Vec::new())?,
            access: AccessRules::default(),
            webhook: loaded
                .webhook
                .as_ref()
                .map(|configured| senders::webhook(here, configured, &mut Vec::new()))
                .transpose()?,
            usage_events: usage_events(here, &loaded, &mut Vec::new())?,
            traces: traces(here, &loaded, &mut Vec::new())?,
            text,
            loaded,
        })
    }
}

/// Reads a configuration and the files that it names; their paths are relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    open_changed(path, &[])
}

/// As [`open`], with `changes` in place of the settings in the files.
pub fn open_changed(path: &Path, changes: &[Change]) -> Result<Source, Problems> {
    let mut kept = ReloadCache { changes: changes.to_vec(), ..ReloadCache::default() };
    open_again(path, &mut kept, &mut Vec::new())
}

/// As [`open`], but reuses the `kept` parts whose settings and files did not change. `seen` gets every file that was read.
pub fn open_again(path: &Path, kept: &mut ReloadCache, seen: &mut Vec<FileVersion>) -> Result<Source, Problems> {
    let text = SourceText { changes: kept.changes.clone(), ..read_source(path, seen)? };
    let mut loaded =
        config::load(&text, &name(path), &environment).map_err(|problems| with_files(problems, path, &text, seen))?;
    let listeners = listeners::open(path, &loaded.server, seen);
    let upstream_tls = upstream_tls(path, &loaded.upstream_tls, seen);
    let (listeners, warnings) = listeners.map_err(|problems| {
        let warnings = loaded.warnings.iter().cloned().chain(problems.warnings).collect();
        Problems { warnings, ..problems }
    })?;
    loaded.warnings.extend(warnings);
    let with_warnings = |problems| Problems { warnings: loaded.warnings.clone(), ..problems };
    let upstream_tls = upstream_tls.map_err(with_warnings)?;
    if let Some(server) = &kept.server {
        refuse_fixed(&name(path), server_changes(server, &loaded.server)).map_err(with_warnings)?;
    }
    let access = operators::read(path, &loaded.operators, &text, seen).map_err(with_warnings)?;
    let webhook = loaded.webhook.as_ref().map(|configured| senders::webhook(path, configured, seen)).transpose();
    let webhook = webhook.map_err(with_warnings)?;
    let usage_events = usage_events(path, &loaded, seen).map_err(with_warnings)?;
    let traces = traces(path, &loaded, seen).map_err(with_warnings)?;
    let store = loaded.store.as_ref().map(|configured| StoreSource::read(path, configured, seen)).transpose();
    let store = store.map_err(with_warnings)?;
    if kept.server.is_some() {
        let changed = store::changed(
            kept.store.as_ref().map(store::StoreInForce::fixed_settings),
            store.as_ref().map(StoreSource::fixed_settings),
        );
        refuse_fixed(&name(path), changed).map_err(with_warnings)?;
    }
    let cluster = loaded.cluster.as_ref().map(|configured| cluster::open(path, configured, seen)).transpose();
    let cluster = cluster.map_err(with_warnings)?;
    if kept.server.is_some() {
        let changed = cluster::changed(kept.cluster.as_ref(), cluster.as_ref());
        refuse_fixed(&name(path), changed).map_err(with_warnings)?;
    }
    let groups = directory::open_groups(path, loaded.groups.as_ref(), &loaded.overrides, &mut kept.groups, seen);
    let groups = groups.map_err(with_warnings)?;
    // before the directory, because its rows come into force as they are read
    let tokens = loaded
        .jwks
        .as_ref()
        .map(|jwks| tokens::open(path, jwks, (&loaded.ruleset.plans, &groups), &mut kept.keys, seen));
    let tokens = tokens.transpose();
    let tokens = tokens.map_err(|problems| {
        let named = loaded.directory.as_ref().and_then(DirectorySource::file);
        with_warnings(with_directory(problems, path, named, (&loaded.overrides, &groups), seen))
    })?;
    let store = store.map(|wanted| wanted.settle(kept.store.as_ref()));
    let servers = store.as_ref().map(|store| &store.settings.servers);
    let directory = match &loaded.directory {
        None => Arc::default(),
        Some(named) => {
            let read_with = (&loaded.overrides, &groups);
            open_directory(path, named, servers, read_with, &mut kept.directory, seen).map_err(with_warnings)?
        }
    };
    if tokens.is_some() {
        // tokens refer to customers by name
        directory.index_names();
    }
    kept.store = store;
    let store = kept.store.as_ref().map(|kept| kept.settings.clone());
    loaded.warnings.extend(beyond_descriptors(&name(path), &loaded));
    loaded.warnings.extend(postgres::warnings(loaded.directory.as_ref(), &directory));
    kept.cluster.clone_from(&cluster);
    Ok(Source {
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
    })
}

/// Reads the TLS files of the upstreams in the configuration at `path`; the connectors have the upstreams' positions.
fn upstream_tls(
    path: &Path,
    upstreams: &[Option<UpstreamTls>],
    seen: &mut Vec<FileVersion>,
) -> Result<Vec<Option<Arc<TlsConnector>>>, Problems> {
    let mut errors = Vec::new();
    let mut opened = Vec::new();
    for configured in upstreams {
        let read = configured
            .as_ref()
            .map(|configured| (configured, store::client(path, &configured.files, &configured.place, seen)));
        opened.push(match read {
            None => None,
            Some((configured, Ok((client, files)))) => {
                Some(Arc::new(TlsConnector::new(client, configured.server_name.clone(), files)))
            }
            Some((_, Err(problems))) => {
                errors.extend(problems.errors);
                None
            }
        });
    }
    if errors.is_empty() { Ok(opened) } else { Err(Problems { errors, warnings: Vec::new(), more: 0 }) }
}

fn usage_events(
    path: &Path,
    loaded: &LoadedConfig,
    seen: &mut Vec<FileVersion>,
) -> Result<Option<UsageSettings>, Problems> {
    loaded.usage_events.as_ref().map(|configured| senders::usage_events(path, configured, seen)).transpose()
}

fn traces(path: &Path, loaded: &LoadedConfig, seen: &mut Vec<FileVersion>) -> Result<Option<TraceSettings>, Problems> {
    loaded.traces.as_ref().map(|configured| senders::traces(path, configured, seen)).transpose()
}

/// Opens the directory that the configuration at `path` names; `servers` are those of the store.
fn open_directory(
    path: &Path,
    source: &DirectorySource,
    servers: Option<&Servers>,
    read_with: (&ConfiguredOverrides, &Arc<GroupTable>),
    kept: &mut Option<directory::OpenDirectory>,
    seen: &mut Vec<FileVersion>,
) -> Result<Arc<Directory>, Problems> {
    match source {
        DirectorySource::File { file, is_writable } => {
            directory::open_in_file(path, (file, *is_writable), read_with, kept, seen)
        }
        DirectorySource::Redis(hash) => {
            let servers = servers.ok_or_else(|| refuse(problem(&name(path), None, "names no store")))?;
            Ok(directory::open_lookup(lookup::redis(hash, servers), read_with, kept))
        }
        DirectorySource::Http(service) => {
            Ok(directory::open_lookup(lookup::http(path, service, seen)?, read_with, kept))
        }
        DirectorySource::Postgres(query) => {
            let (overrides, _) = read_with;
            let database = postgres::database(path, query, overrides.levels(), seen)?;
            directory::open_database(database, read_with, kept)
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

/// Adds the errors of the files that a refused configuration names.
fn with_files(problems: Problems, path: &Path, text: &SourceText, seen: &mut Vec<FileVersion>) -> Problems {
    let file = name(path);
    let Some(named) = config::load_customer_files(text, &file, &environment) else { return problems };
    let groups = match directory::open_groups(path, named.groups.as_ref(), &named.overrides, &mut None, seen) {
        Ok(groups) => groups,
        // without the groups, the groups of customers cannot be checked
        Err(others) => return together(problems, others, &file),
    };
    let problems = match named.jwks.map(|jwks| tokens::open(path, &jwks, (&named.plans, &groups), &mut None, seen)) {
        Some(Err(others)) => together(problems, others, &file),
        Some(Ok(_)) | None => problems,
    };
    with_directory(problems, path, named.directory.as_ref(), (&named.overrides, &groups), seen)
}

/// Adds the errors of the customers' file; nothing in the file comes into force.
fn with_directory(
    problems: Problems,
    path: &Path,
    named: Option<&NamedFile>,
    read_with: (&ConfiguredOverrides, &GroupTable),
    seen: &mut Vec<FileVersion>,
) -> Problems {
    match named.map(|named| directory::open_file(path, named, read_with, seen)) {
        Some(Err(others)) => together(problems, others, &name(path)),
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

/// The settings because of which a gateway that runs with `before` refuses `after`.
pub fn fixed(before: &Source, after: &Source) -> Vec<RestartRequired> {
    let store = |source: &Source| {
        let secret = source.store.as_ref().and_then(|settings| settings.key_secret.clone());
        source.loaded.store.clone().map(|configured| (configured, secret))
    };
    let (old, new) = (store(before), store(after));
    let mut fixed = server_changes(&before.loaded.server, &after.loaded.server);
    fixed.extend(cluster::changed(before.cluster.as_ref(), after.cluster.as_ref()));
    fixed.extend(store::changed(
        old.as_ref().map(|(configured, secret)| (configured, secret.as_ref())),
        new.as_ref().map(|(configured, secret)| (configured, secret.as_ref())),
    ));
    fixed
}

fn server_changes(in_force: &Server, wanted: &Server) -> Vec<RestartRequired> {
    let named = |endpoint: &Endpoint| match endpoint {
        Endpoint::Inet(address) => address.to_string(),
        Endpoint::Path(at) => format!("{endpoint} (mode {:o})", at.mode),
    };
    let listed = |listeners: &[Listener]| {
        let mut addresses: Vec<String> = listeners.iter().map(|listener| named(&listener.address)).collect();
        addresses.sort_unstable();
        addresses.join(", ")
    };
    let pairs = [
        ("listeners", listed(&in_force.listeners), listed(&wanted.listeners)),
        ("admin.address", in_force.admin.to_string(), wanted.admin.to_string()),
    ];
    let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
    let mut changed: Vec<RestartRequired> =
        changed.map(|(path, before, after)| RestartRequired { path, before, after, what: "other addresses" }).collect();
    if in_force.workers != wanted.workers {
        let shown = |workers: Option<usize>| workers.map_or("one for each core".to_owned(), |count| count.to_string());
        let (before, after) = (shown(in_force.workers), shown(wanted.workers));
        changed.push(RestartRequired { path: "workers", before, after, what: "another number of threads" });
    }
    changed
}

/// Refuses the configuration `file` if there are settings that cannot change.
fn refuse_fixed(file: &str, fixed: Vec<RestartRequired>) -> Result<(), Problems> {
    let errors: Vec<Problem> = fixed
        .into_iter()
        .map(|RestartRequired { path, before, after, what }| {
            let place = Place { file: file.into(), mark: None, path: path.to_owned() };
            Problem::error(place, "cannot change while tollgate runs")
                .found(after)
                .expected(format!("{before}, as at the start"))
                .hint(format!("restart tollgate for {what}; nothing of this file is in force before"))
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(Problems { errors, warnings: Vec::new(), more: 0 }) }
}

/// Reads the limits of a configuration, which need not have other sections.
pub fn open_limits(path: &Path) -> Result<Limits, Problems> {
    config::load_limits(&read_source(path, &mut Vec::new())?, &name(path), &environment)
}

/// Whether the configuration at `path` holds limits only.
pub fn holds_limits_only(path: &Path) -> Result<bool, Problems> {
    Ok(config::holds_limits_only(&read_source(path, &mut Vec::new())?))
}

/// Reads a configuration and the files that it includes.
fn read_source(path: &Path, seen: &mut Vec<FileVersion>) -> Result<SourceText, Problems> {
    let text = read_config_seen(path, seen)?;
    let included = include::read(path, &config::included_files(&text, &name(path), &environment), seen)?;
    Ok(SourceText { text, included, changes: Vec::new() })
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
        refuse(match reason {
            ReadError::TooLarge(_) => problem.hint("customers belong in the file that `customers.directory` names"),
            ReadError::Failed(_) | ReadError::NoFile(_) => problem,
        })
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
        refuse(problem(&name(path), Some(line), message).expected("text in UTF-8"))
    })
}

/// A problem with a line of a file, or with the whole file.
fn problem(file: &str, line: Option<usize>, message: impl Into<String>) -> Problem {
    let mark = line.map(|line| Mark { line, ..Mark::START });
    Problem::error(Place { file: file.into(), mark, path: String::new() }, message)
}

fn refuse(problem: Problem) -> Problems {
    Problems { errors: vec![problem], warnings: Vec::new(), more: 0 }
}
