//! The configuration of envoyproxy/ratelimit: one domain, whose descriptors are nested.

use std::collections::HashSet;

use super::{Descriptor, DescriptorAction, Domain, MAX_WINDOW, NamedLimit, Names, domain_name};
use crate::config::key::named;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::settings::Kind::*;
use crate::config::settings::tables;
use crate::config::words;
use crate::pattern::Pattern;
use crate::units::Nanos;

tables! {
    FILE "ratelimit" {
        domain: Text("a name"), required, "The domain.";
        descriptors: List(&Section(&DESCRIPTOR)), "What descriptors may begin with.";
    }

    DESCRIPTOR "ratelimit_descriptor" {
        key: Text("a key"), required, "The key of an entry.";
        value: Text("a value"), "The value of an entry.";
        rate_limit: Section(&RATE_LIMIT), "The limit of descriptors that end here.";
        descriptors: List(&Section(&DESCRIPTOR)), "What may follow.";
        shadow_mode: Flag, "Whether it never denies.";
        quota_mode: Flag, "Whether it tells what is left, and never denies.";
        share_threshold: Flag, "Whether all values of a pattern share one count.";
        detailed_metric: Flag, "Whether values are in the metrics.";
        value_to_metric: Flag, "Whether its value is in the metrics.";
        metadata: Text("a mapping"), "What answers carry.";
    }

    RATE_LIMIT "ratelimit_limit" {
        unit: Text("a unit"), "The length of a window.";
        unit_multiplier: Whole(1, u32::MAX as u64), "How many units a window has.";
        requests_per_unit: Whole(0, u32::MAX as u64), "How many requests a window has.";
        unlimited: Flag, "Whether there is no limit.";
        name: Text("a name"), "What others replace it by.";
        replaces: List(&Section(&REPLACED)), "The limits that do not apply beside it.";
    }

    REPLACED "ratelimit_replaced" {
        name: Text("a name"), required, "A limit.";
    }
}

const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// An entry of the descriptor that leads to a limit.
struct Step {
    key: String,
    value: Option<String>,
    /// Whether each value of the entry is counted separately.
    counts: bool,
}

struct Reader<'n> {
    domain: String,
    names: &'n mut Names,
    limits: Vec<NamedLimit>,
    path: Vec<Step>,
}

pub(super) fn read(top: &Field<'_>, names: &mut Names) -> Option<Domain> {
    const DESCRIPTORS: &str = "a list of descriptors, like `[{key: remote_address, rate_limit: {...}}]`";
    let section = top.section(&FILE)?;
    let domain = section.required("domain", "the name of a domain").and_then(|field| domain_name(&field));
    let mut reader = Reader { domain: domain.clone().unwrap_or_default(), names, limits: Vec::new(), path: Vec::new() };
    let descriptors = section.required("descriptors", DESCRIPTORS)?;
    let descriptors = descriptors.nonempty_list(DESCRIPTORS).and_then(|items| reader.descriptors(&items));
    Some(Domain { name: domain?, limits: reader.limits, descriptors: descriptors? })
}

