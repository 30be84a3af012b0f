//! Whether the client takes what is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use parking_lot::Mutex;

/// The room there is for what goes to a client. Who writes is woken through it, so that this wake is known from all others.
#[derive(Default)]
pub(super) struct Room {
    is_awaited: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Room {
    /// Whether a write waits for room, and none came since.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// Does `write`, which waits for room if it is not done.
    pub(super) fn poll<T>(
        self: &Arc<Self>,
        task: &TaskContext<'_>,
        write: impl FnOnce(&mut TaskContext<'_>) -> Poll<T>,
    ) -> Poll<T> {
        {
            let mut known = self.task.lock();
            match &mut *known {
                Some(known) => known.clone_from(task.waker()),
                None => *known = Some(task.waker().clone()),
            }
        }
        // room that comes while this is going on is not missed
        self.is_awaited.store(true, Ordering::Release);
        let written = write(&mut TaskContext::from_waker(&Waker::from(Arc::clone(self))));
        if written.is_ready() {
            self.is_awaited.store(false, Ordering::Release);
        }
        written
    }
}

impl Wake for Room {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_awaited.store(false, Ordering::Release);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn room_is_awaited_from_a_write_that_waits_until_it_is_woken() {
        let (room, woken) = (Arc::<Room>::default(), Arc::<Woken>::default());
        let waker = Waker::from(Arc::clone(&woken));
        let task = TaskContext::from_waker(&waker);
        assert_eq!(room.poll(&task, |_| Poll::Ready(1)), Poll::Ready(1));
        assert!(!room.is_awaited());
        let mut writer = None;
        let wait = |writer: &mut Option<Waker>, task: &mut TaskContext<'_>| {
            *writer = Some(task.waker().clone());
            Poll::<()>::Pending
        };
        assert!(room.poll(&task, |task| wait(&mut writer, task)).is_pending());
        waker.wake_by_ref();
        assert!(room.is_awaited(), "who else wakes the task makes no room");
        writer.unwrap().wake();
        assert!(!room.is_awaited());
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        let room_comes = |task: &mut TaskContext<'_>| {
            task.waker().wake_by_ref();
            Poll::<()>::Pending
        };
        assert!(room.poll(&task, room_comes).is_pending());
        assert!(!room.is_awaited(), "it came before the write knew that it waits");
    }
}
