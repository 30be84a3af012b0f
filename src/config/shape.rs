//! Writes out the parts of a configuration that apply to several routes, upstreams and limits: included files, defaults,
//! groups of limits, and limits of several windows.
//!
//! Tree in, tree out. Readers see a file without such parts, in which the values keep their positions.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::algorithm::AlgorithmName;
use crate::config::document::{self, Content, Entry, YamlNode};
use crate::config::environment::{self, Environment};
use crate::config::findings::Findings;
use crate::config::key::named;
use crate::config::problem::{Mark, Problem};
use crate::config::read::{Field, ReadContext, Section, all_or_none};
use crate::config::settings::{FILE, Kind, WINDOW};
use crate::config::trial_setting::{self, TrialSetting};
use crate::config::values::NamedFile;
use crate::config::{scalar, words};

/// The sections that an included file may hold: mappings from names to values, and lists.
const INCLUDED: [&str; 7] = ["upstreams", "plans", "limits", "limit_groups", "prices", "routes", "domains"];

/// The text of a configuration, the files that it includes, and changes to their settings.
#[derive(Clone, Debug)]
pub struct ConfigText<'t> {
    /// The file name that findings show.
    pub name: String,
    /// The text of the configuration itself.
    pub text: Cow<'t, str>,
    /// The included files, in the order in which they are read.
    pub included: Vec<IncludedFile>,
    /// Settings that replace those of the files for a trial.
    pub changes: Vec<TrialSetting>,
}

/// A file that a configuration includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncludedFile {
    /// The file name that findings show.
    pub name: String,
    /// The content of the file.
    pub text: String,
}

impl<'t> ConfigText<'t> {
    /// The configuration in the file `name`, which includes nothing yet.
    pub fn new(name: impl Into<String>, text: impl Into<Cow<'t, str>>) -> Self {
        Self { name: name.into(), text: text.into(), included: Vec::new(), changes: Vec::new() }
    }

    /// No findings yet, for the configuration and its included files.
    pub(super) fn findings(&self) -> Findings {
        let included = self.included.iter().map(|included| included.name.as_str());
        let changes = self.changes.iter().map(|_| trial_setting::NAME);
        Findings::of([self.name.as_str()].into_iter().chain(included).chain(changes))
    }

    /// The files that the configuration includes, as it names them; in the last part of a name, `*` stands for any text.
    /// Loading the configuration reports errors in the names.
    pub fn named_includes(&self, environment: &dyn Fn(&str) -> Option<String>) -> Vec<NamedFile> {
        // most files include none, and parsing a large file takes time
        if !self.text.contains("include") {
            return Vec::new();
        }
        let findings = self.findings();
        let context = ReadContext { findings: &findings, environment };
        let root = document::parse(&self.text, 0, &findings);
        let top = root.as_deref().and_then(|root| Field::root(&context, root).as_mapping());
        top.and_then(|top| top.get("include")).and_then(|field| read_include(&field)).unwrap_or_default()
    }
}

fn read_include(field: &Field<'_>) -> Option<Vec<NamedFile>> {
    const EXPECTED: &str = "the name of a file below the folder of this one, like `limits/*.yaml`";
    let file = |item: &Field<'_>| {
        let path = item.parsed(EXPECTED, named)?;
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let problem = if path.split('/').any(|part| part == "..") {
            "leads out of its folder"
        } else if folder.contains('*') {
            "has a `*` in the name of a folder"
        } else {
            return Some(NamedFile { path, place: item.place() });
        };
        item.fail(item.error(problem).expected(EXPECTED))
    };
    all_or_none(field.nonempty_list("a list of files, like `[limits/*.yaml]`")?.iter().map(file))
}

/// Groups and limits of several windows, with the names of the limits for which they stand.
struct Groups<'e> {
    limits: HashMap<String, Vec<String>>,
    /// Looks up the variables in the values of items.
    environment: Environment<'e>,
}

