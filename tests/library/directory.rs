//! The directory together with the configuration that reads its rows and the store that charges its customers.

use std::sync::Arc;

use tollgate::charge::{Charge, Mode, RuleRef};
use tollgate::config::{self, LoadedConfig};
use tollgate::customers::Customer;
use tollgate::customers::directory::{CustomerTable, Format, GroupTable};
use tollgate::fields::Fields;
use tollgate::ruleset::LimitId;
use tollgate::ruleset::key::{Facts, KeyHasher, LimitHashers, Resolved};
use tollgate::ruleset::overrides::Override;
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::Nanos;

const CONFIG: &str = r#"
listeners: [{ address: "127.0.0.1:8080" }]
upstreams: { a: { nodes: ["10.0.0.1:80"] } }
customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }
plans: [free, pro, unbound]
limits:
  calls:
    key: customer
    algorithm: gcra
    rate: 1/h
    burst: 4
    plans: { pro: { burst: 8 }, unbound: unlimited }
  imports:
    key: customer
    algorithm: fixed_window
    limit: 10
    window: day
    align: calendar
    timezone: customer
    plans: { pro: { limit: 30 }, unbound: unlimited }
    candidate: { limit: 20, window: day, align: calendar, timezone: customer }
routes: [{ name: r, upstream: a, limits: [calls, imports] }]
"#;
const HEADER: &str = "credential,customer,plan,overrides,time_zone,valid_until,suspended\n";
const CALLS: LimitId = LimitId(0);
const IMPORTS: LimitId = LimitId(1);
const CANDIDATE: LimitId = LimitId(2);
const START: Nanos = Nanos::from_secs(1_735_689_600);

fn loaded() -> LoadedConfig {
    config::load(CONFIG, "tollgate.yaml", &|_| None).unwrap()
}

fn read(rows: &str) -> CustomerTable {
    CustomerTable::load(
        &format!("{HEADER}{rows}"),
        Format::Csv,
        &[7; 16],
        Arc::new(loaded().customers.overrides),
        &GroupTable::default(),
    )
    .unwrap()
}

fn find(directory: &CustomerTable, key: &str) -> Arc<Customer> {
    directory.find(key.as_bytes()).unwrap()
}

/// The description of the customer's override of a limit.
fn own(customer: &Customer, limit: LimitId) -> Option<String> {
    match customer.own.as_ref()?.of(limit)? {
        Override::Unlimited => Some("unlimited".to_owned()),
        Override::Rule(rule) => Some(rule.describe()),
    }
}

#[test]
fn overrides_go_on_top_of_what_the_plan_has() {
    let directory = read(
        "k1,a,free,{calls: {burst: 100}},,,\n\
         k2,b,pro,{calls: {rate: 5/s}},,,\n\
         k3,c,pro,{calls: unlimited},,,\n\
         k4,d,unbound,{calls: {rate: 2/s}},,,\n\
         k5,e,pro,,,,\n",
    );
    let words = |key| own(&find(&directory, key), CALLS);
    let rule = |rate: &str, burst: u64| {
        let text = format!("limits: {{ l: {{ algorithm: gcra, rate: {rate}, burst: {burst} }} }}");
        let limits = config::load_limits(&text, "f", &|_| None).unwrap();
        Some(limits.limits[0].rule(None).unwrap().unwrap().describe())
    };
    assert_eq!(words("k1"), rule("1/h", 100));
    assert_eq!(words("k2"), rule("5/s", 8));
    assert_eq!(words("k3").as_deref(), Some("unlimited"));
    assert_eq!(words("k4"), rule("2/s", 4), "a plan without a limit has the limit's own parameters below overrides");
    assert_eq!(find(&directory, "k5").own, None);
}

#[test]
fn days_are_those_of_the_customers_time_zone() {
    let directory = read(
        "k1,a,free,,Asia/Tokyo,,\n\
         k2,b,pro,,Asia/Tokyo,,\n\
         k3,c,free,{imports: {limit: 50}},Asia/Tokyo,,\n\
         k4,d,free,{imports: {timezone: Europe/Berlin}},Asia/Tokyo,,\n\
         k5,e,unbound,,Asia/Tokyo,,\n\
         k6,f,free,,,,\n",
    );
    let charger = Charger::new();
    let of_days = |rule: &String| rule.contains("calendar day");
    let rules = |key| charger.rules(&find(&directory, key)).into_iter().filter(of_days).collect::<Vec<_>>();
    let candidate = "20 in each calendar day (Asia/Tokyo)";
    assert_eq!(rules("k1"), ["10 in each calendar day (Asia/Tokyo)", candidate]);
    assert_eq!(rules("k2"), ["30 in each calendar day (Asia/Tokyo)", candidate]);
    assert_eq!(rules("k3"), ["50 in each calendar day (Asia/Tokyo)"], "a candidate is for customers without overrides");
    assert_eq!(rules("k4"), ["10 in each calendar day (Europe/Berlin)"]);
    assert_eq!(rules("k5"), [candidate], "the plan has no limit");
    assert!(rules("k6")[0].contains("UTC without one"), "{:?}", rules("k6"));
    let zone = |key| find(&directory, key).own.as_ref().unwrap().zone.clone().unwrap();
    assert!(Arc::ptr_eq(&zone("k1"), &zone("k3")), "one table for all customers in a zone");
}

