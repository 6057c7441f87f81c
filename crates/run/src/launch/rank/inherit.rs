#![expect(
    unsafe_code,
    reason = "what happens between fork and exec, descriptors known by number, and the environment"
)]
//! Descriptors, signals and the environment that a rank inherits from its parent; limits of the
//! thread pools of libraries, which compete with our compute threads.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};

use crate::launch::rank::env::{self, Role};

/// Signals that a terminal, Slurm or systemd sends to all processes of a run at once. Its parent
/// handles them; a rank ignores those of a terminal, Ctrl-C and its end, and the others until it
/// listens to them itself: they would kill one that still starts.
const IGNORED: [libc::c_int; 4] = [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1];

/// Candle's own pool, for sums of tensors: the calling thread only. Its threads spin while they
/// wait, and on busy cores a step took four times as long.
pub(in crate::launch) const CANDLE_THREADS: (&str, &str) = ("CANDLE_NUM_THREADS", "1");
/// Rayon's global pool, for what does not run in ours.
pub(in crate::launch) const RAYON_THREADS: &str = "RAYON_NUM_THREADS";

/// Makes the child keep `fds` over exec, die with the calling thread, and ignore what its parent
/// handles. To be called from a thread that lives as long as the child should.
pub(in crate::launch) fn prepare(command: &mut Command, fds: Vec<RawFd>) {
    let parent = rustix::process::getpid();
    let in_child = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(parent) {
            // The parent ended before the line above: its death will not be signalled.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        for &fd in &fds {
            // SAFETY: the parent holds these descriptors open until `spawn` returns.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        for signal in IGNORED {
            // SAFETY: no handler is installed, only the disposition "ignore", which outlives exec.
            let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
            if before == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(in_child) };
}

/// Time between two looks for a stopped process that has not begun.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the process. One that is stopped (SIGSTOP) before it runs its program would keep us
/// waiting for ever: after `timeout` it is killed.
///
/// # Errors
///
/// It cannot be started, or was killed.
pub(in crate::launch) fn spawn(command: &mut Command, timeout: Duration) -> io::Result<Child> {
    let parent = rustix::thread::gettid();
    let (done, is_done) = channel::<()>();
    let is_killed = &AtomicBool::new(false);
    let mut child = std::thread::scope(|scope| {
        let watch = move || {
            let mut wait = timeout;
            while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = LOOK_INTERVAL;
                if let Some(stopped) = stopped_child(parent) {
                    is_killed.store(true, Ordering::Relaxed);
                    let _ = rustix::process::kill_process(stopped, Signal::KILL);
                }
            }
        };
        // Without a thread for it nobody looks.
        let _ = std::thread::Builder::new().spawn_scoped(scope, watch);
        let child = command.spawn();
        drop(done);
        child
    })?;
    if is_killed.load(Ordering::Relaxed) {
        drop(child.wait());
        let why = format!("it was stopped (SIGSTOP) for {timeout:?} before it began, and killed");
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    Ok(child)
}

/// A child of the thread `parent` that is stopped, and still runs our program.
fn stopped_child(parent: Pid) -> Option<Pid> {
    let read = |path: String| std::fs::read(path).unwrap_or_default();
    let children = read(format!("/proc/self/task/{parent}/children"));
    let children = String::from_utf8_lossy(&children);
    let is_stopped = |pid: &i32| {
        let stat = read(format!("/proc/{pid}/stat"));
        let after_name = stat.iter().rposition(|&byte| byte == b')');
        let state = after_name.and_then(|at| stat.get(at + 2));
        let line = |pid: String| read(format!("/proc/{pid}/cmdline"));
        state == Some(&b'T') && line(pid.to_string()) == line("self".to_owned())
    };
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .find(is_stopped)
        .and_then(Pid::from_raw)
}

/// Takes ownership of the inherited descriptor `fd`, and closes it on exec from now on.
///
/// # Errors
///
/// It is not open, is one of the standard three, or was taken before.
pub(in crate::launch) fn take(fd: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if fd < 3 || taken.contains(&fd) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only used for the next call, which says whether the descriptor is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    taken.push(fd);
    // SAFETY: open, as just seen; our parent passed it to us for this purpose, and it is taken
    // once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Keeps stack frames out of the messages of errors, which `RUST_BACKTRACE` would put there; a
/// panic still has them in the log of its rank. To be called first, as `set_if_absent`.
pub fn hide_backtraces_of_errors() {
    set_if_absent("RUST_LIB_BACKTRACE", "0");
}

/// Limits the thread pools of this process, as our parent does for its ranks. Variables that are
/// set are left alone. To be called first: it does nothing in a process that has started threads.
pub fn limit_threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (name, value) in limits(env::from_environment().ok().as_ref(), cores) {
        set_if_absent(name, &value);
    }
}

/// Variables for a process of this role. A rank of another launcher has its share of the cores.
fn limits(role: Option<&Role>, cores: usize) -> Vec<(&'static str, String)> {
    let share = match role {
        Some(Role::Foreign(place)) => Some(place.share_of_cores(cores)),
        _ => None,
    };
    let candle = (CANDLE_THREADS.0, CANDLE_THREADS.1.to_owned());
    let rayon = share.map(|threads| (RAYON_THREADS, threads.to_string()));
    [candle].into_iter().chain(rayon).collect()
}

/// Sets a variable of this process's environment, unless it is set or the process has other
/// threads.
fn set_if_absent(name: &str, value: &str) {
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if is_alone && std::env::var_os(name).is_none() {
        // SAFETY: this thread is the only one, as just seen, so no other reads the environment
        // meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_stopped_before_it_begins_is_killed_and_named() {
        let mut command = Command::new("true");
        let stop = || {
            let own = rustix::process::getpid();
            Ok(rustix::process::kill_process(own, Signal::STOP)?)
        };
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(stop) };
        let refused = spawn(&mut command, Duration::from_millis(20)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it was stopped (SIGSTOP) for 20ms before it began, and killed"
        );
        let mut quick = spawn(&mut Command::new("true"), Duration::from_mins(1)).unwrap();
        assert!(quick.wait().unwrap().success());
    }

    #[test]
    fn a_rank_of_another_launcher_has_its_share_of_the_cores() {
        let shown = |environment: &str| {
            let limits = limits(env::parse(env::variables(environment)).ok().as_ref(), 8);
            limits.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(shown(""), ["CANDLE_NUM_THREADS=1"]);
        let launched = "RANK=1 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3";
        assert_eq!(shown(launched), ["CANDLE_NUM_THREADS=1", "RAYON_NUM_THREADS=2"]);
    }
}
