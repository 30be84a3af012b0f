//! `mode` of a limit, and the settings that belong to it.

use crate::algorithm::Rule;
use crate::charge::{Consistency, Mode, OnStoreDown, Sharing};
use crate::config::problem::Problem;
use crate::config::read::{Field, Section};
use crate::config::terms::FileScope;
use crate::ruleset::limit::OnChange;
use crate::store::shared::check_shareable;

/// The settings that only shared limits have.
const OF_SHARED: [&str; 3] = ["consistency", "strict", "on_store_down"];

/// Reads `mode`, `consistency`, `strict` and `on_store_down`.
pub(super) fn read(section: &Section<'_>, scope: FileScope) -> Option<Mode> {
    let shared = section.get_or("mode", false, |field| field.choice(&[("sticky", false), ("shared", true)]));
    let leased = Consistency::Leased { strict: None };
    let words = [("exact", Consistency::Exact), ("leased", leased), ("eventual", Consistency::Eventual)];
    let consistency = section.get_or("consistency", Consistency::default(), |field| field.choice(&words));
    let strict = section.flag("strict");
    let words = [
        ("divide", OnStoreDown::Divide),
        ("local", OnStoreDown::Local),
        ("allow", OnStoreDown::Allow),
        ("deny", OnStoreDown::Deny),
    ];
    let on_store_down = section.get_or("on_store_down", OnStoreDown::default(), |field| field.choice_renamed(&words));
    if !shared? {
        return match OF_SHARED.iter().find_map(|key| section.get(key)) {
            Some(field) => {
                let problem = field.key_error("says how gateways share a limit, and this one is not shared");
                field.fail(problem.hint("write `mode: shared`, or leave it out"))
            }
            None => Some(Mode::Sticky),
        };
    }
    if let (FileScope::Gateway { store: false, .. }, Some(field)) = (scope, section.get("mode")) {
        let problem = Problem::error(field.place(), "needs a place that gateways share, and the file names no `store`");
        return field.fail(problem.hint("write `store: {redis: \"redis://127.0.0.1:6379/0\"}`"));
    }
    let nodes = match scope {
        FileScope::Gateway { nodes, .. } => nodes,
        FileScope::LimitsOnly => Some(1),
    };
    let consistency = match (consistency?, strict) {
        (other, false) => other,
        (Consistency::Leased { .. }, true) if nodes.is_some() => Consistency::Leased { strict: nodes },
        (Consistency::Leased { .. }, true) => {
            let field = section.get("strict")?;
            let message =
                "takes off the burst what all gateways may hold, and the file does not say how many there are";
            return field
                .fail(Problem::error(field.place(), message).hint("write `nodes: 3` in `store`, if there are three"));
        }
        (_, true) => {
            let field = section.get("strict")?;
            let problem = Problem::error(field.place(), "is for limits whose tokens gateways take ahead");
            return field.fail(problem.hint("write `consistency: leased`, or leave it out"));
        }
    };
    Some(Mode::Shared(Sharing { consistency, on_store_down: on_store_down? }))
}

/// Reads `on_change`, at `field`, of a limit with this `mode`.
pub(super) fn on_change(field: &Field<'_>, mode: Option<Mode>) -> Option<OnChange> {
    let on_change = field.choice(&[("carry", OnChange::Carry), ("reset", OnChange::Reset)])?;
    if on_change == OnChange::Reset && mode.is_some_and(Mode::is_shared) {
        let message = "is for sticky limits: Redis keeps what the keys of a shared limit have used";
        let hint = "to begin afresh give the limit another name, or reset a key with `tollgate keys reset`";
        return field.fail(Problem::error(field.place(), message).hint(hint));
    }
    Some(on_change)
}

/// Refuses, at `field`, rules that cannot be shared with the settings of `mode`.
pub(super) fn check<'r>(field: &Field<'_>, mode: Mode, rules: impl IntoIterator<Item = &'r Rule>) -> Option<()> {
    let Mode::Shared(sharing) = mode else { return Some(()) };
    for rule in rules {
        if let Err(unshared) = check_shareable(rule, sharing) {
            let message = format!("cannot be shared like this: {unshared}");
            return field.fail(field.key_error(message));
        }
    }
    Some(())
}
