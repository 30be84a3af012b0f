use super::super::edit::{NewKey, Terms};
use super::super::testing::Words;
use super::*;

fn levels() -> GroupTable {
    GroupTable::unlisted(&["team".to_owned()])
}

fn edited(format: Format, text: &str, customer: &str, change: &Change) -> Result<String, ChangeError> {
    let file = WritableFile { path: "customers".into(), format, max_bytes: 1 << 20, reader: Arc::new(Words) };
    file.edit(text, customer, change, &levels()).map(|(_, edited)| edited)
}

fn terms(columns: &[(&str, &str)]) -> Terms {
    columns.iter().map(|(column, text)| ((*column).to_owned(), Some((*text).to_owned()))).collect()
}

fn put(columns: &[(&str, &str)]) -> Change {
    let key = NewKey { credential: "new".to_owned(), valid_until: None };
    Change::Put { terms: terms(columns), key, is_new: false }
}

#[test]
fn only_the_lines_of_the_customer_change_in_csv() {
    let text = "\u{feff}plan,\"customer\",credential\r\npro, acme ,a\r\n\r\nfree,\"x, y\",b\npro,acme,c";
    let edit = |customer: &str, change: &Change| edited(Format::Csv, text, customer, change).unwrap();
    assert_eq!(
        edit("acme", &Change::Patch(terms(&[("plan", "free")]))),
        "\u{feff}plan,\"customer\",credential\r\nfree,acme,a\n\r\nfree,\"x, y\",b\nfree,acme,c\n"
    );
    assert_eq!(edit("acme", &Change::Remove), "\u{feff}plan,\"customer\",credential\r\n\r\nfree,\"x, y\",b\n");
    assert_eq!(
        edit("a \"b\", c", &put(&[("plan", "pro"), ("team", "x,y"), ("suspended", "true")])),
        "\u{feff}plan,\"customer\",credential,suspended,team\r\npro, acme ,a,,\r\n\r\nfree,\"x, y\",b,,\npro,acme,c,,\npro,\"a \"\"b\"\", c\",new,true,\"x,y\"\n"
    );
    assert_eq!(edit("acme", &Change::Patch(terms(&[("plan", "pro")]))), text, "nothing changes");
}

#[test]
fn only_the_entries_of_the_customer_change_in_yaml() {
    let text = "# all\n  - credential: a\n    customer: acme\n    plan: free\n    groups: {team: t}\n\n  # of b\n  - { credential: b, customer: globex, plan: pro }\n";
    let edit = |customer: &str, change: &Change| edited(Format::Yaml, text, customer, change).unwrap();
    let pro = "  - {credential: \"a\", customer: \"acme\", plan: \"pro\", suspended: true, groups: {\"team\":\"t\"}}\n";
    assert_eq!(
        edit("acme", &Change::Patch(terms(&[("plan", "pro"), ("suspended", "true")]))),
        format!("# all\n{pro}\n  # of b\n  - {{ credential: b, customer: globex, plan: pro }}\n")
    );
    let added = "  - {credential: \"new\", customer: \"a \\\"b\\\"\", plan: \"pro\"}\n";
    assert_eq!(edit("a \"b\"", &put(&[("plan", "pro")])), text.to_owned() + added);
    let without = edit("globex", &Change::Remove);
    assert!(without.ends_with("\n\n  # of b\n"), "{without}");
    let empty = edited(Format::Yaml, &without, "acme", &Change::Remove).unwrap();
    assert_eq!(empty, "# all\n\n  # of b\n[]\n");
    let refilled = edited(Format::Yaml, &empty, "hooli", &put(&[("plan", "pro")])).unwrap();
    assert_eq!(refilled, "# all\n\n  # of b\n- {credential: \"new\", customer: \"hooli\", plan: \"pro\"}\n");
}