/// Parses a configuration, writes it out and applies the changes.
pub(super) fn document(text: &ConfigText<'_>, context: &ReadContext<'_>) -> Option<Rc<YamlNode>> {
    let root = expand_document(text, context)?;
    trial_setting::apply(root, &text.changes, text.included.len().saturating_add(1), context.findings)
}

fn expand_document(text: &ConfigText<'_>, context: &ReadContext<'_>) -> Option<Rc<YamlNode>> {
    let root = document::parse(&text.text, 0, context.findings);
    let included = all_or_none(
        text.included.iter().zip(1..).map(|(file, number)| document::parse(&file.text, number, context.findings)),
    );
    let (root, included) = (root?, included?);
    let Content::Mapping(entries) = &root.content else { return Some(root) };
    if included.is_empty() && !entries.iter().any(is_shape) {
        return Some(root);
    }
    let mut entries = entries.clone();
    let whole = Field::root(context, &root).as_mapping()?;
    if let Some(field) = whole.get("include") {
        read_include(&field);
    }
    for file in &included {
        include(&mut entries, &Field::root(context, file));
    }
    let merged = node(root.mark, Content::Mapping(entries.clone()));
    let top = Field::root(context, &merged).as_mapping()?.with(&FILE);
    let defaults = Defaults::read(&top);
    let mut groups = Groups { limits: HashMap::new(), environment: context.environment };
    if let Some(limits) = top.get("limits").and_then(|field| field.as_mapping()) {
        let split = split_windows(&limits, &defaults.limits, &mut groups);
        read_groups(&top, &split, &mut groups);
        replace(&mut entries, "limits", Content::Mapping(split));
    }
    for entry in &mut entries {
        let written = match (entry.key.as_str(), &entry.value.content) {
            ("routes", Content::Sequence(routes)) => {
                Content::Sequence(routes.iter().map(|route| expand(route, &defaults.routes, &groups)).collect())
            }
            ("upstreams", Content::Mapping(upstreams)) => of_each(upstreams, &defaults.upstreams, &groups),
            ("domains", Content::Mapping(domains)) => of_each(domains, &[], &groups),
            ("defaults", Content::Mapping(defaults)) => of_each(defaults, &[], &groups),
            _ => continue,
        };
        entry.value = node(entry.value.mark, written);
    }
    Some(node(root.mark, Content::Mapping(entries)))
}

fn node(mark: Mark, content: Content) -> Rc<YamlNode> {
    Rc::new(YamlNode { mark, content })
}

/// Whether this module has to write out an entry of the file.
fn is_shape(entry: &Entry) -> bool {
    let has_windows = |limit: &Entry| matches!(&limit.value.content, Content::Mapping(settings) if settings.iter().any(|one| one.key == "windows"));
    match (entry.key.as_str(), &entry.value.content) {
        ("include" | "defaults" | "limit_groups", _) => true,
        ("limits", Content::Mapping(limits)) => limits.iter().any(has_windows),
        _ => false,
    }
}

fn replace(entries: &mut [Entry], key: &str, content: Content) {
    if let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) {
        entry.value = node(entry.value.mark, content);
    }
}

/// Adds the sections of an included file.
fn include(entries: &mut Vec<Entry>, file: &Field<'_>) {
    let Some(section) = file.mapping("sections, like `limits`") else { return };
    section.reject_unknown(&INCLUDED);
    for (entry, field) in section.entries().filter(|(entry, _)| INCLUDED.contains(&entry.key.as_str())) {
        let Some(known) = entries.iter_mut().find(|known| known.key == entry.key) else {
            entries.push(entry.clone());
            continue;
        };
        let joined = match (&known.value.content, &entry.value.content) {
            (Content::Mapping(first), Content::Mapping(_)) => {
                let Some(more) = field.as_mapping() else { continue };
                Content::Mapping(join(first, &more, file.findings()))
            }
            (Content::Sequence(first), Content::Sequence(more)) => Content::Sequence([&first[..], more].concat()),
            _ => {
                let kinds = "a mapping or a list, as in the other files";
                file.findings().add(field.error("is of the wrong kind").expected(kinds));
                continue;
            }
        };
        known.value = node(known.value.mark, joined);
    }
}

