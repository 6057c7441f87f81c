//! A control group of Linux, in which a test may have its processes run out of memory or of
//! threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::running::until;

/// A group of its own, without limits at first.
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
