//! The changes when one configuration replaces another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::ConfigPart;
use crate::cli::source::{self, RestartRequired, Source};
use crate::config::{SectionValues, StateSettings};
use crate::customers::directory::GroupTable;
use crate::customers::{Customer, Directory};
use crate::ruleset::groups::Group;
use crate::ruleset::overrides::{Override, Overrides};
use crate::ruleset::words::{self, DescriptionLine};
use crate::ruleset::{PlanId, Ruleset, changes};
use crate::runtime::config_source::CompiledConfig;
use crate::units::Nanos;

/// The most names in one line of the report.
const MAX_NAMES: usize = 20;

/// The changes when one configuration replaces another.
pub(super) struct ChangeReport {
    /// The number of changes, in one line.
    pub(super) summary: String,
    pub(super) parts: Vec<ConfigPart>,
    /// Whether a running gateway refuses the file, so that it has to be restarted.
    pub(super) needs_restart: bool,
}

/// The effects of a changed section on clients, requests in flight and keys.
const EFFECTS: [(&str, &str); 9] = [
    ("client_address", "keys of addresses that are read in another way start fresh"),
    ("connections", "open connections stay"),
    ("access", "other callers are let in or kept out"),
    ("headers", "clients read other header fields"),
    ("path_case", "requests in another case take other routes"),
    ("request_head", "other requests are refused"),
    ("request_body", "slow uploads end sooner or later"),
    ("prices", "requests that come from then on cost other amounts"),
    ("customers", "a caller who becomes another customer, or anonymous, has other keys"),
];

/// The sections that are compared by their meaning instead of their text.
const COMPARED_APART: [&str; 5] = ["workers", "store", "state", "limits", "plans"];

/// The values that need a restart, in sections whose other values do not.
const NEEDS_RESTART: [(&str, &str); 6] = [
    ("admin", "address"),
    ("listener", "mode"),
    ("cluster", "self"),
    ("cluster", "listen"),
    ("cluster", "timeout"),
    ("cluster", "secret_file"),
];

/// Stands for a value that is not shown.
const HIDDEN: &str = "...";

impl ChangeReport {
    /// The changes when `after` replaces `before`, the file at `path`.
    pub(super) fn new(path: &Path, before: &Source, after: &Source) -> Self {
        let fixed = before.fixed.changes(&after.fixed);
        let needs_restart = !fixed.is_empty();
        let (old, new) = (section_values(before), section_values(after));
        let (was, is) = (&before.parts.rules.ruleset, &after.parts.rules.ruleset);
        let (limits, untouched) = limits((was, &old), (is, &new));
        let parts = fixed.into_iter().map(of_fixed).chain(limits);
        let parts = parts.chain(plans(was, is)).chain(sections(&old, &new)).chain(swapped_routes(was, is));
        let customers = customers((&before.parts.rules, &old), (&after.parts.rules, &new));
        let parts = parts.chain(customers).chain(groups(&before.parts.rules, &after.parts.rules));
        let parts: Vec<ConfigPart> = parts.chain(state(before.state.as_ref(), after.state.as_ref())).collect();
        let untouched = match untouched {
            1 => "1 limit untouched".to_owned(),
            count => format!("{count} limits untouched"),
        };
        let changed = match parts.len() {
            0 => "nothing changes".to_owned(),
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        };
        Self { summary: format!("against {}: {changed}; {untouched}", path.display()), parts, needs_restart }
    }
}

fn of_fixed(RestartRequired { path, before, after, what }: RestartRequired) -> ConfigPart {
    ConfigPart {
        heading: format!("{path}: needs a restart; a gateway that runs refuses the whole file"),
        lines: vec![(what.to_owned(), format!("{before} -> {after}"))],
    }
}

fn part(kind: &str, name: &str, words: &str, lines: Vec<DescriptionLine>) -> ConfigPart {
    let heading = if name.is_empty() { format!("{kind}: {words}") } else { format!("{kind} {name}: {words}") };
    ConfigPart { heading, lines }
}

