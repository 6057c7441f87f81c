//! Ranks, their devices and threads, and how they exchange tensors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::kind::BACKEND;
use crate::config::schema::AUTO_BACKEND as AUTO;
use crate::config::values::Devices;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::sharding::largest_part;
use crate::plan::shm_layout::MAX_RANKS;
use crate::plan::{
    AllReduce, BackendCapabilities, BackendFacts, BackendPlan, CommHook, Facts, MpiFacts, OnOom,
    ZeroStage, admitted_worlds,
};
use crate::terminal::counted;
use train_numbers::units::{Bytes, Rank, Shards, WorldSize};

/// Most machines without MPI: the first rank of each is connected with that of every other.
const MAX_MACHINES: u32 = 64;
/// Most ranks with MPI.
const MAX_RANKS_BY_MPI: u32 = 1024;
/// Prefix of the name of a GPU.
const GPU_PREFIX: &str = "cuda:";
/// A remedy for a program without CUDA.
const REBUILD: &str = "rebuild it with `cargo build --release --features cuda`";

/// Ranks and their communication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributedPlan {
    /// Number of ranks.
    pub world_size: WorldSize,
    /// Number of machines, with as many ranks each.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Smaller world sizes with which the run may continue, largest first.
    #[serde(default)]
    pub smaller: Vec<WorldSize>,
    /// Device of each rank: "cpu", or a GPU as CUDA numbers it, "cuda:0".
    pub devices: Vec<String>,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Backend that exchanges tensors.
    pub backend: BackendPlan,
    /// Capabilities of the backend that the rest of the program depends on.
    #[serde(default, skip_serializing_if = "BackendCapabilities::are_none")]
    pub capabilities: BackendCapabilities,
    /// Bytes of the mapping that the ranks of each of several machines share, if a machine has
    /// several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_mapping: Option<Bytes>,
    /// True if ranks of a launcher, each of which knows only its own GPU, switch to NCCL when they
    /// find that their GPUs differ.
    #[serde(default)]
    pub nccl_if_apart: bool,
    /// Bytes at which a bucket closes.
    pub bucket_cap: Bytes,
    /// Bytes at which the first bucket closes.
    pub first_bucket_cap: Bytes,
    /// True to reduce gradients while backward runs.
    pub overlap: bool,
    /// Numbers in which gradients are exchanged.
    #[serde(default)]
    pub comm_hook: CommHook,
    /// Summation of the gradients of all ranks: by ddprun or by a library.
    #[serde(default)]
    pub all_reduce: AllReduce,
    /// State that is sharded over ranks; in a world of one the shard is everything.
    #[serde(default)]
    pub zero_stage: ZeroStage,
    /// Elements of the trained parameters in the largest shard.
    #[serde(default)]
    pub largest_part: usize,
    /// True to tolerate unused parameters.
    pub find_unused_parameters: bool,
    /// True if batch norms take their statistics over all shards of a pass.
    #[serde(default)]
    pub sync_batchnorm: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

fn one() -> u32 {
    1
}

impl DistributedPlan {
    /// Ranks of each machine.
    pub fn local_world(&self) -> WorldSize {
        WorldSize::new(self.world_size.get() / self.nodes.max(1)).unwrap_or(WorldSize::ONE)
    }

    /// Bytes of the mapping that the ranks of a machine share, if there is one.
    pub fn mapping(&self) -> Option<Bytes> {
        self.backend.mapping.or(self.machine_mapping)
    }

    /// The GPU on which `rank` computes, as CUDA numbers it; `None` for the CPU.
    pub fn gpu(&self, rank: Rank) -> Option<usize> {
        self.devices.get(rank.index())?.strip_prefix(GPU_PREFIX)?.parse().ok()
    }

