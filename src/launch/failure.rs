//! Why a run failed, as one block for the user and one file for programs.

use std::fmt::{self, Write as _};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::launch::error_report::{FORMAT, host};
use crate::launch::exit::Exit;
use crate::launch::exit_code;
use crate::launch::phase::Phase;
use crate::plan::RunFolders;
use crate::units::Rank;

/// What to do when memory runs out.
pub(crate) const LESS_MEMORY: &str = "reduce `train.batch_size` or `data.num_workers`, or set \
    `fault.on_oom = \"shrink_batch\"`; `ddprun plan` shows how much memory a rank needs";

/// Lines of the log that a failure shows.
const LOG_TAIL_LINES: usize = 20;
/// Bytes of the log in which those lines are looked for.
const LOG_TAIL_BYTES: u64 = 16 << 10;

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
    /// How its process ended; absent if it never started, or was stopped.
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
    /// What the other ranks were doing, and what they reported.
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
    /// Its own report, or how it ended.
    pub message: String,
}

impl Failure {
    /// The code that the program exits with.
    pub fn exit_code(&self) -> u8 {
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
            exit_code::BUG => format!(
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
            exit_code::PEER,
        );
        let (host, log_tail) = (name.to_owned(), vec![]);
        Box::new(Self { node: Some(node), host, log_tail, ..failure })
    }

    /// A group that was ended because of another machine, whose reason is not known.
    pub(super) fn of_elsewhere(run: &RunFolders, rank: Rank) -> Box<Self> {
        let message = "another machine ended the run".to_owned();
        Box::new(Self::new(run, rank, message, vec![], exit_code::PEER))
    }

    /// Machines that have saved, to go on with one that had come back, and did not meet.
    pub(super) fn of_meeting(run: &RunFolders, rank: Rank) -> Box<Self> {
        let message = "the machines did not meet again".to_owned();
        Box::new(Self::new(run, rank, message, vec![], exit_code::PEER))
    }

    pub(super) fn new(
        run: &RunFolders,
        rank: Rank,
        message: String,
        causes: Vec<String>,
        code: u8,
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

/// Whether a log line is progress that the terminal has shown. Output that a rank prints itself has
/// no time; warnings are worth repeating.
fn is_record(line: &str) -> bool {
    let time = line.split_once("  ").map(|(time, rest)| (time.parse::<jiff::Timestamp>(), rest));
    time.is_some_and(|(time, rest)| time.is_ok() && !rest.starts_with("warning: "))
}

/// The last lines of a log that the terminal has not shown; nothing if it cannot be read.
fn tail(log: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !is_record(line)).collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
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