/// The changes of limits, and how many limits do not change.
fn limits(
    (before, old): (&Ruleset, &[SectionValues]),
    (after, new): (&Ruleset, &[SectionValues]),
) -> (Vec<ConfigPart>, usize) {
    let (mut parts, mut untouched) = (Vec::new(), 0);
    for (limit, change) in after.limits.iter().zip(changes::limit_changes(before, after)) {
        let lines = match before.limits.iter().find(|was| was.name == limit.name) {
            None => after.describe(limit),
            Some(was) => {
                let is_parameter = |path: &str| {
                    let algorithms = [was.algorithm, limit.algorithm];
                    let mut parameters = algorithms.iter().flat_map(|algorithm| algorithm.parameters());
                    path.starts_with("plans.") || parameters.any(|parameter| parameter.name == path)
                };
                let mut settings = differences(find(old, "limits", &limit.name), find(new, "limits", &limit.name));
                settings.retain(|(path, _)| !is_parameter(path));
                [changes::parameters((before, was), (after, limit)), settings].concat()
            }
        };
        match change.describe() {
            None if lines.is_empty() => untouched += 1,
            words => parts.push(part("limit", &limit.name, words.unwrap_or("keeps what is used"), lines)),
        }
    }
    const GONE: &str = "is gone; what is used is kept until it would be whole again, in case the limit comes back";
    let gone = before.limits.iter().filter(|was| !after.limits.iter().any(|limit| limit.name == was.name));
    parts.extend(gone.map(|limit| part("limit", &limit.name, GONE, Vec::new())));
    (parts, untouched)
}

fn plans(before: &Ruleset, after: &Ruleset) -> Vec<ConfigPart> {
    let new =
        after.plans.iter().enumerate().filter(|(_, plan)| !before.plans.contains(plan)).map(|(position, plan)| {
            let limits = after.limits.iter().filter(|limit| limit.candidate_of.is_none());
            let lines = limits.map(|limit| (limit.name.clone(), limit.describe(Some(PlanId(position)))));
            part("plan", plan, "is new", lines.collect())
        });
    let gone = before.plans.iter().filter(|plan| !after.plans.contains(plan));
    new.chain(gone.map(|plan| part("plan", plan, "is gone", Vec::new()))).collect()
}

/// The values of a configuration, with its listeners by the addresses that they are at, however the file writes them.
fn section_values(source: &Source) -> Vec<SectionValues> {
    let mut sections = source.text.section_values(&source::environment);
    let listeners = sections.iter_mut().filter(|values| values.section == "listeners");
    for (values, listener) in listeners.zip(&source.fixed.server.listeners) {
        values.name = listener.address.to_string();
    }
    sections
}

/// The routes that come in another order, where their order decides.
fn swapped_routes(before: &Ruleset, after: &Ruleset) -> Option<ConfigPart> {
    let swapped = changes::swapped_routes(before, after).into_iter();
    let swapped = some(swapped.map(|(first, second)| format!("{first} before {second}")))?;
    let words = "come in another order: of two that match a request equally well the first takes it";
    Some(part("routes", "", words, vec![("now".to_owned(), swapped)]))
}

/// The changes of the sections that are compared by their text.
fn sections(old: &[SectionValues], new: &[SectionValues]) -> Vec<ConfigPart> {
    let gone = old.iter().filter(|was| find(new, &was.section, &was.name).is_none()).map(|was| (Some(was), None));
    let kept = new.iter().map(|is| (find(old, &is.section, &is.name), Some(is)));
    kept.chain(gone).filter_map(|(was, is)| section(was, is)).collect()
}

