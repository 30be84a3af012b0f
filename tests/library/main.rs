//! Tests of the library without the program, in one crate so that the library is linked once.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

mod algorithms;
mod config_bombs;
mod directory;
mod fuzz;
mod keys;
mod priorities;
mod redis_link;
mod redis_rules;
mod reload_speed;
mod simulate;
mod snapshots;
mod store;
mod store_flood;
mod store_plans;
