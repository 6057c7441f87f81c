//! Experiment file -> plan -> run folder: what stands before any rank is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;

use crate::checkpoint::{self, Opened};
use crate::cli::follow_target::follow_target;
use crate::cli::other_file::refuse_other_files;
use crate::cli::run_files::{self, OtherData};
use crate::cli::{Refusal, data_problem, incomplete_starts, pretrained, to_stderr};
use crate::collective::mpi::StartError;
use crate::config::kind::{Choice, Options};
use crate::config::schema::AUTO_BACKEND;
use crate::config::values::Auto;
use crate::config::{self, Loaded, Problems, Vocabulary};
use crate::data::{Asked, DataSource, Fingerprint};
use crate::files::RunLock;
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::launch::rank_env::{self, Foreign, mpi_launcher};
use crate::launch::{self, PreparedRun, Role};
use crate::model;
use crate::plan::{
    BackendFacts, Facts, GpuFacts, KindFacts, Limit, Memory, ModelPlan, MpiFacts, Plan, RunFolders,
    SplitPlan, Targets, chosen_loss,
};
use crate::record::{DATA, Environment, newest_of, newest_start};
use crate::runs::link_logs;
use crate::units::Bytes;
use crate::{collective, data, failpoint, files, ops, sweep, worker};

/// An experiment with everything decided.
pub(crate) struct Prepared {
    pub(crate) loaded: Loaded,
    pub(crate) plan: Plan,
    pub(crate) facts: Facts,
    pub(crate) source: Arc<dyn DataSource>,
}

impl Prepared {
    /// An experiment that is decided, and the data set of its plan.
    pub(crate) fn new(
        loaded: Loaded,
        facts: Facts,
        plan: Plan,
        kinds: &Kinds,
    ) -> Result<Self, Refusal> {
        let source = source_of(&plan, kinds)?;
        Ok(Self { loaded, plan, facts, source })
    }

    /// Decides everything about a loaded experiment whose numbers are all given: that of a run,
    /// whose weights are in its checkpoints, or one that [`complete`] has seen. `found` is what a
    /// run found out about its data when it began.
    pub(crate) fn of(
        loaded: Loaded,
        origin: Origin<'_>,
        found: Option<&Options>,
        kinds: &Kinds,
    ) -> Result<Self, Refusal> {
        failpoint::reach("parse");
        let facts = measure(&loaded, origin, found, kinds)?;
        let plan = decide(&loaded, &facts, kinds)?;
        Self::new(loaded, facts, plan, kinds)
    }

    /// Decides again for ranks that were each taken to be on a machine of its own, now that it is
    /// known which of them share one.
    pub(crate) fn share_machines(&mut self, found: &Foreign, kinds: &Kinds) -> Result<(), Refusal> {
        let (ranks, nodes) = (found.machine().count, found.nodes());
        if nodes < self.facts.nodes {
            self.facts.cores *= ranks.count();
            self.facts = Facts { launched_world: Some(ranks), nodes, ..self.facts.clone() };
            self.plan = decide(&self.loaded, &self.facts, kinds)?;
        }
        Ok(())
    }

    /// The plans of the smaller groups that the run may go on with.
    pub(crate) fn smaller(&self, kinds: &Kinds) -> Result<Vec<Plan>, Refusal> {
        self.plan.smaller(&self.loaded, &self.facts, kinds).map_err(refused)
    }
}

/// What started this process, and how many machines take part.
pub(crate) type Origin<'a> = (&'a Role, u32);

/// A parent on the only machine.
pub(crate) const ALONE: Origin<'static> = (&Role::Parent, 1);

