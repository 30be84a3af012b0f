//! The keys that verify tokens, from the file or the issuer that the configuration names.

use std::path::Path;
use std::sync::Arc;

use http::uri::Scheme;
use jsonwebtoken::Algorithm;

use super::directory::{bytes, resolve_path};
use super::store::client;
use super::{decode, name, refuse};
use crate::config::{Jwks, JwksAddress, JwksSource, Mark, NamedFile, Place, Problem, Problems, PublishedJwks};
use crate::customers::TokenVerifier;
use crate::customers::directory::GroupTable;
use crate::customers::jwt::keys::{KeyFault, Keys, MAX_KEY_SET};
use crate::customers::jwt::remote::{KeyEndpoint, KeyLocation, KeySet};
use crate::files::FileVersion;
use crate::units::Nanos;

/// Fetched keys, and the settings for fetching them.
#[derive(Debug)]
pub(super) struct OpenKeys {
    /// The address, a hash of the TLS files, the refresh interval, the shortest interval, and the accepted algorithms.
    from: (JwksAddress, u128, Nanos, Nanos, Vec<Algorithm>),
    keys: KeySet,
}

/// Opens the keys that the configuration at `path` names; `plans` are the names of its plans, `groups` the groups that
/// customers may belong to. Fetched keys that were `kept` are reused if the settings for fetching them did not change.
pub(super) fn open(
    path: &Path,
    jwks: &Jwks,
    (plans, groups): (&[String], &Arc<GroupTable>),
    kept: &mut Option<OpenKeys>,
    seen: &mut Vec<FileVersion>,
) -> Result<TokenVerifier, Problems> {
    let algorithms = &jwks.rules.algorithms;
    let keys = match &jwks.source {
        JwksSource::File(named) => keys_in(path, named, algorithms, seen)?.into(),
        JwksSource::Published(published) => published_keys(path, (published, algorithms), kept, seen)?,
    };
    Ok(TokenVerifier::new(Arc::clone(&jwks.rules), keys, plans, Arc::clone(groups), &rand::random()))
}

fn keys_in(
    path: &Path,
    named: &NamedFile,
    algorithms: &[Algorithm],
    seen: &mut Vec<FileVersion>,
) -> Result<Keys, Problems> {
    let file = resolve_path(path, named);
    let (bytes, _) = bytes(named, &file, MAX_KEY_SET, seen)?;
    match Keys::parse(&decode(bytes, &file)?) {
        Ok((keys, unusable)) if unusable.is_empty() => match keys.fit(algorithms) {
            true => Ok(keys),
            false => {
                let message = "names a file that holds no key for any of the `algorithms`";
                Err(refuse(Problem::error(named.place.clone(), message).found(name(&file))))
            }
        },
        Ok((_, faults)) | Err(faults) => {
            let errors = faults.into_iter().map(|fault| explain_key(&file, fault)).collect();
            Err(Problems { errors, warnings: Vec::new(), more: 0 })
        }
    }
}

fn published_keys(
    path: &Path,
    (published, algorithms): (&PublishedJwks, &[Algorithm]),
    kept: &mut Option<OpenKeys>,
    seen: &mut Vec<FileVersion>,
) -> Result<KeySet, Problems> {
    let PublishedJwks { at, tls, refresh, min_interval, place } = published;
    let (address, has_tls) = match at {
        JwksAddress::Url(url) => (KeyLocation::FixedUrl(url.clone()), url.scheme() == Some(&Scheme::HTTPS)),
        JwksAddress::Issuer(issuer) => (KeyLocation::OidcIssuer(issuer.clone()), issuer.starts_with("https:")),
    };
    let place = Place { path: format!("{}.tls", place.path), ..place.clone() };
    let client = has_tls.then(|| client(path, tls, &place, seen)).transpose()?;
    let (tls, files) = client.map(|(client, files)| (Arc::new(client), files)).unzip();
    let from = (at.clone(), files.unwrap_or_default(), *refresh, *min_interval, algorithms.to_vec());
    if let Some(open) = kept.as_ref().filter(|open| open.from == from) {
        return Ok(open.keys.clone());
    }
    let (refresh, min_interval, algorithms) = (*refresh, *min_interval, algorithms.to_vec());
    let keys = KeySet::published(KeyEndpoint { published: address, tls, refresh, min_interval, algorithms });
    *kept = Some(OpenKeys { from, keys: keys.clone() });
    Ok(keys)
}

fn explain_key(file: &Path, KeyFault { position, path, message }: KeyFault) -> Problem {
    let mark = position.map(|(line, column)| Mark { text: 0, line, column });
    Problem::error(Place { file: name(file).into(), mark, path }, message)
}
