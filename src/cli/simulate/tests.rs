use clap::Parser;

use super::*;
use crate::algorithm::AlgorithmName;
use crate::config;
use crate::simulation::testing::gcra;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    simulate: SimulateArgs,
}

const LIMITS: &str = "
limits:
  l: { algorithm: gcra, rate: 10/s, burst: 20 }
  queue: { algorithm: gcra, rate: 10/s, burst: 20, delay_after: 0, over_limit: { delay: { max_wait: 1s } } }
  fixed: { algorithm: quota_reset, limit: 20, window: 2s }
  yearly: { algorithm: gcra, rate: 1/365d, burst: 1 }
  p: { algorithm: gcra, plans: { free: { rate: 1/s, burst: 2 }, enterprise: unlimited } }
  slow: { algorithm: gcra, rate: 1/333333333ns, burst: 100, delay_after: 0, over_limit: { delay: { max_wait: 3000d } } }
  floors: { algorithm: fixed_window, limit: 10, window: 10s, priority: { free: 50 } }
  denied: { algorithm: sliding_window, limit: 3, window: 10s, charge: { denied: true } }
";

fn parse(line: &str) -> Result<SimulateArgs, clap::Error> {
    let words = ["simulate", "--config", "limits.yaml"].into_iter().chain(line.split_whitespace());
    Program::try_parse_from(words).map(|program| program.simulate)
}

fn run(line: &str, input: &str) -> Result<String, String> {
    let args = parse(&format!("--limit {line}")).map_err(|error| error.to_string())?;
    let limits = config::load_limits(LIMITS, "limits.yaml", &|_| None).map_err(|error| error.to_string())?;
    let names = iter::once(&args.limit).chain(&args.compare);
    let subjects = names.map(|name| subjects::subject(&limits, name, args.plan.as_deref())).collect::<Result<_, _>>();
    let mut output = Vec::new();
    simulate(&args, subjects?, input.as_bytes(), &mut output).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(output).unwrap())
}

#[test]
fn a_trace_and_made_up_traffic_exclude_each_other() {
    for line in [
        "--trace t.csv --rate 20/s --for 60s",
        "--trace t.csv --seed 1",
        "--trace t.csv --arrivals uniform",
        "--rate 20/s --for 60s --arrivals sometimes",
        "--rate 20/s --for 60s --format xml",
    ] {
        assert!(parse(&format!("--limit l {line}")).is_err(), "{line}");
    }
    let args = parse("--limit l --rate 20/s --for 60s --arrivals on_off --compare a b --compare c").unwrap();
    assert_eq!((args.traffic.arrivals, args.compare), (Spread::OnOff, vec!["a".into(), "b".into(), "c".into()]));
    assert!(parse("--limit l --trace - --format csv").is_ok());
}

#[test]
fn rates_and_durations_are_read_as_in_the_configuration() {
    let args = parse("--limit l --rate 7/13s --for 1.5h --hold 250us").unwrap();
    assert_eq!(args.traffic.rate, Rate::new(7, Nanos::from_secs(13)));
    assert_eq!((args.traffic.duration, args.hold), (Some(Nanos::from_secs(5400)), Nanos::new(250_000)));
    let error = parse("--limit l --rate 20 --for 6s").unwrap_err().to_string();
    assert!(error.contains("invalid value '20' for '--rate <RATE>': is not a rate (did you mean `20/s`?)"), "{error}");
}

#[test]
fn values_that_make_no_sense_are_refused_in_words() {
    let factors = "expected a number from 0.001 to 1000000";
    for (flag, expected) in [
        ("--seed -1", "expected a whole number from 0 to 18446744073709551615"),
        ("--seed x", "expected a whole number from 0 to 18446744073709551615"),
        ("--burst-size 0", "expected a whole number from 1 to 18446744073709551615"),
        ("--servers -2", "expected a whole number from 1 to "),
        ("--abuse nan", factors),
        ("--abuse inf", factors),
        ("--abuse 0", factors),
        ("--abuse -1.5", factors),
        ("--abuse 1e18", factors),
        ("--window 0s", "expected a duration longer than 0s"),
        ("--for 0s", "expected a duration longer than 0s"),
        ("--on 0s", "expected a duration longer than 0s"),
    ] {
        let (name, value) = flag.split_once(' ').unwrap();
        let error = parse(&format!("--limit l --rate 20/s {flag}")).unwrap_err().to_string();
        assert!(error.contains(&format!("invalid value '{value}' for '{name} <")), "{flag}: {error}");
        assert!(error.contains(expected), "{flag}: {error}");
    }
}

#[test]
fn clients_at_the_rate_are_never_denied_and_patience_ends_uncounted() {
    assert_abuse("l", "0.5", &["abuser at 0.5 times the rate never denied", "admitted before at least 1000000"]);
}

#[test]
fn an_abuser_of_a_long_period_is_denied_or_cannot_be_simulated() {
    assert_abuse("yearly", "1.5004", &["abuser at 1.5 times the rate denied after 5840h", "admitted before 1"]);
    assert_abuse("yearly", "1.501", &["abuser at 1.501 times the rate cannot be simulated"]);
}

