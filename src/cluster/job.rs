//! What is to be run.

use std::path::{Path, PathBuf};

/// An experiment that is submitted. Its paths are whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The experiment's name.
    pub name: String,
    /// Tells it from all other jobs, in letters and digits that file and host names may have.
    pub key: String,
    /// What belongs to the job: its script, its experiment, its output.
    pub folder: PathBuf,
    /// Where the experiment's paths begin.
    pub root: PathBuf,
    /// The program that runs it.
    pub program: PathBuf,
    /// The experiment with all changes.
    pub experiment: String,
    /// Ranks on each machine.
    pub ranks: u32,
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

/// How many machines, ranks and GPUs a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Machines.
    pub nodes: u32,
    /// Ranks on each machine; `None` = one for each GPU, else as many as the experiment asks for.
    pub ranks_per_node: Option<u32>,
    /// GPUs of each machine.
    pub gpus_per_node: u32,
    /// Whether ranks of several machines need a token file.
    pub needs_token: bool,
    /// Whether a launcher starts the ranks, and not ddprun itself.
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
            experiment: "[experiment]\nname = \"mnist\"\n".to_owned(),
            ranks: 4,
        }
    }
}
