//! `customers:`.

use crate::config::identify::{self, Identify, JwksFile};
use crate::config::later;
use crate::config::names::Names;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, Section};
use crate::ruleset::{CustomerRules, PlanId, UnknownCredential};

/// The file that names the customers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryFile {
    /// As written: relative to the directory of the configuration.
    pub path: String,
    /// Where it is written.
    pub place: Place,
}

/// What `customers:` says.
pub(super) struct Customers {
    pub(super) rules: CustomerRules,
    /// Absent where all credentials say themselves whose they are.
    pub(super) directory: Option<DirectoryFile>,
    /// Absent where no tokens are.
    pub(super) jwks: Option<JwksFile>,
}

/// Whether `customers:` is there, whether callers without a credential have a plan, and whether callers may have tokens.
pub(super) struct Outline {
    pub(super) customers: bool,
    pub(super) planless: bool,
    pub(super) tokens: bool,
}

/// Looks ahead, for the limits.
pub(super) fn outline(top: &Section<'_>) -> Outline {
    let anonymous = top.get("customers").map(|field| match field.mapping_if() {
        Some(section) => section.has("anonymous"),
        // what is no mapping is refused anyway, and would raise false alarms about limits
        None => true,
    });
    let identify = top.get("customers").and_then(|field| field.mapping_if()?.get("identify"));
    let tokens = identify.is_some_and(|field| identify::has_tokens(&field));
    Outline { customers: anonymous.is_some(), planless: anonymous != Some(true), tokens }
}

/// Reads `customers:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>, plans: &Names) -> Option<Option<Customers>> {
    top.get_with("customers", |field| customers(field, plans))
}

fn customers(field: &Field<'_>, plans: &Names) -> Option<Customers> {
    const DIRECTORY: &str = "`{file: customers.csv}`";
    let section = field.section(&["identify", "directory", "anonymous", "unknown"], &[])?;
    let identify = section.required("identify", "where credentials are, like `[{header: x-api-key}, {bearer: true}]`");
    let directory = match identify.as_ref().is_none_or(identify::needs_directory) {
        true => section.required("directory", DIRECTORY).and_then(|field| directory(&field)).map(Some),
        false => section.get_with("directory", directory),
    };
    let sources = identify.and_then(|field| identify::read(&field, plans));
    let anonymous = section.get_with("anonymous", |field| anonymous(field, plans));
    let unknown = section.get_or("unknown", UnknownCredential::Deny, |field| {
        field.choice(&[("deny", UnknownCredential::Deny), ("anonymous", UnknownCredential::Anonymous)], &[])
    });
    let Identify { sources, jwks } = sources?;
    let rules = CustomerRules { identify: sources, anonymous: anonymous?, unknown: unknown? };
    Some(Customers { rules, directory: directory?, jwks })
}

fn directory(field: &Field<'_>) -> Option<DirectoryFile> {
    let section = field.section(&["file"], later::DIRECTORY)?;
    if later::DIRECTORY.iter().any(|key| section.has(key)) {
        return None;
    }
    let file = section.required("file", "the name of a CSV file")?;
    let word = file.word("the name of a CSV file")?;
    match word.text.is_empty() {
        true => file.fail(Problem::error(file.place(), "is empty").expected("the name of a CSV file")),
        false => Some(DirectoryFile { path: word.text.into_owned(), place: file.place() }),
    }
}

fn anonymous(field: &Field<'_>, plans: &Names) -> Option<PlanId> {
    let section = field.section(&["plan", "key"], &[])?;
    let key = section.get_or("key", (), |field| field.choice(&[("client_address", ())], &[]));
    let plan = section.required("plan", "the name of a plan").and_then(|field| plans.resolve(&field));
    let () = key?;
    Some(PlanId(plan?))
}
