//! Signed tokens: the tokens that the gateway accepts, and the claims that it uses.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use crate::support::tokens::{Issuer, key_set, seconds_from_now, unsigned};
use crate::support::{Gateway, Origin, Response, wait_until};

/// A gateway with a limit of 10 for plan `free` and 20 for plan `pro`.
fn gateway(origin: &Origin, identify: &str, more: &str, issuers: &[Issuer]) -> Gateway {
    let config = format!(
        "{}customers: {{ identify: {identify}, directory: {{ file: customers.csv }}{more} }}
plans: [free, pro, anonymous]
limits:
  per-customer:
    key: customer
    algorithm: gcra
    rate: 1/h
    burst: 10
    plans: {{ pro: {{ burst: 20 }}, anonymous: {{ burst: 5 }} }}
routes: [{{ name: all, upstream: origin, limits: [per-customer] }}]
access_log: full
",
        origin.upstream()
    );
    let customers = "credential,customer,plan\nplain-key,listed,pro\na.b.c,dotted,pro\n";
    Gateway::start_with(&config, &[("keys.jwks", &key_set(issuers)), ("customers.csv", customers)], &[])
}

const JWT: &str = "[{ jwt: { jwks_file: keys.jwks, plan: free } }]";

fn bearer(gateway: &Gateway, token: &str) -> Response {
    gateway.get("/", &[("authorization", &format!("Bearer {token}"))])
}

/// The status and the remaining quota of a response.
fn told(response: &Response) -> (u16, Option<u64>) {
    (response.status, response.number("x-ratelimit-remaining"))
}

fn refused(response: &Response, why: &str) {
    assert_eq!(response.status, 401, "{response:?}");
    let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{why}\"");
    assert_eq!(response.field("www-authenticate"), Some(challenge.as_str()));
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert_eq!(response.json()["status"], 401);
    let detail = response.json()["detail"].as_str().unwrap().to_lowercase();
    assert_eq!(detail, format!("{why}."));
}

const UNVERIFIED: &str = "the token cannot be verified";

#[test]
fn tokens_of_every_kind_of_key_are_verified() {
    let origin = Origin::start();
    let issuers = || vec![Issuer::rsa(), Issuer::p256(), Issuer::p384(), Issuer::ed25519(), Issuer::secret()];
    let gateway = gateway(&origin, JWT, "", &issuers());
    for (number, issuer) in issuers().iter().enumerate() {
        let customer = format!("customer-{number}");
        let token = issuer.token(&customer);
        assert_eq!(told(&bearer(&gateway, &token)), (200, Some(9)), "{:?}", issuer.algorithm);
        assert_eq!(told(&bearer(&gateway, &token)), (200, Some(8)), "{:?} again", issuer.algorithm);
    }
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512] {
        let token = Issuer::rsa().with(algorithm).token(&format!("{algorithm:?}"));
        assert_eq!(told(&bearer(&gateway, &token)), (200, Some(9)), "{algorithm:?}");
    }
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let token = Issuer::secret().with(algorithm).token(&format!("{algorithm:?}"));
        assert_eq!(told(&bearer(&gateway, &token)), (200, Some(9)), "{algorithm:?}");
    }
    let nameless = Issuer { id: None, ..Issuer::p384() };
    assert_eq!(told(&bearer(&gateway, &nameless.token("nameless"))), (200, Some(9)));
}

#[test]
fn the_time_of_a_token_is_kept() {
    let origin = Origin::start();
    let jwt = "[{ jwt: { jwks_file: keys.jwks, plan: free, leeway: 10s } }]";
    let gateway = gateway(&origin, jwt, "", &[Issuer::p256()]);
    let token = |times: Value| {
        let mut claims = json!({ "sub": "acme" });
        claims.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        Issuer::p256().sign(&claims)
    };
    let at = seconds_from_now;
    refused(&bearer(&gateway, &token(json!({ "exp": at(-30) }))), "the token has expired");
    assert_eq!(bearer(&gateway, &token(json!({ "exp": at(600) }))).status, 200);
    refused(&bearer(&gateway, &token(json!({ "exp": at(900), "nbf": at(600) }))), "the token is not valid yet");
    assert_eq!(bearer(&gateway, &token(json!({ "exp": at(900), "nbf": at(-1) }))).status, 200);
    refused(&bearer(&gateway, &token(json!({}))), "the token does not say when it expires");
    refused(&bearer(&gateway, &token(json!({ "exp": "tomorrow" }))), "the token's times cannot be read");
    assert_eq!(origin.count(), 2);
}

