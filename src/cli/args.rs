//! The command line. Flags follow torchrun, dash and underscore both; `key=value` follows Hydra.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::cli::runs_args::{
    CancelArgs, CompareArgs, JobsArgs, LogsArgs, LsArgs, RmArgs, SubmitArgs, TagArgs,
};
use crate::export::ExportFormat;
use crate::init::TableTask;
use crate::model::Library;
use crate::plan::TestTimeAugmentation;

/// Train the model described by an experiment file, on this machine's devices.
#[derive(Debug, Parser)]
#[command(name = "ddprun", version, args_conflicts_with_subcommands = true, max_term_width = 80)]
#[command(subcommand_negates_reqs = true, arg_required_else_help = true)]
#[command(after_help = "Examples:\n  ddprun experiments/quickstart.toml\n  \
    ddprun experiments/quickstart.toml distributed.devices=1 data.num_workers=2\n  \
    ddprun plan experiments/quickstart.toml\n  ddprun resume")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
    /// Print JSON for programs, one object a line: results, the events of a training, errors.
    // Read before the rest of the command line, so that errors in it are objects, too.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    // Last, as the heading of its last options stands over all that follows.
    #[command(flatten)]
    pub(crate) run: Run,
}

/// What ddprun can do beside training.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Write an experiment for a file or folder of data, with its choices explained.
    Init(InitArgs),
    /// Show every value that a run would use, and its source, without training.
    Plan(PlanArgs),
    /// Check experiment, sweep and clusters files alone, without their data or devices: for
    /// pre-commit and CI.
    Check(CheckArgs),
    /// Try each part of a run in a temporary folder: two steps, validation, a save, a resume from
    /// it and a prediction.
    Try(Run),
    /// Continue a run from its newest checkpoint, optionally with more epochs.
    Resume(ResumeArgs),
    /// Evaluate a run's best checkpoint, or given weights, on validation and test data.
    Eval(EvalArgs),
    /// Predict unlabelled files with a run's best checkpoint.
    Predict(PredictArgs),
    /// Answer predictions of a run's best checkpoint over HTTP.
    #[command(name = "serve-model")]
    ServeModel(ServeModelArgs),
    /// Generate text or actions with a run's best checkpoint.
    Sample(SampleArgs),
    /// Search for hyperparameters: grid, random, TPE, pruning; or run a learning-rate range test.
    Sweep(SweepArgs),
    /// Check that results are bitwise identical at several world sizes, or on several machines, by
    /// training a few steps.
    Doctor(DoctorArgs),
    /// Print a run's metrics and redraw its curves, or print the results of a sweep.
    Report(ReportArgs),
    /// Show all runs and sweeps below a folder in the browser, while they train and afterwards.
    Serve(ServeArgs),
    /// List runs and sweeps with their states.
    Ls(LsArgs),
    /// Compare runs: settings, metrics, machines, and their curves in one picture.
    Compare(CompareArgs),
    /// Print the log of a rank; `-f` follows a run until it ends.
    Logs(LogsArgs),
    /// Add tags to a run or remove them, even while it trains.
    Tag(TagArgs),
    /// Remove runs with their checkpoints.
    Rm(RmArgs),
    /// Run an experiment or a sweep on Slurm, Kubernetes, over ssh, or in the
    /// background here.
    Submit(SubmitArgs),
    /// List submitted jobs with their states.
    Jobs(JobsArgs),
    /// Tell submitted jobs to save and end.
    Cancel(CancelArgs),
    /// Inspect, verify or export checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointVerb),
    /// Generate the token with which the machines of a run authenticate each other.
    Token {
        /// File to create, readable only by you; without it the token is printed.
        file: Option<PathBuf>,
    },
    /// Explain an exit code or an error message: cause and remedy.
    Explain(ExplainArgs),
    /// Print every key of an experiment file with its default and meaning.
    Schema(SchemaArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands into a folder.
    ManPages {
        /// The folder; it is created if needed.
        folder: PathBuf,
    },
    /// One rank; started by ddprun itself.
    #[command(hide = true)]
    Worker,
}

