//! The TLS settings of upstreams, from the files that the configuration names.

use std::path::Path;
use std::sync::Arc;

use super::store::client;
use crate::config::{Problems, UpstreamTls};
use crate::files::FileVersion;
use crate::gateway::upstream::TlsConnector;

/// Reads the TLS files of the upstreams in the configuration at `path`; the connectors have the upstreams' positions.
pub(super) fn open(
    path: &Path,
    upstreams: &[Option<UpstreamTls>],
    seen: &mut Vec<FileVersion>,
) -> Result<Vec<Option<Arc<TlsConnector>>>, Problems> {
    let mut errors = Vec::new();
    let mut opened = Vec::new();
    for configured in upstreams {
        let read = configured
            .as_ref()
            .map(|configured| (configured, client(path, &configured.files, &configured.place, seen)));
        opened.push(match read {
            None => None,
            Some((configured, Ok((client, files)))) => {
                Some(Arc::new(TlsConnector::new(client, configured.server_name.clone(), files)))
            }
            Some((_, Err(problems))) => {
                errors.extend(problems.errors);
                None
            }
        });
    }
    if errors.is_empty() { Ok(opened) } else { Err(Problems { errors, warnings: Vec::new(), more: 0 }) }
}
