//! `webhook:`: the receiver of messages about keys that reach a percentage of `warn_at`.

use crate::config::names::Names;
use crate::config::read::{Field, Section};
use crate::config::settings::WEBHOOK;
use crate::config::store::{NamedFile, named_file};
use crate::ruleset::{UpstreamId, Webhook};
use crate::units::Nanos;

/// The settings and files for sending messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFiles {
    /// The file of the secrets that sign messages.
    pub secret: NamedFile,
    /// The directory of the queue.
    pub queue: NamedFile,
    /// The largest size of the queue, in bytes.
    pub max_queue: usize,
}

const DEFAULT_MAX_QUEUE: usize = 16 << 20;
const DEFAULT_KEEP: Nanos = Nanos::from_secs(24 * 3_600);
const A_FILE: &str = "the name of a file, like `webhook.secret`";
const A_DIRECTORY: &str = "the name of a directory, like `webhook.queue`";

/// Reads `webhook:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>, upstreams: &Names) -> Option<Option<(Webhook, WebhookFiles)>> {
    top.get_with("webhook", |field| {
        let section = field.section(&WEBHOOK)?;
        let upstream = section.required("upstream", "the name of an upstream");
        let upstream = upstream.and_then(|field| upstreams.resolve(&field)).map(UpstreamId);
        let path = section.get_or("path", "/".to_owned(), |field| field.plain_path("a path, like `/tollgate`"));
        let secret = section.required("secret_file", A_FILE).and_then(|field| named_file(&field, A_FILE));
        let queue = section.required("queue", A_DIRECTORY).and_then(|field| named_file(&field, A_DIRECTORY));
        let max_queue = section.get_or("max_queue", DEFAULT_MAX_QUEUE, Field::size);
        let keep = section.get_or("keep", DEFAULT_KEEP, Field::duration);
        let webhook = Webhook { upstream: upstream?, path: path?, keep: keep? };
        Some((webhook, WebhookFiles { secret: secret?, queue: queue?, max_queue: max_queue? }))
    })
}

/// Warns of a webhook that never gets a message, because no limit has `warn_at`.
pub(super) fn warn_if_idle(top: &Section<'_>, warns: bool) {
    if let Some(field) = top.get("webhook").filter(|_| !warns) {
        field.warn("is told of keys at the marks of `warn_at`, and no limit has any", None);
    }
}
