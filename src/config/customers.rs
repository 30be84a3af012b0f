//! `customers:`: the identity, directory, groups and plans of callers.

use http::Uri;

use crate::config::identify::{self, Identify, Jwks};
use crate::config::key::named;
use crate::config::names::Names;
use crate::config::problem::Place;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::scalar::invalid;
use crate::config::settings::{ANONYMOUS, CUSTOMERS, DIRECTORY, DIRECTORY_HTTP, DIRECTORY_POSTGRES, GROUPS, PLAN_FROM};
use crate::config::store::{ClientTls, client_tls};
use crate::config::values::NamedFile;
use crate::ruleset::groups::{COLUMNS, MAX_LEVELS};
use crate::ruleset::{CustomerRules, PlanHeader, PlanId, UnknownCredential};
use crate::units::Nanos;

const A_DIRECTORY: &str =
    "`{file: customers.csv}`, `{postgres: {url_file: ...}}`, `{redis: \"tollgate:customers\"}` or `{http: {url: ...}}`";

/// The source of the customer directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorySource {
    /// A file, CSV or YAML.
    File {
        /// The file's name.
        file: NamedFile,
        /// Whether the admin port may change the file.
        is_writable: bool,
    },
    /// A hash of a Redis server.
    Redis(RedisHash),
    /// A service that the gateway asks over HTTP.
    Http(Box<HttpLookup>),
    /// A PostgreSQL database.
    Postgres(Box<PostgresQuery>),
}

impl DirectorySource {
    /// The file, if the source is a file.
    pub fn file(&self) -> Option<&NamedFile> {
        match self {
            Self::File { file, .. } => Some(file),
            Self::Redis(_) | Self::Http(_) | Self::Postgres(_) => None,
        }
    }
}

/// A hash in the store, and how long the gateway caches its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisHash {
    /// The key of the hash.
    pub key: String,
    /// The cache settings for its answers.
    pub remembered: LookupCacheSettings,
}

/// A service that the gateway asks over HTTP, and how long the gateway caches its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLookup {
    /// The URL of the service.
    pub url: Uri,
    /// Whether the service is Unkey; otherwise it follows the plain contract.
    pub is_unkey: bool,
    /// The file of the token that the gateway sends to the service.
    pub token_file: Option<NamedFile>,
    /// The TLS settings of the connection.
    pub tls: ClientTls,
    /// How long a request waits for an answer.
    pub timeout: Nanos,
    /// The cache settings for its answers.
    pub remembered: LookupCacheSettings,
}

/// A query to a PostgreSQL database, and when the gateway runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresQuery {
    /// The file that holds the URL of the database.
    pub url_file: NamedFile,
    /// The query that returns the rows.
    pub query: String,
    /// The file that keeps the rows for a start without the database.
    pub snapshot_file: NamedFile,
    /// How often the gateway looks for changed rows.
    pub interval: Nanos,
    /// How often the gateway reads all rows.
    pub full_every: Nanos,
    /// The channel on which the database notifies of changes, if it does.
    pub channel: Option<String>,
    /// The query's timeout: how long the database may stay silent.
    pub timeout: Nanos,
    /// The TLS settings of the connection.
    pub tls: ClientTls,
    /// Whether the file has `tls`; without it, the URL decides whether the connection uses TLS.
    pub asks_for_tls: bool,
    /// The statements by which the admin port writes and deletes a row, in this order; `None` if it may change nothing.
    pub writes: Option<(PostgresStatement, PostgresStatement)>,
    /// The position of `postgres` in the file.
    pub place: Place,
}

/// A statement whose parameters have names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresStatement {
    /// The statement as it is written.
    pub text: String,
    /// Its position in the file.
    pub place: Place,
}

/// The cache settings for a server's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupCacheSettings {
    /// How long the gateway uses an answer.
    pub ttl: Nanos,
    /// How long the gateway uses an answer that no customer has the credential.
    pub negative_ttl: Nanos,
    /// The largest number of cached answers; a million take about 250 MB.
    pub max_cached: usize,
}

/// The settings of `customers:`; all `None` if the section is absent.
#[derive(Default)]
pub(super) struct Customers {
    pub(super) rules: Option<CustomerRules>,
    /// `None` where no credential has to be looked up: tokens name their customers themselves.
    pub(super) directory: Option<DirectorySource>,
    /// The file that lists groups, if there is one.
    pub(super) groups: Option<NamedFile>,
    /// `None` where the file accepts no tokens.
    pub(super) jwks: Option<Jwks>,
}

