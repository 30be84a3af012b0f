//! The settings of the senders (webhook, usage events, traces), from the configuration and the files that it names. Paths are
//! relative to the configuration at `path`.

use std::path::Path;

use super::store::{secret, token};
use super::{name, refuse};
use crate::cli::source::directory::resolve_path;
use crate::config::{NamedFile, Problem, Problems, TraceFiles, UsageFiles, WebhookFiles};
use crate::files::FileVersion;
use crate::runtime::courier::QueueSettings;
use crate::runtime::delivery::BearerToken;
use crate::runtime::webhook::Secrets;
use crate::runtime::{traces, usage_events, webhook};

/// Reads the file with the webhook's secrets.
pub(super) fn webhook(
    path: &Path,
    configured: &WebhookFiles,
    seen: &mut Vec<FileVersion>,
) -> Result<webhook::Settings, Problems> {
    let text = secret(path, &configured.secret, seen)?;
    match Secrets::read(&text) {
        Some(secrets) => Ok(webhook::Settings { queue: queue(path, &configured.queue, configured.max_queue), secrets }),
        None => {
            let problem = Problem::error(configured.secret.place.clone(), "names a file without secrets of a webhook");
            let found = format!("{} bytes in {}", text.len(), name(&resolve_path(path, &configured.secret)));
            let expected = "lines of `whsec_` and 24 to 64 bytes in base64: the secret, and those that it follows";
            let hint = "`echo \"whsec_$(openssl rand -base64 32)\"` makes one";
            Err(refuse(problem.found(found).expected(expected).hint(hint)))
        }
    }
}

/// Reads the file with the token for the receiver of usage events.
pub(super) fn usage_events(
    path: &Path,
    configured: &UsageFiles,
    seen: &mut Vec<FileVersion>,
) -> Result<usage_events::Settings, Problems> {
    let token = bearer_token(path, configured.token.as_ref(), seen)?;
    let queue = queue(path, &configured.queue, configured.max_queue);
    Ok(usage_events::Settings { queue, token, source: configured.source.clone(), every: configured.every })
}

/// Reads the file with the token for the collector of traces.
pub(super) fn traces(
    path: &Path,
    configured: &TraceFiles,
    seen: &mut Vec<FileVersion>,
) -> Result<traces::Settings, Problems> {
    let token = bearer_token(path, configured.token.as_ref(), seen)?;
    Ok(traces::Settings { token, service: configured.service.clone() })
}

fn queue(path: &Path, directory: &NamedFile, max: usize) -> QueueSettings {
    QueueSettings { directory: resolve_path(path, directory), most: u64::try_from(max).unwrap_or(u64::MAX) }
}

fn bearer_token(
    path: &Path,
    named: Option<&NamedFile>,
    seen: &mut Vec<FileVersion>,
) -> Result<Option<BearerToken>, Problems> {
    Ok(named.map(|named| token(path, named, seen)).transpose()?.map(BearerToken::new))
}
