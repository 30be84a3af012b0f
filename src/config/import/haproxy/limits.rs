//! Stick tables: the keys that `track-sc` counts by, and the counters above which rules deny requests.

use std::slice;

use super::Reader;
use super::conditions::{self, Condition, Conjunction, CounterSource, CounterThreshold};
use super::syntax::{Line, Section};
use crate::config::import::front::rules::{Access, Effects, ScopedAccess};
use crate::config::import::front::{GUARD, KeyPart, LimitSettings, PASS, denial};
use crate::config::import::matches::{Match, ScopedLimit, all_of};
use crate::config::problem::Mark;

/// The effects of the rules that a request passes: those of its frontend, then those of its backend.
#[derive(Clone, Default)]
pub(super) struct Rules<'l> {
    pub(super) effects: Effects,
    pub(super) trackers: Vec<Tracker<'l>>,
}

/// The settings of a `track-sc` line.
#[derive(Clone)]
pub(super) struct Tracker<'l> {
    slot: u8,
    key: KeyPart,
    /// The name of the section with its table.
    table: &'l str,
    when: Condition,
    /// Whether it counts requests for several backends, while a backend denies only its own.
    pub(super) is_shared: bool,
    /// Whether rules in front of it deny requests over a limit: HAProxy does not track these.
    follows_denials: bool,
}

/// The settings of a `sc-inc-gpc` line.
struct Increment {
    order: Order,
    /// `gpc0` or `gpc1`.
    counter: String,
    slot: u8,
    when: Condition,
}

/// A counter, as settings of a limit.
struct Counted {
    limit: u64,
    /// The value of `charge` in YAML, if it has one.
    charge: Option<&'static str>,
    /// The requests that the counter counts.
    when: Condition,
}

/// The phase of a rule and its place in the file.
type Order = (usize, Mark);

/// Counts denied requests as well.
const ALL: Option<&str> = Some("{ denied: true }");

/// Actions of rules that need no note: tollgate does the same anyway, or they do not concern limits.
const UNNEEDED: [&str; 3] = ["set-log-level", "capture", "inspect-delay"];