    /// Turns the plan into a world of one on a machine with so many GPUs, whatever machine it was
    /// decided for: on its own GPU, on the first one where there are fewer, on the CPU where there
    /// is none.
    pub fn become_alone(&mut self, visible_gpus: usize) {
        let device = match self.gpu(Rank(0)) {
            Some(gpu) if gpu < visible_gpus => format!("{GPU_PREFIX}{gpu}"),
            Some(_) if visible_gpus > 0 => format!("{GPU_PREFIX}0"),
            _ => "cpu".to_owned(),
        };
        self.devices = vec![device];
        self.world_size = WorldSize::ONE;
        self.backend = BackendPlan::alone();
        self.capabilities = BackendCapabilities::default();
        self.machine_mapping = None;
    }

    /// True if each rank keeps only its shard of the optimizer's state.
    pub(super) fn is_sharded(&self) -> bool {
        self.zero_stage != ZeroStage::None && self.world_size > WorldSize::ONE
    }

    /// True if ranks compute on GPUs.
    pub fn is_on_gpus(&self) -> bool {
        self.devices.iter().any(|device| device.starts_with(GPU_PREFIX))
    }

    /// True if an MPI launcher has started the ranks, and its library connects them.
    pub fn meets_by_mpi(&self) -> bool {
        self.capabilities.meets_by_mpi
    }

    /// True if several ranks of this machine compute on one GPU and NCCL sums their gradients.
    pub fn nccl_shares_a_gpu(&self) -> bool {
        // Every machine counts its own GPUs from 0.
        let devices = &self.devices[..self.local_world().count().min(self.devices.len())];
        let shared = (1..devices.len()).any(|at| devices[..at].contains(&devices[at]));
        shared && self.capabilities.sums_on_gpus
    }
}

/// Ranks and their devices.
pub(super) struct Ranks {
    pub(super) world: WorldSize,
    /// Ranks of each machine.
    pub(super) local_world: WorldSize,
    nodes: u32,
    /// True if a foreign launcher started the ranks; it may show each rank other GPUs.
    launched: bool,
    /// True if that launcher is an MPI launcher whose library can be used.
    mpi: bool,
    /// The GPU of each rank of this machine; empty for the CPU.
    gpus: Vec<u32>,
    /// The backend that the experiment names, or else the best one; `None` = one rank alone.
    backend: Option<BackendFacts>,
}

impl Ranks {
    /// True if they compute on GPUs.
    pub(super) fn on_gpus(&self) -> bool {
        !self.gpus.is_empty()
    }

    fn share_a_gpu(&self) -> Option<u32> {
        let mut earlier = self.gpus.iter().enumerate();
        earlier.find(|(at, gpu)| self.gpus[..*at].contains(gpu)).map(|(_, gpu)| *gpu)
    }

    /// True if their tensors go through MPI.
    fn use_mpi(&self) -> bool {
        let meets = |backend: &BackendFacts| backend.capabilities.meets_by_mpi;
        self.world > WorldSize::ONE && self.backend.as_ref().is_some_and(meets)
    }

    /// True if only the ranks themselves can find out whether each has a GPU of its own, as the
    /// launcher that started them may show each another one.
    fn must_find_out(&self) -> bool {
        let unknown = self.nodes > 1 && !self.gpus.is_empty();
        self.launched && self.world > WorldSize::ONE && (unknown || self.share_a_gpu().is_some())
    }
}