/// Joins both mappings; a name in both is an error.
fn join(first: &[Entry], more: &Section<'_>, findings: &Findings) -> Vec<Entry> {
    let known: HashMap<&str, Mark> = first.iter().map(|entry| (entry.key.as_str(), entry.key_mark)).collect();
    let mut joined = first.to_vec();
    for (entry, field) in more.entries() {
        match known.get(entry.key.as_str()) {
            None => joined.push(entry.clone()),
            Some(first) => {
                let place = field.key_place();
                let found = findings.place(*first, "").as_first(&place);
                let problem = Problem::error(place, "is given twice").expected("each name once");
                findings.add(Problem { found, ..problem });
            }
        }
    }
    joined
}

/// The settings of `defaults`.
#[derive(Default)]
struct Defaults {
    routes: Vec<Entry>,
    upstreams: Vec<Entry>,
    limits: Vec<Entry>,
}

impl Defaults {
    fn read(top: &Section<'_>) -> Self {
        let Some(section) = top.get("defaults").and_then(|field| field.section(&super::settings::DEFAULTS)) else {
            return Self::default();
        };
        let of = |key: &str| {
            let field = section.get(key)?;
            let Some(Kind::Defaults(table, without)) = field.kind() else { return None };
            let settings = field.mapping("settings")?.with(table);
            settings.reject_unknown(&table.defaults(without).map(|setting| setting.name).collect::<Vec<_>>());
            Some(settings.entries().map(|(entry, _)| entry.clone()).collect())
        };
        let or_none = |entries: Option<Vec<Entry>>| entries.unwrap_or_default();
        Self { routes: or_none(of("routes")), upstreams: or_none(of("upstreams")), limits: or_none(of("limits")) }
    }
}

/// Checks the values of `defaults` by the kinds of their settings. The readers of items see only those that an item takes over.
pub(super) fn check_defaults(top: &Section<'_>) {
    top.get("defaults").iter().for_each(check_kind);
}

fn check_kind(field: &Field<'_>) {
    let each = |of: Option<Section<'_>>| of.iter().flat_map(Section::fields).for_each(|(_, field)| check_kind(&field));
    match field.kind() {
        Some(Kind::Flag) => _ = field.flag(),
        Some(Kind::Whole(..)) => _ = field.whole::<u64>(),
        Some(Kind::Size(..)) => _ = field.read(scalar::size),
        Some(Kind::Duration(..)) => _ = field.duration(),
        Some(Kind::Choice(words)) => {
            _ = field.choice_renamed(&words.iter().map(|word| (*word, ())).collect::<Vec<_>>())
        }
        Some(Kind::List(_) | Kind::Set(_)) => field.list(&field.expected()).iter().flatten().for_each(check_kind),
        Some(Kind::Named(..)) => each(field.mapping(&field.expected())),
        Some(Kind::Section(table)) => each(field.section(table)),
        Some(Kind::Defaults(table, _)) => each(field.as_mapping().map(|of| of.with(table))),
        Some(Kind::Text(_) | Kind::OneOf(_) | Kind::Limit | Kind::Parameters(_)) | None => {}
    }
}

/// `own`, and the entries of `others` whose keys `own` does not have.
fn overlaid<'o>(own: &'o [Entry], others: impl IntoIterator<Item = &'o Entry>) -> Vec<Entry> {
    let absent = others.into_iter().filter(|other| !own.iter().any(|entry| entry.key == other.key));
    own.iter().chain(absent).cloned().collect()
}

