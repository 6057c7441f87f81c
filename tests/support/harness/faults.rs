//! What tests make the system refuse: system calls, by `strace`; memory and threads, by a control
//! group of Linux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::bits::{Bits, bits};
use crate::harness::experiments::four_steps;
use crate::harness::lab::Lab;
use crate::harness::running::until;

/// What no system call can be stopped at without.
pub(crate) const TRACER: &str = "no `strace`, or it may not trace";

/// Whether this machine has an `strace` that may trace.
pub(crate) fn can_trace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// An undisturbed run of [`four_steps`]: the data that the others use, and what they must end
/// with.
pub(crate) fn undisturbed() -> (Lab, String, Bits) {
    let lab = Lab::with(&four_steps());
    let data = format!("data.dir={}", lab.path("data/shapes").display());
    lab.run_to(0, &["small.toml", &data]);
    let expected = bits(&lab);
    (lab, data, expected)
}

/// A control group of its own, without limits at first.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// A group under this controller ("memory", "pids"), with `limit` in the first of `files` that
    /// it has; `None` where this user may not make one.
    pub(crate) fn new(controller: &str, files: [&str; 2], limit: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("ddprun-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let roots = [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()];
        for root in roots.iter().map(Path::new).filter(|root| root.join("cgroup.procs").exists()) {
            let group = Self(root.join(&name));
            if fs::create_dir(&group.0).is_ok() && group.set(files, limit) {
                return Some(group);
            }
        }
        None
    }

    fn set(&self, files: [&str; 2], limit: u64) -> bool {
        let path = files.map(|file| self.0.join(file)).into_iter().find(|path| path.exists());
        path.is_some_and(|path| fs::write(path, limit.to_string()).is_ok())
    }

    /// A shell's words that run `program` in this group.
    pub(crate) fn script(&self, program: &str) -> String {
        format!("echo $$ > {}/cgroup.procs && exec {program}", self.0.display())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Processes leave their group a moment after they are gone.
        if self.0.exists() && !std::thread::panicking() {
            until("the end of the control group", || fs::remove_dir(&self.0).is_ok());
        }
    }
}
