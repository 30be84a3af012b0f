//! Key sets that are fetched from where their issuer publishes them, by their URL or by OpenID Connect Discovery.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use http::Uri;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::keys::{KeyFault, Keys, MAX_KEY_SET};
use crate::clock::Clock;
use crate::customers::source::{RefreshLimits, Refreshed, Refresher, Source, SourceStatus};
use crate::fields::Fields;
use crate::http::upstream::{OwnRequest, fetch};
use crate::tls::TlsClient;
use crate::units::Nanos;

/// How long a request waits for keys that it needs and that are not fetched yet.
const PATIENCE: Nanos = Nanos::new(100_000_000);
/// The deadline for fetching a key set, including discovery.
const DEADLINE: Nanos = Nanos::from_secs(10);
/// The path where an issuer publishes the URL of its keys (OpenID Connect Discovery 1.0, section 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The place where a key set is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// At this URL.
    FixedUrl(Uri),
    /// At the URL in the configuration of this OpenID issuer.
    OidcIssuer(String),
}

/// The settings for fetching a key set. No `Debug`: they include client certificates.
#[derive(Clone)]
pub struct KeyEndpoint {
    /// The place of the key set.
    pub published: KeyLocation,
    /// The TLS settings for `https`.
    pub tls: Option<Arc<TlsClient>>,
    /// How long a set is used before it is fetched again, if the response does not ask for less.
    pub refresh: Nanos,
    /// The least time between two attempts.
    pub min_interval: Nanos,
    /// The accepted algorithms; if empty, all. A set without a key for any of them is not taken.
    pub algorithms: Vec<Algorithm>,
}

/// The current keys that tokens are verified with. Clones share the same set.
#[derive(Clone)]
pub struct KeySet {
    /// Absent until the keys are fetched.
    pub(super) keys: Arc<ArcSwapOption<Keys>>,
    /// Absent if the keys do not change.
    refresher: Option<Arc<Refresher>>,
}

impl From<Keys> for KeySet {
    fn from(keys: Keys) -> Self {
        Self { keys: Arc::new(ArcSwapOption::from_pointee(keys)), refresher: None }
    }
}

impl KeySet {
    /// The keys that `endpoint` publishes, which are fetched once the refresher runs. Until then those of the set `before`, from
    /// the same place and for the same algorithms, stay in force.
    pub fn published(endpoint: KeyEndpoint, before: Option<&Self>) -> Self {
        let known = before.and_then(|before| before.keys.load_full());
        let is_known = known.is_some();
        let (keys, hint) = (Arc::new(ArcSwapOption::from(known)), Arc::new(Notify::new()));
        let source = PublishedKeys { endpoint, keys: Arc::clone(&keys), text: Mutex::default() };
        let refresher = Refresher::new(source, hint);
        if let Some(before) = before.and_then(Self::refresher) {
            refresher.succeed(before);
            let SourceStatus { entries, fresh_at, .. } = before.status();
            if let (true, Some(at)) = (is_known, fresh_at) {
                refresher.resume(entries, at);
            }
        }
        Self { keys, refresher: Some(Arc::new(refresher)) }
    }

    /// The refresher that fetches the keys, if there is one.
    pub fn refresher(&self) -> Option<&Arc<Refresher>> {
        self.refresher.as_ref()
    }

    /// Has the keys fetched because one is missing, and waits for a tenth of a second at most. Returns whether the keys are
    /// the ones that the issuer publishes now.
    pub(super) async fn wait_for_refresh(&self, clock: &Arc<dyn Clock>) -> bool {
        match &self.refresher {
            Some(refresher) => refresher.wait_for_refresh(PATIENCE, clock).await,
            None => true,
        }
    }
}

struct PublishedKeys {
    endpoint: KeyEndpoint,
    keys: Arc<ArcSwapOption<Keys>>,
    /// The text that the current keys were read from.
    text: Mutex<String>,
}

