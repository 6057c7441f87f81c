//! Signals -> bytes in a socket that can be polled together with other descriptors. What they ask
//! for is in `stop.rs`; who acts on them, in `parent/group.rs` and `rank/link.rs`.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

/// Counts the arrivals of some signals as long as it lives.
pub(crate) struct Signals {
    pipe: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    /// SIGTERM and SIGUSR1 (Kubernetes, Slurm), and SIGHUP unless it is ignored, as under `nohup`.
    pub(crate) fn of_preemption() -> io::Result<Self> {
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        Self::listen([SIGTERM, SIGUSR1].into_iter().chain(hangup))
    }

    /// Ctrl-C.
    pub(crate) fn of_interruption() -> io::Result<Self> {
        Self::listen([SIGINT])
    }

    fn listen(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let (pipe, sender) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let mut all = Self { pipe, registered: Vec::new() };
        for signal in signals {
            all.registered.push(low_level::pipe::register(signal, sender.try_clone()?)?);
        }
        Ok(all)
    }

    /// Signals that arrived since the last call.
    pub(crate) fn take(&mut self) -> usize {
        let mut buffer = [0; 64];
        let mut count = 0;
        while let Ok(n @ 1..) = self.pipe.read(&mut buffer) {
            count += n;
        }
        count
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Lets this process learn how its children end, also where it was started with SIGCHLD ignored,
/// as some daemons start others: the system then forgets a child the moment it ends.
pub(crate) fn learn_ends_of_children() {
    if is_ignored(SIGCHLD) {
        // Any handler ends that. One cannot be refused for this signal.
        let _ = flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
    }
}

/// Whether this process inherited the disposition to ignore `signal`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