#[test]
fn forged_tokens_are_refused() {
    let origin = Origin::start();
    let gateway = gateway(&origin, JWT, "", &[Issuer::rsa(), Issuer::p256()]);
    let claims = json!({ "sub": "acme", "exp": seconds_from_now(3_600) });
    let good = Issuer::rsa().sign(&claims);
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    let others = unsigned(&json!({}), &json!({ "sub": "globex", "exp": seconds_from_now(3_600) }), "");
    let other_body = others.split('.').nth(1).unwrap();
    let public_key = serde_json::from_str::<Value>(&key_set(&[Issuer::rsa()])).unwrap()["keys"][0]["n"].clone();
    let with_public_key =
        |id| Issuer { id, algorithm: Algorithm::HS256, key: public_key.as_str().unwrap().as_bytes().to_vec() };
    let long = "x".repeat(8_000);
    let forged = [
        ("no signature", unsigned(&json!({ "alg": "none" }), &claims, "")),
        ("no algorithm in capitals", unsigned(&json!({ "alg": "NONE", "kid": "rsa" }), &claims, signature)),
        ("no algorithm at all", unsigned(&json!({ "typ": "JWT" }), &claims, signature)),
        ("a signature taken away", format!("{message}.")),
        ("another signature", format!("{message}.{}", signature.chars().rev().collect::<String>())),
        ("other claims", format!("{header}.{other_body}.{signature}")),
        ("another key of the same name", Issuer::other_rsa().sign(&claims)),
        ("a key that nobody knows", Issuer { id: Some("other"), ..Issuer::rsa() }.sign(&claims)),
        ("a nameless key that nobody knows", Issuer { id: None, ..Issuer::p384() }.sign(&claims)),
        ("the public key as a secret", with_public_key(Some("rsa")).sign(&claims)),
        ("the public key as a nameless secret", with_public_key(None).sign(&claims)),
        ("the name of another key", Issuer { id: Some("p256"), ..Issuer::rsa() }.sign(&claims)),
        (
            "a key of its own",
            unsigned(&json!({ "alg": "HS256", "jwk": { "kty": "oct", "k": "AAAA" } }), &claims, "AAAA"),
        ),
        ("garbage", "%%%".to_owned()),
        ("two parts", message.to_owned()),
        ("four parts", format!("{good}.x")),
        ("dots", "..".to_owned()),
        ("no JSON", "YQ.YQ.YQ".to_owned()),
        ("too long", Issuer::p256().sign(&json!({ "sub": "acme", "exp": seconds_from_now(3_600), "long": long }))),
    ];
    for (what, token) in &forged {
        let response = gateway.get("/", &[("authorization", &format!("Bearer {token}"))]);
        match *what {
            "too long" => assert_eq!(response.status, 431, "the head is bounded before"),
            _ => refused(&response, UNVERIFIED),
        }
    }
    assert_eq!(origin.count(), 0);
    assert_eq!(bearer(&gateway, &good).status, 200);
    let said = gateway.process.stderr() + &gateway.process.stdout() + &gateway.admin_get("/metrics").text();
    assert!(said.contains("token_refused"), "{said}");
    for (what, token) in forged.iter().filter(|(_, token)| token.len() > 20) {
        let part = token.split('.').max_by_key(|part| part.len()).unwrap();
        assert!(!said.contains(part), "{what}: {said}");
    }
}

#[test]
fn a_token_longer_than_tokens_are_is_not_looked_at() {
    let origin = Origin::start();
    let config = gateway_config_with_long_heads(&origin);
    let gateway = Gateway::start_with(&config, &[("keys.jwks", &key_set(&[Issuer::p256()]))], &[]);
    let token = |length| {
        Issuer::p256().sign(&json!({ "sub": "acme", "exp": seconds_from_now(3_600), "long": "x".repeat(length) }))
    };
    assert_eq!(bearer(&gateway, &token(5_000)).status, 200);
    refused(&bearer(&gateway, &token(7_000)), UNVERIFIED);
}

fn gateway_config_with_long_heads(origin: &Origin) -> String {
    format!(
        "{}customers: {{ identify: {JWT} }}\nplans: [free]\nroutes: [{{ name: all, upstream: origin }}]
request_head: {{ max_header: 20KiB }}\n",
        origin.upstream()
    )
}

