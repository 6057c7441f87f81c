//! Programs of the user that run beside ddprun, each the leader of a process group of its own: the
//! terminal's Ctrl-C is for ddprun.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Interval at which the end of a process is looked for.
const POLL: Duration = Duration::from_millis(20);

/// A command line for `sh`, in a process group of its own.
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).process_group(0);
    shell
}

/// Waits for the end of the process, until `is_over`; `None` if it still runs then, or nothing is
/// known of it.
pub fn wait_until(child: &mut Child, mut is_over: impl FnMut() -> bool) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Err(_) => return None,
            Ok(None) if is_over() => return None,
            Ok(None) => std::thread::sleep(POLL),
        }
    }
}

/// Ends all processes of a [`shell`], and waits for the first.
pub fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    drop(child.wait());
}
