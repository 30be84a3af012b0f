//! Limits that several gateways share through Redis: the number of requests that they admit together, and the number of
//! calls.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admin_api;
use crate::support::redis::Redis;
use crate::support::wall_clock::WallClock;
use crate::support::{Gateway, Origin, now, together, wait_for, wait_until};

/// The configuration of a gateway that shares `limits` through `redis`. The timeout for Redis is long, so that the gateway
/// does not take a slow machine for an outage.
fn config(origin: &Origin, redis: &Redis, limits: &str, names: &str) -> String {
    format!(
        "{}store: {{ redis: \"{}\", timeout: 1s, nodes: 3 }}
limits: {limits}
routes: [{{ name: all, upstream: origin, limits: [{names}] }}]
",
        origin.upstream(),
        redis.url(),
    )
}

/// `count` gateways that share `limit`.
fn fleet(count: usize, origin: &Origin, redis: &Redis, limit: &str) -> Vec<Gateway> {
    (0..count).map(|_| one(origin, redis, limit, &[])).collect()
}

fn one(origin: &Origin, redis: &Redis, limit: &str, environment: &[(&str, &str)]) -> Gateway {
    Gateway::start_with(&config(origin, redis, &format!("{{ guard: {limit} }}"), "guard"), &[], environment)
}

const RATE: f64 = 50.0;
const BURST: f64 = 200.0;
const TIME: Duration = Duration::from_secs(3);

/// The result of a load on three gateways.
struct Together {
    admitted: f64,
    /// The number of requests that the limit allows in the time of the load.
    fits: f64,
    /// The number of requests that the limit allows while all clients sent at full speed, or the number that they sent if
    /// it is lower.
    asked: f64,
}

/// Sends as many requests as they can answer to three gateways that share a limit of [`RATE`] and [`BURST`], for [`TIME`].
fn together_under(sharing: &str) -> Together {
    together_with(sharing, &[])
}

/// The same with these environment variables for the last gateway.
fn together_with(sharing: &str, environment: &[(&str, &str)]) -> Together {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = format!("{{ algorithm: gcra, rate: {RATE}/s, burst: {BURST}, key: all, mode: shared{sharing} }}");
    let mut gateways = fleet(2, &origin, &redis, &limit);
    gateways.push(one(&origin, &redis, &limit, environment));
    // every gateway knows the number of gateways
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 3.0);
    }
    let began = now();
    let clients = together(24, |client| {
        let mut client = gateways[client % 3].client();
        let mut statuses = Vec::new();
        let mut last = now();
        while now() - began < TIME {
            last = now();
            statuses.push(client.get("/").status);
        }
        (statuses, last)
    });
    let took = (now() - began).as_secs_f64();
    let all_asked = clients.iter().map(|(_, last)| *last).min().unwrap() - began;
    let statuses = || clients.iter().flat_map(|(statuses, _)| statuses);
    let others: Vec<&u16> = statuses().filter(|status| !matches!(status, 200 | 429)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(origin.count(), statuses().filter(|status| **status == 200).count());
    let [admitted, requests] =
        [origin.count(), statuses().count()].map(|count| f64::from(u32::try_from(count).unwrap()));
    // on a busy machine, clients may send fewer requests than the limit allows
    let asked = requests.min(BURST + RATE * all_asked.as_secs_f64());
    Together { admitted, fits: BURST + RATE * took, asked }
}

#[test]
fn three_gateways_together_admit_what_the_limit_says() {
    let Together { admitted, fits, asked } = together_under("");
    assert!(admitted <= fits && admitted >= 0.9 * asked, "{admitted} of {asked} to {fits}");
}

#[test]
fn tokens_taken_ahead_are_never_more_than_the_limit_says_in_the_long_run() {
    let Together { admitted, fits, asked } = together_under(", consistency: leased");
    assert!(admitted <= fits && admitted >= 0.97 * asked, "{admitted} of {asked} to {fits}");
    // `strict` holds back an eighth of the burst
    let Together { admitted, fits, asked } = together_under(", consistency: leased, strict: true");
    let least = 0.97 * (asked - BURST / 8.0);
    assert!(admitted <= fits && admitted >= least, "{admitted} of {asked} to {fits}");
}

#[test]
fn eventual_limits_exceed_by_the_unsent_counts_at_most() {
    let Together { admitted, fits, asked } = together_under(", consistency: eventual");
    // a cold burst: every node admits the whole burst before it hears of the others
    assert!(admitted <= 2.0 * BURST + fits && admitted >= 0.97 * asked, "{admitted} of {asked} to {fits}");
}

