//! What a configuration changes when it takes the place of another.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::Part;
use crate::cli::source::{self, Fixed, Source};
use crate::config::{Operators, StateFile};
use crate::customers::{Customer, Directory};
use crate::ruleset::Ruleset;
use crate::ruleset::changes::{Account, Change};
use crate::ruleset::limit::OwnTerm;
use crate::ruleset::words::{self, Line};

/// The most customers of a kind that are named.
const MOST: usize = 20;

/// Everything that changes, in plain words.
pub(super) struct Comparison {
    /// How much of it there is, in a line.
    pub(super) summary: String,
    pub(super) parts: Vec<Part>,
    /// Whether a gateway that runs refuses it, so that it has to be restarted.
    pub(super) needs_restart: bool,
}

impl Comparison {
    /// What changes when `after` takes the place of `before`, the file at `path`.
    pub(super) fn new(path: &Path, before: &Source, after: &Source) -> Self {
        let fixed = source::fixed(before, after);
        let Account { changes, untouched_limits } = Account::of(&before.loaded.ruleset, &after.loaded.ruleset);
        let customers = customers(before, after);
        let state = state(before.loaded.state.as_ref(), after.loaded.state.as_ref());
        let needs_restart = !fixed.is_empty();
        let untouched = match untouched_limits {
            1 => "1 limit untouched".to_owned(),
            count => format!("{count} limits untouched"),
        };
        let operators = operators(&before.loaded.operators, &after.loaded.operators);
        let parts = fixed.into_iter().map(of_fixed).chain(changes.into_iter().map(of_change));
        let parts = parts.chain(customers).chain(state).chain(operators);
        let parts: Vec<Part> = parts.collect();
        let changed = match parts.len() {
            0 => "nothing changes".to_owned(),
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        };
        Self { summary: format!("against {}: {changed}; {untouched}", path.display()), parts, needs_restart }
    }
}

fn of_fixed(Fixed { path, before, after, what }: Fixed) -> Part {
    Part {
        heading: format!("{path}: needs a restart; a gateway that runs refuses the whole file"),
        lines: vec![(what.to_owned(), format!("{before} -> {after}"))],
    }
}

fn of_change(Change { kind, name, words, details }: Change) -> Part {
    let heading = if name.is_empty() { format!("{kind}: {words}") } else { format!("{kind} {name}: {words}") };
    Part { heading, lines: details }
}

/// What changes about the file that keeps what is used over restarts.
fn state(before: Option<&StateFile>, after: Option<&StateFile>) -> Option<Part> {
    let file = |state: Option<&StateFile>| state.map_or_else(|| "none".to_owned(), |state| state.file.path.clone());
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
    (was != is).then(|| Part {
        heading: format!("{path}: changes"),
        lines: vec![(format!("{was} -> {is}"), words.to_owned())],
    })
}

/// What changes about what operators may do.
fn operators(before: &Operators, after: &Operators) -> Option<Part> {
    let file = |of: &Operators| of.token_file.as_ref().map_or_else(|| "none".to_owned(), |file| file.path.clone());
    let hosts = |of: &Operators| if of.hosts.is_empty() { "none".to_owned() } else { of.hosts.join(", ") };
    let most = |of: &Operators| of.top_denied_metrics.to_string();
    let all = [
        ("token_file", file(before), file(after)),
        ("hosts", hosts(before), hosts(after)),
        ("top_denied_metrics", most(before), most(after)),
    ];
    let lines = all.into_iter().filter(|(_, was, is)| was != is);
    let lines: Vec<Line> = lines.map(|(what, was, is)| (what.to_owned(), format!("{was} -> {is}"))).collect();
    (!lines.is_empty()).then(|| Part { heading: "admin: changes".to_owned(), lines })
}

/// What changes about those whom the directories know.
fn customers(before: &Source, after: &Source) -> Option<Part> {
    let heading = |words: &str| format!("customers.directory: {words}");
    let (old, new) = match (&*before.directory, &*after.directory) {
        (Directory::File(old), Directory::File(new)) => (old, new),
        (Directory::Nobody, Directory::Nobody) => return None,
        (Directory::Redis(_), Directory::Redis(_)) => {
            let same = before.loaded.directory == after.loaded.directory;
            let words = "another hash is asked, or in another way; whose credentials there are is not known here";
            return (!same).then(|| Part { heading: heading(words), lines: Vec::new() });
        }
        _ => {
            let words = "is kept elsewhere; customers of the same name keep what is used";
            return Some(Part { heading: heading(words), lines: Vec::new() });
        }
    };
    let (was, is) = (old.customers(), new.customers());
    let mut lines = Vec::new();
    let names = |of: &BTreeMap<Arc<str>, Arc<Customer>>, not_in: &BTreeMap<Arc<str>, Arc<Customer>>| {
        some(of.keys().filter(|name| !not_in.contains_key(*name)).map(ToString::to_string))
    };
    lines.extend(names(&is, &was).map(|names| ("new".to_owned(), names)));
    lines.extend(names(&was, &is).map(|names| ("gone".to_owned(), names)));
    let both = || is.iter().filter_map(|(name, now)| Some((name, was.get(name)?, now)));
    let (old_rules, new_rules) = (&before.loaded.ruleset, &after.loaded.ruleset);
    let plan = |ruleset: &Ruleset, customer: &Customer| ruleset.plans.get(customer.plan.0).cloned().unwrap_or_default();
    let moved = both().filter_map(|(name, was, now)| {
        let (was, now) = (plan(old_rules, was), plan(new_rules, now));
        (was != now).then(|| format!("{name}: {was} -> {now}"))
    });
    lines.extend(some(moved).map(|moved| ("other plan, what is used stays used".to_owned(), moved)));
    let own = both().filter(|(_, was, now)| own_terms(old_rules, was) != own_terms(new_rules, now));
    let own = own.map(|(name, ..)| name.to_string());
    lines.extend(some(own).map(|names| ("other parameters of their own, what is used stays used".to_owned(), names)));
    let standing = |customer: &Customer| (customer.suspended, customer.valid_until);
    let access = both().filter(|(_, was, now)| standing(was) != standing(now));
    let access = access.map(|(name, ..)| name.to_string());
    lines.extend(some(access).map(|names| ("suspended or valid otherwise".to_owned(), names)));
    let credentials = (old.credentials(), new.credentials());
    if credentials.0 != credentials.1 {
        lines.push(("credentials".to_owned(), format!("{} -> {}", credentials.0, credentials.1)));
    }
    (!lines.is_empty()).then(|| Part { heading: heading("changes"), lines })
}

/// What a customer has of its own, by the names of the limits.
fn own_terms(ruleset: &Ruleset, customer: &Customer) -> Vec<Line> {
    let own = customer.own.iter().flat_map(|own| &own.0).filter_map(|(id, term)| {
        let words = match term {
            OwnTerm::Unlimited => words::UNLIMITED.to_owned(),
            OwnTerm::Rule(rule) => rule.words(),
        };
        Some((ruleset.limits.get(id.0)?.name.clone(), words))
    });
    let mut own: Vec<Line> = own.collect();
    own.sort();
    own
}

/// Some of many; `None` of none.
fn some(mut items: impl Iterator<Item = String>) -> Option<String> {
    let mut shown: Vec<String> = items.by_ref().take(MOST).collect();
    let more = items.count();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    (!shown.is_empty()).then(|| shown.join(", "))
}
