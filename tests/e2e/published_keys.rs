//! Keys that the gateway fetches from an issuer's URL, and customers with tokens that are listed in the directory.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use crate::restarts::Lineage;
use crate::support::gateway::proxied;
use crate::support::process::signal;
use crate::support::tls::Authority;
use crate::support::tokens::{Issuer, key_set, seconds_from_now};
use crate::support::{Exchange, Gateway, Origin, Response, SilentNode, together, wait_until};

/// A server that publishes keys; a test can change its answer.
struct Publisher {
    origin: Origin,
    says: Arc<Mutex<Says>>,
}

#[derive(Clone)]
enum Says {
    /// The keys of these issuers.
    Keys(String),
    /// Another answer, with this status.
    Other(&'static str, Vec<u8>),
    /// No answer, while the connection stays open.
    Nothing,
}

impl Publisher {
    fn start(issuers: &[Issuer]) -> Self {
        Self::start_with(issuers, "")
    }

    /// A publisher that sends `fields` with every answer.
    fn start_with(issuers: &[Issuer], fields: &'static str) -> Self {
        let says = Arc::new(Mutex::new(Says::Keys(key_set(issuers))));
        let said = Arc::clone(&says);
        let origin = Origin::with(move |exchange: &mut Exchange<'_>| {
            let says = said.lock().clone();
            match says {
                Says::Keys(keys) => exchange.reply("200 OK", fields, keys.as_bytes()),
                Says::Other(status, body) => exchange.reply(status, "", &body),
                Says::Nothing => exchange.wait_for_end(),
            }
        });
        Self { origin, says }
    }

    fn url(&self) -> String {
        format!("http://{}/keys", self.origin.address)
    }

    fn say(&self, says: Says) {
        *self.says.lock() = says;
    }

    fn publish(&self, issuers: &[Issuer]) {
        self.say(Says::Keys(key_set(issuers)));
    }
}

const CUSTOMERS: &str = "credential,customer,plan,overrides,suspended\n\
    k1,listed,pro,,\nk2,special,pro,\"{per-customer: {burst: 77}}\",\nk3,gone,pro,,true\n";

/// A limit of 10 for plan `free` and 20 for plan `pro`; the keys that `jwks` names verify the tokens.
fn config(origin: &Origin, jwks: &str) -> String {
    format!(
        "{}customers: {{ identify: [{{ jwt: {{ jwks: {{ {jwks} }}, plan: free }} }}], directory: {{ file: customers.csv }} }}
plans: [free, pro]
limits:
  per-customer: {{ key: customer, algorithm: gcra, rate: 1/h, burst: 10, plans: {{ pro: {{ burst: 20 }} }} }}
routes: [{{ name: all, upstream: origin, limits: [per-customer] }}]
",
        origin.upstream()
    )
}

fn gateway(origin: &Origin, jwks: &str, files: &[(&str, &str)]) -> Gateway {
    Gateway::start_with(&config(origin, jwks), &[files, &[("customers.csv", CUSTOMERS)]].concat(), &[])
}

fn bearer(gateway: &Gateway, token: &str) -> Response {
    gateway.get("/", &[("authorization", &format!("Bearer {token}"))])
}

#[track_caller]
fn status(gateway: &Gateway, token: &str) -> u16 {
    bearer(gateway, token).status
}

fn named(id: &'static str) -> Issuer {
    Issuer { id: Some(id), ..Issuer::ed25519() }
}

fn attempts(gateway: &Gateway, result: &str) -> f64 {
    let labels = [("source", "jwks"), ("result", result)];
    gateway.metrics().value("tollgate_source_refreshes_total", &labels).unwrap_or_default()
}

#[test]
fn keys_are_there_with_the_first_request_and_change_with_the_issuers() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[named("old")]));
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url()), &[]);
    let (old, new) = (named("old").token("acme"), Issuer::p256().token("acme"));
    assert_eq!(status(&gateway, &old), 200);
    assert_eq!(publisher.origin.only().head.field("user-agent").unwrap().split('/').next(), Some("tollgate"));
    // an unknown key ID makes the gateway fetch the set again, and tokens of a removed key are no longer accepted
    publisher.publish(&[Issuer::p256()]);
    wait_until("the new key", || status(&gateway, &new) == 200);
    assert_eq!((status(&gateway, &old), publisher.origin.count()), (401, 2));
    assert_eq!(gateway.metrics().value("tollgate_source_entries", &[("source", "jwks")]), Some(1.0));
    // another configuration keeps the fetched keys
    gateway.rewrite(&config(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url())).replace("1/h", "2/h"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!((status(&gateway, &new), publisher.origin.count()), (200, 2));
}