/// Whether the file has `customers:`, and whether it accepts tokens. The readers of limits need both.
pub(super) struct CustomerFeatures {
    pub(super) customers: bool,
    pub(super) tokens: bool,
}

/// Reads the outline before `customers:` itself is read.
pub(super) fn customer_features(top: &Section<'_>) -> CustomerFeatures {
    let customers = top.has("customers");
    let tokens = top.at(&["customers", "identify"]).is_some_and(|field| identify::has_tokens(&field));
    CustomerFeatures { customers, tokens }
}

/// Reads the names of the group levels before `customers:` itself is read; the readers of limits need them.
pub(super) fn levels(top: &Section<'_>) -> Names {
    const WHAT: &str = "a level";
    let Some(field) = top.at(&["customers", "groups", "levels"]) else { return Names::none(WHAT) };
    let Some(items) = field.nonempty_list("a list of names, like `[organisation, team]`") else {
        return Names::unreadable(WHAT);
    };
    let mut names = Names::none(WHAT);
    for item in &items {
        let Some(word) = item.scalar_value("the name of a level, like `organisation`") else { continue };
        match &*word.text {
            name if COLUMNS.contains(&name) => {
                let hint = "the files of customers have another column of this name";
                item.findings().add(item.error("cannot be the name of a level").hint(hint.to_owned()));
            }
            name => drop(names.define(name, item, item.place())),
        }
    }
    if items.len() > MAX_LEVELS {
        let problem = field.key_error(format!("has more than {MAX_LEVELS} levels"));
        field.findings().add(problem.found(format!("{} levels", items.len())));
    }
    names
}

/// Reads `customers:`.
pub(super) fn read(top: &Section<'_>, plans: &Names, levels: &Names, has_proxies: bool) -> Customers {
    top.value_or("customers", Customers::default(), |field| {
        if let (Some(redis), false) = (top.at(&["customers", "directory", "redis"]), top.has("store")) {
            let problem = redis.key_error("names a hash, and no server is named");
            let expected = "`store: {redis: \"redis://127.0.0.1:6379/0\"}` at the top of the file";
            field.findings().add(problem.expected(expected));
        }
        customers(field, plans, levels, has_proxies)
    })
}

fn customers(field: &Field<'_>, plans: &Names, levels: &Names, has_proxies: bool) -> Option<Customers> {
    let section = field.section(&CUSTOMERS)?;
    let identify = section.required("identify", "where credentials are, like `[{header: x-api-key}, {bearer: true}]`");
    let directory = match identify.as_ref().is_none_or(identify::needs_directory) {
        true => section.required("directory", A_DIRECTORY).and_then(|field| directory(&field)),
        false => section.optional("directory", directory),
    };
    let sources = identify.and_then(|field| identify::read(&field, plans, levels));
    let groups = section.optional("groups", groups);
    let anonymous = section.optional("anonymous", |field| anonymous(field, plans));
    let unknown = section.value_or("unknown", UnknownCredential::Deny, |field| {
        field.choice(&[("deny", UnknownCredential::Deny), ("anonymous", UnknownCredential::Anonymous)])
    });
    if let (Some(field), UnknownCredential::Anonymous) = (section.get("unknown"), unknown)
        && !section.has("anonymous")
        && !section.is_misspelt("anonymous")
    {
        let problem = field.error("lets nobody in: anonymous callers are refused, as the file gives them no plan");
        field.findings().add(problem.hint("write `anonymous: { plan: ... }` beside it, or leave it out"));
    }
    let plan_from = section.optional("plan_from", |field| plan_from(field, plans, has_proxies));
    let Identify { sources, jwks } = sources?;
    let rules = CustomerRules { identify: sources, anonymous, unknown, plan_from };
    Some(Customers { rules: Some(rules), directory, groups, jwks })
}

fn plan_from(field: &Field<'_>, plans: &Names, has_proxies: bool) -> Option<PlanHeader> {
    let section = field.section(&PLAN_FROM)?;
    let header = section.required("header", "the name of a header field");
    let given = section.value_or("plans", (0..plans.len()).map(PlanId).collect(), |field| {
        let named = field.nonempty_list("names of plans")?;
        all_or_none(named.iter().map(|field| plans.resolve(field).map(PlanId)))
    });
    let header = header?;
    if !has_proxies {
        header.warn("is believed of no request: `client_address` has no `trusted_proxies`", None);
    }
    Some(PlanHeader { name: header.request_header_name()?, plans: given })
}

