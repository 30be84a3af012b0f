//! The directions of dependencies in the code: the modules that each module may use, and the text that no module of a layer
//! may contain. This is the picture of ARCHITECTURE.md as a test.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]
#![allow(clippy::string_slice, reason = "code is cut at letters that were found in it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

struct Layer {
    module: &'static str,
    /// The other modules of the crate that this module may use.
    may_use: &'static [&'static str],
    /// Text that the module's code must not contain.
    never: &'static [&'static str],
}

const PURE: &[&str] =
    &["Instant", "SystemTime", "tokio::", "tracing::", "parking_lot", "std::fs", "std::net::Tcp", "async fn", "rand::"];

const LAYERS: &[Layer] = &[
    Layer { module: "units", may_use: &[], never: PURE },
    Layer { module: "clock", may_use: &["units"], never: &["tokio::"] },
    Layer { module: "pattern", may_use: &[], never: PURE },
    Layer {
        module: "files",
        may_use: &["pattern"],
        never: &["tokio::", "tracing::", "pingora::", "std::time", "async fn"],
    },
    Layer {
        module: "outbox",
        may_use: &["files"],
        never: &["tokio::", "tracing::", "pingora::", "std::time", "async fn"],
    },
    // this module reads the environment, in builds for tests
    Layer { module: "panics", may_use: &[], never: &["tracing::", "pingora::", "prometheus::"] },
    Layer { module: "fields", may_use: &[], never: PURE },
    Layer { module: "lifecycle", may_use: &[], never: &["tracing::", "pingora::", "prometheus::", "std::time"] },
    Layer {
        module: "stripes",
        may_use: &[],
        never: &["tokio::", "tracing::", "pingora::", "prometheus::", "async fn"],
    },
    Layer { module: "algorithm", may_use: &["units"], never: PURE },
    Layer { module: "charge", may_use: &["units", "algorithm"], never: PURE },
    Layer { module: "template", may_use: &[], never: PURE },
    Layer {
        module: "ruleset",
        may_use: &["fields", "units", "algorithm", "charge", "pattern", "template"],
        never: &[
            "std::time", "tokio::", "tracing::", "serde", "saphyr", "pingora::", "prometheus::", "std::fs", "async fn",
        ],
    },
    // the caller reads files and passes the time
    Layer {
        module: "tls",
        may_use: &["units"],
        never: &["tokio::", "tracing::", "pingora::", "std::time", "std::fs", "async fn"],
    },
    // customers and limits use Redis through this module
    Layer {
        module: "redis_client",
        may_use: &["units", "tls"],
        never: &["pingora::", "prometheus::", "std::time", "std::fs", "tracing::"],
    },
    // for the cluster, keys and states are opaque: the store implements its trait, and the cluster does not use the store
    Layer {
        module: "cluster",
        may_use: &["stripes", "units", "algorithm", "charge", "clock", "panics"],
        never: &["pingora::", "prometheus::", "std::time", "std::fs"],
    },
    Layer {
        module: "store",
        may_use: &["stripes", "units", "algorithm", "charge", "clock", "redis_client", "cluster"],
        never: &["pingora::", "prometheus::", "std::time"],
    },
    Layer {
        module: "config",
        // the store: the rules that it can keep; the cluster: its settings; the Redis client: the addresses of servers
        may_use: &[
            "units", "algorithm", "charge", "cluster", "pattern", "redis_client", "template", "ruleset", "store",
        ],
        never: &["pingora::", "tokio::", "std::fs", "std::env", "async fn"],
    },
    // bytes and connections: of the ruleset the engine uses the settings of listeners, and nothing about limits
    Layer {
        module: "http",
        may_use: &["lifecycle", "stripes", "fields", "units", "clock", "panics", "tls", "ruleset"],
        never: &[
            "pingora::", "prometheus::", "std::time", "std::fs", "Ruleset", "ruleset::limit", "ruleset::verdict",
            "Charge",
        ],
    },
    Layer {
        module: "customers",
        // the engine: the gateway's own requests to publishers of keys; files: the rows of a database survive the process
        may_use: &["fields", "units", "clock", "files", "tls", "algorithm", "ruleset", "redis_client", "http"],
        never: &["pingora::", "prometheus::"],
    },
    Layer {
        module: "simulation",
        may_use: &["units", "algorithm"],
        never: &["pingora::", "tokio::", "async fn", "std::time"],
    },
    Layer {
        module: "telemetry",
        may_use: &["stripes", "units", "algorithm", "charge", "ruleset"],
        never: &["pingora::", "std::time"],
    },
    // the deciding code knows no sockets
    Layer {
        module: "gateway",
        may_use: &[
            "stripes", "fields", "http", "units", "algorithm", "charge", "clock", "panics", "template", "tls",
            "ruleset", "customers", "store", "telemetry",
        ],
        never: &["saphyr", "std::fs", "pingora::", "TcpStream", "UnixStream"],
    },
    Layer {
        module: "replay",
        may_use: &["fields", "units", "algorithm", "charge", "ruleset", "customers", "store", "gateway", "simulation"],
        never: &["pingora::", "tokio::", "async fn", "std::time", "saphyr", "tracing::"],
    },
    Layer {
        module: "admin",
        may_use: &[
            "lifecycle", "units", "algorithm", "clock", "ruleset", "customers", "store", "cluster", "telemetry",
            "gateway",
        ],
        never: &["saphyr"],
    },
    Layer {
        module: "runtime",
        may_use: &[
            "fields", "lifecycle", "stripes", "http", "units", "clock", "cluster", "files", "outbox", "panics",
            "ruleset", "customers", "store", "telemetry", "gateway", "admin",
        ],
        never: &["saphyr"],
    },
    Layer {
        module: "cli",
        may_use: &[
            "http", "units", "algorithm", "clock", "cluster", "files", "ruleset", "config", "customers", "tls",
            "redis_client", "simulation", "replay", "telemetry", // the code that decides also explains
            "gateway", "runtime",
        ],
        never: &["pingora::", "saphyr"],
    },
];