fn section(was: Option<&SectionValues>, is: Option<&SectionValues>) -> Option<ConfigPart> {
    let SectionValues { section, name, .. } =
        is.or(was).filter(|values| !COMPARED_APART.contains(&&*values.section))?;
    let kind = match section.as_str() {
        "routes" => "route",
        "upstreams" => "upstream",
        "listeners" => "listener",
        section => section,
    };
    match (was, is) {
        // needs a restart, which the report says already
        (Some(_), None) | (None, Some(_)) if ["listener", "cluster"].contains(&kind) => None,
        (Some(_), None) if kind == "route" => {
            const GONE: &str = "is gone: its requests take another route that matches, or are answered 404";
            Some(part(kind, name, GONE, Vec::new()))
        }
        (Some(_), None) if kind == "upstream" => Some(part(kind, name, "is gone", Vec::new())),
        (None, Some(is)) if !name.is_empty() => {
            let text = |path, text| shown(section, path, text).unwrap_or_else(|| HIDDEN.to_owned());
            let lines = is.values.iter().map(|(path, value)| (path.clone(), text(path, value)));
            Some(part(kind, name, "is new", lines.collect()))
        }
        _ => {
            let mut lines = differences(was, is);
            lines.retain(|(path, _)| !NEEDS_RESTART.contains(&(kind, path.as_str())));
            let effect = EFFECTS.iter().find(|(section, _)| *section == kind);
            let words = effect.map_or_else(|| "changes".to_owned(), |(_, effect)| format!("changes: {effect}"));
            (!lines.is_empty()).then(|| part(kind, name, &words, lines))
        }
    }
}

fn find<'o>(sections: &'o [SectionValues], section: &str, name: &str) -> Option<&'o SectionValues> {
    sections.iter().find(|values| values.section == section && values.name == name)
}

/// The values that differ, as they were and as they will be.
fn differences(was: Option<&SectionValues>, is: Option<&SectionValues>) -> Vec<DescriptionLine> {
    let value = |of: Option<&SectionValues>, path: &str| of.and_then(|of| of.values.get(path)).cloned();
    let section = was.or(is).map_or("", |of| &of.section);
    let paths: BTreeSet<&String> = was.iter().chain(&is).flat_map(|of| of.values.keys()).collect();
    let lines = paths.into_iter().filter_map(|path| {
        let (was, is) = (value(was, path), value(is, path));
        let words = |value: &Option<String>| {
            value.as_ref().map_or(Some("default".to_owned()), |text| shown(section, path, text))
        };
        let line = match (words(&was), words(&is)) {
            (Some(was), Some(is)) => format!("{was} -> {is}"),
            _ => "changes".to_owned(),
        };
        (was != is).then(|| (if path.is_empty() { "value".to_owned() } else { path.to_string() }, line))
    });
    lines.collect()
}

/// The text of a value. `None` for values that may be secrets (header fields, query parameters, paths at receivers), and
/// for long texts.
fn shown(section: &str, path: &str, text: &str) -> Option<String> {
    const MAX_SHOWN: usize = 100;
    let is_of_receiver = ["webhook", "usage_events", "traces"].contains(&section) && path == "path";
    let may_be_secret = is_of_receiver || path.contains("headers") || path.starts_with("match.query");
    (!may_be_secret && text.len() <= MAX_SHOWN && !text.contains('\n')).then(|| without_queries(text))
}

/// The text, where URLs have no query: it may hold a secret.
fn without_queries(text: &str) -> String {
    let items = text.split(", ").map(|item| match item.split_once('?') {
        Some((url, _)) if url.contains("://") => format!("{url}?{HIDDEN}"),
        _ => item.to_owned(),
    });
    items.collect::<Vec<_>>().join(", ")
}

/// The changes of the state file, which keeps used tokens over restarts.
fn state(before: Option<&StateSettings>, after: Option<&StateSettings>) -> Option<ConfigPart> {
    let file = |state: Option<&StateSettings>| state.map_or_else(|| "none".to_owned(), |state| state.file.path.clone());
    let (words, path, was, is) = match (before, after) {
        (None, None) => return None,
        (Some(old), Some(new)) if old.file.path == new.file.path => {
            let words = "after a crash what is used is as old as the last snapshot";
            (words, "state.every", old.every.to_string(), new.every.to_string())
        }
        (None, Some(_)) => ("restarts do not forget what is used any more", "state.file", file(before), file(after)),
        (Some(_), None) => ("the next restart forgets what is used", "state.file", file(before), file(after)),
        (Some(_), Some(_)) => {
            let words = "a reload goes on in the new file; a restart in the place of a reload forgets what is used, \
                         unless the old file is moved there";
            (words, "state.file", file(before), file(after))
        }
    };
    (was != is).then(|| part(path, "", "changes", vec![(format!("{was} -> {is}"), words.to_owned())]))
}

