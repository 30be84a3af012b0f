//! Values that every worker writes, in one stripe for each worker, so that cores do not contend for cache lines. Readers
//! combine the stripes.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// The most stripes, because each stripe of each counter takes a cache line. More workers than this share stripes.
const MAX_STRIPES: usize = 16;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread write the stripe of `worker`. Threads that never call this write the first one.
pub fn enter(worker: usize) {
    CURRENT.set(worker % count());
}

/// The number of stripes.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| available_parallelism().map_or(1, |cores| cores.get().min(MAX_STRIPES)))
}

/// The stripe of the calling thread.
pub fn current() -> usize {
    CURRENT.get()
}

/// A small number that no other thread has.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// One value for each stripe, each on cache lines of its own.
#[derive(Debug)]
pub struct Striped<T>(Box<[Stripe<T>]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe<T>(T);

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Self((0..count()).map(|_| Stripe::default()).collect())
    }
}

impl<T> Striped<T> {
    /// The value of the calling thread's stripe.
    pub fn mine(&self) -> Option<&T> {
        self.0.get(current()).map(|Stripe(value)| value)
    }

    /// The values of all stripes.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|Stripe(value)| value)
    }
}
