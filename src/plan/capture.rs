//! Whether the passes of a run can be recorded once and replayed, as one CUDA graph.

use crate::config::{Loaded, Problem};
use crate::plan::{LayerOp, LayerPlan, Plan, Precision, SourcePlan};
use crate::units::Rank;

/// Why passes cannot be recorded; `None` = nothing that the plan knows of speaks against it.
///
/// What a replay repeats is fixed, so nothing else may differ from pass to pass than what lies in the GPU's memory: the
/// inputs, and labels or targets.
pub fn obstacle(plan: &Plan) -> Option<&'static str> {
    let models = ["diffusion_policy", "nest", "timebridge"];
    let drops = |layer: &LayerPlan| match layer.op {
        LayerOp::Dropout { p } | LayerOp::Attention { dropout: p, .. } => p > 0.0,
        _ => false,
    };
    let obstacles = [
        (plan.distributed.gpu(Rank(0)).is_none(), "ranks compute on the CPU"),
        (
            plan.distributed.world_size.count() > 1,
            "the sum of gradients over several ranks is not recorded",
        ),
        (plan.batch.accumulation.count() > 1, "a step of several passes is not recorded"),
        (plan.precision == Precision::Fp16, "the loss scale of fp16 moves"),
        (
            matches!(
                plan.data.source,
                SourcePlan::Tokens { .. } | SourcePlan::Text { .. } | SourcePlan::Instructions(_)
            ),
            "tokens are sorted on the CPU",
        ),
        (
            models.contains(&plan.model.name.as_str()),
            "the model draws or decides on the CPU what each pass does",
        ),
        (
            plan.model.dropout > 0.0 || plan.model.layers.iter().any(drops),
            "dropout masks are keyed by the step on the CPU",
        ),
        (plan.distributed.find_unused_parameters, "which parameters are used may differ"),
    ];
    obstacles.into_iter().find_map(|(stands, why)| stands.then_some(why))
}

/// Why a graph that was asked for (`train.cuda_graph = true`) cannot be had.
pub(crate) fn obstacle_to_wish(plan: &Plan) -> Option<&'static str> {
    obstacle(plan).filter(|_| plan.cuda_graph == Some(true))
}

/// `train.cuda_graph = true` where passes cannot be recorded.
pub(crate) fn refused(loaded: &Loaded, why: &str) -> Problem {
    let what = format!("cannot be: {why}");
    loaded.problem("train.cuda_graph", what).help("use cuda_graph = \"auto\"")
}
