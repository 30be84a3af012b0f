//! Ways in which a file changes: replaced, removed, switched by a symbolic link, written in pieces; and paths that are no
//! regular file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use crate::support::gateway::limited;
use crate::support::{Gateway, Origin, wait_until};

fn burst(origin: &Origin, burst: u32) -> String {
    limited(origin, &format!("{{ algorithm: gcra, rate: 1/d, burst: {burst}, key: {{ header: x-key }} }}"))
}

/// The burst in force, from the fields of a response.
fn in_force(gateway: &Gateway) -> u64 {
    let answer = gateway.get("/", &[("x-key", "probe")]);
    let policy = answer.field("ratelimit-policy").unwrap_or_default().to_owned();
    policy.split(";q=").nth(1).and_then(|rest| rest.split(';').next()).unwrap().parse().unwrap()
}

fn wait_for_burst(gateway: &Gateway, burst: u64) {
    wait_until(&format!("a burst of {burst} in force"), || in_force(gateway) == burst);
}

fn failures(gateway: &Gateway) -> f64 {
    gateway.metrics().value("tollgate_config_reloads_total", &[("result", "failure")]).unwrap()
}

fn last_errors(gateway: &Gateway) -> String {
    gateway.admin_get("/status").json()["reload"]["last_attempt"]["errors"].to_string()
}

#[test]
fn files_are_followed_however_they_are_replaced() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 10));
    let path = gateway.folder.path().join("tollgate.yaml");

    let other = gateway.folder.write(".tollgate.yaml.swp", gateway.complete_config(&burst(&origin, 11)));
    fs::rename(other, &path).unwrap();
    wait_for_burst(&gateway, 11);

    fs::rename(&path, gateway.folder.path().join("tollgate.yaml~")).unwrap();
    gateway.rewrite(&burst(&origin, 12));
    wait_for_burst(&gateway, 12);

    fs::remove_file(&path).unwrap();
    gateway.rewrite(&burst(&origin, 13));
    wait_for_burst(&gateway, 13);
    assert_eq!(failures(&gateway), 0.0);
}

#[test]
fn gateways_with_different_files_of_customers_have_different_hashes() {
    let origin = Origin::start();
    let customers = "customers: { identify: [{ bearer: true }], directory: { file: c.csv }, anonymous: { plan: p } }\n";
    let config = format!("{}{customers}plans: [p]\n", burst(&origin, 10));
    let rows = "credential,customer,plan\nk,acme,p\n";
    let [one, other] = [(); 2].map(|()| Gateway::start_with(&config, &[("c.csv", rows)], &[]));
    let hash = |gateway: &Gateway| {
        let metrics = gateway.metrics();
        let [info] = metrics.all("tollgate_directory_info") else { panic!("one hash") };
        info.labels["hash"].clone()
    };
    assert_eq!(hash(&one), hash(&other));
    let before = hash(&one);
    one.folder.write("c.csv", format!("{rows}k2,globex,p\n"));
    wait_until("another hash", || hash(&one) != hash(&other));
    other.folder.write("c.csv", format!("{rows}k2,globex,p\n"));
    wait_until("the same hash", || hash(&one) == hash(&other));
    one.folder.write("c.csv", rows);
    wait_until("the first hash", || hash(&one) == before);
    assert_eq!(Gateway::start(&burst(&origin, 10)).metrics().all("tollgate_directory_info").len(), 0);
}

#[test]
fn a_file_that_changes_all_the_time_holds_up_no_other() {
    let origin = Origin::start();
    let customers = "customers: { identify: [{ bearer: true }], directory: { file: c.csv }, anonymous: { plan: p } }\n";
    let config = |limit| format!("{}{customers}plans: [p]\n", burst(&origin, limit));
    let rows = "credential,customer,plan\nk,acme,p\n";
    let gateway = Gateway::start_with(&config(10), &[("c.csv", rows)], &[]);
    gateway.rewrite(&config(11));
    wait_until("the configuration in force while another file changes", || {
        fs::rename(gateway.folder.write("c.new", rows), gateway.folder.path().join("c.csv")).unwrap();
        in_force(&gateway) == 11
    });
    let said = gateway.process.stderr();
    let warning = said.lines().find(|line| line.contains("changes all the time")).unwrap_or_else(|| panic!("{said}"));
    assert!(warning.contains("c.csv"), "{warning}");
}