#[test]
fn a_clock_that_is_half_a_minute_ahead_changes_nothing() {
    let clock = WallClock::new();
    clock.set(30);
    let environment = clock.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    for (sharing, share, beyond) in
        [("", 0.9, 0.0), (", consistency: leased", 0.97, 0.0), (", consistency: eventual", 0.97, 2.0 * BURST)]
    {
        let Together { admitted, fits, asked } = together_with(sharing, &environment);
        assert!(admitted <= beyond + fits && admitted >= share * asked, "{sharing}: {admitted} of {asked} to {fits}");
    }
    // windows of a day, and `Retry-After` of a denial
    let (origin, redis) = (Origin::start(), Redis::start());
    for limit in ["fixed_window, limit: 6, window: 1d", "gcra, rate: 1/s, burst: 6"] {
        let limit = format!("{{ algorithm: {limit}, key: {{ header: x-key }}, mode: shared }}");
        let gateways = [one(&origin, &redis, &limit, &[]), one(&origin, &redis, &limit, &environment)];
        let came_into_force = |gateway: &Gateway| {
            gateway.metrics().value("tollgate_config_last_reload_success_timestamp_seconds", &[]).unwrap()
        };
        assert!(came_into_force(&gateways[1]) - came_into_force(&gateways[0]) >= 25.0, "its clock is ahead");
        let ask = |gateway: &Gateway| gateway.get("/", &[("x-key", &limit)]);
        let (began, mut admitted) = (now(), 0.0);
        let denied: Vec<_> = gateways
            .iter()
            .map(|gateway| {
                wait_for("a denial", || {
                    let response = ask(gateway);
                    admitted += f64::from(u8::from(response.status == 200));
                    (response.status == 429).then_some(response)
                })
            })
            .collect();
        assert!((6.0..=6.0 + (now() - began).as_secs_f64()).contains(&admitted), "{limit}: {admitted}");
        let [one, other] = [&denied[0], &denied[1]].map(|denied| denied.number("retry-after").unwrap());
        assert!(one.abs_diff(other) <= 1 + (now() - began).as_secs(), "{limit}: {one} and {other}");
        if limit.contains("gcra") {
            for gateway in &gateways {
                wait_until("the time that was said", || ask(gateway).status == 200);
            }
        }
    }
}

#[test]
fn a_gateway_syncs_its_counts_before_it_ends() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = "{ guard: { algorithm: gcra, rate: 1/h, burst: 10, key: all, mode: shared, consistency: eventual } }";
    let config = config(&origin, &redis, limit, "guard").replace("nodes: 3", "sync_every: 10s");
    let mut gateway = Gateway::start(&config);
    assert_eq!([(); 6].map(|()| gateway.get("/", &[]).status), [200; 6]);
    gateway.restart("TERM");
    assert_eq!((0..10).filter(|_| gateway.get("/", &[]).status == 200).count(), 4);
}

#[test]
fn a_retry_time_covers_a_spent_limit_that_the_denial_did_not_ask() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for log in ["sliding_log", "sliding_counters"] {
        let limits = format!(
            "{{ often: {{ algorithm: gcra, rate: 1/s, burst: 3, key: {{ header: x-key }}, mode: shared }},
  rarely: {{ algorithm: {log}, limit: 3, window: 1h, key: {{ header: x-key }}, mode: shared }} }}"
        );
        let gateway = Gateway::start(&config(&origin, &redis, &limits, "often, rarely"));
        let responses = [(); 4].map(|()| gateway.get("/", &[("x-key", log)]));
        assert_eq!(responses.each_ref().map(|response| response.status), [200, 200, 200, 429]);
        let retry_after = responses[3].number("retry-after").unwrap();
        assert!((3_000..=3_600).contains(&retry_after), "{log}: {retry_after}");
    }
}

#[test]
fn a_request_is_charged_by_limits_here_and_there_or_by_none() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limits = "{ here: { algorithm: gcra, rate: 1/h, burst: 3, key: { header: x-here } },
  there: { algorithm: gcra, rate: 1/h, burst: 2, key: { header: x-there }, mode: shared } }";
    let gateway = Gateway::start(&config(&origin, &redis, limits, "here, there"));
    let status = |here: &str, there: &str| gateway.get("/", &[("x-here", here), ("x-there", there)]).status;
    assert_eq!([status("a", "a"), status("a", "a"), status("a", "a")], [200, 200, 429]);
    // the request that `there` denied charged nothing at `here`
    assert_eq!([status("a", "b"), status("a", "b")], [200, 429]);
    // and the request that `here` denied charged nothing at `there`
    assert_eq!([status("b", "b"), status("b", "b")], [200, 429]);
}

