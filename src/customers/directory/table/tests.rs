use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::customers::directory::Fault;
use crate::customers::directory::testing::{Words, misread};
use crate::ruleset::overrides::Override;
use crate::ruleset::{LimitId, PlanId};

const SEED: [u8; 16] = [7; 16];

fn load(text: &str, format: Format) -> Result<CustomerTable, Vec<(u64, Fault)>> {
    CustomerTable::load(text, format, &SEED, Arc::new(Words), &GroupTable::default()).map_err(|faults| faults.faults)
}

fn read(text: &str) -> Result<CustomerTable, Vec<(u64, Fault)>> {
    load(text, Format::Csv)
}

fn rows(rows: &str) -> CustomerTable {
    read(&format!("{HEADER}{rows}")).unwrap()
}

const HEADER: &str = "credential,customer,plan,overrides,time_zone,valid_until,suspended\n";

#[test]
fn every_credential_among_many_is_found_and_no_other() {
    for count in [0, 1, 2, 3, 10, 3000] {
        let rows: String = (0..count).map(|number| format!("key-{number},customer-{number},free\n")).collect();
        let directory = read(&format!("credential,customer,plan\n{rows}")).unwrap();
        for number in 0..count {
            let found = directory.find(format!("key-{number}").as_bytes()).unwrap();
            assert_eq!(*found.name, *format!("customer-{number}"));
        }
        assert!((count..count + 3000).all(|number| directory.find(format!("key-{number}").as_bytes()).is_none()));
    }
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
    assert_eq!(directory.credentials(), 3);
}

/// Runs without and with an index of names, which an update keeps.
#[test]
fn customers_are_found_by_their_names() {
    let text = |from: usize| {
        let rows = |number| format!("a-{number},customer-{number},free\nb-{number},customer-{number},free\n");
        format!("credential,customer,plan\n{}", (from..from + 1000).map(rows).collect::<String>())
    };
    let directory = read(&text(0)).unwrap();
    let has_those_from = |from: usize| {
        let is_found = |number: usize| {
            let name = format!("customer-{number}");
            directory.named(&name).is_some_and(|customer| *customer.name == *name)
        };
        assert!((0..2000).all(|number| is_found(number) == (from..from + 1000).contains(&number)));
    };
    has_those_from(0);
    directory.index_names();
    has_those_from(0);
    directory.update(&text(500), &GroupTable::default()).unwrap();
    assert!(directory.index.load().has_names());
    has_those_from(500);
}

#[test]
fn a_credential_is_found_by_its_hash_and_its_hash_opens_nothing() {
    let hash = crate::customers::directory::credential::field_of(b"key-1");
    let directory = read(&format!("credential,customer,plan\n{hash},acme,pro\nkey-2,globex,free\n")).unwrap();
    assert_eq!(&*directory.find(b"key-1").unwrap().name, "acme");
    assert_eq!(&*directory.find(b"key-2").unwrap().name, "globex");
    assert_eq!(directory.find(hash.as_bytes()), None);
    directory.update("credential,customer,plan\nkey-2,globex,free\n", &GroupTable::default()).unwrap();
    assert_eq!(directory.find(b"key-1"), None);
    directory.update(&format!("credential,customer,plan\n{hash},acme,pro\n"), &GroupTable::default()).unwrap();
    assert_eq!(&*directory.find(b"key-1").unwrap().name, "acme");
}

#[test]
fn everything_that_a_row_says_is_kept() {
    let directory = rows(
        "k1,acme,pro,unlimited,Europe/Berlin,2024-12-31,true\n\
         k2,acme,pro,unlimited,Europe/Berlin,,true\n\
         k3,globex,free,,,2024-12-31T00:00:00Z,false\n",
    );
    let [first, second, third] = ["k1", "k2", "k3"].map(|key| directory.find(key.as_bytes()).unwrap());
    assert_eq!(first.own.as_ref().unwrap().of(LimitId(0)), Some(&Override::Unlimited));
    assert_eq!(first.valid_until.map(|end| end.get() / 1_000_000_000), Some(1_735_686_000));
    assert!(first.suspended && second.suspended && !third.suspended);
    assert_eq!((second.valid_until, third.own.is_none()), (None, true));
    assert_eq!(third.valid_until.map(|end| end.get() / 1_000_000_000), Some(1_735_603_200));
}

#[test]
fn overrides_of_many_customers_are_kept_once() {
    let directory = rows("k1,a,pro,gcra,,,\nk2,b,pro,gcra,,,\nk3,c,free,gcra,,,\n");
    let own = |key: &str| directory.find(key.as_bytes()).unwrap().own.clone().unwrap();
    assert!(Arc::ptr_eq(&own("k1"), &own("k2")));
    let rule = |key: &str| match own(key).of(LimitId(0)) {
        Some(Override::Rule(rule)) => Arc::clone(rule),
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&rule("k1"), &rule("k3")), "another plan, and the same rule");
}

