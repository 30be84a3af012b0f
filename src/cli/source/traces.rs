//! The settings for sending spans, from the configuration and the file that it names.

use std::path::Path;

use super::store::token;
use crate::config::{Problems, TraceFiles};
use crate::files::FileVersion;
use crate::runtime::delivery::BearerToken;
use crate::runtime::traces::Settings;

/// Reads the token's file that `says` names; its path is relative to the configuration at `path`.
pub(super) fn open(path: &Path, says: &TraceFiles, seen: &mut Vec<FileVersion>) -> Result<Settings, Problems> {
    let token = says.token.as_ref().map(|named| token(path, named, seen)).transpose()?.map(BearerToken::new);
    Ok(Settings { token, service: says.service.clone() })
}
