//! `store:`: the Redis servers that hold shared data.

use crate::config::key::named;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::scalar::invalid;
use crate::config::settings::{SENTINEL, STORE, STORE_TLS};
use crate::config::values::NamedFile;
use crate::redis_client::{Address, Layout};
use crate::units::Nanos;

mod address;

pub use address::Secret;

use address::{A_SERVER, Scheme, Server};

/// The settings of `store:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// The servers.
    pub servers: Layout,
    /// The file of the sentinels' password, if they have one.
    pub sentinel_password_file: Option<NamedFile>,
    /// The user, if it is not the default user.
    pub username: Option<String>,
    /// The password, if it stands in the address of the servers.
    pub password: Option<Secret>,
    /// The file that holds the password, if one does.
    pub password_file: Option<NamedFile>,
    /// The TLS settings; `None` where connections are in plain text.
    pub tls: Option<ClientTls>,
    /// The prefix of all keys in Redis.
    pub prefix: String,
    /// How long a decision waits for Redis.
    pub timeout: Nanos,
    /// How often gateways exchange the counts of limits with `consistency: eventual`.
    pub sync_every: Nanos,
    /// The number of gateways, if the file gives it.
    pub nodes: Option<u64>,
    /// The file of the secret that hides customers' keys in the names of Redis keys.
    pub key_file: Option<NamedFile>,
}

/// The files of a TLS client, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// The authorities that the client trusts; `None` for those of the system.
    pub ca: Option<NamedFile>,
    /// The client's certificate and its key.
    pub identity: Option<(NamedFile, NamedFile)>,
    /// The position of `tls` in the file, or of the section that leaves it out.
    pub place: Place,
}

const SERVERS: &str =
    "`redis: \"redis://127.0.0.1:6379/0\"`, `sentinel: {master: ..., nodes: ...}` or `cluster: [...]`";
const A_LIST_OF_SENTINELS: &str = "a list, like `[\"10.0.0.1:26379\", \"10.0.0.2:26379\"]`";
const A_LIST_OF_SERVERS: &str = "a list, like `[\"redis://10.0.0.1:6379\", \"redis://10.0.0.2:6379\"]`";
const MAX_PREFIX: usize = 64;
/// The largest number of sentinels or servers of a cluster that the file may name.
const MAX_SERVERS: usize = 64;

/// Reads `store:`.
pub(super) fn read(top: &Section<'_>) -> Option<RedisStore> {
    top.optional("store", store)
}

/// The number of gateways, if the file gives it. The readers of limits need this before `store:` itself is read.
pub(super) fn nodes(top: &Section<'_>) -> Option<u64> {
    let store = top.get("store")?.as_mapping()?.with(&STORE);
    store.has("nodes").then(|| store.value_or("nodes", 1, Field::whole))
}

/// The servers, and the settings that stand in their addresses.
struct ServerSettings {
    servers: Layout,
    sentinel_password_file: Option<NamedFile>,
    username: Option<String>,
    password: Option<Secret>,
    /// Whether the addresses ask for TLS; `None` for sentinels, whose addresses do not say.
    tls: Option<bool>,
}

fn store(field: &Field<'_>) -> Option<RedisStore> {
    let section = field.section(&STORE)?;
    let server = read_servers(&section);
    let username = section.optional("username", |field| field.read(named));
    let password_file = section.optional("password_file", Field::file);
    let tls = client_tls(&section);
    let (prefix, timeout, sync_every) =
        (section.text("prefix", prefix), section.duration("timeout"), section.duration("sync_every"));
    let (nodes, key_file) = (section.optional("nodes", Field::whole), section.optional("key_file", Field::file));
    let (server, tls) = (server?, tls?);
    if let (Some(_), Some(file)) = (&server.password, &password_file) {
        let problem = Problem::error(file.place.clone(), "gives a second password");
        return field.fail(problem.expected("one password, in the address or in a file"));
    }
    if let (Some(_), Some(field)) = (&server.username, section.get("username")) {
        let problem = Problem::error(field.place(), "gives a second user");
        return field.fail(problem.expected("one user, in the address or here"));
    }
    if let (Some(false), Some(field)) = (server.tls, section.get("tls")) {
        let problem = field.key_error("goes with an address that begins with `rediss://`");
        return field.fail(problem.hint("`redis://` does not speak TLS"));
    }
    let username = server.username.or(username);
    if let (Some(_), None, None) = (&username, &server.password, section.get("password_file")) {
        let problem = field.key_error("names a user without a password");
        return field.fail(problem.expected("`password_file` beside it, or a password in the address"));
    }
    Some(RedisStore {
        servers: server.servers,
        sentinel_password_file: server.sentinel_password_file,
        username,
        password: server.password,
        password_file,
        tls: (server.tls == Some(true) || section.has("tls")).then_some(tls),
        prefix,
        timeout,
        sync_every,
        nodes,
        key_file,
    })
}

