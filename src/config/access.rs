//! Readers of `access:` and `bypass:`, of the file and of a route, and of `cors:`.

use std::collections::BTreeSet;

use crate::config::key::named;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::server::networks;
use crate::config::settings::{ACCESS, BYPASS, CALLERS, CORS, ROUTE_CORS};
use crate::config::values::{check_ascii, method, path};
use crate::config::words;
use crate::ruleset::path::PathPattern;
use crate::ruleset::{Access, Bypass, Callers, Cors, Origins};

/// The warning for a network that holds every address.
const OF_ALL: Option<&str> = Some("holds every address");

/// Reads `access:`, `bypass:` and `cors:` of the file. A section that was refused counts as absent.
pub(super) fn read(top: &Section<'_>) -> (Access, Bypass, Option<Cors>) {
    let access = top.value_or("access", Access::default(), access);
    let bypass = top.value_or("bypass", Bypass::default(), |field| bypass(field, &Bypass::default()));
    let (cors, forwards_preflights) = top.optional("cors", cors).unzip();
    (access, Bypass { preflights: forwards_preflights.unwrap_or(false), ..bypass }, cors)
}

/// Reads `access:` of the file or of a route.
pub(super) fn access(field: &Field<'_>) -> Option<Access> {
    let section = field.section(&ACCESS)?;
    if section.is_empty() {
        return field.fail(field.error("is empty").expected("`allow`, `deny` or both"));
    }
    let allow = section.optional("allow", |field| listed(field, OF_ALL));
    // a section that denies every address closes the gateway or a route
    Some(Access { allow, deny: section.value_or("deny", Callers::default(), |field| listed(field, None)) })
}

/// Reads the callers of `allow` or `deny`. An empty list is an error: it has no effect, or the opposite of what it shows.
fn listed(field: &Field<'_>, of_all: Option<&str>) -> Option<Callers> {
    let section = field.section(&CALLERS)?;
    if section.is_empty() {
        return field.fail(field.error("is empty").expected("`addresses`, `customers` or both"));
    }
    Some(callers(&section, of_all))
}

fn callers(section: &Section<'_>, of_all: Option<&str>) -> Callers {
    let customers = section.value_or("customers", Vec::new(), |field| {
        let items = field.nonempty_list("a list of names of customers")?;
        unique_items(&items, |item| item.read(named), String::clone)
    });
    let addresses = section.value_or("addresses", Vec::new(), |field| {
        field.nonempty_list("a list of addresses and networks")?;
        networks(field, of_all)
    });
    Callers { addresses, customers: customers.into_iter().collect() }
}

/// Reads `bypass:` of the file, or of a route. A route's lists are added to those of the file in `common`.
pub(super) fn bypass(field: &Field<'_>, common: &Bypass) -> Option<Bypass> {
    let section = field.section(&BYPASS)?;
    if section.is_empty() {
        return field.fail(field.error("is empty").expected("`addresses`, `customers`, `methods` or `paths`"));
    }
    let Callers { addresses, customers } = callers(&section, OF_ALL);
    let methods = section.value_or("methods", Vec::new(), |field| {
        unique_items(&field.nonempty_list("a list of methods")?, method, String::clone)
    });
    let paths = section.value_or("paths", Vec::new(), |field| {
        let exempt = |item: &Field<'_>| {
            let (path, written) = path(item)?;
            if path == PathPattern::everything() {
                item.warn("matches every path, so that nothing is ever charged", None);
            }
            Some((path, written))
        };
        unique_items(&field.nonempty_list("a list of paths")?, exempt, |(_, written)| written.clone())
    });
    Some(Bypass {
        callers: Callers {
            addresses: [common.callers.addresses.as_slice(), &addresses].concat(),
            customers: common.callers.customers.union(&customers).cloned().collect(),
        },
        methods: [common.methods.as_slice(), &methods].concat(),
        paths: common.paths.iter().cloned().chain(paths.into_iter().map(|(path, _)| path)).collect(),
        preflights: common.preflights,
    })
}

