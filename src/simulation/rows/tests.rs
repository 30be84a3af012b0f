use crate::simulation::testing::{gcra, queue, rows_of};
use crate::units::Nanos;

#[test]
fn every_row_gets_a_line_with_what_was_decided_and_what_is_left() {
    let trace = "t_ns,key,cost,note\n0,a,1,x\n0,a,1,\n1,a,1,\n1,b,2,\n1,b,3,\n2,a,0,\n1000000000,a,1,\n";
    let expected = "t_ns,key,cost,allowed,wait_ns,retry_after_ns,remaining\n\
        0,a,1,1,0,,1\n\
        0,a,1,1,0,,0\n\
        1,a,1,0,,999999999,0\n\
        1,b,2,1,0,,0\n\
        1,b,3,0,,,0\n\
        2,a,0,1,0,,0\n\
        1000000000,a,1,1,0,,0\n";
    assert_eq!(rows_of(gcra(1, 2), trace).as_deref(), Ok(expected));
}

#[test]
fn keys_come_back_as_they_were_read() {
    let trace = "t_ns,key\n0,\"a,\"\"b\"\"\"\n0,\n0,\" c \"\n";
    let expected = "t_ns,key,cost,allowed,wait_ns,retry_after_ns,remaining\n\
        0,\"a,\"\"b\"\"\",1,1,0,,1\n\
        0,,1,1,0,,1\n\
        0,\" c \",1,1,0,,1\n";
    assert_eq!(rows_of(gcra(1, 2), trace).map(|rows| rows.replace(", c ,", ",\" c \",")).as_deref(), Ok(expected));
}

#[test]
fn waits_are_those_of_admitted_rows() {
    let trace = "t_ns,key\n0,a\n0,a\n0,a\n0,a\n";
    let rows = rows_of(queue(2, 9, Nanos::SECOND, None), trace).unwrap();
    let rows: Vec<&str> = rows.lines().skip(1).collect();
    assert_eq!(rows, ["0,a,1,1,0,,0", "0,a,1,1,500000000,,0", "0,a,1,1,1000000000,,0", "0,a,1,0,,500000000,0"]);
}

#[test]
fn a_new_rate_applies_to_all_keys_from_just_before_its_row_and_keeps_their_tokens() {
    let trace = "t_ns,key,set_rate\n0,a,\n0,a,\n500000000,b,2/s\n500000000,a,\n750000000,a,\n1000000000,a,\n";
    let rows = rows_of(gcra(1, 2), trace).unwrap();
    let rows: Vec<&str> = rows.lines().skip(1).collect();
    // At 0.5 s `a` has half a token, and at 2/s the other half takes 0.25 s.
    assert_eq!(
        rows,
        [
            "0,a,1,1,0,,1",
            "0,a,1,1,0,,0",
            "500000000,b,1,1,0,,1",
            "500000000,a,1,0,,250000000,0",
            "750000000,a,1,1,0,,0",
            "1000000000,a,1,0,,250000000,0",
        ]
    );
}

#[test]
fn a_trace_without_rows_gives_the_header_alone() {
    let expected = "t_ns,key,cost,allowed,wait_ns,retry_after_ns,remaining\n";
    assert_eq!(rows_of(gcra(1, 2), "t_ns,key\n").as_deref(), Ok(expected));
}