/// Reads the experiment at `path` with `changes` and decides everything.
pub(crate) fn prepare(
    path: &Path,
    changes: &[String],
    origin: Origin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, Refusal> {
    let loaded = load(path, changes, kinds)?;
    let facts = measure(&loaded, origin, None, kinds)?;
    let plan = decide(&loaded, &facts, kinds)?;
    check_weights(&loaded, &plan, kinds).map_err(refused)?;
    Prepared::new(loaded, facts, plan, kinds)
}

/// Reads the experiment at `path` with `changes`, and what the files beside its weights tell.
pub(crate) fn load(path: &Path, changes: &[String], kinds: &Kinds) -> Result<Loaded, Refusal> {
    refuse_other_files(path)?;
    let vocabulary = vocabulary(kinds);
    let mut loaded = config::load(path, changes, &vocabulary).map_err(refused)?;
    let absent = loaded.absent_inputs(&vocabulary);
    // One alone is said where it is opened, with what it should hold.
    if absent.len() > 1 {
        let are_data = absent.iter().all(|problem| problem.key().starts_with("data."));
        let code = if are_data { exit::DATA } else { exit::REFUSED };
        return Err(drawn(code, &Problems::new(absent)));
    }
    check_folders(&loaded).map_err(refused)?;
    complete(&mut loaded, kinds).map_err(refused)?;
    failpoint::reach("parse");
    Ok(loaded)
}

/// The plan of an experiment on a machine that can run it.
pub(crate) fn decide(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, Refusal> {
    let plan = planned(loaded, facts, kinds).map_err(refused)?;
    kinds.backends.check(&plan.distributed).map_err(|(backend, why)| {
        let page = format!(
            "error: {backend} is unavailable: {why}\n  do: install it, or use `distributed.backend=shm`"
        );
        Refusal::new(exit::REFUSED, page)
    })?;
    Ok(plan)
}

/// The data set of a plan.
pub(crate) fn source_of(plan: &Plan, kinds: &Kinds) -> Result<Arc<dyn DataSource>, Refusal> {
    let built = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from);
    built.map(Arc::from).map_err(|error| of_data(&error))
}

/// Data that cannot be used, drawn on the key that asks for them, if one does.
fn of_data_of(loaded: &Loaded, error: &data::Error) -> Refusal {
    match data_problem::of_key(loaded, error) {
        Some((code, problems)) => drawn(code, &problems),
        None => of_data(error),
    }
}

fn of_data(error: &data::Error) -> Refusal {
    Refusal::of(worker::of_data(error), error, error.help())
}

/// The plan of an experiment, whose model must take what its data gives.
pub(crate) fn planned(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, Problems> {
    let given = facts.data.source.modality;
    if let Some(what) = kinds.models.refuses(&chosen_model(loaded), given) {
        let help = format!(
            "choose one of the models for {}: {}",
            given.words(),
            kinds.models.made_for(given).join(", ")
        );
        return Err(loaded.problem("model.name", what).help(help).into());
    }
    Plan::new(loaded, facts, kinds)
}

/// The model that the experiment chooses.
fn chosen_model(loaded: &Loaded) -> Choice {
    let asked = &loaded.experiment.model;
    Choice { name: asked.name.clone(), options: asked.options.clone() }
}

/// Finds the checkpoint that a run is to start from, and fills in what the experiment does not
/// give: what the run of that checkpoint, and files beside the weights and the adapters, tell.
pub(crate) fn complete(loaded: &mut Loaded, kinds: &Kinds) -> Result<(), Problems> {
    follow_target(loaded, kinds);
    let options = pretrained::resolve(loaded)?;
    fill(loaded, options);
    let Ok(model) = kinds.models.build(&chosen_model(loaded)) else { return Ok(()) };
    let experiment = &loaded.experiment;
    let seq_len = experiment.data.options.get("seq_len").and_then(Value::as_u64);
    let (weights, seq_len) = (experiment.model.pretrained.as_deref(), seq_len.map(|n| n as u32));
    let found = model.complete(weights, seq_len).map_err(|unfit| unfit_problem(loaded, unfit))?;
    fill(loaded, found.options);
    let model = &mut loaded.experiment.model;
    if let (None, Some(outputs)) = (model.num_classes.given(), found.outputs) {
        model.num_classes = Auto::Given(outputs);
    }
    Ok(())
}

/// Options of the model that the experiment does not give.
fn fill(loaded: &mut Loaded, options: Options) {
    let is_open = |key: &String| key == "lora" || !loaded.is_given(&format!("model.{key}"));
    let options: Options = options.into_iter().filter(|(key, _)| is_open(key)).collect();
    loaded.experiment.model.options.extend(options);
}

fn unfit_problem(loaded: &Loaded, unfit: model::Unfit) -> Problems {
    let problem = loaded.problem(unfit.key, unfit.what);
    match unfit.help {
        Some(help) => problem.help(help).into(),
        None => problem.into(),
    }
}

/// Compares the weights to start from with the model, by the header of their file.
pub(crate) fn check_weights(loaded: &Loaded, plan: &Plan, kinds: &Kinds) -> Result<(), Problems> {
    let check = |model: &ModelPlan| kinds.models.check_pretrained(model);
    let checked = check(&plan.model).or_else(|unfit| {
        let deleted = if_deleted(&plan.model).map(|model| check(&model));
        deleted.unwrap_or(Err(unfit))
    });
    checked.map_err(|unfit| unfit_problem(loaded, unfit))
}

/// The model with the weights that this process keeps open, where the run of the checkpoint that
/// they are from has deleted it meanwhile.
fn if_deleted(model: &ModelPlan) -> Option<ModelPlan> {
    let path = model.pretrained.as_ref().filter(|path| !path.is_dir())?;
    let weights = checkpoint::open(path).ok()?.open_weights()?;
    Some(ModelPlan { pretrained: Some(weights), ..model.clone() })
}

/// Refuses files where folders are to hold the runs.
fn check_folders(loaded: &Loaded) -> Result<(), Problems> {
    let experiment = &loaded.experiment;
    let folders =
        [("logging.dir", &experiment.logging.dir), ("checkpoint.dir", &experiment.checkpoint.dir)];
    let files = folders.into_iter().filter(|(_, path)| path.is_file());
    let problem = |(key, path): (&str, &PathBuf)| {
        let what = format!("`{}` is a file, not a folder", path.display());
        loaded.problem(key, what).help("name a folder; one that is absent is made")
    };
    let problems: Vec<_> = files.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems::new(problems)) }
}