impl<'l> Reader<'l, '_> {
    /// Adds the rules of a section, and their limits.
    pub(super) fn add_rules(&mut self, section: &'l Section, added: &mut Rules<'l>) {
        let increments = self.increments(section);
        for (line, at) in rules(section) {
            let action = line.word(at);
            let done = match action {
                _ if action.starts_with("track-sc") => {
                    let tracker = self.tracker(section, line, at);
                    tracker.and_then(|one| self.add_tracker(line, one, added))
                }
                "deny" | "tarpit" | "return" | "reject" | "silent-drop" => {
                    self.denial(section, line, &increments, added)
                }
                "auth" => Err(GUARD.to_owned()),
                _ if action.starts_with("sc-inc-gpc") || UNNEEDED.contains(&action) => Ok(()),
                _ => Err("is not carried over".to_owned()),
            };
            if let Err(why) = done {
                self.note(line, &why);
            }
        }
    }

    /// Adds a tracker. `Err` says that trackers before it take its slot: HAProxy tracks a request once in each.
    fn add_tracker(&self, line: &Line, mut one: Tracker<'l>, added: &mut Rules<'l>) -> Result<(), String> {
        let Rules { effects, trackers } = added;
        let before = || trackers.iter().filter(|known| known.slot == one.slot).flat_map(|known| &known.when);
        let own = || one.when.iter().flat_map(|when| &when.matches);
        let takes = |own: &Match| {
            let of_all = before().filter(|when| when.except.is_empty()).flat_map(|when| &when.matches);
            of_all.into_iter().any(|taken| taken.contains(own))
        };
        if own().all(takes) {
            return Err("tracks nothing: a line before it takes its slot".to_owned());
        }
        if own().any(|own| before().flat_map(|when| &when.matches).any(|taken| taken.and(own).is_some())) {
            self.note(
                line,
                "counts requests that a line before it tracks, too: HAProxy tracks a request once in a slot",
            );
        }
        let own: Vec<Match> = own().cloned().collect();
        one.follows_denials = effects.limits.iter().any(|limit| !all_of(&limit.matches, &own).is_empty());
        trackers.push(one);
        Ok(())
    }

    /// The increments of general purpose counters in a section. They hold for denials in front of them as well.
    fn increments(&self, section: &Section) -> Vec<Increment> {
        let mut increments: Vec<Increment> = Vec::new();
        for (line, at) in rules(section) {
            let Some(action) = line.word(at).strip_prefix("sc-inc-").filter(|action| action.starts_with("gpc")) else {
                continue;
            };
            match self.increment(section, line, action) {
                Ok(one) => {
                    let is_twice = |known: &Increment| {
                        let is_both = conditions::and(&known.when, &one.when).is_ok_and(|both| !both.is_empty());
                        known.slot == one.slot && known.counter == one.counter && is_both
                    };
                    if increments.iter().any(is_twice) {
                        self.note(line, "counts requests that a line before it counts, too: here they count once");
                    }
                    increments.push(one);
                }
                Err(why) => self.note(line, &why),
            }
        }
        increments
    }

    fn increment(&self, section: &Section, line: &Line, action: &str) -> Result<Increment, String> {
        let parts = action.strip_suffix(')').and_then(|action| action.split_once('('));
        let slot = parts.and_then(|(counter, slot)| Some((counter, slot.parse().ok()?)));
        let (counter, slot) = slot.ok_or("is not carried over")?;
        let when = self.when(section, line, "counts")?;
        Ok(Increment { order: order(line), counter: counter.to_owned(), slot, when })
    }

    /// The requests that a line `tracks` or `counts`.
    fn when(&self, section: &Section, line: &Line, does: &str) -> Result<Condition, String> {
        let when = conditions::parse_condition(section, line)
            .map_err(|what| format!("is left out: {what} is not carried over"))?;
        if when.iter().any(|one| one.over.is_some() || !one.from.is_empty()) {
            return Err(format!(
                "is left out: what it {does} depends on more than host, path, method and header fields"
            ));
        }
        when.iter().flat_map(|one| &one.remarks).for_each(|remark| self.note(line, remark));
        Ok(when)
    }

    fn tracker(&self, section: &'l Section, line: &'l Line, at: usize) -> Result<Tracker<'l>, String> {
        let sample = line.word(at.saturating_add(1));
        let (name, argument) =
            sample.split_once('(').map_or((sample, ""), |(name, rest)| (name, rest.trim_end_matches(')')));
        let key = match name {
            "src" if argument.is_empty() => KeyPart::CLIENT_ADDRESS,
            "hdr" | "req.hdr" | "req.fhdr" if argument.eq_ignore_ascii_case("host") => KeyPart::Word("host"),
            "hdr" | "req.hdr" if argument.eq_ignore_ascii_case("x-forwarded-for") => {
                let message = "is left out with the limits that go by it: with `client_address: { trusted_proxies: [...] }`, `key: client_address` is like it";
                return Err(message.to_owned());
            }
            "hdr" | "req.hdr" | "req.fhdr" if !argument.contains(',') => {
                if name != "req.fhdr" {
                    self.note(line, "counts by the whole field: HAProxy counts by what stands behind its last comma");
                }
                KeyPart::of_header(argument.to_ascii_lowercase())
            }
            "url_param" | "urlp" if !argument.contains(',') => KeyPart::Field("query", argument.to_owned()),
            "cook" | "req.cook" => {
                self.note(line, "requests with an empty cookie share one count: HAProxy does not limit them");
                KeyPart::Field("cookie", argument.to_owned())
            }
            _ => return Err(format!("is left out with the limits that go by it: no key has a part like {sample}")),
        };
        let when = self.when(section, line, "tracks")?;
        let slot = line.word(at).trim_start_matches("track-sc").parse().map_err(|_| "has no number")?;
        Ok(Tracker {
            slot,
            key,
            table: line.option("table").unwrap_or_else(|| section.name()),
            when,
            is_shared: false,
            follows_denials: false,
        })
    }

    fn denial(
        &mut self,
        section: &'l Section,
        line: &Line,
        increments: &[Increment],
        Rules { effects, trackers }: &mut Rules<'l>,
    ) -> Result<(), String> {
        let condition =
            conditions::parse_condition(section, line).map_err(|what| format!("is left out: {what} {GUARD}"))?;
        for one in condition {
            one.remarks.iter().for_each(|remark| self.note(line, remark));
            match &one.over {
                None => {
                    effects.access.push(access(section, line, one)?);
                    let usual = if line.has("deny") { "403" } else { "" };
                    if line.option("deny_status").or_else(|| line.option("status")).unwrap_or(usual) != "403" {
                        self.note(line, "refuses requests with 403 here");
                    }
                    self.note_answer(line);
                }
                Some(_) if !one.from.is_empty() => {
                    return Err(format!("is left out: a limit holds for all networks but some, not for some{PASS}"));
                }
                Some(over) => {
                    let of = self.trackers_of(section, over, trackers);
                    if of.is_empty() {
                        return Err(format!("is left out: nothing that is carried over tracks its counter{PASS}"));
                    }
                    for tracker in &of {
                        match self.limit(line, tracker, increments, over, &one) {
                            Ok(limits) => self.add_limits(line, limits, effects),
                            Err(why) => self.note(line, &format!("{why}{PASS}")),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The trackers that count for a threshold. A table may have entries that rules behind the denial track.
    fn trackers_of(&self, section: &'l Section, over: &CounterThreshold, before: &[Tracker<'l>]) -> Vec<Tracker<'l>> {
        let of: Vec<_> = before.iter().filter(|tracker| tracker.counts(over, section)).cloned().collect();
        if !of.is_empty() || !matches!(over.of, CounterSource::Source(_)) {
            return of;
        }
        let all = rules(section).into_iter().filter(|(line, at)| line.word(*at).starts_with("track-sc"));
        let read = all.filter_map(|(line, at)| self.tracker(section, line, at).ok());
        read.filter(|tracker| tracker.counts(over, section)).collect()
    }

    fn add_limits(&self, line: &Line, limits: Vec<ScopedLimit>, effects: &mut Effects) {
        if limits.iter().any(|limit| self.answers_otherwise(limit, &effects.limits)) {
            self.note(
                line,
                "above several limits, the one that denies longest answers: HAProxy answers with the status of the first",
            );
        }
        effects.limits.extend(limits);
    }

    /// Adds the limit of a denial above a counter. Returns its scopes: none for a bound on connections.
    fn limit(
        &mut self,
        line: &Line,
        tracker: &Tracker<'l>,
        increments: &[Increment],
        over: &CounterThreshold,
        one: &Conjunction,
    ) -> Result<Vec<ScopedLimit>, String> {
        let name = over.counter.as_str();
        if name == "conn_cur" && tracker.key == KeyPart::CLIENT_ADDRESS {
            return self.bound_clients(line, tracker, over.above, one).map(|()| Vec::new());
        }
        let counted = self.counted(line, tracker, increments, over)?;
        let mut tables = self.sections.iter().filter(|section| section.name() == tracker.table);
        let period = tables.find_map(|section| period(section.all("stick-table").last()?, name));
        let period = period.ok_or_else(|| format!("is left out: the table {} stores no {name}", tracker.table))?;
        let scopes = conditions::and(&counted.when, slice::from_ref(one))?;
        if scopes.is_empty() {
            return Err("is left out: it denies other requests than those that its counter counts".to_owned());
        }
        let matches = |of: &Condition| of.iter().flat_map(|one| one.matches.clone()).collect::<Vec<_>>();
        let (own, tracked) = (matches(&scopes), matches(&conditions::and(&tracker.when, slice::from_ref(one))?));
        let counts_others = tracker.is_shared && name.starts_with("http_");
        let differences = [
            (own != tracked, "denies only requests that its counter counts: HAProxy denies all that it tracks"),
            (
                counts_others || own != matches(&counted.when),
                "counts the requests that it may deny: HAProxy counts all that it tracks",
            ),
            (
                tracker.follows_denials && counted.charge == ALL,
                "counts requests that rules in front of its `track-sc` line deny: HAProxy does not track them",
            ),
        ];
        differences.iter().filter(|(is_there, _)| *is_there).for_each(|(_, note)| self.note(line, note));
        let missing = matches!(tracker.key, KeyPart::Field(..)).then_some("skip");
        let more = [("missing_key", missing), ("charge", counted.charge)];
        let more = more.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned())));
        let settings = LimitSettings {
            algorithm: format!("algorithm: sliding_window, limit: {}, window: {period}", counted.limit),
            key: vec![tracker.key.clone()],
            more: more.chain(denial(self.status(line))).collect(),
        };
        let limit = self.front.limit(&format!("{}.{name}", tracker.table), tracker.table, settings);
        let scoped = |of: Conjunction| ScopedLimit { limit: limit.clone(), matches: of.matches, exempt: of.except };
        Ok(scopes.into_iter().map(scoped).collect())
    }

    /// Bounds the connections of each client.
    fn bound_clients(&mut self, line: &Line, tracker: &Tracker<'l>, max: u64, one: &Conjunction) -> Result<(), String> {
        let is_of_all = |one: &Conjunction| one.matches == [Match::default()] && one.except.is_empty();
        if !is_of_all(one) || !tracker.when.iter().all(is_of_all) {
            let why = "is left out: `connections.max_per_client` exempts no requests; `algorithm: concurrency` does";
            return Err(why.to_owned());
        }
        if self.sections.iter().filter(|section| section.is_frontend()).count() > 1 {
            self.note(line, "bounds the connections of a client to all listeners");
        }
        if let Err(why) = self.bound_connections("max_per_client", &max.to_string()) {
            self.note(line, &why);
        }
        Ok(())
    }

    /// Whether one of `others` holds for some requests of a limit, and denies them with another status.
    fn answers_otherwise(&self, limit: &ScopedLimit, others: &[ScopedLimit]) -> bool {
        let is_shared = |other: &ScopedLimit| !all_of(&limit.matches, &other.matches).is_empty();
        let over_limit = |of: &ScopedLimit| self.front.over_limit(&of.limit);
        others.iter().any(|other| is_shared(other) && over_limit(other) != over_limit(limit))
    }

    fn counted(
        &self,
        line: &Line,
        tracker: &Tracker<'_>,
        increments: &[Increment],
        over: &CounterThreshold,
    ) -> Result<Counted, String> {
        let tracked = || tracker.when.clone();
        let next = over.above.saturating_add(1);
        match over.counter.as_str() {
            "http_req_rate" if over.above > 0 => Ok(Counted { limit: over.above, charge: ALL, when: tracked() }),
            "http_err_rate" => {
                let charge = Some("{ when: response, if_status: [4xx] }");
                self.note(line, "counts the errors of upstreams: HAProxy counts its own denials, too");
                Ok(Counted { limit: next, charge, when: tracked() })
            }
            counter if counter.starts_with("gpc") && counter.ends_with("_rate") && over.above > 0 => {
                let name = counter.trim_end_matches("_rate");
                let counts = |one: &&Increment| one.counter == name && one.slot == tracker.slot;
                let own: Vec<&Increment> = increments.iter().filter(counts).collect();
                let when: Condition = own.iter().flat_map(|one| one.when.clone()).collect();
                let when = conditions::and(&tracker.when, &when)?;
                // with the increment in front, HAProxy counts every request; behind the denial, only requests that pass
                match own.iter().filter(|one| one.order < order(line)).count() {
                    _ if own.is_empty() => Err(format!("is left out: no rule here counts {name}")),
                    0 => Ok(Counted { limit: next, charge: None, when }),
                    before if before == own.len() => Ok(Counted { limit: over.above, charge: ALL, when }),
                    _ => Err(format!("is left out: rules in front of it and behind it count {name}")),
                }
            }
            counter => Err(format!("is left out: no limit is like {counter} > {}", over.above)),
        }
    }

    /// The status of the responses to denied requests.
    fn status(&self, line: &Line) -> u64 {
        let usual = match line.words.iter().find(|word| ["deny", "tarpit", "return"].contains(&word.as_str())) {
            Some(word) if word == "deny" => 403,
            Some(word) if word == "tarpit" => {
                self.note(line, "denied requests are answered at once");
                500
            }
            _ => {
                self.note(line, "denied requests are answered 429");
                429
            }
        };
        let told = line.option("deny_status").or_else(|| line.option("status")).and_then(|status| status.parse().ok());
        self.note_answer(line);
        match told.unwrap_or(usual) {
            status @ 400..=599 => status,
            _ => {
                self.note(line, "denied requests are answered 429");
                429
            }
        }
    }

    /// Adds a note about the parts of the answer to denied requests that are not carried over.
    fn note_answer(&self, line: &Line) {
        const PARTS: [&str; 9] = [
            "content-type", "string", "lf-string", "file", "lf-file", "errorfile", "errorfiles", "default-errorfiles",
            "hdr",
        ];
        let words = line.words.iter().take_while(|word| !["if", "unless"].contains(&word.as_str()));
        let lost: Vec<&str> = words.map(String::as_str).filter(|word| PARTS.contains(word)).collect();
        if !lost.is_empty() {
            self.note(line, &format!("is carried over without {}", lost.join(", ")));
        }
    }
}