#[test]
fn a_key_that_is_denied_costs_redis_nothing() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateways = fleet(1, &origin, &redis, "{ algorithm: gcra, rate: 1/h, burst: 1, key: all, mode: shared }");
    let gateway = &gateways[0];
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let before = calls(&redis, gateway);
    for _ in 0..1000 {
        assert_eq!(client.get("/").status, 429);
    }
    let spent = calls(&redis, gateway) - before;
    assert!(spent <= 5, "{spent} calls");
}

/// The number of calls for requests that Redis has received from its only gateway.
fn calls(redis: &Redis, gateway: &Gateway) -> u64 {
    let seen = redis.calls("evalsha");
    let beats = gateway.metrics().value("tollgate_store_requests_total", &[("op", "heartbeat"), ("result", "ok")]);
    // one heartbeat may be on its way
    seen.saturating_sub(whole(beats.unwrap_or_default()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn whole(count: f64) -> u64 {
    count as u64
}

#[test]
fn requests_that_ask_the_same_at_once_share_calls() {
    const EACH: usize = 40;
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = "{ algorithm: gcra, rate: 1000000/s, burst: 1000000, key: all, mode: shared }";
    let gateways = fleet(1, &origin, &redis, limit);
    assert_eq!(gateways[0].get("/", &[]).status, 200);
    let before = redis.calls("evalsha");
    let statuses = together(64, |_| {
        let mut client = gateways[0].client();
        (0..EACH).filter(|_| client.get("/").status == 200).count()
    });
    assert_eq!(statuses.iter().sum::<usize>(), 64 * EACH);
    let per_thousand = (redis.calls("evalsha") - before) * 1000 / (64 * EACH as u64);
    assert!(per_thousand <= 200, "{per_thousand} calls for 1000 requests");
}

#[test]
fn tokens_taken_ahead_cost_few_calls() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = "{ algorithm: gcra, rate: 1000000/s, burst: 1000000, key: all, mode: shared, consistency: leased }";
    for (clients, requests) in [(1, 3000_u32), (64, 1600)] {
        let gateways = fleet(1, &origin, &redis, limit);
        let before = calls(&redis, &gateways[0]);
        let began = now();
        let asked = together(clients, |number| {
            let mut client = gateways[0].client();
            let own = (number..requests as usize).step_by(clients);
            own.map(|_| assert_eq!(client.get("/").status, 200)).count()
        });
        assert_eq!(asked.iter().sum::<usize>(), requests as usize);
        let spent = calls(&redis, &gateways[0]) - before;
        // on a slow machine this is no hot key: then there are two calls in the lifetime of a lease
        let in_time = 20 * (now() - began).as_secs();
        assert!(spent <= u64::from(requests / 20).max(in_time), "{spent} calls for {requests} requests");
        gateways[0].wait_for_metric("tollgate_lease_tokens_total", &[("event", "spent")], f64::from(requests));
    }
}

#[test]
fn questions_lease_no_tokens_and_know_what_other_gateways_have_used() {
    const OF_ACME: (&str, &str) = ("x-api-key", "key");
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit =
        "{ guard: { algorithm: gcra, rate: 1/d, burst: 10, key: customer, mode: shared, consistency: leased } }";
    let customers = "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }";
    let config = format!("{}{customers}\nplans: [free]\nusage: {{}}\n", config(&origin, &redis, limit, "guard"));
    let start = || admin_api::started(&config, &[("customers.csv", "credential,customer,plan\nkey,acme,free\n")]);
    let (asked, other) = (start(), start());
    let ask = |path: &str, question: &Value, list: &str| {
        let answer = admin_api::post(&asked, path, &[admin_api::HOST, admin_api::BEARER], question).json();
        answer[list][0]["standing"]["remaining"].clone()
    };
    let request = json!({ "method": "GET", "url": "http://test/", "headers": { "x-api-key": "key" } });
    let nothing = json!({ "charges": [{ "limit": "guard", "key": { "customer": "acme" }, "tokens": 0 }] });
    for _ in 0..3 {
        assert_eq!(ask("/v1/explain", &request, "limits"), 10);
        assert_eq!(ask("/v1/charge", &nothing, "charges"), 10);
    }
    wait_until("the tokens to be spent", || asked.get("/", &[OF_ACME]).status == 429);
    let usage = other.get("/.tollgate/usage", &[OF_ACME]).json();
    assert_eq!(usage["limits"][0]["remaining"], 0, "{usage}");
}

#[test]
fn slots_are_shared_and_come_back() {
    let (command, origin) = Origin::on_command();
    let redis = Redis::start();
    let gateways = fleet(2, &origin, &redis, "{ algorithm: concurrency, limit: 1, key: all, mode: shared }");
    let mut first = gateways[0].client();
    first.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    assert_eq!(gateways[1].get("/", &[]).status, 429);
    command.send(b"done").unwrap();
    command.send(b"").unwrap();
    assert_eq!(first.next().unwrap().status, 200);
    command.send(b"").unwrap();
    wait_until("the slot to come back", || gateways[1].get("/", &[]).status == 200);
}

#[test]
fn a_queue_that_has_emptied_is_empty() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = "{ algorithm: leaky_queue, rate: 10/s, capacity: 5, key: all, mode: shared,
  over_limit: { delay: { max_wait: 500ms } } }";
    let gateways = fleet(1, &origin, &redis, limit);
    let statuses = |count: usize| -> Vec<u16> { (0..count).map(|_| gateways[0].get("/", &[]).status).collect() };
    assert_eq!(statuses(1), [200]);
    wait_until("the key to be as good as new", || redis.keys("tollgate:*guard*").is_empty());
    // one request passes at once, the others wait for their turns
    assert_eq!(statuses(4), [200; 4]);
}