/// Refuses a run whose name is that of a sweep: it would be among the trials, and go with them.
pub(crate) fn refuse_sweep(loaded: &Loaded) -> Result<(), Refusal> {
    let folder = loaded.experiment.logging.dir.join(loaded.name());
    if !sweep::is_of_sweep(&folder) {
        return Ok(());
    }
    let what = format!("`{}` holds a sweep", folder.display());
    let help = "choose another `experiment.name`: a run does not share the folder of a sweep";
    Err(refused(loaded.problem("experiment.name", what).help(help).into()))
}

/// Names that an experiment may use.
pub(crate) fn vocabulary(kinds: &Kinds) -> Vocabulary {
    kinds.vocabulary()
}

/// The page of all problems of an experiment.
#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
pub(crate) fn refused(problems: Problems) -> Refusal {
    drawn(exit::REFUSED, &problems)
}

fn drawn(code: u8, problems: &Problems) -> Refusal {
    /// Columns of the page.
    const WIDTH: usize = 80;
    Refusal::of_problems(code, problems.page(use_color(), WIDTH), problems)
}

/// Colour for a terminal, unless `NO_COLOR` says otherwise (<https://no-color.org>).
fn use_color() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal() && rank_env::no_color().is_none()
}

/// Looks at the machine and counts the data. `found` is what a run found out when it began, with
/// which it goes on.
pub(crate) fn measure(
    loaded: &Loaded,
    (role, nodes): Origin<'_>,
    found: Option<&Options>,
    kinds: &Kinds,
) -> Result<Facts, Refusal> {
    let experiment = &loaded.experiment;
    let choice =
        Choice { name: experiment.data.name.clone(), options: experiment.data.options.clone() };
    let (targets, limit) = (targets(loaded, kinds)?, Limit::of(experiment));
    let asked = Asked::new(loaded.name(), experiment.experiment.seed, targets);
    let asked = Asked { split: SplitPlan::of(&experiment.data), limit, found, ..asked };
    let mut data =
        data::survey(&kinds.data, &choice, &asked).map_err(|error| of_data_of(loaded, &error))?;
    data.limit(limit);
    let mut cores = std::thread::available_parallelism().map_or(1, usize::from);
    let launched_world = match role {
        // Those of one machine, which divide its cores among them.
        Role::Foreign(place) => {
            let ranks = if nodes == 1 { place.world } else { place.machine().count };
            cores = place.share_of_cores(cores) * ranks.count();
            Some(ranks)
        }
        Role::Parent | Role::Child(_) => None,
    };
    let local_rank = match role {
        Role::Foreign(place) => place.local_rank.0,
        Role::Parent | Role::Child(_) => 0,
    };
    let (memory, gpus) = (main_memory(), gpus());
    let (bf16, bf16_is_faster) = (ops::bf16_instructions(), ops::bf16_is_faster());
    let mpi = mpi(&experiment.distributed.backend, nodes, kinds);
    let trained_on = experiment.model.pretrained.as_deref().and_then(model::trained_on);
    let places = Facts { launched_world, local_rank, nodes, mpi, trained_on, ..Facts::of(data) };
    Ok(Facts { cores, memory, bf16, bf16_is_faster, gpus, ..places })
}