#[test]
fn an_update_takes_up_what_changed_and_nothing_else() {
    let directory = rows("k1,a,pro,,,,\nk2,b,pro,,,,\nk3,c,free,gcra,,,\nk4,d,free,,,,\n");
    let own = directory.find(b"k3").unwrap().own.clone();
    let text = format!("{HEADER}k5,e,free,,,,\nk1,a,free,,,,\nk3,c,free,gcra,,,\nk4,d,free,,,2030-01-01,\n");
    let changes = directory.update(&text, &GroupTable::default()).unwrap();
    assert_eq!(changes, Changes { added: 1, changed: 2, removed: 1 });
    assert_eq!(directory.find(b"k1").unwrap().plan, PlanId(0));
    assert_eq!(directory.find(b"k2"), None);
    assert!(Arc::ptr_eq(&own.unwrap(), directory.find(b"k3").unwrap().own.as_ref().unwrap()));
    assert!(directory.find(b"k4").unwrap().valid_until.is_some());
    assert_eq!(&*directory.find(b"k5").unwrap().name, "e");
    assert_eq!(directory.credentials(), 4);
    assert_eq!(directory.update(&text, &GroupTable::default()).unwrap(), Changes::default());
    assert_eq!(directory.update(HEADER, &GroupTable::default()).unwrap(), Changes { removed: 4, ..Changes::default() });
    assert_eq!((directory.find(b"k5"), directory.credentials()), (None, 0));
}

#[test]
fn an_update_that_is_wrong_anywhere_changes_nothing() {
    let directory = rows("k1,a,pro,,,,\nk2,b,pro,,,,\n");
    let text = format!("{HEADER}k1,a,free,,,,\nk3,c,pro,,,,\nk4,d,gold,,,,\n");
    let faults = directory.update(&text, &GroupTable::default()).unwrap_err();
    assert_eq!(faults.faults, [(4, Fault::Plan(misread()))]);
    assert_eq!(directory.find(b"k1").unwrap().plan, PlanId(1));
    assert!(directory.find(b"k2").is_some() && directory.find(b"k3").is_none());
}

#[test]
fn unchanged_rows_are_compared_with_changed_ones() {
    let directory = rows("k1,a,pro,,,,\nk2,a,pro,,,,\nk3,b,free,,,,\n");
    let refused = |rows: &str| directory.update(&format!("{HEADER}{rows}"), &GroupTable::default()).unwrap_err().faults;
    let disagrees = |line, other| (other, Fault::Disagrees { what: "plan", line });
    assert_eq!(refused("k1,a,pro,,,,\nk2,a,free,,,,\nk3,b,free,,,,\n"), [disagrees(2, 3)]);
    assert_eq!(refused("k4,b,pro,,,,\nk3,b,free,,,,\n"), [disagrees(2, 3)]);
    assert_eq!(refused("k1,a,pro,,,,\nsha256:0,a,free,,,,\n"), [(3, Fault::BadHash), disagrees(2, 3)]);
    assert_eq!(refused("k3,b,free,,,,\nk1,a,pro,,,,\nk3,b,free,,,,\n"), [(4, Fault::RepeatedCredential(2))]);
    let hash = crate::customers::directory::credential::field_of(b"k1");
    assert_eq!(refused(&format!("k1,a,pro,,,,\n{hash},b,free,,,,\n")), [(3, Fault::RepeatedCredential(2))]);
    assert_eq!(directory.credentials(), 3);
}

#[test]
fn a_row_that_says_the_same_in_other_words_did_not_change() {
    let directory = rows("k1,a,pro,,,,\nk2,b,free,,,,\n");
    let before = directory.find(b"k1").unwrap();
    let text = "suspended,plan,customer,credential\nfalse,pro,a,\"k1\"\n,free,b, k2\n";
    assert_eq!(directory.update(text, &GroupTable::default()).unwrap(), Changes::default());
    assert!(Arc::ptr_eq(&before, &directory.find(b"k1").unwrap()));
}

#[test]
fn overrides_that_no_customer_has_any_more_are_dropped() {
    let directory = rows("k1,a,pro,gcra,,,\n");
    let own = Arc::downgrade(directory.find(b"k1").unwrap().own.as_ref().unwrap());
    directory.update(&format!("{HEADER}k1,a,pro,,,,\n"), &GroupTable::default()).unwrap();
    assert!(own.upgrade().is_none());
}