#[test]
fn a_new_key_is_found_by_a_token_that_names_no_key() {
    let nameless = |issuer: Issuer| Issuer { id: None, ..issuer };
    let (origin, publisher) = (Origin::start(), Publisher::start(&[nameless(Issuer::p256())]));
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url()), &[]);
    assert_eq!(status(&gateway, &nameless(Issuer::p256()).token("acme")), 200);
    publisher.publish(&[nameless(Issuer::ed25519())]);
    wait_until("the new key", || status(&gateway, &nameless(Issuer::ed25519()).token("acme")) == 200);
}

#[test]
fn a_set_is_fetched_again_when_its_answer_says_so() {
    let origin = Origin::start();
    let publisher = Publisher::start_with(&[Issuer::p256()], "cache-control: public, max-age=1\r\n");
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url()), &[]);
    let token = Issuer::p256().token("acme");
    assert_eq!(status(&gateway, &token), 200);
    // no request has a key that the set lacks, so only `max-age` makes the gateway fetch the set
    publisher.publish(&[named("other")]);
    wait_until("the old key to be forgotten", || status(&gateway, &token) == 401);
}

#[test]
fn the_last_good_set_stays_whatever_the_issuer_answers() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let gateway = gateway(&origin, &format!("url: \"{}\", refresh: 1s, min_interval: 1s", publisher.url()), &[]);
    let (token, unknown) = (Issuer::p256().token("acme"), named("unknown").token("acme"));
    assert_eq!(status(&gateway, &token), 200);
    let huge = [b"{\"keys\": [\"".as_slice(), &vec![b'x'; 2 << 20], b"\"]}"].concat();
    let answers = [
        Says::Other("500 Internal Server Error", b"canary-5ba1".to_vec()),
        Says::Other("302 Found", Vec::new()),
        Says::Other("200 OK", b"{\"keys\": canary-5ba1".to_vec()),
        Says::Other("200 OK", vec![0xff, 0xfe]),
        Says::Other("200 OK", b"{\"keys\": []}".to_vec()),
        Says::Other("200 OK", huge),
    ];
    for answer in answers {
        let failed = attempts(&gateway, "failure");
        publisher.say(answer);
        wait_until("a failure", || attempts(&gateway, "failure") > failed);
        assert_eq!(status(&gateway, &token), 200);
        // the issuer may have published the key by now, but the gateway cannot know
        let response = bearer(&gateway, &unknown);
        assert_eq!((response.status, response.number("retry-after")), (503, Some(1)), "{response:?}");
        publisher.publish(&[Issuer::p256()]);
        let succeeded = attempts(&gateway, "success");
        wait_until("a success", || attempts(&gateway, "success") > succeeded);
        assert_eq!(status(&gateway, &unknown), 401);
    }
    let said = gateway.process.stderr();
    assert!(said.contains("answers with status 500") && said.contains("longer than 1024 KiB"), "{said}");
    assert!(!said.contains("canary"), "{said}");
}

#[test]
fn a_set_without_a_key_for_the_algorithms_is_not_taken_and_prevents_no_reload() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let config = config(&origin, &format!("url: \"{}\", refresh: 1s, min_interval: 1s", publisher.url()))
        .replace("plan: free }", "plan: free, algorithms: [ES256] }");
    let gateway = Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[]);
    let token = |customer: &str| Issuer::p256().token(customer);
    assert_eq!(status(&gateway, &token("listed")), 200);
    publisher.publish(&[Issuer::ed25519()]);
    wait_until("a failure", || attempts(&gateway, "failure") > 0.0);
    assert_eq!(status(&gateway, &token("listed")), 200);
    gateway.folder.write("customers.csv", CUSTOMERS.replace("k1,listed,pro,,", "k1,listed,pro,,true"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!((status(&gateway, &token("listed")), status(&gateway, &token("acme"))), (403, 200));
    assert!(gateway.process.stderr().contains("holds no key for any of the `algorithms`"));
}

#[test]
fn an_issuer_that_says_nothing_holds_nobody_up() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url()), &[]);
    let (token, unknown) = (Issuer::p256().token("acme"), named("unknown").token("acme"));
    publisher.say(Says::Nothing);
    wait_until("the set to be fetched anew", || {
        assert!([401, 503].contains(&status(&gateway, &unknown)));
        publisher.origin.count() == 2
    });
    // the issuer has not answered yet, and would take ten seconds
    assert!(together(20, |_| status(&gateway, &unknown)).iter().all(|status| *status == 503));
    assert_eq!(status(&gateway, &token), 200);
    assert_eq!(attempts(&gateway, "failure"), 0.0);
    assert_eq!(publisher.origin.count(), 2);
}

