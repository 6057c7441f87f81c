//! Clusters: what an engine is given to run an experiment, what it is asked, and what it answers.
//!
//! ```text
//! Job + kind of cluster ─script─▶ text ─submit─▶ Call ─run─▶ id ─list─▶ states
//! ```
//!
//! What a reader would get wrong: a kind of cluster does nothing itself. It says which program is
//! to be called with what, and reads the answer; [`Call::run`] alone acts.

mod call;
mod job;
mod placement;
mod shell;
mod manifest;
mod save_time;
mod submitted;
mod kubernetes;
mod local;
mod machine;
mod slurm;
mod ssh;
mod registered;

use std::fmt::Debug;

use crate::config::clusters::CLUSTER;
use crate::config::kind::Kind;
use crate::registry::{Family, Registry, Takes};

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

/// What runs jobs.
pub trait Cluster: Debug + Send + Sync {
    /// How many machines, ranks and GPUs a job gets.
    fn shape(&self) -> Shape;

    /// Whether its jobs see the files of the machine from which they are submitted: only then can
    /// the experiment's data be looked at before.
    fn sees_files(&self) -> bool {
        true
    }

    /// The program that runs its jobs; `None` = the one that submits.
    fn program(&self) -> Option<std::path::PathBuf> {
        None
    }

    /// What its script is called in the job's folder.
    fn script_name(&self) -> &'static str {
        "job.sh"
    }

    /// What the engine is given.
    fn script(&self, job: &Job) -> String;

    /// A question to be asked before anything is submitted.
    fn question(&self) -> Option<Call> {
        None
    }

    /// What the answer to [`Cluster::question`] says against it: an option, and what is wrong.
    fn objection(&self, _answer: &str) -> Option<(&'static str, String)> {
        None
    }

    /// How long before its end a job is told to save; `None` = it is not told.
    fn save_time(&self, _job: &Job) -> Option<SaveTime> {
        None
    }

    /// What the cluster's table says that does not go with this job: an option, and what is wrong.
    fn misfit(&self, _job: &Job) -> Option<(&'static str, String)> {
        None
    }

    /// Submits what [`Cluster::script`] wrote.
    fn submit(&self, job: &Job) -> Call;

    /// The engine's name of the job that it answered to have accepted.
    fn id(&self, job: &Job, answer: &str) -> Option<String>;

    /// Asks for the states of jobs.
    fn list(&self, jobs: &[Place]) -> Call;

    /// The states in the answer to [`Cluster::list`], by the engine's names; a job that the engine
    /// has forgotten is not in it.
    fn states(&self, answer: &str) -> Vec<(String, State)>;

    /// Tells a job to save and to end.
    fn cancel(&self, job: &Place) -> Call;

    /// Whether a job that is cancelled has time to save.
    fn saves_when_cancelled(&self) -> bool {
        true
    }

    /// Where the job's output is.
    fn output(&self, job: &Place, follow: bool) -> Output;
}

/// A job that was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The engine's name of it.
    pub id: String,
    pub folder: std::path::PathBuf,
    /// Workers, if it is a sweep.
    pub workers: Option<u32>,
}

/// How a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In the engine's words: "RUNNING".
    pub word: String,
    /// Whether nothing more comes of it.
    pub is_over: bool,
}

impl State {
    /// A job that is waiting or running.
    pub fn open(word: impl Into<String>) -> Self {
        Self { word: word.into(), is_over: false }
    }

    /// A job of which nothing more comes.
    pub fn over(word: impl Into<String>) -> Self {
        Self { word: word.into(), is_over: true }
    }
}

/// Where a job's output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// In files of this machine: one, or one for each worker.
    Files(Vec<std::path::PathBuf>),
    /// What this program prints.
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

impl<K: Kind + Cluster> Takes<K> for ClusterFamily {
    fn boxed(kind: K) -> Box<dyn Cluster> {
        Box::new(kind)
    }
}

/// Kinds of clusters that a program knows.
pub type Clusters = Registry<ClusterFamily>;