/// Checks that the table for an abuser of `limit` has these lines.
fn assert_abuse(limit: &str, factor: &str, expected: &[&str]) {
    let table = run(&format!("{limit} --rate 20/s --for 1s --abuse {factor}"), "").unwrap();
    let lines: Vec<String> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(expected.iter().all(|line| lines.iter().any(|found| found == line)), "{table}");
}

#[test]
fn a_trace_from_standard_input_gives_its_rows() {
    let rows = run("l --trace - --format csv", "t_ns,key,set_rate\n0,a,\n0,a,7/13s\n").unwrap();
    assert_eq!(rows, "t_ns,key,cost,allowed,wait_ns,retry_after_ns,remaining\n0,a,1,1,0,,19\n0,a,1,1,0,,18\n");
    let error = run("l --trace - --format csv", "t_ns,key,set_rate\n0,a,7\n").unwrap_err();
    assert!(error.starts_with("standard input: line 2, column `set_rate`: found `7`, which is not a rate"), "{error}");
}

#[test]
fn rates_that_come_and_go_round_nothing() {
    // at 2 ns the burst is full again after 7.999999995 s at 2.5/s; at 10/s after a quarter of that, no whole nanoseconds
    let trace = "t_ns,key,cost,set_rate\n0,a,20,\n1,a,0,2.5/s\n2,a,0,10/s\n2,a,1,2.5/s\n";
    let rows = run("l --trace - --format csv", trace).unwrap();
    assert_eq!(rows.lines().last(), Some("2,a,1,0,,399999995,0"));
    // all tokens are used at 0; a request fits when 1 - 12/10⁸ of a token is refilled, however long that takes
    let trace = "t_ns,key,cost,set_rate\n0,a,20,\n12,a,1,1/333333333ns\n12,a,1,1000/h\n12,a,1,7/13s\n12,a,1,10/s\n";
    let rows = run("l --trace - --format csv", trace).unwrap();
    let retry: Vec<&str> = rows.lines().skip(2).filter_map(|row| row.split(',').nth(5)).collect();
    assert_eq!(retry, ["333333294", "3599999568", "1857142635", "99999988"]);
    // no unit that divides the units of both rates fits
    let trace = "t_ns,key,cost,set_rate\n0,a,2,\n1,a,1,3/h\n2,a,1,1/333333333ns\n3,a,1,333/d\n";
    let rows = run("slow --trace - --format csv", trace).unwrap();
    assert_eq!(rows.lines().last().and_then(|row| row.split(',').nth(4)), Some("1037837836281"));
}

#[test]
fn made_up_traffic_gives_the_same_table_every_time() {
    let line = "l --rate 20/s --for 60s --arrivals poisson --seed 3 --compare queue";
    let table = run(line, "").unwrap();
    assert_eq!(run(line, "").unwrap(), table);
    assert_ne!(run(&line.replace('3', "4"), "").unwrap(), table);
    assert!(table.contains("\nadmitted "), "{table}");
}

#[test]
fn json_names_every_limit_in_order() {
    let text = run("l --rate 20/s --for 6s --compare queue --format json", "").unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["limits"][0]["limit"], &json["limits"][1]["limit"]), (&"l".into(), &"queue".into()));
    assert_eq!(json["limits"][0]["offered"], 120);
}

#[test]
fn a_plan_gives_its_own_parameters() {
    let rows = run("p --plan free --trace - --format csv", "t_ns,key\n0,a\n").unwrap();
    assert!(rows.ends_with("\n0,a,1,1,0,,1\n"), "{rows}");
}

#[test]
fn a_plan_leaves_the_tokens_of_others() {
    let trace = format!("t_ns,key\n{}", "0,a\n".repeat(12));
    for (plan, admitted) in [("--plan free", 5), ("", 10)] {
        let rows = run(&format!("floors {plan} --trace - --format csv"), &trace).unwrap();
        assert_eq!(rows.lines().filter(|row| row.starts_with("0,a,1,1,")).count(), admitted, "{plan}: {rows}");
    }
    let text = run("floors --plan free --rate 2/s --for 10s --format json", "").unwrap();
    let floors = serde_json::from_str::<serde_json::Value>(&text).unwrap()["limits"][0].take();
    assert!(floors["words"].as_str().unwrap().ends_with("; leaves 5 to requests of other plans"), "{floors}");
    assert_eq!((&floors["worst_window"]["allowed"], &floors["abuse"]["admitted"]), (&5.into(), &5.into()));
}

#[test]
fn denied_requests_take_tokens_where_they_are_charged() {
    let trace = format!("t_ns,key\n{}10000000000,a\n17000000000,a\n", "0,a\n".repeat(6));
    let rows = run("denied --trace - --format csv", &trace).unwrap();
    let allowed: Vec<&str> = rows.lines().skip(1).filter_map(|row| row.split(',').nth(3)).collect();
    assert_eq!(allowed, ["1", "1", "1", "0", "0", "0", "0", "0"]);
}

