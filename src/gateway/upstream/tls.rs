//! The TLS settings for connections to the nodes of an upstream.

use std::sync::Arc;

use crate::http::upstream::TlsSettings;
use crate::tls::TlsClient;

/// The TLS settings for connections to the nodes of an upstream. Two are equal if they are made of the same files and name.
pub struct TlsConnector {
    http1: Arc<TlsClient>,
    http2: Arc<TlsClient>,
    /// The name that certificates have to be valid for, if it is not the node's own.
    name: Option<String>,
    files: u128,
}

impl TlsConnector {
    /// Creates the settings of `client`; `files` identifies the files that it is made of.
    pub fn new(client: TlsClient, name: Option<String>, files: u128) -> Self {
        let speaking = |protocol: &[u8]| {
            let mut client = client.clone();
            client.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(client)
        };
        Self { http1: speaking(b"http/1.1"), http2: speaking(b"h2"), name, files }
    }

    /// The TLS settings for a connection to the node that is configured as `node`.
    pub(super) fn settings_for(&self, node: &str, http2: bool) -> TlsSettings {
        let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = self.name.as_deref().unwrap_or(host).into();
        TlsSettings { config: Arc::clone(if http2 { &self.http2 } else { &self.http1 }), name, identity: self.files }
    }
}

impl PartialEq for TlsConnector {
    fn eq(&self, other: &Self) -> bool {
        (self.files, &self.name) == (other.files, &other.name)
    }
}
