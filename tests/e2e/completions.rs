//! The commands as shells and `man` know them: completions and manual pages.

use std::process::Command;

use crate::support::Folder;

const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// The standard output of a program that has to succeed.
fn printed(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn bash_completes_commands_and_options() {
    let complete = |words: &str, at: usize, last: &str| {
        let script = format!(
            "source <('{TOLLGATE}' completions bash); COMP_WORDS=({words}); COMP_CWORD={at}; \
             _tollgate tollgate '{last}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        printed(Command::new("bash").args(["--norc", "-c", &script]))
    };
    assert_eq!(complete("tollgate sim", 1, "sim"), "simulate\n");
    assert_eq!(complete("tollgate run --conf", 2, "--conf"), "--config\n");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = printed(Command::new(TOLLGATE).args(["completions", shell]));
        assert!(script.contains("simulate") && script.contains("upstream"), "{shell}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = Folder::new();
    let pages = folder.path().join("share/man1");
    assert_eq!(printed(Command::new(TOLLGATE).arg("man").arg(&pages)), "");
    let help = printed(Command::new(TOLLGATE).arg("--help"));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands =
        commands.lines().take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().next().unwrap());
    let commands: Vec<&str> = commands.filter(|command| *command != "help").collect();
    assert!(commands.contains(&"run") && commands.len() > 10, "{commands:?}");
    for command in commands {
        let page = std::fs::read_to_string(pages.join(format!("tollgate-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH tollgate-{command} 1")), "{command}: {page}");
    }
    std::fs::write(folder.path().join("c.bash"), "").unwrap();
    let done = Command::new(TOLLGATE).arg("man").arg(folder.path().join("c.bash")).output().unwrap();
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).ends_with("c.bash is not a folder\n"));
    // the error names the folder that cannot be made
    let done = Command::new(TOLLGATE).args(["man", "/dev/null/man1"]).output().unwrap();
    assert!(
        !done.status.success()
            && String::from_utf8_lossy(&done.stderr).starts_with("/dev/null/man1 cannot be written: ")
    );
}

#[test]
fn a_reader_may_close_the_output_early_and_a_full_disk_is_an_error() {
    for command in ["schema", "completions bash"] {
        let early = format!("'{TOLLGATE}' {command} | true");
        let done = Command::new("bash").args(["--norc", "-c", &early]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{command}");
        let full = format!("'{TOLLGATE}' {command} > /dev/full");
        let done = Command::new("bash").args(["--norc", "-c", &full]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.starts_with("cannot write to standard output: "), "{command}: {said}");
    }
}
