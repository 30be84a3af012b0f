//! Every recorded trace through the real `tollgate simulate`, which has to print the decisions of the recorded limiter.

use std::path::{Path, PathBuf};
use std::process::Command;

const TRACES: &str = "tests/fixtures/traces";

struct Row {
    allowed: String,
    wait: String,
    retry: String,
}

#[test]
fn every_recorded_trace_is_reproduced_by_the_command() {
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(Path::new(TRACES).join("cases.json")).unwrap()).unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut wrong = Vec::new();
    let mut rows = 0;
    for (number, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
        let trace = Path::new(TRACES).join(case["file"].as_str().unwrap());
        let config = folder.join(format!("simulate-{number}.yaml"));
        std::fs::write(&config, serde_json::json!({ "limits": { "l": case["limit"] } }).to_string()).unwrap();
        let recorded = read_rows(&std::fs::read_to_string(&trace).unwrap());
        let printed = read_rows(&simulate(&config, &trace));
        assert_eq!(recorded.len(), printed.len(), "{}", case["id"]);
        rows += recorded.len();
        let tolerance = |name: &str| case[name].as_u64().unwrap();
        let tolerances = (tolerance("wait_tolerance_ns"), tolerance("retry_tolerance_ns"));
        let first = recorded.iter().zip(&printed).position(|(recorded, printed)| !agree(recorded, printed, tolerances));
        wrong.extend(first.map(|row| format!("{} from row {row} on", case["id"])));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows, 37_823);
}

#[test]
fn without_traffic_the_command_line_is_wrong() {
    for flags in [&[][..], &["--for", "60s"], &["--rate", "20/s"], &["--seed", "1"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["simulate", "--config", "config/algorithms.yaml", "--limit", "gcra"])
            .args(flags)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: give --trace, or --rate and --for\n\nUsage: tollgate simulate "), "{error}");
        assert_eq!(output.status.code(), Some(2));
    }
}

fn simulate(config: &Path, trace: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["simulate", "--limit", "l", "--format", "csv", "--config"])
        .arg(config)
        .arg("--trace")
        .arg(trace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn read_rows(text: &str) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|found| found == name).unwrap();
    let (allowed, wait, retry) = (column("allowed"), column("wait_ns"), column("retry_after_ns"));
    let row = |record: csv::StringRecord| Row {
        allowed: record[allowed].to_owned(),
        wait: record[wait].to_owned(),
        retry: record[retry].to_owned(),
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// Whether two rows agree. A recorded retry time may be missing, if the recorded limiter gave none.
fn agree(recorded: &Row, printed: &Row, (wait_tolerance, retry_tolerance): (u64, u64)) -> bool {
    let near = |a: &str, b: &str, tolerance: u64| match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.abs_diff(b) <= tolerance,
        _ => false,
    };
    let retry = match recorded.retry.as_str() {
        "" => true,
        "never" => printed.retry.is_empty(),
        time => near(time, &printed.retry, retry_tolerance),
    };
    recorded.allowed == printed.allowed
        && match recorded.allowed.as_str() {
            "1" => near(&recorded.wait, &printed.wait, wait_tolerance) && printed.retry.is_empty(),
            _ => printed.wait.is_empty() && retry,
        }
}
