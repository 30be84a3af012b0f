//! The sections about tollgate itself: client addresses, response headers, logging, bounds.

use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};

use ipnet::{IpNet, Ipv4Net};

use crate::config::read::{Field, Section, all_or_none};
use crate::config::scalar::{self, invalid};
use crate::config::settings::{ACCESS_LOG, CLIENT_ADDRESS, HEADERS, REQUEST_BODY, REQUEST_HEAD, USAGE};
use crate::ruleset::path::plain_signs;
use crate::ruleset::{
    AccessLog, AddressHeader, BodyRules, ClientAddress, HeadLimits, MinBodyRate, RateLimitHeaders, ResetFormat,
    TrustedPeers,
};
use crate::units::Prefixes;

/// Reads `client_address:`.
pub(super) fn client_address(field: &Field<'_>) -> Option<ClientAddress> {
    let section = field.section(&CLIENT_ADDRESS)?;
    let trusted_proxies = section.get_or("trusted_proxies", TrustedPeers::default(), |field| {
        peers(field, "trusts everybody, so that any client can choose its own address")
    });
    let header = section.get_or("header", AddressHeader::default(), |field| {
        Some(match field.request_header_name()? {
            name if name == "x-forwarded-for" => AddressHeader::XForwardedFor,
            name if name == "forwarded" => AddressHeader::Forwarded,
            name => AddressHeader::Single(name),
        })
    });
    let hops = section.get_with("hops", |field| field.whole().map(NonZeroUsize::new)).map(Option::flatten);
    let prefixes = Prefixes { ipv4: section.whole("ipv4_prefix"), ipv6: section.whole("ipv6_prefix") };
    let (trusted_proxies, header, hops) = (trusted_proxies?, header?, hops?);
    for field in ["header", "hops"].into_iter().filter_map(|key| section.get(key)) {
        if trusted_proxies.is_empty() {
            let problem = field.key_error("is believed from nobody: any client could choose its address");
            field.findings().add(problem.expected("the proxies that write it, in `trusted_proxies`"));
        }
    }
    if let (AddressHeader::Single(name), Some(field)) = (&header, section.get("hops")) {
        let problem = field.key_error(format!("cannot be counted: `{name}` holds one address"));
        return field.fail(problem.expected("`header: x-forwarded-for` or `header: forwarded`, or no `hops`"));
    }
    Some(ClientAddress { trusted_proxies, header, hops, prefixes })
}

/// Reads a list like [`networks`], in which `unix` stands for peers that connect over a socket path.
pub(super) fn peers(field: &Field<'_>, of_all: &str) -> Option<TrustedPeers> {
    let items = field.list("a list of addresses and networks, or `unix`")?;
    let (unix, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| {
        item.is_scalar() && item.scalar_value(&item.expected()).is_some_and(|word| word.text == "unix")
    });
    let networks = all_or_none(others.into_iter().map(|item| network(item, Some(of_all))))?;
    Some(TrustedPeers { networks, unix: !unix.is_empty() })
}

/// Reads a list of addresses and networks; `of_all` is the warning for a network that holds every address, if there is one.
pub(super) fn networks(field: &Field<'_>, of_all: Option<&str>) -> Option<Vec<IpNet>> {
    let items = field.list("a list of addresses and networks")?;
    all_or_none(items.iter().map(|item| network(item, of_all)))
}

fn network(item: &Field<'_>, of_all: Option<&str>) -> Option<IpNet> {
    let network = item.read(|text| {
        let address = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>());
        address.map(canonical).map_err(|_| invalid("is neither an address nor a network"))
    })?;
    if let Some(of_all) = of_all.filter(|_| network.prefix_len() == 0) {
        item.warn(of_all, None);
    } else if network.addr() != network.network() {
        item.warn(format!("has address bits beyond its length: it is the network {}", network.trunc()), None);
    }
    Some(network.trunc())
}

