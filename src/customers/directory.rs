//! The directory: credential to customer, from a CSV or YAML file.
//!
//! Credentials are kept as keyed 128-bit hashes, 24 bytes each, so that no dump of the memory or of a state shows one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashTable;
use siphasher::sip128::SipHasher13;

use crate::customers::Customer;
use crate::ruleset::PlanId;

mod csv;
mod yaml;

/// The longest name of a customer, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// How many faults are kept; further ones are only counted.
const MOST_FAULTS: usize = 1_000;

/// Hashes of this kind, in place of a credential, are left to a later version.
const RESERVED_PREFIX: &[u8] = b"sha256:";

/// How a directory is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header line of `credential`, `customer` and `plan` in any order, then a line for each credential. Spaces
    /// around fields do not count.
    Csv,
    /// A list of mappings of `credential`, `customer` and `plan`, each beginning on a line of its own.
    Yaml,
}

/// Every customer, found by credential.
pub struct Directory {
    hasher: SipHasher13,
    credentials: HashTable<Credential>,
    customers: Vec<Arc<Customer>>,
}

#[derive(Clone, Copy)]
struct Credential {
    hash: [u64; 2],
    customer: u32,
}

/// One thing that is wrong with a directory. Never holds a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no header line.
    #[error("the file is empty")]
    Empty,
    /// A column is missing.
    #[error("the column `{0}` is missing")]
    MissingColumn(&'static str),
    /// A column is there twice.
    #[error("the column `{0}` is there twice")]
    RepeatedColumn(&'static str),
    /// A column has another name than those known.
    #[error("the column `{0}` is unknown")]
    UnknownColumn(String),
    /// A column that this version does not have yet.
    #[error("the column `{0}` is not supported by this version")]
    LaterColumn(String),
    /// A line has more or fewer fields than the header.
    #[error("the line has {found} fields and the header {expected}")]
    FieldCount {
        /// How many the line has.
        found: usize,
        /// How many the header has.
        expected: usize,
    },
    /// A field holds a line break.
    #[error("a field goes on over the end of the line")]
    LineBreak,
    /// A field is empty.
    #[error("the {0} is empty")]
    EmptyField(&'static str),
    /// A customer's name is too long or holds control characters.
    #[error("the customer's name is longer than {MAX_NAME} bytes or holds control characters")]
    BadName,
    /// The credential is written as a hash.
    #[error("a credential as `sha256:...` is not supported by this version")]
    HashedCredential,
    /// There is no such plan.
    #[error("`{0}` is not the name of a plan")]
    UnknownPlan(String),
    /// The credential is in the file already.
    #[error("the credential is that of line {0} again")]
    RepeatedCredential(u64),
    /// The customer has another plan already.
    #[error("the customer `{customer}` has another plan on line {line}")]
    OtherPlan {
        /// Who.
        customer: String,
        /// Where.
        line: u64,
    },
    /// There are more customers than can be counted.
    #[error("the file names more than {} customers", u32::MAX)]
    TooMany,
    /// The text is no CSV.
    #[error("the line cannot be read as CSV")]
    Malformed,
    /// The text is no list of customers in YAML.
    #[error("what stands here is no list of `{{credential: ..., customer: ..., plan: ...}}` in YAML")]
    MalformedYaml,
}

/// Everything that is wrong with a directory: at least one line number (from 1) and what is wrong there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// In the order of the lines.
    pub faults: Vec<(u64, Fault)>,
    /// How many there are beyond those kept.
    pub more: usize,
}

impl Faults {
    fn add(&mut self, line: u64, fault: Fault) {
        match self.faults.len() < MOST_FAULTS {
            true => self.faults.push((line, fault)),
            false => self.more = self.more.saturating_add(1),
        }
    }
}

impl Directory {
    /// Reads a directory. A customer may have several credentials, each in a row of its own.
    ///
    /// `seed` keys the hashes of credentials, `plan` gives the position of a plan by its name.
    pub fn load(
        text: &str,
        format: Format,
        seed: &[u8; 16],
        plan: &dyn Fn(&str) -> Option<usize>,
    ) -> Result<Self, Faults> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut building = Building::new(seed, plan);
        match format {
            Format::Csv => csv::read(text, &mut building),
            Format::Yaml => yaml::read(text, &mut building),
        }
        match building.faults.faults.is_empty() {
            true => Ok(building.directory),
            false => Err(building.faults),
        }
    }

    /// Whose credential this is.
    pub fn find(&self, credential: &[u8]) -> Option<Arc<Customer>> {
        let hash = self.hash(credential);
        let found = self.credentials.find(hash[0], |known| known.hash == hash)?;
        self.customers.get(usize::try_from(found.customer).ok()?).cloned()
    }

    /// How many credentials there are.
    pub fn len(&self) -> usize {
        self.credentials.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.credentials.is_empty()
    }

    /// Every customer once, in the order of the file.
    pub fn customers(&self) -> &[Arc<Customer>] {
        &self.customers
    }

    fn hash(&self, credential: &[u8]) -> [u64; 2] {
        let hash = self.hasher.hash(credential);
        [hash.h1, hash.h2]
    }
}

