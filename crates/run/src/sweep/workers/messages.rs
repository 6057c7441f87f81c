//! Messages between the leader of a shared sweep and a worker: two files of lines in the worker's
//! folder, each with one writer at a time.
//!
//! ```text
//! workers/<worker>/commands.jsonl   leader -> worker     train, release
//! workers/<worker>/reports.jsonl    worker -> leader     joined, extend, beat, ended, leaving
//! workers/<worker>/.lock            held by the worker: free once it is gone, however it ended
//! ```
//!
//! Files only grow, and are opened for each read: this is what a network file system keeps
//! consistent between machines. A leader that takes over reads both files from their beginning.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::sweep::Search;
use crate::files::{self, Follower, LineFile};
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

/// A search that a worker requests in place of the sweep's present one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Extension {
    pub(super) search: Search,
    /// Total number of trials; `None` for all points of the grid or list.
    pub(super) trials: Option<usize>,
}

/// Command of the leader to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(super) enum Command {
    /// Train a trial.
    Train {
        #[serde(flatten)]
        attempt: Attempt,
        /// Changes of the base.
        changes: Vec<String>,
        /// True if the trial was started before.
        resume: bool,
    },
    /// The outcome of this attempt is known or no longer needed: stop it if it runs.
    Release {
        #[serde(flatten)]
        attempt: Attempt,
    },
}

/// Report of a worker to the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// The worker joined, and trains `slots` trials at a time.
    Joined { slots: usize },
    /// The worker's command asks for more than the sweep has.
    Extend(Box<Extension>),
    /// The worker is alive. Contains the last step of each of its trials.
    Beat { steps: Vec<(u32, u64)> },
    /// An attempt is over.
    Ended {
        #[serde(flatten)]
        attempt: Attempt,
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// The worker takes no more trials.
    Leaving,
}

/// Reads the messages since the last call. Lines that cannot be parsed are skipped.
pub(super) fn received<T: DeserializeOwned>(from: &mut Follower) -> Result<Vec<T>, files::Error> {
    let news = from.poll()?;
    Ok(news.lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Writes one message.
pub(super) fn send(to: &mut LineFile, message: &impl Serialize) -> Result<(), files::Error> {
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
        let mut lines = LineFile::open(&path).unwrap();
        for report in &reports {
            send(&mut lines, report).unwrap();
        }
        let mut follower = Follower::new(&path);
        assert_eq!(received::<Report>(&mut follower).unwrap(), reports);
        assert_eq!(received::<Report>(&mut follower).unwrap(), []);
    }
}
