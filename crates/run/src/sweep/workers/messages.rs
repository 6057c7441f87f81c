//! What the leader of a shared sweep and a worker write to each other: two files of lines in the
//! worker's folder, each with one writer at a time.
//!
//! ```text
//! workers/<worker>/commands.jsonl   leader -> worker     train, release
//! workers/<worker>/reports.jsonl    worker -> leader     joined, extend, beat, ended, leaving
//! workers/<worker>/.lock            held by the worker: free once it is gone, however it went
//! ```
//!
//! Files only grow, and are opened for each look: that is what a network file system keeps
//! consistent between machines. A leader that takes over reads both files from their beginning.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::sweep::Search;
use crate::files::{self, Follower, Lines};
use crate::sweep::request::Outcome;

/// Name of the leader's file.
pub(super) const COMMANDS: &str = "commands.jsonl";
/// Name of the worker's file.
pub(super) const REPORTS: &str = "reports.jsonl";

/// One training of a trial by one worker. A trial that lost its worker has a later attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Attempt {
    /// Number of the trial.
    pub(super) trial: u32,
    /// Counted from 1, over all workers.
    pub(super) attempt: u32,
}

/// A search that a worker asks for, in place of the one that the sweep has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Extension {
    /// What is searched from here on.
    pub(super) search: Search,
    /// Trials in all; `None` = all points of the grid or list.
    pub(super) trials: Option<usize>,
}

/// What the leader wants of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(super) enum Command {
    /// Train a trial.
    Train {
        #[serde(flatten)]
        attempt: Attempt,
        /// Changes of the base.
        changes: Vec<String>,
        /// Whether the trial was begun before.
        resume: bool,
    },
    /// The end of this attempt is known, or not wanted any more: stop it if it runs.
    Release {
        #[serde(flatten)]
        attempt: Attempt,
    },
}

/// What a worker tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// It trains so many trials at a time.
    Joined { slots: usize },
    /// Its command asks for more than the sweep has.
    Extend(Box<Extension>),
    /// It is there; the last step of each trial that it trains.
    Beat { steps: Vec<(u32, u64)> },
    /// An attempt is over.
    Ended {
        #[serde(flatten)]
        attempt: Attempt,
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// It takes no more trials.
    Leaving,
}

/// The messages that have come since the last look. A line that cannot be read says nothing.
pub(super) fn received<T: DeserializeOwned>(from: &mut Follower) -> Result<Vec<T>, files::Error> {
    let news = from.poll()?;
    Ok(news.lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Writes one message.
pub(super) fn send(to: &mut Lines, message: &impl Serialize) -> Result<(), files::Error> {
    to.push(&serde_json::to_string(message).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::search;
    use crate::sweep::request::Cause;

    #[test]
    fn messages_are_read_as_they_were_written_and_torn_ones_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(REPORTS);
        let attempt = Attempt { trial: 7, attempt: 2 };
        let outcome = Outcome::Failed { error: "a \"b\"".to_owned(), cause: Cause::Storage };
        let reports = [
            Report::Joined { slots: 2 },
            Report::Extend(Box::new(Extension { search: search("random"), trials: Some(8) })),
            Report::Beat { steps: vec![(7, 120)] },
            Report::Ended { attempt, outcome },
            Report::Ended { attempt, outcome: Outcome::Done },
            Report::Leaving,
        ];
        files::write_atomic(&path, b"{\"report\":\"be").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        for report in &reports {
            send(&mut lines, report).unwrap();
        }
        let mut follower = Follower::new(&path);
        assert_eq!(received::<Report>(&mut follower).unwrap(), reports);
        assert_eq!(received::<Report>(&mut follower).unwrap(), []);
    }
}