/// The changes of the customers in the directories.
fn customers(
    (before, old): (&CompiledConfig, &[SectionValues]),
    (after, new): (&CompiledConfig, &[SectionValues]),
) -> Option<ConfigPart> {
    let directory = |words: &str, lines| part("customers.directory", "", words, lines);
    let tables = (before.directory.table(), after.directory.table());
    let (old_table, new_table) = match (&*before.directory, &*after.directory, tables) {
        (Directory::Empty, Directory::Empty, _) => return None,
        (Directory::File(_), Directory::File(_), (Some(old), Some(new)))
        | (Directory::Postgres(_), Directory::Postgres(_), (Some(old), Some(new))) => (old, new),
        (Directory::Lookup(_), Directory::Lookup(_), _) | (Directory::Postgres(_), Directory::Postgres(_), _) => {
            let words = "another server is asked, or in another way; whose credentials there are is not known here";
            let changed = differences(find(old, "customers", ""), find(new, "customers", ""));
            let is_other = changed.iter().any(|(path, _)| path.starts_with("directory"));
            return is_other.then(|| directory(words, Vec::new()));
        }
        _ => return Some(directory("is kept elsewhere; customers of the same name keep what is used", Vec::new())),
    };
    let (was, is) = (old_table.customers(), new_table.customers());
    let mut lines = new_and_gone(&was, &is);
    let changed = is.iter().filter_map(|(name, now)| {
        let was = CustomerTerms::of(was.get(name)?, &before.ruleset);
        let now = CustomerTerms::of(now, &after.ruleset);
        (was != now).then_some((name, was, now))
    });
    let changed: Vec<(&Arc<str>, CustomerTerms, CustomerTerms)> = changed.collect();
    let moved = changed.iter().filter(|(_, was, now)| was.plan != now.plan);
    let moved = some(moved.map(|(name, was, now)| format!("{name}: {} -> {}", was.plan, now.plan)));
    lines.extend(moved.map(|moved| ("other plan, what is used stays used".to_owned(), moved)));
    let with_own = || changed.iter().filter(|(_, was, now)| was.own != now.own);
    let names = some(with_own().map(|(name, ..)| name.to_string()));
    lines.extend(names.map(|names| ("other parameters of their own, what is used stays used".to_owned(), names)));
    let terms = with_own().flat_map(|(name, was, now)| {
        let terms = changed_terms(&was.own, &now.own);
        terms.map(move |(limit, change)| (format!("{name}, {limit}"), change))
    });
    lines.extend(terms.take(MAX_NAMES));
    let named = |groups: &[String]| some(groups.iter().cloned()).unwrap_or_else(|| "none".to_owned());
    let regrouped = changed.iter().filter(|(_, was, now)| was.groups != now.groups);
    let regrouped =
        some(regrouped.map(|(name, was, now)| format!("{name}: {} -> {}", named(&was.groups), named(&now.groups))));
    lines.extend(regrouped.map(|moved| ("other groups, whose keys are charged from then on".to_owned(), moved)));
    let access = changed.iter().filter(|(_, was, now)| was.access != now.access);
    let access = some(access.map(|(name, ..)| name.to_string()));
    lines.extend(access.map(|names| ("suspended or valid otherwise".to_owned(), names)));
    let credentials = (old_table.credentials(), new_table.credentials());
    if credentials.0 != credentials.1 {
        lines.push(("credentials".to_owned(), format!("{} -> {}", credentials.0, credentials.1)));
    }
    (!lines.is_empty()).then(|| directory("changes", lines))
}

/// The terms of a customer, with the names of plans and limits.
#[derive(PartialEq)]
struct CustomerTerms {
    plan: String,
    own: BTreeMap<String, String>,
    /// The groups under each credential that has any, sorted.
    groups: Vec<String>,
    /// Whether the customer is suspended and when the credential ends, for each credential where either is so, sorted.
    access: Vec<(bool, Option<Nanos>)>,
}

