//! What the design promises and this version does not have yet: the one list of it.
//!
//! A name on it is refused as "not supported by this version" instead of as unknown. Whoever builds one takes it off.

pub(super) const TOP: &[&str] = &["cluster"];
pub(super) const ROUTE: &[&str] = &["sticky_by"];
