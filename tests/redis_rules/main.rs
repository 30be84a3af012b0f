//! The rules in Lua against the rules in Rust, on a real Redis with a given clock.
//!
//! `SEED=` sets the first case, `CASES=` how many there are of each kind.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]
#![allow(clippy::disallowed_methods, reason = "waits for a real server with a deadline")]

#[path = "../algorithms/limit.rs"]
#[allow(dead_code, reason = "made for more tests than these")]
mod limit;
#[path = "../algorithms/limits.rs"]
mod limits;
#[path = "../algorithms/random.rs"]
mod random;

mod compare;
mod cost;
mod model;
mod naturals;
mod poison;
mod script;
mod server;
mod slots;
mod step;
mod traces;
mod walk;
