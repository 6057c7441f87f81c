//! How often the kernel has killed a process because memory ran out.

use std::path::Path;

/// The count of this process's control group and those below it, else of the machine; `None` where the system does
/// not tell. Our ranks are in the same group.
pub(super) fn by_kernel() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let own = read(Path::new("/proc/self/cgroup"));
    let events = own.as_deref().and_then(own_group).and_then(|group| {
        let group = Path::new("/sys/fs/cgroup").join(group.trim_start_matches('/'));
        read(&group.join("memory.events"))
    });
    let events = events.or_else(|| read(Path::new("/proc/vmstat")))?;
    count(&events)
}

/// The path of the unified hierarchy (cgroup v2) in `/proc/self/cgroup`.
fn own_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The number after `oom_kill`.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_both_files() {
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("nr_free_pages 1\noom_kill 7\n"), Some(7));
        assert_eq!(count("oom_killer 7\n"), None);
        assert_eq!(
            own_group("1:name=systemd:/\n0::/user.slice/a.scope\n"),
            Some("/user.slice/a.scope")
        );
    }
}
