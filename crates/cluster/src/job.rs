//! A job of a cluster: an experiment, or the workers of a sweep.

use std::path::{Path, PathBuf};

use crate::LongestSave;

/// A job to submit. Its paths are absolute.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the experiment or of the sweep.
    pub name: String,
    /// Unique key, in letters and digits that file and host names may have.
    pub key: String,
    /// Folder of its script, experiment and output.
    pub folder: PathBuf,
    /// Working folder, to which paths are relative.
    pub root: PathBuf,
    /// The program that runs it.
    pub program: PathBuf,
    pub work: Work,
    /// Ranks on each machine.
    pub ranks: u32,
    /// The longest save of an earlier run of it, if one is known.
    pub longest_save: Option<LongestSave>,
}

/// The work of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// An experiment: its text, with all changes.
    Experiment(String),
    /// A sweep, which its workers share.
    Sweep(Sweep),
}

/// A sweep that is submitted. Its workers read the file that the user has, not a copy: what joins
/// the sweep later, by hand or by another job, must read the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// File of the sweep, relative to the working folder.
    pub file: PathBuf,
    /// Words of the command line after the file.
    pub words: Vec<String>,
    /// Processes that share its trials, each on a machine of its own if the cluster has several.
    pub workers: u32,
}

/// File of the experiment in the job's folder.
const EXPERIMENT: &str = "experiment.toml";
/// File of the output.
const OUTPUT: &str = "output.log";
/// File of the token that authenticates ranks of several machines.
const TOKEN: &str = "token";

impl Job {
    /// The file of the experiment.
    pub fn experiment_path(&self) -> PathBuf {
        self.folder.join(EXPERIMENT)
    }

    /// The command line: `program` on the experiment in `folder`, a path on the machine that runs
    /// it, or on the sweep.
    pub fn command(&self, program: &str, folder: &str) -> Vec<String> {
        let own = |word: &str| word.to_owned();
        match &self.work {
            Work::Experiment(_) => vec![own(program), format!("{folder}/{EXPERIMENT}")],
            Work::Sweep(Sweep { file, words, .. }) => {
                let file = file.to_string_lossy().into_owned();
                let head = [own(program), own("sweep"), file].into_iter();
                head.chain(words.iter().cloned()).chain([own("--share")]).collect()
            }
        }
    }

    /// Workers, if it is a sweep.
    pub fn workers(&self) -> Option<u32> {
        match &self.work {
            Work::Experiment(_) => None,
            Work::Sweep(sweep) => Some(sweep.workers),
        }
    }

    /// The text of the experiment; a sweep's workers read their own file.
    pub fn experiment(&self) -> Option<&str> {
        match &self.work {
            Work::Experiment(text) => Some(text),
            Work::Sweep(_) => None,
        }
    }

    /// The file of the output.
    pub fn output_path(&self) -> PathBuf {
        output_in(&self.folder)
    }

    /// The file of the token.
    pub fn token_path(&self) -> PathBuf {
        self.folder.join(TOKEN)
    }
}

/// The file of the output in a job's folder.
pub(crate) fn output_in(folder: &Path) -> PathBuf {
    folder.join(OUTPUT)
}

/// The file of the output of one of several workers in a job's folder; Slurm counts from 1.
pub(crate) fn output_of_worker(folder: &Path, worker: impl std::fmt::Display) -> PathBuf {
    folder.join(format!("output-{worker}.log"))
}

/// Machines, ranks and GPUs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Machines.
    pub nodes: u32,
    /// Ranks on each machine; `None` = one for each GPU, else as many as the experiment asks for.
    pub ranks_per_node: Option<u32>,
    /// GPUs of each machine.
    pub gpus_per_node: u32,
    /// True if ranks of several machines need a token file.
    pub needs_token: bool,
    /// True if a launcher starts the ranks, and not ddprun itself.
    pub is_launched: bool,
}

impl Shape {
    /// One machine, on which ddprun starts the ranks.
    pub fn one_machine(ranks: Option<u32>) -> Self {
        Self {
            nodes: 1,
            ranks_per_node: ranks,
            gpus_per_node: 0,
            needs_token: false,
            is_launched: false,
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job of an experiment that trains MNIST.
    pub(crate) fn example() -> Self {
        Self {
            name: "mnist".to_owned(),
            key: "20261125-1200-3f9a".to_owned(),
            folder: "/project/logs/.jobs/20261125-1200-3f9a".into(),
            root: "/project".into(),
            program: "/opt/ddprun".into(),
            work: Work::Experiment("[experiment]\nname = \"mnist\"\n".to_owned()),
            ranks: 4,
            longest_save: None,
        }
    }

    /// Three workers of a sweep.
    pub(crate) fn example_sweep() -> Self {
        let work = Work::Sweep(Sweep {
            file: "experiments/tune.toml".into(),
            words: vec!["optimizer.lr=choice(0.1, 0.01)".to_owned()],
            workers: 3,
        });
        Self { name: "tune".to_owned(), work, ranks: 1, ..Self::example() }
    }
}
