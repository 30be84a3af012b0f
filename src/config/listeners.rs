//! `listeners:`, `admin:`, `workers:`, `connections:`: the addresses that tollgate listens on, and bounds on connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::problem::Place;
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::server::peers;
use crate::config::settings::{ADMIN, CERTIFICATE, CLIENT_CERTIFICATES, CONNECTIONS, LISTENER, LISTENER_TLS};
use crate::config::values::{NamedFile, UNIX, check_socket_path};
use crate::config::words;
use crate::ruleset::{ConnectionBounds, Endpoint, ListenerService, SocketPath, TrustedPeers};

/// The addresses that tollgate listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The addresses for requests that the gateway guards; at least one.
    pub listeners: Vec<Listener>,
    /// The address for metrics, health and inspection.
    pub admin: SocketAddr,
    /// The number of threads that serve clients, 1 to 1024; `None` for one thread for each core.
    pub workers: Option<usize>,
}

impl Server {
    /// The default address of the admin port, which other machines cannot reach.
    pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
}

/// One address at which requests come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address, or the path of a socket.
    pub address: Endpoint,
    /// The listener's TLS settings; `None` where clients connect in plain text.
    pub tls: Option<ListenerTls>,
    /// The service at this address: proxying, or answers to another proxy.
    pub serves: ListenerService,
    /// Whether the listener speaks HTTP/2 beside HTTP/1.1.
    pub http2: bool,
    /// The peers whose connections begin with the client's address (PROXY protocol).
    pub proxy_protocol: TrustedPeers,
    /// The largest number of connections at once; `None` for no bound of its own.
    pub max_connections: Option<usize>,
}

impl Listener {
    /// Whether clients are asked for a certificate.
    pub(super) fn asks_for_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_certificates.is_some())
    }

    /// A listener with an address and the defaults of all other settings.
    pub const fn plain(address: SocketAddr) -> Self {
        let proxy_protocol = TrustedPeers { networks: Vec::new(), unix: false };
        Self {
            address: Endpoint::Inet(address),
            tls: None,
            serves: ListenerService::Proxy,
            http2: false,
            proxy_protocol,
            max_connections: None,
        }
    }
}

/// The listener's TLS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The position of `tls` in the file.
    pub place: Place,
    /// At least one. Clients that ask for no name, or for a name that no certificate has, get the first certificate.
    pub certificates: Vec<CertificateFiles>,
    /// The settings for client certificates; `None` where the listener asks for none.
    pub client_certificates: Option<ClientCertificateSettings>,
    /// Whether the listener speaks TLS 1.2 beside 1.3.
    pub allows_1_2: bool,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by the intermediate certificates up to one that clients trust.
    pub cert: NamedFile,
    /// Its private key.
    pub key: NamedFile,
}

/// The settings for client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificateSettings {
    /// The authorities whose client certificates the listener accepts.
    pub ca: NamedFile,
    /// Whether the listener refuses a client without a certificate.
    pub required: bool,
}

/// The largest number of listeners.
const MAX_LISTENERS: usize = 64;
/// The largest number of certificates of a listener.
const MAX_CERTIFICATES: usize = 1_000;

const CERTIFICATES: &str = "a list, like `[{cert: api.crt, key: api.key}]`";

/// Reads `listeners:`, `admin:` and `workers:`.
pub(super) fn read(top: &Section<'_>) -> Option<Server> {
    let mut taken = Vec::new();
    let listeners = listeners(top, &mut taken);
    let taken: Vec<_> = taken.into_iter().filter_map(|(endpoint, field)| Some((endpoint.inet()?, field))).collect();
    let admin = top.value_or("admin", Server::DEFAULT_ADMIN, |field| {
        let section = field.section(&ADMIN)?;
        let Some(field) = section.get("address") else {
            let is_left_out = !section.is_misspelt("address");
            return is_left_out.then(|| free(field, Server::DEFAULT_ADMIN, &taken)).flatten();
        };
        let address = address(&field)?;
        if !address.ip().is_loopback() {
            field.warn(
                "lets other machines in: there is no password in front of metrics and inspection",
                "use `127.0.0.1`, or keep others away from this port",
            );
        }
        free(&field, address, &taken)
    });
    if !top.has("admin")
        && let Some((_, field)) = taken.iter().find(|(taken, _)| collide(*taken, Server::DEFAULT_ADMIN))
    {
        field.findings().add(
            field
                .error("is where the admin interface listens")
                .hint(format!("give another `admin: {{address: ...}}` than {}", Server::DEFAULT_ADMIN)),
        );
    }
    let workers = top.optional("workers", Field::whole);
    Some(Server { listeners: listeners?, admin, workers })
}

