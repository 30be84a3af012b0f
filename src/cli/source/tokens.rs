//! The keys that verify tokens, from the file or the issuer that the configuration names.

use std::path::Path;
use std::sync::Arc;

use http::uri::Scheme;
use jsonwebtoken::Algorithm;

use super::directory::RowContext;
use super::name;
use super::named_files::{Files, Refused};
use crate::config::{Jwks, JwksAddress, JwksSource, Mark, NamedFile, Place, Problem, PublishedJwks};
use crate::customers::TokenVerifier;
use crate::customers::jwt::keys::{KeyFault, Keys, MAX_KEY_SET};
use crate::customers::jwt::remote::{KeyEndpoint, KeyLocation, KeySet};
use crate::units::Nanos;

/// Fetched keys, and the settings for fetching them.
#[derive(Clone)]
pub(super) struct OpenKeys {
    /// The address, and the accepted algorithms.
    from: (JwksAddress, Vec<Algorithm>),
    /// A hash of the TLS files, the refresh interval, and the shortest interval.
    terms: (u128, Nanos, Nanos),
    keys: KeySet,
}

/// Opens the keys that the configuration names; `context` has the plans and groups that tokens refer to. Fetched keys that
/// were `kept` are reused if they are from the same address.
pub(super) fn open(
    jwks: &Jwks,
    RowContext { overrides, groups }: RowContext<'_>,
    kept: &mut Option<OpenKeys>,
    files: &mut Files<'_>,
) -> Result<TokenVerifier, Refused> {
    let algorithms = &jwks.rules.algorithms;
    let keys = match &jwks.source {
        JwksSource::File(named) => keys_in(named, algorithms, files)?.into(),
        JwksSource::Published(published) => published_keys((published, algorithms), kept, files)?,
    };
    Ok(TokenVerifier::new(Arc::clone(&jwks.rules), keys, overrides.plans(), Arc::clone(groups), &rand::random()))
}

fn keys_in(named: &NamedFile, algorithms: &[Algorithm], files: &mut Files<'_>) -> Result<Keys, Refused> {
    match Keys::parse(&files.text(named, MAX_KEY_SET)?) {
        Ok((keys, unusable)) if unusable.is_empty() => {
            if keys.fit(algorithms) {
                return Ok(keys);
            }
            Err(files.refuse(files.unfit(named, "holds no key for any of the `algorithms`")))
        }
        Ok((_, faults)) | Err(faults) => {
            let file = files.path(named);
            let errors: Vec<Problem> = faults.into_iter().map(|fault| explain_key(&file, fault)).collect();
            Err(files.refuse(errors))
        }
    }
}

fn published_keys(
    (published, algorithms): (&PublishedJwks, &[Algorithm]),
    kept: &mut Option<OpenKeys>,
    files: &mut Files<'_>,
) -> Result<KeySet, Refused> {
    let PublishedJwks { at, tls, refresh, min_interval } = published;
    let (address, has_tls) = match at {
        JwksAddress::Url(url) => (KeyLocation::FixedUrl(url.clone()), url.scheme() == Some(&Scheme::HTTPS)),
        JwksAddress::Issuer(issuer) => (KeyLocation::OidcIssuer(issuer.clone()), issuer.starts_with("https:")),
    };
    let client = has_tls.then(|| files.tls_client(tls)).transpose()?;
    let (tls, tls_files) = client.map(|(client, files)| (Arc::new(client), files)).unzip();
    let (from, terms) = ((at.clone(), algorithms.to_vec()), (tls_files.unwrap_or_default(), *refresh, *min_interval));
    let before = kept.as_ref().filter(|open| open.from == from);
    if let Some(open) = before.filter(|open| open.terms == terms) {
        return Ok(open.keys.clone());
    }
    let (refresh, min_interval, algorithms) = (*refresh, *min_interval, algorithms.to_vec());
    let endpoint = KeyEndpoint { published: address, tls, refresh, min_interval, algorithms };
    let keys = KeySet::published(endpoint, before.map(|open| &open.keys));
    *kept = Some(OpenKeys { from, terms, keys: keys.clone() });
    Ok(keys)
}

fn explain_key(file: &Path, KeyFault { position, path, message }: KeyFault) -> Problem {
    let mark = position.map(|(line, column)| Mark { text: 0, line, column });
    Problem::error(Place { file: name(file).into(), mark, path }, message)
}
