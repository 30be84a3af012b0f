//! The Debian package of a build. `make package-test` installs one, which needs root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::Folder;

/// Prints why the file is not a valid CycloneDX document; prints nothing for a valid one.
const CYCLONEDX: &str = "
import sys
sys.path.insert(0, 'target/python/schemas')
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read()) or '')";

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Packages the program under test, and unpacks the package.
fn unpacked(folder: &Folder) -> PathBuf {
    let mut script = Command::new("scripts/package.sh");
    script.arg(env!("CARGO_BIN_EXE_tollgate")).arg(folder.path());
    // without compression, which takes long
    let package = run(script.env("DPKG_DEB_COMPRESSOR_TYPE", "none"));
    let unpacked = folder.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("--raw-extract").args([Path::new(package.trim_end()), &unpacked]));
    unpacked
}

#[test]
fn a_package_has_what_its_unit_starts_and_a_configuration_that_is_good() {
    let folder = Folder::new();
    let root = unpacked(&folder);
    let control = fs::read_to_string(root.join("DEBIAN/control")).unwrap();
    assert!(control.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n")), "{control}");
    assert!(control.contains("Depends: libc6 (") && !control.contains('@'), "{control}");
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/tollgate.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let [program, "run", "--config", config] = start.split(' ').collect::<Vec<_>>()[..] else { panic!("{start}") };
    let [program, config] = [program, config].map(|path| root.join(path.trim_start_matches('/')));
    run(Command::new(program).arg("check").arg(&config));
    let kept = fs::read_to_string(root.join("DEBIAN/conffiles")).unwrap();
    assert_eq!(root.join(kept.trim().trim_start_matches('/')), config);
    for path in ["usr/share/man/man1/tollgate-run.1.gz", "usr/share/bash-completion/completions/tollgate"] {
        assert!(fs::metadata(root.join(path)).unwrap().len() > 0, "{path}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
}

#[test]
fn a_package_lists_the_crates_that_it_is_made_of() {
    let folder = Folder::new();
    let file = unpacked(&folder).join("usr/share/doc/tollgate/tollgate.cdx.json");
    // `make needs` fetches the schema
    assert_eq!(run(Command::new("python3").args(["-c", CYCLONEDX]).arg(&file)).trim(), "");
    let text = fs::read_to_string(file).unwrap();
    assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "where it was made");
    let listed: Value = serde_json::from_str(&text).unwrap();
    let named = |part: &Value| ["name", "version"].map(|field| part[field].as_str().unwrap().to_owned()).join(" v");
    let program = named(&listed["metadata"]["component"]);
    assert_eq!(program, concat!("tollgate v", env!("CARGO_PKG_VERSION")));
    let mut listed: BTreeSet<String> = listed["components"].as_array().unwrap().iter().map(named).collect();
    listed.insert(program);
    assert!(["pingora v", "tokio v"].iter().all(|name| listed.iter().any(|listed| listed.starts_with(name))));
    let tree = |edges: &str, depth: &str| -> BTreeSet<String> {
        let tree = ["tree", "--locked", "--offline", "--prefix", "none"];
        let tree = run(Command::new(env!("CARGO")).args(tree).args(["--edges", edges, "--depth", depth]));
        tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let missing: Vec<String> = tree("normal", "100").difference(&listed).cloned().collect();
    assert_eq!(missing, [""; 0]);
    let tests: Vec<String> = tree("dev", "1").difference(&tree("normal", "100")).cloned().collect();
    assert!(tests.len() > 4 && tests.iter().all(|name| !listed.contains(name)), "{tests:?}");
}