/// The ranks that a foreign launcher started, or those of `distributed.devices`, or one for each
/// GPU; one rank where there is none.
pub(super) fn ranks(
    loaded: &Loaded,
    facts: &Facts,
    backends: &[BackendFacts],
) -> Result<Ranks, Problem> {
    let devices = &loaded.experiment.distributed.devices;
    let problem = |what: String| loaded.problem("distributed.devices", what);
    let visible = facts.gpus.as_ref().map_or(0, Vec::len) as u32;
    let count = match (facts.launched_world, devices) {
        (Some(world), Devices::List(list)) if list.len() != world.count() => {
            return Err(problem(other_list(list.len(), world, facts.nodes))
                .help("list as many GPUs as the launcher starts ranks, or omit it"));
        }
        // The launcher's number of ranks overrides the experiment's, as that of `--nproc-per-node`
        // does.
        (Some(world), _) => world.get(),
        (None, asked) => largest(loaded, asked.count().unwrap_or(visible.max(1))),
    };
    let world = WorldSize::new(count).ok_or_else(|| problem("must be at least 1".to_owned()))?;
    if count > MAX_RANKS {
        let what = format!("gives {count} ranks, but a machine can have at most {MAX_RANKS}");
        return Err(problem(what).help("use fewer ranks, with more threads each"));
    }
    let gpus = match devices {
        Devices::List(_) if facts.gpus.is_none() => {
            let what = "lists GPUs, but this ddprun was built without `cuda`";
            return Err(problem(what.to_owned()).help(REBUILD));
        }
        Devices::List(list) => match list.iter().find(|gpu| **gpu >= visible) {
            Some(gpu) => return Err(problem(format!("names GPU {gpu}, but {}", shown(visible)))),
            None => list[..list.len().min(count as usize)].to_vec(),
        },
        _ if visible == 0 => Vec::new(),
        // A rank that counts as a machine shares the GPUs with others that do.
        _ if facts.launched_world == Some(WorldSize::ONE) && facts.nodes > 1 => {
            vec![facts.local_rank % visible]
        }
        // Under a launcher several ranks may have to share a GPU: the launcher decides it.
        _ if facts.launched_world.is_some() => (0..count).map(|rank| rank % visible).collect(),
        _ if count > visible => {
            let what = format!("is {count}, but {}", shown(visible));
            let help = "name a GPU twice, `[0, 0]`, to put two ranks on it; CUDA_VISIBLE_DEVICES= \
                        hides all GPUs";
            return Err(problem(what).help(help));
        }
        _ => (0..count).collect(),
    };
    let local_world = world;
    let nodes = facts.nodes;
    let all = WorldSize::new(world.get().saturating_mul(nodes)).unwrap_or(world);
    let launched = facts.launched_world.is_some();
    let mpi = launched && facts.mpi == Some(MpiFacts::Found);
    let mut ranks = Ranks { world: all, local_world, nodes, launched, mpi, gpus, backend: None };
    ranks.backend = choose_backend(loaded, &ranks, backends)?.cloned();
    let problem = no_gpus(loaded, facts, &ranks)
        .or_else(|| no_mpi(loaded, facts, &ranks))
        .or_else(|| no_library_sums(loaded, &ranks))
        .or_else(|| not_on_machines(loaded, &ranks));
    problem.map_or(Ok(ranks), Err)
}

/// The backend that the experiment names, or else the best one for the ranks.
fn choose_backend<'a>(
    loaded: &Loaded,
    ranks: &Ranks,
    backends: &'a [BackendFacts],
) -> Result<Option<&'a BackendFacts>, Problem> {
    let name = &loaded.experiment.distributed.backend;
    if name != AUTO {
        let named = backends.iter().find(|backend| backend.name == *name);
        let problem = || loaded.problem(BACKEND, format!("no backend is called `{name}`"));
        return named.map(Some).ok_or_else(problem);
    }
    let best = best(ranks, backends);
    if best.is_none() && ranks.world > WorldSize::ONE {
        let what = format!("is \"{AUTO}\", but no backend connects these ranks");
        return Err(loaded.problem(BACKEND, what));
    }
    Ok(best)
}

/// The best backend for the ranks: on CPUs of several machines the library of the MPI launcher; on
/// GPUs, if each rank has one of its own, a backend that sums there; else one that goes through the
/// memory of CPUs.
fn best<'a>(ranks: &Ranks, backends: &'a [BackendFacts]) -> Option<&'a BackendFacts> {
    let by_mpi = ranks.mpi && ranks.nodes > 1 && !ranks.on_gpus();
    let apart = ranks.share_a_gpu().is_none() && !ranks.must_find_out();
    let on_gpus = ranks.on_gpus() && apart;
    let find = |suits: &dyn Fn(&BackendCapabilities) -> bool| {
        let is_free = |it: &&BackendFacts| it.is_automatic && it.reaches(ranks.nodes);
        backends.iter().filter(is_free).find(|backend| suits(&backend.capabilities))
    };
    let mpi = by_mpi.then(|| find(&|has| has.meets_by_mpi)).flatten();
    let gpus = || on_gpus.then(|| find(&|has| has.sums_on_gpus)).flatten();
    mpi.or_else(gpus).or_else(|| find(&|has| !has.meets_by_mpi && !has.sums_on_gpus))
}

