//! `ddprun submit x.toml --on NAME`: an experiment becomes a job of a cluster, and a sweep its
//! workers (docs/clusters.md).

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::cluster_args::SubmitArgs;
use crate::cli::{answer, jobs, sweep, verbatim};
use crate::cluster::{self, Cluster, Job, LongestSave, Shape, Submitted, Sweep, Work};
use crate::config::clusters::{self, Unknown};
use crate::config::{self, Loaded};
use crate::files;
use crate::kinds::Kinds;
use crate::record::to_stderr;
use crate::runs::{LOGS, longest_save};
use crate::session::{
    ALONE, gpus, load, measure, new_id, planned, refuse_other_files, refuse_sweep, unwritable,
};
use crate::terminal::counted;
use crate::transport;
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun submit FILE [key=value ...] --on NAME [--workers N] [--print]`
pub(crate) fn submit(args: &SubmitArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let described = described(&args.experiment, &args.on, kinds)?;
    let kind = build(&described, kinds)?;
    let job = if is_sweep(args) {
        sweep_job(args, &described, kind.as_ref(), kinds)?
    } else {
        refuse_workers(args)?;
        experiment_job(args, &described, kind.as_ref(), kinds)?
    };
    refuse_misfit(&job, &described, kind.as_ref(), kinds)?;
    if let Some(note) = kind.save_time(&job).and_then(|time| time.note) {
        to_stderr(&note);
    }
    if args.print {
        let script = kind.script(&job);
        return verbatim(
            "script",
            || json!({ "cluster": described.name, "script": script }),
            || script.clone(),
        );
    }
    ask(&described, kind.as_ref(), kinds)?;
    let id = hand_over(&job, &described, kind.as_ref())?;
    let on = format!("`{}` ({})", described.name, described.kind.name);
    to_stderr(&format!(
        "submitted `{}` to {on}, {}\n  `ddprun jobs` shows its state, `ddprun logs -f {id}` \
         follows it, `ddprun cancel {id}` stops it",
        job.name,
        size(kind.shape(), &job)
    ));
    let object = || json!({ "job": id, "cluster": described.name, "experiment": job.name });
    answer("submitted", object, || format!("{id}\n"))
}

/// "2 nodes x 4 ranks", "8 workers"
fn size(shape: Shape, job: &Job) -> String {
    if let Some(workers) = job.workers() {
        return counted(workers.into(), "worker");
    }
    format!("{} x {}", counted(shape.nodes.into(), "node"), counted(job.ranks.into(), "rank"))
}

/// Whether several trials are asked for: by the file, or by a word.
fn is_sweep(args: &SubmitArgs) -> bool {
    let text = std::fs::read_to_string(&args.experiment).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let asks = |word: &String| config::sweep::is_sweep_word(word) || config::sweep::is_space(word);
    table.contains_key("sweep") || table.contains_key("base") || args.changes.iter().any(asks)
}

fn refuse_workers(args: &SubmitArgs) -> Result<(), ErrorPage> {
    if args.workers.is_none() {
        return Ok(());
    }
    let page = format!(
        "error: `--workers` share the trials of a sweep, and `{}` is an experiment\n  do: set \
         `nodes` and `ranks_per_node` of the cluster, or add a search space, such as \
         `optimizer.lr=0.1,0.01`",
        args.experiment.display()
    );
    Err(ErrorPage::new(ExitCode::Refused, page))
}

/// The cluster `name`, where it is described nearest to the experiment.
fn described(experiment: &Path, name: &str, kinds: &Kinds) -> Result<clusters::Cluster, ErrorPage> {
    let beside = experiment.parent().unwrap_or(Path::new("")).join("ddprun.toml");
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
    let files: Vec<PathBuf> = [Some(beside), Some("ddprun.toml".into())]
        .into_iter()
        .chain([config.map(|folder| folder.join("ddprun/clusters.toml"))])
        .flatten()
        .collect();
    clusters::load(&files, name, &kinds.vocabulary()).map_err(|unknown| {
        let help = unknown.help();
        let page = match unknown {
            Unknown::Problems(problems) => return problems.into(),
            error @ Unknown::Name { .. } => ErrorPage::of(ExitCode::Refused, &error),
        };
        match help {
            Some(help) => page.help(help),
            None => page,
        }
    })
}

fn build(described: &clusters::Cluster, kinds: &Kinds) -> Result<Box<dyn Cluster>, ErrorPage> {
    let built = kinds.clusters.build(&described.kind);
    built.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))
}

/// The experiment with its changes. Files that only the cluster has are not looked at.
fn read(args: &SubmitArgs, kind: &dyn Cluster, kinds: &Kinds) -> Result<Loaded, ErrorPage> {
    if kind.sees_files() {
        return load(&args.experiment, &args.changes, kinds);
    }
    refuse_other_files(&args.experiment)?;
    Ok(config::load(&args.experiment, &args.changes, &kinds.vocabulary())?)
}

/// The job of an experiment that can be run on the cluster, as far as that can be known here.
fn experiment_job(
    args: &SubmitArgs,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<Job, ErrorPage> {
    let mut loaded = read(args, kind, kinds)?;
    let shape = kind.shape();
    let name = loaded.name().to_owned();
    let (experiment, ranks) = cluster::placed(loaded.experiment, &name, shape);
    loaded.experiment = experiment;
    if kind.sees_files() {
        refuse_sweep(&loaded)?;
        check(&loaded, (args, described), kind, ranks, kinds)?;
    }
    let experiment = config::resolved(&loaded.experiment);
    let experiment = experiment.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
    job(name, Work::Experiment(experiment), ranks, kind)
}

/// The job of a sweep's workers, each of which has the devices of one machine.
fn sweep_job(
    args: &SubmitArgs,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<Job, ErrorPage> {
    let (sweep, logs) = sweep::shared(&args.experiment, &args.changes, kinds)?;
    if kind.sees_files() {
        sweep::refuse_runs(&logs)?;
    }
    let shape = kind.shape();
    if kind.sees_files() && shape.gpus_per_node > 0 && kind.program().is_none() && gpus().is_none()
    {
        refuse_without_cuda(args, described, kinds)?;
    }
    let of_gpus = (shape.gpus_per_node > 0).then_some(shape.gpus_per_node);
    let ranks = shape.ranks_per_node.or(of_gpus).unwrap_or(sweep.search.devices_per_trial);
    let (file, words) = (args.experiment.clone(), args.changes.clone());
    let workers = args.workers.unwrap_or(shape.nodes);
    job(sweep.name, Work::Sweep(Sweep { file, words, workers }), ranks, kind)
}

fn job(name: String, work: Work, ranks: u32, kind: &dyn Cluster) -> Result<Job, ErrorPage> {
    let here = std::env::current_dir().and_then(|root| Ok((root, std::env::current_exe()?)));
    let (root, own) = here.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    // A script names the folder in lines of its own; what follows a line break would be run.
    if root.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_control) {
        let page = format!(
            "error: the working folder `{}` has a line break or another control character in \
             its path, which scripts cannot hold\n  do: rename the folder",
            root.display()
        );
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let key = new_id();
    let folder = cluster::folder_of(&root.join(LOGS), &key);
    let program = kind.program().unwrap_or(own);
    let longest = longest_save(&root.join(LOGS).join(&name));
    let longest_save = longest.map(|(run, seconds)| LongestSave { seconds, run });
    Ok(Job { name, key, folder, root, program, work, ranks, longest_save })
}

/// Plans the experiment for the cluster.
fn check(
    loaded: &Loaded,
    (args, described): (&SubmitArgs, &clusters::Cluster),
    kind: &dyn Cluster,
    ranks: u32,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let shape = kind.shape();
    let here = measure(loaded, ALONE, None, kinds)?;
    if shape.gpus_per_node > 0 && here.gpus.is_none() {
        if kind.program().is_some() {
            // What another ddprun can do is not known here.
            return Ok(());
        }
        return refuse_without_cuda(args, described, kinds);
    }
    let is_placed = shape.nodes > 1 || shape.gpus_per_node > 0;
    let facts = if is_placed { cluster::facts_of(here, shape, ranks) } else { here };
    planned(loaded, &facts, kinds)?;
    Ok(())
}

/// Refuses GPUs of which this program, which will run there, can use none. A script that is only
/// printed can be read all the same.
fn refuse_without_cuda(
    args: &SubmitArgs,
    described: &clusters::Cluster,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let what = "asks for GPUs, but this ddprun was built without `cuda`";
    let problem = clusters::problem(described, "gpus_per_node", what, &kinds.vocabulary());
    let help = "rebuild it with `cargo build --release --features cuda`, or name another with \
                `program`";
    let refusal = ErrorPage::from(problem.help(help));
    if args.print {
        to_stderr(&format!("warning: without `--print` this is refused:\n{}", refusal.page()));
        return Ok(());
    }
    Err(refusal)
}

/// Refuses a job for which the cluster's table does not do.
fn refuse_misfit(
    job: &Job,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let Some((key, what)) = kind.misfit(job) else { return Ok(()) };
    Err(clusters::problem(described, key, &what, &kinds.vocabulary()).into())
}

/// Asks the engine what it has against the job.
fn ask(described: &clusters::Cluster, kind: &dyn Cluster, kinds: &Kinds) -> Result<(), ErrorPage> {
    let Some(question) = kind.question() else { return Ok(()) };
    let answer = question.run().map_err(|error| jobs::no_answer(&described.name, &error))?;
    let Some((key, what)) = kind.objection(&answer) else { return Ok(()) };
    Err(clusters::problem(described, key, &what, &kinds.vocabulary()).into())
}

/// Writes the job's files and submits it; its id.
fn hand_over(
    job: &Job,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
) -> Result<String, ErrorPage> {
    write(job, kind)?;
    let id = submit_files(job, described, kind)?;
    let submitted = Submitted {
        format: cluster::FORMAT,
        id: id.clone(),
        cluster: described.name.clone(),
        kind: described.kind.clone(),
        name: job.name.clone(),
        workers: job.workers(),
        time: jiff::Timestamp::now(),
    };
    cluster::write(&job.folder, &submitted).map_err(|error| {
        to_stderr(&format!("job {id} was submitted, but `ddprun jobs` will not list it"));
        unwritable(error)
    })?;
    Ok(id)
}

/// Submits the job whose files are written; its id. A program that could not be run has submitted
/// nothing, so that nothing is left. After another failure, such as a timeout, the job may be
/// queued all the same, and needs its files.
fn submit_files(
    job: &Job,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
) -> Result<String, ErrorPage> {
    let answer = kind.submit(job).run().map_err(|error| {
        if matches!(error, cluster::Error::NotRun { .. }) {
            drop(files::remove_folder(&job.folder));
        }
        jobs::no_answer(&described.name, &error)
    })?;
    kind.id(job, &answer).ok_or_else(|| {
        let answer = answer.trim();
        let page = format!("error: `{}` answered without a job: {answer}", described.name);
        ErrorPage::new(ExitCode::Peer, page)
    })
}

fn write(job: &Job, kind: &dyn Cluster) -> Result<(), ErrorPage> {
    let write =
        |path: &Path, text: &str| files::write_atomic(path, text.as_bytes()).map_err(unwritable);
    files::create_writable_folder(&job.folder).map_err(unwritable)?;
    if let Some(experiment) = job.experiment() {
        write(&job.experiment_path(), experiment)?;
    }
    write(&job.folder.join(kind.script_name()), &kind.script(job))?;
    if kind.shape().needs_token && job.workers().is_none() {
        let token =
            transport::new_token().map_err(|error| ErrorPage::of(ExitCode::Resource, &error))?;
        files::write_secret(&job.token_path(), token.as_bytes()).map_err(unwritable)?;
    }
    Ok(())
}