impl CustomerTerms {
    fn of(credentials: &[Arc<Customer>], ruleset: &Ruleset) -> Self {
        // plan and overrides are the same under all credentials of a customer
        let first = credentials.first();
        let groups = credentials.iter().filter_map(|customer| customer.groups.as_deref()).map(|groups| {
            groups.0.iter().map(|group| format!("{} {}", group.level, group.name)).collect::<Vec<_>>().join(" + ")
        });
        let access = credentials.iter().map(|customer| (customer.suspended, customer.valid_until));
        let mut terms = Self {
            plan: first.and_then(|customer| ruleset.plans.get(customer.plan.0)).cloned().unwrap_or_default(),
            own: own_terms(ruleset, first.and_then(|customer| customer.own.as_deref())),
            groups: groups.collect(),
            access: access.filter(|access| *access != (false, None)).collect(),
        };
        terms.groups.sort_unstable();
        terms.access.sort_unstable();
        terms
    }
}

/// The changes of the groups that files list.
fn groups(before: &CompiledConfig, after: &CompiledConfig) -> Option<ConfigPart> {
    let (was, is) = (by_name(&before.groups), by_name(&after.groups));
    let mut lines = new_and_gone(&was, &is);
    let terms = |ruleset: &Ruleset, group: &Group| {
        let plan = group.plan.and_then(|plan| ruleset.plans.get(plan.0).cloned());
        (plan, own_terms(ruleset, group.own.as_deref()), group.suspended)
    };
    let changed = is.iter().filter(|(name, now)| {
        was.get(*name).is_some_and(|was| terms(&before.ruleset, was) != terms(&after.ruleset, now))
    });
    let changed = some(changed.map(|(name, _)| name.clone()));
    lines.extend(changed.map(|names| ("other terms, what is used stays used".to_owned(), names)));
    (!lines.is_empty()).then(|| part("customers.groups", "", "changes", lines))
}

fn by_name(groups: &GroupTable) -> BTreeMap<String, &Group> {
    groups.all().map(|group| (format!("{} {}", group.level, group.name), &**group)).collect()
}

/// The names that are only in `is`, and those that are only in `was`.
fn new_and_gone<K: Ord + ToString, V>(was: &BTreeMap<K, V>, is: &BTreeMap<K, V>) -> Vec<DescriptionLine> {
    let only = |of: &BTreeMap<K, V>, not_in: &BTreeMap<K, V>| {
        some(of.keys().filter(|name| !not_in.contains_key(*name)).map(ToString::to_string))
    };
    let lines = [("new", only(is, was)), ("gone", only(was, is))];
    lines.into_iter().filter_map(|(what, names)| Some((what.to_owned(), names?))).collect()
}

/// The overrides of a customer or a group, by the names of the limits, and its time zone where limits use it.
fn own_terms(ruleset: &Ruleset, own: Option<&Overrides>) -> BTreeMap<String, String> {
    let zone = own.and_then(|own| own.zone.as_ref()).map(|zone| ("time zone".to_owned(), zone.zone.to_string()));
    let own = own.into_iter().flat_map(|own| &own.limits).filter_map(|(id, term)| {
        let words = match term {
            Override::Unlimited => words::UNLIMITED.to_owned(),
            Override::Rule(rule) => rule.describe(),
        };
        Some((ruleset.limits.get(id.0)?.name.clone(), words))
    });
    own.chain(zone).collect()
}

/// The terms that are not the same in `was` and `now`, each with its value before and after.
fn changed_terms<'t>(
    was: &'t BTreeMap<String, String>,
    now: &'t BTreeMap<String, String>,
) -> impl Iterator<Item = DescriptionLine> + 't {
    let names: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "none of its own".to_owned());
    let changed = names.into_iter().map(move |name| (name, was.get(name), now.get(name)));
    let changed = changed.filter(|(_, was, now)| was != now);
    changed.map(move |(name, was, now)| (name.clone(), format!("{} -> {}", shown(was), shown(now))))
}

/// The first `MAX_NAMES` items as text, and the number of the others; `None` if there are no items.
fn some(mut items: impl Iterator<Item = String>) -> Option<String> {
    let mut shown: Vec<String> = items.by_ref().take(MAX_NAMES).collect();
    let more = items.count();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    (!shown.is_empty()).then(|| shown.join(", "))
}
