//! CUDA graphs: whether the passes of a run can be recorded once and replayed.

use crate::config::{Loaded, Problem};
use crate::plan::{Modality, Plan, Precision, ZeroStage};

/// The reason why passes cannot be recorded; `None` = the plan knows of none.
///
/// A replay repeats fixed operations, so passes may differ only in the GPU's memory: the inputs,
/// and labels or targets.
pub(super) fn obstacle(plan: &Plan) -> Option<&'static str> {
    let obstacles = [
        (!plan.distributed.is_on_gpus(), "ranks compute on the CPU"),
        // Sums are not recorded, so they could not begin before the whole pass is over.
        (
            plan.distributed.world_size.count() > 1 && plan.cuda_graph != Some(true),
            "over several ranks, all-reduce would no longer overlap backward",
        ),
        (
            plan.batch.shards.get() > plan.distributed.world_size.get(),
            "a rank with several shards accumulates gradients into different buffers in each step",
        ),
        (
            plan.distributed.sync_batchnorm,
            "ranks exchange the statistics of `distributed.sync_batchnorm` in the middle of a pass",
        ),
        (
            plan.distributed.is_sharded() && plan.distributed.zero_stage == ZeroStage::Gradients,
            "`distributed.zero_stage = 2` frees what a graph works with",
        ),
        (plan.precision == Precision::Fp16, "the fp16 loss scale changes from step to step"),
        (plan.data.source.modality == Modality::Text, "tokens are sorted on the CPU"),
        (plan.data.mixup.is_some(), "targets of mixed images are probabilities, of others labels"),
        (plan.loss.weighs_labels, "labels are weighed on the CPU"),
        (
            plan.model.draws_on_cpu,
            "the model draws random numbers, branches or computes on the CPU",
        ),
        (plan.model.drops, "dropout masks are keyed by the step on the CPU"),
        (plan.distributed.find_unused_parameters, "which parameters are used may differ"),
    ];
    obstacles.into_iter().find_map(|(stands, why)| stands.then_some(why))
}

/// True if passes are recorded, as far as the plan knows.
pub fn is_wanted(plan: &Plan) -> bool {
    plan.cuda_graph != Some(false) && obstacle(plan).is_none()
}

/// The problem of `train.cuda_graph = true` where passes cannot be recorded.
pub(super) fn check(loaded: &Loaded, plan: &Plan) -> Option<Problem> {
    let obstacle = obstacle(plan).filter(|_| plan.cuda_graph == Some(true))?;
    let what = format!("cannot be: {obstacle}");
    Some(loaded.problem("train.cuda_graph", what).help("use cuda_graph = \"auto\""))
}
