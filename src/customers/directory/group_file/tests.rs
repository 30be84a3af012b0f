use super::*;
use crate::customers::Customer;
use crate::customers::directory::CustomerTable;
use crate::customers::directory::testing::{Words, misread};
use crate::ruleset::{LimitId, PlanId};

fn levels() -> [String; 3] {
    ["organisation", "team", "project"].map(str::to_owned)
}

fn read(text: &str) -> Result<GroupTable, Vec<(u64, Fault)>> {
    GroupTable::read(text, Format::Csv, &levels(), Arc::new(Words)).map_err(|faults| faults.faults)
}

fn table() -> GroupTable {
    read(
        "level,group,plan,overrides,suspended,organisation,team\n\
         team,search,,,,acme,\n\
         project,crawler,,unlimited,,,search\n\
         organisation,acme,pro,unlimited,,,\n\
         organisation,globex,free,,true,,\n\
         team,loose,,,,,\n",
    )
    .unwrap()
}

fn customers(table: &GroupTable, rows: &str) -> Result<CustomerTable, Vec<(u64, Fault)>> {
    let text = format!("credential,customer,plan,organisation,team,project\n{rows}");
    let read = CustomerTable::load(&text, Format::Csv, &[7; 16], Arc::new(Words), table);
    read.map_err(|faults| faults.faults)
}

fn find(directory: &CustomerTable, key: &str) -> Arc<Customer> {
    directory.find(key.as_bytes()).unwrap()
}

/// The groups of a customer, the outermost first.
fn groups(customer: &Customer) -> Vec<String> {
    let groups = customer.groups.iter().flat_map(|groups| &groups.0);
    groups.map(|group| format!("{} {}", group.level, group.name)).collect()
}

#[test]
fn a_key_that_names_its_innermost_group_belongs_to_the_outer_ones() {
    let table = table();
    let directory = customers(&table, "k1,a,,,,crawler\nk2,b,free,,search,\nk3,c,pro,,,\nk4,d,pro,,loose,\n").unwrap();
    let [first, second, third, fourth] = ["k1", "k2", "k3", "k4"].map(|key| find(&directory, key));
    assert_eq!(groups(&first), ["organisation acme", "team search", "project crawler"]);
    assert_eq!(groups(&second), ["organisation acme", "team search"]);
    assert_eq!((groups(&third).len(), groups(&fourth)), (0, vec!["team loose".to_owned()]));
    assert_eq!((first.plan, second.plan), (PlanId(1), PlanId(0)), "a customer without a plan has that of its groups");
    let crawler = first.groups.as_ref().unwrap().at("project").unwrap();
    assert_eq!((crawler.plan, crawler.own.is_some()), (Some(PlanId(1)), true), "so has a group");
    assert_eq!(table.find("team", "search").unwrap().plan(), Some(PlanId(1)));
}

#[test]
fn a_name_alone_means_the_key_whose_groups_come_first_whatever_the_seed() {
    let rows = "credential,customer,plan,organisation,team\nk1,a,free,,\nk2,a,free,globex,\nk3,a,free,,search\n";
    for seed in 0..20 {
        let directory = CustomerTable::load(rows, Format::Csv, &[seed; 16], Arc::new(Words), &table()).unwrap();
        for _without_and_with_an_index in 0..2 {
            let named = directory.named("a").unwrap();
            assert_eq!(
                (groups(&named), named.suspended),
                (vec!["organisation acme".into(), "team search".into()], false)
            );
            directory.index_names();
        }
    }
}

#[test]
fn customers_of_the_same_groups_share_one_copy_of_them() {
    let directory = customers(&table(), "k1,a,,,search,\nk2,b,free,,search,\nk3,c,,acme,search,\n").unwrap();
    let [first, second, third] = ["k1", "k2", "k3"].map(|key| find(&directory, key).groups.clone().unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first, third);
    assert_eq!(size_of::<Customer>(), 64, "a customer takes eight bytes for its groups");
}

#[test]
fn a_suspended_group_suspends_its_members() {
    let directory = customers(&table(), "k1,a,free,globex,,\nk2,b,free,acme,,\n").unwrap();
    assert!(find(&directory, "k1").suspended && !find(&directory, "k2").suspended);
}

#[test]
fn groups_that_no_file_lists_are_those_that_customers_name() {
    let table = GroupTable::unlisted(&levels());
    let directory = customers(&table, "k1,a,free,acme,search,\nk2,b,pro,globex,search,\n").unwrap();
    assert_eq!(groups(&find(&directory, "k2")), ["organisation globex", "team search"]);
    let text = "credential,customer,plan,organisation\nk1,a,,acme\n";
    let read = CustomerTable::load(text, Format::Csv, &[7; 16], Arc::new(Words), &table);
    assert_eq!(read.err().unwrap().faults, [(2, Fault::EmptyField("plan"))], "no group has a plan either");
}