fn listeners<'a>(top: &Section<'a>, taken: &mut Vec<(Endpoint, Field<'a>)>) -> Option<Vec<Listener>> {
    const EXPECTED: &str = "a list, like `[{address: \"0.0.0.0:8080\"}]`";
    let field = top.required("listeners", EXPECTED)?;
    let items = field.list_up_to(MAX_LISTENERS, "listeners", EXPECTED)?;
    all_or_none(items.into_iter().map(|item| {
        let section = item.section(&LISTENER)?;
        let mode = section.optional("mode", mode);
        let place = section.must("address", |field| {
            let endpoint = field.read(|text| endpoint(text, mode))?;
            if let Some((other, _)) = taken.iter().find(|(taken, _)| is_same_endpoint(taken, &endpoint)) {
                return field.fail(field.error(format!("cannot be listened on beside {other}")));
            }
            taken.push((endpoint.clone(), field.clone()));
            Some(endpoint)
        });
        if let (Some(Endpoint::Inet(_)), Some(field)) = (&place, section.get("mode")) {
            return field.fail(field.error("is for paths only").expected("`address: unix:/...` beside it"));
        }
        let tls = section.optional("tls", tls);
        let serves = serves(&section);
        let speaks_grpc = serves.is_some_and(ListenerService::speaks_grpc);
        // with TLS, the client negotiates the version of HTTP; in plain text, only the connection's first bytes would tell
        let http2 = section.value_or("http2", section.has("tls") || speaks_grpc, Field::flag);
        if let (true, false, Some(field)) = (speaks_grpc, http2, section.get("http2")) {
            return field.fail(field.error("leaves no way to ask: gRPC is spoken over HTTP/2").expected("`true`"));
        }
        let proxy_protocol = section.value_or("proxy_protocol", TrustedPeers::default(), |field| {
            peers(field, "believes everybody, so that any client can choose its own address")
        });
        let max_connections = section.optional("max_connections", Field::whole);
        if let (Some(place), Some(field)) = (&place, section.get("proxy_protocol")) {
            let TrustedPeers { networks, unix } = &proxy_protocol;
            let (others, whose) = match place {
                Endpoint::Inet(_) => (*unix, "`unix` comes over a path only"),
                Endpoint::Path(_) => (!networks.is_empty(), "those who come over a path have no address"),
            };
            if others {
                field.warn(format!("holds somebody who cannot come here: {whose}"), None);
            }
        }
        Some(Listener { address: place?, tls, serves: serves?, http2, proxy_protocol, max_connections })
    }))
}

/// Reads `serves` and `denied_status`.
fn serves(section: &Section<'_>) -> Option<ListenerService> {
    let serves = section.get_or("serves", ListenerService::Proxy, |field| field.choice(&ListenerService::ALL));
    let Some(field) = section.get("denied_status") else { return serves };
    let status = field.whole();
    match serves? {
        ListenerService::ForwardAuth { .. } => Some(ListenerService::ForwardAuth { denied_status: Some(status?) }),
        _ => {
            let problem = field.key_error("is for answers to subrequests only");
            field.fail(problem.expected("`serves: forward_auth` beside it"))
        }
    }
}

