//! `rank-N.log`: what one rank says, each line with its time. Only rank 0 also speaks to the
//! terminal.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::Error;
use super::text::escape;
use crate::files::Lines;
use crate::units::Rank;

/// The log of one rank.
#[derive(Debug)]
pub struct RankLog(Lines);

impl RankLog {
    /// Opens `rank-N.log` in the run's folder; an earlier process's lines stay.
    pub fn open(folder: &Path, rank: Rank) -> Result<Self, Error> {
        Ok(Self(Lines::open(&Self::path(folder, rank))?))
    }

    /// Where the log of `rank` is.
    pub fn path(folder: &Path, rank: Rank) -> PathBuf {
        folder.join(format!("rank-{rank}.log"))
    }

    /// Adds each line of `text` with the present time.
    pub fn say(&mut self, text: &str) -> Result<(), Error> {
        let now = Timestamp::now();
        let stamped: Vec<String> =
            escape(text).lines().map(|line| format!("{now:.3}  {line}")).collect();
        Ok(self.0.push(&stamped.join("\n"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_rank_has_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = RankLog::open(folder.path(), Rank(3)).unwrap();
        log.say("Use device (DDP): cpu, rank 3/4").unwrap();
        log.say("two\nlines\x07").unwrap();
        let text = std::fs::read_to_string(folder.path().join("rank-3.log")).unwrap();
        let words: Vec<(Timestamp, &str)> = text
            .lines()
            .map(|line| line.split_once("  ").unwrap())
            .map(|(time, words)| (time.parse().unwrap(), words))
            .collect();
        let said: Vec<&str> = words.iter().map(|(_, words)| *words).collect();
        assert_eq!(said, ["Use device (DDP): cpu, rank 3/4", "two", "lines\\u{7}"]);
    }
}
