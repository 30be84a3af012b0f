//! What the design promises and this version does not have.

/// Never, because it turned out to be of no use: refused with the reason, wherever it stands.
pub(super) const NEVER: &[(&str, &str)] = &[(
    "sticky_by",
    "leave it out: the keys of sticky limits have their owners by themselves, and a request is charged by all of its \
     owners or by none",
)];
