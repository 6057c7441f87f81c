//! Ranks, their devices and threads, and how they exchange tensors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::schema::Backend;
use crate::config::values::Devices;
use crate::config::{Experiment, Loaded, Problem};
use crate::plan::mapping::Mapping;
use crate::plan::{Facts, ModelFacts, admitted_worlds};
use crate::units::{Bytes, Rank, Shards, WorldSize};

/// What stands before the number of a GPU.
const GPU_PREFIX: &str = "cuda:";
/// How a program without CUDA becomes one with it.
const REBUILD: &str = "rebuild it with `cargo build --release --features cuda`";

/// Ranks and their communication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributedPlan {
    /// Number of ranks.
    pub world_size: WorldSize,
    /// Smaller numbers of ranks that the run may go on with, largest first.
    #[serde(default)]
    pub smaller: Vec<WorldSize>,
    /// Device of each rank: "cpu", or a GPU as CUDA numbers it, "cuda:0".
    pub devices: Vec<String>,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// How tensors are exchanged.
    pub backend: BackendPlan,
    /// Bytes at which a bucket closes.
    pub bucket_cap: Bytes,
    /// Bytes at which the first bucket closes.
    pub first_bucket_cap: Bytes,
    /// Reduce while backward runs.
    pub overlap: bool,
    /// Tolerate unused parameters.
    pub find_unused_parameters: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

/// How ranks exchange tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendPlan {
    /// A world of one.
    Solo,
    /// One shared mapping of one machine; its size in bytes.
    Shm {
        /// Bytes of the mapping.
        mapping: Bytes,
    },
    /// NCCL for gradients on GPUs; everything else goes through a mapping of one machine.
    Nccl {
        /// Bytes of the mapping.
        mapping: Bytes,
    },
}

impl BackendPlan {
    /// Bytes of the shared mapping, if there is one.
    pub fn mapping(self) -> Option<Bytes> {
        match self {
            Self::Solo => None,
            Self::Shm { mapping } | Self::Nccl { mapping } => Some(mapping),
        }
    }
}

impl DistributedPlan {
    /// The GPU on which `rank` computes, as CUDA numbers it; `None` for the CPU.
    pub fn gpu(&self, rank: Rank) -> Option<usize> {
        self.devices.get(rank.index())?.strip_prefix(GPU_PREFIX)?.parse().ok()
    }
}

/// Ranks and where they compute.
pub(crate) struct Ranks {
    pub(crate) world: WorldSize,
    /// The GPU of each rank; empty for the CPU.
    gpus: Vec<u32>,
}

impl Ranks {
    pub(crate) fn compute_on_gpus(&self) -> bool {
        !self.gpus.is_empty()
    }

    fn share_a_gpu(&self) -> Option<u32> {
        let mut earlier = self.gpus.iter().enumerate();
        earlier.find(|(at, gpu)| self.gpus[..*at].contains(gpu)).map(|(_, gpu)| *gpu)
    }
}

/// Ranks as a foreign launcher decided, as asked, or one for each GPU; one rank where there is none.
pub(crate) fn ranks(loaded: &Loaded, facts: &Facts) -> Result<Ranks, Problem> {
    let asked = &loaded.experiment.distributed.devices;
    let problem = |what: String| loaded.problem("distributed.devices", what);
    let visible = facts.gpus.as_ref().map_or(0, Vec::len) as u32;
    let count = match (facts.launched_world, asked.count()) {
        (Some(world), Some(asked)) if asked != world.get() => {
            let what = format!("is {asked}, but the launcher started {world} ranks");
            return Err(problem(what).help("leave it away under a launcher"));
        }
        (Some(world), _) => world.get(),
        (None, asked) => largest(loaded, asked.unwrap_or(visible.max(1))),
    };
    let world = WorldSize::new(count).ok_or_else(|| problem("must be at least 1".to_owned()))?;
    let gpus = match asked {
        Devices::List(_) if facts.gpus.is_none() => {
            let what = "lists GPUs, but this ddprun was built without `cuda`";
            return Err(problem(what.to_owned()).help(REBUILD));
        }
        Devices::List(list) => match list.iter().find(|gpu| **gpu >= visible) {
            Some(gpu) => return Err(problem(format!("names GPU {gpu}, but {}", shown(visible)))),
            None => list[..list.len().min(count as usize)].to_vec(),
        },
        _ if visible == 0 => Vec::new(),
        // Under a launcher several ranks may have to share a GPU: nobody else decides it.
        _ if facts.launched_world.is_some() => (0..count).map(|rank| rank % visible).collect(),
        _ if count > visible => {
            let what = format!("is {count}, but {}", shown(visible));
            let help = "name a GPU twice, `[0, 0]`, to put two ranks on it; CUDA_VISIBLE_DEVICES= hides all GPUs";
            return Err(problem(what).help(help));
        }
        _ => (0..count).collect(),
    };
    let ranks = Ranks { world, gpus };
    match no_nccl(loaded, facts, &ranks) {
        Some(problem) => Err(problem),
        None => Ok(ranks),
    }
}

