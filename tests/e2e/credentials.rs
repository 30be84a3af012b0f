//! The places of a credential; the gateway passes it to the upstream only.

use crate::support::{Gateway, Origin, Response, wait_until};

const CUSTOMERS: &str = "credential,customer,plan\n\
    key-1,acme,free\n\
    \"key 2&=\",globex,pro\n\
    ana:secret,ana,free\n\
    ana,nobody,free\n";

/// A gateway on which the remaining quota shows the plan: plan `free` has 10, `pro` 20.
fn gateway(origin: &Origin, identify: &str) -> Gateway {
    let config = format!(
        "{}customers:
  identify: {identify}
  directory: {{ file: customers.csv }}
plans: [free, pro]
limits:
  per-customer:
    key: customer
    algorithm: gcra
    rate: 1/h
    burst: 10
    plans: {{ pro: {{ burst: 20 }} }}
routes: [{{ name: all, upstream: origin, limits: [per-customer] }}]
access_log: full
",
        origin.upstream()
    );
    Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[])
}

/// The status and the remaining quota of a response.
fn told(response: &Response) -> (u16, Option<u64>) {
    (response.status, response.number("x-ratelimit-remaining"))
}

#[test]
fn a_request_that_lacks_a_part_of_a_key_has_its_caller_in_the_access_log() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ header: x-api-key }]");
    let text = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write(
        "tollgate.yaml",
        text.replace("key: customer", "key: [customer, { header: x-tenant }]\n    missing_key: deny"),
    );
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.get("/", &[("x-api-key", "key-1")]).status, 400);
    let line = gateway.process.wait_for_access("key_missing");
    assert_eq!((line["customer"].as_str(), line["plan"].as_str()), (Some("acme"), Some("free")), "{line}");
}

#[test]
fn a_key_may_be_in_the_query() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ query: api_key }]");
    assert_eq!(told(&gateway.get("/a?x=1&api_key=key-1&y", &[])), (200, Some(9)));
    assert_eq!(told(&gateway.get("/a?api%5fkey=key%202%26%3D", &[])), (200, Some(19)));
    assert_eq!(told(&gateway.get("/a?api_key=key+2%26=", &[])), (200, Some(18)));
    assert_eq!(origin.received()[1].target(), "/a?api%5fkey=key%202%26%3D", "nothing is taken out");
    for target in ["/", "/a?api_key", "/a?api_key=", "/a?API_KEY=key-1", "/a?api_key=nobodys"] {
        assert_eq!(gateway.get(target, &[]).status, 401, "{target}");
    }
    let twice = gateway.get("/a?api_key=key-1&api_key=key-1", &[]);
    assert_eq!(twice.status, 400);
    assert_eq!(twice.json()["detail"], "The request carries its credential more than once.");
    assert_eq!(origin.count(), 3);
}

#[test]
fn a_key_may_be_in_a_cookie() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ cookie: session }]");
    assert_eq!(told(&gateway.get("/", &[("cookie", "a=b; session=key-1; c=d")])), (200, Some(9)));
    assert_eq!(told(&gateway.get("/", &[("cookie", "a=b"), ("cookie", "session=key-1")])), (200, Some(8)));
    assert_eq!(gateway.get("/", &[("cookie", "sessions=key-1")]).status, 401);
    assert_eq!(gateway.get("/", &[("cookie", "session=nobodys")]).status, 401);
    let twice = [("cookie", "session=key-1"), ("cookie", "session=other")];
    assert_eq!(gateway.get("/", &twice).status, 400);
}

#[test]
fn a_key_may_be_a_user_with_its_password() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ basic: true }]");
    // ana:secret
    assert_eq!(told(&gateway.get("/", &[("authorization", "Basic YW5hOnNlY3JldA==")])), (200, Some(9)));
    assert_eq!(told(&gateway.get("/", &[("authorization", "bASIC  YW5hOnNlY3JldA==")])), (200, Some(8)));
    // key-1 as the user name, as `curl -u key-1:` sends it
    assert_eq!(told(&gateway.get("/", &[("authorization", "Basic a2V5LTE6")])), (200, Some(9)));
    // ana:wrong, ana:secret2, :, :secret, secret, not base64, nothing
    for wrong in ["YW5hOndyb25n", "YW5hOnNlY3JldDI=", "Og==", "OnNlY3JldA==", "c2VjcmV0", "%%%", "YW5hOnNlY3JldA"] {
        let response = gateway.get("/", &[("authorization", &format!("Basic {wrong}"))]);
        assert_eq!(response.status, 401, "{wrong}");
        assert_eq!(response.field("www-authenticate"), Some("Basic realm=\"api\", charset=\"UTF-8\""));
        assert!(!response.text().contains("secret"));
    }
    assert_eq!(gateway.get("/", &[("authorization", "Bearer ana:secret")]).status, 401);
    assert_eq!(origin.count(), 3);
}

