//! The public test cases for envoyproxy/ratelimit's configuration, reworded: the limits of a descriptor after an import.

use super::Import;
use crate::config;
use crate::ruleset::Ruleset;
use crate::ruleset::key::KeyPart;
use crate::units::Nanos;

mod proxies;

fn imported(texts: &[&str]) -> Ruleset {
    let mut import = Import::default();
    for (position, text) in texts.iter().enumerate() {
        import.add(text, &format!("{position}.yaml")).unwrap();
    }
    config::load(&import.to_yaml(), "written.yaml", &|_| None).unwrap().ruleset
}

/// The limits of a descriptor, written `key=value,key=value`: parameters and separately counted values, `denied`,
/// `unlimited` where the file says so, or an empty text where no entry matches.
fn under(ruleset: &Ruleset, domain: &str, descriptor: &str) -> String {
    let entries = descriptor.split(',').filter_map(|entry| entry.split_once('='));
    let entries: Vec<_> = entries.map(|(key, value)| (key, value.as_bytes())).collect();
    let Some(node) = ruleset.domains.get(domain).and_then(|domain| domain.find(&entries)) else {
        return String::new();
    };
    let says = |id: &crate::ruleset::LimitId| {
        let limit = &ruleset.limits[id.0];
        let counted: Vec<String> = limit.key.parts.iter().map(KeyPart::describe).collect();
        let policy = limit.rules[0].policy();
        let shadow = if limit.enforces() { "" } else { ", shadow" };
        format!("{} in {} by {}{shadow}", policy.quota, policy.window.unwrap(), counted.join("+"))
    };
    match (node.denies, node.limits.as_slice(), node.next.is_empty()) {
        (true, _, _) => "denied".to_owned(),
        (false, [], true) => "unlimited".to_owned(),
        (false, limits, _) => limits.iter().map(says).collect::<Vec<_>>().join(" and "),
    }
}

#[track_caller]
fn hold(text: &str, cases: &[(&str, &str)]) {
    let ruleset = imported(&[&format!("domain: d\ndescriptors:\n{text}")]);
    for (descriptor, expected) in cases {
        assert_eq!(under(&ruleset, "d", descriptor), *expected, "{descriptor}");
    }
    assert_eq!(under(&ruleset, "another", cases[0].0), "");
}

#[test]
fn a_value_is_looked_up_before_the_key_alone() {
    hold(
        "  - { key: address, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: address, value: 192.0.2.5, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: address, value: 192.0.2.6, rate_limit: { unit: hour, requests_per_unit: 7 } }
  - { key: address, value: 192.0.2.7 }
  - { key: user, value: known, rate_limit: { unit: day, requests_per_unit: 15 } }
",
        &[
            ("address=192.0.2.1", "10 in 1s by descriptor address"),
            ("address=", "10 in 1s by descriptor address"),
            ("address=192.0.2.5", "denied"),
            ("address=192.0.2.6", "7 in 1h by "),
            ("address=192.0.2.7", "unlimited"),
            ("user=known", "15 in 1d by "),
            ("user=unknown", ""),
            ("missing=1", ""),
        ],
    );
}

#[test]
fn a_descriptor_has_to_have_as_many_entries_as_its_limit_is_deep() {
    hold(
        "  - key: message
    value: marketing
    descriptors:
      - { key: number, rate_limit: { unit: day, requests_per_unit: 5 } }
      - { key: number, value: own, rate_limit: { unit: day, requests_per_unit: 25 } }
  - key: number
    rate_limit: { unit: day, requests_per_unit: 100 }
    descriptors:
      - { key: more, rate_limit: { unit: minute, requests_per_unit: 2 } }
",
        &[
            ("message=marketing,number=1", "5 in 1d by descriptor number"),
            ("message=marketing,number=own", "25 in 1d by "),
            ("message=marketing", ""),
            ("message=other,number=1", ""),
            ("message=marketing,number=1,more=2", ""),
            ("number=1,message=marketing", ""),
            ("number=1", "100 in 1d by descriptor number"),
            ("number=1,more=2", "2 in 1m by descriptor number+descriptor more"),
        ],
    );
}

