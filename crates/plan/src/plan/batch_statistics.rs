//! BatchNorm: checks that each pass has enough values for its statistics. One value per channel has
//! no variance, and PyTorch refuses it too, but only in that pass.

use crate::config::{Loaded, Problem};
use crate::plan::{Plan, Sampler};
use crate::terminal::counted;

/// True if no pass gives a BatchNorm layer a single value per channel.
pub(super) fn suffice(plan: &Plan) -> bool {
    plan.model.least_rows.is_none_or(|rows| rows * smallest_pass(plan) > 1)
}

/// The problem of a plan whose smallest pass is too small.
pub(super) fn refused(loaded: &Loaded, plan: &Plan) -> Problem {
    let needs = "BatchNorm needs more than one value per channel to train";
    if plan.batch.size.get() == 1 && !plan.distributed.sync_batchnorm {
        let given = |key: &&str| loaded.is_given(key);
        let key = ["train.batch_size", "train.global_batch_size"].into_iter().find(given);
        let what = format!("a pass has 1 sample, but {needs}");
        return loaded
            .problem(key.unwrap_or("train.batch_size"), what)
            .help("train on larger batches");
    }
    let samples = plan.data.n_train % plan.batch.global.count();
    let samples = counted(samples as u64, "sample");
    let what =
        format!("the last step of an epoch has {samples}, so that a pass has only 1, but {needs}");
    let help = "drop that step: data.drop_last = true; or choose another batch size";
    loaded.problem("data.drop_last", what).help(help)
}

/// Samples of the smallest pass that has any, over all ranks and steps of the run; the shards of a
/// pass count together if they share their statistics.
fn smallest_pass(plan: &Plan) -> usize {
    let joint = plan.distributed.sync_batchnorm;
    let passes = if joint { plan.batch.shards.count() } else { 1 };
    let n = plan.data.n_train;
    let size = passes * plan.batch.size.count();
    let ends_an_epoch = plan.length.total_steps >= plan.length.steps_per_epoch;
    if plan.data.drop_last || !ends_an_epoch {
        return size;
    }
    let last = match plan.data.sampler {
        Sampler::Torch => passes * n.div_ceil(plan.world_size().count()) % size,
        _ if joint => smallest_joint(n % plan.batch.global.count(), plan),
        _ => smallest_part(n % plan.batch.global.count(), plan),
    };
    if last == 0 { size } else { last }
}

/// Samples of the smallest pass that is not empty, where `n` samples are divided over the shards of
/// a step and the passes of each shard.
fn smallest_part(n: usize, plan: &Plan) -> usize {
    let shards = plan.batch.shards.count();
    let passes = plan.batch.passes_per_shard();
    // Parts differ by one at most, so that each shard has `n / shards` samples or one more.
    let shard = if n < shards { n.min(1) } else { n / shards };
    if shard < passes { shard.min(1) } else { shard / passes }
}

/// As [`smallest_part`], where the passes of all shards that run at once count as one.
fn smallest_joint(n: usize, plan: &Plan) -> usize {
    let shards = plan.batch.shards.count();
    let passes = plan.batch.passes_per_shard();
    let pass = |j| (0..shards).map(|shard| part(part(n, shards, shard), passes, j)).sum();
    (0..passes).map(pass).filter(|&samples: &usize| samples > 0).min().unwrap_or(0)
}

/// Size of the part `index` of `n`.
fn part(n: usize, parts: usize, index: usize) -> usize {
    n * (index + 1) / parts - n * index / parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use train_numbers::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Shards};

    fn plan(size: u32, per_shard: u32, shards: u32) -> Plan {
        let mut plan = crate::plan::tests::small();
        plan.batch.size = BatchSize::new(size).unwrap();
        plan.batch.shards = Shards::new(shards).unwrap();
        plan.batch.accumulation = AccumulationSteps::new(per_shard * shards).unwrap();
        plan.batch.global = GlobalBatchSize::new(size * per_shard * shards).unwrap();
        plan
    }

    proptest! {
        #[test]
        fn the_smallest_part_is_that_of_the_sampler(
            n in 0usize..200, per_shard in 1u32..5, shards in 1u32..9,
        ) {
            let sizes = (0..shards as usize).flat_map(|shard| {
                let shard = part(n, shards as usize, shard);
                (0..per_shard as usize).map(move |pass| part(shard, per_shard as usize, pass))
            });
            let smallest = sizes.filter(|&size| size > 0).min().unwrap_or(0);
            prop_assert_eq!(smallest_part(n, &plan(64, per_shard, shards)), smallest);
        }
    }

    #[test]
    fn only_what_has_one_value_in_the_smallest_pass_is_too_little() {
        let check = |rows, n_train: usize, drop_last, expected: bool| {
            let mut plan = plan(4, 2, 2);
            (plan.model.least_rows, plan.data.n_train, plan.data.drop_last) =
                (rows, n_train, drop_last);
            assert_eq!(suffice(&plan), expected, "{rows:?} {n_train} {drop_last}");
        };
        // 16 samples a step: 2 shards of 2 passes of 4.
        check(Some(1), 33, false, false);
        check(Some(1), 33, true, true);
        check(Some(2), 33, false, true);
        check(None, 33, false, true);
        check(Some(1), 32, false, true);
        check(Some(1), 32 + 7, false, false);
        check(Some(1), 32 + 8, false, true);
    }

    #[test]
    fn shards_that_share_their_statistics_need_two_values_together() {
        let check = |n_train, expected: bool| {
            let mut plan = plan(1, 2, 2);
            plan.distributed.sync_batchnorm = true;
            (plan.model.least_rows, plan.data.n_train) = (Some(1), n_train);
            plan.data.drop_last = false;
            assert_eq!(suffice(&plan), expected, "{n_train}");
        };
        // 4 samples a step: 2 shards of 2 passes of 1.
        check(32, true);
        check(32 + 1, false);
        // One sample of each shard, in the same pass.
        check(32 + 2, true);
        check(32 + 3, false);
    }
}
