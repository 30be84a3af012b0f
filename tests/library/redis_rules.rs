//! The rules in Lua compared with the rules in Rust, on a real Redis with a given clock.
//!
//! `SEED=` sets the first case, `CASES=` the number of cases of each kind.

#![allow(clippy::disallowed_methods, reason = "waits for a real server with a deadline")]

mod compare;
mod cost;
mod model;
mod naturals;
mod poison;
mod repair_states;
mod script;
mod slots;
mod step;
mod traces;
mod walk;