fn read_servers(section: &Section<'_>) -> Option<ServerSettings> {
    match section.one_of(&["redis", "sentinel", "cluster"], SERVERS)? {
        ("redis", field) => standalone(&field),
        ("sentinel", field) => sentinel(&field),
        (_, field) => cluster(&field),
    }
}

fn standalone(field: &Field<'_>) -> Option<ServerSettings> {
    let Server { scheme, at, database, username, password } =
        field.clone().secret().parsed(A_SERVER, address::server)?;
    let servers = Layout::Standalone { server: at, database: database.unwrap_or(0) };
    let tls = Some(scheme == Scheme::Tls);
    Some(ServerSettings { servers, sentinel_password_file: None, username, password, tls })
}

fn sentinel(field: &Field<'_>) -> Option<ServerSettings> {
    let section = field.section(&SENTINEL)?;
    let master = section.must("master", |field| {
        field.read(|text| match text.len() {
            0 => Err(invalid("is empty")),
            _ if text.contains(|each: char| each.is_whitespace() || each.is_control()) => Err(invalid("has blanks")),
            _ => Ok(text.to_owned()),
        })
    });
    let nodes = section.required("nodes", A_LIST_OF_SENTINELS).and_then(|field| {
        let items = field.list_up_to(MAX_SERVERS, "addresses", A_LIST_OF_SENTINELS)?;
        unique_items(&items, |item| item.read(address::sentinel), Address::clone)
    });
    let username = section.optional("username", |field| field.read(named));
    let sentinel_password_file = section.optional("password_file", Field::file);
    if let (Some(_), None) = (&username, section.get("password_file")) {
        return field.fail(field.key_error("names a user without a password").expected("`password_file` beside it"));
    }
    let servers = Layout::Sentinel { master: master?, sentinels: nodes?, username };
    Some(ServerSettings { servers, sentinel_password_file, username: None, password: None, tls: None })
}

fn cluster(field: &Field<'_>) -> Option<ServerSettings> {
    let items = field.list_up_to(MAX_SERVERS, "addresses", A_LIST_OF_SERVERS)?;
    let items: Vec<_> = items.into_iter().map(Field::secret).collect();
    let servers = unique_items(&items, |item| item.parsed(A_SERVER, address::server), |server| server.at.clone())?;
    let mut first = None;
    let seeds = all_or_none(items.iter().zip(servers).map(|(item, server)| {
        let Server { scheme, at, database, username, password } = server;
        if database.is_some_and(|database| database > 0) {
            return item.fail(item.error("names a database, and a cluster has one only"));
        }
        let beside = (scheme, username, password);
        if *first.get_or_insert_with(|| beside.clone()) != beside {
            let problem = item.error("has another scheme, user or password than the first address");
            return item.fail(problem.expected("the same for all servers of a cluster"));
        }
        Some(at)
    }))?;
    let (scheme, username, password) = first?;
    let (servers, tls) = (Layout::Cluster { seeds }, Some(scheme == Scheme::Tls));
    Some(ServerSettings { servers, sentinel_password_file: None, username, password, tls })
}

/// Reads `tls` of a client. A client without it trusts the authorities of the system.
pub(super) fn client_tls(client: &Section<'_>) -> Option<ClientTls> {
    match client.get("tls") {
        Some(field) => tls_files(&field.section(&STORE_TLS)?, field.place()),
        None => Some(ClientTls { ca: None, identity: None, place: client.place_without("tls") }),
    }
}

/// Reads the files of a TLS client from the settings in `section`, which is at `place`.
pub(super) fn tls_files(section: &Section<'_>, place: Place) -> Option<ClientTls> {
    let file = |key| section.get_with(key, Field::file);
    let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
    let (alone, other) = match (section.get("cert"), section.get("key")) {
        (Some(cert), None) => (cert, "key"),
        (None, Some(key)) => (key, "cert"),
        _ => return Some(ClientTls { ca: ca?, identity: cert?.zip(key?), place }),
    };
    let problem = Problem::error(alone.place(), format!("needs `{other}` beside it"));
    alone.fail(problem.expected("`cert` and `key`, or neither"))
}

/// Reads the prefix. It holds no braces, which choose the slot of a cluster; colons separate the parts of a key's name.
fn prefix(field: &Field<'_>) -> Option<String> {
    field.read(|text| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        match text.len() {
            0 => Err(invalid("is empty")),
            1..=MAX_PREFIX if text.bytes().all(fits) => Ok(text.to_owned()),
            1..=MAX_PREFIX => Err(invalid("has other characters")),
            _ => Err(invalid("is too long")),
        }
    })
}
