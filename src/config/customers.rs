//! `customers:`.

use crate::config::later;
use crate::config::names::Names;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, Section, each_once};
use crate::ruleset::{CredentialSource, CustomerRules, PlanId, UnknownCredential};

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
    pub(super) directory: DirectoryFile,
}

/// Whether `customers:` is there, and whether callers without a credential have a plan.
pub(super) struct Outline {
    pub(super) customers: bool,
    pub(super) planless: bool,
}

/// Looks ahead, for the limits.
pub(super) fn outline(top: &Section<'_>) -> Outline {
    let anonymous = top.get("customers").map(|field| match field.mapping_if() {
        Some(section) => section.has("anonymous"),
        // what is no mapping is refused anyway, and would raise false alarms about limits
        None => true,
    });
    Outline { customers: anonymous.is_some(), planless: anonymous != Some(true) }
}

/// Reads `customers:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>, plans: &Names) -> Option<Option<Customers>> {
    top.get_with("customers", |field| customers(field, plans))
}

fn customers(field: &Field<'_>, plans: &Names) -> Option<Customers> {
    const DIRECTORY: &str = "`{file: customers.csv}`";
    let section = field.section(&["identify", "directory", "anonymous", "unknown"], &[])?;
    let identify = section
        .required("identify", "where credentials are, like `[{header: x-api-key}, {bearer: true}]`")
        .and_then(|field| identify(&field));
    let directory = section.required("directory", DIRECTORY).and_then(|field| directory(&field));
    let anonymous = section.get_with("anonymous", |field| anonymous(field, plans));
    let unknown = section.get_or("unknown", UnknownCredential::Deny, |field| {
        field.choice(&[("deny", UnknownCredential::Deny), ("anonymous", UnknownCredential::Anonymous)], &[])
    });
    let rules = CustomerRules { identify: identify?, anonymous: anonymous?, unknown: unknown? };
    Some(Customers { rules, directory: directory? })
}

fn identify(field: &Field<'_>) -> Option<Vec<CredentialSource>> {
    const EXPECTED: &str = "a list of `{header: NAME}` and `{bearer: true}`";
    each_once(&field.nonempty_list(EXPECTED)?, source, CredentialSource::clone)
}

fn source(field: &Field<'_>) -> Option<CredentialSource> {
    const EXPECTED: &str = "either `{header: NAME}` or `{bearer: true}`";
    // somebody may take this for the place where credentials are listed
    let field = field.clone().secret();
    let section = field.mapping(EXPECTED)?;
    section.refuse_others(&["header", "bearer"], later::IDENTIFY);
    match (section.get("header"), section.get("bearer")) {
        (Some(header), None) => header.header_name().map(CredentialSource::Header),
        (None, Some(bearer)) => match bearer.flag()? {
            true => Some(CredentialSource::Bearer),
            false => bearer.fail(Problem::error(bearer.place(), "must be `true`").hint("leave it out otherwise")),
        },
        (None, None) if !section.is_empty() => None,
        _ => field.fail(Problem::error(field.place(), "does not name one place").expected(EXPECTED)),
    }
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
