//! The recipe of docs/stripe.md, taken from the page: events like Stripe's change the plans at a running gateway.

use std::fs;

use crate::support::postgres::Postgres;
use crate::support::{Gateway, Origin, together, wait_until};

/// The code blocks of this kind in the page.
fn blocks(kind: &str) -> Vec<String> {
    let page = fs::read_to_string("docs/stripe.md").unwrap();
    let begins = format!("```{kind}\n");
    page.split(&begins).skip(1).map(|block| block.split_once("\n```").unwrap().0.to_owned()).collect()
}

/// A database with the tables of the page, a customer with a key, and the plans of lookup keys.
fn database() -> Postgres {
    let database = Postgres::start("pass");
    database.run_sql(&blocks("sql")[0]);
    database.run_sql(
        "GRANT SELECT ON accounts, api_keys TO gate;
        INSERT INTO stripe_plans VALUES ('pro_monthly', 'pro', 1), ('enterprise_monthly', 'enterprise', 2),
            ('enterprise_api', 'enterprise', 2);
        INSERT INTO accounts (name, stripe_customer) VALUES ('acme', 'cus_TollgateAcme'), ('globex', NULL);
        INSERT INTO api_keys VALUES ('key-acme', 'acme'), ('key-globex', 'globex')",
    );
    database
}

fn event(name: &str) -> String {
    fs::read_to_string(format!("tests/fixtures/stripe/{name}.json")).unwrap()
}

/// Runs the statement of the page's receiver with this event.
fn deliver(database: &Postgres, event: &str) {
    database.run_sql(&blocks("sql")[1].replace("$1", &format!("'{event}'")));
}

/// The status and the quota of a customer; the quota shows the plan.
fn met(gateway: &Gateway, customer: &str) -> (u16, Option<u64>) {
    let response = gateway.get("/", &[("x-api-key", &format!("key-{customer}"))]);
    (response.status, response.number("x-ratelimit-limit"))
}

const FREE: (u16, Option<u64>) = (200, Some(10_000));
const PRO: (u16, Option<u64>) = (200, Some(20_000));
const ENTERPRISE: (u16, Option<u64>) = (200, Some(30_000));
const SUSPENDED: (u16, Option<u64>) = (403, None);

#[test]
fn plans_follow_the_events_whatever_their_order_and_number() {
    let (origin, database) = (Origin::start(), database());
    let config = format!(
        "{}{}\nplans: [free, pro, enterprise]
limits:
  guard:
    {{ key: customer, algorithm: gcra, rate: 1/h, burst: 10000, plans: {{ pro: {{ burst: 20000 }}, enterprise: {{ burst: 30000 }} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]\n",
        origin.upstream(),
        blocks("yaml")[0]
    );
    let gateway = Gateway::start_with(&config, &[("database.url", &database.url())], &[]);
    assert_eq!(met(&gateway, "acme"), FREE);
    let follows = |name: &str, expected: (u16, Option<u64>)| {
        deliver(&database, &event(name));
        // the same event again
        deliver(&database, &event(name));
        let account = database.run_sql("SELECT plan, suspended FROM accounts WHERE name = 'acme'");
        let accounts = [(FREE, "free|f"), (PRO, "pro|f"), (ENTERPRISE, "enterprise|f"), (SUSPENDED, "pro|t")];
        let found = accounts.iter().find(|(_, text)| *text == account);
        assert_eq!(found.map(|(quota, _)| *quota), Some(expected), "{name}: {account}");
        wait_until(&format!("what follows from {name}"), || met(&gateway, "acme") == expected);
    };
    // the event of the creation arrives after that of a later change in the same second
    follows("updated-active", PRO);
    follows("created-incomplete", PRO);
    // a cancelled upgrade, whose event arrives late
    follows("updated-pro", PRO);
    follows("updated-enterprise", PRO);
    // Stripe retries a failed payment before anything changes
    follows("payment-failed", PRO);
    // the first payment of another subscription
    follows("first-payment-failed", PRO);
    follows("payment-given-up", SUSPENDED);
    follows("invoice-paid", PRO);
    follows("updated-unpaid", FREE);
    follows("updated-past-due", PRO);
    follows("deleted", FREE);
    // the last event about entitlements takes precedence over subscriptions
    follows("entitlements", ENTERPRISE);
    follows("entitlements-none", FREE);
    follows("updated-active", FREE);
    assert_eq!(database.run_sql("SELECT count(*) FROM stripe_events"), "13");
    // events of an account that the database does not know yet
    for name in ["updated-active", "updated-enterprise"] {
        deliver(&database, &event(name).replace("Acme", "Globex").replace("evt_", "evt_globex_"));
    }
    assert_eq!(met(&gateway, "globex"), FREE);
    database.run_sql("UPDATE accounts SET stripe_customer = 'cus_TollgateGlobex' WHERE name = 'globex'");
    wait_until("the plan of the other account", || met(&gateway, "globex") == ENTERPRISE);
}

#[test]
fn events_that_come_at_once_all_count() {
    let database = database();
    let names = ["created-incomplete", "updated-active", "updated-pro", "updated-enterprise"];
    for round in 0..5 {
        let customer = format!("Round{round}");
        database.run_sql(&format!(
            "INSERT INTO accounts (name, stripe_customer) VALUES ('{round}', 'cus_Tollgate{customer}')"
        ));
        together(names.len(), |n| {
            let event = event(names[(n + round) % names.len()]).replace("Acme", &customer);
            deliver(&database, &event.replace("evt_", &format!("evt_{round}_")));
        });
        assert_eq!(database.run_sql(&format!("SELECT plan FROM accounts WHERE name = '{round}'")), "pro");
    }
}