const ORIGIN: &str = "a site as browsers write it, like `https://app.example.com` or `https://*.example.com`";

/// Reads `cors:` of the file; the second value says whether the gateway forwards preflights to the upstream.
fn cors(field: &Field<'_>) -> Option<(Cors, bool)> {
    const EXPECTED: &str = "`\"*\"` for every site, or a list of sites";
    let section = field.section(&CORS)?;
    let credentials = section.flag("credentials");
    let origins = section.required("origins", EXPECTED).and_then(|field| match field.is_list() {
        true => sites(&field),
        false => field.choice_or(&[("*", ())], EXPECTED).map(|()| Origins::Any),
    });
    let max_age = section.optional("max_age", Field::duration);
    let forwards = section.value_or("preflight", false, forwards);
    let origins = origins?;
    if credentials && origins == Origins::Any {
        let problem = Problem::error(field.place(), "lets every site read what is meant for one user");
        return field.fail(problem.expected("the sites by name where `credentials` is true"));
    }
    Some((Cors { origins, credentials, max_age }, forwards))
}

fn forwards(field: &Field<'_>) -> Option<bool> {
    field.choice(&[("answer", false), ("forward", true)])
}

/// Reads `cors:` of a route: whether the gateway forwards preflights to the upstream.
pub(super) fn route_cors(field: &Field<'_>, has_cors: bool) -> Option<bool> {
    let section = field.section(&ROUTE_CORS)?;
    section.must("preflight", |preflight| match forwards(preflight)? {
        false if !has_cors => preflight.fail(
            preflight.error("is only for files that say which sites may read answers").hint("add `cors:` to the file"),
        ),
        forwards => Some(forwards),
    })
}

/// One site: the whole origin, or the parts before and after its `*`.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Site {
    Exact(String),
    Below(String, String),
}

fn sites(field: &Field<'_>) -> Option<Origins> {
    let items = field.nonempty_list("a list of sites")?;
    let sites = unique_items(&items, |item| item.parsed(ORIGIN, site), Site::clone)?;
    let (mut exact, mut below) = (BTreeSet::new(), Vec::new());
    for site in sites {
        match site {
            Site::Exact(site) => drop(exact.insert(site)),
            Site::Below(before, after) => below.push((before, after)),
        }
    }
    Some(Origins::These { exact, below })
}

fn site(text: &str) -> Result<Site, InvalidValue> {
    let lower = text.to_ascii_lowercase();
    let Some((scheme, host)) = lower.split_once("://") else {
        let named = match text {
            "*" => Some("every site is `origins: \"*\"`, without a list".to_owned()),
            _ => text.contains('.').then(|| format!("did you mean `https://{text}`?")),
        };
        return Err(invalid("has no scheme").hint(named));
    };
    check_ascii(host)?;
    if host.trim_end_matches('/').contains('/') {
        return Err(invalid("has a path, which is no part of a site"));
    }
    if host.ends_with('/') {
        return Err(invalid("ends with a slash").hint(words::did_you_mean(text.trim_end_matches('/'))));
    }
    let usual = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    if !usual.is_empty() && host.ends_with(usual) {
        return Err(invalid("names the port that browsers leave out").hint(format!("leave `{usual}` out")));
    }
    let (star, name) = match host.strip_prefix("*.") {
        Some(domain) => (true, domain),
        None => (false, host),
    };
    let (name, port) = match name.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (name, None),
    };
    let bracketed = name.starts_with('[') && name.ends_with(']');
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || (bracketed && "[]:".contains(c));
    let name_fine = !name.is_empty() && name.chars().all(fine) && !name.starts_with('.') && !name.ends_with('.');
    let scheme_fine = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !name_fine || !scheme_fine || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(invalid("is not a site"));
    }
    match star {
        true => Ok(Site::Below(format!("{scheme}://"), host.trim_start_matches('*').to_owned())),
        false => Ok(Site::Exact(lower)),
    }
}
