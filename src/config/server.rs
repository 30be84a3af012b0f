//! The sections about tollgate itself: addresses, client addresses, response headers, logging, bounds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use crate::config::problem::Problem;
use crate::config::read::{Field, Section, every};
use crate::config::scalar::{self, Misfit};
use crate::config::{later, operators};
use crate::ruleset::{AccessLog, ClientAddress, Dialects, RequestHead, Reset, path};

/// The addresses that tollgate listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// For the requests it guards; at least one.
    pub listeners: Vec<SocketAddr>,
    /// For metrics, health and inspection.
    pub admin: SocketAddr,
}

impl Server {
    /// Where the admin interface is unless told otherwise: out of reach for other machines.
    pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
}

/// The most listeners.
const MOST_LISTENERS: usize = 64;

const ADDRESS: &str = "an address and a port, like `0.0.0.0:8080` or `[::]:8080`";

/// Reads `listeners:` and `admin:`.
pub(super) fn read(top: &Section<'_>) -> Option<Server> {
    let mut taken = Vec::new();
    let listeners = listeners(top, &mut taken);
    let admin = top.get_or("admin", Server::DEFAULT_ADMIN, |field| {
        let section = field.section(&operators::KEYS, &[])?;
        let Some(field) = section.get("address").filter(|_| !section.is_empty()) else {
            return if section.is_misspelt("address") { None } else { free(field, Server::DEFAULT_ADMIN, &taken) };
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
    Some(Server { listeners: listeners?, admin: admin? })
}

fn listeners<'a>(top: &Section<'a>, taken: &mut Vec<(SocketAddr, Field<'a>)>) -> Option<Vec<SocketAddr>> {
    const EXPECTED: &str = "a list, like `[{address: \"0.0.0.0:8080\"}]`";
    let field = top.required("listeners", EXPECTED)?;
    let items = field.nonempty_list(EXPECTED)?;
    if items.len() > MOST_LISTENERS {
        return field.fail(Problem::error(field.key_place(), format!("has more than {MOST_LISTENERS} listeners")));
    }
    every(items.into_iter().map(|item| {
        let field = item.section(&["address"], later::LISTENER)?.required("address", ADDRESS)?;
        let address = free(&field, address(&field)?, taken)?;
        taken.push((address, field));
        Some(address)
    }))
}

fn address(field: &Field<'_>) -> Option<SocketAddr> {
    field.parsed(ADDRESS, |text| {
        text.parse::<SocketAddr>().map_err(|_| {
            let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
            let host = text.rsplit_once(':').map_or("", |(host, _)| host);
            let hint = match (host, port.parse::<u16>()) {
                ("", Ok(port)) | ("*", Ok(port)) => Some(format!("did you mean `0.0.0.0:{port}`?")),
                ("localhost", Ok(port)) => Some(format!("did you mean `127.0.0.1:{port}`?")),
                _ => None,
            };
            Misfit { message: "is not an address and a port".to_owned(), hint }
        })
    })
}

fn free(field: &Field<'_>, address: SocketAddr, taken: &[(SocketAddr, Field<'_>)]) -> Option<SocketAddr> {
    match taken.iter().find(|(taken, _)| collide(*taken, address)) {
        Some((other, _)) => field.fail(field.error(format!("cannot be listened on beside {other}"))),
        None => Some(address),
    }
}

/// Whether two addresses cannot be listened on at once; port 0 stands for any free port.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_family = a.is_ipv4() == b.is_ipv4();
    let overlap = a.ip() == b.ip() || (same_family && (a.ip().is_unspecified() || b.ip().is_unspecified()));
    a.port() == b.port() && a.port() != 0 && overlap
}

/// Reads `client_address:`.
pub(super) fn client_address(field: &Field<'_>) -> Option<ClientAddress> {
    let section = field.section(&["trusted_proxies", "ipv6_prefix"], &[])?;
    let default = ClientAddress::default();
    let trusted_proxies = section.get_or("trusted_proxies", default.trusted_proxies, |field| {
        networks(field, "trusts everybody, so that any client can choose its own address")
    });
    let ipv6_prefix = section.get_or("ipv6_prefix", default.ipv6_prefix, |field| {
        field.whole(48..=128).and_then(|bits| u8::try_from(bits).ok())
    });
    Some(ClientAddress { trusted_proxies: trusted_proxies?, ipv6_prefix: ipv6_prefix? })
}

