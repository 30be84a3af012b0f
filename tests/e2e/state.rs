//! The counts of limits survive a restart, and an unusable state file does not keep the gateway from starting.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use crate::restarts::Lineage;
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::process::signal;
use crate::support::{Gateway, Origin, wait_until};

/// Three requests a day for each user.
const DAILY: &str = "{ algorithm: quota_reset, limit: 3, window: 1d, key: { header: x-user } }";
const STATE: &str = "state: { file: tollgate.state, every: 100ms }\n";

fn config(origin: &Origin, limit: &str) -> String {
    limited(origin, limit) + STATE
}

fn ask(gateway: &Gateway, user: &str) -> u16 {
    gateway.get("/", &[("x-user", user)]).status
}

fn file(gateway: &Gateway) -> PathBuf {
    gateway.folder.path().join("tollgate.state")
}

/// The names of all files of the gateway's folder.
fn files(gateway: &Gateway) -> Vec<OsString> {
    let entries = fs::read_dir(gateway.folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// The number of snapshots with this result: written or failed.
fn snapshots(gateway: &Gateway, result: &str) -> f64 {
    gateway.metrics().value("tollgate_state_snapshots_total", &[("result", result)]).unwrap()
}

/// Waits for a snapshot that begins after now.
fn wait_for_snapshot(gateway: &Gateway) {
    // The next snapshot may have begun already.
    let before = snapshots(gateway, "success");
    wait_until("two snapshots", || snapshots(gateway, "success") >= before + 2.0);
}

fn began_with(gateway: &Gateway) -> String {
    gateway.admin_get("/status").json()["state"]["recovery"]["result"].as_str().unwrap().to_owned()
}

#[test]
fn spent_tokens_stay_spent_after_a_restart() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!(began_with(&gateway), "absent");
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    assert_eq!(ask(&gateway, "ben"), 200);
    for _ in 0..3 {
        gateway.restart("TERM");
        assert_eq!(began_with(&gateway), "restored");
        assert_eq!(ask(&gateway, "ann"), 429);
    }
    assert_eq!([0; 3].map(|_| ask(&gateway, "ben")), [200, 200, 429]);
    assert_eq!(ask(&gateway, "eve"), 200);
    assert_eq!(gateway.metrics().value("tollgate_state_restores_total", &[("result", "restored")]), Some(1.0));
}

#[test]
fn a_crash_takes_back_to_the_last_snapshot() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    wait_for_snapshot(&gateway);
    gateway.restart("KILL");
    assert_eq!(began_with(&gateway), "restored");
    assert_eq!(ask(&gateway, "ann"), 429);
}

#[test]
fn a_process_that_is_killed_while_requests_finish_has_saved_what_it_had() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY).replace("100ms", "1h"));
    wait_until("the snapshot of the start", || snapshots(&gateway, "success") == 1.0);
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    let mut client = gateway.client();
    client.send_request("GET", "/stall", &[("x-user", "ben")]);
    origin.wait_for_count(4);
    let inode = || fs::metadata(file(&gateway)).unwrap().ino();
    let before = inode();
    gateway.process.signal("TERM");
    wait_until("another snapshot", || inode() != before);
    assert_eq!(gateway.process.exit_status(), None, "a request is in flight");
    gateway.restart("KILL");
    assert_eq!((began_with(&gateway), ask(&gateway, "ann")), ("restored".to_owned(), 429));
}

#[test]
fn the_file_is_for_its_owner_only_and_nothing_lies_beside_it() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    wait_for_snapshot(&gateway);
    gateway.end("TERM");
    assert_eq!(fs::metadata(file(&gateway)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(files(&gateway), ["tollgate.state", "tollgate.yaml"]);
}

#[test]
fn half_written_state_files_disturb_nobody() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    gateway.end("TERM");
    gateway.folder.write("tollgate.state.new", "half a snap");
    gateway.start_again();
    assert_eq!(ask(&gateway, "ann"), 429);
    wait_for_snapshot(&gateway);
    assert_eq!(snapshots(&gateway, "failure"), 0.0);
    gateway.end("TERM");
    assert_eq!(files(&gateway), ["tollgate.state", "tollgate.yaml"]);
}

#[test]
fn other_parameters_take_over_what_was_used() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    gateway.end("TERM");
    gateway.rewrite(&config(&origin, &DAILY.replace("limit: 3", "limit: 4")));
    gateway.start_again();
    assert_eq!([0; 2].map(|_| ask(&gateway, "ann")), [200, 429]);
    // With another key the old states mean other clients.
    gateway.end("TERM");
    gateway.rewrite(&config(&origin, &DAILY.replace("x-user", "x-other")));
    gateway.start_again();
    let other = || gateway.get("/", &[("x-other", "ann")]).status;
    assert_eq!([0; 4].map(|_| other()), [200, 200, 200, 429]);
}

