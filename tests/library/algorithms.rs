//! Every algorithm against its definition, which is implemented a second time as naively as possible, and against the laws
//! that hold for all algorithms.
//!
//! `CASES=10000000` checks that many decisions against the definitions (2·10⁶ by default; the other laws scale with it);
//! `SEED=0x…` replays the one walk that a failure names. A failure prints a line for `regressions.txt`; the walks in that
//! file run under every law in every test run.

mod arrivals;
mod explore;
mod laws;
pub(crate) mod limit;
pub(crate) mod limits;
mod oracle;
pub(crate) mod random;
mod regressions;
mod traces;
mod walk;
mod warm_up;
