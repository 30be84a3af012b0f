//! Every algorithm against its definition, written a second time as naively as possible, and against the laws that
//! all of them keep.
//!
//! `CASES=10000000` checks that many decisions against the definitions (2·10⁶ if unset; the other laws scale with it);
//! `SEED=0x…` replays the one walk that a failure names. A failure is printed as a line for `regressions.txt`, whose
//! walks run under every law, every time.

mod adaptive;
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