#[test]
fn the_first_source_that_is_there_counts_and_no_other() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ header: x-api-key }, { query: key }, { bearer: true }, { basic: true }]");
    let all = [("x-api-key", "key-1"), ("authorization", "Basic YW5hOnNlY3JldA==")];
    assert_eq!(told(&gateway.get("/?key=key+2%26%3D", &all)), (200, Some(9)), "acme");
    assert_eq!(told(&gateway.get("/?key=key+2%26%3D", &all[1..])), (200, Some(19)), "globex");
    assert_eq!(told(&gateway.get("/", &all[1..])), (200, Some(9)), "ana");
    let wrong_first = [("x-api-key", "nobodys"), ("authorization", "Basic YW5hOnNlY3JldA==")];
    assert_eq!(gateway.get("/", &wrong_first).status, 401, "a right one behind a wrong one does not help");
    let challenges = gateway.get("/", &[]);
    assert_eq!(challenges.head.all("www-authenticate"), ["Bearer", "Basic realm=\"api\", charset=\"UTF-8\""]);
}

#[test]
fn a_credential_that_is_there_twice_is_refused() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ header: x-api-key }, { bearer: true }]");
    let header_twice = [("x-api-key", "key-1"), ("X-API-Key", "nobodys")];
    assert_eq!(gateway.get("/", &header_twice).status, 400);
    let bearer_twice = [("authorization", "Bearer key-1"), ("authorization", "Basic x")];
    assert_eq!(gateway.get("/", &bearer_twice).status, 400);
    assert_eq!(origin.count(), 0);
    let other_twice = [("x-api-key", "key-1"), ("authorization", "a"), ("authorization", "b")];
    assert_eq!(gateway.get("/", &other_twice).status, 200, "what is not looked at may be there twice");
}

#[test]
fn a_key_in_a_field_that_upstreams_take_for_the_same_is_none_and_is_dropped() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[{ header: x-api-key }]");
    let none = told(&gateway.get("/", &[]));
    assert_eq!(told(&gateway.get("/", &[("X_Api_Key", "key-1")])).0, none.0);
    assert_eq!(told(&gateway.get("/", &[("x_api-key", "nobodys")])).0, none.0);
    // the gateway could charge one customer while the upstream serves the other
    let both = [("x-api-key", "key-1"), ("x_api_key", "key 2&=")];
    assert_eq!(told(&gateway.get("/", &both)), (200, Some(9)));
    let reached = origin.received();
    assert!(!reached.is_empty());
    assert!(reached.iter().all(|seen| seen.head.fields.iter().all(|(name, _)| !name.contains('_'))), "{reached:?}");
}

#[test]
fn no_credential_shows_in_answers_logs_or_metrics() {
    let origin = Origin::start();
    let gateway = gateway(
        &origin,
        "[{ header: x-api-key }, { query: api_key }, { cookie: session }, { bearer: true }, { basic: true }]",
    );
    // canary-basic:canary-password
    let basic = "Basic Y2FuYXJ5LWJhc2ljOmNhbmFyeS1wYXNzd29yZA==";
    let mut said = String::new();
    for (target, fields) in [
        ("/", [("x-api-key", "canary-header")].as_slice()),
        ("/?api_key=canary-query", &[]),
        ("/", &[("cookie", "session=canary-cookie")]),
        ("/", &[("authorization", "Bearer canary-bearer")]),
        ("/", &[("authorization", basic)]),
        ("/", &[("x-api-key", "canary-header"), ("x-api-key", "canary-header")]),
    ] {
        let response = gateway.get(target, fields);
        assert!([400, 401].contains(&response.status), "{response:?}");
        said += &format!("{:?}{}", response.head, response.text());
    }
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "400")], 1.0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "401")], 5.0);
    for page in ["/metrics", "/status"] {
        said += &gateway.admin_get(page).text();
    }
    let logged = || format!("{}{}", gateway.process.stderr(), gateway.process.stdout());
    wait_until("the log to tell of all of them", || logged().matches("credential_unknown").count() >= 5);
    said += &logged();
    assert!(!said.contains("canary") && !said.contains("Y2FuYXJ5"), "{said}");
}
