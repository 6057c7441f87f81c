//! [`Loaded`] -> [`Prepared`]: facts about this machine and the data, and the plan that follows; and
//! its [`costs`], measured before it begins.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use serde_json::Value;

use crate::collective;
use crate::config::kind::{Choice, Options};
use crate::config::schema::AUTO_BACKEND;
use crate::config::{Loaded, Problem, Problems, closest};
use crate::data::{self, DataSource, SurveyRequest};
use crate::engine::{self, PassProfile};
use crate::failpoint;
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::launch::rank_env::{ExternalRank, mpi_launcher};
use crate::memory;
use crate::model;
use crate::ops;
use crate::plan::{
    BackendFacts, ComponentFacts, Costs, Facts, GpuFacts, Limit, Memory, Modality, MpiFacts, Plan,
    SplitPlan, Targets, chosen_loss, estimate_pass,
};
use crate::record::to_stderr;
use crate::session::experiment::load;
use crate::session::hub;
use crate::session::pretrained::check_weights;
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// Stacks and small blocks of a process.
const HEAP: Bytes = Bytes(4 << 20);
/// Largest model that is built to profile a pass.
const TRIED: Bytes = Bytes(1 << 30);

/// An experiment with everything decided.
pub struct Prepared {
    pub loaded: Loaded,
    pub plan: Plan,
    pub facts: Facts,
    pub source: Arc<dyn DataSource>,
}

impl Prepared {
    fn new(loaded: Loaded, facts: Facts, plan: Plan, kinds: &Kinds) -> Result<Self, ErrorPage> {
        let source = source_of(&plan, kinds)?;
        Ok(Self { loaded, plan, facts, source })
    }

