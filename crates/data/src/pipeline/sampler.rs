//! Samples of each pass of each rank: pure functions of (seed, epoch, step, rank).
//!
//! `shards`: step k of an epoch takes the next `global` samples of the epoch's order; shard s of S
//! takes the s-th contiguous part, pass j of the shard the next `batch size` samples of it. A rank
//! only decides which shards it runs, so the sum of a step is the same at any world size. `torch`:
//! `torch.utils.data.DistributedSampler` under a `DataLoader`, padding included.

use std::ops::Range;

use crate::pipeline::mersenne;
use crate::pipeline::weighted_sampling::SampleWeights;
use crate::plan::{BatchPlan, DataPlan, Sampler};
use crate::rng::{self, Key, Purpose};
use crate::units::{BatchSize, Rank, WorldSize};

/// Samples of one pass of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// The shard that the pass belongs to.
    pub shard: usize,
    /// Position among all passes of the step over all shards: `shard * passes per shard + j`.
    pub index_in_step: usize,
    /// Indices into the data set; fewer than the batch size, or none, in the last step of an epoch
    /// without `drop_last`.
    pub samples: Vec<u32>,
    /// Partner that each sample is mixed with, itself if it is left alone; empty if nothing is
    /// mixed.
    pub partners: Vec<u32>,
    /// Copy number of each sample, and of each partner; empty if there is one of each.
    pub copies: Vec<[u32; 2]>,
}

