//! Memory that each rank needs.

use serde::{Deserialize, Serialize};

use crate::plan::shm_layout::{Mapping, STAGING_BYTES};
use crate::plan::{BaseFacts, DistributedPlan, Interval, Plan, ZeroStage};
use train_numbers::units::{Bytes, WorldSize};

/// Freed blocks may wait for the next step up to one part in so many of what was in use at most
/// (the program's allocator). With half as much a transformer's step gives blocks back and faults
/// them in again, which is a fifth of its time.
pub const KEPT_SHARE: usize = 4;

/// Memory of a process without a model: program, libraries, stacks, the plan.
const BASE: Bytes = Bytes(22 << 20);

/// Largest resident memory of one rank, by purpose.
///
/// Left out are the raw bytes of files that are read whole (images while they are decoded) and the
/// text of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// f32 parameters.
    pub weights: Bytes,
    /// f32 gradients: this rank's buckets, its share of the others' (which it reduces in place),
    /// and the sums over its earlier shards.
    pub gradients: Bytes,
    /// State tensors of the optimizer, of the rank's largest part where they are divided, and the
    /// average of the weights.
    pub optimizer: Bytes,
    /// Running statistics, and frozen weights that are in memory.
    pub buffers: Bytes,
    /// Frozen weights in the pages of their file, which the ranks of a machine share.
    #[serde(default)]
    pub mapped: Bytes,
    /// Activations that forward keeps for backward, and whatever else a pass holds at its largest
    /// moment, as measured on small batches; `None` = not measured.
    pub activations: Option<Bytes>,
    /// The copy that a checkpoint is written from, which rank 0 keeps from the start.
    pub checkpoint: Bytes,
    /// Loaded batches, and data sets that are held in memory.
    pub loading: Bytes,
    /// Freed blocks that wait for the next step: half of what may wait.
    pub waiting: Bytes,
    /// Everything that does not depend on the experiment.
    pub base: Bytes,
}

impl Memory {
    /// The memory of a rank of `plan`, if a pass needs `activations`.
    pub fn of(plan: &Plan, activations: Option<Bytes>) -> Self {
        let weights = Bytes::of_f32(plan.model.n_parameters);
        let trained = Bytes::of_f32(plan.model.n_parameters - plan.optimizer.n_frozen());
        let state = Bytes::of_f32(plan.optimizer.n_state(plan.model.n_parameters));
        let average = u64::from(plan.average().is_some());
        let base = plan.model.base.unwrap_or_default();
        let reference = plan.model.reference.unwrap_or_default();
        let on_cpu = plan.distributed.devices.iter().all(|device| device == "cpu");
        let of_file = |base: &BaseFacts| {
            if on_cpu { (base.n_mapped, base.mapped) } else { Default::default() }
        };
        let (n_mapped, mapped) = of_file(&base);
        let (n_copied, of_copy) = of_file(&reference);
        // The same pages of the same file.
        let mapped = mapped.max(of_copy);
        let n_buffers = plan.model.n_buffer_elements;
        let buffers = Bytes::of_f32(n_buffers - n_mapped + reference.n_weights - n_copied);
        let moving = Bytes::of_f32(n_buffers - base.n_weights);
        let averaged = u64::from(plan.average().is_some_and(|average| average.of_buffers));
        let own = part(plan, trained, state);
        let optimizer = Bytes(own.0 + average * weights.0 + averaged * moving.0);
        let saved = Bytes::of_f32(n_buffers - base.n_in_file);
        let saving = &plan.checkpoint;
        let is_saved = saving.every != Interval::Never || saving.keep_best > 0;
        let mut memory = Self {
            weights,
            gradients: gradients(plan, trained),
            optimizer,
            buffers,
            mapped,
            activations: activations.map(|of_pass| Bytes(of_pass.0 * passes_at_once(plan))),
            checkpoint: if is_saved {
                Bytes(weights.0 + optimizer.0 - own.0 + state.0 + saved.0)
            } else {
                Bytes(0)
            },
            loading: loading(plan),
            waiting: Bytes(0),
            base: BASE,
        };
        let others = memory.base.0 + memory.gradients.0 + memory.mapped.0;
        let allocated = memory.total().0 - others;
        memory.waiting = Bytes(allocated / (2 * KEPT_SHARE as u64));
        memory
    }

    /// The sum of all parts.
    pub fn total(&self) -> Bytes {
        let lasting = [self.weights, self.gradients, self.optimizer, self.buffers, self.mapped];
        let held = self.activations.unwrap_or_default();
        let others = [held, self.checkpoint, self.loading, self.waiting, self.base];
        Bytes(lasting.iter().chain(&others).map(|part| part.0).sum())
    }

