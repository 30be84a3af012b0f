use super::*;
use crate::algorithm::Rule;
use crate::simulation::arrivals::{Arrivals, Shape};
use crate::simulation::run::Run;
use crate::simulation::testing::{UPSTREAM, gcra, queue};
use crate::simulation::{Arrival, KeyNumber, SimulatedLimit, run_traffic};
use crate::units::{Nanos, Rate};

fn columns(subjects: Vec<SimulatedLimit>, per_second: u64, seconds: u64) -> Vec<Column> {
    let mut runs: Vec<Run> = subjects.into_iter().map(|subject| Run::new(subject, UPSTREAM).unwrap()).collect();
    let column = |run: &Run| Column {
        title: "per-customer <&> (gcra)".to_owned(),
        words: Rule::describe(run.rule()),
        rate: run.subject().rate().map(Rate::per_second),
        series: Series::default(),
    };
    let mut columns: Vec<Column> = runs.iter().map(column).collect();
    let rate = Rate::new(per_second, Nanos::SECOND).unwrap();
    let mut traffic = Arrivals::new(rate, Nanos::from_secs(seconds), Shape::Poisson { seed: 1 }).unwrap();
    run_traffic(&mut traffic, &mut runs, |_, number, arrival, outcome| {
        columns[number].series.add(arrival, outcome);
        Ok(())
    })
    .unwrap();
    columns
}

fn limits() -> Vec<SimulatedLimit> {
    vec![gcra(10, 20), queue(10, 20, Nanos::SECOND, None)]
}

#[test]
fn an_svg_has_titles_units_and_a_legend_and_is_the_same_every_time() {
    let columns = columns(limits(), 20, 30);
    let picture = svg(&columns).unwrap();
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    for text in [
        "per-customer &lt;&amp;&gt; (gcra)",
        "tokens per s",
        "longest wait (ms)",
        "tokens left",
        "time (s)",
        "denied",
        "after the last request",
        "lowest to highest",
    ] {
        assert!(picture.contains(text), "{text}");
    }
    assert_eq!(svg(&columns).unwrap(), picture);
}

#[test]
fn panels_that_would_be_empty_are_left_out() {
    let picture = svg(&columns(vec![gcra(10, 20)], 20, 30)).unwrap();
    assert!(!picture.contains("longest wait"));
    assert!(svg(&columns(vec![gcra(10, 20)], 20, 0)).unwrap().contains("time (ns)"));
    assert!(svg(&[]).unwrap().starts_with("<svg "));
}

#[test]
fn too_many_limits_are_refused() {
    let column = columns(vec![gcra(10, 20)], 20, 1).remove(0);
    assert!(svg(&vec![column.clone(); 16]).is_ok());
    assert!(matches!(svg(&vec![column; MAX_COLUMNS + 1]), Err(PlotError::TooMany(65))));
}

#[test]
fn times_far_from_zero_are_shown_from_the_second_in_which_the_traffic_begins() {
    let mut column = columns(vec![gcra(10, 20)], 20, 0).remove(0);
    let mut run = Run::new(gcra(10, 20), UPSTREAM).unwrap();
    for millis in [1_700_000_000_250, 1_700_000_000_750] {
        let at = Nanos::new(millis * 1_000_000);
        let arrival = Arrival { at, key: KeyNumber(0), cost: 1, set_rate: None };
        column.series.add(&arrival, &run.step(&arrival).unwrap());
    }
    let picture = svg(&[column]).unwrap();
    assert!(picture.contains("time since 1700000000 s (ms)"), "{picture}");
    assert!(picture.contains("\n600\n") && !picture.contains("1700G"));
}

#[test]
fn long_titles_and_words_are_not_cut_where_there_is_room() {
    let mut column = columns(vec![gcra(10, 20)], 20, 1).remove(0);
    column.title = "smooth-warming-up-at-once (smooth_warming_up)".to_owned();
    column.words = "10/s, the next one after 100ms; a cold start is 3 times slower and warm after 4s; each request is \
                    paid for by the next"
        .to_owned();
    for count in [1, 2, 3] {
        let picture = svg(&vec![column.clone(); count]).unwrap();
        assert!(picture.contains(&column.title) && picture.contains("by the next"), "{picture}");
        assert!(!picture.contains('\u{2026}'));
    }
}
