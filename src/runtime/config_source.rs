//! The configuration as the runtime receives it from its caller, and the way to read it again.

use std::net::SocketAddr;

use super::senders::SenderSettings;
use super::state::StateFile;
pub use crate::admin::access::{AccessRules, Token};
pub use crate::admin::replays::ReplaySettings;
use crate::cluster::settings::ClusterSettings;
use crate::files::FileVersion;
pub use crate::gateway::active_config::CompiledConfig;
use crate::ruleset::Endpoint;
pub use crate::store::shared::{KeySecret, StoreSettings};

/// The parts of a configuration, read completely.
pub struct GatewayParts {
    /// The addresses for clients, in the order of `rules.listeners`.
    pub listeners: Vec<Endpoint>,
    /// The address for operators.
    pub admin: SocketAddr,
    /// The number of threads that serve clients.
    pub workers: usize,
    /// The access rules of the admin port.
    pub access: AccessRules,
    /// The compiled rules for requests.
    pub rules: CompiledConfig,
    /// The file that keeps states over restarts, if there is one.
    pub state: Option<StateFile>,
    /// The store of shared limits, if there are any. Cannot change, except for its credentials.
    pub store: Option<StoreSettings>,
    /// The cluster of gateways, if there is one. A reload can change only its peers.
    pub cluster: Option<ClusterSettings>,
    /// The settings of the senders.
    pub senders: SenderSettings,
    /// Warnings about suspicious settings.
    pub warnings: Vec<String>,
}

/// The result of reading a configuration.
pub struct LoadResult {
    /// Every file that was read for it or could not be read; these files are watched.
    pub files: Vec<FileVersion>,
    /// The configuration, or all its errors.
    pub outcome: Result<GatewayParts, Vec<String>>,
}

/// The way to read a configuration.
pub trait Loader: Send {
    /// Reads the whole configuration again, and reuses parts of the one in force. May block.
    fn load(&mut self) -> LoadResult;

    /// Notes that the configuration of the last [`Loader::load`] is in force.
    fn confirm(&mut self);
}

/// The source of a configuration, for reloads.
pub struct ConfigSource {
    /// Reads the configuration.
    pub loader: Box<dyn Loader>,
    /// The files from which the active configuration was read.
    pub files: Vec<FileVersion>,
}
