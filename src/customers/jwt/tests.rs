use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ruleset::key::Claims as _;

const SECRET: &[u8; 32] = b"a secret for tests, 32 bytes lon";
const PLANS: [&str; 2] = ["free", "pro"];
const NOW: Nanos = Nanos::from_secs(1_000_000);

fn rules() -> JwtRules {
    JwtRules {
        header: None,
        claim: "sub".to_owned(),
        plan_claim: Some("plan".to_owned()),
        group_claims: Vec::new(),
        plan: Some(PlanId(0)),
        algorithms: Vec::new(),
        issuers: Vec::new(),
        audiences: Vec::new(),
        leeway: Nanos::from_secs(30),
        require_exp: true,
    }
}

fn key_set() -> String {
    let secret = URL_SAFE_NO_PAD.encode(SECRET);
    json!({ "keys": [{ "kty": "oct", "kid": "ours", "k": secret }] }).to_string()
}

fn tokens(rules: JwtRules) -> TokenVerifier {
    TokenVerifier::new(
        Arc::new(rules),
        Keys::parse(&key_set()).unwrap().0.into(),
        &PLANS.map(str::to_owned),
        Arc::default(),
        &[7; 16],
    )
}

fn sign_with(header: &Header, claims: &Value) -> String {
    let hash = if header.alg == Algorithm::HS512 { ring::hmac::HMAC_SHA512 } else { ring::hmac::HMAC_SHA256 };
    let part = |json: Vec<u8>| URL_SAFE_NO_PAD.encode(json);
    let message =
        format!("{}.{}", part(serde_json::to_vec(header).unwrap()), part(serde_json::to_vec(claims).unwrap()));
    let signature = ring::hmac::sign(&ring::hmac::Key::new(hash, SECRET), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn sign(claims: &Value) -> String {
    sign_with(&Header::new(Algorithm::HS256), claims)
}

fn verify_at(tokens: &TokenVerifier, token: &str, now: Nanos) -> Result<(String, PlanId), TokenFault> {
    let token = tokens.verify(token.as_bytes(), now)?;
    let customer = token.customer.as_ref().ok_or(TokenFault::WithoutPlan)?;
    Ok((customer.name.to_string(), customer.plan))
}

/// The result for a token with these claims under these rules.
fn verdict(rules: JwtRules, claims: &Value) -> Result<(String, PlanId), TokenFault> {
    verify_at(&tokens(rules), &sign(claims), NOW)
}

fn acme(plan: usize) -> Result<(String, PlanId), TokenFault> {
    Ok(("acme".to_owned(), PlanId(plan)))
}

#[test]
fn a_token_is_good_up_to_its_last_moment_whenever_it_was_first_seen() {
    let tokens = tokens(rules());
    let token = sign(&json!({ "sub": "acme", "nbf": 999_000, "exp": 1_000_000 }));
    let at = |seconds: u64, nanos: u64| Nanos::new(seconds * 1_000_000_000 + nanos);
    for _ in 0..2 {
        assert_eq!(verify_at(&tokens, &token, at(998_969, 999_999_999)), Err(TokenFault::NotYetValid));
        assert_eq!(verify_at(&tokens, &token, at(998_970, 0)), acme(0));
        assert_eq!(verify_at(&tokens, &token, at(1_000_029, 999_999_999)), acme(0));
        assert_eq!(verify_at(&tokens, &token, at(1_000_030, 0)), Err(TokenFault::Expired));
    }
}

#[test]
fn times_may_have_decimals_and_have_to_be_numbers() {
    let none = JwtRules { leeway: Nanos::ZERO, ..rules() };
    let with = |exp: Value| verdict(none.clone(), &json!({ "sub": "acme", "exp": exp }));
    assert_eq!(with(json!(1_000_000.5)), acme(0));
    assert_eq!(with(json!(999_999.5)), Err(TokenFault::Expired));
    assert_eq!(with(json!(-1)), Err(TokenFault::Expired));
    assert_eq!(with(json!(1e300)), acme(0));
    assert_eq!(with(json!(u64::MAX)), acme(0));
    for bad in [json!("1000001"), json!(null)] {
        assert_eq!(with(bad), Err(TokenFault::BadTimes));
    }
    for bad in [json!([1_000_001]), json!({}), json!(true)] {
        assert!(with(bad).is_err());
    }
    assert_eq!(verdict(rules(), &json!({ "sub": "acme" })), Err(TokenFault::WithoutExpiry));
    assert_eq!(verdict(JwtRules { require_exp: false, ..rules() }, &json!({ "sub": "acme" })), acme(0));
}

#[test]
fn customers_and_plans_are_found_in_nested_claims_and_in_those_with_points_in_their_names() {
    let rules = |claim: &str, plan_claim: &str| JwtRules {
        claim: claim.to_owned(),
        plan_claim: Some(plan_claim.to_owned()),
        ..rules()
    };
    let claims = json!({
        "exp": 2_000_000,
        "user": { "id": "acme", "tier.name": "pro" },
        "https://example.com/plan": "pro",
        "number": 17,
        "list": ["acme"],
        "flag": true,
        "empty": "",
        "long": "x".repeat(257),
        "line": "a\nb",
        "user.id": null,
    });
    assert_eq!(verdict(rules("user.id", "user.tier.name"), &claims), Err(TokenFault::WithoutCustomer));
    let mut claims = claims;
    claims.as_object_mut().unwrap().remove("user.id");
    assert_eq!(verdict(rules("user.id", "user.tier.name"), &claims), acme(1));
    assert_eq!(verdict(rules("user.id", "https://example.com/plan"), &claims), acme(1));
    assert_eq!(verdict(rules("number", "plan"), &claims), Ok(("17".to_owned(), PlanId(0))));
    for unusable in ["list", "flag", "empty", "long", "line", "user", "user.id.more", "absent"] {
        assert_eq!(verdict(rules(unusable, "plan"), &claims), Err(TokenFault::WithoutCustomer), "{unusable}");
    }
}

#[test]
fn a_plan_that_nobody_knows_is_the_one_of_the_rules_or_none() {
    for plan in [json!("gold"), json!(1), json!(null)] {
        let claims = json!({ "sub": "acme", "exp": 2_000_000, "plan": plan });
        assert_eq!(verdict(rules(), &claims), acme(0));
        assert_eq!(verdict(JwtRules { plan: None, ..rules() }, &claims), Err(TokenFault::WithoutPlan));
    }
    let named = json!({ "sub": "acme", "exp": 2_000_000, "plan": "pro" });
    assert_eq!(verdict(JwtRules { plan: None, ..rules() }, &named), acme(1));
    assert_eq!(verdict(JwtRules { plan_claim: None, ..rules() }, &named), acme(0));
}

#[test]
fn issuers_and_audiences_that_are_named_are_required() {
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let held = JwtRules { issuers: named(&["a", "b"]), audiences: named(&["api"]), ..rules() };
    let with = |iss: Value, aud: Value| {
        verdict(held.clone(), &json!({ "sub": "acme", "exp": 2_000_000, "iss": iss, "aud": aud }))
    };
    assert_eq!(with(json!("b"), json!("api")), acme(0));
    assert_eq!(with(json!("a"), json!(["other", "api"])), acme(0));
    assert_eq!(with(json!("c"), json!("api")), Err(TokenFault::WrongIssuer));
    assert_eq!(with(json!(null), json!("api")), Err(TokenFault::WrongIssuer));
    assert_eq!(with(json!("a"), json!("other")), Err(TokenFault::WrongAudience));
    assert_eq!(with(json!("a"), json!([])), Err(TokenFault::WrongAudience));
    assert_eq!(with(json!("a"), json!(null)), Err(TokenFault::WrongAudience));
    let anybody = verdict(rules(), &json!({ "sub": "acme", "exp": 2_000_000, "iss": "x", "aud": "y" }));
    assert_eq!(anybody, acme(0));
}

#[test]
fn a_token_is_held_to_the_key_and_the_algorithms_that_it_may_use() {
    let claims = json!({ "sub": "acme", "exp": 2_000_000 });
    let header = |algorithm, id: Option<&str>| Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
    let ours = tokens(rules());
    assert_eq!(verify_at(&ours, &sign_with(&header(Algorithm::HS256, Some("ours")), &claims), NOW), acme(0));
    let other_key = sign_with(&header(Algorithm::HS256, Some("theirs")), &claims);
    assert_eq!(verify_at(&ours, &other_key, NOW), Err(TokenFault::Unverified));
    // the secret is long enough for HS256 only
    let too_much = sign_with(&header(Algorithm::HS512, None), &claims);
    assert_eq!(verify_at(&ours, &too_much, NOW), Err(TokenFault::Unverified));
    let mut critical = Header::new(Algorithm::HS256);
    critical.crit = Some(vec!["b64".to_owned()]);
    assert_eq!(verify_at(&ours, &sign_with(&critical, &claims), NOW), Err(TokenFault::Unverified));
    let (keys, _) = Keys::parse(&key_set()).unwrap();
    let fits = [&[][..], &[Algorithm::HS256], &[Algorithm::RS256, Algorithm::HS512]].map(|accepted| keys.fit(accepted));
    assert_eq!(fits, [true, true, false]);
}

#[test]
fn claims_to_count_by_are_text_whole_numbers_and_flags() {
    let claims = json!({ "a": "x", "b": { "c": 5 }, "d": true, "e": 1.5, "f": [], "g": null, "h.i": "j" });
    let claims = Claims(claims.as_object().unwrap().clone());
    let found = ["a", "b.c", "d", "h.i"].map(|name| claims.text(name).map(Cow::into_owned));
    assert_eq!(found, ["x", "5", "true", "j"].map(|text| Some(text.to_owned())));
    for absent in ["b", "e", "f", "g", "z", "a.b", ""] {
        assert_eq!(claims.text(absent), None, "{absent}");
    }
}

#[test]
fn credentials_in_the_form_of_tokens_are_recognised() {
    for token in ["a.b.c", "eyJh-_.eyJz.", "a=.b.c"] {
        assert!(looks_like_token(token.as_bytes()), "{token}");
    }
    for other in ["", "abc", "a.b", "a.b.c.d", ".b.c", "a..c", "a.b.c d", "sk_live:x.y.z", "ä.b.c"] {
        assert!(!looks_like_token(other.as_bytes()), "{other}");
    }
}

#[test]
fn keys_that_protect_nothing_are_refused() {
    let fault =
        |key: Value| Keys::parse(&json!({ "keys": [key] }).to_string()).err().map(|faults| faults[0].path.clone());
    let modulus = "w".repeat(342);
    assert_eq!(fault(json!({ "kty": "RSA", "n": modulus, "e": "AQAB" })), None);
    for weak in ["AQ", "AA", "Ag", "AQAA", "____________"] {
        assert_eq!(fault(json!({ "kty": "RSA", "n": modulus, "e": weak })).as_deref(), Some("keys[0].e"), "{weak}");
    }
    for length in [171, 1_000] {
        let key = json!({ "kty": "RSA", "n": "w".repeat(length), "e": "AQAB" });
        assert_eq!(fault(key).as_deref(), Some("keys[0].n"), "{length}");
    }
    assert_eq!(fault(json!({ "kty": "oct", "k": "" })).as_deref(), Some("keys[0].k"));
    assert_eq!(
        fault(json!({ "kty": "EC", "crv": "P-256", "alg": "ES384", "x": "", "y": "" })).as_deref(),
        Some("keys[0].x")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_token_that_is_changed_anywhere_is_not_verified(at: prop::sample::Index, byte in prop::num::u8::ANY) {
        let mut token = sign(&json!({ "sub": "acme", "exp": 2_000_000, "plan": "pro" })).into_bytes();
        let position = at.index(token.len());
        prop_assume!(token[position] != byte);
        token[position] = byte;
        let verified = tokens(rules()).verify(&token, NOW);
        prop_assert_eq!(verified.err(), Some(TokenFault::Unverified));
    }

    #[test]
    fn whatever_is_no_token_is_not_verified(bytes: Vec<u8>) {
        let verified = tokens(rules()).verify(&bytes, NOW);
        prop_assert_eq!(verified.err(), Some(TokenFault::Unverified));
    }
}