#[test]
fn blanks_that_the_directory_keeps_stay_in_credentials_and_names() {
    let pro = Change::Patch(terms(&[("plan", "pro")]));
    let bob = "- {credential: \"bob:pw \", customer: bob, plan: free}\n";
    let expected = "- {credential: \"bob:pw \", customer: \"bob\", plan: \"pro\"}\n";
    assert_eq!(edited(Format::Yaml, bob, "bob", &pro).as_deref(), Ok(expected));
    let text = "credential,customer,plan\nk1,acme,free\nk4,acme\u{a0},free\n";
    let without = "credential,customer,plan\nk4,acme\u{a0},free\n";
    assert_eq!(edited(Format::Csv, text, "acme", &Change::Remove).as_deref(), Ok(without));
}

#[test]
fn the_end_of_a_yaml_document_stays_after_its_entries() {
    let (first, end) = ("- {credential: a, customer: acme, plan: free}\n", "...\n# done\n");
    let (text, added) = (format!("{first}{end}"), "- {credential: \"new\", customer: \"b\", plan: \"pro\"}\n");
    assert_eq!(edited(Format::Yaml, &text, "b", &put(&[("plan", "pro")])), Ok(format!("{first}{added}{end}")));
    assert_eq!(edited(Format::Yaml, &text, "acme", &Change::Remove), Ok(format!("[]\n{end}")));
}

#[test]
fn an_entry_in_yaml_begins_with_a_dash_at_the_indent_of_the_first_one() {
    let entry = "credential: a\n  customer: acme\n  plan: ";
    for acme in ["free\n", "free\n  overrides:\n    - x\n", "|\n    - free\n"] {
        let [kept, text] = [String::new(), format!("- {entry}{acme}")]
            .map(|acme| format!("--- # all\n{acme}-\n  {{credential: b, customer: b, plan: free}}\n"));
        assert_eq!(edited(Format::Yaml, &text, "acme", &Change::Remove), Ok(kept), "{text}");
    }
}

#[test]
fn rows_that_do_not_stand_on_lines_of_their_own_are_left_alone() {
    let flow = "[{credential: a, customer: acme, plan: free}, {credential: b, customer: globex, plan: pro}]";
    for (format, text) in [(Format::Yaml, flow), (Format::Csv, "credential,customer,plan\ra,acme,free\rb,globex,pro\r")]
    {
        let refused = edited(format, text, "acme", &Change::Remove);
        assert_eq!(refused, Err(ChangeError::Conflict(NO_LINES.to_owned())), "{text}");
    }
}

#[test]
fn rows_that_the_directory_would_refuse_are_not_written() {
    let text = "credential,customer,plan\na,acme,free\n";
    let gold = Change::Patch(terms(&[("plan", "gold")]));
    assert_eq!(edited(Format::Csv, text, "acme", &gold), Err(ChangeError::Invalid("plan: is strange".to_owned())));
    let lines = Change::Patch(terms(&[("time_zone", "a\nb")]));
    assert!(matches!(edited(Format::Csv, text, "acme", &lines), Err(ChangeError::Invalid(_))));
    let broken = text.to_owned() + "b,b,gold\n";
    let refused = edited(Format::Csv, &broken, "acme", &Change::Patch(terms(&[("plan", "pro")])));
    let says = "customers has errors that must be corrected first: line 3: plan: is strange";
    assert_eq!(refused, Err(ChangeError::Conflict(says.to_owned())));
    // a key of another customer is refused
    let taken = NewKey { credential: "a".to_owned(), valid_until: None };
    let change = Change::Put { terms: terms(&[("plan", "pro")]), key: taken, is_new: true };
    let refused = edited(Format::Csv, text, "globex", &change);
    assert_eq!(refused, Err(ChangeError::Conflict("the credential is that of line 2 again".to_owned())));
    let file = WritableFile { path: "customers".into(), format: Format::Csv, max_bytes: 60, reader: Arc::new(Words) };
    let refused = file.edit(text, "globex", &put(&[("plan", "pro"), ("suspended", "true")]), &levels()).map(drop);
    assert_eq!(refused, Err(ChangeError::Conflict("customers would be larger than 0 KiB".to_owned())));
}
