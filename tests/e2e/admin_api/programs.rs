//! Charges by programs that are no proxies.

use serde_json::{Value, json};

use super::{BEARER, HOST, by_customer, customers, post, remaining, started};
use crate::support::Origin;
use crate::support::gateway::limited;

#[test]
fn programs_that_are_no_proxies_charge_the_limits_of_requests_all_or_none() {
    let origin = Origin::start();
    let gateway = started(&by_customer(&origin), &[("customers.csv", &customers())]);
    let charge = |charges: Value| post(&gateway, "/v1/charge", &[HOST, BEARER], &json!({ "charges": charges }));
    let asked = |charges: Value| {
        let response = charge(charges);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    };
    let globex = |tokens: i64| json!({ "limit": "guard", "key": { "customer": "globex" }, "tokens": tokens });
    let bob = json!({ "client_address": "127.0.0.1", "header: x-user": "bob", "route": "login" });
    let logins = |tokens: i64| json!({ "limit": "logins", "key": bob, "tokens": tokens });
    let left = |answer: &Value| answer["charges"].as_array().unwrap().iter().map(remaining).collect::<Vec<_>>();
    let first = asked(json!([globex(3)]));
    assert_eq!((&first["admitted"], left(&first)), (&json!(true), vec![2]));
    assert_eq!(gateway.get("/", &[("x-api-key", "k2")]).status, 200, "a request takes from the same count");
    let denied = asked(json!([globex(2)]));
    assert_eq!((&denied["admitted"], &denied["denied_by"], left(&denied)), (&json!(false), &json!("guard"), vec![1]));
    assert!(denied["retry_after_seconds"].as_f64().unwrap() > 80_000.0, "{denied:#}");
    // the second limit denies, so the first charges nothing
    let both = asked(json!([globex(1), logins(4)]));
    assert_eq!((&both["denied_by"], left(&both)), (&json!("logins"), vec![1, 3]));
    let both = asked(json!([globex(1), logins(3)]));
    assert_eq!((&both["admitted"], left(&both)), (&json!(true), vec![0, 0]));
    let peek = asked(json!([globex(0)]));
    assert_eq!((&peek["admitted"], left(&peek)), (&json!(false), vec![0]));
    assert_eq!(gateway.get("/", &[("x-api-key", "k2")]).status, 429);
    let back = asked(json!([globex(-2), logins(-1)]));
    assert_eq!((&back["admitted"], left(&back)), (&json!(true), vec![2, 1]));
    assert_eq!(asked(json!([globex(0)]))["admitted"], true);
    assert_eq!(gateway.get("/", &[("x-api-key", "k2")]).status, 200, "what was given back can be taken");
    let metric =
        |result| gateway.metrics().value("tollgate_decisions_total", &[("serves", "charge"), ("result", result)]);
    assert_eq!((metric("admitted"), metric("denied")), (Some(4.0), Some(3.0)));
    let unknown = json!({ "limit": "gard", "tokens": 1 });
    let more = json!({ "limit": "guard", "key": { "customer": "globex" }, "tokens": 1, "hits": 1 });
    let no_tokens = json!({ "limit": "guard", "key": { "customer": "globex" } });
    for (charges, status, says) in [
        (json!([]), 400, "there are 0 charges"),
        (json!([globex(1), globex(1)]), 400, "twice"),
        (json!([globex(1), logins(-1)]), 400, "some charges take tokens and others give them back"),
        (json!([more]), 400, "hits"),
        (json!([no_tokens]), 400, "tokens"),
        (json!([unknown]), 404, "there is no limit"),
        (json!(7), 400, "charges"),
    ] {
        let refused = charge(charges);
        let said = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(refused.status == status && said.contains(says), "{} {said}", refused.status);
    }
    assert_eq!(left(&asked(json!([globex(0)]))), [1], "what is refused takes nothing");
    assert_eq!(metric("refused"), Some(7.0));
}

