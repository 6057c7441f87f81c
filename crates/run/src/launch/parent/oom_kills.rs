//! Ranks die of the kernel's OOM killer before their parent does, and the parent knows which.
//!
//! Counted by the control group of this process, in which its ranks are, too. The count of the
//! machine (`/proc/vmstat`) includes other programs. Without a control group's count no death is
//! attributed to memory.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time from the kernel's kill until its victim is gone: its memory is freed first.
const MAX_EXIT_DELAY: Duration = Duration::from_secs(10);

/// Added to the parent's OOM score for a rank: as if it used a fifth more of all memory.
const RANK_OOM_SCORE: i32 = 200;

/// Has the OOM killer take the rank of this process id before us, who can say what happened and
/// start it again. A kernel without such scores chooses as ever.
pub(super) fn prefer(rank: u32) {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let score = own.trim().parse().unwrap_or(0) + RANK_OOM_SCORE;
    let file = OpenOptions::new().write(true).open(format!("/proc/{rank}/oom_score_adj"));
    let _ = file.and_then(|mut file| file.write_all(score.min(1000).to_string().as_bytes()));
}

/// The kills that the kernel has counted since this began to look, less those that explained a
/// death.
pub(super) struct OomKills {
    /// The file with the count.
    counter: Option<PathBuf>,
    counts: Counts,
}

impl OomKills {
    pub(super) fn from_now_on() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (groups, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let mut counters = counters(&groups, &mounts).into_iter();
        let counter = counters.find(|path| read_count(path).is_some());
        let count = counter.as_deref().and_then(read_count).unwrap_or(0);
        Self { counter, counts: Counts { count, unexplained: 0, rose_at: Duration::ZERO } }
    }

    /// Reads the count. To be called regularly: a kill that is seen late is taken for a later one.
    pub(super) fn read(&mut self, now: Duration) {
        if let Some(count) = self.counter.as_deref().and_then(read_count) {
            self.counts.update(count, now);
        }
    }

    /// True if a process that has just died of SIGKILL is one of those that the kernel killed.
    pub(super) fn explain_death(&mut self, now: Duration) -> bool {
        self.read(now);
        self.counts.explain_death(now)
    }
}

/// The part that reads no files.
#[derive(Debug)]
struct Counts {
    count: u64,
    unexplained: u64,
    /// When the count last rose.
    rose_at: Duration,
}

impl Counts {
    fn update(&mut self, count: u64, now: Duration) {
        if count > self.count {
            self.forget(now);
            self.unexplained += count - self.count;
            self.rose_at = now;
        }
        self.count = count;
    }

    fn explain_death(&mut self, now: Duration) -> bool {
        self.forget(now);
        let explains = self.unexplained > 0;
        self.unexplained = self.unexplained.saturating_sub(1);
        explains
    }

    /// Kills of long ago were of other processes.
    fn forget(&mut self, now: Duration) {
        if now > self.rose_at + MAX_EXIT_DELAY {
            self.unexplained = 0;
        }
    }
}

fn read_count(path: &Path) -> Option<u64> {
    count(&std::fs::read_to_string(path).ok()?)
}

/// The number after `oom_kill`.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Files that may hold the count of the control group of a process with this `/proc/self/cgroup`
/// and `/proc/self/mountinfo`, best first.
fn counters(groups: &str, mounts: &str) -> Vec<PathBuf> {
    mounts.lines().filter_map(|mount| counters_in(mount, groups)).flatten().collect()
}

fn counters_in(mount: &str, groups: &str) -> Option<Vec<PathBuf>> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, at) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    // Version 2 has one hierarchy without a name, version 1 one for each controller.
    let (controller, files): (_, &[&str]) = match kind {
        "cgroup2" => ("", &["memory.events.local", "memory.events"]),
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            ("memory", &["memory.oom_control"])
        }
        _ => return None,
    };
    // A container may see a part of the hierarchy only.
    let inside = Path::new(own_group(groups, controller)?).strip_prefix(root).ok()?;
    Some(files.iter().map(|file| Path::new(at).join(inside).join(file)).collect())
}

/// The path of a process's group under this controller.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which deaths, at these seconds, are explained by the counts read at (second, count).
    #[track_caller]
    fn check(reads: &[(u64, u64)], deaths: &[u64], expected: &[bool]) {
        let second = Duration::from_secs;
        let mut counts = Counts { count: 5, unexplained: 0, rose_at: Duration::ZERO };
        let mut reads = reads.iter().peekable();
        let mut explained = Vec::new();
        for death in deaths {
            while let Some((at, count)) = reads.next_if(|(at, _)| at <= death) {
                counts.update(*count, second(*at));
            }
            explained.push(counts.explain_death(second(*death)));
        }
        assert_eq!(explained, expected);
    }

    #[test]
    fn a_death_just_after_the_kernel_killed_is_explained_once() {
        check(&[(100, 6)], &[100], &[true]);
        check(&[(100, 6)], &[103, 104], &[true, false]);
        check(&[(100, 7)], &[101, 102], &[true, true]);
    }

    #[test]
    fn a_kill_of_long_ago_explains_no_death() {
        check(&[(100, 6)], &[3700], &[false]);
        check(&[(100, 5)], &[101], &[false]);
        check(&[(100, 6), (3700, 7)], &[3701, 3702], &[true, false]);
    }

    #[test]
    fn the_count_is_found_in_both_versions() {
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(count("oom_killer 7\n"), None);
    }

    #[test]
    fn the_own_group_is_found_where_it_is_mounted_and_never_another() {
        let find = |groups: &str, mounts: &str| -> Vec<String> {
            let found = counters(groups, mounts);
            found.iter().map(|path| path.display().to_string()).collect()
        };
        let second = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            find("0::/user.slice/a.scope\n", second),
            [
                "/sys/fs/cgroup/user.slice/a.scope/memory.events.local",
                "/sys/fs/cgroup/user.slice/a.scope/memory.events"
            ]
        );
        let first = "33 25 0:29 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            34 25 0:30 /docker/7 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let own = "4:cpu,cpuacct:/docker/7\n3:memory:/docker/7/x\n0::/\n";
        assert_eq!(find(own, first), ["/sys/fs/cgroup/memory/x/memory.oom_control"]);
        assert!(find("3:memory:/elsewhere\n", first).is_empty());
        assert!(find("", second).is_empty());
    }
}