#[test]
fn issuer_audience_and_algorithms_are_held_to_what_is_configured() {
    let origin = Origin::start();
    let jwt = "[{ jwt: { jwks_file: keys.jwks, plan: free, issuer: us, audience: [api, web], algorithms: [ES256] } }]";
    let gateway = gateway(&origin, jwt, "", &[Issuer::p256(), Issuer::secret()]);
    let claims = |iss: &str, aud: Value| json!({ "sub": "acme", "exp": seconds_from_now(60), "iss": iss, "aud": aud });
    assert_eq!(bearer(&gateway, &Issuer::p256().sign(&claims("us", json!(["x", "web"])))).status, 200);
    refused(
        &bearer(&gateway, &Issuer::p256().sign(&claims("us", json!("x")))),
        "the token is meant for another audience",
    );
    refused(&bearer(&gateway, &Issuer::p256().sign(&claims("them", json!("api")))), "the token is from another issuer");
    refused(&bearer(&gateway, &Issuer::p256().sign(&claims("", json!("api")))), "the token is from another issuer");
    refused(
        &bearer(&gateway, &Issuer::p256().sign(&claims("us", json!(null)))),
        "the token is meant for another audience",
    );
    refused(&bearer(&gateway, &Issuer::secret().sign(&claims("us", json!("api")))), UNVERIFIED);
}

#[test]
fn the_plan_is_what_the_token_says_or_what_the_configuration_says() {
    let origin = Origin::start();
    let named = "[{ jwt: { jwks_file: keys.jwks, claim: user.id, plan_claim: https://example.com/plan } }]";
    let gateway = gateway(&origin, named, "", &[Issuer::p256()]);
    let token = |customer: Value, plan: Value| {
        Issuer::p256().sign(&json!({
            "exp": seconds_from_now(60), "user": { "id": customer }, "https://example.com/plan": plan
        }))
    };
    assert_eq!(told(&bearer(&gateway, &token(json!("acme"), json!("pro")))), (200, Some(19)));
    assert_eq!(told(&bearer(&gateway, &token(json!("globex"), json!("free")))), (200, Some(9)));
    assert_eq!(told(&bearer(&gateway, &token(json!(17), json!("free")))), (200, Some(9)));
    for plan in [json!("gold"), json!(null), json!(["pro"])] {
        let response = bearer(&gateway, &token(json!("acme"), plan));
        assert_eq!(response.status, 403);
        assert_eq!(response.json()["detail"], "The token names no plan that is known here.");
        assert_eq!(response.field("www-authenticate"), None);
    }
    let listed = bearer(&gateway, &token(json!("listed"), json!("gold")));
    assert_eq!(told(&listed), (200, Some(19)), "the directory gives the plan");
    refused(&bearer(&gateway, &token(json!({}), json!("pro"))), "the token does not say who is calling");
    let labels = [("route", "all"), ("limit", "per-customer"), ("plan", "pro"), ("outcome", "admitted")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 2.0);
}

#[test]
fn a_plan_that_the_token_does_not_know_is_the_configured_one() {
    let origin = Origin::start();
    let jwt = "[{ jwt: { jwks_file: keys.jwks, plan_claim: plan, plan: free } }]";
    let gateway = gateway(&origin, jwt, "", &[Issuer::p256()]);
    let token = |plan| Issuer::p256().sign(&json!({ "sub": plan, "exp": seconds_from_now(60), "plan": plan }));
    assert_eq!(told(&bearer(&gateway, &token("gold"))), (200, Some(9)));
    assert_eq!(told(&bearer(&gateway, &token("pro"))), (200, Some(19)));
}

#[test]
fn bearer_keys_and_tokens_go_side_by_side_whatever_their_order() {
    let origin = Origin::start();
    for identify in [
        "[{ bearer: true }, { jwt: { jwks_file: keys.jwks, plan: free } }]",
        "[{ jwt: { jwks_file: keys.jwks, plan: free } }, { bearer: true }]",
    ] {
        let gateway = gateway(&origin, identify, "", &[Issuer::p256()]);
        assert_eq!(told(&bearer(&gateway, "plain-key")), (200, Some(19)), "{identify}");
        assert_eq!(told(&bearer(&gateway, &Issuer::p256().token("acme"))), (200, Some(9)), "{identify}");
        refused(&bearer(&gateway, "a.b.c"), UNVERIFIED);
        let unknown = bearer(&gateway, "nobodys");
        assert_eq!((unknown.status, unknown.field("www-authenticate")), (401, Some("Bearer")));
    }
}

#[test]
fn tokens_may_be_in_a_header_of_their_own() {
    let origin = Origin::start();
    let identify = "[{ jwt: { jwks_file: keys.jwks, plan: free, header: x-token } }, { bearer: true }]";
    let gateway = gateway(&origin, identify, "", &[Issuer::p256()]);
    let token = Issuer::p256().token("acme");
    assert_eq!(told(&gateway.get("/", &[("x-token", &token)])), (200, Some(9)));
    assert_eq!(told(&gateway.get("/", &[("x-token", &token), ("authorization", "Bearer plain-key")])), (200, Some(8)));
    assert_eq!(told(&bearer(&gateway, "a.b.c")), (200, Some(19)), "what looks like a token elsewhere is none");
    assert_eq!(gateway.get("/", &[("x-token", &token), ("x-token", &token)]).status, 400);
    refused(&gateway.get("/", &[("x-token", "garbage")]), UNVERIFIED);
}

