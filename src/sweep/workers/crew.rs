//! The workers of a shared sweep, as its leader knows them by their files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::{self, Follower, Lines};
use crate::sweep::request::Outcome;
use crate::sweep::workers::messages::{
    Attempt, COMMANDS, Command, REPORTS, Report, received, send,
};

/// One worker.
struct Member {
    commands: Lines,
    reports: Follower,
    /// When it last wrote something, by our clock: no two clocks are compared.
    heard: Instant,
    /// Whether it wrote anything since we look at it, so that it is not long gone.
    is_here: bool,
    is_leaving: bool,
    slots: usize,
    /// Attempts that are not released, and how they ended.
    attempts: BTreeMap<Attempt, Option<Outcome>>,
    steps: BTreeMap<u32, u64>,
}

/// How an attempt stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// It runs; the last step that is known.
    Runs(Option<u64>),
    /// It has ended.
    Ended(Outcome),
    /// Its worker is silent for too long.
    Silent,
}

/// All workers.
pub(super) struct Crew {
    folder: PathBuf,
    /// Silence after which a worker counts as lost.
    lease: Duration,
    members: BTreeMap<String, Member>,
    /// The latest attempt of each trial.
    latest: BTreeMap<u32, u32>,
}

impl Crew {
    /// The workers below `folder`; `me`, this process, is known to be there.
    pub(super) fn new(folder: &Path, lease: Duration, me: &str) -> Result<Self, files::Error> {
        let (members, latest) = Default::default();
        let mut crew = Self { folder: folder.to_owned(), lease, members, latest };
        crew.look()?;
        // What was written before we looked does not say that its writer is there.
        for (name, member) in &mut crew.members {
            member.is_here = name == me;
        }
        Ok(crew)
    }

    /// Reads what all workers have written since.
    pub(super) fn look(&mut self) -> Result<(), files::Error> {
        for name in self.names()? {
            if !self.members.contains_key(&name) {
                let member = Member::open(&self.folder.join(&name), &mut self.latest)?;
                self.members.insert(name, member);
            }
        }
        self.members.values_mut().try_for_each(Member::look)
    }

    /// Folders of workers that have joined.
    fn names(&self) -> Result<Vec<String>, files::Error> {
        let failed = |reason| files::Error::io("read", &self.folder)(reason);
        let entries = std::fs::read_dir(&self.folder).map_err(failed)?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| self.folder.join(name).join(REPORTS).exists()).collect())
    }

    /// Trials that can be trained at the same time now.
    pub(super) fn slots(&self) -> usize {
        self.members.values().filter(|member| self.works(member)).map(|member| member.slots).sum()
    }

    fn works(&self, member: &Member) -> bool {
        member.is_here && !member.is_leaving && member.heard.elapsed() < self.lease
    }

    /// The attempt at `trial` that an earlier leader began, and who has it.
    pub(super) fn begun(&self, trial: u32) -> Option<(String, Attempt)> {
        let attempt = Attempt { trial, attempt: *self.latest.get(&trial)? };
        let has = |(_, member): &(&String, &Member)| member.attempts.contains_key(&attempt);
        self.members.iter().find(has).map(|(name, _)| (name.clone(), attempt))
    }

    /// Gives a trial to the worker with the most room; `None` if none has any.
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

    /// Has workers stop trials that are not `running` any more: an earlier leader gave them up, and
    /// went before it could say so.
    pub(super) fn release_all_but(&mut self, running: &[u32]) -> Result<(), files::Error> {
        let is_over = |attempt: &&Attempt| !running.contains(&attempt.trial);
        let of = |(name, member): (&String, &Member)| -> Vec<(String, Attempt)> {
            member.attempts.keys().filter(is_over).map(|it| (name.clone(), *it)).collect()
        };
        let over: Vec<(String, Attempt)> = self.members.iter().flat_map(of).collect();
        over.iter().try_for_each(|(name, attempt)| self.release(name, *attempt, true))
    }

    /// How an attempt of this worker stands.
    pub(super) fn standing(&self, name: &str, attempt: Attempt) -> Standing {
        let Some(member) = self.members.get(name) else { return Standing::Silent };
        match member.attempts.get(&attempt) {
            Some(Some(outcome)) => Standing::Ended(outcome.clone()),
            Some(None) if member.heard.elapsed() < self.lease => {
                Standing::Runs(member.steps.get(&attempt.trial).copied())
            }
            _ => Standing::Silent,
        }
    }

    /// Has a worker stop this attempt, and forgets it if `is_over`.
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
            commands: Lines::open(&path)?,
            reports: Follower::new(&folder.join(REPORTS)),
            heard: Instant::now(),
            is_here: false,
            is_leaving: false,
            slots: 0,
            attempts,
            steps: BTreeMap::new(),
        })
    }

    /// Trials that it can take.
    fn room(&self) -> usize {
        self.slots.saturating_sub(self.attempts.values().filter(|end| end.is_none()).count())
    }

    fn look(&mut self) -> Result<(), files::Error> {
        for report in received(&mut self.reports)? {
            (self.heard, self.is_here) = (Instant::now(), true);
            match report {
                Report::Joined { slots } => self.slots = slots,
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