/// Reads the file of `groups`; [`levels`] reads the names.
fn groups(field: &Field<'_>) -> Option<NamedFile> {
    let section = field.section(&GROUPS)?;
    section.required("levels", "the names of the levels, like `[organisation, team]`");
    section.optional("file", Field::file)
}

fn directory(field: &Field<'_>) -> Option<DirectorySource> {
    const OPTIONS: [&str; 3] = ["ttl", "negative_ttl", "max_cached"];
    let section = field.section(&DIRECTORY)?;
    let (kind, source) = section.one_of(&["file", "redis", "http", "postgres"], A_DIRECTORY)?;
    for option in OPTIONS.iter().filter_map(|option| section.get(option)) {
        if matches!(kind, "file" | "postgres") {
            field.findings().add(option.key_error("goes with `redis` and `http` only"));
        }
    }
    if let Some(writable) = section.get("writable").filter(|_| kind != "file") {
        let problem = writable.key_error("goes with `file` only");
        field.findings().add(problem.hint("rows of PostgreSQL are changed by the statements `put` and `delete` there"));
    }
    match kind {
        "file" => Some(DirectorySource::File { is_writable: section.flag("writable"), file: source.file()? }),
        "redis" => redis(&source, &section).map(DirectorySource::Redis),
        "http" => http(&source, &section).map(Box::new).map(DirectorySource::Http),
        _ => postgres(&source).map(Box::new).map(DirectorySource::Postgres),
    }
}

fn postgres(field: &Field<'_>) -> Option<PostgresQuery> {
    let section = field.section(&DIRECTORY_POSTGRES)?;
    let text = |field: &Field<'_>| {
        field.read(|text| match text.trim().is_empty() {
            true => Err(invalid("is empty")),
            false => Ok(text.to_owned()),
        })
    };
    let url_file = section.must("url_file", Field::file);
    let query = section.must("query", text);
    let snapshot_file = section.must("snapshot_file", Field::file);
    let tls = client_tls(&section);
    if let (Some(one), None) | (None, Some(one)) = (section.get("put"), section.get("delete")) {
        field.findings().add(one.key_error("needs the other one of `put` and `delete`"));
    }
    let statement =
        |name| section.optional(name, |field| Some(PostgresStatement { text: text(field)?, place: field.key_place() }));
    Some(PostgresQuery {
        interval: section.duration("interval"),
        full_every: section.duration("full_every"),
        channel: section.optional("channel", text),
        timeout: section.duration("timeout"),
        tls: tls?,
        asks_for_tls: section.has("tls"),
        writes: statement("put").zip(statement("delete")),
        place: field.key_place(),
        url_file: url_file?,
        query: query?,
        snapshot_file: snapshot_file?,
    })
}

fn redis(hash: &Field<'_>, section: &Section<'_>) -> Option<RedisHash> {
    Some(RedisHash { remembered: remembered(section), key: hash.read(named)? })
}

fn http(field: &Field<'_>, directory: &Section<'_>) -> Option<HttpLookup> {
    let remembered = remembered(directory);
    let section = field.section(&DIRECTORY_HTTP)?;
    let (url, tls) = (section.must("url", Field::url), client_tls(&section));
    Some(HttpLookup {
        is_unkey: section.value_or("contract", false, |field| field.choice(&[("plain", false), ("unkey", true)])),
        token_file: section.optional("token_file", Field::file),
        tls: tls?,
        timeout: section.duration("timeout"),
        remembered,
        url: url?,
    })
}

fn remembered(section: &Section<'_>) -> LookupCacheSettings {
    LookupCacheSettings {
        ttl: section.duration("ttl"),
        negative_ttl: section.duration("negative_ttl"),
        max_cached: section.whole("max_cached"),
    }
}

fn anonymous(field: &Field<'_>, plans: &Names) -> Option<PlanId> {
    let section = field.section(&ANONYMOUS)?;
    section.optional("key", |field| field.choice(&[("client_address", ())]));
    section.must("plan", |field| plans.resolve(field)).map(PlanId)
}
