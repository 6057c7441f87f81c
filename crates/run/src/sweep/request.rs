//! What is asked of a sweep, and of what trains its trials.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind, SINKS};
use crate::config::sweep::{Sweep, Values, change_of};
use crate::config::{Loaded, sweep as config};
use crate::plan::RunFolders;
use crate::record::{Jsonl, Screen};
use crate::sweep::Error;
use crate::sweep::method::{Method, Methods};
use crate::sweep::pruner::Pruners;
use crate::sweep::ranking::Ranking;
use crate::sweep::sampler::BaseValues;
use crate::sweep::trial::{Length, State, Trial, id};
use crate::transport::Waker;

/// Ranks of a run, of which each trial has `sweep.devices_per_trial`.
const DEVICES: &str = "distributed.devices";

/// Makes runs out of trials: the program's way from an experiment to its ranks, or a test's.
pub trait Trainer: Sync {
    /// Decides the experiment with these changes, without touching anything.
    fn check(&self, changes: &[String]) -> Result<Length, String>;

    /// Trains a trial to its end, or until its waker is rung; `on_step` hears where it is. What it
    /// reports stands in `events.jsonl` of its folder.
    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome;

    /// What differs between the data that the trial in these folders was begun with and those that
    /// it would be trained on now; by default nothing.
    fn other_data(&self, _folders: &RunFolders, _changes: &[String]) -> Vec<String> {
        Vec::new()
    }

    /// Makes pictures of what a trial recorded; by default none. Its devices are free by then: the
    /// next one trains.
    fn report(&self, _job: &Job) {}

    /// Trials that can be trained at the same time now; `None` means as many as the order says.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// Whether another process has begun to train this trial and may be training it still; by
    /// default none has.
    fn is_under_way(&self, _trial: u32) -> bool {
        false
    }

    /// Whether the sweep is to go on with another search than it was begun with.
    fn is_extended(&self) -> bool {
        false
    }
}

/// A trial, as its trainer needs to know it.
#[derive(Debug)]
pub struct Job {
    /// Where it writes.
    pub folders: RunFolders,
    /// Changes of the base.
    pub changes: Vec<String>,
    /// Cores that it may use.
    pub cores: usize,
    /// GPUs that it may use, as CUDA numbers them for this process; empty where trials compute on
    /// the CPU.
    pub gpus: Vec<usize>,
    /// Whether it was begun before.
    pub resume: bool,
    /// Rung to stop it.
    pub waker: Arc<Waker>,
    /// Whether it is stopped because it was given up.
    pub is_pruned: AtomicBool,
}

/// Trains a trial; a panic is a failure of this trial alone.
pub(super) fn trained(trainer: &dyn Trainer, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
    let panicked = |_| Outcome::Failed { error: "ddprun panicked".to_owned(), cause: Cause::Other };
    catch_unwind(AssertUnwindSafe(|| trainer.train(job, on_step))).unwrap_or_else(panicked)
}

/// How the training of a trial ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It was stopped, and saved.
    Stopped,
    /// The machine that trained it is gone or leaves: another resumes it.
    Lost,
    /// It failed.
    Failed {
        /// Why, in words.
        error: String,
        /// What that means for the sweep.
        cause: Cause,
    },
}

impl Outcome {
    /// What is left of it where the training was asked to stop: a failure then, as of a restart
    /// that was called off, says nothing about the trial. It is resumed, and fails again if it
    /// must.
    pub(super) fn when_stopping(self) -> Self {
        match self {
            Self::Failed { cause: Cause::Other, .. } => Self::Stopped,
            other => other,
        }
    }
}

/// Makes a trial's pictures. One that cannot be drawn changes nothing about the trial.
pub(super) fn reported(trainer: &dyn Trainer, job: &Job) {
    drop(catch_unwind(AssertUnwindSafe(|| trainer.report(job))));
}

/// What kind of failure ended a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its numbers were not finite any more: a result, and a bad one.
    Diverged,
    /// Something could not be written: it says nothing about the trial's values.
    Storage,
    /// Anything else.
    Other,
}

/// What there is to run trials on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores to divide among trials.
    pub cores: usize,
    /// GPUs to divide among trials.
    pub gpus: usize,
}

impl Machine {
    /// Devices to divide among trials: without GPUs, the cores.
    pub fn devices(self) -> usize {
        if self.gpus > 0 { self.gpus } else { self.cores }
    }
}

/// How a sweep is run.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    /// What was asked.
    pub sweep: &'a Sweep,
    /// The experiment that all trials change.
    pub base: &'a Loaded,
    /// Search methods that are known.
    pub methods: &'a Methods,
    /// Pruners that are known.
    pub pruners: &'a Pruners,
    /// What there is to run it on.
    pub machine: Machine,
    /// Whether another search may go on with the trials of the folder.
    pub extend: bool,
    /// Whether failed trials are tried again; those that could not write are in any case.
    pub retry_failed: bool,
    /// How to write to the terminal.
    pub screen: Screen,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All trials are done; so many of them failed.
    Done {
        /// Failed trials.
        failed: usize,
    },
    /// More trials failed than `max_failures` allows.
    TooManyFailures,
    /// A signal stopped it; the same command goes on.
    Stopped {
        /// Whether it was Ctrl-C.
        interrupted: bool,
    },
    /// It goes on with another search, as its trainer says.
    Extended,
}

