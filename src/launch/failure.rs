//! A failed run, as one block for the user and one file for programs.

use std::fmt::{self, Write as _};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::launch::Phase;
use crate::launch::error_report::{FORMAT, host};
use crate::launch::parent::group::{Exit, Fault, Group, Member};
use crate::launch::parent::stall::{Kind, Stall};
use crate::plan::RunFolders;
use crate::units::Rank;

/// Lines of the log that a failure shows.
const TAIL_LINES: usize = 20;
/// Bytes of the log in which those lines are looked for.
const TAIL_BYTES: u64 = 16 << 10;

/// The first failure of a run, and what followed from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Version of this form.
    pub format: u32,
    /// The run: `<time>-<id>`.
    pub run: String,
    /// The rank that is the cause.
    pub rank: Rank,
    /// Its process; absent if it could not be started.
    pub pid: Option<u32>,
    /// Number of its machine, in a run over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Its machine.
    pub host: String,
    /// How its process ended; absent if it never started, or stood still.
    pub exit: Option<Exit>,
    /// What it was doing.
    pub phase: Phase,
    /// Last step begun; 0 before the first.
    pub step: u64,
    /// `file:line`, where known.
    pub place: Option<String>,
    /// What happened.
    pub message: String,
    /// Why, outermost first.
    pub causes: Vec<String>,
    /// What to do about it, where known.
    pub help: Option<String>,
    /// Code for the program to exit with.
    pub code: u8,
    /// Whether memory, of the machine or of a device, ran out.
    #[serde(default)]
    pub out_of_memory: bool,
    /// The log of the rank.
    pub log: PathBuf,
    /// Its last lines.
    pub log_tail: Vec<String>,
    /// What the other ranks were doing, and what they said.
    pub secondary: Vec<Secondary>,
    /// Why the group was started again before, oldest first.
    pub history: Vec<String>,
}

/// Another rank at the time of the failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Secondary {
    /// The rank.
    pub rank: Rank,
    /// Its process.
    pub pid: u32,
    /// What it was doing.
    pub phase: Phase,
    /// Last step begun.
    pub step: u64,
    /// What it said, or how it ended.
    pub message: String,
}

/// What to do when memory runs out.
const LESS_MEMORY: &str = "reduce `train.batch_size` or `data.num_workers`, or set `fault.on_oom = \
    \"shrink_batch\"`; `ddprun plan` shows how much memory a rank needs";