/// Opens the library of the MPI launcher that started this process, where it may be used.
fn mpi(asked: &str, nodes: u32, kinds: &Kinds) -> Option<MpiFacts> {
    let by_mpi = |it: &BackendFacts| it.name == asked && it.capabilities.meets_by_mpi;
    let is_wanted =
        if asked == AUTO_BACKEND { nodes > 1 } else { kinds.backends().iter().any(by_mpi) };
    let launcher = is_wanted.then(mpi_launcher)??;
    Some(match collective::mpi::check(&launcher) {
        Ok(()) => MpiFacts::Found,
        Err(why) => {
            let error = StartError::Unusable(why);
            MpiFacts::Unusable { why: error.to_string(), help: error.help().to_owned() }
        }
    })
}

/// What the loss compares with.
pub(crate) fn targets(loaded: &Loaded, kinds: &Kinds) -> Result<Targets, Refusal> {
    let facts = kinds.loss(&chosen_loss(loaded));
    let facts = facts.map_err(|what| refused(loaded.problem("loss.name", what).into()))?;
    Ok(facts.targets)
}

/// Memory of this machine, or of the container that this process is in; `None` if it cannot be
/// found out.
fn main_memory() -> Option<Bytes> {
    let system = rustix::system::sysinfo();
    let machine = (system.totalram as u64).checked_mul(u64::from(system.mem_unit).max(1))?;
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit: Option<u64> = limit.and_then(|text| text.trim().parse().ok());
    Some(Bytes(machine.min(limit.unwrap_or(u64::MAX)))).filter(|memory| memory.0 > 0)
}

/// Says what works, but may not be what was meant, once for all ranks of a machine. What is to be
/// said of the data, rank 0 records.
pub(crate) fn warn_about(prepared: &Prepared) {
    let Prepared { plan, facts, .. } = prepared;
    let warnings = plan.warnings(facts, &Memory::of(plan, None));
    let is_own = |warning: &&String| facts.local_rank == 0 && !plan.data.notes.contains(warning);
    for warning in warnings.iter().filter(is_own) {
        to_stderr(&format!("warning: {warning}"));
    }
}

/// The GPUs that CUDA shows; `None` in a build without CUDA. A driver that does not answer is told,
/// not hidden: the user may believe to train on a GPU.
pub(crate) fn gpus() -> Option<Vec<GpuFacts>> {
    match ops::visible_gpus()? {
        Ok(gpus) => {
            let facts = |(name, memory)| GpuFacts { name, memory };
            Some(gpus.into_iter().map(facts).collect())
        }
        Err(why) => {
            to_stderr(&format!("warning: no GPU can be used: {why}"));
            Some(Vec::new())
        }
    }
}

/// Generates the data that the experiment wants generated.
pub(crate) fn generate(prepared: &Prepared) -> Result<(), Refusal> {
    let asked = Asked::of(&prepared.plan);
    prepared.source.generate(&asked).map_err(|error| of_data(&error))
}

/// Folders of a run that this process alone may write.
pub(crate) struct OwnedRun {
    pub(crate) folders: RunFolders,
    /// Whether the run was begun before.
    pub(crate) is_resumed: bool,
    /// Writes `environment.json` while the ranks start.
    environment: Option<JoinHandle<()>>,
    /// Absent on machines that only take part.
    _lock: Option<RunLock>,
}

impl OwnedRun {
    /// A run that another process has made.
    pub(crate) fn of_another(folders: RunFolders) -> Self {
        Self { folders, is_resumed: false, environment: None, _lock: None }
    }

    /// What its ranks are to do.
    pub(crate) fn for_ranks(&self, plan: Plan) -> PreparedRun {
        PreparedRun { plan, folders: self.folders.clone(), resume: self.is_resumed }
    }

    /// Waits until this process writes nothing more into the folders.
    pub(crate) fn settle(&mut self) {
        if let Some(writer) = self.environment.take() {
            // A panic of the thread was printed by it.
            drop(writer.join());
        }
    }
}

