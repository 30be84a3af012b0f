//! Finds out which service or proxy a YAML file configures.

use super::{Content, Names, envoy, front, kong, limitador, ratelimit, traefik};
use crate::config::document;
use crate::config::findings::Findings;
use crate::config::read::{Field, ReadContext, Section};

const EXPECTED: &str = "a mapping with `domain` and `descriptors` (envoyproxy/ratelimit), a list of limits with `namespace` (Limitador), \
                        a configuration of Envoy (`static_resources`), Kong (`_format_version`) or Traefik (`http`), nginx's `server` \
                        blocks, or HAProxy's sections";

/// A check whether a file belongs to a proxy, and the reader for it.
type Proxy = (fn(&Section<'_>) -> bool, fn(&Field<'_>, &mut Names) -> Option<front::ProxyConfig>);

const PROXIES: [Proxy; 3] = [
    (envoy::is_of_this_format, envoy::read),
    (kong::is_of_this_format, kong::read),
    (traefik::is_of_this_format, traefik::read),
];

pub(super) fn read(text: &str, findings: &Findings, names: &mut Names) -> Option<Content> {
    // in these files `${NAME}` is plain text
    let verbatim = |name: &str| Some(format!("${{{name}}}"));
    let root = document::parse(text, 0, findings)?;
    let context = ReadContext { findings, environment: &verbatim };
    let top = Field::root(&context, &root);
    if top.is_list() {
        return limitador::read(&top, names).map(Content::Domains);
    }
    let Some(section) = top.as_mapping() else {
        return top.fail(top.error("is no configuration that can be read here").expected(EXPECTED));
    };
    if let Some((_, read)) = PROXIES.iter().find(|(is_of_this_format, _)| is_of_this_format(&section)) {
        return read(&top, names).map(Content::ProxyConfig);
    }
    if section.has("domain") || section.has("descriptors") {
        return ratelimit::read(&top, names).map(|domain| Content::Domains(vec![domain]));
    }
    top.fail(top.error("is no configuration that can be read here").expected(EXPECTED))
}
