//! Runs one target for as long as it is told to, led by coverage: `TARGET=path fuzz corpus/path -runs=1000000`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../targets/all.rs"]
mod targets;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let named = std::env::var("TARGET").unwrap_or_default();
        let target = targets::TARGETS.iter().find(|target| target.name == named);
        let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
        match target {
            Some(target) => drop(RUN.set(target.run)),
            None => panic!("set TARGET to one of {}", names.join(", ")),
        }
    },
    |data: &[u8]| {
        if let Some(run) = RUN.get() {
            run(data);
        }
    }
);
