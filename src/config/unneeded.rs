//! Names that other descriptions of tollgate have and nobody needs.

/// Refused wherever they stand, with the reason.
pub(super) const NAMES: &[(&str, &str)] = &[(
    "sticky_by",
    "leave it out: the keys of sticky limits have their owners by themselves, and a request is charged by all of its \
     owners or by none",
)];