#[test]
fn an_override_that_makes_no_limit_is_told_with_its_place() {
    let text = format!("{HEADER}k1,a,free,\"{{calls: {{rate: 5, brust: 1}}}}\",,,\n");
    let faults = CustomerTable::load(
        &text,
        Format::Csv,
        &[7; 16],
        Arc::new(loaded().customers.overrides),
        &GroupTable::default(),
    )
    .err()
    .unwrap()
    .faults;
    let said: Vec<String> = faults.iter().map(|(line, fault)| format!("{line}: {fault}")).collect();
    let [rate, burst] = said.as_slice() else { panic!("{said:?}") };
    assert!(rate.starts_with("2: overrides: calls.rate: is not a rate (found `5`"), "{rate}");
    assert!(burst.starts_with("2: overrides: calls.brust: is unknown here"), "{burst}");
}

/// Charges the requests of customers as the gateway does.
struct Charger {
    loaded: LoadedConfig,
    hashers: LimitHashers,
    store: LocalStore,
    binding: Binding,
}

impl Charger {
    fn new() -> Self {
        let loaded = loaded();
        let store = LocalStore::new();
        let specs: Vec<LimitSpec<'_>> = loaded
            .ruleset
            .limits
            .iter()
            .map(|limit| LimitSpec {
                name: &limit.name,
                algorithm: limit.algorithm,
                mode: Mode::Sticky,
                key_kind: limit.key.kind(),
                is_reset: false,
                rules: &limit.rules,
                max_keys: limit.max_keys,
                may_refund: false,
            })
            .collect();
        let binding = store.bind(&specs);
        let hashers = loaded.ruleset.hashers(KeyHasher::new(&[1; 16]));
        Self { hashers, store, binding, loaded }
    }

    fn charges(&self, customer: &Customer) -> Vec<Charge> {
        let ruleset = &self.loaded.ruleset;
        let headers = Fields::default();
        let facts = Facts { host: "h", ..Facts::of(&headers) };
        let plan = customer.plan;
        let resolved = Resolved {
            route: "r",
            path_pattern: "/**",
            customer: Some(&customer.name),
            plan: Some((plan, &ruleset.plans[plan.0])),
            own: customer.own.as_deref(),
            groups: customer.groups.as_deref(),
            ..Resolved::default()
        };
        let mut charges = Vec::new();
        ruleset
            .add_charges(&ruleset.matcher.routes()[0].limits, &facts, &resolved, &self.hashers, &mut charges)
            .unwrap();
        charges
    }

    /// The descriptions of the rules under which the customer is charged, by limit.
    fn rules(&self, customer: &Customer) -> Vec<String> {
        let rule = |charge: &Charge| self.loaded.ruleset.limits[charge.limit].rule(&charge.rule).describe();
        self.charges(customer).iter().map(rule).collect()
    }

    /// The number of admitted requests of `count`.
    fn passed(&self, customer: &Customer, count: usize) -> usize {
        let pass = || {
            let charged = self.store.charge(&self.binding, &mut self.charges(customer), START);
            charged.iter().all(|charged| charged.decision.is_admitted())
        };
        (0..count).filter(|_| pass()).count()
    }
}

#[test]
fn a_bucket_that_is_spent_stays_spent_when_the_plan_changes() {
    let charger = Charger::new();
    let directory = read("k1,acme,free,,,,\n");
    assert_eq!(charger.passed(&find(&directory, "k1"), 12), 4);
    directory.update(&format!("{HEADER}k1,acme,pro,,,,\n"), &GroupTable::default()).unwrap();
    assert_eq!(charger.passed(&find(&directory, "k1"), 12), 0, "nothing of it is whole again");
    directory.update(&format!("{HEADER}k1,acme,free,,,,\n"), &GroupTable::default()).unwrap();
    assert_eq!(charger.passed(&find(&directory, "k1"), 12), 0);
}

#[test]
fn a_customer_is_charged_under_its_own_parameters() {
    let charger = Charger::new();
    let directory = read("k1,a,free,{calls: {burst: 100}},Asia/Tokyo,,\nk2,b,pro,{calls: unlimited},,,\n");
    let charges = charger.charges(&find(&directory, "k1"));
    assert!(charges.iter().all(|charge| matches!(charge.rule, RuleRef::Own(_))), "{charges:?}");
    let charges = charger.charges(&find(&directory, "k2"));
    assert_eq!(charges.iter().map(|charge| charge.limit).collect::<Vec<_>>(), [IMPORTS.0, CANDIDATE.0]);
}
