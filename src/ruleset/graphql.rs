//! The cost of a GraphQL document: one for each field, times the requested length of the lists around it.
//!
//! The rule is the one that GitHub publishes for its node limits, and IBM's cost specification with its default weights: a
//! field costs one, and the selection in a list counts once for each item that the list may have, as the arguments `first`
//! and `last` say. The syntax is that of the GraphQL specification of October 2021; any other document costs the maximum.

use crate::ruleset::key::may_have_parameter;
use crate::ruleset::request_field::{FieldPath, FieldValue, RequestFields};
use crate::units::Cost;

mod parse;

use parse::{Document, Selection, Selections};

/// The longest document that is read, in bytes.
pub const MAX_DOCUMENT_LENGTH: usize = 64 << 10;

/// The deepest nesting of selections and fragments.
const DEEPEST: usize = 128;

/// The rule for the cost of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphQlCost {
    /// The field of the request's body with the document: `query`.
    pub path: FieldPath,
    /// The largest cost of a document, and the cost of a document that cannot be read.
    pub max: Cost,
    /// The deepest nesting of fields; a deeper document costs `max`.
    pub max_depth: usize,
    /// The arguments that say how many items a list may have.
    pub list_arguments: Vec<String>,
    /// The number of items that counts where the argument is a variable.
    pub items: u64,
}

impl GraphQlCost {
    /// The cost of a request with this query in its URL and this body.
    pub fn of(&self, query: Option<&str>, body: Option<&RequestFields>) -> Cost {
        let text = match body.map(|body| body.get(&self.path)) {
            // many servers execute the document of the URL in place of the body's
            _ if self.path.0.iter().any(|name| may_have_parameter(query, name)) => None,
            Some(FieldValue::Text(text)) => str::from_utf8(text).ok(),
            _ => None,
        };
        text.and_then(|text| self.of_document(text)).unwrap_or(self.max)
    }

    /// The cost of a document, at least 1; `None` where it cannot be read or is too deep. Of several operations the most
    /// expensive one counts, because the document does not say which one is executed.
    fn of_document(&self, text: &str) -> Option<Cost> {
        let document = Document::parse(text)?;
        let mut counter = Counter { rule: self, document: &document, fragments: vec![None; document.fragments.len()] };
        let mut dearest = None;
        for operation in &document.operations {
            let Weighed { cost, depth } = counter.of_selections(operation, DEEPEST)?;
            if depth > self.max_depth {
                return None;
            }
            dearest = dearest.max(Some(cost));
        }
        dearest.map(|cost: Cost| cost.clamp(1, self.max))
    }

    /// The rule in plain words.
    pub fn describe(&self) -> String {
        let Self { path, max, max_depth, list_arguments, items } = self;
        format!(
            "1 for each field of the GraphQL document in {path}, times what {} say of the lists around it ({items} where a \
             variable says it); at most {max}, and {max} for a document that is in the URL, cannot be read, or is deeper \
             than {max_depth}",
            list_arguments.join(" and ")
        )
    }
}

/// The cost and the depth of selections.
#[derive(Clone, Copy, Default)]
struct Weighed {
    cost: Cost,
    depth: usize,
}

struct Counter<'d> {
    rule: &'d GraphQlCost,
    document: &'d Document<'d>,
    /// The results for fragments so far: a document may name a fragment in many places.
    fragments: Vec<Option<Weighed>>,
}