/// "CUDA shows 2 GPUs"
fn shown(visible: u32) -> String {
    match visible {
        0 => "CUDA shows no GPU".to_owned(),
        1 => "CUDA shows 1 GPU, number 0".to_owned(),
        n => format!("CUDA shows {n} GPUs, numbers 0 to {}", n - 1),
    }
}

/// Why NCCL, if it was asked for, cannot be had.
fn no_nccl(loaded: &Loaded, facts: &Facts, ranks: &Ranks) -> Option<Problem> {
    if loaded.experiment.distributed.backend != Backend::Nccl {
        return None;
    }
    let problem = |what: String| loaded.problem("distributed.backend", what);
    if facts.gpus.is_none() {
        let help = format!("{REBUILD}, or use backend = \"shm\"");
        return Some(problem("this ddprun was built without `nccl`".to_owned()).help(help));
    }
    if ranks.gpus.is_empty() {
        let what = "is \"nccl\", which needs GPUs, but CUDA shows none";
        return Some(problem(what.to_owned()).help("use backend = \"shm\""));
    }
    let gpu = ranks.share_a_gpu()?;
    let what = format!("is \"nccl\", which refuses two ranks on one GPU, here GPU {gpu}");
    Some(problem(what).help("use backend = \"shm\""))
}

/// As many of `devices` as a run that may have fewer ranks starts with.
fn largest(loaded: &Loaded, devices: u32) -> u32 {
    let asked = &loaded.experiment.distributed;
    match (asked.shards.given(), asked.min_world_size.given()) {
        (Some(shards), Some(least)) => {
            let admitted = admitted_worlds(shards).into_iter().rev();
            let mut admitted = admitted.filter(|world| (least..=devices).contains(world));
            admitted.next().unwrap_or(devices)
        }
        _ => devices,
    }
}

/// Smaller numbers of ranks that the run may go on with, largest first.
pub(crate) fn smaller_worlds(
    loaded: &Loaded,
    world: WorldSize,
    shards: Shards,
) -> Result<Vec<WorldSize>, Problem> {
    const KEY: &str = "distributed.min_world_size";
    let Some(least) = loaded.experiment.distributed.min_world_size.given() else {
        return Ok(Vec::new());
    };
    if least > world.get() {
        return Err(loaded.problem(KEY, format!("is {least}, but the run has {world} ranks")));
    }
    let admitted = admitted_worlds(shards.get());
    let smaller = admitted.iter().rev().filter(|size| (least..world.get()).contains(size));
    let smaller: Vec<WorldSize> = smaller.filter_map(|size| WorldSize::new(*size)).collect();
    if smaller.is_empty() && least < world.get() {
        let admitted: Vec<String> = admitted.iter().map(u32::to_string).collect();
        let admitted = admitted.join(", ");
        let what =
            format!("{shards} shards admit {admitted} ranks: none from {least} below {world}");
        return Err(loaded.problem(KEY, what).help("take 2, 4, 8 ... ranks, or fewer at least"));
    }
    Ok(smaller)
}

/// Everything else about ranks.
pub(crate) fn decide(
    experiment: &Experiment,
    ranks: &Ranks,
    smaller: Vec<WorldSize>,
    cores: usize,
    model: &ModelFacts,
) -> DistributedPlan {
    let asked = &experiment.distributed;
    let world_size = ranks.world;
    let share = (cores / world_size.count()).max(1);
    let devices = if ranks.gpus.is_empty() {
        vec!["cpu".to_owned(); world_size.count()]
    } else {
        ranks.gpus.iter().map(|gpu| format!("{GPU_PREFIX}{gpu}")).collect()
    };
    DistributedPlan {
        world_size,
        smaller,
        devices,
        threads_per_rank: asked.threads_per_rank.given().map_or(share, |n| n as usize),
        backend: backend(asked.backend, ranks, model),
        bucket_cap: Bytes(asked.bucket_cap.0),
        first_bucket_cap: Bytes(asked.first_bucket_cap.0),
        overlap: asked.overlap,
        find_unused_parameters: asked.find_unused_parameters,
        timeout: asked.timeout.0,
    }
}

fn backend(asked: Backend, ranks: &Ranks, model: &ModelFacts) -> BackendPlan {
    let world = ranks.world;
    if world == WorldSize::ONE {
        return BackendPlan::Solo;
    }
    let apart = !ranks.gpus.is_empty() && ranks.share_a_gpu().is_none();
    if apart && asked != Backend::Shm {
        return BackendPlan::Nccl { mapping: Mapping::new(world, []).total() };
    }
    BackendPlan::Shm { mapping: Mapping::new(world, model.lengths()).total() }
}
