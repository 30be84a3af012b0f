//! The configuration of Limitador: a list of limits, each with its conditions and the entries that it counts by.
//!
//! In Limitador, a limit applies to each descriptor that has the limit's entries, even if it has others. In tollgate, a
//! descriptor must match entry by entry: each set of entries in the limits becomes one, with all limits that apply.

use super::{Descriptor, DescriptorAction, Domain, MAX_WINDOW, NamedLimit, Names, add_new, domain_name};
use crate::config::key::named;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::settings::Kind::*;
use crate::config::settings::tables;
use crate::units::Nanos;

tables! {
    LIMIT "limitador" {
        namespace: Text("a name"), required, "The domain.";
        max_value: Whole(0, u64::MAX), required, "How many requests a window has.";
        seconds: Whole(1, MAX_WINDOW), required, "The length of a window.";
        conditions: List(&Text("a condition")), "When it applies.";
        variables: List(&Text("an entry")), "What it counts by.";
        name: Text("a name"), "Its name.";
        id: Text("a name"), "What it is found by.";
    }
}

/// A limit as the file writes it.
struct Rule {
    namespace: String,
    name: Option<String>,
    limit: u64,
    window: u64,
    /// The entries that must have these values.
    conditions: Vec<(String, String)>,
    /// The entries that the limit counts by.
    variables: Vec<String>,
}

/// The entries of a descriptor, with their values where conditions ask for them.
type Path = Vec<(String, Option<String>)>;

pub(super) fn read(top: &Field<'_>, names: &mut Names) -> Option<Vec<Domain>> {
    let items = top.nonempty_list("a list of limits")?;
    let rules = all_or_none(items.iter().map(rule))?;
    let carried: Vec<&Rule> = rules.iter().flatten().collect();
    let mut namespaces: Vec<&str> = Vec::new();
    add_new(&mut namespaces, carried.iter().map(|rule| rule.namespace.as_str()));
    let domains = namespaces.iter().filter_map(|namespace| {
        let rules: Vec<&Rule> = carried.iter().copied().filter(|rule| rule.namespace == *namespace).collect();
        let domain = domain(namespace, &rules, names);
        if domain.descriptors.is_empty() {
            let says = format!("the namespace `{namespace}` is left out: no limit says which entries descriptors have");
            let problem = Problem::warning(top.place(), says);
            let hint = "add `domains` with the descriptors that Envoy sends, and limits with `key: all`";
            top.findings().add(problem.hint(hint));
            return None;
        }
        Some(domain)
    });
    let domains: Vec<Domain> = domains.collect();
    if domains.is_empty() {
        return top.fail(top.error("holds no limit that can be carried over"));
    }
    top.warn(
        "limits hold for descriptors with these entries in this order and no others; Limitador looks for them in any order, \
         among others",
        "let Envoy send the entries as `domains` has them",
    );
    Some(domains)
}

/// Reads one limit; the inner `None` stands for a limit that cannot be carried over, which has a warning.
fn rule(item: &Field<'_>) -> Option<Option<Rule>> {
    let section = item.section(&LIMIT)?;
    let namespace = section.required("namespace", "a name").and_then(|field| domain_name(&field));
    let limit = section.required("max_value", "a whole number").and_then(|field| field.whole::<u64>());
    let seconds = section.required("seconds", "a whole number").and_then(|field| field.whole::<u64>());
    let name = section.get_with("name", |field| field.parsed("a name", named));
    let conditions = listed(&section, "conditions", "a condition", condition);
    let variables = listed(&section, "variables", "an entry", |text| entry(text).map(str::to_owned));
    let (namespace, limit, window, name) = (namespace?, limit?, seconds?, name?);
    let (Some(conditions), Some(listed)) = (conditions?, variables?) else { return Some(None) };
    let mut variables = Vec::new();
    add_new(&mut variables, listed);
    Some(Some(Rule { namespace, name, limit, window, conditions, variables }))
}