#[test]
fn on_change_reset_starts_afresh_with_other_parameters_only() {
    let origin = Origin::start();
    let reset = DAILY.replace("limit: 3", "limit: 3, on_change: reset");
    let mut gateway = Gateway::start(&config(&origin, &reset));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    gateway.restart("TERM");
    assert_eq!(ask(&gateway, "ann"), 429);
    gateway.end("TERM");
    gateway.rewrite(&config(&origin, &reset.replace("limit: 3", "limit: 4")));
    gateway.start_again();
    assert_eq!([0; 5].map(|_| ask(&gateway, "ann")), [200, 200, 200, 200, 429]);
}

#[test]
fn a_limit_that_was_away_is_remembered() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    gateway.end("TERM");
    gateway.rewrite(&config(&origin, DAILY).replace("guard", "other"));
    gateway.start_again();
    assert_eq!(ask(&gateway, "ann"), 200);
    gateway.end("TERM");
    gateway.rewrite(&config(&origin, DAILY));
    gateway.start_again();
    assert_eq!(ask(&gateway, "ann"), 429);
}

#[test]
fn requests_that_end_with_their_process_hold_no_slot_of_the_next() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "{ algorithm: concurrency, limit: 1, key: { header: x-user } }"));
    let mut client = gateway.client();
    client.send_request("GET", "/stall", &[("x-user", "ann")]);
    origin.wait_for_count(1);
    assert_eq!(ask(&gateway, "ann"), 429);
    wait_for_snapshot(&gateway);
    gateway.restart("KILL");
    assert_eq!(ask(&gateway, "ann"), 200);
}

/// Starts with a damaged state file, in which `ann` had spent everything; `spoil` damages it.
#[track_caller]
fn refuses(spoil: impl FnOnce(&PathBuf), why: &str) -> Gateway {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    gateway.end("TERM");
    spoil(&file(&gateway));
    gateway.start_again();
    assert_eq!(began_with(&gateway), "refused");
    assert_eq!(gateway.metrics().value("tollgate_state_restores_total", &[("result", "refused")]), Some(1.0));
    let said = gateway.process.stderr();
    let line =
        said.lines().find(|line| line.contains("\"ERROR\"") && line.contains(why)).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("tollgate.state") && line.contains("starts afresh"), "{line}");
    assert_eq!(ask(&gateway, "ann"), 200);
    drop(origin);
    gateway
}

