//! Conditions: conjunctions joined by `or`. A conjunction lists named ACLs and tests in braces, which must all be true.

use super::syntax::{Line, Section};
use crate::config::import::matches::{HeaderValue, Match, PathMatch, all_of, network, open_prefix_note};

/// The ACLs that HAProxy predefines.
const PREDEFINED: [(&str, &str); 8] = [
    ("METH_GET", "method GET HEAD"),
    ("METH_HEAD", "method HEAD"),
    ("METH_POST", "method POST"),
    ("METH_PUT", "method PUT"),
    ("METH_PATCH", "method PATCH"),
    ("METH_DELETE", "method DELETE"),
    ("METH_OPTIONS", "method OPTIONS"),
    ("LOCALHOST", "src 127.0.0.0/8"),
];

/// A condition: at least one of its conjunctions must be true.
pub(super) type Condition = Vec<Conjunction>;

/// Tests that must all be true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conjunction {
    pub(super) matches: Vec<Match>,
    /// Networks, one of which must contain the client; any client where the list is empty.
    pub(super) from: Vec<String>,
    /// Networks that must not contain the client.
    pub(super) except: Vec<String>,
    pub(super) over: Option<CounterThreshold>,
    /// Notes about tests that tollgate reads differently from HAProxy.
    pub(super) remarks: Vec<String>,
}

/// A comparison of a counter with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CounterThreshold {
    /// `http_req_rate`, `gpc0_rate`, ...
    pub(super) counter: String,
    pub(super) of: CounterSource,
    /// The counter must be above this number.
    pub(super) above: u64,
}

/// The place of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CounterSource {
    /// The entry that `track-scN` tracks, in this table if the condition names one.
    Slot(u8, Option<String>),
    /// The entry of the client's address in a table; an empty name stands for the proxy's own table.
    Source(String),
}

/// The tests of an ACL, of which at least one must be true; none where the section has no such ACL.
fn acl(section: &Section, name: &str) -> Vec<Vec<String>> {
    let predefined = PREDEFINED.iter().filter(|(known, _)| *known == name);
    let predefined = predefined.map(|(_, test)| test.split(' ').map(str::to_owned).collect());
    let own = section.all("acl").filter(|line| line.word(1) == name);
    predefined.chain(own.map(|line| line.words.get(2..).unwrap_or_default().to_vec())).collect()
}

/// Reads the condition behind `if` or `unless` in a line of a section; a line without one has a condition that is always
/// true. `Err` names the part that cannot be carried over.
pub(super) fn parse_condition(section: &Section, line: &Line) -> Result<Condition, String> {
    let at = line.words.iter().position(|word| word == "if" || word == "unless");
    let Some(at) = at else { return Ok(vec![Conjunction::always()]) };
    let words = line.words.get(at.saturating_add(1)..).unwrap_or_default();
    let alternatives = words.split(|word| word == "or" || word == "||").map(|words| terms(section, words));
    let mut alternatives = alternatives.collect::<Result<Vec<_>, _>>()?;
    if line.word(at) == "unless" {
        if alternatives.iter().any(|terms| terms.len() != 1) {
            return Err("`unless` of several tests that all have to be true".to_owned());
        }
        // `unless a or b` means: neither a nor b
        alternatives = vec![alternatives.into_iter().flatten().map(|(negated, tests)| (!negated, tests)).collect()];
    }
    let mut condition = Vec::new();
    for terms in alternatives {
        let mut all = vec![Conjunction::always()];
        for (negated, tests) in terms {
            let tests = tests.iter().map(|test| read(test)).collect::<Result<Vec<_>, _>>()?;
            all = match negated {
                true => all.iter().map(|one| without(one, &tests)).collect::<Result<_, _>>()?,
                false => and(&all, &tests)?,
            };
        }
        condition.extend(all);
    }
    Ok(condition)
}

/// A term: whether it is negated, and the tests of which at least one must be true.
type Term = (bool, Vec<Vec<String>>);

