//! An experiment -> a job of a cluster; a sweep -> the job of its workers (docs/clusters.md).

use std::path::{Path, PathBuf};

use crate::cluster::{self, Cluster, Job, LongestSave, Submitted, Sweep, Work};
use crate::config::clusters::{self, ClusterError};
use crate::config::{self, Loaded};
use crate::files;
use crate::jobs::no_answer;
use crate::kinds::Kinds;
use crate::record::to_stderr;
use crate::runs::{LOGS, longest_save};
use crate::session::{
    SINGLE_NODE, gpus, load, load_sweep, make_plan, measure, new_id, number_sweep, one_run,
    refuse_other_files, refuse_sweep, unwritable,
};
use crate::sweep;
use crate::terminal::counted;
use crate::transport;
use crate::user_error::{ErrorPage, ExitCode};

/// Options of a submission.
#[derive(Debug)]
pub struct SubmitRequest<'a> {
    /// An experiment file or a sweep file.
    pub experiment: &'a Path,
    pub changes: &'a [String],
    /// Name of the cluster.
    pub on: &'a str,
    /// Files that may describe it, the nearest to the experiment first.
    pub cluster_files: Vec<PathBuf>,
    /// Workers that share the trials of a sweep.
    pub workers: Option<u32>,
    /// True if the script is only printed: what would be refused for its GPUs is then a warning.
    pub print: bool,
}

/// A job and the cluster that is to run it.
pub struct Submission {
    pub job: Job,
    /// The cluster as its table describes it.
    pub described: clusters::Cluster,
    kind: Box<dyn Cluster>,
}

impl Submission {
    /// Makes the job of an experiment or a sweep, as far as the cluster can run it.
    pub fn prepare(request: &SubmitRequest<'_>, kinds: &Kinds) -> Result<Self, ErrorPage> {
        let described = described(&request.cluster_files, request.on, kinds)?;
        let built = kinds.clusters.build(&described.kind);
        let kind = built.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
        let job = if is_sweep(request) {
            sweep_job(request, &described, kind.as_ref(), kinds)?
        } else {
            refuse_workers(request)?;
            experiment_job(request, &described, kind.as_ref(), kinds)?
        };
        if let Some((key, what)) = kind.misfit(&job) {
            return Err(clusters::problem(&described, key, &what, &kinds.vocabulary()).into());
        }
        if let Some(note) = kind.save_time(&job).and_then(|time| time.message) {
            to_stderr(&note);
        }
        Ok(Self { job, described, kind })
    }

    /// The script or manifest that the engine is given.
    pub fn script(&self) -> String {
        self.kind.script(&self.job)
    }

    /// "2 nodes x 4 ranks", "8 workers"
    pub fn size(&self) -> String {
        let (shape, job) = (self.kind.shape(), &self.job);
        if let Some(workers) = job.workers() {
            return counted(workers.into(), "worker");
        }
        format!("{} x {}", counted(shape.nodes.into(), "node"), counted(job.ranks.into(), "rank"))
    }

