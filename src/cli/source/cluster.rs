//! The settings of the cluster that keeps sticky limits, from the configuration and the file that it names.

use super::RestartRequired;
use super::named_files::Files;
use crate::cluster::handshake::Secret;
use crate::cluster::settings::ClusterSettings;
use crate::config::{Cluster, Problems};

/// The settings in `configured`, with the secret from the file that it names.
pub(super) fn open(configured: &Cluster, files: &mut Files<'_>) -> Result<ClusterSettings, Problems> {
    let Cluster { own, listen, peers, secret_file, founding, timeout, .. } = configured;
    let secret = Secret::of(files.shared_secret(secret_file)?.as_bytes());
    Ok(ClusterSettings {
        own: *own,
        listen: *listen,
        peers: peers.clone(),
        secret,
        founding: *founding,
        timeout: *timeout,
    })
}

/// The settings that differ between the cluster in force and `wanted`, but cannot change. The list of peers can change.
pub(super) fn changed(in_force: Option<&ClusterSettings>, wanted: Option<&ClusterSettings>) -> Vec<RestartRequired> {
    let fixed = |path, before: String, after: String| RestartRequired { path, before, after, what: "another cluster" };
    let (Some(before), Some(after)) = (in_force, wanted) else {
        let shown = |settings: Option<&ClusterSettings>| {
            settings
                .map_or_else(|| "no cluster".to_owned(), |settings| format!("one of which {} is a node", settings.own))
        };
        let (before, after) = (shown(in_force), shown(wanted));
        return if before == after { Vec::new() } else { vec![fixed("cluster", before, after)] };
    };
    let pairs = [
        ("cluster.self", before.own.to_string(), after.own.to_string()),
        ("cluster.listen", before.listen.to_string(), after.listen.to_string()),
        ("cluster.timeout", before.timeout.to_string(), after.timeout.to_string()),
    ];
    let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
    let mut changed: Vec<RestartRequired> = changed.map(|(path, before, after)| fixed(path, before, after)).collect();
    if before.secret != after.secret {
        // it is in the file, whose content is not shown
        changed.push(fixed("cluster.secret_file", "the secret".to_owned(), "another secret".to_owned()));
    }
    changed
}
