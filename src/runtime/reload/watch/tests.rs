use std::path::PathBuf;

use super::*;
use crate::files::{Fingerprint, Stamp};

fn file(size: u64, print: u128) -> Vec<FileVersion> {
    let stamp = Stamp::Present { identity: (1, 2), size, written: (3, 4), changed: (5, 6) };
    vec![FileVersion { path: PathBuf::from("f"), max_bytes: 100, stamp, print: Fingerprint::Bytes(print) }]
}

#[test]
fn a_change_counts_once_it_is_left_alone() {
    let mut watch = ChangeDetector::default();
    let known = file(1, 1);
    assert!(!watch.record_check(file(1, 1), &known));
    assert_eq!(watch.pause(), CHECK_INTERVAL);
    for size in 2..20 {
        assert!(!watch.record_check(file(size, 1), &known), "it is being written");
        assert_eq!(watch.pause(), SETTLE_TIME);
    }
    assert!(watch.record_check(file(19, 1), &known));
    watch.restart();
    assert_eq!(watch.pause(), CHECK_INTERVAL);
    assert!(!watch.record_check(file(2, 1), &known));
    assert!(!watch.record_check(file(1, 1), &known), "it was taken back");
    assert!(!watch.record_check(file(2, 1), &known));
}

#[test]
fn a_change_that_only_a_close_look_sees_counts_too() {
    let mut watch = ChangeDetector::default();
    let (known, other) = (file(1, 1), file(1, 2));
    let look = |watch: &mut ChangeDetector| {
        let seen = if watch.reads_content() { other.clone() } else { known.clone() };
        watch.record_check(seen, &known)
    };
    let mut until_read = || {
        let mut waited = Duration::ZERO;
        loop {
            waited += watch.pause();
            if look(&mut watch) {
                break waited;
            }
        }
    };
    assert_eq!(until_read(), 4 * CHECK_INTERVAL + SETTLE_TIME);
}

#[test]
fn files_are_read_often_while_stamps_are_fresh_and_seldom_then() {
    let mut watch = ChangeDetector::default();
    let known = file(1, 1);
    let mut close = Vec::new();
    for look in 1..=120 {
        if watch.reads_content() {
            close.push(look);
        }
        assert!(!watch.record_check(known.clone(), &known));
    }
    assert_eq!(close, [4, 8, 12, 40, 80, 120]);
}
