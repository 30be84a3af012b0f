//! The settings of the webhook, from the configuration and the file that it names.

use std::path::Path;

use super::store::secret;
use super::{name, refuse};
use crate::cli::source::directory::resolve_path;
use crate::config::{Problem, Problems, WebhookFiles};
use crate::files::FileVersion;
use crate::runtime::courier::QueueSettings;
use crate::runtime::webhook::{Secrets, Settings};

/// Reads the secrets' file that `configured` names; its path is relative to the configuration at `path`.
pub(super) fn open(path: &Path, configured: &WebhookFiles, seen: &mut Vec<FileVersion>) -> Result<Settings, Problems> {
    let text = secret(path, &configured.secret, seen)?;
    let most = u64::try_from(configured.max_queue).unwrap_or(u64::MAX);
    match Secrets::read(&text) {
        Some(secrets) => {
            Ok(Settings { queue: QueueSettings { directory: resolve_path(path, &configured.queue), most }, secrets })
        }
        None => {
            let problem = Problem::error(configured.secret.place.clone(), "names a file without secrets of a webhook");
            let found = format!("{} bytes in {}", text.len(), name(&resolve_path(path, &configured.secret)));
            let expected = "lines of `whsec_` and 24 to 64 bytes in base64: the secret, and those that it follows";
            let hint = "`echo \"whsec_$(openssl rand -base64 32)\"` makes one";
            Err(refuse(problem.found(found).expected(expected).hint(hint)))
        }
    }
}
