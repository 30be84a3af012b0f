//! The real program in front of a real upstream. Three witnesses: what the upstream saw, what the client read, and what
//! the metrics say. Tests wait on conditions with a deadline, never for a fixed time.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]
#![allow(missing_docs, reason = "what helpers do is said where it is not plain")]
#![allow(unreachable_pub, reason = "nothing reaches into a program of tests")]

mod support;

mod access;
mod admin_api;
mod answers;
mod balance;
mod bodies;
mod bursts;
mod canaries;
mod clock;
mod cluster;
mod cluster_cost;
mod cluster_moves;
mod cluster_port;
mod cluster_slots;
mod concurrency;
mod connections;
mod cookbook;
mod cors;
mod costs;
mod credentials;
mod customers;
mod denials;
mod deploy;
mod dodging;
mod edges;
mod explain;
mod failures;
mod flood;
mod forwarding;
mod framings;
mod grpc;
mod guessing;
mod health_checks;
mod http2;
mod http2_abuse;
mod kept_connections;
mod logs;
mod mutated;
mod operators;
mod page;
mod panics;
mod passing;
mod process;
mod proxy_protocol;
mod raw_bytes;
mod redis_customers;
mod redis_store;
mod refusals;
mod reload;
mod reload_files;
mod reload_load;
mod replayed;
mod resolving;
mod response_framings;
mod restarts;
mod retrying;
mod routing;
mod series;
mod shared;
mod shared_corrections;
mod shared_faults;
mod shared_outages;
mod shared_servers;
mod shedding;
mod slow_clients;
mod slow_crowd;
mod state;
mod tls;
mod tokens;
mod truncated;
mod unix_listeners;
mod uploads;
mod upstream_tls;
mod upstreams;
mod usage;
mod waiting;
mod watched;
mod websocket;
