//! `tollgate replay`: it decides like the gateway, and reports faults of logs and flags.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]
#![allow(missing_docs, reason = "what helpers do is said where it is not plain")]
#![allow(unreachable_pub, reason = "nothing reaches into a program of tests")]

mod command;
mod played;
mod records;
mod retries;
mod speed;
mod stage;
mod stamps;
mod support;