#[test]
fn the_links_of_a_mounted_config_map_are_followed() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 10));
    let folder = gateway.folder.path().to_owned();
    let publish = |version: u32, burst_: u32| {
        let directory = folder.join(format!("..v{version}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("tollgate.yaml"), gateway.complete_config(&burst(&origin, burst_))).unwrap();
        symlink(format!("..v{version}"), folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    publish(1, 11);
    symlink("..data/tollgate.yaml", folder.join("link")).unwrap();
    fs::rename(folder.join("link"), folder.join("tollgate.yaml")).unwrap();
    wait_for_burst(&gateway, 11);
    for version in 2..6 {
        publish(version, 10 + version);
        fs::remove_dir_all(folder.join(format!("..v{}", version - 1))).unwrap();
        wait_for_burst(&gateway, u64::from(10 + version));
    }
    assert_eq!(failures(&gateway), 0.0);
}

#[test]
fn a_bad_file_changes_nothing_and_a_good_one_after_it_does() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 10));
    let good = gateway.complete_config(&burst(&origin, 11));
    let (half, _) = good.split_at(good.len() / 2);
    gateway.folder.write("tollgate.yaml", half);
    wait_until("the half of it to be refused", || failures(&gateway) == 1.0);
    assert_eq!(in_force(&gateway), 10);
    gateway.folder.write("tollgate.yaml", &good);
    wait_for_burst(&gateway, 11);
    gateway.folder.write("tollgate.yaml", "");
    wait_until("nothing to be refused", || failures(&gateway) == 2.0);
    gateway.rewrite(&burst(&origin, 12));
    wait_for_burst(&gateway, 12);
    // The same text again, or a new modification time alone, is no change.
    let applied = || gateway.metrics().value("tollgate_config_reloads_total", &[("result", "success")]);
    let before = applied();
    gateway.rewrite(&burst(&origin, 12));
    gateway.folder.write("other.yaml", "");
    gateway.rewrite(&burst(&origin, 13));
    wait_for_burst(&gateway, 13);
    assert_eq!(applied(), before.map(|before| before + 1.0));
}

#[test]
fn unreadable_files_change_nothing_and_are_reported() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 10));
    let path = gateway.folder.path().join("tollgate.yaml");
    let clear = || {
        drop(fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)));
    };
    let bomb = (1..10).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, level| {
        format!("{text}a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", "))
    });
    let cases: [(&str, &str, &dyn Fn()); 7] = [
        ("a missing file", "No such file", &|| clear()),
        ("a directory", "it is a directory", &|| fs::create_dir(&path).unwrap()),
        ("a pipe", "it is a pipe", &|| {
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        }),
        ("a link to itself", "cannot be read", &|| symlink("tollgate.yaml", &path).unwrap()),
        ("hundred megabytes", "is larger than", &|| fs::write(&path, vec![b'#'; 100 << 20]).unwrap()),
        ("an alias bomb", "the file holds more than", &|| fs::write(&path, &bomb).unwrap()),
        ("bytes that are no text", "is not in UTF-8", &|| fs::write(&path, b"a: \xff\n").unwrap()),
    ];
    for (name, words, make) in cases {
        clear();
        make();
        wait_until(name, || last_errors(&gateway).contains(words));
        assert_eq!(gateway.metrics().value("tollgate_config_last_reload_successful", &[]), Some(0.0));
        assert_eq!(in_force(&gateway), 10, "{name}");
        assert_eq!(gateway.reload().status, 422);
    }
    clear();
    gateway.rewrite(&burst(&origin, 11));
    wait_for_burst(&gateway, 11);
}

