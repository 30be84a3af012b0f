//! Rules of routers: matchers like ``Host(`a.example`)``, joined by `&&` and `||`.

use crate::config::import::matches::{HeaderValue, Match, PathMatch, all_of, joined, open_prefix_note};

/// The deepest nesting of parentheses.
const MAX_DEPTH: usize = 16;

/// The matches of a rule, and notes where they cover less than in Traefik. `Err` names the part that cannot be carried over.
pub(super) fn read(rule: &str) -> Result<(Vec<Match>, Vec<String>), String> {
    let mut reader = Reader { rest: rule, depth: 0, remarks: Vec::new() };
    let found = reader.any()?;
    match reader.rest.trim_start() {
        "" => Ok((joined(found), reader.remarks)),
        rest => Err(rest.to_owned()),
    }
}

struct Reader<'r> {
    rest: &'r str,
    depth: usize,
    remarks: Vec<String>,
}

impl Reader<'_> {
    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn any(&mut self) -> Result<Vec<Match>, String> {
        let mut found = self.all()?;
        while self.takes("||") {
            found.extend(self.all()?);
        }
        Ok(found)
    }

    fn all(&mut self) -> Result<Vec<Match>, String> {
        let mut found = self.one()?;
        while self.takes("&&") {
            found = all_of(&found, &self.one()?);
        }
        Ok(found)
    }

    fn one(&mut self) -> Result<Vec<Match>, String> {
        if !self.takes("(") {
            return self.matcher();
        }
        self.depth = self.depth.saturating_add(1);
        if self.depth > MAX_DEPTH {
            return Err("a rule of so many parentheses".to_owned());
        }
        let found = self.any()?;
        self.depth = self.depth.saturating_sub(1);
        if self.takes(")") { Ok(found) } else { Err("a parenthesis without an end".to_owned()) }
    }

    fn matcher(&mut self) -> Result<Vec<Match>, String> {
        let rest = self.rest.trim_start();
        let (name, behind) = rest.split_once('(').ok_or_else(|| rest.to_owned())?;
        let mut values = Vec::new();
        self.rest = behind;
        while !self.takes(")") {
            let rest = self.rest.trim_start().trim_start_matches(',').trim_start();
            let quote = rest.chars().next().filter(|c| ['`', '"', '\''].contains(c)).ok_or_else(|| name.to_owned())?;
            let (value, behind) =
                rest.get(1..).and_then(|rest| rest.split_once(quote)).ok_or_else(|| name.to_owned())?;
            values.push(value);
            self.rest = behind;
        }
        let unknown = || format!("{name}({})", values.join(", "));
        let each = |of: &dyn Fn(&str) -> Option<Match>| {
            values.iter().map(|value| of(value).ok_or_else(unknown)).collect::<Result<Vec<_>, _>>()
        };
        match name.trim() {
            "Host" => Ok(vec![Match {
                hosts: values.iter().map(|host| host.to_ascii_lowercase()).collect(),
                ..Match::default()
            }]),
            "Method" => {
                Ok(vec![Match { methods: values.iter().map(|name| name.to_uppercase()).collect(), ..Match::default() }])
            }
            "Path" => each(&|path| PathMatch::exact(path).ok().map(Match::of_path)),
            "PathPrefix" => {
                self.remarks.extend(values.iter().filter_map(|value| open_prefix_note(value)));
                each(&|path| PathMatch::prefix(path).ok().map(Match::of_path))
            }
            "Header" | "Headers" => match values.as_slice() {
                [name, value] => Ok(vec![Match::of_header(name, HeaderValue::Is((*value).to_owned()))]),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }
}
