//! The end of a process and of a run; a run's failure, as one block for the user and one file for
//! programs.

use std::fmt::{self, Write as _};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::event::Phase;
use crate::files;
use crate::launch::error_report::{FORMAT, host};
use crate::plan::RunFolders;
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Remedy when memory runs out.
pub(crate) const LESS_MEMORY: &str = "reduce `train.batch_size` or `data.num_workers`, or set \
    `fault.on_oom = \"shrink_batch\"`; `ddprun plan` shows how much memory a rank needs";

/// Lines of the log that a failure shows.
const LOG_TAIL_LINES: usize = 20;
/// Bytes of the log in which those lines are looked for.
const LOG_TAIL_BYTES: u64 = 16 << 10;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => match signal_hook::low_level::signal_name(*number) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

/// The end of a run in which nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// All steps are done.
    Completed,
    /// All steps are done, and an expectation was missed.
    Missed,
    /// Stopped by a signal, and saved.
    Stopped,
    /// Stopped by Ctrl-C.
    Interrupted {
        /// True if the state was saved.
        saved: bool,
    },
}

impl Ended {
    /// The code that the program exits with.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Completed => ExitCode::Ok,
            Self::Missed => ExitCode::Expectation,
            Self::Stopped => ExitCode::Preempted,
            Self::Interrupted { .. } => ExitCode::Interrupted,
        }
    }
}

/// The first failure of a run, and what followed from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Format version.
    pub format: u32,
    /// The run: `<time>-<id>`.
    pub run: String,
    /// The rank that is the cause.
    pub rank: Rank,
    /// Process id of that rank; absent if it could not be started.
    pub pid: Option<u32>,
    /// Number of its machine, in a run over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Name of its machine.
    pub host: String,
    /// End of its process; absent if it never started, or was stopped.
    pub exit: Option<Exit>,
    pub phase: Phase,
    /// Last step begun; 0 before the first.
    pub step: u64,
    /// `file:line`, where known.
    pub place: Option<String>,
    pub message: String,
    /// Causes, outermost first.
    pub causes: Vec<String>,
    /// Remedy, where known.
    pub help: Option<String>,
    /// Code for the program to exit with.
    pub code: ExitCode,
    /// True if memory, of the machine or of a device, ran out.
    #[serde(default)]
    pub out_of_memory: bool,
    /// The log of the rank.
    pub log: PathBuf,
    /// Last lines that the rank printed.
    pub log_tail: Vec<String>,
    /// The other ranks at that time.
    pub secondary: Vec<Secondary>,
    /// Causes of earlier restarts of the group, oldest first.
    pub history: Vec<String>,
}

/// Another rank at the time of the failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Secondary {
    pub rank: Rank,
    pub pid: u32,
    pub phase: Phase,
    /// Last step begun.
    pub step: u64,
    /// The error that it reported, or the end of its process.
    pub message: String,
}

impl Failure {
    /// The code that the program exits with.
    pub fn exit_code(&self) -> ExitCode {
        self.code
    }

    /// The final message: what happened, where, why, what is saved, what to do. `saved` names the
    /// last good checkpoint.
    pub fn block(&self, saved: &str) -> String {
        let place = self.place.as_ref().map_or(String::new(), |place| format!(", {place}"));
        let pid = self.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        let node = self.node.map_or(String::new(), |node| format!("node {node}, "));
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
            let same = format!("reported: {}", self.message);
            let message = if *message == same { "reported the same error" } else { message };
            let _ = writeln!(text, "{label:<7}rank {rank} ({phase}, step {step}) {message}");
        }
        for (attempt, cause) in self.history.iter().enumerate() {
            let _ = writeln!(text, "       before restart {}: {cause}", attempt + 1);
        }
        let log = self.log.clone();
        if files::within(files::DISK_TIMEOUT, move || log.is_file()) == Some(true) {
            let _ = writeln!(text, "log:   {}", self.log.display());
        }
        for line in &self.log_tail {
            let _ = writeln!(text, "       | {line}");
        }
        let _ = write!(text, "saved: {saved}\ndo:    {}", self.remedy());
        text
    }

    /// The help of the failure, or to resume the run once the cause is fixed.
    pub(crate) fn remedy(&self) -> String {
        self.help.clone().unwrap_or_else(|| self.usual_help())
    }

    fn usual_help(&self) -> String {
        let log = self.log.display();
        let run = RunFolders::word(self.log.parent().unwrap_or(Path::new("")));
        match self.code {
            ExitCode::Bug => {
                format!("report this bug in ddprun with `{log}`; then run `ddprun resume {run}`")
            }
            _ => format!("fix the cause, then run `ddprun resume {run}`"),
        }
    }

    /// A rank that could not be started.
    pub(super) fn of_start(
        run: &RunFolders,
        rank: Rank,
        error: &std::io::Error,
        code: ExitCode,
    ) -> Box<Self> {
        let message = format!("rank {rank} cannot be started");
        Box::new(Self::new(run, rank, message, vec![error.to_string()], code))
    }

    /// A machine that is gone; `first` is its first rank.
    pub(super) fn of_node(
        run: &RunFolders,
        node: u32,
        first: Rank,
        name: &str,
        why: String,
    ) -> Box<Self> {
        let failure = Self::new(
            run,
            first,
            format!("node {node} ({name}) is gone"),
            vec![why],
            ExitCode::Peer,
        );
        let (host, log_tail) = (name.to_owned(), vec![]);
        Box::new(Self { node: Some(node), host, log_tail, ..failure })
    }

    /// A group that was ended because of another machine, whose reason is not known.
    pub(super) fn of_elsewhere(run: &RunFolders, rank: Rank) -> Box<Self> {
        let message = "another machine ended the run".to_owned();
        Box::new(Self::new(run, rank, message, vec![], ExitCode::Peer))
    }

    /// Machines that have saved, to go on with one that had come back, and did not meet.
    pub(super) fn of_failed_rendezvous(run: &RunFolders, rank: Rank) -> Box<Self> {
        let message = "the machines did not meet again".to_owned();
        Box::new(Self::new(run, rank, message, vec![], ExitCode::Peer))
    }

    pub(super) fn new(
        run: &RunFolders,
        rank: Rank,
        message: String,
        causes: Vec<String>,
        code: ExitCode,
    ) -> Self {
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
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (step {}, {}): {}", self.rank, self.step, self.phase, self.message)
    }
}