/// The samples of one epoch in their order, and the arithmetic that cuts them into steps and
/// passes.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    /// `shards`: all samples. `torch`: all samples, padded or cut to a multiple of the world size.
    order: Vec<u32>,
    /// Copy number of the sample at each position; empty if there is one of each.
    copies: Vec<u32>,
    sampler: Sampler,
    drop_last: bool,
    batch: BatchPlan,
    world: usize,
    mixes: bool,
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
            Sampler::Shards | Sampler::Balanced | Sampler::Weighted => {
                rng::permutation(Key::new(seed, Purpose::Shuffle, epoch, 0), n)
            }
            Sampler::Torch => mersenne::randperm(n, seed.wrapping_add(epoch)),
        };
        let order = match data.sampler {
            Sampler::Torch => even(order, world.count(), data.drop_last),
            _ => order,
        };
        let (order, copies) = match data.aug_repeats {
            0 | 1 => (order, Vec::new()),
            repeats => repeated(&order, repeats, batch.global.count()),
        };
        Self {
            order,
            copies,
            sampler: data.sampler,
            drop_last: data.drop_last,
            batch: *batch,
            world: world.count(),
            mixes: data.mixup.is_some_and(|mixup| mixup.mixes(epoch)),
        }
    }

    /// Replaces the order by the same number of samples drawn with replacement by `weights`: draw i
    /// of an epoch follows from the seed, the epoch and i alone. A sample that is drawn again is
    /// another copy, so that it is augmented anew.
    #[must_use]
    pub fn with_weighted_draws(mut self, weights: &SampleWeights, seed: u64, epoch: u64) -> Self {
        let key = Key::new(seed, Purpose::Shuffle, epoch, 1);
        self.order = (0..self.order.len() as u64).map(|i| weights.draw(key.uniform(i))).collect();
        self.copies = times_before(&self.order);
        self
    }

    /// True if a sample may occur several times, and another one not at all.
    pub(crate) fn draws(&self) -> bool {
        self.sampler.draws() || !self.copies.is_empty()
    }

    /// Steps of the epoch.
    pub fn steps(&self) -> usize {
        let global = self.batch.global.count();
        let n = self.order.len();
        if self.drop_last { n / global } else { n.div_ceil(global) }
    }

    /// All samples that the epoch's steps cover, in order.
    pub(crate) fn covered(&self) -> &[u32] {
        let covered = self.steps() * self.batch.global.count();
        &self.order[..covered.min(self.order.len())]
    }

    /// Samples that a step processes over all ranks; with `torch` a padded sample counts each time.
    pub fn samples_in_step(&self, step_in_epoch: usize) -> usize {
        self.range(step_in_epoch).len()
    }

    /// The passes of a step (counted from 0) that `rank` runs, in the order in which it runs them.
    pub fn passes(&self, step_in_epoch: usize, rank: Rank) -> Vec<MicroBatch> {
        let per_shard = self.batch.passes_per_shard();
        let shards = part(0..self.batch.shards.count(), self.world, rank.index());
        let pass = |(position, (shard, j))| {
            let places = match self.sampler {
                Sampler::Torch => self.torch_pass(step_in_epoch, rank, position),
                _ => self.shard_pass(step_in_epoch, shard, j),
            };
            let samples =
                |places: Vec<usize>| places.into_iter().map(|at| self.order[at]).collect();
            let partners = if self.mixes {
                places.iter().map(|&at| self.partner(step_in_epoch, at)).collect()
            } else {
                Vec::new()
            };
            let copy = |&at: &usize| {
                let partner = if self.mixes { self.partner(step_in_epoch, at) } else { at };
                [self.copies[at], self.copies[partner]]
            };
            let is_repeated = !self.copies.is_empty();
            MicroBatch {
                shard,
                index_in_step: shard * per_shard + j,
                copies: if is_repeated { places.iter().map(copy).collect() } else { Vec::new() },
                partners: samples(partners),
                samples: samples(places),
            }
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

    /// Places of the samples in the order.
    fn shard_pass(&self, step_in_epoch: usize, shard: usize, j: usize) -> Vec<usize> {
        let shard = part(self.range(step_in_epoch), self.batch.shards.count(), shard);
        part(shard, self.batch.passes_per_shard(), j).collect()
    }

    /// Batch `position` of the rank's step: its samples are every `world`-th of the order.
    fn torch_pass(&self, step_in_epoch: usize, rank: Rank, position: usize) -> Vec<usize> {
        let size = self.batch.size.count();
        let range = self.range(step_in_epoch);
        let start = range.start + position * size * self.world;
        let end = (start + size * self.world).min(range.end);
        (start + rank.index()..end).step_by(self.world).collect()
    }

    /// The place of the sample with which the one at `place` is mixed: its neighbour in the step,
    /// of the same rank with `torch`; itself where there is none.
    fn partner(&self, step_in_epoch: usize, place: usize) -> usize {
        let stride = match self.sampler {
            Sampler::Torch => self.world,
            _ => 1,
        };
        let range = self.range(step_in_epoch);
        let is_first = ((place - range.start) / stride).is_multiple_of(2);
        let partner = if is_first { place + stride } else { place - stride };
        if partner < range.end { partner } else { place }
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

/// The chunks of `batch_size` samples, in file order, that `rank` evaluates: chunk c belongs to
/// rank c mod world size, so each sample is evaluated exactly once.
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

/// Repeats samples `repeats` times in a row, as many in all as before (timm's `RepeatAugSampler`),
/// and numbers their copies. In each step the first copies of all its samples come first, so that
/// neighbours, which may be mixed, are different samples.
fn repeated(order: &[u32], repeats: usize, global: usize) -> (Vec<u32>, Vec<u32>) {
    let mut places: Vec<usize> = (0..order.len()).collect();
    for step in places.chunks_mut(global) {
        step.sort_by_key(|place| place % repeats);
    }
    places.into_iter().map(|at| (order[at / repeats], (at % repeats) as u32)).unzip()
}

/// Number of earlier occurrences of the sample at each position.
fn times_before(order: &[u32]) -> Vec<u32> {
    let mut times = vec![0; order.iter().max().map_or(0, |&last| last as usize + 1)];
    let next = |&sample: &u32| {
        let times: &mut u32 = &mut times[sample as usize];
        *times += 1;
        *times - 1
    };
    order.iter().map(next).collect()
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

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{MixupMode, MixupPlan, Modality, OnBadSample, SourcePlan, SplitPlan};
    use crate::units::{AccumulationSteps, GlobalBatchSize, Shards};

    pub(crate) fn data(n: usize, sampler: Sampler, shuffle: bool, drop_last: bool) -> DataPlan {
        DataPlan {
            source: SourcePlan::new("mnist", Modality::Images),
            n_train: n,
            n_val: 0,
            n_test: 0,
            notes: Vec::new(),
            classes: Vec::new(),
            target_columns: Vec::new(),
            token_bytes: Vec::new(),
            split: SplitPlan::NONE,
            aug_repeats: 1,
            class_weights: Vec::new(),
            subset_of: None,
            sampler,
            shuffle,
            drop_last,
            num_workers: 0,
            prefetch_factor: 1,
            on_bad_sample: OnBadSample::Error,
            pad_to_longest: false,
            max_bad_fraction: 0.1,
            train_transforms: Vec::new(),
            val_transforms: Vec::new(),
            mixup: None,
        }
    }

    /// A global batch of `shards` shards of `per_shard` passes of `size` samples, run by `world`
    /// ranks.
    pub(crate) fn batch(size: u32, per_shard: u32, shards: u32, world: u32) -> BatchPlan {
        BatchPlan {
            size: BatchSize::new(size).unwrap(),
            accumulation: AccumulationSteps::new(per_shard * shards / world).unwrap(),
            global: GlobalBatchSize::new(size * per_shard * shards).unwrap(),
            shards: Shards::new(shards).unwrap(),
        }
    }

    fn world(n: u32) -> WorldSize {
        WorldSize::new(n).unwrap()
    }

    /// All passes of a step over all ranks, by their position in the step.
    fn whole_step(order: &EpochOrder, step: usize, n_ranks: u32) -> Vec<MicroBatch> {
        let mut passes: Vec<MicroBatch> =
            (0..n_ranks).flat_map(|rank| order.passes(step, Rank(rank))).collect();
        passes.sort_by_key(|pass| pass.index_in_step);
        passes
    }

    /// The samples that each of `n_ranks` ranks sees in an epoch, in order.
    fn seen(data: &DataPlan, n_ranks: u32, epoch: u64) -> Vec<Vec<u32>> {
        let order = EpochOrder::new(data, &batch(2, 1, n_ranks, n_ranks), world(n_ranks), 0, epoch);
        let steps = order.steps();
        let of_rank = |rank| {
            let passes = (0..steps).flat_map(|step| order.passes(step, Rank(rank)));
            passes.flat_map(|pass| pass.samples).collect()
        };
        (0..n_ranks).map(of_rank).collect()
    }

    #[test]
    fn repeated_samples_are_those_of_timm() {
        let golden = include_str!("../../../../tests/golden/repeat_augment.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let data = DataPlan { aug_repeats: 3, ..data(47, Sampler::Shards, false, false) };
        let order = EpochOrder::new(&data, &batch(3, 1, 4, 1), WorldSize::ONE, 7, 2);
        let steps: Vec<Vec<u32>> = serde_json::from_value(golden["steps"].clone()).unwrap();
        for (step, expected) in steps.iter().enumerate() {
            let passes = order.passes(step, Rank(0));
            let mut taken: Vec<u32> = passes.into_iter().flat_map(|pass| pass.samples).collect();
            taken.sort_unstable();
            // timm pads the last step to a whole one for each rank.
            assert_eq!(taken, expected[..taken.len()], "step {step}");
            assert!(taken.len() == 12 || (step, taken.len()) == (3, 11));
        }
    }

    #[test]
    fn each_sample_is_in_a_step_as_often_as_it_is_repeated_at_any_world_size() {
        let repeats = |n| DataPlan { aug_repeats: 3, ..data(n, Sampler::Shards, true, false) };
        let taken = |world: u32, step| {
            let order = EpochOrder::new(
                &repeats(47),
                &batch(3, 1, 4, world),
                WorldSize::new(world).unwrap(),
                7,
                2,
            );
            assert_eq!(order.steps(), 4);
            let passes = (0..world).flat_map(|rank| order.passes(step, Rank(rank)));
            let passes: Vec<MicroBatch> = passes.collect();
            let copies = passes.iter().flat_map(|pass| pass.copies.iter().map(|[own, _]| *own));
            let samples = passes.iter().flat_map(|pass| pass.samples.iter().copied());
            samples.zip(copies).collect::<Vec<(u32, u32)>>()
        };
        let mut distinct = std::collections::BTreeSet::new();
        for step in 0..3 {
            let whole = taken(1, step);
            assert_eq!([taken(2, step), taken(4, step)], [whole.clone(), whole.clone()]);
            assert!(whole.windows(2).all(|pair| pair[0].0 != pair[1].0), "{whole:?}");
            let mut all = whole.clone();
            all.sort_unstable();
            for copies in all.chunks(3) {
                assert!(
                    copies
                        .iter()
                        .zip(0..)
                        .all(|(&(sample, copy), n)| { (sample, copy) == (copies[0].0, n) })
                );
            }
            distinct.extend(whole.into_iter().map(|(sample, _)| sample));
        }
        assert_eq!(distinct.len(), 12);
        assert_eq!(taken(1, 3).len(), 11);
    }

    #[test]
    fn a_sample_that_is_drawn_again_is_another_copy_at_any_world_size() {
        let odds = SampleWeights::new([1.0, 0.0, 40.0].into_iter().chain([1.0; 20]));
        let drawn = |world: u32| {
            let world = WorldSize::new(world).unwrap();
            let plan = data(23, Sampler::Weighted, true, false);
            let order = EpochOrder::new(&plan, &batch(3, 1, 4, world.get()), world, 7, 2);
            let order = order.with_weighted_draws(&odds, 7, 2);
            let steps = (0..order.steps()).flat_map(|step| whole_step(&order, step, world.get()));
            let pairs = |pass: MicroBatch| pass.samples.into_iter().zip(pass.copies);
            steps.flat_map(pairs).map(|(sample, [copy, _])| (sample, copy)).collect::<Vec<_>>()
        };
        let found = drawn(1);
        assert_eq!([drawn(2), drawn(4)], [found.clone(), found.clone()]);
        let often: Vec<u32> =
            found.iter().filter(|(sample, _)| *sample == 2).map(|(_, copy)| *copy).collect();
        assert!(often.len() > 4 && often.iter().copied().eq(0..often.len() as u32), "{often:?}");
        assert!(found.iter().all(|pair| found.iter().filter(|other| *other == pair).count() == 1));
    }

    #[test]
    fn torch_order_equals_distributed_sampler() {
        // torch.utils.data.DistributedSampler, PyTorch 2.6, n = 11, R = 4, seed 0.
        let plain = data(11, Sampler::Torch, false, false);
        assert_eq!(seen(&plain, 4, 0), [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 0]]);
        let dropped = data(11, Sampler::Torch, false, true);
        assert_eq!(seen(&dropped, 4, 0), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        let shuffled = data(11, Sampler::Torch, true, false);
        assert_eq!(seen(&shuffled, 4, 0), [[10, 5, 9], [0, 8, 7], [4, 2, 6], [3, 1, 10]]);
        assert_eq!(seen(&shuffled, 4, 1), [[0, 7, 1], [10, 6, 9], [2, 4, 5], [3, 8, 0]]);
        // Fewer samples than ranks: the list is repeated.
        let few = data(2, Sampler::Torch, false, false);
        assert_eq!(seen(&few, 5, 0), [[0], [1], [0], [1], [0]]);
    }

    #[test]
    fn torch_batches_are_filled_one_after_another_as_a_data_loader_does() {
        // 22 samples on 2 ranks: 11 each, in batches of 2, three batches to a step.
        let plan = data(22, Sampler::Torch, false, false);
        let order = EpochOrder::new(&plan, &batch(2, 3, 2, 2), world(2), 0, 0);
        let rank = |step| -> Vec<Vec<u32>> {
            order.passes(step, Rank(1)).into_iter().map(|pass| pass.samples).collect()
        };
        assert_eq!(rank(0), [[1, 3], [5, 7], [9, 11]]);
        assert_eq!(rank(1), [vec![13, 15], vec![17, 19], vec![21]]);
        assert_eq!((order.steps(), order.samples_in_step(1)), (2, 10));
        let positions: Vec<usize> =
            order.passes(0, Rank(1)).iter().map(|pass| pass.index_in_step).collect();
        assert_eq!(positions, [3, 4, 5]);
    }

    #[test]
    fn shards_are_contiguous_parts_of_the_step_and_the_last_step_is_spread() {
        let plan = data(11, Sampler::Shards, false, false);
        let order = EpochOrder::new(&plan, &batch(2, 2, 2, 1), world(1), 0, 0);
        let samples = |step| -> Vec<Vec<u32>> {
            order.passes(step, Rank(0)).into_iter().map(|pass| pass.samples).collect()
        };
        assert_eq!(samples(0), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(samples(1), [vec![], vec![8], vec![9], vec![10]]);
        let shards: Vec<usize> = order.passes(0, Rank(0)).iter().map(|pass| pass.shard).collect();
        assert_eq!(shards, [0, 0, 1, 1]);
        assert_eq!((order.samples_in_step(1), order.samples_in_step(2)), (3, 0));
    }

    #[test]
    fn epochs_have_different_orders_and_the_same_seed_the_same() {
        let plan = data(50, Sampler::Shards, true, true);
        let order =
            |seed, epoch| EpochOrder::new(&plan, &batch(4, 1, 2, 1), world(1), seed, epoch).order;
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn partners_are_neighbours_in_the_step_at_any_world_size_and_in_passes_of_any_size() {
        let mut plan = data(23, Sampler::Shards, true, false);
        plan.mixup = Some(MixupPlan {
            mixup_alpha: 1.0,
            cutmix_alpha: 0.0,
            prob: 1.0,
            switch_prob: 0.5,
            mode: MixupMode::Batch,
            off_epoch: Some(4),
            classes: 3,
        });
        let pairs = |size, per_shard, shards, n_ranks| {
            let batch = batch(size, per_shard, shards, n_ranks);
            let order = EpochOrder::new(&plan, &batch, world(n_ranks), 5, 3);
            let steps = (0..order.steps()).flat_map(|step| whole_step(&order, step, n_ranks));
            let pairs = steps.flat_map(|pass| pass.samples.into_iter().zip(pass.partners));
            pairs.collect::<Vec<(u32, u32)>>()
        };
        let expected = pairs(12, 1, 1, 1);
        assert_eq!(expected.len(), 23);
        for (size, per_shard, shards, n_ranks) in [(3, 4, 1, 1), (3, 1, 4, 2), (1, 3, 4, 4)] {
            assert_eq!(pairs(size, per_shard, shards, n_ranks), expected, "{size} {per_shard}");
        }
        // Each partner's partner is the sample, and only the last of an odd step stays alone.
        let alone = expected.iter().filter(|(sample, partner)| sample == partner).count();
        assert_eq!(alone, 1);
        assert!(expected.iter().all(|&(a, b)| expected.contains(&(b, a))));
        let order = EpochOrder::new(&plan, &batch(4, 1, 1, 1), world(1), 5, 4);
        assert!(order.passes(0, Rank(0))[0].partners.is_empty(), "the epochs are over");
        plan.sampler = Sampler::Torch;
        let order = EpochOrder::new(&plan, &batch(2, 2, 2, 2), world(2), 5, 0);
        for rank in [Rank(0), Rank(1)] {
            let passes = order.passes(0, rank);
            assert!(passes.iter().all(|pass| pass.samples[0] == pass.partners[1]), "{passes:?}");
        }
    }

    proptest! {
        #[test]
        fn each_sample_is_in_one_pass_at_any_world_size(
            n in 0usize..300,
            size in 1u32..5,
            per_shard in 1u32..4,
            log_shards in 0u32..4,
            log_world in 0u32..4,
            drop_last: bool,
            seed: u64,
        ) {
            let (shards, n_ranks) = (1 << log_shards, 1 << log_world.min(log_shards));
            let plan = data(n, Sampler::Shards, true, drop_last);
            let order = |n_ranks| {
                let batch = batch(size, per_shard, shards, n_ranks);
                EpochOrder::new(&plan, &batch, world(n_ranks), seed, 3)
            };
            let (one, many) = (order(1), order(n_ranks));
            let mut samples = Vec::new();
            for step in 0..one.steps() {
                let passes = whole_step(&many, step, n_ranks);
                prop_assert_eq!(&whole_step(&one, step, 1), &passes);
                prop_assert_eq!(passes.len(), (per_shard * shards) as usize);
                for pass in &passes {
                    prop_assert!(pass.samples.len() <= size as usize);
                }
                let in_step: Vec<u32> = passes.into_iter().flat_map(|pass| pass.samples).collect();
                prop_assert_eq!(in_step.len(), one.samples_in_step(step));
                samples.extend(in_step);
            }
            let global = (size * per_shard * shards) as usize;
            let expected = if drop_last { n / global * global } else { n };
            samples.sort_unstable();
            samples.dedup();
            prop_assert_eq!(samples.len(), expected);
        }

        #[test]
        fn torch_ranks_have_equally_many_samples_and_cover_all(
            n in 1usize..200, size in 1u32..4, accumulation in 1u32..4, n_ranks in 1u32..6,
        ) {
            let plan = data(n, Sampler::Torch, true, false);
            let batch = batch(size, accumulation, n_ranks, n_ranks);
            let order = EpochOrder::new(&plan, &batch, world(n_ranks), 7, 2);
            prop_assert_eq!(order.steps(), n.div_ceil(batch.global.count()));
            let mut all = Vec::new();
            let mut lengths = Vec::new();
            for rank in 0..n_ranks {
                let before = all.len();
                for step in 0..order.steps() {
                    all.extend(order.passes(step, Rank(rank)).into_iter().flat_map(|p| p.samples));
                }
                lengths.push(all.len() - before);
            }
            prop_assert!(lengths.iter().all(|&length| length == n.div_ceil(n_ranks as usize)));
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), n);
        }

        #[test]
        fn each_sample_is_evaluated_once_on_any_world_size(
            n in 0usize..200, size in 1u32..9, n_ranks in 1u32..6,
        ) {
            let size = BatchSize::new(size).unwrap();
            let mut chunks: Vec<Chunk> = (0..n_ranks)
                .flat_map(|rank| evaluation_chunks(n, size, world(n_ranks), Rank(rank)))
                .collect();
            chunks.sort_by_key(|chunk| chunk.index);
            let samples: Vec<u32> = chunks.into_iter().flat_map(|chunk| chunk.samples).collect();
            prop_assert!(samples.into_iter().eq(0..n as u32));
        }
    }
}