#[test]
fn unknown_callers_may_count_as_anonymous_but_expired_ones_do_not() {
    let origin = Origin::start();
    let more = ", anonymous: { plan: anonymous }, unknown: anonymous";
    let gateway = gateway(&origin, JWT, more, &[Issuer::p256()]);
    assert_eq!(told(&bearer(&gateway, &Issuer::rsa().token("acme"))), (200, Some(4)));
    assert_eq!(told(&gateway.get("/", &[])), (200, Some(3)), "the same bucket as without a token");
    let expired = Issuer::p256().sign(&json!({ "sub": "acme", "exp": seconds_from_now(-600) }));
    refused(&bearer(&gateway, &expired), "the token has expired");
}

#[test]
fn limits_count_by_what_tokens_say() {
    let origin = Origin::start();
    let config = format!(
        "{}customers: {{ identify: {JWT}, anonymous: {{ plan: free }} }}
plans: [free]
limits:
  per-tenant: {{ key: {{ jwt_claim: org.id }}, algorithm: gcra, rate: 1/h, burst: 2, missing_key: deny }}
  per-role: {{ key: [customer, {{ jwt_claim: role }}], algorithm: gcra, rate: 1/h, burst: 1, missing_key: skip }}
routes:
  - {{ name: tenants, match: {{ path: /tenants }}, upstream: origin, limits: [per-tenant] }}
  - {{ name: roles, match: {{ path: /roles }}, upstream: origin, limits: [per-role] }}
",
        origin.upstream()
    );
    let gateway = Gateway::start_with(&config, &[("keys.jwks", &key_set(&[Issuer::p256()]))], &[]);
    let get = |path: &str, customer: &str, claims: Value| {
        let mut all = json!({ "sub": customer, "exp": seconds_from_now(60) });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let token = format!("Bearer {}", Issuer::p256().sign(&all));
        gateway.get(path, &[("authorization", &token)])
    };
    let tenant = |customer: &str, id: Value| get("/tenants", customer, json!({ "org": { "id": id } })).status;
    let statuses = [tenant("a", json!(1)), tenant("b", json!(1)), tenant("c", json!(1)), tenant("c", json!(2))];
    assert_eq!(statuses, [200, 200, 429, 200], "two customers of one tenant share");
    let without = get("/tenants", "a", json!({ "org": {} }));
    assert_eq!(
        (without.status, without.json()["detail"].as_str()),
        (400, Some("The request lacks its token claim org.id."))
    );
    assert_eq!(gateway.get("/tenants", &[]).status, 400, "nor has anybody without a token a claim");
    let role = |claims: Value| get("/roles", "a", claims).status;
    let statuses = [role(json!({ "role": "x" })), role(json!({ "role": "x" })), role(json!({ "role": "y" }))];
    assert_eq!(statuses, [200, 429, 200]);
    assert_eq!([role(json!({})), role(json!({ "role": ["x"] }))], [200, 200], "not counted");
}

#[test]
fn keys_come_and_go_while_the_gateway_runs_and_bad_ones_change_nothing() {
    let origin = Origin::start();
    let identify = "[{ jwt: { jwks_file: keys.jwks, plan: free } }, { header: x-api-key }]";
    let gateway = gateway(&origin, identify, "", &[Issuer::p256()]);
    let (old, new) = (Issuer::p256().token("acme"), Issuer::ed25519().token("acme"));
    assert_eq!([bearer(&gateway, &old).status, bearer(&gateway, &new).status], [200, 401]);
    gateway.folder.write("keys.jwks", key_set(&[Issuer::ed25519()]));
    wait_until("the new key to be in force", || bearer(&gateway, &new).status == 200);
    refused(&bearer(&gateway, &old), UNVERIFIED);

    gateway.folder.write("keys.jwks", "{ \"keys\": [{ \"kty\": \"oct\", \"k\": \"canary\" }] }");
    gateway.folder.write("customers.csv", "credential,customer,plan\nnew-key,new,pro\n");
    let response = gateway.reload();
    assert_ne!(response.status, 200);
    assert!(response.text().contains("keys[0].k") && !response.text().contains("canary"), "{response:?}");
    assert_eq!(bearer(&gateway, &new).status, 200, "the keys in force stay");
    assert_eq!(gateway.get("/", &[("x-api-key", "new-key")]).status, 401, "nor do new customers come into force");
}