impl Reader<'_> {
    fn descriptors(&mut self, items: &[Field<'_>]) -> Option<Vec<Descriptor>> {
        let mut known = HashSet::new();
        all_or_none(items.iter().map(|item| {
            let section = item.section(&DESCRIPTOR)?;
            let key = section.required("key", "the key of an entry");
            let key = key.and_then(|field| field.parsed("the key of an entry", named))?;
            let value = match section.get("value").filter(|field| !field.is_null()) {
                Some(field) => Some(field.scalar_value("a value")?.text.into_owned()).filter(|value| !value.is_empty()),
                None => None,
            };
            let pattern = value.as_deref().and_then(Pattern::new);
            let is_any = value.is_none() || pattern.as_ref().is_some_and(Pattern::is_any);
            let value = value.filter(|_| !is_any);
            if !known.insert((key.clone(), value.clone())) {
                return item.fail(Problem::error(item.place(), "has the key and the value of another one before"));
            }
            let shares = section.get_or("share_threshold", false, Field::flag)? && pattern.is_some();
            self.path.push(Step { key, value, counts: (is_any || pattern.is_some()) && !shares });
            let descriptor = self.descriptor(&section);
            let step = self.path.pop()?;
            Some(Descriptor { key: step.key, value: step.value, ..descriptor? })
        }))
    }

    /// Reads a descriptor that follows the entries in `path`.
    fn descriptor(&mut self, section: &Section<'_>) -> Option<Descriptor> {
        note_what_is_left_out(section);
        let shadow = section.get_or("shadow_mode", false, Field::flag)?;
        let quota = section.get_or("quota_mode", false, Field::flag)?;
        let end = section.get_with("rate_limit", |field| self.end(field, shadow || quota));
        let next = section.get_or("descriptors", Vec::new(), |field| {
            field.list("a list of descriptors").and_then(|items| self.descriptors(&items))
        });
        let (end, next) = (end?, next?);
        // a descriptor without a limit is let through
        let end = end.or_else(|| next.is_empty().then(|| DescriptorAction::Limits(Vec::new())));
        Some(Descriptor { end, next, ..Descriptor::default() })
    }

    fn end(&mut self, field: &Field<'_>, shadow: bool) -> Option<DescriptorAction> {
        let section = field.section(&RATE_LIMIT)?;
        let unlimited = section.get_or("unlimited", false, Field::flag)?;
        let unit = section.get_with("unit", |field| {
            let word = field.scalar_value("a unit")?.text.to_ascii_lowercase();
            let known = UNITS.iter().find(|(unit, _)| *unit == word);
            let expected = "`second`, `minute`, `hour`, `day`, `week`, `month` or `year`";
            known.map(|(_, seconds)| *seconds).or_else(|| field.fail(field.error("is no unit").expected(expected)))
        })?;
        let requests = section.get_with("requests_per_unit", Field::whole::<u64>)?;
        let units = section.get_or("unit_multiplier", 1, Field::whole::<u64>)?;
        self.replaces(&section)?;
        if unlimited {
            return match unit {
                Some(_) => field.fail(field.error("has a `unit` beside `unlimited`").hint("leave one of them out")),
                None => Some(DescriptorAction::Limits(Vec::new())),
            };
        }
        let (Some(unit), Some(limit)) = (unit, requests) else {
            let problem = field.key_error("has no `unit`, or no `requests_per_unit`");
            return field.fail(problem.expected("both, or `unlimited: true`"));
        };
        let window = unit.saturating_mul(units);
        if window > MAX_WINDOW {
            return field.fail(field.key_error("has a window of more than 100 years").hint("lower `unit_multiplier`"));
        }
        if limit == 0 {
            if shadow {
                field.warn(
                    "denies every request in shadow mode: such descriptors are let through, and not counted",
                    None,
                );
                return Some(DescriptorAction::Limits(Vec::new()));
            }
            return Some(DescriptorAction::Denied);
        }
        let counted = self.path.iter().filter(|step| step.counts).map(|step| step.key.clone());
        let key: Vec<String> = counted.collect();
        if key.iter().any(|key| self.path.iter().filter(|step| step.key == *key).count() > 1) {
            let hint = "give the entries different keys, here and in the configuration of Envoy";
            field.warn("is left out: it counts by an entry whose key occurs twice in the descriptor", hint);
            return Some(DescriptorAction::Limits(Vec::new()));
        }
        let entries = self.path.iter().map(|step| (step.key.as_str(), step.value.as_deref()));
        let name = self.names.of(&self.domain, entries);
        let window = Nanos::from_secs(window).to_exact_string();
        let algorithm = format!("algorithm: fixed_window, limit: {limit}, window: {window}");
        let more = shadow.then(|| ("shadow", "true".to_owned())).into_iter().collect();
        self.limits.push(NamedLimit::of_descriptor(&name, algorithm, &key, more));
        Some(DescriptorAction::Limits(vec![name]))
    }

    fn replaces(&self, section: &Section<'_>) -> Option<()> {
        let Some(field) = section.get("replaces") else { return Some(()) };
        let own = section.get_with("name", |field| field.parsed("a name", named))?;
        all_or_none(field.list("a list of limits, like `[{name: other}]`")?.iter().map(|item| {
            let name = item.section(&REPLACED)?.required("name", "the name of a limit")?;
            match name.parsed("the name of a limit", named)? {
                replaced if own.as_ref() == Some(&replaced) => {
                    name.fail(name.error("is the name of this limit itself"))
                }
                replaced => {
                    let replaced = words::shown(&replaced);
                    name.warn(
                        format!(
                            "does not take the place of {replaced}: where a request has descriptors of both, both limits hold"
                        ),
                        "let Envoy send one of the two descriptors only",
                    );
                    Some(())
                }
            }
        }))
        .map(drop)
    }
}

fn note_what_is_left_out(section: &Section<'_>) {
    const VALUES: &str = "is left out: metrics hold no values of clients";
    const OFFENDERS: &str = "GET /v1/offenders tells who is denied most";
    const QUOTA: &str = "becomes `shadow: true`: the limit counts and never denies, and answers carry no metadata";
    let is_on = |name| section.get(name).filter(|field| field.flag() == Some(true));
    let notes = [
        (is_on("detailed_metric"), VALUES, Some(OFFENDERS)),
        (is_on("value_to_metric"), VALUES, Some(OFFENDERS)),
        (is_on("quota_mode"), QUOTA, None),
        (section.get("metadata"), "is left out: answers carry no metadata", None),
    ];
    for (field, message, hint) in notes {
        field.iter().for_each(|field| field.warn(message, hint.map(str::to_owned)));
    }
}
