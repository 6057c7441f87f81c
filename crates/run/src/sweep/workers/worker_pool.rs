//! The workers of a shared sweep, as the leader knows them from their files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::files::{self, Follower, LineFile, is_unlocked};
use crate::sweep::request::Outcome;
use crate::sweep::workers::Timing;
use crate::sweep::workers::messages::{
    Attempt, COMMANDS, Command, Extension, REPORTS, Report, received, send,
};

/// One worker.
struct Member {
    commands: LineFile,
    reports: Follower,
    /// Time of the last report by the leader's clock: no two clocks are compared.
    last_report: Instant,
    /// True if its process has ended, by the lock that it held.
    is_gone: bool,
    is_leaving: bool,
    extension: Option<Extension>,
    slots: usize,
    /// Attempts that are not released, with their outcomes.
    attempts: BTreeMap<Attempt, Option<Outcome>>,
    steps: BTreeMap<u32, u64>,
}

/// State of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttemptState {
    /// Running; the last known step.
    Runs(Option<u64>),
    Ended(Outcome),
    /// The worker has been silent for too long.
    Silent,
}

/// All workers.
pub(super) struct WorkerPool {
    folder: PathBuf,
    timing: Timing,
    members: BTreeMap<String, Member>,
    /// The latest attempt of each trial.
    latest: BTreeMap<u32, u32>,
}

impl WorkerPool {
    /// The workers below `folder`.
    pub(super) fn new(folder: &Path, timing: Timing) -> Result<Self, files::Error> {
        let (members, latest) = Default::default();
        let mut pool = Self { folder: folder.to_owned(), timing, members, latest };
        pool.look()?;
        // What was written before we looked does not say that its writer is there.
        for (name, member) in &mut pool.members {
            member.is_gone = is_unlocked(&pool.folder.join(name));
        }
        Ok(pool)
    }

    /// Reads the new reports of all workers.
    pub(super) fn look(&mut self) -> Result<(), files::Error> {
        for name in self.names()? {
            if !self.members.contains_key(&name) {
                let member = Member::open(&self.folder.join(&name), &mut self.latest)?;
                self.members.insert(name, member);
            }
        }
        for (name, member) in &mut self.members {
            member.look()?;
            // It may be slow; without its lock it is gone.
            if !member.is_gone && member.last_report.elapsed() > 2 * self.timing.beat {
                member.is_gone = is_unlocked(&self.folder.join(name));
            }
        }
        Ok(())
    }