#[test]
fn requests_find_their_customers_while_updates_go_on() {
    let text = |plan: &str| -> String {
        let rows: String = (0..2_000).map(|row| format!("k{row},c{row},{plan},,,,\n")).collect();
        format!("{HEADER}{rows}")
    };
    let (free, pro) = (text("free"), text("pro"));
    let directory = read(&free).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5 {
                directory.update(&pro, &GroupTable::default()).unwrap();
                directory.update(&free, &GroupTable::default()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        for row in (0..2_000).cycle() {
            let found = directory.find(format!("k{row}").as_bytes()).unwrap();
            assert_eq!(*found.name, format!("c{row}"));
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
    });
}

#[test]
fn line_ends_and_byte_order_marks_do_not_matter() {
    for text in ["\u{feff}credential,customer,plan\r\nk,a,pro\r\n", "credential,customer,plan\nk,a,pro"] {
        assert!(read(text).unwrap().find(b"k").is_some());
    }
    assert_eq!(read("credential,customer,plan\n").unwrap().credentials(), 0);
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
        (5, Fault::Disagrees { what: "plan", line: 2 }),
        (6, Fault::Plan(misread())),
        (7, Fault::FieldCount { found: 2, expected: 3 }),
        (8, Fault::BadHash),
        (9, Fault::EmptyField("plan")),
        (9, Fault::EmptyField("customer")),
        (11, Fault::FieldCount { found: 4, expected: 3 }),
    ];
    assert_eq!(read(text).err().as_ref(), Some(&expected));
    assert_eq!(read(&text.replace('\n', "\r\n")).err(), Some(expected));
}

#[test]
fn faults_of_the_optional_columns_are_told_too() {
    let text = format!(
        "{HEADER}k1,a,pro,strange,,,\n\
         k2,b,pro,,Mars/Base,,\n\
         k3,c,pro,,,soon,\n\
         k4,d,pro,,,,perhaps\n\
         k5,e,pro,,,,\n\
         k6,e,pro,gcra,,,\n\
         k7,e,pro,,,,true\n\
         k8,e,pro,,Asia/Tokyo,2030-01-01,\n"
    );
    let disagrees = |what| Fault::Disagrees { what, line: 6 };
    let expected = vec![
        (2, Fault::Overrides(misread())),
        (3, Fault::TimeZone(misread())),
        (4, Fault::BadValidUntil),
        (5, Fault::BadSuspended),
        (7, disagrees("set of overrides")),
        (8, disagrees("`suspended`")),
        (9, disagrees("time zone")),
    ];
    assert_eq!(read(&text).err(), Some(expected));
}

