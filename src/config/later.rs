//! What the design promises and this version does not have yet: the one list of it.
//!
//! A name on it is refused as "not supported by this version" instead of as unknown. Whoever builds one takes it off.

pub(super) const TOP: &[&str] = &["cluster", "state", "bypass"];
pub(super) const LISTENER: &[&str] = &["tls"];
pub(super) const IDENTIFY: &[&str] = &["jwt"];
pub(super) const STORE: &[&str] = &["tls"];
pub(super) const LIMIT: &[&str] = &["consistency", "strict", "on_store_down", "enabled_percent", "shadow"];
pub(super) const MODE: &[&str] = &["shared"];
pub(super) const KEY_MAPPING: &[&str] = &["jwt_claim"];
pub(super) const OVER_LIMIT: &[&str] = &["divert", "mark"];
pub(super) const ROUTE: &[&str] = &["sticky_by", "bypass"];
