//! How another thread of this program asks a run to stop, as a SIGTERM to the run would.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A waker that one thread rings and another hears.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that nobody has rung.
    ///
    /// # Errors
    ///
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Asks the run to finish its step, save and leave. Ringing twice asks once.
    pub fn ring(&self) {
        // Only a counter at its limit refuses, and that has been rung.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whether it was rung since the last call.
    pub(crate) fn take(&self) -> bool {
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
    fn a_bell_is_heard_once_however_often_it_was_rung() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take());
        waker.ring();
        waker.ring();
        assert!(waker.take());
        assert!(!waker.take());
    }
}