#[test]
fn columns_are_checked() {
    assert_eq!(read("").err(), Some(vec![(1, Fault::Empty)]));
    assert_eq!(
        read("credential,customer,customer,color,overrides\nk,a,b,c,d\n").err(),
        Some(vec![
            (1, Fault::RepeatedColumn("customer".to_owned())),
            (1, Fault::UnknownColumn(4)),
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
fn no_fault_shows_a_credential() {
    let text = "credential,customer,plan\ncanary,a,gold\ncanary,a,pro\ncanary,\ncanary\ncanary,a,pro,free\n,canary2\n";
    for text in [text, "canary1,a,pro\ncanary2,b,free\n", "credential,customer,plan\ncanary,a,pro\ncanary,a,pro\n"] {
        let faults = read(text).err().unwrap();
        assert!(!faults.is_empty());
        assert!(!format!("{faults:?}").contains("canary"), "{faults:?}");
    }
}

#[test]
fn faults_without_end_are_counted() {
    for plan in ["gold", "gold{}"] {
        let rows: String =
            (0..3_000).map(|row| format!("k{row},a{row},{plan}\n").replace("{}", &row.to_string())).collect();
        let text = format!("credential,customer,plan\n{rows}");
        let faults =
            CustomerTable::load(&text, Format::Csv, &SEED, Arc::new(Words), &GroupTable::default()).err().unwrap();
        assert_eq!((faults.faults.len(), faults.more), (1_000, 2_000));
    }
}

#[test]
fn yaml_says_the_same_as_csv_and_faults_name_their_line() {
    let yaml = |text: &str| load(text, Format::Yaml);
    let directory = yaml(
        "# ours\n- { credential: k1, customer: acme, plan: free, suspended: true, valid_until: 2030-01-01 }\n\
         - credential: k2\n  customer: acme\n  plan: free\n  suspended: true\n",
    )
    .unwrap();
    let [first, second] = ["k1", "k2"].map(|key| directory.find(key.as_bytes()).unwrap());
    assert_eq!((&*first.name, &*second.name), ("acme", "acme"));
    assert!(first.suspended && first.valid_until.is_some() && second.valid_until.is_none());
    let unknown =
        yaml("- { credential: k1, customer: acme, plan: free }\n- { credential: k2, customer: b, plan: gold }\n");
    assert_eq!(unknown.err().unwrap(), [(2, Fault::Plan(misread()))]);
    assert_eq!(yaml("- { credential: k1, customer: acme }\n").err().unwrap(), [(1, Fault::EmptyField("plan"))]);
    let secret = yaml("- { credential: k1 }\n").err().unwrap();
    assert_eq!(secret, [(1, Fault::MalformedYaml("credential: ..., customer: ..., plan: ..."))]);
}

/// Merges `rows`, of which some may be invalid. Returns the changes and the faults.
fn merged(directory: &CustomerTable, rows: &str, set: RowSet) -> (Changes, Vec<(u64, Fault)>) {
    let text = format!("credential,customer,plan\n{rows}");
    let (changes, faults) = directory.merge(&text, set, &GroupTable::default()).unwrap();
    (changes, faults.faults)
}

fn plan_of(directory: &CustomerTable, key: &str) -> Option<usize> {
    directory.find(key.as_bytes()).map(|customer| customer.plan.0)
}

#[test]
fn a_wrong_row_is_left_out_and_its_credential_stays_as_it_was() {
    let directory = read("credential,customer,plan\nk1,a,free\nk2,b,free\nk3,c,free\n").unwrap();
    let rows = "k1,a,gold\nk4,d,gold\nk2,b,pro\nk3,c,free\nk5,c,pro\nk6,e,free\nk6,f,free\n";
    let (changes, faults) = merged(&directory, rows, RowSet::All);
    assert_eq!(changes, Changes { changed: 1, ..Changes::default() });
    assert_eq!(faults.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 6, 8]);
    let plans = ["k1", "k2", "k3", "k4", "k5", "k6"].map(|key| plan_of(&directory, key));
    assert_eq!(plans, [Some(0), Some(1), Some(0), None, None, None]);
    // missing rows are removed, and text that is no list of rows changes nothing
    assert_eq!(merged(&directory, "k2,b,pro\n", RowSet::All).0, Changes { removed: 2, ..Changes::default() });
    assert!(directory.merge("k1,a,free\n", RowSet::All, &GroupTable::default()).is_err());
    assert_eq!(directory.credentials(), 1);
}

#[test]
fn changed_rows_take_the_place_of_those_before_and_leave_the_others() {
    let directory = read("credential,customer,plan\nk1,a,free\nk2,b,free\n").unwrap();
    let (changes, faults) = merged(&directory, "k2,b,pro\nk3,c,pro\n", RowSet::Changed);
    assert_eq!((changes, faults), (Changes { added: 1, changed: 1, removed: 0 }, Vec::new()));
    assert_eq!(["k1", "k2", "k3"].map(|key| plan_of(&directory, key)), [Some(0), Some(1), Some(1)]);
}

#[test]
fn a_later_part_of_a_log_counts_and_repeats_no_credential_either() {
    let directory = read("credential,customer,plan\n").unwrap();
    let parts = "k1,a,free\nk2,a,free\nk3,b,gold\nk4,c,free\nk4,d,free\nk5,e,free\n\nk1,a,pro\nk2,a,pro\nk3,b,free\n\n\
                 k5,e,pro\nk5,f,pro\n";
    let (_, faults) = merged(&directory, parts, RowSet::Log);
    assert_eq!(faults, [(6, Fault::RepeatedCredential(5)), (14, Fault::RepeatedCredential(13))]);
    let plans = ["k1", "k2", "k3", "k4", "k5"].map(|key| plan_of(&directory, key));
    assert_eq!((plans, directory.refused()), ([Some(1), Some(1), Some(0), None, None], 2));
}

#[test]
fn a_changed_row_that_contradicts_one_that_did_not_change_is_not_merged() {
    let directory = read("credential,customer,plan\nk1,a,free\nk2,a,free\n").unwrap();
    let text = "credential,customer,plan\nk1,a,pro\n";
    let merged_alone = directory.merge(text, RowSet::Changed, &GroupTable::default());
    assert!(matches!(merged_alone, Err(MergeError::Contradiction)));
    assert_eq!(["k1", "k2"].map(|key| plan_of(&directory, key)), [Some(0), Some(0)]);
    merged(&directory, "k1,a,pro\nk2,a,pro\n", RowSet::Changed);
    assert_eq!(["k1", "k2"].map(|key| plan_of(&directory, key)), [Some(1), Some(1)]);
}

#[test]
fn rows_that_are_left_out_count_once_and_no_longer_than_they_are_wrong() {
    let directory = read("credential,customer,plan\nk1,a,free\n").unwrap();
    let mut counts = Vec::new();
    for rows in ["k1,a,gold\n", "k1,a,silver\nsha256:0,b,free\n", "k2,c,free\nsha256:1,b,pro\n", "k1,a,pro\n"] {
        merged(&directory, rows, RowSet::Changed);
        counts.push(directory.refused());
    }
    assert_eq!(counts, [1, 2, 2, 1]);
    merged(&directory, "k1,a,pro\n", RowSet::All);
    assert_eq!(directory.refused(), 0);
}
