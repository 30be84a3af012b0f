//! What is fuzzed: for each reader of what others write, a property that holds for any bytes.
//!
//! `tests/library/fuzz.rs` runs these over the corpus and over some thousand mutations of it; `make fuzz` runs them for as long as
//! one likes, led by what the code does with its input. A target panics where its property does not hold.

mod access_log;
mod cluster_frame;
mod cluster_handshake;
mod config;
mod forwarded;
mod graphql;
mod host;
mod import;
mod input;
mod key;
mod path;
mod proxy_header;
mod redis_answer;
mod redis_reply;
mod response_field;
mod scalar;

/// One property.
pub(crate) struct Target {
    /// What `make fuzz` calls it; its corpus is in a directory of that name.
    pub(crate) name: &'static str,
    /// Panics where the property does not hold for these bytes.
    pub(crate) run: fn(&[u8]),
    /// How many mutations a test tries.
    #[allow(dead_code, reason = "the long run tries as many as it is told to")]
    pub(crate) tries: u32,
}

/// All of them.
pub(crate) const TARGETS: [Target; 15] = [
    Target { name: "path", run: path::run, tries: 20_000 },
    Target { name: "host", run: host::run, tries: 20_000 },
    Target { name: "forwarded", run: forwarded::run, tries: 20_000 },
    Target { name: "graphql", run: graphql::run, tries: 20_000 },
    Target { name: "proxy_header", run: proxy_header::run, tries: 20_000 },
    Target { name: "config", run: config::run, tries: 1_500 },
    Target { name: "scalar", run: scalar::run, tries: 20_000 },
    Target { name: "key", run: key::run, tries: 10_000 },
    Target { name: "redis_reply", run: redis_reply::run, tries: 10_000 },
    Target { name: "redis_answer", run: redis_answer::run, tries: 10_000 },
    Target { name: "cluster_frame", run: cluster_frame::run, tries: 2_000 },
    Target { name: "cluster_handshake", run: cluster_handshake::run, tries: 2_000 },
    Target { name: "access_log", run: access_log::run, tries: 5_000 },
    Target { name: "response_field", run: response_field::run, tries: 10_000 },
    Target { name: "import", run: import::run, tries: 3_000 },
];
