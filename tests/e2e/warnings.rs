//! Warnings: from the marks of a limit on, clients are warned before they are denied.

use crate::support::cluster::Nodes;
use crate::support::redis::Redis;
use crate::support::{Gateway, Origin, Response};

const TWENTY: &str = "algorithm: gcra, rate: 1/h, burst: 20, warn_at: [80, 95]";

/// A gateway with one upstream, these limits, and one route under all of them.
fn under(origin: &Origin, limits: &[(&str, &str)], more: &str) -> Gateway {
    let each: String = limits.iter().map(|(name, limit)| format!("  {name}: {{ {limit} }}\n")).collect();
    let names: Vec<&str> = limits.iter().map(|(name, _)| *name).collect();
    let route = format!("routes: [{{ name: all, upstream: origin, limits: [{}] }}]\n", names.join(", "));
    Gateway::start_with(
        &format!("{}limits:\n{each}{route}{more}", origin.upstream()),
        &[("customers.csv", "credential,customer,plan\nkey,acme,free\n")],
        &[],
    )
}

fn warning(response: &Response) -> Option<&str> {
    response.field("x-ratelimit-warning")
}

fn counted(gateway: &Gateway, limit: &str, at: &str, count: u32) {
    let labels = [("limit", limit), ("plan", "none"), ("at", at)];
    gateway.wait_for_metric("tollgate_limit_warnings_total", &labels, f64::from(count));
}

/// The warning in the response to the request at this position under [`TWENTY`]; positions start at 1.
fn expected(limit: &str, position: u32) -> Option<String> {
    let used = position * 5;
    let at = [95, 80].into_iter().find(|at| used >= *at)?;
    Some(format!("\"{limit}\";at={at};used={used}"))
}

#[test]
fn a_client_is_warned_from_each_mark_on_until_it_is_denied() {
    let origin = Origin::start();
    let gateway =
        under(&origin, &[("guard", &format!("key: all, {TWENTY}"))], "headers: { ietf: false, x_ratelimit: off }\n");
    for at in ["80", "95"] {
        assert_eq!(
            gateway
                .metrics()
                .value("tollgate_limit_warnings_total", &[("limit", "guard"), ("plan", "none"), ("at", at)]),
            Some(0.0)
        );
    }
    let mut client = gateway.client();
    for position in 1..=20 {
        let response = client.get("/");
        assert_eq!(response.status, 200);
        assert_eq!(warning(&response), expected("guard", position).as_deref(), "request {position}");
    }
    let denied = client.get("/");
    assert_eq!((denied.status, warning(&denied)), (429, None));
    counted(&gateway, "guard", "80", 5);
    counted(&gateway, "guard", "95", 2);
}

#[test]
fn only_limits_that_clients_see_warn_and_a_mark_goes_on_warning() {
    let origin = Origin::start();
    let limits = [
        ("watched", "key: all, algorithm: gcra, rate: 1/h, burst: 2, shadow: true, warn_at: [50]"),
        ("marks", "key: all, algorithm: gcra, rate: 1/h, burst: 3, over_limit: { mark: x-over }, warn_at: [60]"),
        ("tried", "key: all, algorithm: gcra, rate: 1/h, burst: 100, warn_at: [4], candidate: { rate: 1/h, burst: 1 }"),
        ("quiet", "key: all, algorithm: gcra, rate: 1/h, burst: 4"),
    ];
    let gateway = under(&origin, &limits, "");
    let mut client = gateway.client();
    let told: Vec<Option<String>> = (0..4).map(|_| warning(&client.get("/")).map(str::to_owned)).collect();
    let of_marks = |used: u8| format!("\"marks\";at=60;used={used}");
    let both = format!("{}, \"tried\";at=4;used=4", of_marks(100));
    assert_eq!(told, [None, Some(of_marks(66)), Some(of_marks(100)), Some(both)]);
    counted(&gateway, "watched", "50", 4);
    counted(&gateway, "marks", "60", 3);
    counted(&gateway, "tried", "4", 1);
    let series = gateway.metrics().all("tollgate_limit_warnings_total").len();
    assert_eq!(series, 3, "candidates and limits without marks have none");
}