impl Drop for OwnedRun {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Makes the folders of a new run.
pub(crate) fn open_run(prepared: &Prepared) -> Result<OwnedRun, Refusal> {
    let plan = &prepared.plan;
    incomplete_starts::remove(plan);
    let folders = folders_of(plan, &new_id());
    let start = begin(&folders, prepared, OtherData::Refused)?;
    // A sweep of this name may begin at the same moment.
    let named = plan.logging.dir.join(&plan.name);
    let _turn = files::take_turn(&named).map_err(unwritable)?;
    refuse_sweep(&prepared.loaded)?;
    let uninterrupted = launch::uninterrupted();
    let mut run = own_begun(folders, &start)?;
    if uninterrupted.ends() {
        run.settle();
        // Nothing of a run that did not begin stays. What cannot be removed does no harm.
        for folder in [&run.folders.checkpoints, &run.folders.logs] {
            drop(files::remove_folder(folder));
            files::remove_empty_parent(folder);
        }
        drop(uninterrupted);
        return Ok(run);
    }
    uninterrupted.complete(format!("ddprun resume {}", RunFolders::word(&run.folders.logs)));
    Ok(run)
}

/// The folders of the run `id` of this experiment.
pub(crate) fn folders_of(plan: &Plan, id: &str) -> RunFolders {
    RunFolders {
        logs: plan.logging.dir.join(&plan.name).join(id),
        checkpoints: plan.checkpoint.dir.join(&plan.name).join(id),
        id: id.to_owned(),
    }
}

/// Takes possession of a run's folders and writes down what was asked, decided and found
/// (`run.json`), and what the machine is. A run that goes on does so with the data that it
/// began with, unless `other` are accepted.
pub(crate) fn own_run(
    folders: RunFolders,
    prepared: &Prepared,
    other: OtherData,
) -> Result<OwnedRun, Refusal> {
    let start = begin(&folders, prepared, other)?;
    own_begun(folders, &start)
}

fn own_begun(folders: RunFolders, start: &run_files::Start<'_>) -> Result<OwnedRun, Refusal> {
    let unwritable: fn(files::Error) -> Refusal = match newest_start(&folders.logs) {
        0 => unwritable,
        _ => unwritable_run,
    };
    // In this order: what a kill between the two leaves is found by its logs (`abandoned`).
    files::create_writable_folder(&folders.logs).map_err(unwritable)?;
    files::create_writable_folder(&folders.checkpoints).map_err(|error| {
        // Only an empty folder goes: records of an earlier start stay.
        files::remove_empty_folder(&folders.logs);
        unwritable(error)
    })?;
    let lock = RunLock::acquire(&folders.logs).map_err(unwritable)?;
    files::remove_stale_temporaries(&folders.logs).map_err(unwritable)?;
    files::remove_stale_temporaries(&folders.checkpoints).map_err(unwritable)?;
    link_logs(&folders).map_err(unwritable)?;
    pin_weights(&folders, start.plan)?;
    run_files::describe(&folders, start).map_err(unwritable)?;
    let environment = describe_environment(folders.logs.clone());
    Ok(OwnedRun { folders, is_resumed: false, environment, _lock: Some(lock) })
}

/// Keeps the checkpoint of another run that the run starts from: that run may go on and delete it
/// before this one has read it, and this one may begin again from it.
fn pin_weights(folders: &RunFolders, plan: &Plan) -> Result<(), Refusal> {
    let pinned = folders.checkpoints.join(checkpoint::PIN);
    let (Some(path), Some(planned)) = (&plan.model.pretrained, &plan.model.pretrained_checkpoint)
    else {
        return Ok(());
    };
    let is_planned = |opened: &Opened| opened.manifest.fingerprint() == planned.fingerprint;
    if checkpoint::open(&pinned).is_ok_and(|kept| is_planned(&kept)) {
        return Ok(());
    }
    match checkpoint::open(path) {
        Ok(opened) if is_planned(&opened) => {
            checkpoint::pin(&opened, &pinned).map_err(|error| match error {
                checkpoint::Error::Files(error) => unwritable(error),
                error => Refusal::of(exit::CHECKPOINT, &error, None),
            })
        }
        // A run that has checkpoints of its own does not need it; the ranks of one that has not say
        // what is wrong.
        _ => Ok(()),
    }
}

/// This machine's folder in a run that another machine has made: the logs of its ranks, and what
/// the run is. The two may be one folder on a shared file system.
pub(crate) fn join_run(
    folders: RunFolders,
    prepared: &Prepared,
    other: OtherData,
) -> Result<OwnedRun, Refusal> {
    let start = begin(&folders, prepared, other)?;
    files::create_writable_folder(&folders.logs).map_err(unwritable)?;
    if files::lock_holder(&folders.logs).is_none() {
        // The folder is this machine's own: so that the run can be resumed on it too.
        run_files::describe(&folders, &start).map_err(unwritable)?;
    }
    Ok(OwnedRun::of_another(folders))
}

/// What this start writes down; generated data are there when it returns. A run that goes on does
/// so with the data that it began with, unless `other` are accepted.
fn begin<'a>(
    folders: &RunFolders,
    prepared: &'a Prepared,
    other: OtherData,
) -> Result<run_files::Start<'a>, Refusal> {
    generate(prepared)?;
    let data = Fingerprint::of(&prepared.facts.data, prepared.source.as_ref())
        .map_err(|error| of_data(&error))?;
    let (source, plan) = (prepared.loaded.path.as_path(), &prepared.plan);
    let start = run_files::Start { source, resolved: resolved(prepared)?, plan, data };
    run_files::compare_data(folders, &start, other)?;
    Ok(start)
}