impl Tracker<'_> {
    /// Whether the threshold's counter is one of the entries that this line tracks.
    fn counts(&self, over: &CounterThreshold, section: &Section) -> bool {
        match &over.of {
            CounterSource::Slot(slot, table) => {
                self.slot == *slot && table.as_deref().is_none_or(|table| table == self.table)
            }
            CounterSource::Source(table) => {
                let table = if table.is_empty() { section.name() } else { table.as_str() };
                self.key == KeyPart::CLIENT_ADDRESS && self.table == table
            }
        }
    }
}

/// The rules of a section in their order, each with the position of its action.
fn rules(section: &Section) -> Vec<(&Line, usize)> {
    let rules = section.lines.iter().filter(|line| matches!(line.word(0), "http-request" | "tcp-request"));
    let position = |line: &Line| {
        let has_phase = line.word(0) == "tcp-request" && line.word(1) != "inspect-delay";
        if has_phase { 2 } else { 1 }
    };
    let mut rules: Vec<_> = rules.map(|line| (line, position(line))).collect();
    rules.sort_by_key(|(line, _)| order(line));
    rules
}

/// The order of a rule: HAProxy evaluates those of a connection before those of a request.
fn order(line: &Line) -> Order {
    const PHASES: [&str; 3] = ["connection", "session", "content"];
    let phase = PHASES.iter().position(|phase| line.word(0) == "tcp-request" && line.word(1) == *phase);
    (phase.unwrap_or(PHASES.len()), line.mark)
}

