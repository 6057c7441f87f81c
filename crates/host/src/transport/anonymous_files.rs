//! Anonymous files of the kernel, each freed with its last descriptor: the memory that the ranks of
//! a machine share, and flags that wake a waiting thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::units::Bytes;

/// Names the call that the kernel lacks, or that a container's filter refuses.
pub fn missing_call(call: &str, since: &str, errno: rustix::io::Errno) -> std::io::Error {
    let reason = std::io::Error::from(errno);
    if !matches!(errno, rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) {
        return reason;
    }
    let what = format!(
        "`{call}`: {reason}; it needs Linux {since} or newer, and a container whose seccomp profile \
         allows it"
    );
    std::io::Error::new(reason.kind(), what)
}

/// A zeroed anonymous file of `size` bytes, closed on exec. Its size is sealed, so touching a
/// mapping of it never raises SIGBUS. Pages are allocated at their first use.
pub fn shared_memory(size: Bytes) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("ddprun", flags)
        .map_err(|errno| missing_call("memfd_create", "3.17", errno))?;
    rustix::fs::ftruncate(&fd, size.0)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

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
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_call_that_the_kernel_lacks_is_named() {
        let lacking = missing_call("pidfd_open", "5.3", Errno::NOSYS).to_string();
        assert!(lacking.starts_with("`pidfd_open`: Function not implemented"), "{lacking}");
        assert!(lacking.contains("Linux 5.3"), "{lacking}");
        let full = missing_call("pidfd_open", "5.3", Errno::MFILE).to_string();
        assert!(full.starts_with("Too many open files"), "{full}");
    }

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
