//! Environment variables: `${NAME}` in a value is replaced; `$${NAME}` stands for the text `${NAME}`.

use std::borrow::Cow;

use crate::config::scalar::{InvalidValue, invalid};

/// A function that looks up an environment variable.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Whether `text` refers to a variable.
pub(super) fn is_used(text: &str) -> bool {
    text.contains("${")
}

/// Replaces the variables in `text` by their values. Errors name the variable and never show its value.
pub(super) fn expand<'a>(text: &'a str, environment: Environment<'_>) -> Result<Cow<'a, str>, InvalidValue> {
    if !is_used(text) {
        return Ok(Cow::Borrowed(text));
    }
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = after;
            continue;
        }
        expanded.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            return Err(invalid("has `${` without `}`").hint("write `$${` for the text `${`"));
        };
        if !is_name(name) {
            let invalid = invalid("has something else than the name of an environment variable between `${` and `}`");
            return Err(invalid.hint("there are no defaults or other operators; write `$${` for the text `${`"));
        }
        match environment(name) {
            Some(value) => expanded.push_str(&value),
            None => return Err(invalid(format!("takes the environment variable `{name}`, which is not set"))),
        }
        rest = after;
    }
    expanded.push_str(rest);
    Ok(Cow::Owned(expanded))
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let environment = |name: &str| (name == "RATE").then(|| "10".to_owned());
        expand(text, &environment).map(Cow::into_owned).map_err(|invalid| invalid.message)
    }

    #[test]
    fn variables_are_put_in_once_and_can_be_escaped() {
        assert_eq!(expanded("${RATE}/s").as_deref(), Ok("10/s"));
        assert_eq!(expanded("a${RATE}b${RATE}").as_deref(), Ok("a10b10"));
        assert_eq!(expanded("$${RATE}").as_deref(), Ok("${RATE}"));
        assert_eq!(expanded("$RATE $").as_deref(), Ok("$RATE $"));
    }

    #[test]
    fn unset_and_malformed_variables_are_refused() {
        assert_eq!(expanded("${OTHER}"), Err("takes the environment variable `OTHER`, which is not set".to_owned()));
        for bad in ["${", "${}", "${RATE", "${A-B}", "${RATE:-5}", "${1A}", "a ${ b"] {
            assert!(expanded(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_not_expanded_again() {
        let environment = |_: &str| Some("${B}".to_owned());
        assert_eq!(expand("${A}", &environment).unwrap(), "${B}");
    }
}
