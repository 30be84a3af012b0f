//! The output of `nginx -T`: the files of a configuration, one behind the other. Each begins with a comment that names it,
//! and the first one includes the others.

use std::collections::{BTreeMap, HashSet};

use regex::Regex;

use super::syntax::{self, Directive};
use crate::config::import::SyntaxError;
use crate::config::problem::Mark;

/// The deepest nesting of includes.
const MAX_DEPTH: usize = 16;
/// The largest number of directives, those of a file counted each time that it is included.
const MAX_DIRECTIVES: usize = 200_000;

struct DumpedFile {
    mark: Mark,
    directives: Vec<Directive>,
}

struct Includer<'d> {
    /// The folder of the main file, with a slash at its end. Includes are relative to it.
    folder: &'d str,
    files: &'d BTreeMap<&'d str, DumpedFile>,
    used: HashSet<&'d str>,
    directives_left: usize,
}

/// Parses a configuration, or the output of `nginx -T`: the directives, with the dumped files in place of their includes, and
/// the beginnings of the files that no `include` names.
pub(super) fn parse(text: &str) -> Result<(Vec<Directive>, Vec<Mark>), SyntaxError> {
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<(usize, &str)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, dumped_name(line)?))).collect();
    let is_before = |line: &&str| line.trim().is_empty() || line.starts_with("nginx: ");
    let begins = lines.iter().take_while(|line| is_before(line)).count();
    let main = match heads.first() {
        Some((at, name)) if *at == begins => *name,
        _ => return Ok((syntax::parse(text, 1)?, Vec::new())),
    };
    let ends = heads.iter().skip(1).map(|(at, _)| *at).chain([lines.len()]);
    let mut files = BTreeMap::new();
    for ((head, name), end) in heads.iter().zip(ends) {
        let content = lines.get(head.saturating_add(1)..end).unwrap_or_default().join("\n");
        let directives = syntax::parse(&content, head.saturating_add(2))?;
        let mark = Mark { line: head.saturating_add(1), ..Mark::START };
        files.insert(*name, DumpedFile { mark, directives });
    }
    let folder = main.rfind('/').and_then(|slash| main.get(..=slash)).unwrap_or_default();
    let (used, directives_left) = (HashSet::from([main]), MAX_DIRECTIVES);
    let mut includer = Includer { folder, files: &files, used, directives_left };
    let directives = files.get(main).map_or(Ok(Vec::new()), |main| includer.inlined(&main.directives, 0))?;
    let mut unused: Vec<Mark> =
        files.iter().filter(|(name, _)| !includer.used.contains(*name)).map(|(_, file)| file.mark).collect();
    unused.sort();
    Ok((directives, unused))
}

/// The name of the file that begins behind this line of a dump.
fn dumped_name(line: &str) -> Option<&str> {
    line.strip_prefix("# configuration file ")?.trim_end().strip_suffix(':')
}

impl<'d> Includer<'d> {
    /// The directives, with the directives of dumped files in place of those that include them.
    fn inlined(&mut self, directives: &[Directive], depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        let mut all = Vec::new();
        for one in directives {
            let left = self.directives_left.checked_sub(1);
            self.directives_left = left.ok_or((one.mark, "is one of more directives than are read"))?;
            let included = if one.name() == "include" { self.matching(one.argument()) } else { Vec::new() };
            if included.is_empty() && !is_pattern(one) {
                let block = one.block.as_ref().map(|block| self.inlined(block, depth)).transpose()?;
                all.push(Directive { mark: one.mark, words: one.words.clone(), block });
            }
            if !included.is_empty() && depth == MAX_DEPTH {
                return Err((one.mark, "is deeper than includes may be"));
            }
            for (name, file) in included {
                self.used.insert(name);
                all.extend(self.inlined(&file.directives, depth.saturating_add(1))?);
            }
        }
        Ok(all)
    }

    /// The dumped files that an include names, in the order of their names.
    fn matching(&self, pattern: &str) -> Vec<(&'d str, &'d DumpedFile)> {
        let folder = if pattern.starts_with('/') { "" } else { self.folder };
        let path = format!("{folder}{pattern}");
        // `*` and `?` stand for characters of one name
        let expression = regex::escape(&path).replace(r"\*", "[^/]*").replace(r"\?", "[^/]");
        let expression = expression.replace(r"\[!", "[^").replace(r"\[", "[").replace(r"\]", "]").replace(r"\-", "-");
        let pattern = Regex::new(&format!("^(?:{expression})$")).ok();
        let is_match = |name: &str| name == path || pattern.as_ref().is_some_and(|pattern| pattern.is_match(name));
        self.files.iter().filter(|(name, _)| is_match(name)).map(|(name, file)| (*name, file)).collect()
    }
}

/// Whether a directive includes the files that match a pattern, of which there may be none.
fn is_pattern(one: &Directive) -> bool {
    one.name() == "include" && one.argument().contains(['*', '?', '['])
}
