//! States in Redis: the rules of [`crate::algorithm`] as one Lua script, and what is said to it and by it.
//!
//! One call of [`SCRIPT`] charges all buckets of a request or none, on Redis's clock. The script decides and keeps the
//! states; it answers with the states it found, from which [`answer`] works out waits, retry times and headroom by the
//! same Rust code that decides in memory. So these exist once, and Redis, which all nodes share, does the least.
//!
//! `lua/` mirrors `src/algorithm` file by file and name by name. Its numbers are exact (`lua/naturals.lua`), except where
//! the rule itself is in doubles.

pub mod answer;
pub mod codec;
pub mod parameters;
mod states;

pub use answer::{AllSeen, BadReply, ChargeReply, Field, KeyState, hint};
pub use codec::{Bucket, Call, CallArgument, Clock, Encoded, Refused, encode, key_name};
pub use parameters::{NotShareable, SharedRule};

/// The script. Its SHA-1 is what EVALSHA takes.
pub const SCRIPT: &str = concat!(
    include_str!("redis/lua/naturals.lua"),
    include_str!("redis/lua/time.lua"),
    include_str!("redis/lua/schedule.lua"),
    include_str!("redis/lua/counter.lua"),
    include_str!("redis/lua/sliding_window.lua"),
    include_str!("redis/lua/sliding.lua"),
    include_str!("redis/lua/cycle.lua"),
    include_str!("redis/lua/quota_linear.lua"),
    include_str!("redis/lua/exponential.lua"),
    include_str!("redis/lua/smooth.lua"),
    include_str!("redis/lua/concurrency.lua"),
    include_str!("redis/lua/driver.lua"),
);
