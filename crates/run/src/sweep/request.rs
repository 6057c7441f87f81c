//! The order for a sweep, and the trainer of its trials.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind, SINKS};
use crate::config::sweep::{Sweep, Values, change_of};
use crate::config::{Loaded, sweep as config};
use crate::plan::RunFolders;
use crate::record::{Jsonl, Screen};
use crate::sweep::Error;
use crate::sweep::earlier::EarlierResults;
use crate::sweep::method::{Method, Methods};
use crate::sweep::pruner::Pruners;
use crate::sweep::ranking::{Ranking, n_not_better, reaches};
use crate::sweep::sampler::BaseValues;
use crate::sweep::trial::{Length, State, Trial, id};
use crate::transport::Waker;

/// Ranks of a run, of which each trial has `sweep.devices_per_trial`.
const DEVICES: &str = "distributed.devices";

/// Trains trials: by launching ranks, or as a test needs.
pub trait Trainer: Sync {
    /// Plans the experiment with these changes, without touching anything.
    fn check(&self, changes: &[String]) -> Result<Length, String>;

    /// Trains a trial to its end, or until its waker is rung; `on_step` receives its steps. Its
    /// reports are in `events.jsonl` in its folder.
    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome;

    /// Differences between the data of the trial in these folders at its start and the present
    /// data; none by default.
    fn other_data(&self, _folders: &RunFolders, _changes: &[String]) -> Vec<String> {
        Vec::new()
    }

    /// Draws the pictures of a trial; none by default. Its devices are free by then: the next one
    /// trains.
    fn report(&self, _job: &Job) {}

    /// Number of trials that can be trained at the same time now; `None` for that of the order.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// Returns true if another process has begun to train this trial and may still be training it;
    /// false by default.
    fn is_under_way(&self, _trial: u32) -> bool {
        false
    }

    /// Returns true if the sweep should continue with another search.
    fn is_extended(&self) -> bool {
        false
    }
}

/// A trial for its trainer.
#[derive(Debug)]
pub struct Job {
    pub folders: RunFolders,
    /// Changes to the base experiment.
    pub changes: Vec<String>,
    /// Cores that it may use.
    pub cores: usize,
    /// GPUs that it may use, as CUDA numbers them for this process; empty where trials compute on
    /// the CPU.
    pub gpus: Vec<usize>,
    /// True if it was started before.
    pub resume: bool,
    /// Rung to stop it.
    pub waker: Arc<Waker>,
    /// Set if it is stopped because it was pruned.
    pub is_pruned: AtomicBool,
}

/// Trains a trial; a panic is a failure of this trial alone.
pub(super) fn trained(trainer: &dyn Trainer, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
    let panicked = |_| Outcome::Failed { error: "ddprun panicked".to_owned(), cause: Cause::Other };
    catch_unwind(AssertUnwindSafe(|| trainer.train(job, on_step))).unwrap_or_else(panicked)
}

/// Outcome of the training of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// Stopped, with its state saved.
    Stopped,
    /// The machine that trained it is gone or leaving: another one resumes it.
    Lost,
    Failed {
        error: String,
        cause: Cause,
    },
}

impl Outcome {
    /// The outcome of a training that was asked to stop: a failure then, as of a cancelled restart,
    /// says nothing about the trial. It is resumed, and fails again if it must.
    pub(super) fn when_stopping(self) -> Self {
        match self {
            Self::Failed { cause: Cause::Other, .. } => Self::Stopped,
            other => other,
        }
    }
}

/// Draws a trial's pictures. A failure changes nothing about the trial.
pub(super) fn reported(trainer: &dyn Trainer, job: &Job) {
    drop(catch_unwind(AssertUnwindSafe(|| trainer.report(job))));
}

/// Kind of failure that ended a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Loss or gradients became infinite or NaN: a result, and a bad one.
    Diverged,
    /// Something could not be written, which says nothing about the trial's values.
    Storage,
    /// Anything else.
    Other,
}

/// Resources for trials.
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

/// Everything needed to run a sweep.
#[derive(Clone, Copy)]
pub struct SweepRequest<'a> {
    pub sweep: &'a Sweep,
    /// The experiment that all trials change.
    pub base: &'a Loaded,
    /// Known search methods.
    pub methods: &'a Methods,
    /// Known pruners.
    pub pruners: &'a Pruners,
    pub machine: Machine,
    /// When this start of the sweep stops.
    pub deadline: Option<Instant>,
    /// True if another search may continue with the trials in the folder (`--extend`).
    pub extend: bool,
    /// True to retry failed trials; those that could not write are retried in any case.
    pub retry_failed: bool,
    /// Results of other sweeps and runs from which this one starts.
    pub earlier: &'a [EarlierResults],
    pub screen: Screen,
}

/// End of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepEnd {
    /// All trials have ended.
    Done {
        /// Number of failed trials.
        failed: usize,
    },
    /// More trials failed than `max_failures` allows.
    TooManyFailures,
    /// A finished trial has reached `sweep.until`.
    Reached,
    /// `sweep.patience` settings in a row were not better than the best.
    NoneBetter,
    /// `sweep.time` is over; the same command continues the sweep.
    OutOfTime,
    /// Stopped by a signal; the same command continues it.
    Stopped {
        /// True for Ctrl-C.
        interrupted: bool,
    },
    /// The trainer requests another search.
    Extended,
}

impl SweepRequest<'_> {
    /// The folder of the sweep: journal, table, pictures, and a folder for each trial.
    pub fn folder(&self) -> PathBuf {
        self.base.experiment.logging.dir.join(&self.sweep.name)
    }

    /// The search method.
    pub fn method(&self) -> Result<Box<dyn Method>, Error> {
        Ok(self.methods.build(&self.sweep.search.method)?)
    }

    /// The ranking of trials.
    pub fn ranking(&self) -> Result<Ranking, Error> {
        let search = &self.sweep.search;
        Ok(Ranking { goal: search.goal, pruner: self.pruners.build(&search.pruner)?.into() })
    }

    /// Number of trials that run at the same time.
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

    /// True if its time is over.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// True if `trials` have reached `sweep.until`.
    pub(super) fn is_reached(&self, trials: &[Trial]) -> bool {
        self.sweep.until.is_some_and(|until| reaches(trials, self.sweep.search.goal, until))
    }

    /// True if `sweep.patience` settings in a row were not better than the best of `trials`.
    pub(super) fn is_out_of_patience(&self, trials: &[Trial]) -> bool {
        let goal = self.sweep.search.goal;
        self.sweep.patience.is_some_and(|patience| n_not_better(trials, goal) >= patience)
    }

    /// Returns true if a trial is retried when the sweep continues.
    pub(super) fn retries(&self, trial: &Trial) -> bool {
        trial.state == State::Failed && (self.retry_failed || trial.lacked_storage)
    }

    /// Changes of every trial beside its values.
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

/// The `wanted` of `count` GPUs that `jobs` use least.
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

/// Indices of the `wanted` GPUs with the fewest trials, `trials[gpu]`, in order; all GPUs if there
/// are fewer.
fn least_used(trials: &[usize], wanted: usize) -> Vec<usize> {
    let mut gpus: Vec<usize> = (0..trials.len()).collect();
    gpus.sort_by_key(|&gpu| (trials[gpu], gpu));
    gpus.truncate(wanted);
    gpus.sort_unstable();
    gpus
}

/// `CUDA_VISIBLE_DEVICES` for a process that uses `gpus` of the devices visible here, where the
/// variable is `ours`.
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
