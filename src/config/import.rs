//! Reads configurations of other rate limit services and proxies, and writes them as a tollgate configuration: `domains` or
//! routes, with their limits.
//!
//! A setting that tollgate cannot carry over becomes a note with its place, and a comment in the written file.

use std::collections::HashSet;

use self::front::NamedLimit;
use self::output::{block, item, lines, list, scalar, sections};
use crate::config::document;
use crate::config::findings::Findings;
use crate::config::problem::{Mark, Problem, Problems, Warning};
use crate::config::read::{Field, ReadContext, Section};
use crate::config::values::check_name;

mod envoy;
mod front;
mod haproxy;
mod kong;
mod limitador;
mod matches;
mod nginx;
mod output;
mod ratelimit;
mod traefik;
mod yaml;

/// The longest window, in seconds: a hundred years.
const MAX_WINDOW: u64 = 100 * 365 * 86_400;

/// The configurations that have been read so far.
#[derive(Debug, Default)]
pub struct Import {
    domains: Vec<Domain>,
    front: Option<front::ProxyConfig>,
    names: Names,
    notes: Vec<Warning>,
}

/// The content of one file.
enum Content {
    ProxyConfig(Box<front::ProxyConfig>),
    Domains(Vec<Domain>),
}

/// A domain with its descriptors and their limits.
#[derive(Debug)]
struct Domain {
    name: String,
    limits: Vec<NamedLimit>,
    descriptors: Vec<Descriptor>,
}

#[derive(Debug, Default)]
struct Descriptor {
    key: String,
    value: Option<String>,
    /// The decision about a descriptor that ends here; `None` where no descriptor ends here.
    end: Option<DescriptorAction>,
    next: Vec<Self>,
}

/// The limits of a descriptor, or its denial.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DescriptorAction {
    Limits(Vec<String>),
    Denied,
}

/// An error in the syntax of a file, at its position.
type SyntaxError = (Mark, &'static str);

/// The names of limits that are taken; each is unique.
#[derive(Debug, Default)]
struct Names(HashSet<String>);

impl Import {
    /// Reads a configuration of envoyproxy/ratelimit, of Limitador or of a proxy. Findings show `file` as the file's name.
    pub fn add(&mut self, text: &str, file: &str) -> Result<(), Problems> {
        let findings = Findings::new(file);
        let read = match text {
            text if haproxy::is_of_this_format(text) => haproxy::read(text, &findings).map(Content::of_proxy),
            text if nginx::is_of_this_format(text) => nginx::read(text, &findings).map(Content::of_proxy),
            text => read_yaml(text, &findings, &mut self.names),
        };
        let mut read = read.filter(|read| self.is_new(read, &findings));
        if let Some(Content::ProxyConfig(front)) = &mut read {
            front.settle(&findings);
        }
        let (read, notes) = findings.finish(read)?;
        match read {
            Content::ProxyConfig(front) => self.front = Some(*front),
            Content::Domains(domains) => self.domains.extend(domains),
        }
        self.notes.extend(notes);
        Ok(())
    }

    fn is_new(&self, read: &Content, findings: &Findings) -> bool {
        let place = findings.place(Mark::START, "");
        let domains = match read {
            Content::Domains(domains) if self.front.is_none() => domains,
            Content::ProxyConfig(_) if self.front.is_none() && self.domains.is_empty() => return true,
            Content::Domains(_) | Content::ProxyConfig(_) => {
                findings.add(Problem::error(place, "has to be imported alone: a proxy's configuration is one file"));
                return false;
            }
        };
        let known = domains.iter().find(|domain| self.domains.iter().any(|known| known.name == domain.name));
        if let Some(domain) = known {
            let message = format!("holds the domain `{}`, which another file holds already", domain.name);
            findings.add(Problem::error(place, message).hint("write both into one file, with one list of descriptors"));
        }
        known.is_none()
    }

    /// Notes about the settings that are not carried over unchanged.
    pub fn notes(&self) -> &[Warning] {
        &self.notes
    }

    /// The configuration of a gateway that serves as the rate limit service, or in place of the proxy.
    pub fn to_yaml(&self) -> String {
        let mut text = if self.front.is_some() { FRONT_HEAD } else { HEAD }.to_owned();
        if !self.notes.is_empty() {
            text.push_str("#\n# Not carried over as it was:\n");
        }
        for note in &self.notes {
            let place = &note.place;
            let mark = place.mark.map(|mark| format!("{}:{}: ", mark.line, mark.column)).unwrap_or_default();
            let path = if place.path.is_empty() { String::new() } else { format!("{}: ", place.path) };
            let line = format!("{}:{mark}{path}{}", place.file, note.message);
            text += &format!("#   {}\n", line.replace(char::is_control, " "));
        }
        let sections = self.front.as_ref().map_or_else(|| self.domain_sections(), front::ProxyConfig::to_yaml);
        text + &sections
    }

    /// The sections of a gateway that serves as the rate limit service.
    fn domain_sections(&self) -> String {
        let limits: Vec<String> = self.domains.iter().flat_map(|of| &of.limits).map(NamedLimit::line).collect();
        let limits = (!limits.is_empty()).then(|| block("limits", limits));
        let domain = |of: &Domain| {
            let descriptors = block("descriptors", of.descriptors.iter().flat_map(Descriptor::lines));
            block(&scalar(&of.name), descriptors)
        };
        let domains = block("domains", self.domains.iter().flat_map(domain));
        LISTENERS.to_owned() + &sections(limits.into_iter().chain([domains]))
    }
}

const EXPECTED: &str = "a mapping with `domain` and `descriptors` (envoyproxy/ratelimit), a list of limits with `namespace` (Limitador), \
                        a configuration of Envoy (`static_resources`), Kong (`_format_version`) or Traefik (its dynamic \
                        configuration in YAML, with `http`), nginx's `server` blocks, or HAProxy's sections";

/// A check whether a file belongs to a proxy, and the reader for it.
type Proxy = (fn(&Section<'_>) -> bool, fn(&Field<'_>) -> Option<front::ProxyConfig>);

const PROXIES: [Proxy; 3] = [
    (envoy::is_of_this_format, envoy::read),
    (kong::is_of_this_format, kong::read),
    (traefik::is_of_this_format, traefik::read),
];

const HEAD: &str = "\
# Written by `tollgate import`. docs/decisions.md says what tollgate does otherwise than the service that this was read from.
# What is counted is counted in this gateway; several share it by `cluster`, or by `store` and `mode: shared`.
";

const FRONT_HEAD: &str = "\
# Written by `tollgate import`. docs/import.md says what tollgate does otherwise than the proxy that this was read from.
";

const LISTENERS: &str = "
listeners:
  - { address: 127.0.0.1:8084, serves: rate_limit_service }

# The proxies that ask.
client_address: { trusted_proxies: [127.0.0.1] }
";

impl Content {
    fn of_proxy(front: front::ProxyConfig) -> Self {
        Self::ProxyConfig(Box::new(front))
    }
}

impl Descriptor {
    fn lines(&self) -> Vec<String> {
        let end = match &self.end {
            Some(DescriptorAction::Limits(limits)) => ("limits", Some(list(limits.iter().map(|name| scalar(name))))),
            Some(DescriptorAction::Denied) => ("deny", Some("true".to_owned())),
            None => ("limits", None),
        };
        let own = lines([("key", Some(scalar(&self.key))), ("value", self.value.as_deref().map(scalar)), end]);
        let next = (!self.next.is_empty()).then(|| block("descriptors", self.next.iter().flat_map(Self::lines)));
        item(own.chain(next.into_iter().flatten()))
    }
}

impl Names {
    /// An unused name for the limit of descriptors with these entries.
    fn of<'e>(&mut self, domain: &str, entries: impl Iterator<Item = (&'e str, Option<&'e str>)>) -> String {
        /// Leaves room for a number at the end.
        const MAX_NAME: usize = 56;
        let mut name = domain.to_owned();
        for (key, value) in entries {
            name.push('.');
            name.push_str(key);
            if let Some(value) = value {
                name.push('_');
                name.push_str(value);
            }
        }
        let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.:/".contains(c) { c } else { '_' };
        let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let name: String =
            if name.is_empty() { "unnamed".to_owned() } else { name.chars().map(allowed).take(MAX_NAME).collect() };
        let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !self.0.contains(name));
        let name = free.unwrap_or(name);
        self.0.insert(name.clone());
        name
    }
}