#[test]
fn no_answer_names_a_hidden_limit_which_denies_as_ever() {
    let origin = Origin::start();
    let limits = [
        ("shown", "key: all, algorithm: gcra, rate: 1/h, burst: 9"),
        ("guard", "key: all, algorithm: gcra, rate: 1/h, burst: 2, headers: hidden, warn_at: [50]"),
    ];
    let gateway = under(&origin, &limits, "");
    let mut client = gateway.client();
    for (status, left) in [(200, 8), (200, 7), (429, 7)] {
        let response = client.get("/");
        assert_eq!(response.status, status);
        let field = |name| response.field(name).unwrap();
        assert_eq!(field("ratelimit-policy"), "\"shown\";q=9;w=32400");
        assert!(field("ratelimit").starts_with(&format!("\"shown\";r={left};")), "{}", field("ratelimit"));
        assert_eq!((field("x-ratelimit-limit"), field("x-ratelimit-remaining")), ("9", &*left.to_string()));
        assert_eq!(warning(&response), None);
        assert_eq!(response.field("retry-after").is_some(), status == 429);
        assert!(!response.text().contains("guard") && !response.text().contains("violated-policies"));
    }
    counted(&gateway, "guard", "50", 2);
    let alone = under(&origin, &limits[1..], "");
    let response = alone.get("/", &[]);
    assert_eq!((response.status, response.field("ratelimit"), response.field("x-ratelimit-limit")), (200, None, None));
}

#[test]
fn limits_warn_that_are_charged_before_and_after_the_caller_is_known() {
    let origin = Origin::start();
    let limits = [
        ("early", "key: client_address, algorithm: gcra, rate: 1/h, burst: 4, warn_at: [75]"),
        ("late", "key: customer, algorithm: gcra, rate: 1/h, burst: 2, warn_at: [50]"),
    ];
    let customers =
        "plans: [free]\ncustomers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\n";
    let gateway = under(&origin, &limits, customers);
    let ask = |key: &str| {
        let response = gateway.get("/", &[("x-api-key", key)]);
        (response.status, warning(&response).map(str::to_owned))
    };
    let late = |used: u8| format!("\"late\";at=50;used={used}");
    assert_eq!(ask("key"), (200, Some(late(50))));
    assert_eq!(ask("guess"), (401, None));
    assert_eq!(ask("key"), (200, Some(format!("\"early\";at=75;used=75, {}", late(100)))));
    assert_eq!(ask("guess"), (401, Some("\"early\";at=75;used=100".to_owned())), "guesses use it up");
    assert_eq!(ask("guess"), (429, None));
}

#[test]
fn gateways_that_divide_the_keys_warn_of_what_all_of_them_let_pass() {
    let origin = Origin::start();
    let gateways = Nodes::new(2).start_all(&origin, TWENTY);
    let mut clients: Vec<_> = gateways.iter().map(Gateway::client).collect();
    for position in 1..=20 {
        let client = &mut clients[usize::try_from(position % 2).unwrap()];
        let response = client.round_trip("GET", "/", &[("x-key", "a")]);
        assert_eq!(warning(&response), expected("guard", position).as_deref(), "request {position}");
    }
}

#[test]
fn gateways_that_share_a_limit_warn_of_what_all_of_them_let_pass() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let store = format!("store: {{ redis: \"{}\", timeout: 1s, nodes: 2 }}\n", redis.url());
    let limit = format!("key: all, mode: shared, {TWENTY}");
    let gateways = [(); 2].map(|()| under(&origin, &[("guard", &limit)], &store));
    let mut clients: Vec<_> = gateways.iter().map(Gateway::client).collect();
    for position in 1..=20 {
        let response = clients[usize::try_from(position % 2).unwrap()].get("/");
        assert_eq!(warning(&response), expected("guard", position).as_deref(), "request {position}");
    }
    counted(&gateways[0], "guard", "80", 3);
    counted(&gateways[1], "guard", "80", 2);
}