    /// Decides everything about a loaded experiment whose numbers are all given: that of a run,
    /// whose weights are in its checkpoints, or one that
    /// [`complete`](crate::session::complete) has seen. `found` is what a run found out about its
    /// data when it began.
    pub fn of(
        loaded: Loaded,
        origin: LaunchOrigin<'_>,
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
        found: &ExternalRank,
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

/// The launch that this process belongs to.
#[derive(Clone, Copy, Debug)]
pub struct LaunchOrigin<'a> {
    /// The role that this process was started in.
    pub role: &'a Role,
    /// Number of machines.
    pub nodes: u32,
}

/// A parent on the only machine.
pub const SINGLE_NODE: LaunchOrigin<'static> = LaunchOrigin { role: &Role::Parent, nodes: 1 };

/// Reads the experiment at `path` with `changes` and decides everything.
pub fn prepare(
    path: &Path,
    changes: &[String],
    origin: LaunchOrigin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, ErrorPage> {
    prepare_new(load(path, changes, kinds)?, origin, kinds)
}

/// Decides everything about a loaded experiment that begins, and looks at the weights that it
/// starts from.
pub(crate) fn prepare_new(
    loaded: Loaded,
    origin: LaunchOrigin<'_>,
    kinds: &Kinds,
) -> Result<Prepared, ErrorPage> {
    let facts = measure(&loaded, origin, None, kinds)?;
    let plan = decide(&loaded, &facts, kinds)?;
    check_weights(&loaded, &plan, kinds)?;
    Prepared::new(loaded, facts, plan, kinds)
}

/// The plan of an experiment on a machine that can run it.
fn decide(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, ErrorPage> {
    let plan = make_plan(loaded, facts, kinds)?;
    collective::check_backend(&kinds.backends, &plan.distributed).map_err(|(backend, why)| {
        ErrorPage::new(ExitCode::Refused, format!("error: {backend} is unavailable: {why}"))
            .help("install it, or use `distributed.backend=shm`")
    })?;
    Ok(plan)
}

/// The plan of an experiment, whose model must take what its data gives.
pub fn make_plan(loaded: &Loaded, facts: &Facts, kinds: &Kinds) -> Result<Plan, Problems> {
    let data = &facts.data;
    let given = match (data.source.modality, &data.sample) {
        (Modality::Arrays, Some(shape)) => Modality::of_shape(shape),
        (modality, _) => modality,
    };
    refuse_other_samples(loaded, given, kinds)?;
    Plan::new(loaded, facts, kinds)
}

/// Refuses a model that cannot learn from samples of the modality `given`.
pub(crate) fn refuse_other_samples(
    loaded: &Loaded,
    given: Modality,
    kinds: &Kinds,
) -> Result<(), Problem> {
    let model = &loaded.experiment.model;
    let chosen = Choice { name: model.name.clone(), options: model.options.clone() };
    let Some(what) = kinds.models.refuses(&chosen, given) else { return Ok(()) };
    let help = format!(
        "choose one of the models for {}: {}",
        given.words(),
        kinds.models.models_for(given).join(", ")
    );
    Err(loaded.problem("model.name", what).help(help))
}

/// The data set of a plan.
pub fn source_of(plan: &Plan, kinds: &Kinds) -> Result<Arc<dyn DataSource>, ErrorPage> {
    let built = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from);
    Ok(built.map(Arc::from)?)
}

/// Looks at the machine and counts the data. `found` are the options that a run found out when it
/// began, with which it goes on.
pub fn measure(
    loaded: &Loaded,
    LaunchOrigin { role, nodes }: LaunchOrigin<'_>,
    found: Option<&Options>,
    kinds: &Kinds,
) -> Result<Facts, ErrorPage> {
    hub::download(loaded, kinds)?;
    let experiment = &loaded.experiment;
    let choice =
        Choice { name: experiment.data.name.clone(), options: experiment.data.options.clone() };
    let (targets, limit) = (targets(loaded, kinds)?, Limit::of(experiment));
    let request = SurveyRequest::new(loaded.name(), experiment.experiment.seed, targets);
    let (split, on_bad_sample) = (SplitPlan::of(&experiment.data), experiment.data.on_bad_sample);
    let request = SurveyRequest { split, on_bad_sample, limit, found, ..request };
    let mut data = data::survey(&kinds.data, &choice, &request)
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

/// Data that cannot be used, drawn on the key that asks for them, if one does.
fn unusable_data(loaded: &Loaded, error: &data::Error) -> ErrorPage {
    match problem_of_key(loaded, error) {
        Some((code, problems)) => ErrorPage::of_problems(code, problems),
        None => ErrorPage::from_error(error),
    }
}

/// The problem of the key that asks for what cannot be used, and the exit code; `None` where no
/// key does.
fn problem_of_key(loaded: &Loaded, error: &data::Error) -> Option<(ExitCode, Problems)> {
    let options = &loaded.experiment.data.options;
    let (code, key) = match error.key() {
        Some(key) => (ExitCode::Refused, key.to_owned()),
        None => (error.exit_code(), key_of(options, path_of(error)?)?),
    };
    let help = suggestion(error).or_else(|| error.help());
    let problem = loaded.problem(&key, error.to_string()).maybe_help(help);
    Some((code, problem.into()))
}

/// The path that is missing, or is not a folder.
fn path_of(error: &data::Error) -> Option<&Path> {
    match error {
        data::Error::Missing { path, .. } | data::Error::NotAFolder { path, .. } => Some(path),
        _ => None,
    }
}

/// The key of the data set's option that is this path.
fn key_of(options: &Options, path: &Path) -> Option<String> {
    let is_it = |value: &Value| value.as_str().is_some_and(|text| Path::new(text) == path);
    options.iter().find(|(_, value)| is_it(value)).map(|(key, _)| format!("data.{key}"))
}

/// Suggests a similar name for a path that does not exist.
fn suggestion(error: &data::Error) -> Option<String> {
    let data::Error::Missing { what, path, .. } = error else { return None };
    let near = neighbour(path, what.contains("folder"))?;
    Some(format!("did you mean `{}`?", near.display()))
}

/// The folder or file beside an absent `path` whose name is closest.
fn neighbour(path: &Path, is_folder: bool) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let wanted = path.file_name()?.to_str()?;
    let mut names: Vec<String> = std::fs::read_dir(parent.unwrap_or(Path::new(".")))
        .ok()?
        .flatten()
        .filter(|entry| entry.path().exists() && entry.path().is_dir() == is_folder)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let name = closest(wanted, names.iter().map(String::as_str))?;
    Some(path.with_file_name(name))
}

/// Opens the library of the MPI launcher that started this process, where it may be used.
fn mpi(asked: &str, nodes: u32, kinds: &Kinds) -> Option<MpiFacts> {
    let by_mpi = |it: &BackendFacts| it.name == asked && it.capabilities.meets_by_mpi;
    let is_wanted =
        if asked == AUTO_BACKEND { nodes > 1 } else { kinds.backends().iter().any(by_mpi) };
    let launcher = is_wanted.then(mpi_launcher)??;
    Some(match collective::mpi::check(&launcher) {
        Ok(()) => MpiFacts::Found,
        Err(error) => {
            MpiFacts::Unusable { why: error.to_string(), help: error.help().unwrap_or_default() }
        }
    })
}

/// The targets that the loss compares with.
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

/// Memory and operations that the run needs: measured on a small batch, or estimated for a model
/// that is too large to be tried. Unknown for a model that cannot be built or run here, which
/// training will report.
pub fn costs(prepared: &Prepared, kinds: &Kinds) -> Costs {
    let plan = &prepared.plan;
    // A frozen base, as under LoRA, is listed as buffers, and drawn to be tried.
    let held = Bytes::of_f32(plan.model.n_parameters + plan.model.n_buffer_elements);
    if held > TRIED {
        let estimated = kinds.models.describe(&plan.model);
        let estimated = estimated.ok().and_then(|facts| estimate_pass(plan, &facts));
        if let Some(pass) = estimated {
            let (memory, flops) = (Memory::of(plan, Some(pass.activations)), Some(pass.flops));
            return Costs { memory, flops, is_estimated: true };
        }
    }
    let profiled = profiled(prepared, held, kinds);
    let mut memory = Memory::of(plan, profiled.and_then(|pass| pass.activations));
    if let Some(program) = memory::of_program().filter(|_| profiled.is_some()) {
        memory.base = Bytes(program.0 + HEAP.0);
    }
    Costs { memory, flops: profiled.map(|pass| pass.flops), is_estimated: false }
}

/// Profile of a pass; `None` if it cannot be tried: the values of the model, which are `held` while
/// it is built, leave no room for their gradients and for others on this machine.
fn profiled(prepared: &Prepared, held: Bytes, kinds: &Kinds) -> Option<PassProfile> {
    let plan = &prepared.plan;
    if prepared.facts.memory.is_some_and(|memory| Bytes(4 * held.0) > memory) {
        return None;
    }
    let components = kinds.components(plan, &Device::Cpu).ok()?;
    engine::profile_pass(plan, &components).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_blamed_on_the_key_that_names_it() {
        let given = [("classes".to_owned(), 3.into()), ("train_dir".to_owned(), "a/b".into())];
        let options = Options::from(given);
        assert_eq!(key_of(&options, Path::new("a/b")).as_deref(), Some("data.train_dir"));
        assert_eq!(key_of(&options, Path::new("a")), None);
    }

    #[test]
    fn a_neighbour_of_the_same_kind_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let [folder, table] = ["train", "train.csv"].map(|name| dir.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        crate::files::write_atomic(&table, b"a\n1\n").unwrap();
        assert_eq!(neighbour(&dir.path().join("trian"), true), Some(folder));
        assert_eq!(neighbour(&dir.path().join("trian.csv"), false), Some(table));
        assert_eq!(neighbour(&dir.path().join("photos"), true), None);
    }
}
