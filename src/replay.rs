//! Plays access logs through the gateway's rules, on the time of the log, and reports which requests the limits would deny.
//!
//! `logs (source) -> records (common, json) -> spread -> reorder (reading) -> replayer
//! -> (report | decisions) -> render`
//!
//! A store of the replay's own, on a virtual clock, keeps the states; the gateway's code decides (see `replayer`). Memory
//! grows with the keys only: the replay reads one line at a time, and reports keep counts.

mod common;
pub mod compare;
pub mod decisions;
pub mod fields;
pub mod html;
mod json;
mod ledger;
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
