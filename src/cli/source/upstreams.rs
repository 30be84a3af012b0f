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
    for says in upstreams {
        let read = says.as_ref().map(|says| (says, client(path, &says.files, &says.place, seen)));
        opened.push(match read {
            None => None,
            Some((says, Ok((client, files)))) => {
                Some(Arc::new(TlsConnector::new(client, says.server_name.clone(), files)))
            }
            Some((_, Err(problems))) => {
                errors.extend(problems.errors);
                None
            }
        });
    }
    if errors.is_empty() { Ok(opened) } else { Err(Problems { errors, warnings: Vec::new(), more: 0 }) }
}