/// The IPv4 network that an IPv4-mapped one stands for: clients with mapped addresses count as IPv4 clients.
fn canonical(network: IpNet) -> IpNet {
    const MAPPED: u8 = 96;
    let mapped = match network {
        IpNet::V4(_) => None,
        IpNet::V6(mapped) => mapped.addr().to_ipv4_mapped().zip(mapped.prefix_len().checked_sub(MAPPED)),
    };
    let ipv4 = mapped.and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    ipv4.map_or(network, IpNet::V4)
}

/// Reads `usage:`; returns the path.
pub(super) fn usage(field: &Field<'_>, customers: bool) -> Option<String> {
    let section = field.section(&USAGE)?;
    if !customers {
        let problem = field.key_error("shows customers where they stand, and the file names none");
        return field.fail(problem.expected("`customers:`, so that callers are known"));
    }
    Some(section.text("path", |field| match field.plain_path()? {
        path if path == "/" => field.fail(field.error("is the path of other requests").expected(field.expected())),
        path => Some(plain_signs(&path).into_owned()),
    }))
}

/// Reads `headers:`.
pub(super) fn dialects(top: &Section<'_>) -> RateLimitHeaders {
    let section = top.below("headers", &HEADERS);
    RateLimitHeaders {
        ietf: section.flag("ietf"),
        ietf_06: section.flag("ietf_06"),
        x_ratelimit: section.value_or("x_ratelimit", Some(ResetFormat::Delta), |field| {
            field.choice(&[("off", None), ("delta", Some(ResetFormat::Delta)), ("epoch", Some(ResetFormat::Epoch))])
        }),
        retry_after_jitter: section.optional("retry_after_jitter", |field| {
            field.parsed("the most that is added to retry times, like `10%` or `5s`", scalar::jitter)
        }),
    }
}

/// Reads `path_case:`: whether routes take paths in any case of ASCII letters.
pub(super) fn ignores_path_case(top: &Section<'_>) -> bool {
    top.value_or("path_case", false, |field| field.choice(&[("exact", false), ("ignore", true)]))
}

/// Reads `access_log:`.
pub(super) fn access_log(field: &Field<'_>) -> Option<AccessLog> {
    const EXPECTED: &str = "`off`, `full`, `{sample: 0.01}` or `{one_in: 100}`";
    if field.is_scalar() {
        return field.choice_or(&[("off", AccessLog::Off), ("full", AccessLog::Full)], EXPECTED);
    }
    let section = field.section_or(&ACCESS_LOG, EXPECTED)?;
    match section.one_of(&["sample", "one_in"], EXPECTED)? {
        ("sample", sample) => sample.read(scalar::one_in).map(AccessLog::Sampled),
        (_, one_in) => one_in.whole().map(AccessLog::Sampled),
    }
}

/// Reads `request_head:`.
pub(super) fn request_head(top: &Section<'_>) -> HeadLimits {
    let section = top.below("request_head", &REQUEST_HEAD);
    // the HTTP parser underneath stops at about 1 MiB and at 256 fields
    HeadLimits {
        max_target: section.size("max_target"),
        max_header: section.size("max_header"),
        max_headers_total: section.size("max_headers_total"),
        max_headers: section.whole("max_headers"),
        timeout: section.duration("timeout"),
    }
}

/// Reads `request_body:`.
pub(super) fn request_body(top: &Section<'_>) -> BodyRules {
    const EXPECTED: &str = "the least that has to come, like `100B/s`, or `off`";
    let section = top.below("request_body", &REQUEST_BODY);
    let rate = |text: &str| match text {
        "off" => Ok(None),
        text => match NonZeroU64::new(scalar::byte_rate(text)?) {
            None => Err(invalid("must be more than nothing").hint("write `off` where any pace will do")),
            rate => Ok(rate),
        },
    };
    let rate = section.value("min_rate", |field| field.parsed(EXPECTED, rate), rate);
    if let (None, Some(field)) = (rate, section.get("grace")) {
        field.warn("has no effect: `min_rate` is off", None);
    }
    let grace = section.duration("grace");
    let min_rate = rate.map(|bytes_per_second| MinBodyRate { bytes_per_second, grace });
    BodyRules { min_rate, max_held: section.size("max_held") }
}
