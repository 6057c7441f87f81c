//! The command lines of the verbs that look after jobs on clusters: `submit`, `jobs`, `cancel`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun submit experiments/quickstart.toml --on lab\n  \
    ddprun submit experiments/quickstart.toml train.epochs=3 --on lab --print\n  \
    ddprun submit experiments/sweep_quickstart.toml --on lab --workers 8")]
pub(crate) struct SubmitArgs {
    /// Experiment file or sweep file.
    pub(crate) experiment: PathBuf,
    /// Overrides: `train.batch_size=64`; `~scheduler.warmup` restores the default. A search space
    /// (`optimizer.lr=0.1,0.01`) makes it a sweep.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Cluster: a table `[cluster.NAME]` of `ddprun.toml`, beside the experiment or in this folder,
    /// or of `~/.config/ddprun/clusters.toml`.
    #[arg(long, value_name = "NAME")]
    pub(crate) on: String,
    /// Workers that share the trials of a sweep (default: the cluster's `nodes`, else 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Print the script or manifest, and submit nothing.
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun jobs\n  ddprun jobs --on lab --json")]
pub(crate) struct JobsArgs {
    /// Only jobs of this cluster.
    #[arg(long, value_name = "NAME")]
    pub(crate) on: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:\n  ddprun cancel 4711")]
pub(crate) struct CancelArgs {
    /// Jobs, as `ddprun jobs` lists them.
    #[arg(required = true, value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
}
