//! The state of a process, by its number, as Linux tells it in `/proc`.
#![expect(clippy::unwrap_used, reason = "a test's helper may stop the test")]

use std::fs;

/// Whether a process runs or is stopped; one that has ended and was not waited for yet does not.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Whether a signal stopped a process.
pub fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

/// Whether SIGKILL has reached a process: it is gone, or the kernel will end it before it runs
/// again.
///
/// # Panics
///
/// The kernel's mask of signals is no number.
pub fn is_killed(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let pends = |name: &&str| {
        field(name).is_some_and(|mask| u64::from_str_radix(mask, 16).unwrap() & (1 << 8) != 0)
    };
    let is_over = field("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
    is_over || ["SigPnd:", "ShdPnd:"].iter().any(pends)
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
