//! The directives that refuse requests: `allow` and `deny`, `return` and `internal`.

use ipnet::IpNet;

use super::Reader;
use super::syntax::Directive;
use crate::config::import::front::GUARD;
use crate::config::import::front::rules::Access;
use crate::config::import::matches::network;

/// Directives that refuse requests. tollgate does not carry them over, so more requests pass.
pub(super) const GUARDS: [&str; 6] =
    ["auth_basic", "auth_request", "auth_jwt", "limit_except", "ssl_verify_client", "valid_referers"];

/// The status of a `return` that refuses requests.
pub(super) fn refusal<'d>(block: impl IntoIterator<Item = &'d Directive>) -> Option<u64> {
    let returns = block.into_iter().filter(|one| one.name() == "return");
    returns.filter_map(|one| one.argument().parse::<u64>().ok()).find(|status| (400..600).contains(status))
}

/// Whether a location refuses all requests.
pub(super) fn refuses(location: &Directive) -> bool {
    let first = location.block().iter().find(|one| matches!(one.name(), "allow" | "deny"));
    let denies_all = first.is_some_and(|one| one.name() == "deny" && one.argument() == "all");
    denies_all || refusal(location.block()).is_some() || location.has("internal")
}

/// The directives of a block, and of the blocks inside it that are no locations, that refuse requests.
pub(super) fn refusing(block: &[Directive]) -> Vec<&Directive> {
    let of = |one| match Directive::name(one) {
        "limit_req" | "limit_conn" | "deny" | "internal" => vec![one],
        name if GUARDS.contains(&name) && one.argument() != "off" => vec![one],
        "location" => Vec::new(),
        _ if refusal([one]).is_some() => vec![one],
        _ => refusing(one.block()),
    };
    block.iter().flat_map(of).collect()
}

impl Reader<'_, '_> {
    /// Reads the `allow` and `deny` directives of a level, of which nginx takes the first that matches. `None` if they
    /// refuse nobody.
    pub(super) fn access(&self, rules: &[&Directive]) -> Option<Access> {
        let mut access = Access::default();
        for one in rules {
            let overlaps_allowed = |denied: &IpNet| {
                let mut allowed = access.allow.iter().filter_map(|allowed| network(allowed));
                allowed.any(|allowed| allowed.contains(denied) || denied.contains(&allowed))
            };
            match (one.name(), one.argument(), network(one.argument())) {
                ("deny", "all", _) if access.allow.is_empty() => return Some(Access::of_nobody()),
                ("deny", "all", _) => return Some(access),
                (_, "all", _) => break,
                ("allow", name, Some(_)) => access.allow.push(name.to_owned()),
                ("deny", name, Some(network)) if !overlaps_allowed(&network) => access.deny.push(name.to_owned()),
                _ => self.note(one, GUARD),
            }
        }
        (!access.deny.is_empty()).then(|| Access { allow: Vec::new(), ..access })
    }
}
