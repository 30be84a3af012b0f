use super::*;

const SEED: [u8; 16] = [7; 16];

fn read(text: &str) -> Result<Directory, Vec<(u64, Fault)>> {
    let plan = |name: &str| ["free", "pro"].iter().position(|plan| *plan == name);
    Directory::load(text, Format::Csv, &SEED, &plan).map_err(|faults| faults.faults)
}

#[test]
fn customers_are_found_by_any_of_their_credentials() {
    let directory =
        read("plan, credential ,customer\npro,key-1,acme\n\npro,\"key,2\",acme\nfree,key-3,Zoë & Co\n").unwrap();
    let acme = directory.find(b"key-1").unwrap();
    assert_eq!((&*acme.name, acme.plan), ("acme", PlanId(1)));
    assert_eq!(directory.find(b"key,2"), Some(acme));
    assert_eq!(&*directory.find(b"key-3").unwrap().name, "Zoë & Co");
    assert_eq!(directory.find(b"key-4"), None);
    assert_eq!(directory.find(b""), None);
    assert_eq!((directory.len(), directory.customers().len()), (3, 2));
}

#[test]
fn line_ends_and_byte_order_marks_do_not_matter() {
    for text in ["\u{feff}credential,customer,plan\r\nk,a,pro\r\n", "credential,customer,plan\nk,a,pro"] {
        assert!(read(text).unwrap().find(b"k").is_some());
    }
    assert!(read("credential,customer,plan\n").unwrap().is_empty());
}

#[test]
fn every_fault_is_told_with_its_line() {
    let text = "credential,customer,plan\n\
                k1,a,pro\n\
                ,b,free\n\
                k1,c,free\n\
                k2,a,free\n\
                k3,d,gold\n\
                k4,d\n\
                sha256:00,e,free\n\
                k5,,\n\
                \n\
                k6,f,free,more\n";
    let expected = vec![
        (3, Fault::EmptyField("credential")),
        (4, Fault::RepeatedCredential(2)),
        (5, Fault::OtherPlan { customer: "a".to_owned(), line: 2 }),
        (6, Fault::UnknownPlan("gold".to_owned())),
        (7, Fault::FieldCount { found: 2, expected: 3 }),
        (8, Fault::HashedCredential),
        (9, Fault::EmptyField("plan")),
        (9, Fault::EmptyField("customer")),
        (11, Fault::FieldCount { found: 4, expected: 3 }),
    ];
    assert_eq!(read(text).err().as_ref(), Some(&expected));
    assert_eq!(read(&text.replace('\n', "\r\n")).err(), Some(expected));
}

#[test]
fn columns_are_checked() {
    assert_eq!(read("").err(), Some(vec![(1, Fault::Empty)]));
    assert_eq!(
        read("credential,customer,customer,color,overrides\nk,a,b,c,d\n").err(),
        Some(vec![
            (1, Fault::RepeatedColumn("customer")),
            (1, Fault::UnknownColumn("color".to_owned())),
            (1, Fault::LaterColumn("overrides".to_owned())),
            (1, Fault::MissingColumn("plan")),
        ])
    );
}

#[test]
fn a_quote_that_is_not_closed_does_not_swallow_lines() {
    let text = "credential,customer,plan\nk1,\"a,pro\nk2,b,pro\n";
    assert_eq!(read(text).err(), Some(vec![(2, Fault::LineBreak)]));
}

#[test]
fn no_fault_and_no_debug_text_shows_a_credential() {
    let text = "credential,customer,plan\ncanary,a,gold\ncanary,a,pro\ncanary,\ncanary\ncanary,a,pro,free\n,canary2\n";
    let faults = read(text).err().unwrap();
    assert!(!faults.is_empty());
    assert!(!format!("{faults:?}").contains("canary"));
    let directory = read("credential,customer,plan\ncanary,a,pro\n").unwrap();
    assert!(!format!("{directory:?}").contains("canary"));
}

#[test]
fn faults_without_end_are_counted() {
    let rows: String = (0..3_000).map(|row| format!("k{row},a{row},gold\n")).collect();
    let plan = |_: &str| None;
    let faults =
        Directory::load(&format!("credential,customer,plan\n{rows}"), Format::Csv, &SEED, &plan).err().unwrap();
    assert_eq!((faults.faults.len(), faults.more), (1_000, 2_000));
}

#[test]
fn yaml_says_the_same_as_csv_and_faults_name_their_line() {
    let plan = |name: &str| ["free", "pro"].iter().position(|plan| *plan == name);
    let yaml = |text: &str| Directory::load(text, Format::Yaml, &SEED, &plan).map_err(|faults| faults.faults);
    let directory = yaml(
        "# ours\n- { credential: k1, customer: acme, plan: free }\n- credential: k2\n  customer: acme\n  plan: free\n",
    )
    .unwrap();
    assert_eq!(&*directory.find(b"k2").unwrap().name, "acme");
    assert_eq!(directory.customers().len(), 1);
    let unknown =
        yaml("- { credential: k1, customer: acme, plan: free }\n- { credential: k2, customer: b, plan: gold }\n");
    assert_eq!(unknown.unwrap_err(), [(2, Fault::UnknownPlan("gold".to_owned()))]);
    let secret = yaml("- { credential: k1, customer: acme }\n").unwrap_err();
    assert_eq!(secret, [(1, Fault::MalformedYaml)]);
}