/// The networks that a denial without a counter lets in or keeps out.
fn access(section: &Section, line: &Line, one: Conjunction) -> Result<ScopedAccess, String> {
    let status = line.option("status").and_then(|status| status.parse::<u64>().ok());
    if line.has("return") && status.is_none_or(|status| status < 400) {
        return Err("is not carried over: upstreams answer these requests".to_owned());
    }
    let is_allowed = |other: &Line| other.mark < line.mark && other.word(0) == line.word(0) && other.has("allow");
    let access = match (one.from.is_empty(), one.except.is_empty()) {
        (true, true) if section.lines.iter().any(is_allowed) => {
            return Err(format!("is left out: a denial behind an `allow` {GUARD}"));
        }
        (false, false) => return Err(format!("is left out: a denial of some networks but not of others {GUARD}")),
        (true, true) => Access::of_nobody(),
        _ => Access { allow: one.except, deny: one.from },
    };
    Ok(ScopedAccess { access, matches: one.matches })
}

/// The period of a counter, if the table stores the counter.
fn period(table: &Line, counter: &str) -> Option<String> {
    let stored = table.words.iter().zip(table.words.iter().skip(1)).filter(|(word, _)| *word == "store");
    let mut counters = stored.flat_map(|(_, counters)| counters.split(','));
    counters.find_map(|stored| time(stored.strip_prefix(counter)?.strip_prefix('(')?.strip_suffix(')')?))
}

/// Reads a length of time; a number without a unit is in milliseconds, as in HAProxy.
pub(super) fn time(text: &str) -> Option<String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let has_number = unit.len() < text.len();
    (has_number && ["", "us", "ms", "s", "m", "h", "d"].contains(&unit))
        .then(|| if unit.is_empty() { format!("{text}ms") } else { text.to_owned() })
}
