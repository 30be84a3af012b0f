//! Tests of paths and their patterns.

use super::*;

fn matches(pattern: &str, path: &str) -> bool {
    PathPattern::parse(pattern).unwrap().matches(path)
}

#[test]
fn stars_stand_for_one_segment_or_for_all_the_rest() {
    assert!(matches("/", "/"));
    assert!(!matches("/", "/a"));
    assert!(matches("/a/*/c", "/a/b/c"));
    assert!(!matches("/a/*/c", "/a//c"));
    assert!(!matches("/a/*", "/a"));
    assert!(!matches("/a/*", "/a/b/c"));
    assert!(matches("/a/**", "/a"));
    assert!(matches("/a/**", "/a/"));
    assert!(matches("/a/**", "/a/b/c"));
    assert!(!matches("/a/**", "/ab"));
    assert!(matches("/**", "/anything/at/all"));
    assert!(!matches("/a", "/a/"));
    assert!(matches("/a/", "/a/"));
}

#[test]
fn patterns_that_no_canonical_path_can_match_are_refused() {
    for bad in [
        "a", "", "/a//b", "/**/a", "/a*", "/a/../b", "/a?b", "/a b", "/caf%c3%a9", "/%7Euser", "/é", "/a%3Ab", "/%",
        "/a;b=1", "/a%3Bb", "/[a]", "/{}", "/{a b}", "/{a", "/a}", "/{a}/{a}", "/{*}",
    ] {
        assert!(PathPattern::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_named_segment_stands_for_one_that_is_not_empty() {
    let pattern = "/v1/{tenant}/*/{user}/**";
    assert!(matches(pattern, "/v1/acme/x/7"));
    assert!(!matches(pattern, "/v1//x/7"));
    assert_eq!(named_segment(pattern, "/v1/acme/x/7/more", "tenant"), Some("acme"));
    assert_eq!(named_segment(pattern, "/v1/acme/x/7/more", "user"), Some("7"));
    assert_eq!(named_segment(pattern, "/v1/acme/x/7", "other"), None);
    assert!(names_segment(pattern, "user") && !names_segment(pattern, "v1"));
}

#[test]
fn a_pattern_that_is_spelt_another_way_is_told_how() {
    assert!(PathPattern::parse("/é").unwrap_err().contains("`%C3%A9`"));
    assert!(PathPattern::parse("/x/%7Euser").unwrap_err().contains("`~user`"));
}

#[test]
fn a_path_has_one_spelling() {
    for raw in ["/v1/jobs:cancel", "/v1/jobs%3Acancel", "/v1/jobs%3acancel", "/v1/./jobs:cancel"] {
        assert_eq!(canonical(raw).as_deref(), Ok("/v1/jobs:cancel"), "{raw}");
    }
    assert_eq!(canonical("/a%22b").as_deref(), canonical("/a\"b").as_deref());
    assert_eq!(canonical("/a;b%3bc").as_deref(), Ok("/a;b%3Bc"));
}

#[test]
fn a_path_is_matched_without_its_parameters() {
    for (path, expected) in [
        ("/a;x=1/b", "/a/b"),
        ("/a%3Bx/b;y;z", "/a/b"),
        ("/a/;x", "/a/"),
        ("/;x", "/"),
        ("/a;", "/a"),
        ("/a;x%3By/b", "/a/b"),
        ("/a%3Bx;y", "/a"),
    ] {
        assert_eq!(canonical(path).as_deref(), Ok(path), "{path}");
        assert_eq!(without_parameters(path).as_deref(), Some(expected), "{path}");
    }
    for path in ["/", "/a/b", "/a%2Cb", "/a%3Ab"] {
        assert_eq!(without_parameters(path), None, "{path}");
    }
}

#[test]
fn brackets_and_signs_are_matched_in_one_spelling() {
    for raw in ["/a[1]", "/a%5B1%5D", "/a%5b1]"] {
        assert_eq!(canonical(raw).as_deref(), Ok("/a%5B1%5D"), "{raw}");
    }
    for (path, expected) in [
        ("/a+b*", None),
        ("/a%2Bb%2A", Some("/a+b*")),
        ("/%2A", Some("/*")),
        ("/a%2Bb;x/c", Some("/a+b/c")),
        ("/a;x/c", Some("/a/c")),
        ("/a%252B", None),
    ] {
        assert_eq!(canonical(path).as_deref(), Ok(path), "forwarded as sent");
        assert_eq!(matched_form(path).as_deref(), expected, "{path}");
    }
    for pattern in ["/a+b/c", "/a%2Bb/c"] {
        assert!(matches(pattern, "/a+b/c"));
        assert!(PathPattern::parse(pattern).unwrap().can_begin_with("/a%2Bb", false));
    }
    let star = PathPattern::parse("/%2A").unwrap();
    assert_eq!((star.matches("/*"), star.matches("/a"), &*star.to_string()), (true, false, "/%2A"));
    assert_eq!(strip_path_prefix("/a%2Bb/c%2B", "/a+b", false), Some("/c%2B"));
}

#[test]
fn a_path_that_leads_elsewhere_without_its_parameters_is_refused() {
    for raw in ["/a/..;x/b", "/a/..;", "/.;/a", "/a/%2e%2e;x", "/a/..%3bx", "/;x/a", "/a/;/b", "/a/.%3B"] {
        assert!(canonical(raw).is_err(), "{raw}");
    }
    assert_eq!(canonical("/a;x/../b").as_deref(), Ok("/b"));
}

#[test]
fn a_prefix_is_found_whatever_its_parameters() {
    let cases = [
        ("/v1/a", "/v1", Some("/a")),
        ("/v1;x/a;y", "/v1", Some("/a;y")),
        ("/a;x/b;y", "/a/b", Some("")),
        ("/a/b/c", "", Some("/a/b/c")),
        ("/v10/a", "/v1", None),
        ("/v1", "/v1/a", None),
        ("/;v1/a", "/v1", None),
    ];
    for (path, prefix, behind) in cases {
        assert_eq!(strip_path_prefix(path, prefix, false), behind, "{path} {prefix}");
    }
}

#[test]
fn a_path_that_needs_no_second_look_is_the_one_that_it_would_become() {
    for raw in ["/", "/a", "/a/", "/a.b/c-d_e~f/0", "/a/b.", "/a..b"] {
        assert_eq!(plain_length(raw.as_bytes()), raw.len(), "{raw}");
        assert_eq!(canonical(&format!("/x/..{raw}")).as_deref(), Ok(raw), "{raw}");
    }
    for (raw, length) in [
        ("", 0),
        ("a", 0),
        ("*", 0),
        ("//", 1),
        ("/a//b", 3),
        ("/./a", 1),
        ("/a/..", 3),
        ("/.a", 1),
        ("/a%41", 2),
        ("/a b", 2),
        ("/a?b", 2),
    ] {
        assert_eq!(plain_length(raw.as_bytes()), length, "{raw}");
    }
}

#[test]
fn patterns_are_shown_as_written() {
    for text in ["/v1/jobs:cancel", "/caf%C3%A9", "/", "/a/*/c", "/a/**", "/**", "/a/"] {
        assert_eq!(PathPattern::parse(text).unwrap().to_string(), text);
    }
}
