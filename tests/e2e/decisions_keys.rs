//! Envoy's gRPC questions with several keys of one limit (`serves: rate_limit_service`).

use crate::decisions_grpc::{GRPC, framed, refused, start};
use crate::decisions_rate_limits::{Brought, Descriptor, Envoy, Hits, LIMIT, OK, OVER, descriptor, of_domain};
use crate::support::redis::Redis;
use crate::support::{Client, Gateway, Origin, wait_until};
use crate::webhook::SECRET;

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_question_is_charged_and_answered_alike_in_any_order_of_its_descriptors() {
    let redis = tokio::task::block_in_place(Redis::start);
    for mode in ["sticky", "shared"] {
        let window = format!("algorithm: fixed_window, limit: 5, window: 30d, mode: {mode}");
        let config = format!(
            "store: {{ redis: \"{}\", timeout: 1s }}
limits:
  plain: {{ {window}, key: {{ descriptor: user }} }}
  counts: {{ {window}, key: {{ descriptor: payer }}, charge: {{ denied: true }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [plain] }}, {{ key: payer, limits: [counts] }}] }} }}
",
            redis.url()
        );
        let gateway = start("rate_limit_service", &config);
        let mut envoy = Envoy::connect(&gateway).await;
        let hits = |entries, value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor(entries) };
        let denied = envoy.codes(vec![hits("user=a", 1), hits("user=b", 9)]).await;
        assert_eq!(denied, (OVER, vec![(OK, 5), (OVER, 5)]), "{mode}");
        let denied = envoy.codes(vec![hits("user=b", 9), hits("user=a", 1)]).await;
        assert_eq!(denied, (OVER, vec![(OVER, 5), (OK, 5)]), "{mode}");
        // hits that are denied count under the other limit
        for [few, many] in [["payer=a", "payer=b"], ["payer=c", "payer=d"]] {
            let mut question = vec![hits(few, 1), hits(many, 9)];
            if few == "payer=c" {
                question.reverse();
            }
            assert_eq!(envoy.codes(question).await.0, OVER, "{mode}");
            let left = envoy.codes(vec![hits(few, 0), hits(many, 0)]).await;
            assert_eq!(left, (OVER, vec![(OK, 4), (OVER, 0)]), "{mode}");
        }
        // one key under two limits: the configured one, and one that a descriptor brings
        let brings = || Descriptor { limit: Some(Brought { requests_per_unit: 6, unit: 5 }), ..hits("user=c", 2) };
        let both = envoy.codes(vec![hits("user=c", 3), brings()]).await;
        assert_eq!(both, (OK, vec![(OK, 2), (OK, 1)]), "{mode}");
        assert_eq!(envoy.codes(vec![hits("user=c", 1)]).await.0, OVER, "{mode}");
        assert_eq!(envoy.codes(vec![brings()]).await.0, OVER, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_hits_cannot_be_given_back_changes_no_key() {
    let redis = tokio::task::block_in_place(Redis::start);
    let config = format!(
        "store: {{ redis: \"{}\" }}
limits:
  alone: {{ algorithm: gcra, rate: 10/d, burst: 10, key: {{ descriptor: user }} }}
  together: {{ algorithm: gcra, rate: 10/d, burst: 10, mode: shared, key: {{ descriptor: payer }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [alone] }}, {{ key: payer, limits: [together] }}] }} }}
