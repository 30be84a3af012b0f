use super::*;
use crate::simulation::render;
use crate::simulation::testing::{UPSTREAM, gcra, parse_rate, queue};
use crate::simulation::trace::Trace;
use crate::simulation::{SimulatedLimit, run_traffic};

fn report(subject: SimulatedLimit, window: Option<Nanos>, abuse: Option<f64>, trace: &str) -> LimitReport {
    let mut runs = [Run::new(subject, UPSTREAM).unwrap()];
    let mut tally = TokenTally::new(&runs[0], window, abuse);
    let mut trace = Trace::new(trace.as_bytes(), parse_rate).unwrap();
    run_traffic(&mut trace, &mut runs, |_, _, arrival, outcome| {
        tally.add(arrival, outcome);
        Ok(())
    })
    .unwrap();
    let [run] = &mut runs;
    tally.finish(run.finish())
}

const TRACE: &str = "t_ns,key,cost\n\
    0,a,1\n0,a,1\n0,a,1\n0,b,5\n\
    999999999,a,1\n1000000000,a,1\n3000000000,a,2\n3000000000,a,1\n4500000000,a,1\n";

#[test]
fn requests_and_tokens_are_counted_by_what_became_of_them() {
    let report = report(gcra(1, 2), None, None, TRACE);
    assert_eq!((report.offered, report.offered_tokens, report.keys), (9, 14, 2));
    assert_eq!((report.admitted, report.admitted_tokens, report.delayed), (5, 6, 0));
    assert_eq!((report.denied, report.never), (4, 1));
}

#[test]
fn the_longest_gap_is_that_of_a_key_which_was_denied_meanwhile() {
    // `a` passes at 0, 1 s, 3 s, 4.5 s and is denied between the first two and the last two; `b` never passes.
    assert_eq!(report(gcra(1, 2), None, None, TRACE).longest_gap, Some(Nanos::new(1_500_000_000)));
    assert_eq!(report(gcra(1, 2), None, None, "t_ns,key\n0,a\n9,a\n").longest_gap, None);
    let never = "t_ns,key,cost\n5,a,3\n7,a,3\n";
    assert_eq!(report(gcra(1, 2), None, None, never).longest_gap, Some(Nanos::new(2)));
}

#[test]
fn the_worst_window_is_half_open_and_of_one_key() {
    let worst = |window| report(gcra(1, 2), window, None, TRACE).worst_window.unwrap();
    // The limit's own window is 2 s. 2 tokens at 0 and 1 at 1 s lie in it; those at 3 s and 4.5 s too.
    let own = WorstWindow { window: Nanos::from_secs(2), tokens: 3, allowed: Some(2) };
    assert_eq!(worst(None), own);
    assert_eq!(worst(Some(Nanos::SECOND)).tokens, 2);
    assert_eq!(
        worst(Some(Nanos::new(1_000_000_001))),
        WorstWindow { window: Nanos::new(1_000_000_001), tokens: 3, allowed: Some(2) }
    );
    assert_eq!(worst(Some(Nanos::from_secs(3))).tokens, 3);
    assert_eq!(worst(Some(Nanos::new(3_000_000_001))).tokens, 5);
}

#[test]
fn waits_are_of_all_admitted_requests_by_nearest_rank() {
    // Of 4 requests at once, one passes at once, the others after 1, 2 and 3 s.
    let report = report(queue(1, 9, Nanos::from_secs(60), None), None, None, "t_ns,key\n0,a\n0,a\n0,a\n0,a\n");
    assert_eq!((report.delayed, report.most_waiting), (3, 3));
    assert_eq!(report.waits, Quantiles { p50: Nanos::SECOND, p99: Nanos::from_secs(3), max: Nanos::from_secs(3) });
    // Delayed requests pass later, and count in the window of that time.
    assert_eq!(report.worst_window.map(|worst| worst.tokens), Some(4));
}