/// A list of addresses and networks; `of_all` warns of one that holds every address.
pub(super) fn networks(field: &Field<'_>, of_all: &str) -> Option<Vec<IpNet>> {
    const EXPECTED: &str = "an address or a network, like `10.0.0.0/8`";
    let items = field.list("a list of addresses and networks")?;
    every(items.iter().map(|item| {
        let network = item.parsed(EXPECTED, |text| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            address
                .or_else(|_| text.parse::<IpNet>())
                .map_err(|_| Misfit { message: "is neither an address nor a network".to_owned(), hint: None })
        })?;
        if network.prefix_len() == 0 {
            item.warn(of_all, None);
        } else if network.addr() != network.network() {
            item.warn(format!("has address bits beyond its length: it is the network {}", network.trunc()), None);
        }
        Some(network.trunc())
    }))
}

/// Reads `usage:`; the path.
pub(super) fn usage(field: &Field<'_>, customers: bool) -> Option<String> {
    const DEFAULT: &str = "/.tollgate/usage";
    let section = field.section(&["path"], &[])?;
    if !customers {
        let problem = Problem::error(field.key_place(), "shows customers where they stand, and the file names none");
        return field.fail(problem.expected("`customers:`, so that callers are known"));
    }
    section.get_or("path", DEFAULT.to_owned(), |field| {
        field.parsed("a path, like `/.tollgate/usage`", |text| {
            let canonical =
                path::canonical(text).map_err(|message| Misfit { message: message.to_owned(), hint: None })?;
            match canonical == text && text.len() > 1 {
                true => Ok(canonical.into_owned()),
                false => Err(Misfit {
                    message: "is not a path as requests are matched".to_owned(),
                    hint: (canonical.len() > 1).then(|| format!("did you mean `{canonical}`?")),
                }),
            }
        })
    })
}

/// Reads `headers:`.
pub(super) fn dialects(field: &Field<'_>) -> Option<Dialects> {
    let section = field.section(&["ietf", "x_ratelimit", "retry_after_jitter"], &[])?;
    let default = Dialects::default();
    let ietf = section.get_or("ietf", default.ietf, Field::flag);
    let x_ratelimit = section.get_or("x_ratelimit", default.x_ratelimit, |field| {
        field.choice(&[("off", None), ("delta", Some(Reset::Delta)), ("epoch", Some(Reset::Epoch))], &[])
    });
    let retry_after_jitter = section.get_with("retry_after_jitter", |field| {
        field.parsed("the most that is added to retry times, like `10%` or `5s`", scalar::jitter)
    });
    Some(Dialects { ietf: ietf?, x_ratelimit: x_ratelimit?, retry_after_jitter: retry_after_jitter? })
}

/// Reads `access_log:`.
pub(super) fn access_log(field: &Field<'_>) -> Option<AccessLog> {
    const EXPECTED: &str = "`off`, `full`, `{sample: 0.01}` or `{one_in: 100}`";
    if field.is_word() {
        return field.choice_or(&[("off", AccessLog::Off), ("full", AccessLog::Full)], &[], EXPECTED);
    }
    let section = field.mapping(EXPECTED)?;
    section.refuse_others(&["sample", "one_in"], &[]);
    match (section.get("sample"), section.get("one_in")) {
        (Some(sample), None) => {
            sample.parsed("a share above 0 and up to 1, like `0.01`", scalar::one_in).map(AccessLog::Sampled)
        }
        (None, Some(one_in)) => one_in.small_whole(1..=u32::MAX).map(AccessLog::Sampled),
        (None, None) if !section.is_empty() => None,
        _ => field.fail(Problem::error(field.place(), "does not say one thing").expected(EXPECTED)),
    }
}

/// Reads `request_head:`.
pub(super) fn request_head(field: &Field<'_>) -> Option<RequestHead> {
    let section = field.section(&["max_target", "max_header", "max_headers_total", "max_headers", "timeout"], &[])?;
    let default = RequestHead::default();
    // the HTTP parser underneath stops at about 1 MiB and at 256 fields
    let max_target = section.get_or("max_target", default.max_target, |field| field.size(64..=512 << 10));
    let max_header = section.get_or("max_header", default.max_header, |field| field.size(64..=512 << 10));
    let max_headers_total =
        section.get_or("max_headers_total", default.max_headers_total, |field| field.size(256..=512 << 10));
    let max_headers = section.get_or("max_headers", default.max_headers, |field| {
        field.whole(1..=256).and_then(|number| usize::try_from(number).ok())
    });
    let timeout = section.get_or("timeout", default.timeout, Field::positive_duration);
    Some(RequestHead {
        max_target: max_target?,
        max_header: max_header?,
        max_headers_total: max_headers_total?,
        max_headers: max_headers?,
        timeout: timeout?,
    })
}