#[test]
fn patterns_stand_between_values_and_keys_alone_and_count_each_value_unless_it_is_shared() {
    hold(
        "  - { key: wild, value: foo*, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: wild, value: foobar, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: wild, value: fo*, rate_limit: { unit: minute, requests_per_unit: 30 } }
  - { key: wild, rate_limit: { unit: minute, requests_per_unit: 40 } }
  - { key: middle, value: bar*b, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: several, value: a*b*c, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 50 } }
  - key: tenant
    value: t*
    share_threshold: true
    descriptors:
      - { key: path, value: p/*, rate_limit: { unit: minute, requests_per_unit: 60 } }
      - key: file
        value: f/*
        share_threshold: true
        descriptors: [{ key: action, rate_limit: { unit: minute, requests_per_unit: 150 } }]
",
        &[
            ("wild=foo1", "20 in 1m by descriptor wild"),
            ("wild=foobar", "1 in 1m by "),
            ("wild=fo", "30 in 1m by descriptor wild"),
            ("wild=fish", "40 in 1m by descriptor wild"),
            ("middle=bar12b", "20 in 1m by descriptor middle"),
            ("middle=bar12c", ""),
            ("several=axbxc", "50 in 1m by "),
            ("tenant=t1,path=p/2", "60 in 1m by descriptor path"),
            ("tenant=t1,file=f/2,action=read", "150 in 1m by descriptor action"),
            ("tenant=t1,file=g/2,action=read", ""),
        ],
    );
}

#[test]
fn units_become_windows_and_modes_become_shadow() {
    let units = [
        ("second", "1s"),
        ("MINUTE", "1m"),
        ("hour", "1h"),
        ("day", "1d"),
        ("week", "7d"),
        ("month", "30d"),
        ("year", "365d"),
    ];
    for (unit, window) in units {
        let text = format!("  - {{ key: a, rate_limit: {{ unit: {unit}, requests_per_unit: 4294967295 }} }}\n");
        hold(&text, &[("a=1", &format!("4294967295 in {window} by descriptor a"))]);
    }
    hold(
        "  - { key: a, shadow_mode: true, rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 2 } }
  - { key: b, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: c, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: d, rate_limit: { unlimited: true } }
  - { key: e, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 2, name: x, replaces: [{ name: y }] } }
",
        &[
            ("a=1", "2 in 5m by descriptor a, shadow"),
            ("b=1", "2 in 1m by descriptor b, shadow"),
            ("c=1", "unlimited"),
            ("d=1", "unlimited"),
            ("e=1", "2 in 1m by descriptor e"),
        ],
    );
}

#[test]
fn a_window_is_as_long_as_it_is_written() {
    let text = "domain: d
descriptors: [{ key: a, rate_limit: { unit: second, unit_multiplier: 1000003, requests_per_unit: 1 } }]
";
    let ruleset = imported(&[text]);
    assert_eq!(ruleset.limits[0].rules[0].policy().window, Some(Nanos::from_secs(1_000_003)));
}

#[test]
fn a_key_that_ends_like_another_with_its_value_is_another_one() {
    hold(
        "  - { key: a, value: b_c, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: a_b, value: c, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: a_b, value: \"${HOME}\", rate_limit: { unit: second, requests_per_unit: 3 } }
",
        &[("a=b_c", "1 in 1s by "), ("a_b=c", "2 in 1s by "), ("a_b=${HOME}", "3 in 1s by "), ("a=b", "")],
    );
}

#[test]
fn several_files_are_several_domains_and_no_domain_comes_twice() {
    let file = |domain: &str| {
        format!("domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]\n")
    };
    let ruleset = imported(&[&file("a.b"), &file("a"), &file("b")]);
    assert_eq!(ruleset.limits.len(), 3);
    assert_eq!(under(&ruleset, "b", "a=1"), "1 in 1d by descriptor a");
    let mut import = Import::default();
    import.add(&file("a"), "1.yaml").unwrap();
    let refused = import.add(&file("a"), "2.yaml").unwrap_err();
    assert!(refused.to_string().starts_with("2.yaml:1:1: holds the domain `a`"), "{refused}");
}

#[test]
fn limits_of_limitador_hold_wherever_their_entries_are_there() {
    let ruleset = imported(&["
- { namespace: n, max_value: 100, seconds: 60, conditions: [], variables: [] }
- { namespace: n, max_value: 5, seconds: 60, conditions: [\"method == 'POST'\"], variables: [user] }
- { namespace: n, max_value: 3, seconds: 10, conditions: [], variables: [user, user] }
- { namespace: n, max_value: 0, seconds: 1, conditions: [\"descriptors[0]['tier'] == 'banned'\"] }
"]);
    let cases = [
        ("method=POST,user=a", "100 in 1m by  and 5 in 1m by descriptor user and 3 in 10s by descriptor user"),
        ("user=a", "100 in 1m by  and 3 in 10s by descriptor user"),
        ("tier=banned", "denied"),
        ("tier=other", ""),
    ];
    for (descriptor, expected) in cases {
        assert_eq!(under(&ruleset, "n", descriptor), expected, "{descriptor}");
    }
}