impl Order<'_> {
    /// The folder of the sweep: journal, table, pictures, and a folder for each trial.
    pub fn folder(&self) -> PathBuf {
        self.base.experiment.logging.dir.join(&self.sweep.name)
    }

    /// Where the values of trials come from.
    pub fn method(&self) -> Result<Box<dyn Method>, Error> {
        Ok(self.methods.build(&self.sweep.search.method)?)
    }

    /// By what trials are compared.
    pub fn ranking(&self) -> Result<Ranking, Error> {
        let search = &self.sweep.search;
        Ok(Ranking { goal: search.goal, pruner: self.pruners.build(&search.pruner)?.into() })
    }

    /// Trials that run at the same time.
    pub fn concurrent(&self) -> usize {
        let sweep = self.sweep;
        let room = self.machine.devices() * sweep.trials_per_device as usize;
        let auto = (room / sweep.search.devices_per_trial as usize).max(1);
        sweep.concurrent_trials.given().map_or(auto, |count| count as usize)
    }

    /// The values of the keys that no parameter changes, as all trials have them.
    pub(super) fn base_values(&self) -> BaseValues {
        let devices = self.sweep.search.devices_per_trial;
        BaseValues::of(&self.base.experiment).with(DEVICES, devices.into())
    }

    /// Whether a trial is tried again when the sweep goes on.
    pub(super) fn retries(&self, trial: &Trial) -> bool {
        trial.state == State::Failed && (self.retry_failed || trial.lacked_storage)
    }

    /// What every trial changes, beside its values.
    pub fn common_changes(&self) -> Vec<String> {
        let devices = self.sweep.search.devices_per_trial;
        let mut changes = self.sweep.changes.clone();
        changes.extend(config::watching(self.sweep));
        changes.push(format!("{DEVICES}={devices}"));
        let sinks = &self.base.experiment.logging.sinks;
        if !sinks.iter().any(|sink| sink.name == Jsonl::NAME) {
            // Reports are read from there.
            let mut logging = self.base.experiment.logging.clone();
            logging.sinks.push(Entry::named(Jsonl::NAME));
            let logging = serde_json::to_value(logging).unwrap_or_default();
            changes.push(change_of(SINKS, &logging["sinks"]));
        }
        changes
    }

    /// A trial for this machine, beside `others` and as one of `concurrent`.
    pub(super) fn job<'a>(
        &self,
        number: u32,
        changes: Vec<String>,
        resume: bool,
        concurrent: usize,
        others: impl Iterator<Item = &'a Job>,
    ) -> Result<Arc<Job>, Error> {
        let devices = self.sweep.search.devices_per_trial as usize;
        Ok(Arc::new(Job {
            folders: self.folders(number),
            changes,
            cores: (self.machine.cores / concurrent.max(1)).max(1),
            gpus: least_used_gpus(self.machine.gpus, others, devices),
            resume,
            waker: Arc::new(Waker::new().map_err(Error::system("make a waker"))?),
            is_pruned: AtomicBool::new(false),
        }))
    }

    pub(super) fn changes(&self, values: &Values) -> Vec<String> {
        let mut changes = self.common_changes();
        changes.extend(values.iter().map(|(key, value)| change_of(key, value)));
        changes
    }

    pub(super) fn folders(&self, number: u32) -> RunFolders {
        let experiment = &self.base.experiment;
        let at = |dir: &Path| dir.join(&self.sweep.name).join(id(number));
        let logs = at(&experiment.logging.dir);
        let checkpoints = at(&experiment.checkpoint.dir);
        RunFolders { id: id(number), logs, checkpoints }
    }
}

/// The `wanted` GPUs of a machine with `count` that `jobs` use least.
fn least_used_gpus<'a>(
    count: usize,
    jobs: impl Iterator<Item = &'a Job>,
    wanted: usize,
) -> Vec<usize> {
    let mut trials = vec![0; count];
    for gpu in jobs.flat_map(|job| &job.gpus) {
        trials[*gpu] += 1;
    }
    least_used(&trials, wanted)
}

/// Numbers of the `wanted` GPUs with the fewest trials on them, of those that CUDA shows:
/// `trials[gpu]` run on each. In their order; all of them if there are fewer.
fn least_used(trials: &[usize], wanted: usize) -> Vec<usize> {
    let mut gpus: Vec<usize> = (0..trials.len()).collect();
    gpus.sort_by_key(|&gpu| (trials[gpu], gpu));
    gpus.truncate(wanted);
    gpus.sort_unstable();
    gpus
}

/// `CUDA_VISIBLE_DEVICES` of a process that shall see `gpus` of those that this one sees with
/// `ours`.
pub fn visible_gpus(gpus: &[usize], ours: Option<&str>) -> String {
    let named: Vec<&str> =
        ours.map_or(Vec::new(), |names| names.split(',').map(str::trim).collect());
    let name =
        |gpu: &usize| named.get(*gpu).map_or_else(|| gpu.to_string(), |name| (*name).to_owned());
    gpus.iter().map(name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_side_by_side_share_no_gpu_as_long_as_one_is_free() {
        assert_eq!(least_used(&[0, 0, 0, 0], 2), [0, 1]);
        assert_eq!(least_used(&[1, 1, 0, 0], 2), [2, 3]);
        assert_eq!(
            least_used(&[1, 0, 1, 1], 2),
            [0, 1],
            "one is free, the other the first of the rest"
        );
        assert_eq!(least_used(&[2, 1, 1], 1), [1]);
        assert_eq!(least_used(&[0, 0], 3), [0, 1]);
        assert_eq!(least_used(&[], 1), [0; 0]);
    }

    #[test]
    fn a_trial_sees_its_gpus_by_the_names_that_we_see_them_by() {
        assert_eq!(visible_gpus(&[1, 3], None), "1,3");
        assert_eq!(visible_gpus(&[0, 1], Some("4, 6,7")), "4,6");
        assert_eq!(visible_gpus(&[1], Some("GPU-8932f937,GPU-1e4d")), "GPU-1e4d");
        assert_eq!(visible_gpus(&[], Some("4")), "");
    }
}