#[test]
fn tokens_with_made_up_keys_fetch_the_set_at_a_bounded_rate() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1h, refresh: 1h", publisher.url()), &[]);
    let made_up: Vec<String> =
        [Some("a"), Some("b"), Some("c"), None].map(|id| Issuer { id, ..Issuer::ed25519() }.token("acme")).into();
    let told = together(40, |number| status(&gateway, &made_up[number % 4]));
    assert!(told.iter().all(|status| *status == 401), "{told:?}");
    assert_eq!(publisher.origin.count(), 1);
}

#[test]
fn a_gateway_starts_without_the_issuer_and_takes_tokens_once_it_is_there() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    publisher.say(Says::Other("503 Service Unavailable", Vec::new()));
    let gateway = gateway(&origin, &format!("url: \"{}\", min_interval: 1s", publisher.url()), &[]);
    let token = Issuer::p256().token("acme");
    let response = bearer(&gateway, &token);
    assert_eq!((response.status, response.number("retry-after")), (503, Some(1)), "{response:?}");
    let last = || gateway.metrics().value("tollgate_source_last_success_timestamp_seconds", &[("source", "jwks")]);
    assert_eq!(last(), Some(0.0));
    publisher.publish(&[Issuer::p256()]);
    wait_until("the keys", || status(&gateway, &token) == 200);
    assert!(last() > Some(0.0));
    // an address that refuses connections, and one that never answers
    let silent = SilentNode::new();
    gateway.rewrite(&config(&origin, &format!("url: \"http://{}/\"", silent.node().trim_matches('"'))));
    assert_eq!((gateway.reload().status, status(&gateway, &token)), (200, 503));
}

#[test]
fn an_issuer_is_found_by_discovery_over_tls_and_only_believed_about_itself() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let publishing = Origin::with(|exchange: &mut Exchange<'_>| {
        let issuer = format!("https://{}", exchange.head.field("host").unwrap());
        let answer = match exchange.path() {
            "/.well-known/openid-configuration" => json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") }),
            "/other/.well-known/openid-configuration" => {
                json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") })
            }
            _ => return exchange.reply("200 OK", "", key_set(&[Issuer::p256()]).as_bytes()),
        };
        exchange.reply("200 OK", "", answer.to_string().as_bytes())
    });
    let signed = authority.sign(&["localhost"]);
    let files = [("cert.pem", signed.certificate.as_str()), ("key.pem", signed.key.as_str())];
    let tls = Gateway::start_listening(
        "tls: { certificates: [{ cert: cert.pem, key: key.pem }] }",
        &proxied(&publishing, ""),
        &files,
    );
    let issuer = format!("https://localhost:{}", tls.address.port());
    let (ca, strange) = (authority.pem(), Authority::new().pem());
    let files = [("ca.pem", ca.as_str()), ("strange.pem", strange.as_str())];
    let gateway = gateway(&origin, &format!("issuer: \"{issuer}\", tls: {{ ca: ca.pem }}"), &files);
    let claims = |issuer: &str| json!({ "sub": "acme", "iss": issuer, "exp": seconds_from_now(3_600) });
    assert_eq!(status(&gateway, &Issuer::p256().sign(&claims(&issuer))), 200);
    assert_eq!(status(&gateway, &Issuer::p256().sign(&claims("https://other.example.com"))), 401);
    // the keys of an issuer stay in force, those of another one do not
    let refused = [
        (format!("issuer: \"{issuer}\", tls: {{ ca: strange.pem }}"), 200, "certificate"),
        (format!("issuer: \"{issuer}/other\", tls: {{ ca: ca.pem }}"), 503, "names another issuer"),
    ];
    for (jwks, answer, why) in refused {
        gateway.rewrite(&config(&origin, &jwks));
        assert_eq!(gateway.reload().status, 200);
        assert_eq!(status(&gateway, &Issuer::p256().sign(&claims(&issuer))), answer);
        wait_until(why, || gateway.process.stderr().contains(why));
    }
}

#[test]
fn rows_of_the_directory_precede_a_customers_token() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let gateway = gateway(&origin, &format!("url: \"{}\"", publisher.url()), &[]);
    let ask = |customer: &str| {
        let response = bearer(&gateway, &Issuer::p256().token(customer));
        (response.status, response.number("x-ratelimit-limit"))
    };
    assert_eq!(ask("stranger"), (200, Some(10)));
    assert_eq!(ask("listed"), (200, Some(20)));
    assert_eq!(ask("special"), (200, Some(77)));
    assert_eq!(ask("gone").0, 403);
    gateway.folder.write("customers.csv", CUSTOMERS.replace("k1,listed,pro,,", "k1,listed,free,,true"));
    wait_until("the suspension", || ask("listed").0 == 403);
    assert_eq!(ask("special"), (200, Some(77)));
}