#[async_trait]
impl Source for PublishedKeys {
    fn name(&self) -> &'static str {
        "jwks"
    }

    fn limits(&self) -> RefreshLimits {
        RefreshLimits { min_interval: self.endpoint.min_interval, deadline: DEADLINE }
    }

    async fn refresh(&self, _clock: &Arc<dyn Clock>) -> Result<Refreshed, String> {
        let url = match &self.endpoint.published {
            KeyLocation::FixedUrl(url) => url.clone(),
            KeyLocation::OidcIssuer(issuer) => self.discover(issuer).await?,
        };
        let (text, fields) = self.get(&url).await?;
        let said = |faults: &[KeyFault]| format!("the set at {} {}", shown(&url), described(faults));
        let (keys, unusable) = Keys::parse(&text).map_err(|faults| said(&faults))?;
        if !keys.fit(&self.endpoint.algorithms) {
            return Err(format!("the set at {} holds no key for any of the `algorithms`", shown(&url)));
        }
        let entries = keys.0.len();
        let mut in_force = self.text.lock();
        if *in_force != text {
            *in_force = text;
            // as RFC 7517 asks, section 5
            if !unusable.is_empty() {
                let reason = said(&unusable);
                tracing::warn!(reason, keys = unusable.len(), "published keys that cannot be used are ignored");
            }
            self.keys.store(Some(Arc::new(keys)));
        }
        let KeyEndpoint { refresh, min_interval, .. } = self.endpoint;
        let next = max_age(&fields).unwrap_or(refresh).max(min_interval).min(refresh);
        Ok(Refreshed { entries, next })
    }
}

impl PublishedKeys {
    /// The URL of the keys of `issuer`, from its configuration.
    async fn discover(&self, issuer: &str) -> Result<Uri, String> {
        let url: Uri = format!("{}{DISCOVERY}", issuer.trim_end_matches('/')).parse().map_err(|_| "is no URL")?;
        let (text, _) = self.get(&url).await?;
        let says = |what: &str| format!("the configuration of the issuer at {} {what}", shown(&url));
        let document: Value = serde_json::from_str(&text).map_err(|_| says("is not JSON"))?;
        // section 4.3: without this check, a configuration of another issuer could supply keys for this one
        if document.get("issuer").and_then(Value::as_str) != Some(issuer) {
            return Err(says("names another issuer"));
        }
        let keys = document.get("jwks_uri").and_then(Value::as_str).and_then(|keys| keys.parse::<Uri>().ok());
        let keys = keys.filter(|keys| keys.host().is_some()).ok_or_else(|| says("names no `jwks_uri`"))?;
        match url.scheme_str() == Some("https") && keys.scheme_str() != Some("https") {
            true => Err(says("names a `jwks_uri` without TLS")),
            false => Ok(keys),
        }
    }

    async fn get(&self, url: &Uri) -> Result<(String, Fields), String> {
        let request = OwnRequest {
            method: "GET",
            url,
            tls: self.endpoint.tls.as_ref(),
            fields: &[("accept", "application/json")],
            body: b"",
            max_answer: MAX_KEY_SET,
        };
        let answer = fetch(request).await.map_err(|error| format!("{}: {error}", shown(url)))?;
        if answer.status != 200 {
            return Err(format!("{} answers with status {}", shown(url), answer.status));
        }
        let text =
            String::from_utf8(answer.body).map_err(|_| format!("the answer of {} is not in UTF-8", shown(url)))?;
        Ok((text, answer.fields))
    }
}

/// A URL without its query, which may hold a secret.
fn shown(url: &Uri) -> String {
    let (scheme, authority) =
        (url.scheme_str().unwrap_or_default(), url.authority().map_or("", |named| named.as_str()));
    format!("{scheme}://{authority}{}", url.path())
}

/// The first fault, in words.
fn described(faults: &[KeyFault]) -> String {
    match faults.first() {
        Some(KeyFault { path, message, .. }) if path.is_empty() => message.clone(),
        Some(KeyFault { path, message, .. }) => format!("is wrong: {path} {message}"),
        None => "is wrong".to_owned(),
    }
}

/// The freshness lifetime that the response fields give (RFC 9111, section 5.2.2.1).
fn max_age(fields: &Fields) -> Option<Nanos> {
    let mut ages = fields.elements("cache-control").filter_map(|element| {
        let (name, seconds) = str::from_utf8(element).ok()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| seconds.trim().trim_matches('"').parse().ok())?
    });
    ages.next().map(Nanos::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_read_wherever_it_stands() {
        let age = |value: &str| {
            let mut fields = Fields::default();
            fields.push("cache-control", value);
            max_age(&fields)
        };
        for value in ["max-age=15", "public, max-age=15, must-revalidate", "Max-Age=\"15\", s-maxage=7"] {
            assert_eq!(age(value), Some(Nanos::from_secs(15)), "{value}");
        }
        for value in ["no-store", "max-age", "max-age=soon", "max-age=-1", "s-maxage=7"] {
            assert_eq!(age(value), None, "{value}");
        }
    }

    #[test]
    fn the_query_of_a_url_is_not_shown() {
        let url = "https://keys.example.com:8443/set?token=secret".parse().unwrap();
        assert_eq!(shown(&url), "https://keys.example.com:8443/set");
    }
}