/// The reason why a list of so many GPUs does not fit the ranks of a launcher.
fn other_list(gpus: usize, world: WorldSize, nodes: u32) -> String {
    let listed = format!("lists {}", counted(gpus as u64, "GPU"));
    if nodes > 1 {
        return format!("{listed}, but each rank of a launcher on several machines has one");
    }
    let ranks = counted(world.get().into(), "rank");
    format!("{listed}, but the launcher started {ranks}")
}

/// A problem of settings that work on one machine only, or on several only.
fn not_on_machines(loaded: &Loaded, ranks: &Ranks) -> Option<Problem> {
    let experiment = &loaded.experiment;
    let unreached = ranks.backend.as_ref().filter(|backend| !backend.reaches(ranks.nodes));
    if ranks.nodes == 1 {
        let help =
            "omit it: ranks of one machine share memory; or see `--nnodes` in docs/machines.md";
        let problem = |backend: &BackendFacts| {
            let name = &backend.name;
            let what = format!("is \"{name}\", which connects several machines, but there is one");
            loaded.problem(BACKEND, what).help(help)
        };
        return unreached.map(problem);
    }
    let problem = |key: &str, what: String, help: &str| Some(loaded.problem(key, what).help(help));
    if unreached.is_some() {
        let what = format!("connects ranks of one machine, and there are {}", ranks.nodes);
        return problem(BACKEND, what, "omit it, or use backend = \"tcp\"");
    }
    if ranks.use_mpi() && ranks.world.get() > MAX_RANKS_BY_MPI {
        let what = format!(
            "gives {} ranks, but all machines together can have at most {MAX_RANKS_BY_MPI}",
            ranks.world
        );
        let help = "use fewer ranks on each machine, with more threads each";
        return problem("distributed.devices", what, help);
    }
    if !ranks.use_mpi() && ranks.nodes > MAX_MACHINES {
        let what = format!(
            "gives {} machines, but without MPI there can be at most {MAX_MACHINES}, each \
             connected with every other",
            ranks.nodes
        );
        return problem("distributed.devices", what, "use fewer machines, or start it by mpirun");
    }
    if experiment.distributed.min_world_size.given().is_some()
        && (ranks.launched || experiment.fault.max_restarts == 0)
    {
        let what =
            "needs restarts over several machines: those that are left meet again".to_owned();
        let help = if ranks.launched {
            "omit it: the launcher starts the ranks again; or start `ddprun --nnodes` on each \
             machine without a launcher"
        } else {
            "set `fault.max_restarts` to at least 1, or omit it; `ddprun resume` continues with any \
             number of ranks"
        };
        return problem("distributed.min_world_size", what, help);
    }
    if experiment.fault.max_restarts > 0 && ranks.launched {
        let what = "is not available over several machines under another launcher: the launcher \
                    starts the ranks again"
            .to_owned();
        return problem(
            "fault.max_restarts",
            what,
            "set it to 0, or start `ddprun --nnodes` on each machine without a launcher",
        );
    }
    if experiment.fault.on_oom == OnOom::ShrinkBatch && ranks.launched {
        let what = "is \"shrink_batch\", which is not available over several machines under \
                    another launcher"
            .to_owned();
        let help = "make `train.batch_size` smaller, or start `ddprun --nnodes` on each machine \
                    without a launcher";
        return problem("fault.on_oom", what, help);
    }
    None
}

/// "CUDA shows 2 GPUs"
fn shown(visible: u32) -> String {
    match visible {
        0 => "CUDA shows no GPU".to_owned(),
        1 => "CUDA shows 1 GPU, number 0".to_owned(),
        n => format!("CUDA shows {n} GPUs, numbers 0 to {}", n - 1),
    }
}