#[test]
fn mistakes_say_what_was_found_and_what_was_expected() {
    let made_up = "--rate 20/s --for 6s";
    let cases = [
        ("l".to_owned(), "give --trace, or --rate and --for"),
        ("l --rate 20/s --seed 1".to_owned(), "give --trace, or --rate and --for"),
        ("l --for 60s".to_owned(), "give --trace, or --rate and --for"),
        (
            "l --rate 1000/s --for 100d".to_owned(),
            "--rate and --for: found about 8640000000 requests, expected at most 1000000000: take a lower rate or a shorter time",
        ),
        (
            "l --rate 1/s --for 1s --arrivals burst --burst-size 1000000001".to_owned(),
            "--rate and --for: found about 1000000001 requests, expected at most 1000000000: take a lower rate or a shorter time",
        ),
        (
            "l --rate 1000000/s --for 1h --arrivals on_off --on 1h --off 9h".to_owned(),
            "--rate and --for: found about 36000000000 requests, expected at most 1000000000: take a lower rate or a shorter time",
        ),
        (format!("l {made_up} --plot p.gif"), "--plot: found `p.gif`, expected a file name that ends in .svg"),
        (
            format!("l {made_up} --compare x"),
            "found no limit `x`, expected one of `l`, `queue`, `fixed`, `yearly`, `p`, `slow`, `floors`, `denied`",
        ),
        (
            format!("l {made_up} --compare queu"),
            "found no limit `queu`, expected one of `l`, `queue`, `fixed`, `yearly`, `p`, `slow`, `floors`, `denied`: did you mean `queue`?",
        ),
        (format!("l {made_up} --plan gold"), "found no plan `gold`, expected one of `free`, `enterprise`"),
        (format!("p {made_up} --plan enterprise"), "limit `p` does not apply to plan `enterprise`: it is unlimited"),
        (format!("p {made_up}"), "limit `p` has parameters per plan: choose one with --plan, `free`, `enterprise`"),
        (
            format!("l {made_up} --compare queue --format csv"),
            "--format csv prints the rows of one limit: leave out --compare, or print a table or json",
        ),
        (
            "l --trace -".to_owned(),
            "standard input: the trace is empty: expected a header line with at least the columns `t_ns` and `key`",
        ),
    ];
    for (line, message) in cases {
        assert_eq!(run(&line, ""), Err(message.to_owned()), "{line}");
    }
    let error = run("l --trace tests/library/simulate.rs", "").unwrap_err();
    assert!(
        error.starts_with("tests/library/simulate.rs: line 1: found the columns `//! Every recorded trace"),
        "{error}"
    );
    let error = run("fixed --trace -", "t_ns,key,set_rate\n0,a,\n1,a,2/s\n").unwrap_err();
    assert!(error.starts_with("standard input: line 3: `set_rate` of 2/s cannot apply: limit `fixed`"), "{error}");
    let missing = run("l --trace no/such.csv", "").unwrap_err();
    assert!(missing.starts_with("cannot open the trace no/such.csv: "), "{missing}");
}

#[test]
fn an_output_that_nobody_reads_is_no_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(ErrorKind::BrokenPipe.into())
        }
    }
    for format in ["csv", "table"] {
        let args = parse(&format!("--limit l --rate 20/s --for 6s --format {format}")).unwrap();
        assert!(simulate(&args, vec![gcra(10, 20)], io::empty(), Closed).is_ok());
    }
}

#[test]
fn a_picture_is_written_as_svg() {
    let folder = std::env::temp_dir().join(format!("tollgate-simulate-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for name in ["p.svg", "P.SVG"] {
        let path = folder.join(name);
        let line = format!("l --rate 20/s --for 30s --compare queue --plot {}", path.display());
        assert!(run(&line, "").unwrap().contains("offered"));
        assert!(fs::read(&path).unwrap().starts_with(b"<svg "));
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_algorithm_has_its_limit_and_its_picture_in_the_documentation() {
    let limits = config::load_limits(include_str!("../../../config/algorithms.yaml"), "algorithms.yaml", &|_| None);
    let limits = limits.map_err(|problems| problems.to_string()).unwrap();
    let page = include_str!("../../../docs/algorithms.md");
    for algorithm in AlgorithmName::ALL {
        let limit = limits.limits.iter().find(|limit| limit.algorithm == *algorithm).unwrap();
        assert!(page.contains(&format!("![{}](plots/{}.svg)", algorithm.as_str(), limit.name)), "{}", limit.name);
        let args = parse(&format!("--limit {} --rate 12/s --for 10s --arrivals on_off", limit.name)).unwrap();
        let subject = subjects::subject(&limits, &limit.name, None).unwrap();
        let mut output = Vec::new();
        simulate(&args, vec![subject], io::empty(), &mut output).unwrap();
        assert!(String::from_utf8(output).unwrap().contains("admitted"));
    }
}
