//! The settings of the senders (webhook, usage events, traces), from the configuration and the files that it names.

use super::name;
use super::named_files::{Files, Refused};
use crate::config::{LoadedConfig, NamedFile, Problem, WebhookFiles};
use crate::runtime::courier::QueueSettings;
use crate::runtime::delivery::BearerToken;
use crate::runtime::senders::SenderSettings;
use crate::runtime::webhook::Secrets;
use crate::runtime::{traces, usage_events, webhook};

/// Reads the files of the senders in `loaded`: the webhook's secrets, and the tokens for the receiver of usage events and for
/// the collector of traces.
pub(super) fn read(loaded: &LoadedConfig, files: &mut Files<'_>) -> Result<SenderSettings, Refused> {
    let webhook = loaded.webhook.as_ref().map(|configured| webhook(configured, files)).transpose();
    let usage_events = loaded.usage_events.as_ref().map(|configured| {
        Ok(usage_events::Settings {
            token: bearer_token(configured.token.as_ref(), files)?,
            queue: queue(&configured.queue, configured.max_queue, files),
            source: configured.source.clone(),
            every: configured.every,
        })
    });
    let traces = loaded.traces.as_ref().map(|configured| {
        let token = bearer_token(configured.token.as_ref(), files)?;
        Ok(traces::Settings { token, service: configured.service.clone() })
    });
    Ok(SenderSettings { webhook: webhook?, usage_events: usage_events.transpose()?, traces: traces.transpose()? })
}

fn webhook(configured: &WebhookFiles, files: &mut Files<'_>) -> Result<webhook::Settings, Refused> {
    let text = files.secret(&configured.secret)?;
    match Secrets::read(&text) {
        Some(secrets) => {
            Ok(webhook::Settings { queue: queue(&configured.queue, configured.max_queue, files), secrets })
        }
        None => {
            let problem = Problem::error(configured.secret.place.clone(), "names a file without secrets of a webhook");
            let found = format!("{} bytes in {}", text.len(), name(&files.path(&configured.secret)));
            let expected = "lines of `whsec_` and 24 to 64 bytes in base64: the secret, and those that it follows";
            let hint = "`echo \"whsec_$(openssl rand -base64 32)\"` makes one";
            Err(files.refuse(problem.found(found).expected(expected).hint(hint)))
        }
    }
}

fn queue(directory: &NamedFile, max: usize, files: &Files<'_>) -> QueueSettings {
    QueueSettings { directory: files.path(directory), max_bytes: u64::try_from(max).unwrap_or(u64::MAX) }
}

fn bearer_token(named: Option<&NamedFile>, files: &mut Files<'_>) -> Result<Option<BearerToken>, Refused> {
    Ok(named.map(|named| files.token(named)).transpose()?.map(BearerToken::new))
}