#[test]
fn a_published_key_that_cannot_be_used_does_not_keep_the_others_out() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let mut set: serde_json::Value = serde_json::from_str(&key_set(&[Issuer::p256()])).unwrap();
    let short = json!({ "kty": "RSA", "kid": "short", "n": "w".repeat(171), "e": "AQAB" });
    set["keys"].as_array_mut().unwrap().insert(0, short);
    publisher.say(Says::Keys(set.to_string()));
    let gateway = gateway(&origin, &format!("url: \"{}\"", publisher.url()), &[]);
    assert_eq!(status(&gateway, &Issuer::p256().token("acme")), 200);
    let log = gateway.process.stderr();
    assert!(log.contains("keys that cannot be used are ignored") && log.contains("keys[0].n has 1024 bits"), "{log}");
}

#[test]
fn keys_stay_in_force_when_the_settings_for_fetching_them_change() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let jwks = format!("url: \"{}\", min_interval: 1s", publisher.url());
    let gateway = gateway(&origin, &jwks, &[]);
    let (old, new) = (Issuer::p256().token("acme"), named("new").token("acme"));
    assert_eq!(status(&gateway, &old), 200);
    publisher.say(Says::Other("503 Service Unavailable", Vec::new()));
    gateway.rewrite(&config(&origin, &format!("{jwks}, refresh: 2h")));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(status(&gateway, &old), 200);
    wait_until("a failure", || attempts(&gateway, "failure") > 0.0);
    assert_eq!(status(&gateway, &old), 200);
    publisher.publish(&[named("new")]);
    wait_until("the new key", || status(&gateway, &new) == 200);
}

#[test]
fn a_reload_that_is_refused_leaves_no_keys_behind_for_later_ones() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let jwks = format!("url: \"{}\", min_interval: 1s", publisher.url());
    let gateway = gateway(&origin, &jwks, &[]);
    gateway.folder.write("customers.csv", format!("{CUSTOMERS}wrong\n"));
    gateway.rewrite(&config(&origin, &format!("{jwks}, refresh: 2h")));
    assert_eq!(gateway.reload().status, 422);
    gateway.rewrite(&config(&origin, &jwks));
    gateway.folder.write("customers.csv", CUSTOMERS);
    assert_eq!(gateway.reload().status, 200);
    publisher.publish(&[named("new")]);
    let new = named("new").token("acme");
    wait_until("the new key", || status(&gateway, &new) == 200);
    publisher.say(Says::Other("503 Service Unavailable", Vec::new()));
    gateway.rewrite(&format!("access_log: full\n{}", config(&origin, &jwks)));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(status(&gateway, &new), 200);
}

#[test]
fn one_reload_waits_for_an_issuer_that_never_answers_and_later_ones_do_not() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let gateway = gateway(&origin, &format!("url: \"{}\"", publisher.url()), &[]);
    publisher.say(Says::Nothing);
    let took = |more: &str| {
        gateway.rewrite(&config(&origin, &format!("url: \"{}/other\"{more}", publisher.url())));
        let report = gateway.reload().json();
        assert_eq!(report["result"], "applied", "{report}");
        report["duration_seconds"].as_f64().unwrap()
    };
    let (waited, later) = (took(""), [took(" "), took(", refresh: 2h")]);
    assert!(later.iter().all(|later| *later < waited / 2.0), "{later:?} s after {waited} s");
}

#[test]
fn a_successor_without_the_keys_that_the_old_process_has_takes_nothing_over() {
    let (origin, publisher) = (Origin::start(), Publisher::start(&[Issuer::p256()]));
    let mut lineage = Lineage::of(gateway(&origin, &format!("url: \"{}\"", publisher.url()), &[]));
    lineage.upgrade();
    let token = Issuer::p256().token("acme");
    assert_eq!(status(&lineage.gateway, &token), 200);
    publisher.say(Says::Other("503 Service Unavailable", Vec::new()));
    signal(lineage.current, "USR2");
    let said = |text: &str| lineage.gateway.process.stderr().contains(text);
    wait_until("the failure", || said("the handover failed; this process continues to serve"));
    assert!(said("the source jwks cannot be read here"));
    assert_eq!(status(&lineage.gateway, &token), 200);
}