/// What differs between the data of now and those that the run in `logs` was begun with, as far as
/// both are known. Generated data are there when it returns.
pub(crate) fn other_data(logs: &Path, prepared: &Prepared) -> Vec<String> {
    let now = || {
        generate(prepared).ok()?;
        Fingerprint::of(&prepared.facts.data, prepared.source.as_ref()).ok()
    };
    let then = Fingerprint::read(&newest_of(logs, DATA)).ok().flatten();
    then.and_then(|then| Some(now()?.differences(&then))).unwrap_or_default()
}

/// Describes the machine beside the start of the ranks, which do not need it. A description that
/// cannot be written is no reason not to train; where no thread is to be had, it is not even tried.
fn describe_environment(logs: PathBuf) -> Option<JoinHandle<()>> {
    let describe = move || {
        if let Err(error) = Environment::measure().write(&logs) {
            to_stderr(&format!("warning: could not write environment.json: {error}"));
        }
    };
    std::thread::Builder::new().name("environment".into()).spawn(describe).ok()
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
pub(crate) fn unwritable(error: files::Error) -> Refusal {
    let help = match error {
        files::Error::InUse { .. } => "wait for that process, or stop it",
        files::Error::Io { operation: "lock", .. } => {
            "mount the file system of this folder with locks (NFS: a lock manager, or \
             `local_lock=flock` where only one machine writes the folder, which is not so for a \
             shared sweep; Lustre: `flock`), or choose another folder with `logging.dir`: without \
             locks, two processes could write the same run"
        }
        _ if error.is_no_file() => "remove it, and run the command again",
        _ if error.is_out_of_space() => {
            "make room on that disk, or choose a folder on another one with `logging.dir` and \
             `checkpoint.dir`"
        }
        _ => "choose a folder that can be written, with `logging.dir` and `checkpoint.dir`",
    };
    let code = match error {
        files::Error::InUse { .. } => exit::REFUSED,
        _ => exit::STORAGE,
    };
    Refusal::of(code, &error, Some(help.into()))
}

/// As [`unwritable`], of a run that goes on: it stays in its folders.
pub(crate) fn unwritable_run(error: files::Error) -> Refusal {
    if matches!(error, files::Error::InUse { .. } | files::Error::Io { operation: "lock", .. }) {
        return unwritable(error);
    }
    let help = if error.is_no_file() {
        "remove it, then `ddprun resume`"
    } else if error.is_out_of_space() {
        "make room, then `ddprun resume`: a run stays in its folders"
    } else {
        "make the folders of this run writable, or start a new run from its weights with \
         `model.pretrained` and another `logging.dir` and `checkpoint.dir`"
    };
    Refusal::of(exit::STORAGE, &error, Some(help.into()))
}

/// The experiment with everything filled in.
pub(crate) fn resolved(prepared: &Prepared) -> Result<String, Refusal> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    config::resolved(&experiment).map_err(|error| Refusal::of(exit::BUG, &error, None))
}

/// `20261120-134205-3f9a0`: in UTC, so that the last one by name is the newest on whichever machine,
/// and two runs of one second differ.
pub(crate) fn new_id() -> String {
    let now = jiff::Timestamp::now();
    format!("{}-{:05x}", now.strftime("%Y%m%d-%H%M%S"), files::random() & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// `TZ=Europe/Oslo` counts in lists.
    #[test]
    fn time_zones_are_known_by_name_where_the_system_has_them() {
        if Path::new("/usr/share/zoneinfo/Europe/Oslo").exists() {
            assert!(jiff::tz::TimeZone::get("Europe/Oslo").is_ok());
        }
    }
}
