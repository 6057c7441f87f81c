//! The command lines of the verbs that look after runs (`ls`, `compare`, `tag`, `logs`, `rm`) and
//! jobs on clusters (`submit`, `jobs`, `cancel`).

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun ls\n  ddprun ls --state running --tag baseline\n  \
    ddprun ls logs/sweep_quickstart --sort val/accuracy")]
pub(crate) struct LsArgs {
    /// Folder to search, a name in `logs` (or `run:NAME`) or a run's id; for a sweep, its trials.
    #[arg(default_value = "logs")]
    pub(crate) folder: PathBuf,
    /// Only runs with this tag; if given several times, with all of them.
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// Only runs in this state; if given several times, in any of them.
    #[arg(long = "state", value_name = "STATE")]
    #[arg(value_parser = ["running", "finished", "stopped", "failed", "killed", "pruned"])]
    pub(crate) states: Vec<String>,
    /// `start` (the oldest first), or a metric such as `val/accuracy` (the best first).
    #[arg(long, value_name = "METRIC", default_value = "start")]
    pub(crate) sort: String,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun compare 20261123-0207 20261123-0311\n  \
    ddprun compare quickstart resnet --out curves.png")]
pub(crate) struct CompareArgs {
    /// Two or more runs: folders, names, or unique prefixes of ids. Or one sweep: what sets its
    /// best trials apart.
    #[arg(required = true, num_args = 1.., value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// File for the picture of all curves. Default: `compare.png` in the first run's folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace FILE if it exists already.
    #[arg(long, requires = "out")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun tag quickstart +baseline -old\n  \
    ddprun tag 20261123-0207")]
pub(crate) struct TagArgs {
    /// Run folder, its name, or a unique prefix of its id; of a sweep, its best trial.
    pub(crate) run: String,
    /// `+tag` adds a tag, `-tag` removes it; without any, the run's tags are printed.
    #[arg(value_name = "+TAG | -TAG", allow_hyphen_values = true)]
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun logs\n  ddprun logs -f quickstart --rank 1\n  \
    ddprun logs -f 4711")]
pub(crate) struct LogsArgs {
    /// Run folder, its name, or a unique prefix of its id; or a submitted job. Default: the newest
    /// run.
    #[arg(value_name = "RUN | JOB")]
    pub(crate) run: Option<String>,
    /// Follow the log until the run or job ends.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The rank.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) rank: u32,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun rm 20261123-0207 --dry-run\n  \
    ddprun rm 20261123-0207 logs/quickstart/20261123-031100-58d1")]
pub(crate) struct RmArgs {
    /// Runs to remove with their checkpoints: folders, names, or unique prefixes of ids. A sweep
    /// goes with all its trials. With `--leftovers`, the folders to search; default: `logs`.
    #[arg(required_unless_present = "leftovers", value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Only print what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Remove what an interrupted `ddprun rm` has left, and no run. Every `ddprun rm` does that too.
    #[arg(long)]
    pub(crate) leftovers: bool,
}

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
