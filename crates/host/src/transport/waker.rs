//! A flag that wakes a thread waiting in `poll`: how another thread of this program asks a run to
//! stop, as SIGTERM does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a thread that waits for it, once for any number of calls.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that has not been called.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the waiting thread. A run that waits for it finishes its step, saves and exits.
    pub fn wake(&self) {
        // The write fails only if the counter is at its limit, and then the waker was called
        // before.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// True if it was woken since the last call.
    pub fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_wakes_are_taken_once() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take());
        waker.wake();
        waker.wake();
        assert!(waker.take());
        assert!(!waker.take());
    }
}
