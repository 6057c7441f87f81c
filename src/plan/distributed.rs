//! Ranks, their devices and threads, and how they exchange tensors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Experiment, Loaded, Problem};
use crate::plan::mapping::Mapping;
use crate::plan::{Facts, ModelFacts, admitted_worlds};
use crate::units::{Bytes, Shards, WorldSize};

/// Ranks and their communication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributedPlan {
    /// Number of ranks.
    pub world_size: WorldSize,
    /// Smaller numbers of ranks that the run may go on with, largest first.
    #[serde(default)]
    pub smaller: Vec<WorldSize>,
    /// Device of each rank: "cpu".
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
}

/// Number of ranks: as a foreign launcher decided, as asked, or one.
pub(crate) fn world_size(loaded: &Loaded, facts: &Facts) -> Result<WorldSize, Problem> {
    let asked = loaded.experiment.distributed.devices.given();
    match (facts.launched_world, asked) {
        (Some(world), Some(asked)) if asked != world.get() => {
            let what = format!("is {asked}, but the launcher started {world} ranks");
            Err(loaded.problem("distributed.devices", what).help("leave it away under a launcher"))
        }
        (Some(world), _) => Ok(world),
        (None, asked) => WorldSize::new(largest(loaded, asked.unwrap_or(1)))
            .ok_or_else(|| loaded.problem("distributed.devices", "must be at least 1")),
    }
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
    (world_size, smaller): (WorldSize, Vec<WorldSize>),
    cores: usize,
    model: &ModelFacts,
) -> DistributedPlan {
    let asked = &experiment.distributed;
    let share = (cores / world_size.count()).max(1);
    let backend = if world_size == WorldSize::ONE {
        BackendPlan::Solo
    } else {
        BackendPlan::Shm { mapping: Mapping::new(world_size, model.lengths()).total() }
    };
    DistributedPlan {
        world_size,
        smaller,
        devices: vec!["cpu".to_owned(); world_size.count()],
        threads_per_rank: asked.threads_per_rank.given().map_or(share, |n| n as usize),
        backend,
        bucket_cap: Bytes(asked.bucket_cap.0),
        first_bucket_cap: Bytes(asked.first_bucket_cap.0),
        overlap: asked.overlap,
        find_unused_parameters: asked.find_unused_parameters,
        timeout: asked.timeout.0,
    }
}