#[test]
fn wrong_members_are_told_with_their_lines() {
    let refused = |rows: &str| customers(&table(), rows).err().unwrap();
    let (team, organisation): (Arc<str>, Arc<str>) = ("team".into(), "organisation".into());
    let unknown = Fault::UnknownGroup { level: Arc::clone(&team), name: "serach".into() };
    assert_eq!(refused("k1,a,free,,,\nk2,b,free,,serach,\n"), [(3, unknown)]);
    let elsewhere = Fault::Elsewhere { inner: team, name: "search".into(), outer: organisation };
    assert_eq!(refused("k1,a,free,globex,search,\n"), [(2, elsewhere)]);
    let disagree = Fault::GroupsDisagree { line: 2 };
    assert_eq!(refused("k1,a,,,,crawler\nk2,a,free,,search,\n"), [(3, disagree)], "a customer has one plan");
    let control = "k1,a,free,,,\nk2,b,free,,a\u{1}b,\n";
    let unlisted = GroupTable::unlisted(&levels());
    assert_eq!(customers(&unlisted, control).err().unwrap(), [(3, Fault::BadGroupName("team".into()))]);
}

#[test]
fn wrong_groups_are_told_with_their_lines() {
    let refused = |rows: &str| {
        let text = format!("level,group,plan,overrides,organisation,team,project\n{rows}");
        read(&text).err().unwrap()
    };
    let not_outer = |level: &str, of: &str| Fault::NotOuter { level: level.into(), of: of.into() };
    assert_eq!(refused("team,a,,,,a,\n"), [(2, not_outer("team", "team"))], "a group cannot belong to itself");
    assert_eq!(
        refused("organisation,a,,,,b,\nteam,b,,,a,,\n"),
        [(2, not_outer("organisation", "team"))],
        "so there are no circles"
    );
    assert_eq!(refused("team,a,,,,,\nteam,b,,,,,\nteam,a,,,,,\n"), [(4, Fault::RepeatedGroup(2))]);
    assert_eq!(refused("division,a,,,,,\n"), [(2, Fault::BadLevel)]);
    assert_eq!(refused("team,,,,,,\n"), [(2, Fault::BadGroupName("team".into()))]);
    assert_eq!(
        refused("team,a,gold,strange,,,\nproject,p,,,,a,\n"),
        [(2, Fault::Plan(misread()))],
        "the groups within it are not blamed"
    );
    let unknown = Fault::UnknownGroup { level: "organisation".into(), name: "nobody".into() };
    assert_eq!(refused("team,a,,,nobody,,\n"), [(2, unknown)]);
    let columns = read("level,group,credential\n").err().unwrap();
    assert_eq!(columns, [(1, Fault::UnknownColumn(3))]);
    assert_eq!(read("level,plan\n").err().unwrap(), [(1, Fault::MissingColumn("group"))]);
}

#[test]
fn yaml_says_the_same_as_csv() {
    let text = "- { level: organisation, group: acme, plan: pro }\n\
                - { level: team, group: search, groups: { organisation: acme }, suspended: true }\n";
    let table = GroupTable::read(text, Format::Yaml, &levels(), Arc::new(Words)).unwrap();
    let members = "- { credential: k1, customer: a, groups: { team: search } }\n";
    let directory = CustomerTable::load(members, Format::Yaml, &[7; 16], Arc::new(Words), &table).unwrap();
    let member = find(&directory, "k1");
    assert_eq!((member.plan, member.suspended), (PlanId(1), true));
    assert_eq!(groups(&member), ["organisation acme", "team search"]);
    let wrong = "- { credential: k1, customer: a, plan: free, groups: { squad: search } }\n";
    let read = CustomerTable::load(wrong, Format::Yaml, &[7; 16], Arc::new(Words), &table);
    assert_eq!(read.err().unwrap().faults, [(1, Fault::UnknownLevel)]);
}

#[test]
fn an_update_takes_up_other_groups_and_keeps_whom_they_do_not_concern() {
    let rows = "credential,customer,plan,organisation\nk1,a,,acme\nk2,b,free,\nk3,c,,globex\n";
    let groups =
        |acme: &str| read(&format!("level,group,plan\norganisation,acme,{acme}\norganisation,globex,free\n")).unwrap();
    let directory = CustomerTable::load(rows, Format::Csv, &[7; 16], Arc::new(Words), &groups("free")).unwrap();
    let before = ["k1", "k2", "k3"].map(|key| find(&directory, key));
    let changes = directory.update(rows, &groups("pro")).unwrap();
    assert_eq!((changes.added, changes.changed, changes.removed), (0, 1, 0));
    assert_eq!((before[0].plan, find(&directory, "k1").plan), (PlanId(0), PlanId(1)));
    assert!(Arc::ptr_eq(&before[1], &find(&directory, "k2")) && Arc::ptr_eq(&before[2], &find(&directory, "k3")));
}

#[test]
fn groups_of_two_levels_that_say_the_same_override_limits_of_their_own_levels() {
    let text =
        "level,group,plan,overrides,organisation\norganisation,acme,pro,unlimited,\nteam,search,pro,unlimited,acme\n";
    let table = read(text).unwrap();
    let limits = [("organisation", "acme"), ("team", "search")].map(|(level, name)| {
        let groups = table.find(level, name).unwrap();
        let own = groups.at(level).unwrap().own.as_ref().unwrap();
        own.limits.iter().map(|(limit, _)| *limit).collect::<Vec<_>>()
    });
    assert_eq!(limits, ["organisation", "team"].map(|level| vec![LimitId(level.len())]));
}
