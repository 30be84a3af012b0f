//! The output of the command, and its messages about wrong logs and flags.

use std::io::Write;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::Folder;

pub const CONFIG: &str = "listeners: [{ address: \"127.0.0.1:1\" }]
upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }
limits: { guard: { key: client_address, algorithm: quota_reset, limit: 2, window: 1h } }
routes:
  - { name: all, upstream: origin, limits: [guard] }
  - { name: free, upstream: origin, match: { path: /free } }
";

pub fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("tollgate.yaml", CONFIG);
    folder
}

/// A log line of a request from 192.0.2.`from` in this second.
fn line(second: u32, from: u8, path: &str) -> String {
    format!(
        "192.0.2.{from} - - [10/Oct/2000:13:{:02}:{:02} +0000] \"GET {path} HTTP/1.1\" 200 1\n",
        second / 60,
        second % 60
    )
}

/// A log with four limited requests of 192.0.2.1, one of 192.0.2.2, and one to `/free`.
pub fn log() -> String {
    let lines = [(0, 1, "/"), (1, 1, "/"), (61, 1, "/a"), (62, 1, "/b"), (70, 2, "/"), (80, 1, "/free")];
    lines.map(|(second, from, path)| line(second, from, path)).concat()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

pub const REPLAY: [&str; 2] = ["--config", "tollgate.yaml"];

pub fn report(folder: &Folder, arguments: &[&str]) -> serde_json::Value {
    let printed = folder.replayed(&[&REPLAY, &["--format", "json"], arguments].concat());
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn a_reader_may_close_the_output_early() {
    let folder = folder();
    let route =
        |number: u32| format!("  - {{ name: route-{number}, upstream: origin, match: {{ path: /{number} }} }}\n");
    // more rows than a buffer holds
    folder.write("tollgate.yaml", format!("{CONFIG}{}", (0..1_000).map(route).collect::<String>()));
    folder.write("access.log", log());
    for format in ["table", "json", "csv"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.current_dir(folder.path()).args(["replay", "--format", format, "access.log"]).args(REPLAY);
        let mut replay = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(replay.stdout.take());
        let done = replay.wait_with_output().unwrap();
        assert!(done.status.success(), "{format}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn the_report_says_who_is_denied_how_often_and_when() {
    let folder = folder();
    folder.write("access.log", log());
    let table = folder.replayed(&[&REPLAY[..], &["access.log"]].concat());
    assert_eq!(table, include_str!("../fixtures/replay/table.txt"));
    let report = report(&folder, &["access.log"]);
    let rules = &report["rules"];
    assert_eq!((&rules["offered"], &rules["denied"], &rules["share"]), (&6.into(), &2.into(), &(1.0 / 3.0).into()));
    let plan = &rules["limits"][0]["plans"][0];
    assert_eq!((&plan["offered"], &plan["denied"], &plan["share"]), (&5.into(), &2.into(), &0.4.into()));
    assert_eq!(
        (&plan["first_denied"], &plan["last_denied"]),
        (&"2000-10-10T13:01:01Z".into(), &"2000-10-10T13:01:02Z".into())
    );
    assert_eq!(plan["worst_minute"], serde_json::json!({ "begins": "2000-10-10T13:01:00Z", "denied": 2 }));
    assert_eq!(rules["limits"][0]["top"][0]["who"], "192.0.2.1");
    let csv = folder.replayed(&[&REPLAY[..], &["--format", "csv", "access.log"]].concat());
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(
        rows[1],
        "tollgate.yaml,,guard,,deny,5,2,0.4,2000-10-10T13:01:01Z,2000-10-10T13:01:02Z,2000-10-10T13:01:00Z,2"
    );
    assert!(
        rows[2].starts_with("tollgate.yaml,all,,,,5,2,") && rows[3].starts_with("tollgate.yaml,free,,,,1,0,0,,"),
        "{csv}"
    );
}

#[test]
fn paths_that_take_no_route_are_named_by_their_first_segments() {
    let folder = folder();
    folder.write(
        "tollgate.yaml",
        CONFIG.replace("upstream: origin, limits", "upstream: origin, match: { path: / }, limits"),
    );
    let paths =
        ["/v2/a", "/v2/b?key=secret", "http://a.test/v2", "//v2", "/x;y", "/x;y", "/z", "/%F0%9F/1", "/z", "/z"];
    let lines = (0..).zip(paths).map(|(second, path)| line(second, 1, path));
    folder.write("access.log", lines.collect::<String>());
    let report = report(&folder, &["access.log"]);
    let notes = report["rules"]["notes"].to_string() + &report["notes"].to_string();
    assert!(notes.contains("10 requests take no route: /v2 (4), /z (3), /x;y (2) and others"), "{notes}");
}

#[test]
fn nginx_writes_lines_in_the_documented_format_that_need_no_mapping() {
    let page = std::fs::read_to_string("docs/replay.md").unwrap();
    let (_, block) = page.split_once("log_format tollgate escape=json").unwrap();
    let mut line: String = block.split_once(';').unwrap().0.split('\'').skip(1).step_by(2).collect();
    for (variable, value) in [
        ("msec", "971211600.123"),
        ("request_time", "0.250"),
        ("request_method", "GET"),
        ("request_uri", "/free?page=2"),
        ("http_host", "a.test"),
        ("status", "200"),
        ("body_bytes_sent", "57"),
        ("content_length", ""),
        ("remote_addr", "192.0.2.7"),
        ("remote_user", ""),
        ("http_x_api_key", "k-ann"),
    ] {
        assert!(
            line.contains(&format!("${variable}\"")) || line.contains(&format!("${variable},")),
            "{variable}: {line}"
        );
        line = line
            .replace(&format!("${variable}\""), &format!("{value}\""))
            .replace(&format!("${variable},"), &format!("{value},"));
    }
    assert!(!line.contains('$'), "{line}");
    let folder = Folder::new();
    folder.write(
        "tollgate.yaml",
        CONFIG.replace("client_address", "customer")
            + "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\nplans: [many]\n",
    );
    folder.write("customers.csv", "credential,customer,plan\nk-ann,ann,many\n");
    folder.write("access.log", line);
    let report = report(&folder, &["--decisions", "decisions.csv", "access.log"]);
    assert_eq!(report["unreadable"], 0, "{report}");
    let rows = folder.rows("decisions.csv");
    assert_eq!((&*rows[0]["route"], &*rows[0]["caller"]), ("free", "ann"));
    assert!(rows[0]["time"].starts_with("2000-10-10T20:59:59.873"), "{}", rows[0]["time"]);
}

#[test]
fn logs_may_be_packed_several_and_on_standard_input() {
    let folder = folder();
    let (head, tail): (Vec<String>, Vec<String>) = {
        let lines: Vec<String> = log().lines().map(|line| format!("{line}\n")).collect();
        let (head, tail) = lines.split_at(3);
        (head.to_vec(), tail.to_vec())
    };
    folder.write("access.log", tail.concat());
    // replay detects gzip by the content, not by the name
    folder.write("access.log.1", gzip(&head.concat()));
    let expected = report(&folder, &["access.log", "access.log.1"]);
    assert_eq!(
        (&expected["lines"], &expected["rules"]["denied"], &expected["out_of_order"]),
        (&6.into(), &2.into(), &0.into())
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(folder.path())
        .args(["replay", "--config", "tollgate.yaml", "--format", "json", "access.log", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // two gzip members in a row are one stream, and zeros behind a member are padding
    let padding = vec![0; 100_000];
    let packed = [gzip(&head[..1].concat()), padding.clone(), gzip(&head[1..].concat()), padding].concat();
    child.stdin.take().unwrap().write_all(&packed).unwrap();
    let output = child.wait_with_output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["rules"], expected["rules"]);
}

#[test]
fn lines_that_cannot_be_used_are_counted_and_the_first_are_shown() {
    let folder = folder();
    let garbage: String = (0..9).map(|number| format!("what is {number}?\n")).collect();
    folder.write("access.log", format!("{{\"time\":\n{}{garbage}{}", log(), line(5, 1, "/")));
    let report = report(&folder, &["access.log"]);
    assert_eq!(
        (&report["lines"], &report["unreadable"], &report["rules"]["offered"]),
        (&17.into(), &10.into(), &7.into())
    );
    let first: Vec<&str> =
        report["unreadable_first"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!(first.len(), 5);
    assert!(first[0].starts_with("access.log:1: is no JSON object: "), "{first:?}");
    assert_eq!(first[1], "access.log:8: is neither common or combined log format nor JSON");
    // the last request has an earlier time than the one before
    assert_eq!(report["out_of_order"], 1);
    let note = "1 request out of order, by 75s at most: each came at the time of the one before it; is a clock wrong, or are \
                these logs of several servers in one file?";
    assert!(report["notes"].as_array().unwrap().contains(&note.into()), "{}", report["notes"]);
}

#[test]
fn two_configurations_are_compared_request_by_request() {
    let folder = folder();
    folder.write("access.log", log());
    folder.write("old.yaml", CONFIG.replace("limit: 2", "limit: 3").replace("client_address", "all"));
    let flags = ["--against", "old.yaml", "--decisions", "decisions.csv", "--html", "page.html", "access.log"];
    let found = report(&folder, &flags);
    let difference = &found["comparison"];
    let counts = ["neither", "both", "only_first", "only_second"].map(|name| difference[name].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 1, 1]);
    assert_eq!(difference["denied_only_here"]["examples"][0], "access.log:3 at 2000-10-10T13:01:01Z: denied by guard");
    assert_eq!(difference["denied_only_there"]["top"][0]["who"], "192.0.2.2");
    let rows = folder.rows("decisions.csv");
    let decided: Vec<[&str; 3]> =
        rows.iter().map(|row| ["line", "decision", "against_decision"].map(|name| row[name].as_str())).collect();
    assert_eq!(
        decided,
        [
            ["1", "admitted", "admitted"],
            ["2", "admitted", "admitted"],
            ["3", "denied", "admitted"],
            ["4", "denied", "denied"],
            ["5", "admitted", "denied"],
            ["6", "unlimited", "unlimited"]
        ]
    );
    assert!(rows[2]["retry_after_ns"] == "3539000000000" && rows[0]["wait_ns"] == "0", "{rows:?}");
    let page = folder.read("page.html");
    assert!(page.contains("<svg") && page.contains("192.0.2.2") && page.ends_with("</html>\n"));
    // the page loads nothing: its only address is the name of a namespace
    assert_eq!(page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "").matches("http").count(), 0, "{page}");
}

#[test]
fn the_exit_status_tells_whether_too_much_was_denied() {
    let folder = folder();
    folder.write("access.log", log());
    folder.write("old.yaml", CONFIG.replace("limit: 2", "limit: 3"));
    let against =
        "16.667 % of the requests would be denied that the other rules may let pass: more than --fail-if-denied 16%";
    for (flags, status, says) in [
        (
            &["--fail-if-denied", "33.3%"][..],
            3,
            "33.333 % of the requests would be denied: more than --fail-if-denied 33.3%",
        ),
        (&["--fail-if-denied", "33.4%"], 0, ""),
        (&["--fail-if-denied", "16%", "--against", "old.yaml"], 3, against),
        (&["--fail-if-denied", "17%", "--against", "old.yaml"], 0, ""),
        (&["--fail-if-denied", "17%", "--host", "/"], 1, "no request gets as far as the limits"),
        (&["--fail-if-denied", "17"], 2, "expected a share from 0% to 100%"),
        (&["--fail-if-denied", "101%"], 2, "expected a share from 0% to 100%"),
    ] {
        let output = folder.replay(&[&REPLAY, flags, &["access.log"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{flags:?}: {said}");
        assert!(said.contains(says), "{flags:?}: {said}");
    }
}

#[test]
fn errors_in_logs_and_flags_are_named() {
    let folder = folder();
    folder.write("empty.log", "\n\n");
    folder.write("page.html", "a page");
    folder.write("garbage.log", "one\ntwo\n");
    folder.write("access.log", log());
    let packed = gzip(&log().repeat(100));
    folder.write("cut.log", &packed[..packed.len() - 20]);
    folder.write("tail.log", [&packed[..], b"\0garbage"].concat());
    folder.write("other.log", b"\x28\xb5\x2f\xfdxxxxxxxx");
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    for (flags, status, says) in [
        (&["missing.log"][..], 1, "cannot open the log missing.log: No such file"),
        (&["logs"], 1, "logs is a directory: name the logs in it"),
        (&["-", "access.log", "-"], 1, "standard input (`-`) is named twice, and can be read once"),
        (&["empty.log"], 1, "no line in empty.log"),
        (&["garbage.log"], 1, "none of 2 lines can be used; the first: garbage.log:1: is neither common"),
        (&["cut.log"], 1, "cut.log is cut short: its gzip data ends in the middle, after line "),
        (&["tail.log"], 1, "cannot read tail.log after line 600: bytes that are not gzip's follow its gzip data"),
        (
            &["other.log"],
            1,
            "other.log is packed with zstd: unpack it, as in `zstd -dc other.log | tollgate replay ... -`",
        ),
        (&["access.log", "--plan", "free"], 1, "--plan: tollgate.yaml has no plan `free`"),
        (&["access.log", "--decisions", "./access.log"], 1, "./access.log is also named as a log"),
        (&["access.log", "--decisions", "new.csv", "--html", "./new.csv"], 1, "is also named as --decisions"),
        (&["access.log", "--html", "./tollgate.yaml"], 1, "--html: ./tollgate.yaml is also named as --config"),
        (&["garbage.log", "--html", "page.html"], 1, "none of 2 lines can be used"),
        (&["access.log", "--html", "no/page.html"], 1, "cannot write no/page.html: No such file"),
        (&["access.log", "--against", "none.yaml"], 1, "none.yaml"),
        (&["access.log", "--field", "custmer=x"], 2, "found `custmer`, expected time, client,"),
        (&[], 2, "ACCESS_LOG"),
    ] {
        let output = folder.replay(&[&REPLAY, flags].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && error.contains(says), "{flags:?}: {error}");
    }
    assert_eq!(folder.read("access.log"), log(), "a log is never written to");
    assert_eq!(folder.read("page.html"), "a page", "a replay that fails leaves the page of the one before");
}

#[test]
fn credentials_never_show() {
    let folder = Folder::new();
    let config = CONFIG.replace(
        "key: client_address",
        "key: [{ header: x-api-key }, { cookie: sid }, { header: x-user }, { header: x-session-id }, { query: apiKey }, { query: sig }]",
    );
    folder.write("tollgate.yaml", config);
    let object = "{\"time\":971182800,\"method\":\"GET\",\"path\":\"/?apiKey=s3cret-c&sig=s3cret-d\",\"request\":{\"headers\":\
                  {\"X-Api-Key\":[\"s3cret-a\"],\"Cookie\":[\"sid=s3cret-b\"],\"X-User\":[\"an\\u009bn\"],\
                  \"X-Session-Id\":[\"s3cret-e\"]}}}\n";
    folder.write("access.log", object.repeat(4));
    let flags = ["--decisions", "d.csv", "--html", "page.html", "access.log"];
    let table = folder.replayed(&[&REPLAY, &flags[..]].concat());
    assert!(
        table.contains("header x-api-key #")
            && table.contains("cookie sid #")
            && table.contains("query apiKey #")
            && table.contains("header x-user an\\u{9b}n"),
        "{table}"
    );
    for text in [table, folder.read("d.csv"), folder.read("page.html")] {
        assert!(!text.contains("s3cret") && !text.contains('\u{9b}'), "{text}");
    }
}

#[test]
fn a_setting_that_is_tried_is_compared_with_the_file_as_it_is() {
    let folder = folder();
    folder.write("access.log", log());
    let both = report(&folder, &["--set", "limits.guard.limit=1", "access.log"]);
    assert_eq!((&both["rules"]["denied"], &both["against"]["denied"]), (&3.into(), &2.into()));
    assert_eq!(
        (&both["rules"]["config"], &both["against"]["config"]),
        (&"tollgate.yaml with --set".into(), &"tollgate.yaml".into())
    );
    assert_eq!(both["comparison"]["only_first"], 1);
    // the settings have the effect of the changed file, and the last of two equal ones holds
    folder.write("new.yaml", CONFIG.replace("limit: 2, window: 1h", "limit: 1, window: 60s"));
    let new = ["--config", "new.yaml", "--format", "json", "access.log"];
    let new: serde_json::Value = serde_json::from_str(&folder.replayed(&new)).unwrap();
    let set =
        ["--set=limits.guard.limit=9", "--set=limits.guard.limit=1", "--set=limits.guard.window=60s", "access.log"];
    let set = report(&folder, &set);
    assert_eq!((&set["rules"]["limits"], &set["rules"]["denied"]), (&new["rules"]["limits"], &new["rules"]["denied"]));
    let against = report(&folder, &["--set", "limits.guard.limit=9", "--against", "new.yaml", "access.log"]);
    assert_eq!((&against["rules"]["denied"], &against["against"]["denied"]), (&0.into(), &new["rules"]["denied"]));
    let failed =
        folder.replay(&[&REPLAY[..], &["--set=limits.guard.limit=1", "--fail-if-denied", "0%", "access.log"]].concat());
    assert_eq!(failed.status.code(), Some(3));
}

#[test]
fn a_setting_is_found_whatever_the_file_writes_once_for_several() {
    let folder = folder();
    folder.write("access.log", log());
    folder.write(
        "tollgate.yaml",
        "listeners: [{ address: \"127.0.0.1:1\" }]
upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }
defaults: { limits: { shadow: true } }
include: [more.yaml]
limits: { one: &one { key: client_address, algorithm: quota_reset, limit: 9, window: 1h, shadow: false }, one.more: *one, two: { key: client_address, algorithm: quota_reset, windows: [{ limit: 9, window: 1h }, { limit: 9, window: 1d }], shadow: false } }
routes: [{ name: all, upstream: origin, limits: [one, one.more, two, included] }]
",
    );
    folder.write(
        "more.yaml",
        "limits: { included: { key: client_address, algorithm: quota_reset, limit: 1, window: 1h } }\n",
    );
    for (set, denied) in [
        ("limits.two/1h.limit=1", 4),
        ("limits.\"one.more\".limit=1", 4),
        ("limits.included.shadow=false", 4),
        ("limits.included.limit=2", 0),
        ("limits.included.over_limit.deny.status=503", 0),
    ] {
        let report = report(&folder, &["--set", set, "access.log"]);
        assert_eq!(report["rules"]["denied"], denied, "{set}");
    }
}

#[test]
fn a_setting_that_cannot_be_tried_is_told_why() {
    let folder = folder();
    folder.write("access.log", log());
    for (set, status, says) in [
        ("limits.guard.limit", 2, "expected a setting of a limit and its value"),
        ("limits.guard.limit=", 2, "expected a setting of a limit and its value"),
        ("limits.guard.=1", 2, "expected a setting of a limit and its value"),
        ("routes=[]", 2, "expected a setting of a limit and its value"),
        ("limits.gard.limit=1", 1, "--set:1:1: limits.gard.limit: there is no limit `gard`\n  expected: `guard`"),
        ("limits.guard.limt=1", 1, "--set:1:1: limits.guard.limt: is unknown here"),
        ("limits.guard.limt=1", 1, "hint: did you mean `limit`?"),
        ("limits.guard.limit=many", 1, "--set:1:1: limits.guard.limit: is not a whole number\n  found: `many`"),
        ("limits.guard.limit.most=1", 1, "is below a single value or a list\n  hint: set `limits.guard.limit`"),
        ("limits.guard={ limit: 1 }", 1, "is more than one setting of a limit"),
        ("limits.guard.windows=[{ limit: 1, window: 1h }]", 1, "is more than one setting of a limit"),
        ("limits.guard.limit=[1", 1, "is not valid YAML"),
    ] {
        let output = folder.replay(&[&REPLAY[..], &["--set", set, "access.log"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && said.contains(says), "{set}: {said}");
    }
}
