//! The YAML that is written: mappings and lists in one line, and blocks of lines.

/// Settings of a mapping: their names, and their values in YAML.
pub(super) type Settings = Vec<(&'static str, String)>;

/// Formats a text as YAML.
pub(super) fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { quoted(text) }
}

/// Formats a text as YAML in quotes.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace("${", "$${")).to_string()
}

/// Formats values as a list in one line.
pub(super) fn list(values: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", values.into_iter().collect::<Vec<_>>().join(", "))
}

/// Formats texts as a list in one line; `None` if there are none.
pub(super) fn texts(texts: &[String]) -> Option<String> {
    (!texts.is_empty()).then(|| list(texts.iter().map(|text| scalar(text))))
}

/// Formats settings as a mapping in one line; `None` if none has a value.
pub(super) fn mapping<N: AsRef<str>, V: Into<Option<String>>>(
    settings: impl IntoIterator<Item = (N, V)>,
) -> Option<String> {
    let settings: Vec<String> = lines(settings).collect();
    (!settings.is_empty()).then(|| format!("{{ {} }}", settings.join(", ")))
}

/// Formats the settings that have a value, one in each line.
pub(super) fn lines<N: AsRef<str>, V: Into<Option<String>>>(
    settings: impl IntoIterator<Item = (N, V)>,
) -> impl Iterator<Item = String> {
    settings.into_iter().filter_map(|(name, value)| Some(format!("{}: {}", name.as_ref(), value.into()?)))
}

/// The lines of a mapping that is an item of a list.
pub(super) fn item(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let begins = std::iter::once("- ").chain(std::iter::repeat("  "));
    begins.zip(lines).map(|(begin, line)| format!("{begin}{line}")).collect()
}

/// A name, and the lines of its value below it.
pub(super) fn block(name: &str, lines: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(format!("{name}:")).chain(lines.into_iter().map(|line| format!("  {line}"))).collect()
}

/// Formats the sections of a file, each with an empty line in front.
pub(super) fn sections(sections: impl IntoIterator<Item = Vec<String>>) -> String {
    sections.into_iter().map(|lines| format!("\n{}\n", lines.join("\n"))).collect()
}