/// Reads the terms of a conjunction.
fn terms(section: &Section, words: &[String]) -> Result<Vec<Term>, String> {
    let (mut terms, mut rest, mut negated) = (Vec::new(), words, false);
    while let [first, behind @ ..] = rest {
        let name = first.trim_start_matches('!');
        negated ^= first.len().saturating_sub(name.len()) % 2 == 1;
        rest = behind;
        let tests = match name {
            "" => continue,
            "{" => {
                let end = rest.iter().position(|word| word == "}").ok_or("a brace without an end")?;
                let test = rest.get(..end).unwrap_or_default().to_vec();
                rest = rest.get(end.saturating_add(1)..).unwrap_or_default();
                vec![test]
            }
            name => match acl(section, name) {
                none if none.is_empty() => return Err(format!("the ACL {name}")),
                tests => tests,
            },
        };
        terms.push((std::mem::take(&mut negated), tests));
    }
    Ok(terms)
}

/// The conjunctions that are true where one of `all` and one of `tests` are true.
pub(super) fn and(all: &[Conjunction], tests: &[Conjunction]) -> Result<Vec<Conjunction>, String> {
    let mut found = Vec::new();
    for (one, test) in all.iter().flat_map(|one| tests.iter().map(move |test| (one, test))) {
        if one.over.is_some() && test.over.is_some() {
            return Err("two counters in one condition".to_owned());
        }
        if !one.from.is_empty() && !test.from.is_empty() {
            return Err("two lists of networks in one condition".to_owned());
        }
        found.push(Conjunction {
            matches: all_of(&one.matches, &test.matches),
            from: [one.from.as_slice(), &test.from].concat(),
            except: [one.except.as_slice(), &test.except].concat(),
            over: one.over.clone().or_else(|| test.over.clone()),
            remarks: [one.remarks.as_slice(), &test.remarks].concat(),
        });
    }
    found.retain(|one| !one.matches.is_empty());
    Ok(found)
}

/// The conjunction that is true where `one` is true and none of `tests` is.
fn without(one: &Conjunction, tests: &[Conjunction]) -> Result<Conjunction, String> {
    let mut found = one.clone();
    for test in tests {
        if test.over.is_some() || test.from.is_empty() || test.matches != [Match::default()] {
            return Err("the opposite of a test that is not of `src`".to_owned());
        }
        found.except.extend(test.from.iter().cloned());
    }
    Ok(found)
}

/// A test: a sample, its argument, how the sample is compared, and the values.
struct Test<'t> {
    sample: &'t str,
    argument: &'t str,
    method: Option<&'t str>,
    ignores_case: bool,
    values: Vec<&'t str>,
}

fn read(words: &[String]) -> Result<Conjunction, String> {
    let test = Test::parse(words)?;
    if let Some(matches) = test.matches() {
        return Ok(Conjunction { matches, remarks: test.remarks(), ..Conjunction::default() });
    }
    if let Some(from) = test.networks() {
        return Ok(Conjunction { from, ..Conjunction::always() });
    }
    let over = test.threshold().ok_or_else(|| format!("the test {}", words.join(" ")))?;
    Ok(Conjunction { over: Some(over), ..Conjunction::always() })
}

impl Conjunction {
    /// No test, which is always true.
    fn always() -> Self {
        Self { matches: vec![Match::default()], ..Self::default() }
    }
}

