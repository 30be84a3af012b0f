//! The Debian package of a build. `make package-test` installs one, which takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::Folder;

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Packages the program that the tests run with, and unpacks that.
fn unpacked(folder: &Folder) -> PathBuf {
    let mut script = Command::new("scripts/package.sh");
    script.arg(env!("CARGO_BIN_EXE_tollgate")).arg(folder.path());
    // compressing takes long
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
