//! Notes on the numbers of a report, above all on values that the log lacks.

use std::io::Write;

use super::fields::WantedFields;
use super::play::{Player, RulesetRun};
use super::reorder::ReorderStats;
use crate::algorithm::AlgorithmName;
use crate::charge::Mode;
use crate::customers::Directory;
use crate::ruleset::limit::MissingKey;
use crate::units::Nanos;

/// The log of one server is not out of order by more than this.
const FAR: Nanos = Nanos::from_secs(60);

/// The notes of a report, each a sentence.
pub(super) fn of<W: Write>(player: &Player<W>, disorder: ReorderStats, wanted: &WantedFields) -> Vec<String> {
    let mut notes = Vec::new();
    if disorder.late > 0 {
        let hint = match disorder.by > FAR {
            true => "; is a clock wrong, or are these logs of several servers in one file?",
            false => "",
        };
        let ReorderStats { late, by } = disorder;
        notes.push(format!(
            "{} out of order, by {by} at most: each came at the time of the one before it{hint}",
            counted(late, "request")
        ));
    }
    let coarse = player.lines.whole_seconds;
    if coarse > 0 {
        notes.push(format!(
            "{} timestamps in whole seconds: the requests of one second are spread evenly over it, in the order of their \
             lines; bursts within a second do not show",
            counted_with(coarse, "line", ["has", "have"]),
        ));
    }
    let readable = player.lines.all.saturating_sub(player.lines.unreadable);
    for (name, count) in wanted.headers.iter().zip(&player.lines.header_counts) {
        if *count == 0 && readable > 0 && wanted.rule_headers.contains(name) {
            notes.push(format!(
                "no line tells the header {name}, which the rules ask for (--field header.{name}=PATH says where it is)"
            ));
        }
    }
    let sides = std::iter::once(&player.side).chain(player.against.as_ref().map(|(side, _)| side));
    let several = player.against.is_some();
    for side in sides {
        let place = if several { format!("{}: ", side.name) } else { String::new() };
        notes.extend(of_side(side).into_iter().map(|note| format!("{place}{note}")));
    }
    notes
}

/// The notes on values of requests, callers and costs that the log lacks.
fn missing_input_notes(side: &RulesetRun) -> Vec<String> {
    let (rules, missing) = (side.replayer.rules(), side.replayer.missing_inputs());
    let anonymous = match rules.ruleset.customers.as_ref().and_then(|rules| rules.anonymous) {
        Some(_) => "count as anonymous callers, told apart by address",
        None => "are refused",
    };
    let unasked = match *rules.directory {
        Directory::Lookup(_) => Some("Redis or a service, which"),
        Directory::Postgres(_) if rules.directory.table().is_none() => {
            Some("PostgreSQL, of which there is no snapshot and which")
        }
        Directory::Empty | Directory::File(_) | Directory::Postgres(_) => None,
    };
    let header = rules.ruleset.client_address.header.name();
    let note = |count: u64, what, verbs, rest: &str| {
        (count > 0).then(|| format!("{} {rest}", counted_with(count, what, verbs)))
    };
    let notes = [
        note(
            missing.requests,
            "line",
            ["tells", "tell"],
            "no method or no path: counted as malformed (--field method=PATH and --field path=PATH say where they are)",
        ),
        note(
            missing.callers,
            "request",
            ["tells of no customer and shows", "tell of no customer and show"],
            &format!(
                "no credential: they {anonymous} (--plan gives them a plan, --field customer=PATH says where the name is)"
            ),
        ),
        note(
            missing.customers,
            "request",
            ["of"; 2],
            "customers whom the directory does not hold, and nothing tells their plan: they are treated as unknown \
             (--plan gives them a plan)",
        ),
        unasked.map(|server| {
            format!("customers stand in {server} is not asked: plans are those of the lines, or of --plan")
        }),
        note(missing.addresses, "request", ["tells", "tell"], "no address"),
        note(
            missing.clients,
            "request",
            ["comes", "come"],
            &format!(
                "from trusted proxies without the header {header}: they count by the addresses of the proxies (--field \
                 header.{header}=PATH says where it is)"
            ),
        ),
        note(missing.costs, "request", ["whose"; 2], "cost only the response told: what was reserved stays taken"),
    ];
    notes.into_iter().flatten().collect()
}

fn of_side(side: &RulesetRun) -> Vec<String> {
    let mut notes = missing_input_notes(side);
    let (replayer, ruleset) = (&side.replayer, &side.replayer.rules().ruleset);
    for limit in ruleset.limits.iter().filter(|limit| limit.mode != Mode::Sticky) {
        notes.push(format!("limit `{}` is shared by gateways: it is decided here as if in one place", limit.name));
    }
    for limit in &ruleset.limits {
        let name = &limit.name;
        match limit.algorithm {
            AlgorithmName::AdaptiveConcurrency => notes.push(format!(
                "limit `{name}` (adaptive_concurrency) cannot be replayed: it would have changed the latencies that the log \
                 tells, which it goes by; its numbers say little"
            )),
            AlgorithmName::Concurrency => notes.push(format!(
                "limit `{name}` holds each request for as long as the log says that it took, without this limit; where it \
                 does not say, for --hold"
            )),
            _ => {}
        }
    }
    for (limit, part, count) in replayer.missing() {
        let limit = &ruleset.limits[limit.0];
        let what = match limit.missing_key {
            MissingKey::Deny => "they are refused",
            MissingKey::SharedBucket => "they share one bucket",
            MissingKey::Skip => "it does not apply to them",
        };
        let (name, part, lack) = (&limit.name, part.describe(), counted_with(count, "request", ["lacks", "lack"]));
        notes.push(format!("limit `{name}`: {lack} its key's {part}: {what}"));
    }
    for (name, count) in replayer.overflowed() {
        notes.push(format!(
            "limit `{name}`: more keys than its `max_keys`: {count} charges of new keys went to a common bucket"
        ));
    }
    if let Some(count) = side.tally.refused.get("no_route") {
        let hint = match ruleset.matcher.routes().iter().any(|route| !route.hosts.is_empty()) {
            true => "; where the log tells no hosts, --host does",
            false => "",
        };
        let paths = side.tally.most_unrouted();
        let named: Vec<String> = paths.iter().take(3).map(|(first, count)| format!("{first} ({count})")).collect();
        let named = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        let more = if paths.len() > 3 { " and others" } else { "" };
        notes.push(format!("{} no route{named}{more}{hint}", counted_with(*count, "request", ["takes", "take"])));
    }
    notes
}

/// A number of things.
pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number of things, and the verb in the form for one or for several.
fn counted_with(count: u64, what: &str, [one, several]: [&str; 2]) -> String {
    format!("{} {}", counted(count, what), if count == 1 { one } else { several })
}