/// The settings `own` of an item, and the defaults that suit them.
fn with_defaults(own: &[Entry], defaults: &[Entry], environment: Environment<'_>) -> Vec<Entry> {
    overlaid(own, defaults.iter().filter(|default| suits(&default.key, own, environment)))
}

/// Whether an item with the settings `own` can have a default of `setting`. Where it says, for example, `mode: sticky`, it
/// takes over no `on_store_down`.
fn suits(setting: &str, own: &[Entry], environment: Environment<'_>) -> bool {
    /// The algorithms without a fixed quota, of which no share can be in use.
    const WITHOUT_QUOTA: [&str; 4] = ["adaptive_concurrency", "leaky_queue", "smooth_bursty", "smooth_warming_up"];
    let own = |key: &str| own.iter().find(|entry| entry.key == key).map(|entry| &entry.value.content);
    let text = |key: &str| match own(key)? {
        Content::Scalar { text, .. } => environment::expand(text, environment).ok(),
        Content::Sequence(_) | Content::Mapping(_) => None,
    };
    let is = |key: &str, value: &str| own(key).is_none() || text(key).as_deref() == Some(value);
    match setting {
        "consistency" | "on_store_down" => is("mode", "shared"),
        "strict" => is("mode", "shared") && is("consistency", "leased"),
        "ban" | "priority" => is("shadow", "false"),
        "warn_at" => {
            own("delay_after").is_none() && text("algorithm").is_none_or(|name| !WITHOUT_QUOTA.contains(&&*name))
        }
        "request_overrides" => own("windows").is_none(),
        "hash_on" => is("balance", "consistent_hash"),
        "split_by" => !matches!(own("upstream"), Some(Content::Scalar { .. })),
        _ => true,
    }
}

fn of_each(named: &[Entry], defaults: &[Entry], groups: &Groups<'_>) -> Content {
    let written = named.iter().map(|entry| Entry { value: expand(&entry.value, defaults, groups), ..entry.clone() });
    Content::Mapping(written.collect())
}

/// The mapping `of` with its defaults, and with each group of limits replaced by its limits, also in its descriptors.
fn expand(of: &Rc<YamlNode>, defaults: &[Entry], groups: &Groups<'_>) -> Rc<YamlNode> {
    let Content::Mapping(own) = &of.content else { return Rc::clone(of) };
    let mut entries = with_defaults(own, defaults, groups.environment);
    for entry in &mut entries {
        let Content::Sequence(items) = &entry.value.content else { continue };
        let written: Vec<Rc<YamlNode>> = match entry.key.as_str() {
            "limits" => items.iter().flat_map(|item| limits_of(item, groups)).collect(),
            "descriptors" => items.iter().map(|item| expand(item, &[], groups)).collect(),
            _ => continue,
        };
        entry.value = node(entry.value.mark, Content::Sequence(written));
    }
    node(of.mark, Content::Mapping(entries))
}

/// The limits for which an item of a list of limits stands, at the item's position.
fn limits_of(item: &Rc<YamlNode>, groups: &Groups<'_>) -> Vec<Rc<YamlNode>> {
    let name = match &item.content {
        Content::Scalar { text, .. } => environment::expand(text, groups.environment).ok(),
        Content::Sequence(_) | Content::Mapping(_) => None,
    };
    let group = name.and_then(|name| groups.limits.get(&*name));
    let Some(names) = group else { return vec![Rc::clone(item)] };
    let limit = |name: &String| node(item.mark, Content::Scalar { text: name.clone(), plain: true });
    names.iter().map(limit).collect()
}

/// The limits with their defaults. A limit of several windows becomes one limit for each window; `groups` gets their names.
fn split_windows(limits: &Section<'_>, defaults: &[Entry], groups: &mut Groups<'_>) -> Vec<Entry> {
    let mut split = Vec::new();
    for (entry, field) in limits.entries() {
        let Content::Mapping(own) = &entry.value.content else {
            split.push(entry.clone());
            continue;
        };
        let whole = with_defaults(own, defaults, groups.environment);
        match field.as_mapping().filter(|limit| limit.has("windows")) {
            None => split.push(Entry { value: node(entry.value.mark, Content::Mapping(whole)), ..entry.clone() }),
            Some(limit) => {
                let windows = windows_of(&entry.key, &limit, &whole);
                groups.limits.insert(entry.key.clone(), windows.iter().map(|window| window.key.clone()).collect());
                split.extend(windows);
            }
        }
    }
    split
}