impl std::error::Error for Failure {}

/// The [`last_words`] of a log; nothing if it cannot be read, or its disk hangs.
fn tail(log: &Path) -> Vec<String> {
    let log = log.to_owned();
    let read = move || -> std::io::Result<Vec<u8>> {
        let mut file = files::open(&log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = files::within(files::DISK_TIMEOUT, read).and_then(Result::ok).unwrap_or_default();
    last_words(&String::from_utf8_lossy(&bytes))
}

/// Returns the lines that a rank, or a library, printed after the last line that ddprun wrote into
/// its log. The terminal has shown the lines of ddprun, and the error that the rank reported last
/// is that of the failure.
fn last_words(log: &str) -> Vec<String> {
    let lines: Vec<&str> = log.lines().collect();
    // All lines of one message have the same time.
    let reported = lines.iter().rev().find_map(|line| {
        let (time, words) = written(line)?;
        words.starts_with("error: ").then_some(time)
    });
    let is_earlier =
        |line: &&str| written(line).is_some_and(|(time, _)| reported.is_none_or(|at| at != time));
    let begin = lines.iter().rposition(is_earlier).map_or(0, |last| last + 1);
    let printed: Vec<&str> =
        lines[begin..].iter().copied().filter(|line| written(line).is_none()).collect();
    let last = &printed[printed.len().saturating_sub(LOG_TAIL_LINES)..];
    last.iter().map(|&line| line.to_owned()).collect()
}

/// Time and words of a line that ddprun wrote; `None` for one that was printed.
fn written(line: &str) -> Option<(&str, &str)> {
    line.split_once("  ").filter(|(time, _)| time.parse::<jiff::Timestamp>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last words of a log of these lines; those with a `|` have a time before it.
    fn of(lines: &[&str]) -> Vec<String> {
        let line = |line: &&str| match line.split_once('|') {
            Some((second, words)) => format!("2026-11-23T08:32:{second}.397Z  {words}\n"),
            None => format!("{line}\n"),
        };
        last_words(&lines.iter().map(line).collect::<String>())
    }

    #[test]
    fn the_last_words_of_a_rank_are_what_it_printed_after_the_last_line_of_ours() {
        let start = ["a library says hello", "10|warning: the disk is slow", "11|step 1/5"];
        assert!(of(&start).is_empty());
        let crash = ["thread 'training' panicked at src/a.rs:1:2:", "index out of range"];
        let reported = ["12|error: index out of range", "12|second line", "12|  do: report it"];
        assert_eq!(of(&[&start[..], &crash[..]].concat()), crash);
        assert_eq!(of(&[&start[..], &crash[..], &reported[..]].concat()), crash);
        assert!(of(&[&start[..], &reported[..]].concat()).is_empty());
        let again = ["13|Use device (DDP): cpu, rank 1/2", "about to fail"];
        assert_eq!(of(&[&crash[..], &reported[..], &again[..]].concat()), ["about to fail"]);
        assert_eq!(of(&crash), crash);
        assert_eq!(of(&["x"; 50]).len(), LOG_TAIL_LINES);
    }
}