#[test]
fn an_abuser_is_throttled_once_the_burst_is_spent() {
    let abuse = |per_second, burst, factor| report(gcra(per_second, burst), None, Some(factor), "t_ns,key\n").abuse;
    // Burst 20, at 2 times 10/s: the n-th request, from 0 on, comes after n/20 s, in which n/2 tokens came back.
    let expected = Abuse { factor: 2.0, admitted: Some(39), throttled_after: Some(Nanos::new(1_950_000_000)) };
    assert_eq!(abuse(10, 20, 2.0), Some(expected));
    let expected = Abuse { factor: 1.5, admitted: Some(58), throttled_after: Some(Nanos::new(3_866_666_666)) };
    assert_eq!(abuse(10, 20, 1.5), Some(expected));
    let expected = Abuse { factor: 0.5, admitted: Some(1_000_000), throttled_after: None };
    assert_eq!(abuse(10, 20, 0.5004), Some(expected));
    assert_eq!(abuse(10, 20, 0.0), Some(Abuse { factor: 0.0, admitted: None, throttled_after: None }));
}

#[test]
fn the_table_has_a_column_per_limit_and_only_lines_that_say_something() {
    let trace = "t_ns,key\n0,a\n0,a\n0,a\n0,a\n";
    let first = report(gcra(1, 2), None, Some(2.0), trace);
    let second = LimitReport {
        name: "other".to_owned(),
        ..report(queue(1, 9, Nanos::from_secs(60), None), None, Some(2.0), trace)
    };
    let one = "\
l (gcra): 2 at once, then one every 1s

limit                                             l
offered                                           4
admitted                                          2
  share                                     50.00 %
denied                                            2
delayed                                           0
longest gap between admissions                   0s
most tokens in any window                         2
  window                                         2s
  quota of the window                             2
  of that quota                               100 %
abuser at 2 times the rate      denied after 1500ms
  admitted before                                 3
";
    assert_eq!(render::table(std::slice::from_ref(&first)), one);
    let two = "\
l (gcra): 2 at once, then one every 1s
other (gcra): 1 at once, then one every 1s; up to 8 wait for their turn

limit                                             l                other
offered                                           4                    4
admitted                                          2                    4
  share                                     50.00 %             100.00 %
denied                                            2                    0
delayed                                           0                    3
  most at once                                    0                    3
  wait, p50                                      0s                   1s
  wait, p99                                      0s                   3s
  wait, longest                                  0s                   3s
longest gap between admissions                   0s                    -
most tokens in any window                         2                    4
  window                                         2s                   9s
  quota of the window                             2                    9
  of that quota                               100 %                 44 %
abuser at 2 times the rate      denied after 1500ms  denied after 8500ms
  admitted before                                 3                   17
";
    assert_eq!(render::table(&[first, second]), two);
}

#[test]
fn the_json_has_whole_nanoseconds_and_null_where_there_is_nothing() {
    let report = report(gcra(1, 2), None, None, TRACE);
    let json = render::json(&[report]);
    let limit = &json["limits"][0];
    assert_eq!(limit["share_admitted"], 5.0 / 9.0);
    assert_eq!(limit["longest_gap_ns"], 1_500_000_000_u64);
    assert_eq!(limit["worst_window"], serde_json::json!({"window_ns": 2_000_000_000_u64, "tokens": 3, "allowed": 2}));
    assert_eq!(limit["abuse"], serde_json::Value::Null);
    assert_eq!(limit["wait_max_ns"], 0);
}

#[test]
fn quantiles_are_times_that_occurred() {
    let nanos = |times: &[u64]| times.iter().map(|time| Nanos::new(*time)).collect::<Vec<_>>();
    let of = |times: &[u64], zeros| {
        let Quantiles { p50, p99, max } = Quantiles::of(nanos(times), zeros);
        [p50, p99, max].map(Nanos::get)
    };
    assert_eq!(of(&[], 0), [0, 0, 0]);
    assert_eq!(of(&[7], 0), [7, 7, 7]);
    assert_eq!(of(&[9, 1, 5, 3], 0), [3, 9, 9]);
    assert_eq!(of(&[9, 1], 2), [0, 9, 9]);
    assert_eq!(of(&[9], 99), [0, 0, 9]);
}