/// Reads the texts of a list with `read`; the inner `None` means that `read` rejects one of them, which has a warning.
fn listed<T>(
    section: &Section<'_>,
    name: &str,
    expected: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Option<Option<Vec<T>>> {
    let Some(field) = section.get(name).filter(|field| !field.is_null()) else { return Some(Some(Vec::new())) };
    let read = all_or_none(field.list(&format!("a list, each item {expected}"))?.iter().map(|item| {
        let read = read(&item.parsed(expected, named)?);
        if read.is_none() {
            item.warn(
                format!("cannot be carried over, and the limit is left out: {}", item.describe()),
                "descriptors are found by `KEY == 'VALUE'` and counted by `KEY`; write what Envoy sends as entries, and a limit for them",
            );
        }
        Some(read)
    }))?;
    Some(read.into_iter().collect())
}

/// Parses `KEY == 'VALUE'`.
fn condition(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once("==")?;
    let value = value.trim();
    let quoted = ['\'', '"'].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let value = quoted.or_else(|| entry(value))?;
    let is_one = !value.contains(['\'', '"', '\\']);
    is_one.then_some((entry(key)?.to_owned(), value.to_owned()))
}

/// Parses `KEY`, `descriptors[0]['KEY']` or `descriptors[0].KEY`.
fn entry(text: &str) -> Option<&str> {
    let text = text.trim();
    let key = match text.strip_prefix("descriptors[0]") {
        Some(rest) => rest.strip_prefix('.').or_else(|| {
            let quoted = rest.strip_prefix('[')?.strip_suffix(']')?;
            ['\'', '"'].into_iter().find_map(|quote| quoted.strip_prefix(quote)?.strip_suffix(quote))
        })?,
        None => text,
    };
    let is_name = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-:/".contains(c));
    is_name.then_some(key)
}

impl Rule {
    fn path(&self) -> Path {
        let asked = self.conditions.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
        let counted = self.variables.iter().filter(|variable| self.conditions.iter().all(|(key, _)| key != *variable));
        asked.chain(counted.map(|variable| (variable.clone(), None))).collect()
    }

    /// Whether the limit applies to descriptors with the entries of `path`.
    fn applies(&self, path: &Path) -> bool {
        let has = |(key, value): &(String, String)| path.iter().any(|(of, is)| of == key && is.as_ref() == Some(value));
        self.conditions.iter().all(has)
            && self.variables.iter().all(|variable| path.iter().any(|(key, _)| key == variable))
    }
}

fn domain(namespace: &str, rules: &[&Rule], names: &mut Names) -> Domain {
    let mut limits = Vec::new();
    let mut named: Vec<Option<String>> = Vec::new();
    for rule in rules {
        let name = (rule.limit > 0).then(|| match &rule.name {
            Some(name) => names.of(namespace, std::iter::once((name.as_str(), None))),
            None => names.of(namespace, rule.path().iter().map(|(key, value)| (key.as_str(), value.as_deref()))),
        });
        if let Some(name) = &name {
            let window = Nanos::from_secs(rule.window).to_exact_string();
            let algorithm = format!("algorithm: quota_reset, limit: {}, window: {window}", rule.limit);
            limits.push(NamedLimit::of_descriptor(name, algorithm, &rule.variables, Vec::new()));
        }
        named.push(name);
    }
    let mut paths: Vec<Path> = Vec::new();
    for path in rules.iter().map(|rule| rule.path()).filter(|path| !path.is_empty()) {
        let is_known = |known: &Path| known.len() == path.len() && path.iter().all(|entry| known.contains(entry));
        if !paths.iter().any(is_known) {
            paths.push(path);
        }
    }
    let mut descriptors = Vec::new();
    for path in &paths {
        let applying: Vec<&Option<String>> =
            rules.iter().zip(&named).filter(|(rule, _)| rule.applies(path)).map(|(_, name)| name).collect();
        let end = match applying.iter().any(|name| name.is_none()) {
            true => DescriptorAction::Denied,
            false => DescriptorAction::Limits(applying.into_iter().flatten().cloned().collect()),
        };
        insert(&mut descriptors, path, end);
    }
    // a limit to which no descriptor leads stays in the list, unused
    Domain { name: namespace.to_owned(), limits, descriptors }
}

fn insert(descriptors: &mut Vec<Descriptor>, path: &[(String, Option<String>)], end: DescriptorAction) {
    let Some(((key, value), rest)) = path.split_first() else { return };
    let is_there = |known: &Descriptor| known.key == *key && known.value == *value;
    let position = descriptors.iter().position(is_there).unwrap_or_else(|| {
        descriptors.push(Descriptor { key: key.clone(), value: value.clone(), ..Descriptor::default() });
        descriptors.len().saturating_sub(1)
    });
    let Some(descriptor) = descriptors.get_mut(position) else { return };
    match rest {
        [] => descriptor.end = Some(end),
        rest => insert(&mut descriptor.next, rest, end),
    }
}