/// One limit for each window of the limit `name`, named `name/window`, so that a reload keeps an unchanged window's counts.
fn windows_of(name: &str, limit: &Section<'_>, whole: &[Entry]) -> Vec<Entry> {
    const EXPECTED: &str = "a list of windows, like `{limit: 10, window: 1s}`";
    for field in ["window", "candidate", "request_overrides"].into_iter().filter_map(|key| limit.get(key)) {
        field.findings().add(field.key_error("cannot stand beside `windows`"));
    }
    let parameters = AlgorithmName::ALL.iter().flat_map(|algorithm| algorithm.parameters());
    let mut known = WINDOW.names();
    known.extend(parameters.map(|parameter| parameter.name));
    known.sort_unstable();
    known.dedup();
    let items = limit.get("windows").and_then(|windows| windows.nonempty_list(EXPECTED)).unwrap_or_default();
    let has_plans = |item: &Field<'_>| item.as_mapping().is_some_and(|window| window.has("plans"));
    if let (Some(plans), true) = (limit.get("plans"), items.iter().all(has_plans)) {
        plans.warn_key("is used by no window: each has `plans` of its own, which replace these", None);
    }
    let mut windows: Vec<Entry> = Vec::new();
    for item in items {
        let Some(section) = item.mapping("a window, like `{limit: 10, window: 1s}`") else { continue };
        section.reject_unknown(&known);
        let Some(field) = section.required("window", "a length of time") else { continue };
        let Some(word) = field.scalar_value("a length of time") else { continue };
        let window = scalar::duration(&word.text).map_or(word.text.into_owned(), |window| window.to_string());
        let key = format!("{name}/{window}");
        if windows.iter().any(|other| other.key == key) {
            field.findings().add(field.error("is in the list twice").expected("each once"));
            continue;
        }
        let own: Vec<Entry> = section.entries().map(|(entry, _)| entry.clone()).collect();
        let others = whole.iter().filter(|entry| entry.key != "windows");
        let mark = item.mark();
        windows.push(Entry { key, key_mark: mark, value: node(mark, Content::Mapping(overlaid(&own, others))) });
    }
    windows
}

/// Adds the groups of `limit_groups`.
fn read_groups(top: &Section<'_>, limits: &[Entry], groups: &mut Groups<'_>) {
    let Some(section) = top.get("limit_groups").and_then(|field| field.mapping("groups of limits by their names"))
    else {
        return;
    };
    let known: HashSet<&str> = limits.iter().map(|limit| limit.key.as_str()).collect();
    let windows = groups.limits.clone();
    for (name, field) in section.fields() {
        if known.contains(name) || windows.contains_key(name) {
            field.findings().add(field.key_error("is the name of a limit already"));
            continue;
        }
        let mut names: Vec<String> = Vec::new();
        for item in field.nonempty_list("a list of names of limits").unwrap_or_default() {
            let Some(word) = item.scalar_value("the name of a limit") else { continue };
            match windows.get(&*word.text) {
                Some(several) => names.extend(several.iter().cloned()),
                None if known.contains(&*word.text) => names.push(word.text.into_owned()),
                None => {
                    let all = limits.iter().map(|limit| limit.key.as_str()).chain(windows.keys().map(String::as_str));
                    let near = item.findings().near_miss(&word.text, all).map(words::did_you_mean);
                    item.findings().add(item.error("is not the name of a limit").hint(near));
                }
            }
        }
        groups.limits.insert(name.to_owned(), names);
    }
}