#[test]
fn a_limit_that_does_not_apply_to_a_key_admits_its_charges() {
    const OFF: &str = "limits:
  off: { algorithm: gcra, rate: 1/d, burst: 1, key: { header: x-user }, enabled_percent: 0 }
";
    let origin = Origin::start();
    let config = by_customer(&origin).replace("limits:\n", OFF).replace("[guard]", "[guard, off]");
    let gateway = started(&config, &[("customers.csv", &customers())]);
    let request = json!({ "url": "http://localhost/", "headers": { "x-api-key": "k3" } });
    let bob = json!({ "client_address": "127.0.0.1", "header: x-user": "bob", "route": "login" });
    for uncharged in [
        json!({ "limit": "guard", "key": { "customer": "umbrella" } }),
        json!({ "limit": "guard", "request": request }),
        json!({ "limit": "off", "key": { "header: x-user": "bob" } }),
    ] {
        for (tokens, left) in [(3, 0), (-3, 3)] {
            let mut charges = [uncharged.clone(), json!({ "limit": "logins", "key": bob })];
            charges.iter_mut().for_each(|charge| charge["tokens"] = tokens.into());
            let answer = post(&gateway, "/v1/charge", &[HOST, BEARER], &json!({ "charges": charges })).json();
            let standings = answer["charges"].as_array().unwrap();
            assert_eq!((&answer["admitted"], standings.len()), (&json!(true), 1), "{answer:#}");
            assert_eq!((&standings[0]["limit"], remaining(&standings[0])), (&json!("logins"), left));
        }
        let peeked = post(&gateway, "/v1/keys/peek", &[HOST, BEARER], &uncharged);
        assert!(peeked.status == 404 && peeked.text().contains("does not apply"), "{peeked:?}");
    }
}

#[test]
fn answers_about_a_refused_customer_say_so_and_its_charges_are_made() {
    let origin = Origin::start();
    let customers = "credential,customer,plan,suspended,valid_until\nk1,acme,free,true,\nk2,globex,free,,2020-12-31\n";
    let gateway = started(&by_customer(&origin), &[("customers.csv", customers)]);
    for (customer, status, refused) in [("acme", 403, "suspended"), ("globex", 401, "credential_expired")] {
        let key = if customer == "acme" { "k1" } else { "k2" };
        assert_eq!(gateway.get("/", &[("x-api-key", key)]).status, status);
        let question = json!({ "limit": "guard", "key": { "customer": customer }, "tokens": 1 });
        let charges = json!({ "charges": [question] });
        let charged = post(&gateway, "/v1/charge", &[HOST, BEARER], &charges).json();
        assert_eq!(charged["admitted"], true, "{charged:#}");
        let answers = [charged["charges"][0].clone()].into_iter().chain(
            ["/v1/keys/grant", "/v1/keys/reset", "/v1/keys/peek"]
                .map(|path| post(&gateway, path, &[HOST, BEARER], &question).json()),
        );
        let answers: Vec<Value> = answers.collect();
        assert!(answers.iter().all(|answer| answer["refused"] == refused), "{answers:#?}");
        assert_eq!(answers.iter().map(remaining).collect::<Vec<_>>(), [1, 2, 2, 2]);
    }
}

#[test]
fn the_key_of_a_limit_without_a_plan_needs_none() {
    const TIERS: &str = "limits:
  tiers: { algorithm: gcra, rate: 1/d, burst: 1, key: { descriptor: user }, plans: { pro: { rate: 1/d, burst: 5 } } }
";
    let origin = Origin::start();
    let domains = "domains: { edge: { plan: tier, descriptors: [{ key: user, limits: [tiers] }] } }\n";
    let config = by_customer(&origin).replace("limits:\n", TIERS) + domains;
    let gateway = started(&config, &[("customers.csv", &customers())]);
    let key = json!({ "descriptor: user": "a" });
    for (question, left) in
        [(json!({ "limit": "tiers", "key": key }), 1), (json!({ "limit": "tiers", "key": key, "plan": "pro" }), 5)]
    {
        assert_eq!(remaining(&post(&gateway, "/v1/keys/peek", &[HOST, BEARER], &question).json()), left);
    }
}

#[test]
fn a_program_cannot_charge_what_runs() {
    let origin = Origin::start();
    let gateway = started(&limited(&origin, "{ algorithm: concurrency, limit: 2, key: all }"), &[]);
    let question = json!({ "charges": [{ "limit": "guard", "tokens": 1 }] });
    let refused = post(&gateway, "/v1/charge", &[HOST, BEARER], &question);
    assert!(refused.status == 409 && refused.text().contains("requests in flight"), "{refused:?}");
}
