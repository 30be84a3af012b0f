//! Plays access logs through the gateway's rules on the time of the log: who would have been limited.
//!
//! `logs (source, lines) -> records (common, json) -> spread -> reorder (reading) -> way -> (report | decisions) -> render`
//!
//! The states are a store's own on a virtual clock, and everything that decides is the gateway's (see `way`). Memory is
//! bounded but for the keys: lines are looked at one by one, and reports count.

mod common;
pub mod compare;
pub mod decisions;
pub mod fields;
pub mod html;
mod json;
mod ledger;
pub mod lines;
mod notes;
pub mod play;
pub mod reading;
pub mod record;
pub mod render;
pub mod reorder;
pub mod replayer;
pub mod report;
pub mod rules;
pub mod source;
mod spread;
mod stamp;
pub mod tally;
pub mod top;
mod when;
pub mod who;
