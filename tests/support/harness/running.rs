//! A process of a lab: what it says, its ranks, signals to it, and its end.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for what must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(2);
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A process of the lab that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; -n for signal n.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A process of the lab that runs; it is the leader of a process group.
pub(crate) struct Running {
    child: Child,
    /// Where it writes stdout and stderr.
    outputs: [PathBuf; 2],
}

/// Starts `command` in a process group of its own, as a shell would.
pub(crate) fn spawn(mut command: Command) -> Running {
    let outputs = ["out", "err"].map(|kind| {
        let unique = tempfile::Builder::new().prefix(kind).tempfile().unwrap();
        unique.into_temp_path().keep().unwrap()
    });
    let [stdout, stderr] = outputs.each_ref().map(|path| fs::File::create(path).unwrap());
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
    Running { child: command.spawn().unwrap(), outputs }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processes of the ranks, in rank order.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        // Nothing, if it is over.
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let text = fs::read_to_string(children).unwrap_or_default();
        let mut ranks: Vec<(u32, u32)> = text
            .split_whitespace()
            .filter_map(|pid| {
                // It may be gone, or not yet what it will be.
                let environ = fs::read_to_string(format!("/proc/{pid}/environ")).ok()?;
                let rank = environ.split('\0').find_map(|entry| entry.strip_prefix("RANK="))?;
                Some((rank.parse().unwrap(), pid.parse().unwrap()))
            })
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, pid)| pid).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.pid()), signal).unwrap();
    }

    /// How it ended, if it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.status().is_some()
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(&self.outputs[0]).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.outputs[1]).unwrap()
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> Ended {
        let began = Instant::now();
        while !self.is_over() {
            if began.elapsed() > TIMEOUT {
                let _ = self.child.kill();
                panic!("still running after {TIMEOUT:?}; stderr:\n{}", self.stderr());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let [stdout, stderr] =
            self.outputs.each_ref().map(|path| String::from_utf8(fs::read(path).unwrap()).unwrap());
        Ended { code, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.outputs.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl Ended {
    pub(crate) fn has_code(&self, code: i32) {
        let Self { stdout, stderr, .. } = self;
        assert_eq!(self.code, code, "exit code; stdout:\n{stdout}\nstderr:\n{stderr}");
    }

    /// Each of `words` is in what was said to the user.
    pub(crate) fn says(&self, words: &[&str]) {
        let text = flowing(&self.stderr);
        for word in words {
            let is_said = self.stderr.contains(word) || text.contains(&flowing(word));
            assert!(is_said, "`{word}` is not in:\n{}", self.stderr);
        }
    }
}

/// The words of a page, however its lines are broken.
pub(crate) fn flowing(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).unwrap()
}

/// Waits for `happened`.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
