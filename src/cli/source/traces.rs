//! The settings for sending spans, from the configuration and the file that it names.

use std::path::Path;

use super::store::token;
use crate::config::{Problems, TraceFiles};
use crate::files::FileVersion;
use crate::runtime::delivery::BearerToken;
use crate::runtime::traces::Settings;

/// Reads the token's file that `configured` names; its path is relative to the configuration at `path`.
pub(super) fn open(path: &Path, configured: &TraceFiles, seen: &mut Vec<FileVersion>) -> Result<Settings, Problems> {
    let token = configured.token.as_ref().map(|named| token(path, named, seen)).transpose()?.map(BearerToken::new);
    Ok(Settings { token, service: configured.service.clone() })
}