#[test]
fn a_file_that_may_not_be_read_is_told() {
    let origin = Origin::start();
    let gateway = Gateway::start(&burst(&origin, 10));
    let path = gateway.folder.path().join("tollgate.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
    // The user that runs the tests may be root, which permissions do not stop.
    if fs::read(&path).is_err() {
        wait_until("the refusal", || last_errors(&gateway).contains("Permission denied"));
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    gateway.rewrite(&burst(&origin, 11));
    wait_for_burst(&gateway, 11);
}

#[test]
fn included_files_are_followed_and_windows_keep_what_they_counted() {
    let origin = Origin::start();
    let windows = |hour: u32| {
        let windows = format!("[{{ limit: {hour}, window: 1h }}, {{ limit: 10, window: 1d }}]");
        format!("limits: {{ budget: {{ key: {{ header: x-key }}, algorithm: quota_reset, windows: {windows} }} }}\n")
    };
    let defaults = "include: [\"limits-*.yaml\"]\ndefaults: { routes: { upstream: origin, limits: [all-limits] } }\n";
    let groups = "limit_groups: { all-limits: [budget] }\nroutes: [{ name: all }]\n";
    // other files come and go beside those that are included
    let main = format!("{defaults}{}{groups}state: {{ file: t.state, every: 100ms }}\n", origin.upstream());
    let gateway = Gateway::start_with(&main, &[("limits-a.yaml", &windows(1))], &[]);
    let ask = || gateway.get("/", &[("x-key", "one")]);
    let applied = || gateway.metrics().value("tollgate_config_reloads_total", &[("result", "success")]).unwrap();
    let before = applied();
    assert_eq!(ask().status, 200);
    let denied = ask();
    assert_eq!(denied.status, 429);
    let told = denied.field("ratelimit").unwrap_or_default().to_owned();
    assert!(told.contains("\"budget/1h\";r=0") && told.contains("\"budget/1d\";r=9"), "all or none: {told}");

    gateway.folder.write("limits-a.yaml", windows(2));
    wait_until("the other quota is in force", || ask().status == 200);
    let told = ask().field("ratelimit").unwrap_or_default().to_owned();
    assert!(told.contains("\"budget/1h\";r=0") && told.contains("\"budget/1d\";r=8"), "counts are kept: {told}");

    let own = "upstream: origin, limits: [], match: { path: /free }";
    let added = gateway.folder.write("limits-b.yaml", format!("routes: [{{ name: free, {own} }}]\n"));
    wait_until("the file that was added is in force", || gateway.get("/free", &[("x-key", "one")]).status == 200);
    gateway.folder.write("limits-b.yaml", format!("routes: [{{ name: all, {own} }}]\n"));
    wait_until("the name that is there twice is told", || failures(&gateway) > 0.0);
    let errors = last_errors(&gateway);
    assert!(errors.contains("limits-b.yaml:1:") && errors.contains("the first in "), "{errors}");
    fs::remove_file(added).unwrap();
    wait_until("the file that was removed is not", || gateway.get("/free", &[("x-key", "one")]).status == 429);
    assert_eq!(applied(), before + 3.0, "one reload for each change");
}

#[test]
fn a_reload_that_finds_no_change_tells_the_warnings_again() {
    let origin = Origin::start();
    let unused = "state: { file: tollgate.state }\nupstreams: { unused: { nodes: [\"127.0.0.1:1\"] },";
    let gateway = Gateway::start(&burst(&origin, 10).replacen("upstreams: {", unused, 1));
    let logged = || gateway.process.stderr().matches("is an upstream that no route uses").count();
    wait_until("the warning of the start", || logged() == 1);
    let report = gateway.reload().json();
    let shown = gateway.admin_get("/status").json()["reload"]["last_attempt"].clone();
    for attempt in [report, shown] {
        assert_eq!((&attempt["result"], attempt["warnings"].as_array().map(Vec::len)), (&json!("unchanged"), Some(1)));
        assert!(attempt["warnings"][0].as_str().unwrap().contains("is an upstream that no route uses"), "{attempt}");
    }
    wait_until("the warning of the reload", || logged() == 2);
}
