//! tollgate: a rate-limiting gateway.

pub mod admin;
pub mod algorithm;
pub mod charge;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod customers;
pub mod fields;
pub mod files;
pub mod gateway;
pub mod http;
pub mod lifecycle;
pub mod outbox;
pub mod panics;
pub mod redis_client;
pub mod replay;
pub mod ruleset;
pub mod runtime;
pub mod simulation;
pub mod store;
pub mod stripes;
pub mod telemetry;
pub mod template;
pub mod tls;
pub mod units;