/// Reads a YAML file: finds out which service or proxy it configures.
fn read_yaml(text: &str, findings: &Findings, names: &mut Names) -> Option<Content> {
    // in these files `${NAME}` is plain text
    let verbatim = |name: &str| Some(format!("${{{name}}}"));
    let refuse = |message: &str| {
        findings.add(Problem::error(findings.place(Mark::START, ""), message).expected(EXPECTED));
        None
    };
    if text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#')) {
        return refuse("the file is empty");
    }
    let is_table = |line: &str| {
        line.strip_prefix('[').is_some_and(|rest| rest.starts_with(char::is_alphabetic) && line.ends_with(']'))
    };
    if text.lines().any(|line| is_table(line) || line.starts_with("apiVersion: traefik")) {
        return refuse("is TOML, or holds resources of Kubernetes: neither is read");
    }
    let root = document::parse(text, 0, findings)?;
    let context = ReadContext { findings, environment: &verbatim };
    let top = Field::root(&context, &root);
    let section = top.as_mapping();
    let proxy =
        section.as_ref().and_then(|section| PROXIES.iter().find(|(is_of_this_format, _)| is_of_this_format(section)));
    match (section, proxy) {
        _ if top.is_list() => limitador::read(&top, names).map(Content::Domains),
        (_, Some((_, read))) => read(&top).map(Content::of_proxy),
        (Some(section), None) if section.has("domain") || section.has("descriptors") => {
            ratelimit::read(&top, names).map(|domain| Content::Domains(vec![domain]))
        }
        _ => top.fail(top.error("is no configuration that can be read here").expected(EXPECTED)),
    }
}

/// What a parser read, or a finding that says why it read nothing.
fn parsed<T>(read: Result<T, SyntaxError>, findings: &Findings) -> Option<T> {
    read.map_err(|(mark, message)| findings.add(Problem::error(findings.place(mark, ""), message))).ok()
}

/// The name of a domain, which is also its name in Envoy's configuration.
fn domain_name(field: &Field<'_>) -> Option<String> {
    const EXPECTED: &str = "the name of a domain";
    let name = field.scalar_value(EXPECTED)?.text.into_owned();
    match check_name(&name) {
        Ok(()) => Some(name),
        Err(invalid) => {
            let hint = "rename it here and in the configuration of Envoy";
            field.fail(field.error(invalid.message).expected(EXPECTED).hint(hint))
        }
    }
}

/// Adds the items that `known` lacks.
fn add_new<T: PartialEq>(known: &mut Vec<T>, items: impl IntoIterator<Item = T>) {
    for item in items {
        if !known.contains(&item) {
            known.push(item);
        }
    }
}

#[cfg(test)]
mod tests;