/// The backend, if the experiment names it.
fn named<'a>(loaded: &Loaded, ranks: &'a Ranks) -> Option<&'a BackendFacts> {
    ranks.backend.as_ref().filter(|_| loaded.experiment.distributed.backend != AUTO)
}

/// A problem if the experiment names a backend that sums on GPUs, and the ranks cannot use it.
fn no_gpus(loaded: &Loaded, facts: &Facts, ranks: &Ranks) -> Option<Problem> {
    let named = named(loaded, ranks).filter(|backend| backend.capabilities.sums_on_gpus)?;
    let name = &named.name;
    let problem = |what: String| loaded.problem(BACKEND, what);
    if facts.gpus.is_none() {
        let help = format!("{REBUILD}, or use backend = \"shm\"");
        return Some(problem(format!("this ddprun was built without `{name}`")).help(help));
    }
    if ranks.gpus.is_empty() {
        let what = format!("is \"{name}\", which needs GPUs, but CUDA shows none");
        return Some(problem(what).help("use backend = \"shm\""));
    }
    // Of ranks that this program starts NCCL is told that some share a GPU; its newer versions
    // admit that.
    if !ranks.launched {
        return None;
    }
    let gpu = ranks.share_a_gpu()?;
    let what = format!("is \"{name}\", which refuses two ranks on one GPU, here GPU {gpu}");
    let help = "omit it: ranks of a launcher find out whether their GPUs differ";
    Some(problem(what).help(help))
}

/// A problem if the experiment names a backend of an MPI launcher, and the ranks cannot use it.
fn no_mpi(loaded: &Loaded, facts: &Facts, ranks: &Ranks) -> Option<Problem> {
    let named = named(loaded, ranks).filter(|backend| backend.capabilities.meets_by_mpi)?;
    let name = &named.name;
    let problem = |what: String| loaded.problem(BACKEND, what);
    match &facts.mpi {
        None => {
            let what = format!("is \"{name}\", but no MPI launcher has started this process");
            let help = "start it with `mpirun -n 4 ddprun ...` or `srun --mpi=pmix ddprun ...`; \
                        ranks of one machine need no MPI: backend = \"shm\"";
            Some(problem(what).help(help))
        }
        Some(MpiFacts::Unusable { why, help }) => {
            Some(problem(format!("is \"{name}\", but {why}")).help(help))
        }
        Some(MpiFacts::Found) if !ranks.launched && ranks.world > WorldSize::ONE => {
            let what = format!(
                "is \"{name}\", whose launcher started 1 rank, but `distributed.devices` gives {}",
                ranks.world
            );
            let help = format!("start as many with the launcher: `mpirun -n {}`", ranks.world);
            Some(problem(what).help(help))
        }
        Some(MpiFacts::Found) => None,
    }
}

/// A problem if a library is to add up gradients, and the backend has none.
fn no_library_sums(loaded: &Loaded, ranks: &Ranks) -> Option<Problem> {
    let config = &loaded.experiment.distributed;
    let can_sum = ranks.backend.as_ref().is_some_and(|it| it.sums_by_library);
    let is_refused =
        config.all_reduce == AllReduce::Library && ranks.world > WorldSize::ONE && !can_sum;
    is_refused.then(|| {
        let what = "is \"library\", which is a sum by MPI, but tensors do not go through MPI";
        let help = "omit it; or start the ranks with `mpirun -n 4 ddprun ...` and set backend = \
                    \"mpi\"";
        loaded.problem("distributed.all_reduce", what).help(help)
    })
}

/// The largest world size up to `devices` with which a run that may shrink can start.
fn largest(loaded: &Loaded, devices: u32) -> u32 {
    let config = &loaded.experiment.distributed;
    match (config.shards.given(), config.min_world_size.given()) {
        (Some(shards), Some(least)) => {
            let admitted = admitted_worlds(shards).into_iter().rev();
            let mut admitted = admitted.filter(|world| (least..=devices).contains(world));
            admitted.next().unwrap_or(devices)
        }
        _ => devices,
    }
}