/// Reads `connections:`.
pub(super) fn bounds(top: &Section<'_>) -> ConnectionBounds {
    let section = top.below("connections", &CONNECTIONS);
    ConnectionBounds {
        max: section.optional("max", Field::whole),
        per_client: section.optional("max_per_client", Field::whole),
        idle: section.duration("idle"),
    }
}

fn tls(field: &Field<'_>) -> Option<ListenerTls> {
    let section = field.section(&LISTENER_TLS)?;
    let certificates = section.required("certificates", CERTIFICATES).and_then(|field| {
        let items = field.list_up_to(MAX_CERTIFICATES, "certificates", CERTIFICATES)?;
        unique_items(&items, certificate, |files| files.cert.path.clone())
    });
    Some(ListenerTls {
        place: field.place(),
        client_certificates: section.optional("client_certificates", client_certificates),
        allows_1_2: section.value_or("min_version", true, |field| field.choice(&[("1.2", true), ("1.3", false)])),
        certificates: certificates?,
    })
}

fn certificate(field: &Field<'_>) -> Option<CertificateFiles> {
    let section = field.section(&CERTIFICATE)?;
    let (cert, key) = (section.must("cert", Field::file), section.must("key", Field::file));
    Some(CertificateFiles { cert: cert?, key: key? })
}

fn client_certificates(field: &Field<'_>) -> Option<ClientCertificateSettings> {
    let section = field.section(&CLIENT_CERTIFICATES)?;
    Some(ClientCertificateSettings { required: section.flag("required"), ca: section.must("ca", Field::file)? })
}

fn mode(field: &Field<'_>) -> Option<u32> {
    field.parsed("permission bits in octal, like `660`", |text| {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| invalid("is not the mode of a file"))
    })
}

/// Parses an address, or a path, which gets the file mode `mode`.
fn endpoint(text: &str, mode: Option<u32>) -> Result<Endpoint, InvalidValue> {
    let Some(path) = text.strip_prefix(UNIX) else {
        return match text.starts_with('/') {
            true => Err(invalid("has no `unix:` in front of its path")),
            false => parse_address(text).map(Endpoint::Inet),
        };
    };
    check_socket_path(path)?;
    Ok(Endpoint::Path(SocketPath { path: path.into(), mode: mode.unwrap_or(SocketPath::MODE) }))
}

/// Reads an address and a port.
pub(super) fn address(field: &Field<'_>) -> Option<SocketAddr> {
    field.parsed("an address and a port, like `0.0.0.0:8080` or `[::]:8080`", parse_address)
}

fn parse_address(text: &str) -> Result<SocketAddr, InvalidValue> {
    text.parse::<SocketAddr>().map_err(|_| {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let meant = match (host, port.parse::<u16>()) {
            ("" | "*", Ok(port)) => Some(format!("0.0.0.0:{port}")),
            ("localhost", Ok(port)) => Some(format!("127.0.0.1:{port}")),
            _ => None,
        };
        invalid("is not an address and a port").hint(meant.map(|address| words::did_you_mean(&address)))
    })
}

fn free(field: &Field<'_>, address: SocketAddr, taken: &[(SocketAddr, Field<'_>)]) -> Option<SocketAddr> {
    match taken.iter().find(|(taken, _)| collide(*taken, address)) {
        Some((other, _)) => field.fail(field.error(format!("cannot be listened on beside {other}"))),
        None => Some(address),
    }
}

/// Whether tollgate cannot listen on both endpoints.
fn is_same_endpoint(a: &Endpoint, b: &Endpoint) -> bool {
    match (a, b) {
        (Endpoint::Inet(a), Endpoint::Inet(b)) => collide(*a, *b),
        (a, b) => a.path().is_some() && a.path() == b.path(),
    }
}

/// Whether tollgate cannot listen on both addresses; port 0 stands for any free port.
pub(super) fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_family = a.is_ipv4() == b.is_ipv4();
    let overlap = a.ip() == b.ip() || (same_family && (a.ip().is_unspecified() || b.ip().is_unspecified()));
    a.port() == b.port() && a.port() != 0 && overlap
}