/// An experiment with changes.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Run {
    /// Experiment file.
    #[arg(required = true)]
    pub(crate) experiment: Option<PathBuf>,
    /// Overrides: `train.batch_size=64`; `~scheduler.warmup` restores the default.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    #[command(flatten)]
    pub(crate) launch: Launch,
}

/// torchrun's flags.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Launch {
    /// Ranks on this machine (`distributed.devices`); with MIN:MAX the run continues with fewer if
    /// lost ones cannot be replaced (`distributed.min_world_size`).
    #[arg(long, alias = "nproc_per_node", value_name = "N | MIN:MAX", value_parser = ranks)]
    pub(crate) nproc_per_node: Option<String>,
    /// How many times to restart all ranks after a failure (`fault.max_restarts`).
    #[arg(long, alias = "max_restarts", value_name = "N")]
    pub(crate) max_restarts: Option<u32>,
    /// Number of nodes (machines), 1 by default; start ddprun on each of them.
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) nnodes: Option<u32>,
    /// Ignored; accepted for compatibility with torchrun.
    #[arg(long)]
    pub(crate) standalone: bool,
    #[command(flatten)]
    pub(crate) rendezvous: Rendezvous,
}

/// torchrun's flags of the rendezvous; on one machine they are accepted, so that a command line can
/// be kept, and without effect, because ranks of one machine meet without a port.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Multi-node (ignored on one node)")]
pub(crate) struct Rendezvous {
    /// Number of this node, from 0.
    #[arg(long, alias = "node_rank", value_name = "N")]
    pub(crate) node_rank: Option<u32>,
    /// Address of node 0.
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    pub(crate) master_addr: Option<String>,
    /// Port on node 0; 29500 by default.
    #[arg(long, alias = "master_port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) master_port: Option<u16>,
    /// Combines --master-addr and --master-port.
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", value_parser = endpoint,
          conflicts_with_all = ["master_addr", "master_port"])]
    pub(crate) rdzv_endpoint: Option<String>,
    /// Token file, the same on all nodes (see `ddprun token`).
    #[arg(long, alias = "token_file", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun init data/photos\n  \
    ddprun init houses.csv --target price\n  ddprun init")]
pub(crate) struct InitArgs {
    /// Your data: class folders of images or recordings, csv or JSON lines (tables, time series,
    /// lists of images), MNIST's files, NeMo manifests, conversations, instructions, a text, token
    /// files, or demonstrations (npz, parquet, LeRobot); also split into `train` and `val`. Without
    /// it the quickstart is written, which needs no data.
    pub(crate) path: Option<PathBuf>,
    /// File to write; by default the data's name with `.toml`, in this folder.
    pub(crate) file: Option<PathBuf>,
    /// Column or key of a table to predict. Default: one with a usual name (target, label, price
    /// ...), else the last one that varies and is no date.
    #[arg(long, value_name = "COLUMN", requires = "path")]
    pub(crate) target: Option<String>,
    /// Whether the target of a table is a class or a number. Default: words, and few different
    /// whole numbers, are classes.
    #[arg(long, value_name = "TASK", requires = "path")]
    pub(crate) task: Option<TableTask>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) run: Run,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:\n  ddprun check experiments/quickstart.toml \
    experiments/sweep_quickstart.toml")]