",
        redis.url()
    );
    let gateway = start("rate_limit_service", &config);
    let mut envoy = Envoy::connect(&gateway).await;
    let hits = |entries, value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor(entries) };
    let back = |entries| Descriptor { is_negative_hits: true, ..hits(entries, 1) };
    assert_eq!(envoy.codes(vec![hits("user=a", 5), hits("payer=a", 5)]).await.0, OK);
    drop(redis);
    for other in [back("user=a"), hits("user=a", 1), back("user=a"), hits("user=a", 1)] {
        let question = framed(&of_domain("edge", vec![other, back("payer=a")]));
        assert_eq!(refused(&envoy.0.post(LIMIT, GRPC, question).await.unwrap()).0, 14);
        assert_eq!(envoy.codes(vec![hits("user=a", 0)]).await, (OK, vec![(OK, 5)]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_keys_of_one_limit_the_one_that_denies_or_reaches_a_mark_is_named() {
    let receiver = Origin::start();
    let config = format!(
        "client_address: {{ trusted_proxies: [127.0.0.1] }}
upstreams: {{ hooks: {{ nodes: [{}] }} }}
limits: {{ per-user: {{ algorithm: fixed_window, limit: 2, window: 30d, key: {{ descriptor: user }}, warn_at: [50] }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [per-user] }}] }} }}
webhook: {{ upstream: hooks, path: /told, secret_file: secret, queue: queue }}
",
        receiver.node()
    );
    let gateway = tokio::task::block_in_place(|| {
        Gateway::start_listening("serves: rate_limit_service", &config, &[("secret", SECRET)])
    });
    let mut envoy = Envoy::connect(&gateway).await;
    let both = || vec![descriptor("user=a"), descriptor("user=b")];
    assert_eq!(envoy.codes(both()).await.0, OK);
    gateway.wait_for_metric("tollgate_webhook_messages_total", &[("result", "delivered")], 2.0);
    let told = receiver.received().into_iter().map(|seen| {
        let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
        body["data"]["key"]["descriptor user"].as_str().unwrap().to_owned()
    });
    assert_eq!(told.collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(envoy.codes(vec![descriptor("user=b")]).await.0, OK);
    assert_eq!(envoy.codes(both()).await.0, OVER);
    for (path, list) in [("/v1/offenders", "offenders"), ("/v1/decisions", "decisions")] {
        let named = tokio::task::block_in_place(|| {
            let fields = [("host", "localhost"), ("connection", "close")];
            Client::connect(gateway.admin).round_trip("GET", path, &fields).json()
        });
        assert_eq!(named[list][0]["key"][0]["value"], "b", "{path}: {named:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_is_compared_and_charged_for_each_key_of_its_limit() {
    let rules = "limits:
  per-user: { algorithm: fixed_window, limit: 2, window: 30d, key: { descriptor: user }, candidate: { limit: 4, window: 30d } }
domains: { edge: { descriptors: [{ key: user, limits: [per-user] }] } }
";
    let gateway = start("rate_limit_service", rules);
    let mut envoy = Envoy::connect(&gateway).await;
    let [a, b] = ["user=a", "user=b"].map(|entries| vec![descriptor(entries)]);
    let both = [&b[..], &a].concat();
    // the candidate would admit two more questions for both, of which `a` is denied
    for question in [&a, &a, &both, &both, &both, &b, &b, &b] {
        envoy.codes(question.clone()).await;
    }
    let counts = [("admitted", "admitted", 7.0), ("denied", "admitted", 2.0), ("denied", "denied", 2.0)];
    for (live, candidate, count) in counts {
        let labels = [("limit", "per-user"), ("plan", "none"), ("live", live), ("candidate", candidate)];
        gateway.wait_for_metric("tollgate_limit_candidate_requests_total", &labels, count);
    }
}

/// A plan that a descriptor names is the plan in the metrics, in what operators ask for, and in answers, as a caller's is.
#[tokio::test(flavor = "multi_thread")]
async fn the_plan_of_the_limit_that_denies_is_named_everywhere() {
    let receiver = Origin::start();
    let config = format!(
        "client_address: {{ trusted_proxies: [127.0.0.1] }}
upstreams: {{ hooks: {{ nodes: [{}] }} }}
access_log: full
plans: [free, pro]
limits:
  per-user:
    algorithm: fixed_window
    window: 30d
    key: {{ descriptor: user }}
    limit: 1
    plans: {{ pro: {{ limit: 2 }} }}
    warn_at: [99]
    ban: {{ after: 2 denials in 1h, for: 1h }}
    over_limit: {{ deny: {{ status: 402, body: \"{{{{ plan }}}} {{{{ status }}}}\" }} }}
domains:
  edge: {{ plan: tier, descriptors: [{{ key: tier, descriptors: [{{ key: user, limits: [per-user] }}] }}] }}
webhook: {{ upstream: hooks, path: /told, secret_file: secret, queue: queue }}
",
        receiver.node()
    );
    let gateway = tokio::task::block_in_place(|| {
        Gateway::start_listening("serves: rate_limit_service", &config, &[("secret", SECRET)])
    });
    let mut envoy = Envoy::connect(&gateway).await;
    let [free, pro] = ["tier=free,user=a", "tier=pro,user=b"].map(descriptor);
    let both = || of_domain("edge", vec![free.clone(), pro.clone()]);
    assert_eq!(envoy.ask(&of_domain("edge", vec![pro.clone()])).await.overall_code, OK);
    assert_eq!(envoy.ask(&both()).await.overall_code, OK);
    assert_eq!(envoy.ask(&of_domain("edge", vec![pro.clone()])).await.raw_body, b"pro 429");
    assert_eq!(envoy.ask(&of_domain("edge", vec![free.clone()])).await.raw_body, b"free 429");
    for (plan, outcome, count) in
        [("pro", "admitted", 2.0), ("free", "admitted", 1.0), ("pro", "denied", 1.0), ("free", "denied", 1.0)]
    {
        let labels = [("route", "edge"), ("limit", "per-user"), ("plan", plan), ("outcome", outcome)];
        gateway.wait_for_metric("tollgate_limit_requests_total", &labels, count);
    }
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "edge"), ("code", "429")], 2.0);
    assert_eq!(envoy.ask(&of_domain("edge", vec![free.clone()])).await.overall_code, OVER);
    gateway.wait_for_metric("tollgate_limit_bans_total", &[("limit", "per-user"), ("plan", "free")], 1.0);
    gateway.wait_for_metric("tollgate_webhook_messages_total", &[("result", "delivered")], 2.0);
    let mut told: Vec<_> = receiver
        .received()
        .into_iter()
        .map(|seen| {
            let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
            body["data"]["plan"].as_str().unwrap_or("none").to_owned()
        })
        .collect();
    told.sort();
    assert_eq!(told, ["free", "pro"]);
    let recent = tokio::task::block_in_place(|| {
        let fields = [("host", "localhost"), ("connection", "close")];
        Client::connect(gateway.admin).round_trip("GET", "/v1/decisions", &fields).json()
    });
    let plans: Vec<_> = (0..3).map(|at| recent["decisions"][at]["plan"].as_str()).collect();
    assert_eq!(plans, [Some("free"), Some("free"), Some("pro")], "{recent:#}");
    let logged = |plan: &str, status: u16| {
        let log = gateway.process.stdout();
        let is_of = |line: &&str| {
            line.contains(&format!("\"plan\":\"{plan}\"")) && line.contains(&format!("\"status\":{status}"))
        };
        log.lines().filter(is_of).count()
    };
    wait_until("the log", || (logged("pro", 429), logged("free", 429)) == (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_without_hits_is_answered_before_the_hits_of_its_question() {
    let redis = tokio::task::block_in_place(Redis::start);
    for mode in ["sticky", "shared"] {
        let config = format!(
            "store: {{ redis: \"{}\", timeout: 1s }}
limits: {{ users: {{ algorithm: gcra, rate: 4/30d, burst: 4, mode: {mode}, key: {{ descriptor: user }} }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [users] }}] }} }}
",
            redis.url()
        );
        let gateway = start("rate_limit_service", &config);
        let mut envoy = Envoy::connect(&gateway).await;
        for user in ["user=a", "user=b"] {
            let hits = |value| Descriptor { hits_addend: Some(Hits { value }), ..descriptor(user) };
            let (mut question, mut codes) = (vec![hits(0), hits(4)], vec![(OK, 4), (OK, 0)]);
            if user == "user=b" {
                question.reverse();
                codes.reverse();
            }
            let answer = envoy.ask(&of_domain("edge", question)).await;
            let statuses = answer.statuses.iter().map(|status| (status.code, status.limit_remaining));
            assert_eq!((answer.overall_code, statuses.collect::<Vec<_>>()), (OK, codes), "{mode} {user}");
            let told = |name: &str| answer.response_headers.iter().find(|one| one.key == name).unwrap().value.clone();
            assert_eq!(told("ratelimit-policy"), "\"users\";q=4;w=2592000", "{mode} {user}");
            assert!(told("ratelimit").starts_with("\"users\";r=0;t="), "{mode} {user}: {}", told("ratelimit"));
        }
    }
}
