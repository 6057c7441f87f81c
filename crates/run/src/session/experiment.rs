//! Experiment file -> plan -> run folder: what stands before any rank is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::checkpoint;
use crate::collective;
use crate::collective::mpi::StartError;
use crate::config::kind::{Choice, Options};
use crate::config::schema::AUTO_BACKEND;
use crate::config::values::Auto;
use crate::config::{self, Experiment, Loaded, Problems, Vocabulary};
use crate::data::{self, Asked, DataSource};
use crate::failpoint;
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::launch::rank_env::{Foreign, mpi_launcher};
use crate::model;
use crate::ops;
use crate::plan::{
    BackendFacts, Facts, GpuFacts, KindFacts, Limit, Memory, ModelPlan, MpiFacts, Plan, SplitPlan,
    Targets, chosen_loss,
};
use crate::record::to_stderr;
use crate::session::follow_target::follow_target;
use crate::session::other_file::refuse_other_files;
use crate::session::{data_problem, pretrained};
use crate::sweep;
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// An experiment with everything decided.
pub struct Prepared {
    pub loaded: Loaded,
    pub plan: Plan,
    pub facts: Facts,
    pub source: Arc<dyn DataSource>,
}

impl Prepared {
    /// An experiment that is decided, and the data set of its plan.
    pub(crate) fn new(
        loaded: Loaded,
        facts: Facts,
        plan: Plan,
        kinds: &Kinds,
    ) -> Result<Self, ErrorPage> {
        let source = source_of(&plan, kinds)?;
        Ok(Self { loaded, plan, facts, source })
    }

    /// Decides everything about a loaded experiment whose numbers are all given: that of a run,
    /// whose weights are in its checkpoints, or one that [`complete`] has seen. `found` is what a
    /// run found out about its data when it began.
    pub fn of(
        loaded: Loaded,
        origin: Origin<'_>,
        found: Option<&Options>,
        kinds: &Kinds,
    ) -> Result<Self, ErrorPage> {
        failpoint::reach("parse");
        let facts = measure(&loaded, origin, found, kinds)?;
        let plan = decide(&loaded, &facts, kinds)?;
        Self::new(loaded, facts, plan, kinds)
    }

    /// Decides again for ranks that were each taken to be on a machine of its own, now that it is
    /// known which of them share one.
    pub(crate) fn share_machines(
        &mut self,
        found: &Foreign,
        kinds: &Kinds,
    ) -> Result<(), ErrorPage> {
        let (ranks, nodes) = (found.machine().count, found.nodes());
        if nodes < self.facts.nodes {
            self.facts.cores *= ranks.count();
            self.facts = Facts { launched_world: Some(ranks), nodes, ..self.facts.clone() };
            self.plan = decide(&self.loaded, &self.facts, kinds)?;
        }
        Ok(())
    }

    /// The plans of the smaller groups that the run may go on with.
    pub fn smaller(&self, kinds: &Kinds) -> Result<Vec<Plan>, ErrorPage> {
        Ok(self.plan.smaller(&self.loaded, &self.facts, kinds)?)
    }
}

/// What started this process, and how many machines take part.
pub type Origin<'a> = (&'a Role, u32);

/// A parent on the only machine.
pub const ALONE: Origin<'static> = (&Role::Parent, 1);

