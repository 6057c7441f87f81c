//! Which samples each pass of each rank holds: pure functions of (seed, epoch, step, rank).
//!
//! `shards`: step k of an epoch takes the next `global` samples of the epoch's order; shard s of S takes
//! the s-th contiguous part, pass j of the shard the next `batch size` samples of it. A rank only decides
//! which shards it runs, so what a step adds up is the same at any world size.
//! `torch`: `torch.utils.data.DistributedSampler` under a `DataLoader`, padding included.

use std::ops::Range;

use crate::data::mersenne;
use crate::plan::{BatchPlan, DataPlan, Sampler};
use crate::rng::{self, Key, Purpose};
use crate::units::{BatchSize, Rank, WorldSize};

/// Samples of one pass of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The shard that the pass belongs to.
    pub shard: usize,
    /// Position among all passes of the step over all shards: `shard * passes per shard + j`.
    pub index_in_step: usize,
    /// Indices into the data set; fewer than the batch size, or none, in the last step of an epoch without
    /// `drop_last`.
    pub samples: Vec<u32>,
}

/// The samples of one epoch in their order, and the arithmetic that cuts them into steps and passes.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    /// `shards`: all samples. `torch`: all samples, padded or cut to a multiple of the world size.
    order: Vec<u32>,
    sampler: Sampler,
    drop_last: bool,
    batch: BatchPlan,
    world: usize,
}

impl EpochOrder {
    /// The order of `epoch` (counted from 0, as PyTorch's `set_epoch`).
    ///
    /// `shards` shuffles by (seed, epoch); `torch` by `randperm` with the seed `seed + epoch`.
    pub fn new(
        data: &DataPlan,
        batch: &BatchPlan,
        world: WorldSize,
        seed: u64,
        epoch: u64,
    ) -> Self {
        let n = data.n_train;
        let order = match data.sampler {
            _ if !data.shuffle => (0..n as u32).collect::<Vec<u32>>(),
            Sampler::Shards => rng::permutation(Key::new(seed, Purpose::Shuffle, epoch, 0), n),
            Sampler::Torch => mersenne::randperm(n, seed.wrapping_add(epoch)),
        };
        let order = match data.sampler {
            Sampler::Shards => order,
            Sampler::Torch => even(order, world.count(), data.drop_last),
        };
        Self {
            order,
            sampler: data.sampler,
            drop_last: data.drop_last,
            batch: *batch,
            world: world.count(),
        }
    }

    /// Steps of the epoch.
    pub fn steps(&self) -> usize {
        let global = self.batch.global.count();
        let n = self.order.len();
        if self.drop_last { n / global } else { n.div_ceil(global) }
    }

    /// Samples that a step processes over all ranks; with `torch` a padded sample counts each time.
    pub fn samples_in_step(&self, step_in_epoch: usize) -> usize {
        self.range(step_in_epoch).len()
    }

    /// The passes of a step (counted from 0) that `rank` runs, in the order in which it runs them.
    pub fn passes(&self, step_in_epoch: usize, rank: Rank) -> Vec<Pass> {
        let per_shard = self.batch.passes_per_shard();
        let shards = part(0..self.batch.shards.count(), self.world, rank.index());
        let pass = |(position, (shard, j))| Pass {
            shard,
            index_in_step: shard * per_shard + j,
            samples: match self.sampler {
                Sampler::Shards => self.shard_pass(step_in_epoch, shard, j),
                Sampler::Torch => self.torch_pass(step_in_epoch, rank, position),
            },
        };
        let places = shards.flat_map(|shard| (0..per_shard).map(move |j| (shard, j)));
        places.enumerate().map(pass).collect()
    }

    /// Positions in the order that a step covers.
    fn range(&self, step_in_epoch: usize) -> Range<usize> {
        if step_in_epoch >= self.steps() {
            return 0..0;
        }
        let global = self.batch.global.count();
        let start = step_in_epoch * global;
        start..(start + global).min(self.order.len())
    }

    fn shard_pass(&self, step_in_epoch: usize, shard: usize, j: usize) -> Vec<u32> {
        let shard = part(self.range(step_in_epoch), self.batch.shards.count(), shard);
        self.order[part(shard, self.batch.passes_per_shard(), j)].to_vec()
    }

    /// Batch `position` of the rank's step: its samples are every `world`-th of the order.
    fn torch_pass(&self, step_in_epoch: usize, rank: Rank, position: usize) -> Vec<u32> {
        let size = self.batch.size.count();
        let range = self.range(step_in_epoch);
        let start = range.start + position * size * self.world;
        let end = (start + size * self.world).min(range.end);
        let strided = (start + rank.index()..end).step_by(self.world);
        strided.map(|place| self.order[place]).collect()
    }
}

/// A chunk of the validation data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Position among all chunks; metrics are added in this order.
    pub index: usize,
    /// Indices into the data set.
    pub samples: Vec<u32>,
}

/// The chunks of `batch_size` samples, in file order, that `rank` evaluates: chunk c belongs to rank
/// c mod world size, so each sample is evaluated exactly once.
pub fn evaluation_chunks(
    n: usize,
    batch_size: BatchSize,
    world: WorldSize,
    rank: Rank,
) -> impl Iterator<Item = Chunk> + Send + use<> {
    let size = batch_size.count();
    let indices = (rank.index()..n.div_ceil(size)).step_by(world.count());
    indices.map(move |index| {
        let range = index * size..((index + 1) * size).min(n);
        Chunk { index, samples: range.map(|sample| sample as u32).collect() }
    })
}

/// Makes the length a multiple of `world`, as `DistributedSampler`: cut (`drop_last`), or padded by
/// repeating from the start.
fn even(mut order: Vec<u32>, world: usize, drop_last: bool) -> Vec<u32> {
    let n = order.len();
    if drop_last {
        // PyTorch's ceil((n - R) / R) when R does not divide n, which is floor(n / R).
        order.truncate(n / world * world);
        return order;
    }
    let total = n.div_ceil(world) * world;
    for place in n..total {
        order.push(order[place - n]);
    }
    order
}

/// Part `index` of `parts` contiguous parts of a range whose lengths differ by at most one.
fn part(range: Range<usize>, parts: usize, index: usize) -> Range<usize> {
    let n = range.len();
    range.start + n * index / parts..range.start + n * (index + 1) / parts
}