impl<'t> Test<'t> {
    fn parse(words: &'t [String]) -> Result<Self, String> {
        let [first, rest @ ..] = words else { return Err("an empty test".to_owned()) };
        let (sample, argument) = first.split_once('(').unwrap_or((first.as_str(), ""));
        let argument = argument.strip_suffix(')').unwrap_or(argument);
        let mut test = Self { sample, argument, method: None, ignores_case: false, values: Vec::new() };
        let mut words = rest.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "-i" => test.ignores_case = true,
                "--" => {}
                "-m" => test.method = words.next(),
                flag if flag.starts_with('-') => return Err(format!("the flag {flag} of {first}")),
                value => test.values.push(value),
            }
        }
        Ok(test)
    }

    /// The matches of which a request has to have one; `None` where routes do not go by this sample or value.
    fn matches(&self) -> Option<Vec<Match>> {
        let is_host = matches!(self.sample, "hdr" | "req.hdr" | "hdr_dom" | "hdr_end")
            && self.argument.eq_ignore_ascii_case("host");
        let each = |of: &dyn Fn(&str) -> Option<Match>| self.values.iter().map(|value| of(value)).collect();
        match (self.sample, self.method) {
            _ if self.is_prefix() => each(&|value| PathMatch::prefix(value).ok().map(Match::of_path)),
            ("path", None | Some("str")) => each(&|value| PathMatch::exact(value).ok().map(Match::of_path)),
            ("method", None) => each(&|value| Some(Match { methods: vec![value.to_owned()], ..Match::default() })),
            ("hdr" | "req.hdr", None | Some("str")) if is_host => each(&|value| Some(host(value.to_owned()))),
            ("hdr_end", None) | ("hdr" | "req.hdr", Some("end")) if is_host => {
                each(&|value| value.starts_with('.').then(|| host(format!("*{value}"))))
            }
            ("hdr" | "req.hdr", Some("found")) if !is_host => {
                Some(vec![Match::of_header(self.argument, HeaderValue::Any)])
            }
            ("hdr" | "req.hdr", None | Some("str")) => {
                each(&|value| Some(Match::of_header(self.argument, listed(value, self.ignores_case))))
            }
            _ => None,
        }
    }

    fn is_prefix(&self) -> bool {
        matches!((self.sample, self.method), ("path_beg", None) | ("path", Some("beg")))
    }

    /// Notes about paths that tollgate compares differently from HAProxy.
    fn remarks(&self) -> Vec<String> {
        let ignores_case = self.ignores_case && self.sample.starts_with("path");
        let case = ignores_case.then(|| "paths are compared with case".to_owned());
        let open = self.values.iter().filter(|_| self.is_prefix()).filter_map(|value| open_prefix_note(value));
        case.into_iter().chain(open).collect()
    }

    /// The networks, of which one has to contain the client.
    fn networks(&self) -> Option<Vec<String>> {
        let is_of_client = self.sample == "src" && self.method.is_none() && !self.values.is_empty();
        let is_known = is_of_client && self.values.iter().all(|value| network(value).is_some());
        is_known.then(|| self.values.iter().map(|value| (*value).to_owned()).collect())
    }

    fn threshold(&self) -> Option<CounterThreshold> {
        let (counter, of) = counter(self.sample, self.argument).filter(|_| self.method.is_none())?;
        Some(CounterThreshold { counter, of, above: above(&self.values)? })
    }
}

fn host(name: String) -> Match {
    Match { hosts: vec![name.to_ascii_lowercase()], ..Match::default() }
}

/// The condition that one of the values of a field, between its commas, is `value`.
fn listed(value: &str, ignores_case: bool) -> HeaderValue {
    let flag = if ignores_case { "(?i)" } else { "" };
    HeaderValue::Like(format!(r"{flag}(.*,)?\s*{}\s*(,.*)?", regex::escape(value)))
}

/// Parses `sc_http_req_rate(0,table)`, `sc0_http_req_rate(table)`, `src_http_req_rate(table)` or
/// `src,table_http_req_rate(table)`. Of the first two, the table may be absent.
fn counter(name: &str, argument: &str) -> Option<(String, CounterSource)> {
    if let Some(counter) = name.strip_prefix("src,table_").or_else(|| name.strip_prefix("src_")) {
        return Some((counter.to_owned(), CounterSource::Source(argument.to_owned())));
    }
    let rest = name.strip_prefix("sc")?;
    let (slot, counter, table) = match (rest.strip_prefix('_'), argument.split_once(',').unwrap_or((argument, ""))) {
        (Some(counter), (slot, table)) => (slot, counter, table),
        (None, _) => rest.split_once('_').map(|(slot, counter)| (slot, counter, argument))?,
    };
    let table = Some(table.trim().to_owned()).filter(|table| !table.is_empty());
    Some((counter.trim_start_matches("get_").to_owned(), CounterSource::Slot(slot.trim().parse().ok()?, table)))
}

/// Parses the number that a counter must be above.
fn above(values: &[&str]) -> Option<u64> {
    match values {
        ["gt", number] => number.parse().ok(),
        ["ge", number] => number.parse::<u64>().ok()?.checked_sub(1),
        _ => None,
    }
}
