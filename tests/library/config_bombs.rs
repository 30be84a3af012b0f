//! Hostile configurations are refused in less than a second of CPU time and less than 100 MB.
//!
//! This file has a single test, because it measures the memory of its process.

use std::fs;

use tollgate::config;

const MIB: usize = 1 << 20;

/// The peak memory of this process in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The CPU time of this process in hundredths of a second.
fn computed() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn filled(piece: &str, bytes: usize) -> String {
    piece.repeat(bytes / piece.len())
}

fn numbered(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect()
}

fn alias_bomb() -> String {
    let level = |level: usize| match level {
        0 => "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(),
        level => format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", ")),
    };
    numbered(9, level)
}

fn merge_bomb() -> String {
    let level = |level: usize| match level {
        0 => "m0: &m0 { k: v }\n".to_owned(),
        level => format!("m{level}: &m{level} {{ <<: [*m{0}, *m{0}], k{level}: v }}\n", level - 1),
    };
    numbered(30, level)
}

fn text_bomb() -> String {
    format!("a: &a {}\nb: [{}]\n", filled("x", MIB / 2), filled("*a,", MIB / 4))
}

#[test]
fn bombs_are_refused_soon_and_in_little_memory() {
    let bombs = [
        ("aliases of aliases", alias_bomb()),
        ("mappings merged twice", merge_bomb()),
        ("a long text often", text_bomb()),
        ("ten thousand lists in each other", "[".repeat(10_000)),
        ("ten thousand mappings in each other", "{a: ".repeat(10_000)),
        ("ten thousand levels of a list", "- ".repeat(10_000)),
        ("a thousand levels of indentation", numbered(1_000, |level| format!("{}a:\n", " ".repeat(level)))),
        ("lists without end", filled("[", MIB)),
        ("one long list", format!("[{}]", filled("a,", MIB - 2))),
        ("a list as long as allowed", format!("[{}]", filled("a,", 499_990))),
        ("aliases of nothing", format!("[{}", filled("*a ", 740_000))),
        ("a list of lines", filled("- a\n", MIB)),
        ("one name over and over", filled("a: b\n", MIB)),
        ("unknown names", numbered(80_000, |name| format!("k{name}: 1\n"))),
        ("anchors", numbered(50_000, |name| format!("- &a{name} 1\n"))),
        ("one text", filled("a", MIB)),
        ("lines of one text", filled("a\n", MIB)),
        ("a quoted text", format!("\"{}", filled("\\\\", MIB - 1))),
        ("comments", filled("#\n", MIB)),
        ("documents", filled("---\n", MIB)),
        ("directives", numbered(40_000, |name| format!("%TAG !{name}! x\n"))),
        ("hundred megabytes", filled("limits: {}\n", 100 * MIB)),
        (
            "limits with misspelt names",
            format!("limits:\n{}", numbered(20_000, |name| format!("  l{name}: {{algoritm: gcra, rat: 1}}\n"))),
        ),
        (
            "references to nothing",
            format!(
                "limits:\n{}routes:\n{}",
                numbered(8_000, |name| format!("  limit-{name:06}: {{algorithm: gcra, rate: 1/s, burst: 1}}\n")),
                numbered(8_000, |name| format!("- {{name: r{name}, limits: [limit-{name:06}x]}}\n")),
            ),
        ),
        (
            "too many plans for too many limits",
            format!(
                "plans: [{}]\nlimits:\n{}",
                numbered(1_000, |name| format!("p{name},")),
                numbered(10_000, |name| format!("  l{name}: {{algorithm: gcra, rate: 1/s, burst: 1}}\n")),
            ),
        ),
    ];
    // a build without optimization takes several times as long
    let allowed = if cfg!(debug_assertions) { 400 } else { 100 };
    let texts: usize = bombs.iter().map(|(_, text)| text.len()).sum();
    let before = u64::try_from(texts / 1024).unwrap();
    for (name, text) in &bombs {
        let start = computed();
        let refused = config::load(text, "bomb.yaml", &|_| None).is_err();
        let took = computed() - start;
        assert!(refused, "{name} is not refused");
        assert!(took < allowed, "{name} took {took} hundredths of a second");
        let grown = peak().saturating_sub(before) / 1024;
        assert!(grown < 100, "{name} took {grown} MB");
    }
}
