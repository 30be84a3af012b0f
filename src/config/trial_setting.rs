//! Settings of limits that replace those of the file for a trial, as `--set PATH=VALUE` gives them.

use std::rc::Rc;
use std::str::FromStr;

use crate::config::document::{self, Content, Entry, YamlNode, join};
use crate::config::findings::Findings;
use crate::config::problem::{Mark, Problem};
use crate::config::words;

/// The file name that findings show for the text of a change.
pub(super) const NAME: &str = "--set";

const LIMITS: &str = "limits";

/// The maximum number of limits that a message names.
const MAX_NAMED_LIMITS: usize = 20;

/// The path of a limit's setting, and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialSetting {
    path: String,
    value: String,
}

impl FromStr for TrialSetting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, value) = text.split_once('=').unwrap_or_default();
        let below = path.strip_prefix(LIMITS).and_then(|rest| rest.strip_prefix('.')).unwrap_or_default();
        let is_path = !below.is_empty() && !below.ends_with('.') && below.split('.').count() <= document::MAX_DEPTH;
        match is_path && !value.trim().is_empty() {
            true => Ok(Self { path: path.to_owned(), value: value.to_owned() }),
            false => {
                Err("expected a setting of a limit and its value, like `limits.per-customer.plans.free.rate=20/m`")
            }
        }
    }
}

/// Applies all `changes` to the document `root`. Their texts have the numbers from `number` on in marks.
pub(super) fn apply(
    root: Rc<YamlNode>,
    changes: &[TrialSetting],
    number: usize,
    findings: &Findings,
) -> Option<Rc<YamlNode>> {
    changes.iter().zip(number..).try_fold(root, |root, (TrialSetting { path, value }, number)| {
        let value = document::parse(value, number, findings)?;
        let refused = |unchanged| {
            let problem =
                |message: &str| Problem::error(findings.place(Mark { text: number, ..Mark::START }, path), message);
            findings.add(match unchanged {
                TrialSettingError::NoMapping(above) => {
                    problem("is below a single value or a list").hint(format!("set `{above}`"))
                }
                TrialSettingError::NoLimit(known) => {
                    let name = path.split('.').nth(1).unwrap_or_default();
                    let names = words::alternatives(known.iter().copied().take(MAX_NAMED_LIMITS));
                    problem(&format!("there is no limit `{name}`")).expected(names).hint(findings.suggest(name, known))
                }
                TrialSettingError::Several => problem("is more than one setting of a limit").expected(
                    "one of them, like `limits.NAME.rate`, or of one of its windows, like `limits.NAME/1h.limit`",
                ),
            });
        };
        set_at(&root, path, "", &value).map_err(refused).ok()
    })
}

/// The reason why a change is refused.
enum TrialSettingError<'n> {
    /// The path leads below the value at this path, which is not a mapping.
    NoMapping(String),
    /// No limit has the name in the path; holds the names of the limits.
    NoLimit(Vec<&'n str>),
    /// The path names a whole limit or a list of windows. Windows are limits of their own at this point.
    Several,
}

/// Returns `node`, which is at the path `above`, with `value` at `path` below it. Paths are written as in findings.
fn set_at<'n>(
    node: &'n YamlNode,
    path: &str,
    above: &str,
    value: &Rc<YamlNode>,
) -> Result<Rc<YamlNode>, TrialSettingError<'n>> {
    let Content::Mapping(entries) = &node.content else { return Err(TrialSettingError::NoMapping(above.to_owned())) };
    let mut changed = entries.clone();
    let known = entries.iter().zip(&mut changed).find_map(|(entry, changed)| {
        let rest = path.strip_prefix(&join("", &entry.key))?;
        let below = if rest.is_empty() { rest } else { rest.strip_prefix('.').filter(|below| !below.is_empty())? };
        Some((entry, changed, below))
    });
    let entry =
        |key: &str, value: &Rc<YamlNode>| Entry { key: key.to_owned(), key_mark: value.mark, value: Rc::clone(value) };
    match known {
        Some((_, _, "")) if above == LIMITS => return Err(TrialSettingError::Several),
        None if path == "windows" => return Err(TrialSettingError::Several),
        Some((known, changed, "")) => *changed = entry(&known.key, value),
        Some((known, changed, below)) => changed.value = set_at(&known.value, below, &join(above, &known.key), value)?,
        None if above.is_empty() || above == LIMITS => {
            let limits = entries.iter().filter(|_| above == LIMITS).map(|entry| entry.key.as_str());
            return Err(TrialSettingError::NoLimit(limits.collect()));
        }
        // the path is new: for example a plan that has used the limit's own parameters so far
        None => {
            let (name, below) = path.split_once('.').map_or((path, None), |(name, below)| (name, Some(below)));
            let section = |value: Rc<YamlNode>, name: &str| {
                Rc::new(YamlNode { mark: value.mark, content: Content::Mapping(vec![entry(name, &value)]) })
            };
            let value = below.into_iter().flat_map(|below| below.rsplit('.')).fold(Rc::clone(value), section);
            changed.push(entry(name, &value));
        }
    }
    Ok(Rc::new(YamlNode { mark: node.mark, content: Content::Mapping(changed) }))
}