impl Counter<'_> {
    /// Weighs `selections`. `levels` is how many more levels of nesting are allowed, so that circles of fragments end.
    fn of_selections(&mut self, selections: &Selections<'_>, levels: usize) -> Option<Weighed> {
        let levels = levels.checked_sub(1)?;
        let mut whole = Weighed::default();
        for selection in selections {
            let part = match selection {
                Selection::Field { arguments, selections } => {
                    let inner = self.of_selections(selections, levels)?;
                    let is_list = |name: &str| self.rule.list_arguments.iter().any(|known| known == name);
                    let sizes = arguments.iter().filter(|(name, _)| is_list(name));
                    // an argument without a usable number counts as `items`: the server refuses it if it is invalid
                    let items = sizes.map(|(_, size)| size.unwrap_or(self.rule.items)).max().unwrap_or(1);
                    let cost = inner.cost.saturating_mul(items).saturating_add(1);
                    Weighed { cost, depth: inner.depth.saturating_add(1) }
                }
                Selection::Inline(selections) => self.of_selections(selections, levels)?,
                Selection::Spread(name) => self.of_fragment(name, levels)?,
            };
            whole.cost = whole.cost.saturating_add(part.cost);
            whole.depth = whole.depth.max(part.depth);
        }
        Some(whole)
    }

    fn of_fragment(&mut self, name: &str, levels: usize) -> Option<Weighed> {
        let position = self.document.fragments.iter().position(|(known, _)| *known == name)?;
        if let Some(weighed) = self.fragments.get(position).copied().flatten() {
            return Some(weighed);
        }
        let (_, selections) = self.document.fragments.get(position)?;
        let weighed = self.of_selections(selections, levels)?;
        *self.fragments.get_mut(position)? = Some(weighed);
        Some(weighed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> GraphQlCost {
        GraphQlCost {
            path: FieldPath(vec!["query".to_owned()]),
            max: 10_000,
            max_depth: 5,
            list_arguments: vec!["first".to_owned(), "last".to_owned()],
            items: 100,
        }
    }

    fn cost(document: &str) -> Option<Cost> {
        rule().of_document(document)
    }

    #[test]
    fn fields_cost_one_and_lists_multiply_what_is_in_them() {
        assert_eq!(cost("{ viewer { login } }"), Some(2));
        assert_eq!(cost("query Q($n: Int = 5) { a: viewer @include(if: $x) { login name, email } }"), Some(4));
        // GitHub's example: 50 repositories with 10 issues each
        assert_eq!(
            cost("{ repositories(first: 50) { name issues(last: 10) { title } } }"),
            Some(1 + 50 * (1 + 1 + 10))
        );
        assert_eq!(cost("{ things(first: $n) { name } }"), Some(101));
        assert_eq!(cost("{ things(first: 2, last: 7, after: \"x\") { name } }"), Some(8));
        assert_eq!(cost("{ things(first: 0) { name } }"), Some(1));
        for large in ["999999999999", "18446744073709551615", "18446744073709551616"] {
            assert_eq!(cost(&format!("{{ things(first: {large}) {{ name }} }}")), Some(10_000), "{large}");
        }
        assert_eq!(cost("{ things(filter: { first: 9 }) { name } }"), Some(2));
        let fragments =
            "query { a { ...f } b { ...f ... on T { c } ... { d } } } fragment f on T { x(first: 3) { y } }";
        assert_eq!(cost(fragments), Some(1 + 4 + 1 + 4 + 2));
        assert_eq!(cost("query a { x } mutation b { x y z } subscription { x }"), Some(3), "the dearest");
        assert_eq!(
            cost("\u{feff}# text\n{ a(s: \"\\\"}\", b: \"\"\"x\"}\\\"\"\" \"\"\", c: [1 2.5e3 $v E null], d: -1) }"),
            Some(1)
        );
    }

    #[test]
    fn a_document_that_is_unreadable_or_too_deep_has_no_cost_of_its_own() {
        let deep = |levels: usize| cost(&format!("{}{}", "{ a ".repeat(levels), "}".repeat(levels)));
        assert_eq!((deep(5), deep(6)), (Some(5), None));
        for wrong in [
            "",
            "{",
            "{}",
            "{ a",
            "{ a } }",
            "{ a() }",
            "{ a(b) }",
            "{ a(b:) }",
            "{ a(b: \"x) }",
            "{ a(b: \"\n\") }",
            "{ a(first: 01) }",
            "{ ...f }",
            "{ ...f } fragment f on T { ...g } fragment g on T { ...f }",
            "{ ...f } fragment f on T { ...f }",
            "fragment f on T { a }",
            "{ ...f } fragment f { a }",
            "type T { a: Int }",
            "{ a(first: 1x) }",
            "{ a;b }",
            "query ($n) { a }",
            "{ a } fragment f on T { a } fragment f on T { b }",
        ] {
            assert_eq!(cost(wrong), None, "{wrong}");
        }
        assert_eq!(cost("{ a(first: -1) { b } }"), Some(101));
        assert_eq!(cost(&"{ a ".repeat(20_000)), None);
        assert_eq!(cost(&format!("{{ a(b: {}) }}", "[".repeat(20_000))), None);
    }

    #[test]
    fn many_fragments_in_each_other_are_weighed_once() {
        let mut document = "{ ...f0 } fragment f60 on T { a }".to_owned();
        for number in 0..60 {
            document.push_str(&format!(" fragment f{number} on T {{ ...f{0} ...f{0} }}", number + 1));
        }
        assert_eq!(cost(&document), Some(10_000));
    }
}
