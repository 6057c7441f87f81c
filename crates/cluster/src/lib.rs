//! Clusters: scripts for an engine that runs experiments, calls to it, and its answers.
//!
//! ```text
//! Job + kind of cluster ─script─▶ text ─submit─▶ Call ─run─▶ id ─list─▶ states
//! ```
//!
//! A kind of cluster does nothing itself. It says which program is to be called with which
//! arguments, and reads the answer; [`Call::run`] alone acts.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

use ddprun_host::{files, registry, user_error};
use ddprun_plan::{config, plan, terminal};
use train_numbers::units;
mod call;
mod job;
mod placement;
mod shell;
mod machine;
mod manifest;
mod save_time;
mod submitted;
mod kubernetes;
mod local;
mod slurm;
mod ssh;
mod registered;

use std::fmt::Debug;

use crate::config::clusters::CLUSTER;
use crate::config::kind::Kind;
use crate::registry::{Accepts, Family, Registry};

pub use call::{Call, Error};
pub use job::{Job, Shape, Sweep, Work};
pub use kubernetes::Kubernetes;
pub use local::Local;
pub use placement::{facts_of, placed};
pub use save_time::{LongestSave, SaveTime};
pub use slurm::Slurm;
pub use ssh::Ssh;
pub use submitted::{FORMAT, Submitted, all, find, folder_of, write};

/// The default of options that name the program: as the `PATH` of a machine has it.
fn ddprun() -> String {
    "ddprun".to_owned()
}

/// An engine that runs jobs.
pub trait Cluster: Debug + Send + Sync {
    /// Machines, ranks and GPUs of a job.
    fn shape(&self) -> Shape;

    /// True if its jobs see the files of the machine from which they are submitted: only then can
    /// the experiment's data be looked at before.
    fn sees_files(&self) -> bool {
        true
    }

    /// The program that runs its jobs; `None` = the one that submits.
    fn program(&self) -> Option<std::path::PathBuf> {
        None
    }

    /// Name of the script in the job's folder.
    fn script_name(&self) -> &'static str {
        "job.sh"
    }

    /// The script for the engine.
    fn script(&self, job: &Job) -> String;

    /// A question to be asked before anything is submitted.
    fn question(&self) -> Option<Call> {
        None
    }

    /// Objection that follows from the answer to [`Cluster::question`]: an option, and the reason.
    fn objection(&self, _answer: &str) -> Option<(&'static str, String)> {
        None
    }

    /// Time before its end at which a job is told to save; `None` = it is not told.
    fn save_time(&self, _job: &Job) -> Option<SaveTime> {
        None
    }

    /// An option of the cluster's table that does not fit this job, and the reason.
    fn misfit(&self, _job: &Job) -> Option<(&'static str, String)> {
        None
    }

    /// Submits what [`Cluster::script`] wrote.
    fn submit(&self, job: &Job) -> Call;

    /// Name that the engine gave to the accepted job, from its answer.
    fn id(&self, job: &Job, answer: &str) -> Option<String>;

    /// Asks for the states of jobs.
    fn list(&self, jobs: &[JobHandle]) -> Call;

    /// The states in the answer to [`Cluster::list`], by the engine's names; a job that the engine
    /// has forgotten is not in it.
    fn states(&self, answer: &str) -> Vec<(String, State)>;

    /// Tells a job to save and to end.
    fn cancel(&self, handle: &JobHandle) -> Call;

    /// True if a job that is cancelled has time to save.
    fn saves_when_cancelled(&self) -> bool {
        true
    }

    /// Finds the job's output.
    fn output(&self, handle: &JobHandle, follow: bool) -> Output;
}

/// A submitted job, as its engine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHandle {
    /// Name that the engine gave to the job.
    pub id: String,
    pub folder: std::path::PathBuf,
    /// Workers, if it is a sweep.
    pub workers: Option<u32>,
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In the engine's words: "RUNNING".
    pub word: String,
    /// True if the job has ended.
    pub is_over: bool,
}

impl State {
    /// A job that is waiting or running.
    pub fn open(word: impl Into<String>) -> Self {
        Self { word: word.into(), is_over: false }
    }

    /// A job that has ended.
    pub fn over(word: impl Into<String>) -> Self {
        Self { word: word.into(), is_over: true }
    }
}

/// The output of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// In files of this machine: one, or one for each worker.
    Files(Vec<std::path::PathBuf>),
    /// Printed by this program.
    Call(Call),
}

/// `[cluster.NAME]`
#[derive(Debug)]
pub enum ClusterFamily {}

impl Family for ClusterFamily {
    const TABLE: &'static str = CLUSTER;
    const NOUN: &'static str = "kind of cluster";
    type Object = dyn Cluster;
}

impl<K: Kind + Cluster> Accepts<K> for ClusterFamily {
    fn boxed(kind: K) -> Box<dyn Cluster> {
        Box::new(kind)
    }
}

/// Kinds of clusters that a program knows.
pub type Clusters = Registry<ClusterFamily>;