pub(crate) struct CheckArgs {
    /// Files of experiments, sweeps or clusters; which of them each is, its keys say.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun sweep experiments/sweep_quickstart.toml\n  \
    ddprun sweep experiments/quickstart.toml optimizer.lr=0.1,0.01\n  \
    ddprun sweep --status logs/sweep_quickstart")]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    pub(crate) step: Option<SweepStep>,
    /// Sweep file, or an experiment file followed by search spaces.
    #[arg(required_unless_present = "status")]
    pub(crate) file: Option<PathBuf>,
    /// Search spaces (`optimizer.lr=0.1,0.01`, `choice()`, `range()`, `interval(0, 1)`,
    /// log-uniform: `tag(log, interval(1e-4, 1e-1))`), overrides for all trials, and sweep keys
    /// (`sweep.trials=24`).
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Continue with a changed search space or method, keeping finished trials.
    #[arg(long)]
    pub(crate) extend: bool,
    /// Try failed trials again, from their newest checkpoints.
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Share the trials with all machines that run this command in the same folder.
    #[arg(long, conflicts_with = "retry_failed")]
    pub(crate) share: bool,
    /// Start from the results of another sweep or of a run, as if this sweep had trained them: they
    /// must be of the same experiment but for the parameters. May be given several times.
    #[arg(long, value_name = "SWEEP | RUN")]
    pub(crate) from: Vec<String>,
    /// Show the state of the sweep in this folder without running it.
    #[arg(long, value_name = "FOLDER")]
    #[arg(conflicts_with_all = ["file", "extend", "retry_failed", "share", "from"])]
    pub(crate) status: Option<PathBuf>,
}

/// A step of a sweep whose trials another program trains.
#[derive(Debug, Subcommand)]
pub(crate) enum SweepStep {
    /// Add a trial and print its number and values, for a program that trains it itself.
    Ask(AskArgs),
    /// Record the result of a trial that another program has trained.
    Tell(TellArgs),
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  ddprun sweep ask experiments/sweep_quickstart.toml --json\n  \
    ddprun sweep ask experiments/quickstart.toml optimizer.lr=0.1,0.05 sweep.method=random \
    sweep.trials=2 --with optimizer.lr=0.05"
)]
pub(crate) struct AskArgs {
    /// Sweep file, or an experiment file followed by search spaces.
    pub(crate) file: PathBuf,
    /// Search spaces, overrides for all trials, and sweep keys, as for `ddprun sweep`.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Value of a parameter in this trial, instead of those that the method proposes; what is left
    /// out keeps the base's value. May be given several times.
    #[arg(long = "with", value_name = "KEY=VALUE")]
    pub(crate) own: Vec<String>,
    /// Continue with a changed search space or method.
    #[arg(long)]
    pub(crate) extend: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun sweep tell sweep_quickstart 3 0.9425\n  \
    ddprun sweep tell sweep_quickstart 4 --failed \"out of memory\"")]