impl Failure {
    /// The code that the program exits with: that of the rank, where it is one of ours.
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// The final words: what happened, where, why, what is saved, what to do. `saved` names the last good checkpoint.
    pub fn block(&self, saved: &str) -> String {
        let place = self.place.as_ref().map_or(String::new(), |place| format!(", {place}"));
        let pid = self.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        let node = self.node.map_or(String::new(), |node| format!("node {node}, "));
        // A message without a cause says it all itself.
        let why = match self.causes.join(": ") {
            causes if causes.is_empty() => String::new(),
            causes => format!("why:   {causes}\n"),
        };
        let mut text = format!(
            "error: {}\nwhere: rank {} on {node}{}{pid}, {}, step {}{place}\n{why}",
            self.message, self.rank, self.host, self.phase, self.step
        );
        for (index, other) in self.secondary.iter().enumerate() {
            let Secondary { rank, phase, step, message, .. } = other;
            let label = if index == 0 { "then:" } else { "" };
            let same = format!("said: {}", self.message);
            let message = if *message == same { "said the same" } else { message };
            let _ = writeln!(text, "{label:<7}rank {rank} ({phase}, step {step}) {message}");
        }
        for (attempt, cause) in self.history.iter().enumerate() {
            let _ = writeln!(text, "       before restart {}: {cause}", attempt + 1);
        }
        if self.log.is_file() {
            let _ = writeln!(text, "log:   {}", self.log.display());
        }
        for line in &self.log_tail {
            let _ = writeln!(text, "       | {line}");
        }
        let _ = write!(text, "saved: {saved}\ndo:    {}", self.remedy());
        text
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> String {
        self.help.clone().unwrap_or_else(|| self.usual_help())
    }

    fn usual_help(&self) -> String {
        let log = self.log.display();
        match self.code {
            70 => format!(
                "this is a bug in ddprun: report it with `{log}`; then `ddprun resume {}`",
                self.run
            ),
            _ => format!("`ddprun resume {}`, once the cause is fixed", self.run),
        }
    }

    /// A rank that could not be started.
    pub(super) fn of_start(
        run: &RunFolders,
        rank: Rank,
        error: &std::io::Error,
        code: u8,
    ) -> Box<Self> {
        let message = format!("rank {rank} cannot be started");
        Box::new(Self::new(run, rank, message, vec![error.to_string()], code))
    }

    /// A rank that failed by itself.
    pub(super) fn of_fault(run: &RunFolders, group: &Group, rank: Rank, fault: Fault) -> Box<Self> {
        let member = group.member(rank);
        let exit = member.exit.map(|(_, exit)| exit).filter(|_| !member.was_killed);
        if let Some(why) = group.lack_of_memory(rank) {
            let message = format!("rank {rank} ran out of memory");
            let failure = Self::new(run, rank, message, vec![why], 8).with_member(member, group);
            let help = Some(LESS_MEMORY.to_owned());
            return Box::new(Self { exit, out_of_memory: true, help, ..failure });
        }
        let (message, causes, code) = match (fault, &member.report) {
            (_, Some(report)) => (report.message.clone(), report.causes.clone(), report.exit_code),
            (Fault::Signal(signal), _) => {
                (format!("rank {rank} {}", Exit::Signal(signal)), vec![sender(signal)], 5)
            }
            (Fault::Left(code), _) => (
                format!("rank {rank} exited before the run ended"),
                vec![format!("its process exited with code {code} with work left to do")],
                5,
            ),
            (Fault::Code(code), _) => (
                format!("rank {rank} {}", Exit::Code(code)),
                vec!["it gave no reason: see its log".to_owned()],
                own_code(code),
            ),
            (Fault::Reported, None) => (format!("rank {rank} failed"), vec![], 70),
        };
        let failure = Self::new(run, rank, message, causes, code).with_member(member, group);
        let out_of_memory = member.report.as_ref().is_some_and(|report| report.out_of_memory);
        Box::new(Self { exit, out_of_memory, ..failure })
    }

    /// A rank that stands still while the others waited for it.
    pub(super) fn of_frozen(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
        let member = group.member(rank);
        let message = format!("rank {rank} (pid {}) is stopped (SIGSTOP)", member.pid);
        let why = "its process was stopped, and the other ranks could not go on without it";
        Box::new(Self::new(run, rank, message, vec![why.to_owned()], 5).with_member(member, group))
    }

    /// A rank that held up the others.
    pub(super) fn of_stall(run: &RunFolders, group: &Group, stall: Stall) -> Box<Self> {
        let Stall { rank, kind, time } = stall;
        let member = group.member(rank);
        let (what, why) = match kind {
            Kind::Lifeless => {
                ("shown a sign of life", "its process is frozen, or starved of cores")
            }
            Kind::Silent => ("made progress", hindrance(member.phase)),
            Kind::Together => ("made progress", hindrance(Phase::Reducing)),
        };
        let (pid, seconds) = (member.pid, time.as_secs_f64());
        let message = format!("rank {rank} (pid {pid}) has not {what} for {seconds:.1} s");
        Box::new(Self::new(run, rank, message, vec![why.to_owned()], 5).with_member(member, group))
    }

    /// A rank that others waited for until their deadline.
    pub(super) fn of_missed(run: &RunFolders, group: &Group, rank: Rank) -> Box<Self> {
        let member = group.member(rank);
        let message =
            format!("rank {rank} (pid {}) did not join the other ranks in time", member.pid);
        let why = vec![hindrance(member.phase).to_owned()];
        Box::new(Self::new(run, rank, message, why, 5).with_member(member, group))
    }

    /// A machine that is gone; `first` is its first rank.
    pub(super) fn of_node(
        run: &RunFolders,
        (node, first): (u32, Rank),
        name: &str,
        why: String,
    ) -> Box<Self> {
        let failure = Self::new(run, first, format!("node {node} ({name}) is gone"), vec![why], 5);
        let (host, log_tail) = (name.to_owned(), vec![]);
        Box::new(Self { node: Some(node), host, log_tail, ..failure })
    }

    /// A group that was ended because of another machine, whose reason is not known.
    pub(super) fn of_elsewhere(run: &RunFolders, rank: Rank) -> Box<Self> {
        let message = "another machine ended the run".to_owned();
        Box::new(Self::new(run, rank, message, vec![], 5))
    }

    fn new(run: &RunFolders, rank: Rank, message: String, causes: Vec<String>, code: u8) -> Self {
        let log = run.logs.join(format!("rank-{rank}.log"));
        Self {
            format: FORMAT,
            run: run.id.clone(),
            rank,
            pid: None,
            node: None,
            host: host(),
            exit: None,
            phase: Phase::Starting,
            step: 0,
            place: None,
            message,
            causes,
            help: None,
            code,
            out_of_memory: false,
            log_tail: tail(&log),
            log,
            secondary: vec![],
            history: vec![],
        }
    }

    fn with_member(self, member: &Member, group: &Group) -> Self {
        let others = group.ranks().filter(|(rank, _)| *rank != self.rank);
        let report = member.report.as_ref();
        Self {
            pid: Some(member.pid),
            phase: member.phase,
            step: member.step,
            place: report.and_then(|report| report.place.clone()),
            help: report.and_then(|report| report.help.clone()),
            secondary: others.map(|(rank, other)| secondary(rank, other)).collect(),
            ..self
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (step {}, {}): {}", self.rank, self.step, self.phase, self.message)
    }
}

impl std::error::Error for Failure {}

fn secondary(rank: Rank, member: &Member) -> Secondary {
    let message = match (&member.report, member.exit) {
        (Some(report), _) => format!("said: {}", report.message),
        (None, None) => {
            format!("cannot be killed (pid {}); the machine may need a restart", member.pid)
        }
        (None, Some(_)) if member.was_killed => "was ended with the group".to_owned(),
        (None, Some((_, exit))) => exit.to_string(),
    };
    Secondary { rank, pid: member.pid, phase: member.phase, step: member.step, message }
}

/// What may keep a rank in a phase for ever.
fn hindrance(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting | Phase::Joining => "it does not get ready: a slow disk, or too few cores",
        Phase::LoadingData => {
            "its loader delivers no batch: a file system that does not respond, or a file without end"
        }
        Phase::Forward | Phase::Backward => {
            "its computation does not end: too few cores, or an operation of the model that hangs"
        }
        Phase::Reducing => "all ranks wait for each other in collectives that none completes",
        Phase::Optimizer | Phase::Evaluating | Phase::Saving | Phase::Finishing => {
            "its work between two steps does not end: a disk that does not respond, or too few cores"
        }
    }
}

/// Who may have sent a signal that was not ours.
fn sender(signal: i32) -> String {
    match signal {
        libc::SIGKILL => {
            "not by ddprun: the kernel sends it when memory runs out (see `dmesg`), or it was killed manually"
        }
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGABRT => {
            "a crash in native code; a core dump may exist (see `coredumpctl`)"
        }
        _ => "not by ddprun: another process sent it",
    }
    .to_owned()
}

/// Codes that a rank may pass through to the program; anything else is a bug of ours (Rust's panic is 101).
fn own_code(code: i32) -> u8 {
    u8::try_from(code).ok().filter(|code| (2..=8).contains(code)).unwrap_or(70)
}

/// Whether a line of a log says how the training went, which the terminal has shown; what a rank prints itself has no time,
/// and warnings are worth to be seen again.
fn is_record(line: &str) -> bool {
    let time = line.split_once("  ").map(|(time, rest)| (time.parse::<jiff::Timestamp>(), rest));
    time.is_some_and(|(time, rest)| time.is_ok() && !rest.starts_with("warning: "))
}

/// The last lines of a log that the terminal has not shown; nothing if it cannot be read.
fn tail(log: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !is_record(line)).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_what_the_terminal_has_not_shown() {
        let time = "2026-11-23T08:32:47.397Z  ";
        assert!(is_record(&format!("{time}epoch 1: 64 samples for 2 ranks")));
        assert!(!is_record(&format!("{time}warning: the disk is slow")));
        assert!(!is_record("thread 'training' panicked at src/a.rs:1:2:"));
        assert!(!is_record("about to fail"));
    }
}
