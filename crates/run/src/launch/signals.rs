//! Signals -> bytes in a socket that can be polled together with other descriptors. Requests to
//! stop are defined in `event/stop.rs`, and handled in `parent/group.rs` and `rank/link.rs`;
//! signals before a run begins, in `early_signals.rs`.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use crate::launch::early_signals::{self, Kind};

/// Ctrl-C within this time is the same one: `timeout -s INT` and terminals send it to a process and
/// to its group.
const ONE_PRESS: Duration = Duration::from_secs(1);

/// Counts the arrivals of some signals as long as it lives.
pub struct Signals {
    pipe: UnixStream,
    registered: Vec<SigId>,
    /// For signals of which several within [`ONE_PRESS`] count as one: the time of the last counted
    /// one.
    #[expect(clippy::option_option, reason = "whether it matters, and whether one was counted")]
    pressed: Option<Option<Instant>>,
}

impl Signals {
    /// SIGTERM and SIGUSR1 (Kubernetes, Slurm), and SIGHUP unless it is ignored, as under `nohup`.
    pub(crate) fn of_preemption() -> io::Result<Self> {
        Self::listen(preemptions(), Kind::Preemption)
    }

    /// Ctrl-C.
    pub(crate) fn of_interruption() -> io::Result<Self> {
        let mut signals = Self::listen([SIGINT], Kind::Interruption)?;
        signals.pressed = Some(None);
        Ok(signals)
    }

    fn listen(signals: impl IntoIterator<Item = i32>, kind: Kind) -> io::Result<Self> {
        let (pipe, mut sender) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let mut all = Self { pipe, registered: Vec::new(), pressed: None };
        for signal in signals {
            all.registered.push(low_level::pipe::register(signal, sender.try_clone()?)?);
        }
        if early_signals::take_over(kind) {
            sender.write_all(&[0])?;
        }
        Ok(all)
    }

    /// Signals that arrived since the last call; of several Ctrl-C at once one.
    pub(crate) fn take(&mut self) -> usize {
        let arrived = self.arrived();
        let Some(pressed) = &mut self.pressed else { return arrived };
        let is_new = pressed.is_none_or(|before| before.elapsed() >= ONE_PRESS);
        if arrived == 0 || !is_new {
            return 0;
        }
        *pressed = Some(Instant::now());
        1
    }

    fn arrived(&mut self) -> usize {
        let mut buffer = [0; 64];
        let mut count = 0;
        while let Ok(n @ 1..) = self.pipe.read(&mut buffer) {
            count += n;
        }
        count
    }
}

/// SIGTERM and SIGUSR1, and SIGHUP unless it is ignored.
fn preemptions() -> impl Iterator<Item = i32> {
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    [SIGTERM, SIGUSR1].into_iter().chain(hangup)
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

/// Makes signals that would stop a run end the program, after a line by `say`, until a run or a
/// sweep listens.
pub fn end_before_start(say: fn(&str)) {
    // Where the system has no thread or descriptor left, they end the process without a word.
    let _ = early_signals::listen(preemptions().chain([SIGINT]), say);
}

/// Lets this process learn how its children end, also where it was started with SIGCHLD ignored,
/// as some daemons start others: the system then forgets a child the moment it ends.
pub fn learn_ends_of_children() {
    if is_ignored(SIGCHLD) {
        // Any handler ends that. One cannot be refused for this signal.
        let _ = flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
    }
}

/// True if this process inherited the disposition to ignore `signal`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
