//! A tree of path patterns by segment, so that the number of steps to find a route depends on the segments of the path, not
//! on the number of routes.

use hashbrown::HashMap;

use crate::ruleset::matcher::RouteId;
use crate::ruleset::path::{PathPattern, Segment};

/// The patterns that share their first segments, by the next segment.
#[derive(Debug, Default)]
pub(super) struct Node {
    literals: HashMap<String, Self>,
    any: Option<Box<Self>>,
    /// Routes whose patterns end here.
    exact: Vec<RouteId>,
    /// Routes whose patterns continue with `**`.
    rest: Vec<RouteId>,
}

impl Node {
    /// Adds a route. Of routes with the same pattern, the one that was added first is found first.
    pub(super) fn add(&mut self, id: RouteId, pattern: &PathPattern) {
        let mut node = self;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Literal(literal) => node.literals.entry_ref(literal.as_str()).or_default(),
                Segment::Any => node.any.get_or_insert_default(),
            };
        }
        if pattern.ends_with_rest() { node.rest.push(id) } else { node.exact.push(id) }
    }

    /// The first route, by [`PathPattern::by_specificity`], whose pattern matches the canonical path `path` and that
    /// `accepts`.
    pub(super) fn find(&self, path: &str, accepts: &impl Fn(RouteId) -> bool) -> Option<RouteId> {
        self.find_behind(Some(path.strip_prefix('/').unwrap_or(path)), accepts)
    }

    /// The same for the rest of a path; `None` after the last segment.
    fn find_behind(&self, left: Option<&str>, accepts: &impl Fn(RouteId) -> bool) -> Option<RouteId> {
        if let Some(left) = left {
            let (segment, behind) = match left.split_once('/') {
                Some((segment, behind)) => (segment, Some(behind)),
                None => (left, None),
            };
            let literal = self.literals.get(segment);
            let any = self.any.as_deref().filter(|_| !segment.is_empty());
            let found = [literal, any].into_iter().flatten().find_map(|next| next.find_behind(behind, accepts));
            if found.is_some() {
                return found;
            }
        }
        let exact = if left.is_none() { self.exact.as_slice() } else { &[] };
        exact.iter().chain(&self.rest).copied().find(|id| accepts(*id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Patterns and paths of few words, so that they often meet.
    fn words(word: &'static str) -> impl Strategy<Value = String> {
        proptest::collection::vec(word, 1..4).prop_map(|words| format!("/{}", words.join("/")))
    }

    proptest! {
        #[test]
        fn the_most_specific_pattern_that_matches_is_found(
            patterns in proptest::collection::vec((words("a|b|[*]"), any::<bool>()), 1..12),
            paths in proptest::collection::vec(words("a|b|c"), 1..6),
            unwanted in 0..12_usize,
        ) {
            let written = patterns.into_iter().map(|(words, rest)| if rest { words + "/**" } else { words });
            let patterns: Vec<PathPattern> = written.map(|text| PathPattern::parse(&text).unwrap()).collect();
            let mut order: Vec<RouteId> = (0..patterns.len()).map(RouteId).collect();
            order.sort_by(|a, b| patterns[a.0].by_specificity(&patterns[b.0]));
            let mut node = Node::default();
            order.iter().for_each(|id| node.add(*id, &patterns[id.0]));
            for path in paths.iter().flat_map(|path| [path.clone(), format!("{path}/"), "/".to_owned()]) {
                let accepts = |id: RouteId| id.0 != unwanted;
                let expected = order.iter().copied().find(|id| accepts(*id) && patterns[id.0].matches(&path));
                prop_assert_eq!(node.find(&path, &accepts), expected, "{}", path);
            }
        }
    }
}
