//! What is kept of requests for those who look at a gateway while it runs.

use crate::telemetry::offenders::Offenders;
use crate::telemetry::recent::Recent;

/// Fed by requests that do not simply pass.
#[derive(Debug, Default)]
pub struct DenialRecorder {
    /// Who is denied most.
    pub offenders: Offenders,
    /// The last ones.
    pub recent: Recent,
}