impl Default for Directory {
    /// Nobody.
    fn default() -> Self {
        Self { hasher: SipHasher13::new(), credentials: HashTable::new(), customers: Vec::new() }
    }
}

impl fmt::Debug for Directory {
    /// The seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({} customers, {} credentials)", self.customers.len(), self.credentials.len())
    }
}

/// A directory while it is read.
struct Building<'p> {
    directory: Directory,
    /// The line of each credential, by its hash.
    lines: HashMap<[u64; 2], u64>,
    /// Each customer's position, and the line that names it first.
    known: HashMap<String, (u32, u64)>,
    plan: &'p dyn Fn(&str) -> Option<usize>,
    faults: Faults,
}

impl<'p> Building<'p> {
    fn new(seed: &[u8; 16], plan: &'p dyn Fn(&str) -> Option<usize>) -> Self {
        let directory =
            Directory { hasher: SipHasher13::new_with_key(seed), credentials: HashTable::new(), customers: Vec::new() };
        Self { directory, lines: HashMap::new(), known: HashMap::new(), plan, faults: Faults::default() }
    }

    fn row(&mut self, line: u64, credential: &[u8], customer: &[u8], plan: &[u8]) {
        let credential = self.credential(line, credential);
        let plan = self.plan(line, plan);
        let customer = self.name(line, customer);
        let (Some(hash), Some(plan), Some(name)) = (credential, plan, customer) else {
            return;
        };
        if let Some(customer) = self.customer(line, name, plan) {
            self.directory.credentials.insert_unique(hash[0], Credential { hash, customer }, |known| known.hash[0]);
        }
    }

    fn credential(&mut self, line: u64, credential: &[u8]) -> Option<[u64; 2]> {
        let hash = self.directory.hash(credential);
        let fault = match credential {
            [] => Fault::EmptyField("credential"),
            _ if credential.starts_with(RESERVED_PREFIX) => Fault::HashedCredential,
            _ => match self.lines.entry(hash) {
                Entry::Occupied(first) => Fault::RepeatedCredential(*first.get()),
                Entry::Vacant(place) => {
                    place.insert(line);
                    return Some(hash);
                }
            },
        };
        self.faults.add(line, fault);
        None
    }

    fn plan(&mut self, line: u64, name: &[u8]) -> Option<usize> {
        let name = String::from_utf8_lossy(name);
        let fault = match (self.plan)(&name) {
            Some(plan) => return Some(plan),
            None if name.is_empty() => Fault::EmptyField("plan"),
            None => Fault::UnknownPlan(shorten(&name)),
        };
        self.faults.add(line, fault);
        None
    }

    fn name(&mut self, line: u64, name: &[u8]) -> Option<String> {
        let name = String::from_utf8_lossy(name).into_owned();
        let fault = match name.as_str() {
            "" => Fault::EmptyField("customer"),
            name if name.len() > MAX_NAME || name.contains(char::is_control) => Fault::BadName,
            _ => return Some(name),
        };
        self.faults.add(line, fault);
        None
    }

    /// The customer's position; a new customer gets one.
    fn customer(&mut self, line: u64, name: String, plan: usize) -> Option<u32> {
        if let Some((position, first)) = self.known.get(&name).copied() {
            let customer = self.directory.customers.get(usize::try_from(position).ok()?)?;
            if customer.plan == PlanId(plan) {
                return Some(position);
            }
            self.faults.add(line, Fault::OtherPlan { customer: shorten(&name), line: first });
            return None;
        }
        let Ok(position) = u32::try_from(self.directory.customers.len()) else {
            self.faults.add(line, Fault::TooMany);
            return None;
        };
        let (own, valid_until, suspended) = (None, None, false);
        self.directory.customers.push(Arc::new(Customer {
            name: name.as_str().into(),
            plan: PlanId(plan),
            own,
            valid_until,
            suspended,
        }));
        self.known.insert(name, (position, line));
        Some(position)
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default().escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests;
