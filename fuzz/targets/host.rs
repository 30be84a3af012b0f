//! Host names: one spelling for each.

use tollgate::gateway::facts::canonical_host;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok((name, port)) = canonical_host(text) else { return };
    assert_eq!(canonical_host(&name), Ok((name.clone(), None)), "the second time changes nothing");
    assert!(!name.is_empty() && !name.ends_with('.') && !name.contains(['@', '/', '?', '#', ' ', ',']), "{name}");
    assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii_graphic()), "{name}");
    assert!(!name.contains(':') || (name.starts_with('[') && name.ends_with(']')), "{name}");
    let other_case = text.to_ascii_uppercase();
    assert_eq!(canonical_host(&other_case), Ok((name.clone(), port)), "letters are the same in both cases");
    if let Some(port) = port {
        assert_eq!(canonical_host(&format!("{name}:{port}")), Ok((name, Some(port))));
    }
}