    /// The memory of so many ranks of one machine.
    pub fn of_ranks(&self, ranks: u64) -> Bytes {
        let own = self.total().0 - self.mapped.0;
        Bytes(own.saturating_mul(ranks).saturating_add(self.mapped.0))
    }
}

/// Passes of a rank that are under way together: with `distributed.sync_batchnorm` those of all of
/// its shards.
fn passes_at_once(plan: &Plan) -> u64 {
    let shards = plan.batch.shards.get() / plan.distributed.world_size.get();
    if plan.distributed.sync_batchnorm { u64::from(shards.max(1)) } else { 1 }
}

/// The largest shard of `all`, which is memory of the `trained` parameters.
fn part(plan: &Plan, trained: Bytes, all: Bytes) -> Bytes {
    if !plan.distributed.is_sharded() || trained.0 == 0 {
        return all;
    }
    let largest = Bytes::of_f32(plan.distributed.largest_part).0.min(trained.0);
    Bytes((u128::from(all.0) * u128::from(largest) / u128::from(trained.0)) as u64)
}

/// Memory of a rank's own gradients. With ZeRO-2, reduced gradients of other ranks' parameters are
/// freed bucket by bucket while backward runs, unless passes or shards are accumulated first: then
/// all of them exist when the last pass begins.
fn kept_gradients(plan: &Plan, all: Bytes, adds_up: bool) -> Bytes {
    let distributed = &plan.distributed;
    let frees = distributed.zero_stage == ZeroStage::Gradients && distributed.is_sharded();
    if !frees || adds_up || !distributed.overlap || distributed.sync_batchnorm {
        return all;
    }
    let part = part(plan, all, all).0;
    // The bucket that fills, and the one that is being reduced.
    let on_their_way = (all.0 - part).min(2 * distributed.bucket_cap.0);
    Bytes(part + on_their_way)
}

fn gradients(plan: &Plan, own: Bytes) -> Bytes {
    let world = u64::from(plan.distributed.world_size.get());
    // A sum per level of the tree over this rank's shards but the last.
    let shards = u64::from(plan.batch.shards.get()).div_ceil(world).max(1);
    let levels = u64::from(shards.ilog2()) + u64::from(!shards.is_power_of_two());
    // Those of shards that run together are kept apart.
    let apart = Some(passes_at_once(plan)).filter(|&passes| passes > 1).unwrap_or(0);
    let adds_up = plan.batch.accumulation.get() > 1 || levels > 0 || apart > 0;
    let kept = kept_gradients(plan, own, adds_up);
    Bytes(kept.0 + own.0 * (levels + apart) + exchanged(&plan.distributed, own).0)
}

/// Memory for the exchange of gradients beside a rank's `own`: pages of the memory that ranks
/// share, and copies of buckets that it sends and receives.
fn exchanged(distributed: &DistributedPlan, own: Bytes) -> Bytes {
    let bucket = own.0.min(distributed.bucket_cap.0);
    let copies = distributed.capabilities.bucket_copies * bucket;
    let shared = match (distributed.backend.mapping, distributed.machine_mapping) {
        (Some(mapping), _) => {
            let world = distributed.world_size;
            // The others' buckets, as far as this rank writes them.
            let written = own.0 * u64::from(world.get() - 1) / u64::from(world.get());
            staging(world) + if has_gradients(mapping, world) { written } else { 0 }
        }
        (None, Some(mapping)) => {
            let local = distributed.local_world();
            // The sums in the first rank's buckets, and of that one the largest bucket as other
            // machines send and receive it.
            let summed = 2 * own.0 + bucket;
            staging(local) + if has_gradients(mapping, local) { summed } else { 0 }
        }
        (None, None) => 0,
    };
    Bytes(shared + copies)
}

/// The staging areas of all ranks.
fn staging(world: WorldSize) -> u64 {
    u64::from(world.get()) * STAGING_BYTES
}

/// True if a mapping of these ranks holds more than staging areas.
fn has_gradients(mapping: Bytes, world: WorldSize) -> bool {
    mapping > Mapping::new(world, []).total()
}

fn loading(plan: &Plan) -> Bytes {
    let sample = Bytes::of_f32(plan.model.of_sample(&plan.model.input).iter().product()).0;
    // The batch of the pass at hand, and those that are ready or in the making.
    let batches = 1 + (plan.data.num_workers * plan.data.prefetch_factor) as u64;
    Bytes(batches * u64::from(plan.batch.size.get()) * sample + plan.data.source.memory.0)
}
