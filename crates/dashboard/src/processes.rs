//! Processor and memory use of a run's processes on this machine, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

/// A process of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Process {
    pid: u32,
    /// `parent`, or `rank N`.
    name: String,
    /// Cores that it has used on average since its start.
    cpu: Option<f64>,
    /// Bytes that it has resident.
    memory: u64,
    threads: u64,
}

/// The process that holds a run, `pid 7 on host`, and its children.
pub(crate) fn processes(holder: Option<&str>) -> Vec<Process> {
    let Some(parent) = holder.and_then(pid_here) else { return Vec::new() };
    let children = children(parent);
    let ranks = children.iter().enumerate().map(|(rank, pid)| (*pid, format!("rank {rank}")));
    let all = std::iter::once((parent, "parent".to_owned())).chain(ranks);
    all.filter_map(|(pid, name)| process(pid, name)).collect()
}

fn pid_here(holder: &str) -> Option<u32> {
    let (pid, host) = holder.strip_prefix("pid ")?.split_once(" on ")?;
    let here = rustix::system::uname();
    (here.nodename().to_str().ok()? == host).then(|| pid.parse().ok())?
}

fn children(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut found: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .collect();
    found.sort_unstable();
    found
}

fn process(pid: u32, name: String) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let lines: BTreeMap<&str, &str> = status.lines().filter_map(|it| it.split_once(':')).collect();
    let number = |key: &str| lines.get(key)?.split_whitespace().next()?.parse::<u64>().ok();
    let memory = number("VmRSS")? << 10;
    Some(Process { pid, name, cpu: cpu(pid), memory, threads: number("Threads")? })
}

/// Processor time over the time since the start of the process.
fn cpu(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may hold anything, stands in parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let uptime: f64 =
        fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    let age = uptime - field(19)? / ticks;
    (age > 0.1).then(|| (field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0)) / ticks / age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_told_and_one_of_another_machine_is_not() {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let own = std::process::id();
        let found = processes(Some(&format!("pid {own} on {host}")));
        assert_eq!((found[0].pid, found[0].name.as_str()), (own, "parent"));
        assert!(found[0].memory > 1 << 20 && found[0].threads > 0);
        assert_eq!(processes(Some(&format!("pid {own} on not-{host}"))), []);
        assert_eq!((processes(None), processes(Some("another process"))), (vec![], vec![]));
    }
}