    /// Asks the engine whether it objects, writes the job's files and submits it. Returns its id.
    pub fn submit(&self, kinds: &Kinds) -> Result<String, ErrorPage> {
        let Self { job, described, kind } = self;
        if let Some(question) = kind.question() {
            let answer = question.run().map_err(|error| no_answer(&described.name, &error))?;
            if let Some((key, what)) = kind.objection(&answer) {
                return Err(clusters::problem(described, key, &what, &kinds.vocabulary()).into());
            }
        }
        write(job, kind.as_ref())?;
        let id = submit_files(job, described, kind.as_ref())?;
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
}

/// True if the file or a word describes several trials.
fn is_sweep(request: &SubmitRequest<'_>) -> bool {
    let text = std::fs::read_to_string(request.experiment).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let asks = |word: &String| config::sweep::is_sweep_word(word) || config::sweep::is_space(word);
    table.contains_key("sweep") || table.contains_key("base") || request.changes.iter().any(asks)
}

fn refuse_workers(request: &SubmitRequest<'_>) -> Result<(), ErrorPage> {
    if request.workers.is_none() {
        return Ok(());
    }
    let what = format!(
        "`--workers` share the trials of a sweep, and `{}` is an experiment",
        request.experiment.display()
    );
    Err(ErrorPage::refused(
        what,
        "set `nodes` and `ranks_per_node` of the cluster, or add a search space, such as \
         `optimizer.lr=0.1,0.01`",
    ))
}

/// The cluster `name` of the first of `files` that describes it.
fn described(files: &[PathBuf], name: &str, kinds: &Kinds) -> Result<clusters::Cluster, ErrorPage> {
    clusters::load(files, name, &kinds.vocabulary()).map_err(|unknown| {
        let help = unknown.help();
        let page = match unknown {
            ClusterError::Problems(problems) => return problems.into(),
            error @ ClusterError::Name { .. } => ErrorPage::of(ExitCode::Refused, &error),
        };
        match help {
            Some(help) => page.help(help),
            None => page,
        }
    })
}

/// The experiment with its changes. Files that only the cluster has are not looked at.
fn read(
    request: &SubmitRequest<'_>,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<Loaded, ErrorPage> {
    if kind.sees_files() {
        return load(request.experiment, request.changes, kinds);
    }
    refuse_other_files(request.experiment)?;
    Ok(config::load(request.experiment, request.changes, &kinds.vocabulary())?)
}

/// The job of an experiment that can be run on the cluster, as far as that can be known here.
fn experiment_job(
    request: &SubmitRequest<'_>,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<Job, ErrorPage> {
    let mut loaded = read(request, kind, kinds)?;
    let shape = kind.shape();
    let name = loaded.name().to_owned();
    let (experiment, ranks) = cluster::placed(loaded.experiment, &name, shape);
    loaded.experiment = experiment;
    if kind.sees_files() {
        refuse_sweep(&loaded)?;
        check(&loaded, (request, described), kind, ranks, kinds)?;
    }
    let experiment = config::resolved(&loaded.experiment);
    let experiment = experiment.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
    job(name, Work::Experiment(experiment), ranks, kind)
}

/// The job of a sweep's workers, each of which has the devices of one machine.
fn sweep_job(
    request: &SubmitRequest<'_>,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
    kinds: &Kinds,
) -> Result<Job, ErrorPage> {
    let (sweep, logs) = shared_sweep(request.experiment, request.changes, kinds)?;
    if kind.sees_files() {
        sweep::refuse_runs(&logs)?;
    }
    let shape = kind.shape();
    if kind.sees_files() && shape.gpus_per_node > 0 && kind.program().is_none() && gpus().is_none()
    {
        refuse_without_cuda(request, described, kinds)?;
    }
    let of_gpus = (shape.gpus_per_node > 0).then_some(shape.gpus_per_node);
    let ranks = shape.ranks_per_node.or(of_gpus).unwrap_or(sweep.search.devices_per_trial);
    let (file, words) = (request.experiment.to_owned(), request.changes.to_vec());
    let workers = request.workers.unwrap_or(shape.nodes);
    job(sweep.name, Work::Sweep(Sweep { file, words, workers }), ranks, kind)
}

/// Reads a sweep that several machines are to share, as each of them will. Returns it and its
/// folder.
fn shared_sweep(
    path: &Path,
    words: &[String],
    kinds: &Kinds,
) -> Result<(config::sweep::Sweep, PathBuf), ErrorPage> {
    let (mut sweep, base) = load_sweep(path, words, kinds)?;
    number_sweep(&mut sweep, words, &base, false)?;
    let method = kinds.methods.build(&sweep.search.method);
    let method = method.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
    if method.range_test().is_some() {
        return Err(one_run());
    }
    let folder = base.experiment.logging.dir.join(&sweep.name);
    Ok((sweep, folder))
}

fn job(name: String, work: Work, ranks: u32, kind: &dyn Cluster) -> Result<Job, ErrorPage> {
    let here = std::env::current_dir().and_then(|root| Ok((root, std::env::current_exe()?)));
    let (root, own) = here.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    // A script names the folder in lines of its own; what follows a line break would be run.
    if root.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_control) {
        let what = format!(
            "the working folder `{}` has a line break or another control character in \
             its path, which scripts cannot hold",
            root.display()
        );
        return Err(ErrorPage::refused(what, "rename the folder"));
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
    (request, described): (&SubmitRequest<'_>, &clusters::Cluster),
    kind: &dyn Cluster,
    ranks: u32,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let shape = kind.shape();
    let here = measure(loaded, SINGLE_NODE, None, kinds)?;
    if shape.gpus_per_node > 0 && here.gpus.is_none() {
        if kind.program().is_some() {
            // What another ddprun can do is not known here.
            return Ok(());
        }
        return refuse_without_cuda(request, described, kinds);
    }
    let is_placed = shape.nodes > 1 || shape.gpus_per_node > 0;
    let facts = if is_placed { cluster::facts_of(here, shape, ranks) } else { here };
    make_plan(loaded, &facts, kinds)?;
    Ok(())
}

/// Refuses GPUs of which this program, which will run there, can use none. A script that is only
/// printed can be read all the same.
fn refuse_without_cuda(
    request: &SubmitRequest<'_>,
    described: &clusters::Cluster,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let what = "asks for GPUs, but this ddprun was built without `cuda`";
    let problem = clusters::problem(described, "gpus_per_node", what, &kinds.vocabulary());
    let help = "rebuild it with `cargo build --release --features cuda`, or name another with \
                `program`";
    let refusal = ErrorPage::from(problem.help(help));
    if request.print {
        to_stderr(&format!("warning: without `--print` this is refused:\n{}", refusal.page()));
        return Ok(());
    }
    Err(refusal)
}

/// Submits the job whose files are written. Returns its id. A program that could not be run has
/// submitted nothing, so that nothing is left. After another failure, such as a timeout, the job
/// may be queued all the same, and needs its files.
fn submit_files(
    job: &Job,
    described: &clusters::Cluster,
    kind: &dyn Cluster,
) -> Result<String, ErrorPage> {
    let answer = kind.submit(job).run().map_err(|error| {
        if matches!(error, cluster::Error::NotRun { .. }) {
            drop(files::remove_folder(&job.folder));
        }
        no_answer(&described.name, &error)
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