/// Changes the bytes of a file.
fn edit(path: &PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_state_cut_short_is_put_aside_and_everybody_starts_afresh() {
    let gateway = refuses(|path| edit(path, |bytes| bytes.truncate(bytes.len() - 1)), "is cut short");
    assert!(gateway.folder.path().join("tollgate.state.refused").exists());
    wait_for_snapshot(&gateway);
    assert_eq!(snapshots(&gateway, "failure"), 0.0);
}

#[test]
fn a_refused_state_that_cannot_be_moved_is_not_written_over() {
    let mut cut = Vec::new();
    let spoil = |path: &PathBuf| {
        edit(path, |bytes| bytes.truncate(bytes.len() - 1));
        cut = fs::read(path).unwrap();
        fs::create_dir(path.with_extension("state.refused")).unwrap();
        (2..=9).for_each(|number| fs::write(path.with_extension(format!("state.refused.{number}")), "").unwrap());
    };
    let gateway = refuses(spoil, "is cut short");
    assert!(gateway.process.stderr().contains("there are 9 of them already: remove some"));
    wait_until("failures", || snapshots(&gateway, "failure") >= 2.0);
    assert_eq!((fs::read(file(&gateway)).unwrap(), snapshots(&gateway, "success")), (cut.clone(), 0.0));
    let said = gateway.process.stderr();
    assert!(said.contains("was refused at the start, and is not overwritten: move it away"), "{said}");
    assert!(said.contains(r#""after_restart":"every key starts afresh""#), "{said}");
    assert!(!said.contains("limits continue"), "{said}");
    let mut lineage = Lineage::of(gateway);
    lineage.upgrade();
    let gateway = &lineage.gateway;
    wait_until("failures of the successor", || snapshots(gateway, "failure") >= 2.0);
    assert_eq!((fs::read(file(gateway)).unwrap(), snapshots(gateway, "success")), (cut, 0.0));
    fs::remove_file(file(gateway)).unwrap();
    wait_for_snapshot(gateway);
}

#[test]
fn one_process_writes_a_state_file_until_it_ends_or_hands_over() {
    let origin = Origin::start();
    let first = Gateway::start(&config(&origin, DAILY));
    wait_for_snapshot(&first);
    let shared = format!("state: {{ file: \"{}\", every: 100ms }}\n", file(&first).display());
    let second = Gateway::start(&(limited(&origin, DAILY) + &shared));
    wait_until("failures", || snapshots(&second, "failure") >= 2.0);
    assert!(second.process.stderr().contains("another process writes its state to this file"));
    wait_for_snapshot(&first);
    assert_eq!((snapshots(&first, "failure"), snapshots(&second, "success")), (0.0, 0.0));
    let mut first = Lineage::of(first);
    first.upgrade();
    wait_for_snapshot(&first.gateway);
    assert_eq!((snapshots(&first.gateway, "failure"), snapshots(&second, "success")), (0.0, 0.0));
    // a successor takes over a file that its process writes, and no other
    let mut second = Lineage::of(second);
    second.upgrade();
    wait_until("failures", || snapshots(&second.gateway, "failure") >= 2.0);
    assert_eq!((snapshots(&first.gateway, "failure"), snapshots(&second.gateway, "success")), (0.0, 0.0));
    signal(first.current, "TERM");
    wait_for_snapshot(&second.gateway);
}

#[test]
fn an_empty_file_is_a_state_file_that_was_not_written_yet() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, DAILY));
    gateway.end("TERM");
    edit(&file(&gateway), Vec::clear);
    gateway.start_again();
    assert_eq!(began_with(&gateway), "absent");
    assert!(!gateway.process.stderr().contains("\"ERROR\""), "{}", gateway.process.stderr());
    assert!(!gateway.folder.path().join("tollgate.state.refused").exists());
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    wait_for_snapshot(&gateway);
    gateway.restart("KILL");
    assert_eq!(ask(&gateway, "ann"), 429);
}

#[test]
fn a_state_cut_short_within_its_mark_is_put_aside() {
    let gateway = refuses(|path| edit(path, |bytes| bytes.truncate(5)), "is cut short");
    assert!(gateway.folder.path().join("tollgate.state.refused").exists());
}

#[test]
fn a_state_of_another_version_is_refused() {
    refuses(|path| edit(path, |bytes| bytes[15] = 200), "is of version 200, and this program reads version 3");
}

#[test]
fn a_state_with_a_flipped_byte_is_refused() {
    refuses(
        |path| {
            edit(path, |bytes| {
                let last = bytes.len() - 20;
                bytes[last] ^= 1;
            })
        },
        "is damaged",
    );
}

#[test]
fn a_state_that_goes_on_behind_its_end_is_refused() {
    refuses(|path| edit(path, |bytes| bytes.push(0)), "is damaged: bytes follow its end");
}

