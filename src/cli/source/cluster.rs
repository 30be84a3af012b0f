//! The settings of the cluster that keeps sticky limits, from the configuration and the file that it names.

use super::ComparedSetting;
use super::named_files::{Files, Refused};
use crate::cluster::handshake::Secret;
use crate::cluster::settings::ClusterSettings;
use crate::config::Cluster;

/// The settings in `configured`, with the secret from the file that it names.
pub(super) fn open(configured: &Cluster, files: &mut Files<'_>) -> Result<ClusterSettings, Refused> {
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

/// The settings that cannot change, in a fixed order. The list of peers can change.
pub(super) fn compared_settings(cluster: Option<&ClusterSettings>) -> Vec<ComparedSetting> {
    let plain = ComparedSetting::plain;
    let Some(settings) = cluster else { return vec![plain("cluster", "no cluster".to_owned())] };
    let shown = Some(format!("one of which {} is a node", settings.own));
    let secret = format!("{:?}", settings.secret.key_seed());
    vec![
        ComparedSetting { path: "cluster", compared: "a cluster".to_owned(), shown },
        plain("cluster.self", settings.own.to_string()),
        plain("cluster.listen", settings.listen.to_string()),
        plain("cluster.timeout", settings.timeout.to_string()),
        ComparedSetting { path: "cluster.secret_file", compared: secret, shown: None },
    ]
}
