//! What memory the process asks the system for.

use rustix::thread::disable_transparent_huge_pages;

/// Takes memory in small pages only. The system clears a large one, 2 MiB, as a whole when its first byte is touched, and
/// all requests of that core wait; and a gateway with many connections touches a little of many.
pub(super) fn take_small_pages() {
    if let Err(error) = disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "memory may come in large pages");
    }
}