#[test]
fn a_file_that_is_something_else_is_left_alone() {
    let gateway = refuses(|path| fs::write(path, "listeners: []\n# precious\n").unwrap(), "is not a snapshot");
    wait_until("a failure", || snapshots(&gateway, "failure") >= 2.0);
    assert_eq!(fs::read_to_string(file(&gateway)).unwrap(), "listeners: []\n# precious\n");
    assert_eq!(snapshots(&gateway, "success"), 0.0);
    let error = gateway.admin_get("/status").json()["state"]["last_error"].to_string();
    assert!(error.contains("is not a snapshot of tollgate, and is not overwritten: move it away"), "{error}");
    assert!(gateway.process.stderr().contains(r#""after_restart":"every key starts afresh""#));
}

#[test]
fn a_short_file_that_is_something_else_is_neither_moved_nor_written_over() {
    let gateway = refuses(|path| fs::write(path, "precious\n").unwrap(), "is not a snapshot");
    assert_eq!([0; 3].map(|_| ask(&gateway, "ann") == 429), [false, false, true], "what is counted stays in memory");
    wait_until("a failure", || snapshots(&gateway, "failure") >= 2.0);
    assert_eq!(fs::read_to_string(file(&gateway)).unwrap(), "precious\n");
    assert!(!gateway.folder.path().join("tollgate.state.refused").exists());
    let state = gateway.admin_get("/status").json()["state"].clone();
    assert!(state["recovery"]["error"].to_string().contains("is not a snapshot of tollgate"), "{state}");
    assert!(state["last_error"].to_string().contains("is not overwritten"), "{state}");
}

#[test]
fn a_file_that_cannot_be_read_is_not_written_over() {
    let gateway = refuses(
        |path| {
            fs::remove_file(path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        },
        "tollgate.state cannot be read: it is a pipe",
    );
    wait_until("a failure", || snapshots(&gateway, "failure") >= 1.0);
    assert!(!fs::metadata(file(&gateway)).unwrap().is_file());
}

#[test]
fn a_directory_in_the_place_of_the_state_is_told_of_and_stops_nobody() {
    let gateway = refuses(
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        "tollgate.state cannot be read: it is a directory",
    );
    wait_until("a failure", || snapshots(&gateway, "failure") >= 1.0);
}

#[test]
fn a_folder_that_is_missing_is_told_of_until_it_is_there() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&(limited(&origin, DAILY) + "state: { file: gone/s, every: 100ms }\n"));
    wait_until("failures", || snapshots(&gateway, "failure") >= 2.0);
    let said = gateway.process.stderr();
    assert!(said.contains("cannot write the state to gone/s: No such file"), "{said}");
    assert!(said.contains(r#""after_restart":"every key starts afresh""#), "{said}");
    let is_successful = || gateway.metrics().value("tollgate_state_last_snapshot_successful", &[]);
    assert_eq!(is_successful(), Some(0.0));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    fs::create_dir(gateway.folder.path().join("gone")).unwrap();
    wait_for_snapshot(&gateway);
    assert!(gateway.admin_get("/status").json()["state"]["last_error"].is_null());
    assert_eq!(is_successful(), Some(1.0));
    fs::create_dir(gateway.folder.path().join("gone/s.new")).unwrap();
    let says = || gateway.process.stderr().contains(r#""after_restart":"limits continue from the last snapshot""#);
    wait_until("a failure after a snapshot", says);
    gateway.restart("KILL");
    assert_eq!(ask(&gateway, "ann"), 429);
}

#[test]
fn a_reload_changes_where_the_state_is_kept() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&(limited(&origin, DAILY)));
    assert_eq!([0; 4].map(|_| ask(&gateway, "ann")), [200, 200, 200, 429]);
    assert_eq!(began_with(&gateway), "nothing");
    assert_eq!(gateway.metrics().value("tollgate_state_last_snapshot_successful", &[]), Some(1.0));
    gateway.rewrite(&config(&origin, DAILY));
    assert_eq!(gateway.reload().status, 200);
    wait_for_snapshot(&gateway);
    let written = gateway.admin_get("/status").json()["state"]["last_snapshot"].clone();
    assert_eq!(written["keys"], 1);
    assert_eq!(written["bytes"], fs::metadata(file(&gateway)).unwrap().size());
    gateway.restart("KILL");
    assert_eq!(ask(&gateway, "ann"), 429);
}

#[test]
fn no_snapshot_is_reported_once_a_reload_has_removed_the_state_file() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, DAILY));
    let last = || {
        let names = ["last_snapshot_timestamp_seconds", "snapshot_duration_seconds", "snapshot_size_bytes"];
        names.map(|name| gateway.metrics().value(&format!("tollgate_state_{name}"), &[]).unwrap())
    };
    wait_for_snapshot(&gateway);
    assert!(last().iter().all(|value| *value > 0.0), "{:?}", last());
    // a directory in the way makes every later snapshot fail
    fs::create_dir(gateway.folder.path().join("tollgate.state.new")).unwrap();
    let status = || gateway.admin_get("/status").json()["state"].clone();
    wait_until("an error", || status()["last_error"].is_string());
    gateway.rewrite(&limited(&origin, DAILY));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(last(), [0.0; 3]);
    for field in ["file", "last_snapshot", "last_error"] {
        assert!(status()[field].is_null(), "{field}: {}", status());
    }
}

#[test]
fn several_limits_are_remembered_each_for_itself() {
    let origin = Origin::start();
    let limits = format!(
        "limits:
  guard: {{ algorithm: gcra, rate: 1/d, burst: 2, key: {{ header: x-user }} }}
  log: {{ algorithm: sliding_log, limit: 3, window: 1d, key: client_address }}
{}",
        ALL_GUARDED.replace("[guard]", "[guard, log]")
    );
    let mut gateway = Gateway::start(&format!("{}{limits}{STATE}", origin.upstream()));
    assert_eq!([0; 3].map(|_| ask(&gateway, "ann")), [200, 200, 429]);
    gateway.restart("TERM");
    assert_eq!(ask(&gateway, "ann"), 429);
    assert_eq!([0; 2].map(|_| ask(&gateway, "ben")), [200, 429]);
}
