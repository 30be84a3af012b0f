//! Names of settings that are not needed; other descriptions of tollgate have them.

/// The names, each with the reason. They are refused in every section.
pub(super) const NAMES: &[(&str, &str)] = &[
    (
        "sticky_by",
        "leave it out: the keys of sticky limits have their owners by themselves, and a request is charged by all of \
         its owners or by none",
    ),
    (
        "preflights",
        "leave it out: a preflight is answered where the file has `cors`, is forwarded with `cors: {preflight: forward}`, \
         and is a request like others elsewhere",
    ),
];