#[test]
fn a_gateway_needs_no_more_of_redis_than_the_page_says() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let page = fs::read_to_string("docs/shared.md").unwrap();
    let rule = page.lines().find(|line| line.starts_with("ACL SETUSER ")).unwrap();
    assert_eq!(redis.command(&rule.split(' ').collect::<Vec<_>>()), "+OK");
    let gateway = Gateway::start(&format!(
        "{}store: {{ redis: \"redis://tollgate:PASSWORD@127.0.0.1:{}\", timeout: 1s }}
limits:
  bucket: {{ algorithm: gcra, rate: 1/h, burst: 3, key: all, mode: shared }}
  log: {{ algorithm: sliding_log, limit: 9, window: 1h, key: all, mode: shared }}
  slots: {{ algorithm: concurrency, limit: 9, key: all, mode: shared }}
  ahead: {{ algorithm: fixed_window, limit: 900, window: 1h, key: all, mode: shared, consistency: leased }}
routes: [{{ name: all, upstream: origin, limits: [bucket, log, slots, ahead] }}]
",
        origin.upstream(),
        redis.port,
    ));
    assert_eq!([(); 4].map(|()| gateway.get("/", &[]).status), [200, 200, 200, 429]);
    let told = |op: &str| gateway.metrics().value("tollgate_store_requests_total", &[("op", op), ("result", "ok")]);
    wait_until("heartbeats and slots that came back", || {
        told("heartbeat") >= Some(2.0) && told("complete") >= Some(3.0)
    });
    assert_eq!(redis.command(&["ACL", "LOG"]), "*0", "what it was refused");
}

#[test]
fn a_denial_does_not_outlive_tokens_that_come_back_elsewhere() {
    let (command, origin) = Origin::on_command();
    let redis = Redis::start();
    // a request holds a token until its response shows that it is no failed login
    let limit = "{ algorithm: sliding_log, limit: 1, window: 1d, key: all, mode: shared,
  charge: { when: response, if_status: [401] } }";
    let gateways = fleet(2, &origin, &redis, limit);
    let mut first = gateways[0].client();
    first.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    assert_eq!(gateways[1].get("/", &[]).status, 429);
    command.send(b"").unwrap();
    assert_eq!(first.next().unwrap().status, 200);
    command.send(b"").unwrap();
    wait_until("the denial to be forgotten", || gateways[1].get("/", &[]).status == 200);
}

#[test]
fn refunds_by_one_gateway_are_not_taken_again_by_another() {
    let (command, origin) = Origin::on_command();
    let redis = Redis::start();
    let limit = "{ algorithm: gcra, rate: 1/d, burst: 3, key: all, mode: shared,
  charge: { when: response, if_status: [401] } }";
    let gateways = fleet(2, &origin, &redis, limit);
    let mut waiting: Vec<_> = (0..3).map(|_| gateways[0].client()).collect();
    waiting.iter_mut().for_each(|client| client.send_request("GET", "/", &[]));
    origin.wait_for_count(3);
    // the other gateway sees an empty bucket
    assert_eq!(gateways[1].get("/", &[]).status, 429);
    (0..3).for_each(|_| command.send(b"").unwrap());
    waiting.iter_mut().for_each(|client| assert_eq!(client.next().unwrap().status, 200));
    // and admits three requests at once after all tokens are refunded
    wait_until("a bucket that is whole", || {
        command.send(b"").unwrap();
        gateways[1].get("/", &[]).field("ratelimit").is_some_and(|field| field.contains("r=2"))
    });
}