    /// Folders of workers that have joined.
    fn names(&self) -> Result<Vec<String>, files::Error> {
        let failed = |reason| files::Error::io("read", &self.folder)(reason);
        let entries = std::fs::read_dir(&self.folder).map_err(failed)?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| self.folder.join(name).join(REPORTS).exists()).collect())
    }

    /// Number of trials that can be trained at the same time now. Trials of a worker that takes no
    /// more do not use the places of other workers.
    pub(super) fn slots(&self) -> usize {
        let of = |member: &Member| {
            if self.works(member) { member.slots } else { member.n_running() }
        };
        self.members.values().map(of).sum()
    }

    fn is_there(&self, member: &Member) -> bool {
        !member.is_gone && member.last_report.elapsed() < self.timing.lease
    }

    fn works(&self, member: &Member) -> bool {
        self.is_there(member) && !member.is_leaving
    }

    /// The first extension requested by a worker outside of `settled`, with the worker's name.
    pub(super) fn extension(&self, settled: &BTreeSet<String>) -> Option<(&str, &Extension)> {
        let is_open =
            |(name, member): &(&String, &Member)| !member.is_gone && !settled.contains(*name);
        let mut asked = self.members.iter().filter(is_open);
        asked.find_map(|(name, member)| Some((name.as_str(), member.extension.as_ref()?)))
    }

    /// The open attempt at `trial`, with the name of its worker.
    pub(super) fn begun(&self, trial: u32) -> Option<(String, Attempt)> {
        let attempt = Attempt { trial, attempt: *self.latest.get(&trial)? };
        let has = |(_, member): &(&String, &Member)| member.attempts.contains_key(&attempt);
        self.members.iter().find(has).map(|(name, _)| (name.clone(), attempt))
    }

    /// Assigns a trial to the worker with the most room; `None` if none has any.
    pub(super) fn assign(
        &mut self,
        trial: u32,
        changes: &[String],
        resume: bool,
    ) -> Result<Option<(String, Attempt)>, files::Error> {
        let works = self.members.iter().filter(|(_, member)| self.works(member));
        let freest = works.max_by_key(|(_, member)| member.room());
        let Some(name) =
            freest.filter(|(_, member)| member.room() > 0).map(|(name, _)| name.clone())
        else {
            return Ok(None);
        };
        let attempt =
            Attempt { trial, attempt: self.latest.get(&trial).map_or(1, |last| last + 1) };
        let Some(member) = self.members.get_mut(&name) else { return Ok(None) };
        let changes = changes.to_vec();
        send(&mut member.commands, &Command::Train { attempt, changes, resume })?;
        member.attempts.insert(attempt, None);
        self.latest.insert(trial, attempt.attempt);
        Ok(Some((name, attempt)))
    }

    /// Stops all trials that are not `running` any more: an earlier leader gave them up, and ended
    /// before it could release them.
    pub(super) fn release_all_but(&mut self, running: &[u32]) -> Result<(), files::Error> {
        let is_over = |attempt: &&Attempt| !running.contains(&attempt.trial);
        let of = |(name, member): (&String, &Member)| -> Vec<(String, Attempt)> {
            member.attempts.keys().filter(is_over).map(|it| (name.clone(), *it)).collect()
        };
        let over: Vec<(String, Attempt)> = self.members.iter().flat_map(of).collect();
        over.iter().try_for_each(|(name, attempt)| self.release(name, *attempt, true))
    }

    /// The state of an attempt of worker `name`.
    pub(super) fn attempt_state(&self, name: &str, attempt: Attempt) -> AttemptState {
        let Some(member) = self.members.get(name) else { return AttemptState::Silent };
        match member.attempts.get(&attempt) {
            Some(Some(outcome)) => AttemptState::Ended(outcome.clone()),
            Some(None) if self.is_there(member) => {
                AttemptState::Runs(member.steps.get(&attempt.trial).copied())
            }
            _ => AttemptState::Silent,
        }
    }

    /// Tells a worker to stop this attempt, and removes it if `is_over`.
    pub(super) fn release(
        &mut self,
        name: &str,
        attempt: Attempt,
        is_over: bool,
    ) -> Result<(), files::Error> {
        let Some(member) = self.members.get_mut(name) else { return Ok(()) };
        if is_over {
            member.attempts.remove(&attempt);
        }
        send(&mut member.commands, &Command::Release { attempt })
    }
}

impl Member {
    fn open(folder: &Path, latest: &mut BTreeMap<u32, u32>) -> Result<Self, files::Error> {
        let path = folder.join(COMMANDS);
        let mut attempts = BTreeMap::new();
        for command in received(&mut Follower::new(&path))? {
            match command {
                Command::Train { attempt, .. } => {
                    let last = latest.entry(attempt.trial).or_default();
                    *last = attempt.attempt.max(*last);
                    attempts.insert(attempt, None);
                }
                Command::Release { attempt } => drop(attempts.remove(&attempt)),
            }
        }
        Ok(Self {
            commands: LineFile::open(&path)?,
            reports: Follower::new(&folder.join(REPORTS)),
            last_report: Instant::now(),
            is_gone: false,
            is_leaving: false,
            extension: None,
            slots: 0,
            attempts,
            steps: BTreeMap::new(),
        })
    }

    /// Number of trials that it can take.
    fn room(&self) -> usize {
        self.slots.saturating_sub(self.n_running())
    }

    fn n_running(&self) -> usize {
        self.attempts.values().filter(|end| end.is_none()).count()
    }

    fn look(&mut self) -> Result<(), files::Error> {
        for report in received(&mut self.reports)? {
            (self.last_report, self.is_gone) = (Instant::now(), false);
            match report {
                Report::Joined { slots } => self.slots = slots,
                Report::Extend(extension) => self.extension = Some(*extension),
                Report::Beat { steps } => self.steps = steps.into_iter().collect(),
                Report::Ended { attempt, outcome } => {
                    if let Some(end) = self.attempts.get_mut(&attempt) {
                        *end = Some(outcome);
                    }
                }
                Report::Leaving => self.is_leaving = true,
            }
        }
        Ok(())
    }
}
