//! The access rules of the admin listener, with the token from the file that the configuration names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::store;
use super::{SourceText, environment, name, refuse};
use crate::algorithm::AlgorithmName;
use crate::cli::source::directory::resolve_path;
use crate::config::{self, NamedFile, Operators, Problem, Problems, SectionValues};
use crate::files::FileVersion;
use crate::runtime::reload::{AccessRules, ReplaySettings, Token};

/// The shortest token, in bytes.
const LEAST_TOKEN: usize = 16;

/// Reads the file that `configured` names; its path is relative to the configuration at `path`, which has this `text`.
pub(super) fn read(
    path: &Path,
    configured: &Operators,
    text: &SourceText,
    seen: &mut Vec<FileVersion>,
) -> Result<AccessRules, Problems> {
    let token = configured.token_file.as_ref().map(|named| token(path, named, seen)).transpose()?;
    let audit_log = configured.audit_log.as_ref().map(|named| resolve_path(path, named));
    let replays = || ReplaySettings {
        config: path.to_owned(),
        logs: configured.replay_logs.iter().map(|named| (named.path.clone(), resolve_path(path, named))).collect(),
        settings: config::section_values(text, &environment).into_iter().filter_map(settings_to_try).collect(),
    };
    let replays = (!configured.replay_logs.is_empty()).then(|| Arc::new(replays()));
    let (hosts, top_denied_metrics) = (configured.hosts.clone(), configured.top_denied_metrics);
    Ok(AccessRules { token, audit_log, hosts, top_denied_metrics, replays })
}

/// The name of a limit, its parameters and those of its plans; `None` for other sections.
fn settings_to_try(section: SectionValues) -> Option<(String, BTreeMap<String, String>)> {
    let SectionValues { section, name, mut values } = section;
    let parameters = || AlgorithmName::ALL.iter().flat_map(|algorithm| algorithm.parameters());
    values.retain(|path, _| path.starts_with("plans.") || parameters().any(|parameter| parameter.name == path));
    (section == "limits").then_some((name, values))
}

fn token(path: &Path, named: &NamedFile, seen: &mut Vec<FileVersion>) -> Result<Token, Problems> {
    let text = store::token(path, named, seen)?;
    if text.len() < LEAST_TOKEN {
        let problem = Problem::error(named.place.clone(), "names a file that holds too short a token");
        let found = format!("{} bytes in {}", text.len(), name(&resolve_path(path, named)));
        return Err(refuse(
            problem
                .found(found)
                .expected(format!("at least {LEAST_TOKEN} bytes"))
                .hint("`openssl rand -hex 32` makes one"),
        ));
    }
    Ok(Token::of(&text))
}
