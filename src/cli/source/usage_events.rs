//! The settings for sending usage events, from the configuration and the file that it names.

use std::path::Path;

use super::store::token;
use crate::cli::source::directory::resolve_path;
use crate::config::{Problems, UsageFiles};
use crate::files::FileVersion;
use crate::runtime::courier::QueueSettings;
use crate::runtime::delivery::BearerToken;
use crate::runtime::usage_events::Settings;

/// Reads the token's file that `configured` names; its path is relative to the configuration at `path`.
pub(super) fn open(path: &Path, configured: &UsageFiles, seen: &mut Vec<FileVersion>) -> Result<Settings, Problems> {
    let token = configured.token.as_ref().map(|named| token(path, named, seen)).transpose()?.map(BearerToken::new);
    let most = u64::try_from(configured.max_queue).unwrap_or(u64::MAX);
    let queue = QueueSettings { directory: resolve_path(path, &configured.queue), most };
    Ok(Settings { queue, token, source: configured.source.clone(), every: configured.every })
}
