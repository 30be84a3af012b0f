//! GraphQL documents: any text has a cost within its bounds, and what the specification ignores changes nothing.

use tollgate::ruleset::graphql::GraphQlCost;
use tollgate::ruleset::request_field::{FieldPath, FieldValue, RequestFields};

pub(crate) fn run(data: &[u8]) {
    let path = FieldPath(vec!["query".to_owned()]);
    let list_arguments = ["first", "last"].map(str::to_owned).to_vec();
    let rule = GraphQlCost { path: path.clone(), max: 1000, max_depth: 8, list_arguments, items: 10 };
    let cost = |text: &[u8]| {
        let values = vec![FieldValue::Text(text.to_vec())];
        rule.of(None, Some(&RequestFields::Read { paths: [path.clone()].into(), values }))
    };
    let whole = cost(data);
    assert!((1..=rule.max).contains(&whole));
    // only the beginning may have a mark of its order of bytes
    if !data.starts_with("\u{feff}".as_bytes()) {
        assert_eq!(cost(&[b"# }\n,,", data, b",\n# {"].concat()), whole, "spaces, commas and comments");
    }
    if whole < rule.max {
        assert_eq!(cost(&[data, b"\n{ a }"].concat()), whole, "the dearest operation counts");
    }
}
