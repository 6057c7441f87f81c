//! The process of another launcher that started this rank: the nearest ancestor that is no rank.

use std::fs;
use std::path::{Path, PathBuf};

/// A launcher's process on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LauncherProcess {
    /// Differs between all processes since the machine was started.
    pub(super) identity: String,
    /// The file that it runs, if that can be seen.
    pub(super) program: Option<PathBuf>,
}

/// The nearest ancestor without `variable`, which a launcher sets for each rank. A script between
/// the two has it as well.
pub(super) fn find(variable: &str) -> Option<LauncherProcess> {
    let mut pid = parent(std::process::id())?;
    // The first process has no parent.
    while pid > 1 && has_variable(pid, variable)? {
        pid = parent(pid)?;
    }
    let identity = format!("{pid} since {}", started(pid)?);
    let program = fs::read_link(place(pid, "exe")).ok();
    Some(LauncherProcess { identity, program })
}

fn place(pid: u32, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}

/// True if the process was started with a variable of this name.
fn has_variable(pid: u32, name: &str) -> Option<bool> {
    let environment = fs::read(place(pid, "environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let is_it =
        |text: &[u8]| text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
    Some(variables.any(is_it))
}

fn parent(pid: u32) -> Option<u32> {
    field(pid, 4)?.parse().ok()
}

/// When the process was started, in ticks since the machine was.
fn started(pid: u32) -> Option<String> {
    field(pid, 22)
}

/// A field of `/proc/PID/stat`, as proc(5) numbers them. The second is a name in parentheses, which
/// may hold anything.
fn field(pid: u32, number: usize) -> Option<String> {
    let text = fs::read_to_string(place(pid, "stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(number - 3).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_such_a_variable_the_launcher_is_the_parent() {
        let found = find("DDPRUN_TEST_NO_SUCH_VARIABLE").unwrap();
        let parent = parent(std::process::id()).unwrap();
        assert!(found.identity.starts_with(&format!("{parent} since ")), "{found:?}");
        assert_eq!(find("DDPRUN_TEST_NO_SUCH_VARIABLE"), Some(found));
        let variable = std::env::vars_os().next().unwrap().0.into_string().unwrap();
        assert_eq!(has_variable(std::process::id(), &variable), Some(true));
    }
}