pub(crate) struct TellArgs {
    /// Folder of the sweep, or its name.
    #[arg(value_name = "SWEEP")]
    pub(crate) sweep: PathBuf,
    /// Number of the trial.
    #[arg(value_name = "TRIAL", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) trial: u32,
    /// The sweep's metric at the end of the trial; `nan` if it diverged.
    #[arg(value_name = "VALUE", required_unless_present = "failed", allow_hyphen_values = true)]
    pub(crate) value: Option<f64>,
    /// The trial failed, for this reason.
    #[arg(long, value_name = "REASON", conflicts_with = "value")]
    pub(crate) failed: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:\n  ddprun doctor experiments/quickstart.toml --world-sizes 1,2")]
pub(crate) struct DoctorArgs {
    /// World sizes to compare. Each must equal `distributed.shards` divided by a power of two;
    /// without that key, shards is the largest of them. Has no effect with `--nnodes`.
    #[arg(long, alias = "world_sizes", value_name = "N,N", value_delimiter = ',')]
    #[arg(default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) world_sizes: Vec<u32>,
    /// Training steps per world size.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    #[command(flatten)]
    pub(crate) run: Run,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ResumeArgs {
    /// Run folder, its name, or a unique prefix of its id (default: the newest run). Then
    /// overrides, such as `train.epochs=20`, of keys that do not change past results.
    #[arg(value_name = "RUN | KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Resume although the data has changed, if it still fits the model.
    #[arg(long, alias = "accept_changed_data")]
    pub(crate) accept_changed_data: bool,
    /// First bring the run here from its `checkpoint.mirror`: the folder, or a command that copies
    /// it into `{folder}` (`'rclone copy remote:bucket/PATH {folder}'`).
    #[arg(long, value_name = "FOLDER | COMMAND", conflicts_with = "from_scratch")]
    pub(crate) from: Option<String>,
    /// Restart from step 0 if the run's checkpoints are gone.
    #[arg(long, alias = "from_scratch")]
    pub(crate) from_scratch: bool,
    /// Refuse (exit 7) if the newest checkpoint is damaged, instead of using the newest intact one.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) launch: Launch,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun eval\n  ddprun eval quickstart --latest\n  \
    ddprun eval quickstart train.precision=bf16\n  \
    ddprun eval photos data.val_dir=data/other\n  \
    ddprun eval --weights resnet18.safetensors experiments/resnet.toml")]
pub(crate) struct EvalArgs {
    /// Run folder, its name, or a unique prefix of its id; for a sweep, its best trial; or a
    /// checkpoint (`NAME/latest`, its folder). Default: the newest run that has a checkpoint. With
    /// `--weights` an experiment file. Then overrides: other data
    /// (`data.val_file=new.csv`), `train.precision`, `validation.batch_size`,
    /// `data.transforms.val`.
    #[arg(value_name = "RUN | EXPERIMENT | KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Evaluate this safetensors file (or index of several) as the model of an experiment, without
    /// a run.
    #[arg(long, value_name = "FILE", requires = "words")]
    pub(crate) weights: Option<PathBuf>,
    /// Evaluate the newest checkpoint instead of the best.
    #[arg(long, conflicts_with = "weights")]
    pub(crate) latest: bool,
    /// Refuse (exit 7) if the newest checkpoint is damaged, instead of using the newest intact one.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Evaluate only on this split. Default: the validation split and, if there is one, the test
    /// split.
    #[arg(long, value_name = "PART", value_parser = ["val", "test"])]
    pub(crate) part: Option<String>,
    /// Test-time augmentation: average the predictions for each image and its mirror image
    /// (`hflip`), both also shifted by a pixel (`hflip_translate`), its corners and centre
    /// (`five_crop`; `ten_crop` with mirror images), or N draws of the training transforms
    /// (`draws=N`).
    #[arg(long, value_name = "HOW")]
    pub(crate) tta: Option<TestTimeAugmentation>,
    /// Write the same as `eval.json` into this folder, with a picture of the confusion matrix.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun predict photos --out preds.csv\n  \
    ddprun predict quickstart photos cat.jpg --top 3\n  \
    ddprun predict checkpoints/houses/20261123-020701-3fa2/best new.csv")]
pub(crate) struct PredictArgs {
    /// Run folder, its name (or `run:NAME`), a unique prefix of its id, a sweep, or a checkpoint;
    /// default: the newest run that has a checkpoint. Then files and folders of the kind that the
    /// run was trained on: images, .csv, .jsonl, .txt, recordings.
    #[arg(required = true, value_name = "RUN | CHECKPOINT | INPUT")]
    pub(crate) words: Vec<String>,
    /// File to write: .csv, .jsonl or .parquet. Default: csv on stdout. If the command is stopped,
    /// finished parts are kept in FILE.parts; the same command continues.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Ranks on this machine, each with a copy of the model; predictions stay the same.
    #[arg(long, alias = "nproc_per_node", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nproc_per_node: u32,
    /// Replace FILE, and discard unfinished parts of other predictions.
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// What a model predicts with.
#[derive(Debug, ClapArgs)]
pub(crate) struct ModelArgs {
    /// Answer the K most likely classes. Default: the probabilities of all classes if there are at
    /// most 20, else the 5 most likely.
    #[arg(long, alias = "top_k", value_name = "K")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top: Option<u32>,
    /// Batch size; default: that of the run's evaluations.
    #[arg(long, alias = "batch_size", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_size: Option<u32>,
    /// Use the newest checkpoint instead of the best.
    #[arg(long)]
    pub(crate) latest: bool,
    /// Refuse (exit 7) if the newest checkpoint is damaged, instead of using the newest intact one.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SampleArgs {
    /// Run folder, its name, or a unique prefix of its id; for a sweep, its best trial. Default:
    /// the newest run.
    pub(crate) run: Option<String>,
    /// Start of the text, or token ids if the data set holds tokens. For a policy: the last
    /// observations, oldest first, as numbers; without a prompt, the policy is rolled out in its
    /// data set's simulation.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) prompt: String,
    /// Simulated episodes of a policy, all from the same start.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) episodes: usize,
    /// Tokens to generate after the prompt.
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub(crate) tokens: usize,
    /// Lower is more deterministic.
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    pub(crate) temperature: f64,
    /// Sample from the K most likely tokens only.
    #[arg(long, alias = "top_k", default_value_t = 200, value_name = "K")]
    pub(crate) top_k: usize,
    /// Random seed.
    #[arg(long, default_value_t = 1337)]
    pub(crate) seed: u64,
    /// Use the newest checkpoint instead of the best.
    #[arg(long)]
    pub(crate) latest: bool,
    /// Refuse (exit 7) if the newest checkpoint is damaged, instead of using the newest intact one.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun report quickstart\n  \
    ddprun report --html report.html\n  ddprun report logs/quickstart --html report.html")]
pub(crate) struct ReportArgs {
    /// Run or sweep folder, its name, or a unique prefix of a run's id. Default: the newest run;
    /// with `--html` all runs below `logs`.
    pub(crate) run: Option<String>,
    /// Write the page of `ddprun serve` for the run, or for all runs and sweeps below a folder,
    /// into this file. It works offline, and can be printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Replace FILE if it exists already.
    #[arg(long, requires = "html")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun serve\n  ddprun serve logs/quickstart --port 8000\n  \
    ddprun serve --host 0.0.0.0 --allow-remote")]
pub(crate) struct ServeArgs {
    /// Folder with runs below it, or a run, or a sweep.
    #[arg(default_value = "logs")]
    pub(crate) folder: PathBuf,
    /// Port to listen on; 0 for any free port.
    #[arg(long, value_name = "PORT", default_value_t = 8430)]
    pub(crate) port: u16,
    /// Address to listen on. One that other machines can reach requires `--allow-remote`.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Let other machines open the page. Its token and contents cross the network unencrypted.
    #[arg(long, alias = "allow_remote")]
    pub(crate) allow_remote: bool,
    /// File with the token that opens the page and `/metrics` (see `ddprun token`). By default each
    /// start makes a new one.
    #[arg(long, alias = "token_file", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun serve-model quickstart\n  \
    ddprun serve-model quickstart/latest --port 9000 --token-file token.txt")]
pub(crate) struct ServeModelArgs {
    /// Run folder, its name (or `run:NAME`), a unique prefix of its id, a sweep, or a checkpoint;
    /// default: the newest run that has a checkpoint.
    #[arg(value_name = "RUN | CHECKPOINT")]
    pub(crate) word: Option<String>,
    /// Port to listen on; 0 for any free port.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Address to listen on. One that other machines can reach requires `--allow-remote`.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Let other machines ask. Files and predictions cross the network unencrypted.
    #[arg(long, alias = "allow_remote")]
    pub(crate) allow_remote: bool,
    /// File with the token that requests must send, as `Authorization: Bearer TOKEN` (see `ddprun
    /// token`). Default: none.
    #[arg(long, alias = "token_file", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Largest body of a request.
    #[arg(long, alias = "max_body", value_name = "MIB", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) max_body: u32,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SchemaArgs {
    /// Only this table, such as `optimizer`, with the kinds that it chooses among, or one of
    /// them: `optimizer.adamw`.
    #[arg(value_name = "TABLE", conflicts_with_all = ["sweep", "clusters"])]
    pub(crate) table: Option<String>,
    /// The options of one of these kinds, such as `adamw`.
    #[arg(value_name = "NAME")]
    pub(crate) kind: Option<String>,
    /// The keys of a sweep file instead.
    #[arg(long)]
    pub(crate) sweep: bool,
    /// The keys of `ddprun.toml`, which describes clusters, instead.
    #[arg(long, conflicts_with = "sweep")]
    pub(crate) clusters: bool,
    /// Print a JSON schema, for editors; name it in the first line of a file: `#:schema
    /// experiment.schema.json`.
    #[arg(long)]
    pub(crate) json_schema: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointVerb {
    /// Check every byte of checkpoints; exit 7 if one is damaged.
    Verify {
        /// Run, folder of checkpoints, or checkpoint. Default: the newest run.
        #[arg(value_name = "RUN | FOLDER")]
        checkpoints: Option<String>,
    },
    /// Show what checkpoints contain; for one checkpoint, also each tensor's dtype and shape.
    Show {
        /// Run, folder of checkpoints, or checkpoint. Default: the newest run.
        #[arg(value_name = "RUN | FOLDER")]
        checkpoints: Option<String>,
    },
    /// Write the weights as a safetensors file that PyTorch loads with `strict=True`, or the model
    /// as ONNX, and beside it `preprocessing.json`, which describes its inputs.
    Export(ExportArgs),
}

/// `ddprun explain`
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun explain 8\n  ddprun explain out-of-memory\n  \
    ddprun explain the loss is not finite at step 12")]
pub(crate) struct ExplainArgs {
    /// Exit code, name of an error, or words of its message; without it all are listed.
    #[arg(value_name = "CODE | NAME | WORDS")]
    pub(crate) words: Vec<String>,
    /// Print all entries as one page in Markdown.
    #[arg(long, conflicts_with = "words")]
    pub(crate) markdown: bool,
}

/// `ddprun checkpoint export`
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Run (its best checkpoint) or checkpoint: `NAME`, `NAME/latest`, a folder of either.
    #[arg(value_name = "RUN | FOLDER")]
    pub(crate) checkpoint: String,
    /// File to write, such as `model.safetensors` or `model.onnx`; with `--peft` a folder.
    pub(crate) to: PathBuf,
    /// What to write; by default it follows from the file's extension.
    #[arg(long, value_parser = export_format())]
    pub(crate) format: Option<ExportFormat>,
    /// Export the newest checkpoint of a run instead of the best.
    #[arg(long)]
    pub(crate) latest: bool,
    /// Refuse (exit 7) if the newest checkpoint is damaged, instead of using the newest intact one.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Write the adapters of `[model.lora]` alone: `adapter_model.safetensors` and
    /// `adapter_config.json`, as PEFT reads them.
    #[arg(long, conflicts_with_all = ["merge", "format"])]
    pub(crate) peft: bool,
    /// Write the weights with the adapters of `[model.lora]` merged in. ONNX always has them
    /// merged.
    #[arg(long)]
    pub(crate) merge: bool,
    /// Library that is to read the weights, refused if it computes the model otherwise. By default
    /// the one whose names the pretrained weights had, or else the model's own.
    #[arg(long, value_name = "LIBRARY", conflicts_with = "peft", value_parser = library())]
    pub(crate) names: Option<Library>,
    /// Replace files that exist already.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// A parser of the name of one of `choices`, each a value, its name and a help text.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    choices: [(T, &'static str, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let described = choices.map(|(_, name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(described).try_map(move |word| {
        let choice = choices.into_iter().find(|(_, name, _)| *name == word);
        choice.map(|(value, ..)| value).ok_or_else(|| format!("`{word}` is not among them"))
    })
}

fn library() -> impl TypedValueParser<Value = Library> {
    one_of(Library::ALL.map(|library| {
        let about = match library {
            Library::Timm => "timm",
            Library::Torchvision => "torchvision",
            Library::Transformers => "Hugging Face transformers, with a `config.json`",
        };
        (library, library.words(), about)
    }))
}

fn export_format() -> impl TypedValueParser<Value = ExportFormat> {
    one_of([
        (ExportFormat::Safetensors, "safetensors", "The weights"),
        (ExportFormat::Onnx, "onnx", "The model in evaluation mode, including its weights"),
    ])
}

/// The run, if the first word names one, and the changes.
pub(crate) fn run_and_changes(words: &[String]) -> (Option<&str>, Vec<String>) {
    let is_change = |word: &str| word.contains('=') || word.starts_with('~');
    match words.split_first() {
        Some((run, changes)) if !is_change(run) => (Some(run), changes.to_vec()),
        _ => (None, words.to_vec()),
    }
}

/// A number of ranks, or the fewest and the most. What a single word means, the key says.
fn ranks(text: &str) -> Result<String, String> {
    let Some((least, most)) = text.split_once(':') else { return Ok(text.to_owned()) };
    match (least.parse::<u32>(), most.parse::<u32>()) {
        (Ok(least), Ok(most)) if least > most => {
            Err(format!("write `{most}:{least}`: the smaller number comes first"))
        }
        (Ok(_), Ok(_)) => Ok(text.to_owned()),
        _ => Err("it takes a number, or two as MIN:MAX, such as `1:4`".to_owned()),
    }
}

/// Port of node 0, as torchrun has it.
pub(crate) const PORT: u16 = 29_500;

/// An address, without the brackets that tell an IPv6 address from its port.
pub(crate) fn bare(host: &str) -> String {
    host.trim_matches(['[', ']']).to_owned()
}

/// The parts of `HOST:PORT`, or of a host alone.
pub(crate) fn host_and_port(endpoint: &str) -> Result<(String, u16), String> {
    let is_address = endpoint.parse::<Ipv6Addr>().is_ok() || endpoint.ends_with(']');
    let Some((host, port)) = endpoint.rsplit_once(':').filter(|_| !is_address) else {
        return Ok((bare(endpoint), PORT));
    };
    match port.parse() {
        Ok(port) if port > 0 => Ok((bare(host), port)),
        _ => Err(format!("the port is from 1 to 65535, not `{port}`")),
    }
}

/// A host, with or without a port.
fn endpoint(text: &str) -> Result<String, String> {
    host_and_port(text).map(|_| text.to_owned())
}

/// A number of nodes; torchrun's ranges (`1:3`) are answered with the key to use instead.
fn nodes(text: &str) -> Result<u32, String> {
    if text.contains(':') {
        let what = "it takes one number; `distributed.min_world_size` lets a run continue when \
                    machines are missing";
        return Err(what.to_owned());
    }
    let number = text.parse().ok().filter(|number| (1..=64).contains(number));
    number.ok_or_else(|| "it takes a number from 1 to 64".to_owned())
}

impl Launch {
    /// Number of nodes.
    pub(crate) fn nodes(&self) -> u32 {
        self.nnodes.unwrap_or(1)
    }

    /// The flags as changes of the experiment.
    pub(crate) fn changes(&self) -> Vec<String> {
        let (least, count) = match self.nproc_per_node.as_deref() {
            Some(count) => match count.split_once(':') {
                Some((least, most)) => (Some(least), Some(most)),
                None => (None, Some(count)),
            },
            None => (None, None),
        };
        let least = least.map(|least| format!("distributed.min_world_size={least}"));
        let devices = count.map(|count| format!("distributed.devices={count}"));
        let restarts = self.max_restarts.map(|count| format!("fault.max_restarts={count}"));
        devices.into_iter().chain(least).chain(restarts).collect()
    }
}

impl Run {
    /// All changes, flags last: they were typed for this launch.
    pub(crate) fn all_changes(&self) -> Vec<String> {
        self.changes.iter().cloned().chain(self.launch.changes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// The command lines that the help texts show.
    fn examples() -> Vec<Vec<String>> {
        let command = Args::command();
        let verbs = command.get_subcommands().chain([&command]);
        let help = verbs.filter_map(clap::Command::get_after_help).map(ToString::to_string);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let lines = help.flat_map(|help| help.lines().skip(1).map(words).collect::<Vec<_>>());
        lines.collect()
    }

    #[test]
    fn the_examples_of_the_help_texts_are_accepted() {
        let vocabulary = crate::kinds::Kinds::default().vocabulary();
        let mut checked = 0;
        for line in examples() {
            let args = Args::try_parse_from(&line).unwrap_or_else(|error| panic!("{error}"));
            assert!(line.join(" ").len() <= 78, "{line:?} does not fit the terminal");
            let run = match args.verb {
                Some(Verb::Sweep(SweepArgs { file: Some(file), words, .. })) => {
                    crate::config::sweep::load(&file, &words, &vocabulary).unwrap();
                    continue;
                }
                None => args.run,
                Some(Verb::Plan(PlanArgs { run, .. }) | Verb::Doctor(DoctorArgs { run, .. })) => {
                    run
                }
                _ => continue,
            };
            let path = run.experiment.as_deref().unwrap();
            let asked = crate::config::load(path, &run.all_changes(), &vocabulary).unwrap();
            let kept = crate::config::load(path, &[], &vocabulary).unwrap();
            let changed = crate::config::changed_keys(&asked.experiment, &kept.experiment);
            // What the file expects of itself is true of these.
            assert!(
                changed.iter().all(
                    |it| ["distributed.devices", "data.num_workers"].contains(&it.key.as_str())
                ),
                "{line:?}"
            );
            checked += 1;
        }
        assert_eq!(checked, 4);
    }

    #[test]
    fn the_first_word_is_the_run_unless_it_is_a_change() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let all = words(&["quickstart", "train.epochs=9"]);
        assert_eq!(run_and_changes(&all), (Some("quickstart"), words(&["train.epochs=9"])));
        let changes = words(&["train.epochs=9"]);
        assert_eq!(run_and_changes(&changes), (None, changes.clone()));
        assert_eq!(run_and_changes(&[]), (None, vec![]));
    }

    #[test]
    fn help_fits_80_columns() {
        for verb in Args::command().get_subcommands_mut().chain([&mut Args::command()]) {
            let help = verb.clone().term_width(80).render_long_help().to_string();
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{long:#?}");
        }
    }

    #[test]
    fn torchruns_spellings_are_understood() {
        for flag in ["--nproc-per-node", "--nproc_per_node"] {
            let args = Args::try_parse_from(["ddprun", flag, "2", "x.toml", "a.b=1"]).unwrap();
            assert_eq!(args.run.all_changes(), ["a.b=1", "distributed.devices=2"]);
        }
        let elastic = ["ddprun", "--nproc-per-node=1:4", "x.toml"];
        assert_eq!(
            Args::try_parse_from(elastic).unwrap().run.all_changes(),
            ["distributed.devices=4", "distributed.min_world_size=1"]
        );
        let line = ["ddprun", "--standalone", "--nnodes=1", "--node_rank=0", "--master-port=29501"];
        assert!(Args::try_parse_from(line.into_iter().chain(["x.toml"])).is_ok());
        for (ranks, why) in [("4:2", "`2:4`"), ("1:x", "MIN:MAX"), (":", "MIN:MAX")] {
            let flags = ["ddprun", "--nproc-per-node", ranks, "x.toml"];
            let error = Args::try_parse_from(flags).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let meeting = |words: &[&str]| {
            let line = ["ddprun", "--nnodes=2"].iter().chain(words).chain(&["x.toml"]);
            Args::try_parse_from(line).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(meeting(&["--rdzv-endpoint=[::1]:29500"]), Ok(()));
        assert_eq!(meeting(&["--rdzv-endpoint=::1"]), Ok(()));
        let far = meeting(&["--rdzv-endpoint=host:99999"]).unwrap_err();
        assert!(far.contains("from 1 to 65535, not `99999`"), "{far}");
        let both = meeting(&["--master-addr=host", "--rdzv-endpoint=other:1"]).unwrap_err();
        assert!(both.contains("cannot be used with"), "{both}");
        for (nodes, why) in [("1:3", "min_world_size"), ("0", "from 1 to 64"), ("x", "from 1")] {
            let error = Args::try_parse_from(["ddprun", "--nnodes", nodes, "x.toml"]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