/// Smaller world sizes with which the run may continue, largest first.
pub(super) fn smaller_worlds(
    loaded: &Loaded,
    ranks: &Ranks,
    shards: Shards,
) -> Result<Vec<WorldSize>, Problem> {
    const KEY: &str = "distributed.min_world_size";
    let world = ranks.world;
    let Some(least) = loaded.experiment.distributed.min_world_size.given() else {
        return Ok(Vec::new());
    };
    if least > world.get() {
        return Err(loaded.problem(
            KEY,
            format!("is {least}, but the run has {}", counted(world.get().into(), "rank")),
        ));
    }
    // Of several machines whole ones are lost.
    let each = if ranks.nodes > 1 { ranks.local_world.get() } else { 1 };
    let admitted = admitted_worlds(shards.get()).into_iter();
    let admitted: Vec<u32> = admitted.filter(|size| size.is_multiple_of(each)).collect();
    let smaller = admitted.iter().rev().filter(|size| (least..world.get()).contains(size));
    let smaller: Vec<WorldSize> = smaller.filter_map(|size| WorldSize::new(*size)).collect();
    if smaller.is_empty() && least < world.get() {
        let admitted: Vec<String> = admitted.iter().map(u32::to_string).collect();
        let admitted = admitted.join(", ");
        let shards = counted(shards.get().into(), "shard");
        let what = format!(
            "with {shards} the world size may be {admitted}, none of which is from {least} to \
             below {world}"
        );
        return Err(loaded.problem(KEY, what).help("use 2, 4, 8 ... ranks, or a smaller minimum"));
    }
    Ok(smaller)
}

/// The plan of `[distributed]` for these ranks.
pub(super) fn decide(
    experiment: &Experiment,
    ranks: &Ranks,
    smaller: Vec<WorldSize>,
    cores: usize,
    lengths: &[usize],
) -> DistributedPlan {
    let config = &experiment.distributed;
    let world_size = ranks.world;
    let share = (cores / ranks.local_world.count()).max(1);
    // Of other machines, as if they were like this one: each keeps its own.
    let named = ranks.gpus.iter().map(|gpu| format!("{GPU_PREFIX}{gpu}"));
    let devices = if ranks.gpus.is_empty() {
        vec!["cpu".to_owned(); world_size.count()]
    } else {
        named.cycle().take(world_size.count()).collect()
    };
    let backend = ranks.backend.as_ref().filter(|_| world_size > WorldSize::ONE);
    let plan = |backend: &BackendFacts| backend.plan(world_size, ranks.nodes, lengths);
    DistributedPlan {
        world_size,
        nodes: ranks.nodes,
        machine_mapping: backend
            .and_then(|backend| machine_mapping(backend, config.all_reduce, ranks, lengths)),
        smaller,
        devices,
        threads_per_rank: config.threads_per_rank.given().map_or(share, |n| n as usize),
        backend: backend.map_or_else(BackendPlan::alone, plan),
        capabilities: backend.map(|backend| backend.capabilities.clone()).unwrap_or_default(),
        nccl_if_apart: config.backend == AUTO && ranks.must_find_out(),
        bucket_cap: Bytes(config.bucket_cap.0),
        first_bucket_cap: Bytes(config.first_bucket_cap.0),
        overlap: config.overlap,
        comm_hook: config.comm_hook,
        all_reduce: config.all_reduce,
        zero_stage: config.zero_stage,
        largest_part: largest_part(lengths, world_size),
        find_unused_parameters: config.find_unused_parameters,
        sync_batchnorm: config.sync_batchnorm,
        timeout: config.timeout.0,
    }
}

/// Bytes that the ranks of each of several machines share: for their gradients, unless a library
/// sums these.
fn machine_mapping(
    backend: &BackendFacts,
    all_reduce: AllReduce,
    ranks: &Ranks,
    lengths: &[usize],
) -> Option<Bytes> {
    let local = ranks.local_world;
    // A library that adds up does so within machines too.
    if ranks.nodes == 1 || local == WorldSize::ONE || all_reduce == AllReduce::Library {
        return None;
    }
    backend.several_machines?.mapping(local, lengths)
}