#[test]
fn every_module_of_the_crate_has_its_layer() {
    let lib = fs::read_to_string("src/lib.rs").unwrap();
    let declared: BTreeSet<&str> =
        lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let layered: BTreeSet<&str> = LAYERS.iter().map(|layer| layer.module).collect();
    assert_eq!(declared, layered);
}

#[test]
fn no_module_uses_one_that_lies_further_on() {
    let modules: Vec<&str> = LAYERS.iter().map(|layer| layer.module).collect();
    let mut wrong = Vec::new();
    for (position, layer) in LAYERS.iter().enumerate() {
        for module in layer.may_use.iter().filter(|module| !modules[..position].contains(module)) {
            wrong.push(format!("{} is listed before {module}, which it may use", layer.module));
        }
        for (file, code) in sources(layer.module) {
            for module in modules.iter().filter(|module| **module != layer.module && !layer.may_use.contains(module)) {
                if code.contains(&format!("crate::{module}")) {
                    wrong.push(format!("{}: {} must not use {module}", file.display(), layer.module));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_layer_holds_what_it_must_not_know() {
    let mut wrong = Vec::new();
    for layer in LAYERS {
        for (file, code) in sources(layer.module) {
            for never in layer.never.iter().filter(|never| code.contains(**never)) {
                wrong.push(format!("{}: {} must not hold `{never}`", file.display(), layer.module));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Two files that use each other cannot be read one after the other. The submodules of a file may use it.
#[test]
fn no_files_use_each_other_in_a_circle() {
    let files: Vec<(Module, String)> =
        files(Path::new("src")).iter().map(|file| (module_of(file), read_code(file))).collect();
    let modules: BTreeSet<Module> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut reexports = BTreeMap::new();
    for (module, code) in &files {
        for path in code.split("pub use ").skip(1).chain(code.split("pub(super) use ").skip(1)).flat_map(paths_of) {
            if let Some((target, [name])) = resolve(module, &path, &modules) {
                reexports.insert([module.clone(), vec![name.clone()]].concat(), target);
            }
        }
    }
    let used_by = |(module, code): &(Module, String)| {
        let starts = ["crate::", "super::"].into_iter().flat_map(|start| code.match_indices(start));
        let starts =
            starts.filter(|(at, _)| !code[..*at].ends_with(|last: char| last.is_alphanumeric() || last == ':'));
        let written = starts.flat_map(|(at, _)| paths_of(&code[at..]));
        let declared = modules.iter().filter(|other| other.split_last().is_some_and(|(_, parent)| parent == module));
        let used = written.filter_map(|path| {
            let (mut target, mut rest) = resolve(module, &path, &modules)?;
            while let Some(further) =
                rest.first().and_then(|name| reexports.get(&[target.clone(), vec![name.clone()]].concat()))
            {
                (target, rest) = (further.clone(), &rest[1..]);
            }
            (!module.starts_with(&target)).then_some(target)
        });
        (module.clone(), used.chain(declared.cloned()).collect::<BTreeSet<_>>())
    };
    let mut uses: BTreeMap<Module, BTreeSet<Module>> = files.iter().map(used_by).collect();
    // a file is in no circle if it uses no file that may be in one, or if no such file uses it
    loop {
        let left: BTreeSet<Module> = uses.keys().cloned().collect();
        let used: BTreeSet<Module> = uses.values().flatten().cloned().collect();
        uses.values_mut().for_each(|used| used.retain(|used| left.contains(used)));
        uses.retain(|module, uses| !uses.is_empty() && used.contains(module));
        if uses.len() == left.len() {
            break;
        }
    }
    let shown = |(module, used): (&Module, &BTreeSet<Module>)| {
        format!("{} uses {}", module.join("/"), used.iter().map(|used| used.join("/")).collect::<Vec<_>>().join(", "))
    };
    assert!(uses.is_empty(), "{}", uses.iter().map(shown).collect::<Vec<_>>().join("\n"));
}

/// A module's path: the names of the modules around it, and its own.
type Module = Vec<String>;

fn module_of(file: &Path) -> Module {
    let parts = file.with_extension("");
    parts.iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect()
}

/// The paths at the beginning of `code`: a single path, or those of a tree with braces.
fn paths_of(code: &str) -> Vec<Vec<String>> {
    let code = code.trim_start();
    if let Some(group) = code.strip_prefix('{') {
        let (mut depth, mut items) = (0_usize, vec![String::new()]);
        for letter in group.chars() {
            match letter {
                '}' if depth == 0 => break,
                ',' if depth == 0 => items.push(String::new()),
                _ => items.last_mut().unwrap().push(letter),
            }
            depth = depth + usize::from(letter == '{') - usize::from(letter == '}');
        }
        return items.iter().flat_map(|item| paths_of(item)).collect();
    }
    let end = code.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(code.len());
    let name = code[..end].to_owned();
    match code[end..].strip_prefix("::") {
        _ if name.is_empty() => Vec::new(),
        Some(rest) => paths_of(rest).into_iter().map(|path| [vec![name.clone()], path].concat()).collect(),
        None => vec![vec![name]],
    }
}

/// The file that a path in `module` refers to, and the rest of the path in that file.
fn resolve<'p>(module: &Module, path: &'p [String], modules: &BTreeSet<Module>) -> Option<(Module, &'p [String])> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" => module[..module.len().checked_sub(ups)?].to_vec(),
        _ => module.clone(),
    };
    let path = &path[ups.max(usize::from(path[0] == "crate"))..];
    let whole = [from, path.to_vec()].concat();
    let known = (1..=whole.len()).rev().find(|length| modules.contains(&whole[..*length]))?;
    let left = whole.len() - known;
    Some((whole[..known].to_vec(), &path[path.len().checked_sub(left)?..]))
}

/// `.cargo/config.toml` sets the seed of generated inputs, and tests must not draw their own.
#[test]
fn random_inputs_are_the_same_in_every_run() {
    let seed = proptest::test_runner::Config::default().rng_seed;
    assert!(matches!(seed, proptest::test_runner::RngSeed::Fixed(_)), "{seed:?}: is PROPTEST_RNG_SEED set?");
    let is_test = |file: &&PathBuf| file.starts_with("tests") || file.ends_with("tests.rs");
    for file in [files(Path::new("tests")), files(Path::new("src"))].concat().iter().filter(is_test) {
        let text = fs::read_to_string(file).unwrap();
        for draws in ["random()", "random::<", "rng()", "from_os_rng", "from_entropy"] {
            let draws = ["rand::", draws].concat();
            assert!(!text.contains(&draws), "{}: `{draws}` differs from run to run", file.display());
        }
    }
}

#[test]
fn each_yaml_library_stays_in_one_place() {
    let users = |library: &str| -> Vec<PathBuf> {
        files(Path::new("src")).into_iter().filter(|file| read_code(file).contains(library)).collect()
    };
    assert!(
        users("saphyr_parser::")
            .iter()
            .all(|file| file.starts_with("src/config/document") || file.ends_with("document.rs"))
    );
    assert_eq!(users("serde_yaml::"), [Path::new("src/customers/directory/yaml.rs")]);
}

/// The files of a module with their code, without comments and tests.
fn sources(module: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![PathBuf::from(format!("src/{module}.rs"))];
    found.extend(files(&Path::new("src").join(module)));
    found.into_iter().map(|file| (file.clone(), read_code(&file))).collect()
}

fn read_code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}
