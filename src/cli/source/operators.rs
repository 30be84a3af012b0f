//! The access rules of the admin listener, with the token from the file that the configuration names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::environment;
use super::named_files::{Files, Refused};
use crate::algorithm::AlgorithmName;
use crate::config::{ConfigText, Operators, SectionValues};
use crate::runtime::config_source::{AccessRules, ReplaySettings, Token};

/// Reads the file that `configured` names, in a configuration with this `text`.
pub(super) fn read(
    configured: &Operators,
    text: &ConfigText<'_>,
    files: &mut Files<'_>,
) -> Result<AccessRules, Refused> {
    let token = configured.token_file.as_ref().map(|named| files.long_token(named)).transpose()?;
    let audit_log = configured.audit_log.as_ref().map(|named| files.path(named));
    let replays = || ReplaySettings {
        config: files.config.to_owned(),
        logs: configured.replay_logs.iter().map(|named| (named.path.clone(), files.path(named))).collect(),
        settings: text.section_values(&environment).into_iter().filter_map(settings_to_try).collect(),
    };
    let replays = (!configured.replay_logs.is_empty()).then(|| Arc::new(replays()));
    let (hosts, top_denied_metrics) = (configured.hosts.clone(), configured.top_denied_metrics);
    Ok(AccessRules { token: token.as_deref().map(Token::of), audit_log, hosts, top_denied_metrics, replays })
}

/// The name of a limit, its parameters and those of its plans; `None` for other sections.
fn settings_to_try(section: SectionValues) -> Option<(String, BTreeMap<String, String>)> {
    let SectionValues { section, name, mut values } = section;
    let parameters = || AlgorithmName::ALL.iter().flat_map(|algorithm| algorithm.parameters());
    values.retain(|path, _| path.starts_with("plans.") || parameters().any(|parameter| parameter.name == path));
    (section == "limits").then_some((name, values))
}