/// Reads the experiment at `path` with `changes` and decides everything.
pub fn prepare(
    path: &Path,
    changes: &[String],
    origin: Origin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, ErrorPage> {
    begun(load(path, changes, kinds)?, origin, kinds)
}

/// Decides everything about a loaded experiment that begins, and looks at the weights that it starts
/// from.
pub(crate) fn begun(
    loaded: Loaded,
    origin: Origin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, ErrorPage> {
    let facts = measure(&loaded, origin, None, kinds)?;
    let plan = decide(&loaded, &facts, kinds)?;
    check_weights(&loaded, &plan, kinds)?;
    Prepared::new(loaded, facts, plan, kinds)
}

/// Reads the experiment at `path` with `changes`, and what the files beside its weights tell.
pub fn load(path: &Path, changes: &[String], kinds: &Kinds) -> Result<Loaded, ErrorPage> {
    refuse_other_files(path)?;
    let vocabulary = vocabulary(kinds);
    let mut loaded = config::load(path, changes, &vocabulary)?;
    let absent = loaded.absent_inputs(&vocabulary);
    // A single one is reported by what opens it, which knows what the file should hold.
    if absent.len() > 1 {
        let are_data = absent.iter().all(|problem| problem.key().starts_with("data."));
        let code = if are_data { ExitCode::Data } else { ExitCode::Refused };
        return Err(ErrorPage::of_problems(code, Problems::new(absent)));
    }
    check_folders(&loaded)?;
    complete(&mut loaded, kinds)?;
    failpoint::reach("parse");
    Ok(loaded)
}

/// The plan of an experiment on a machine that can run it.
pub(crate) fn decide(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, ErrorPage> {
    let plan = planned(loaded, facts, kinds)?;
    collective::check_backend(&kinds.backends, &plan.distributed).map_err(|(backend, why)| {
        ErrorPage::new(ExitCode::Refused, format!("error: {backend} is unavailable: {why}"))
            .help("install it, or use `distributed.backend=shm`")
    })?;
    Ok(plan)
}

/// The data set of a plan.
pub fn source_of(plan: &Plan, kinds: &Kinds) -> Result<Arc<dyn DataSource>, ErrorPage> {
    let built = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from);
    Ok(built.map(Arc::from)?)
}

/// Data that cannot be used, drawn on the key that asks for them, if one does.
fn unusable_data(loaded: &Loaded, error: &data::Error) -> ErrorPage {
    match data_problem::of_key(loaded, error) {
        Some((code, problems)) => ErrorPage::of_problems(code, problems),
        None => ErrorPage::from_error(error),
    }
}

/// The plan of an experiment, whose model must take what its data gives.
pub fn planned(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, Problems> {
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
pub fn complete(loaded: &mut Loaded, kinds: &Kinds) -> Result<(), Problems> {
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
pub fn check_weights(loaded: &Loaded, plan: &Plan, kinds: &Kinds) -> Result<(), Problems> {
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
pub fn refuse_sweep(loaded: &Loaded) -> Result<(), ErrorPage> {
    let folder = loaded.experiment.logging.dir.join(loaded.name());
    if !sweep::is_of_sweep(&folder) {
        return Ok(());
    }
    let what = format!("`{}` holds a sweep", folder.display());
    let help = "choose another `experiment.name`: a run does not share the folder of a sweep";
    Err(loaded.problem("experiment.name", what).help(help).into())
}

/// Names that an experiment may use.
pub fn vocabulary(kinds: &Kinds) -> Vocabulary {
    kinds.vocabulary()
}

/// Looks at the machine and counts the data. `found` is what a run found out when it began, with
/// which it goes on.
pub fn measure(
    loaded: &Loaded,
    (role, nodes): Origin<'_>,
    found: Option<&Options>,
    kinds: &Kinds,
) -> Result<Facts, ErrorPage> {
    let experiment = &loaded.experiment;
    let choice =
        Choice { name: experiment.data.name.clone(), options: experiment.data.options.clone() };
    let (targets, limit) = (targets(loaded, kinds)?, Limit::of(experiment));
    let asked = Asked::new(loaded.name(), experiment.experiment.seed, targets);
    let asked = Asked { split: SplitPlan::of(&experiment.data), limit, found, ..asked };
    let mut data = data::survey(&kinds.data, &choice, &asked)
        .map_err(|error| unusable_data(loaded, &error))?;
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
            MpiFacts::Unusable { why: error.to_string(), help: error.help().unwrap_or_default() }
        }
    })
}

/// What the loss compares with.
pub fn targets(loaded: &Loaded, kinds: &Kinds) -> Result<Targets, ErrorPage> {
    let facts = kinds.loss(&chosen_loss(loaded));
    let facts = facts.map_err(|what| loaded.problem("loss.name", what))?;
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
pub fn gpus() -> Option<Vec<GpuFacts>> {
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
pub fn generate(prepared: &Prepared) -> Result<(), ErrorPage> {
    let asked = Asked::of(&prepared.plan);
    Ok(prepared.source.generate(&asked)?)
}

/// The experiment with everything filled in.
pub(crate) fn resolved(prepared: &Prepared) -> Result<String, ErrorPage> {
    written(&prepared.plan.pin(prepared.loaded.experiment.clone()))
}

/// An experiment as the text of its file.
pub fn written(experiment: &Experiment) -> Result<String, ErrorPage> {
    config::resolved(experiment).map_err(|error| ErrorPage::of(ExitCode::Bug, &error))
}
