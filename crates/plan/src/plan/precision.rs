//! Mixed precision: the numbers of matrix products and convolutions, and the loss scale of fp16.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;
use crate::plan::{Bf16Instructions, Facts, Plan, Precision};

impl From<Precision> for PrecisionChoice {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self::Fp32,
            Precision::Bf16 => Self::Bf16,
            Precision::Fp16 => Self::Fp16,
        }
    }
}

/// The precision; "amp" is bf16 where it is known to be faster: on GPUs, and on CPUs whose
/// instructions for it do more work than those for f32. Without any, bf16 is f32 that is rounded,
/// and slower.
pub(super) fn decide(experiment: &Experiment, on_gpus: bool, facts: &Facts) -> Precision {
    match experiment.train.precision {
        PrecisionChoice::Fp16 => Precision::Fp16,
        PrecisionChoice::Bf16 => Precision::Bf16,
        PrecisionChoice::Amp if on_gpus || facts.bf16_is_faster => Precision::Bf16,
        PrecisionChoice::Fp32 | PrecisionChoice::Amp => Precision::Fp32,
    }
}

/// The bf16 instructions that a run of this precision uses on the CPU.
pub(super) fn instructions(
    precision: Precision,
    on_gpus: bool,
    facts: &Facts,
) -> Option<Bf16Instructions> {
    if precision == Precision::Bf16 && !on_gpus { facts.bf16 } else { None }
}

/// "bf16 (AVX512-BF16)", "fp32", as `ddprun plan` shows the precision.
pub(super) fn words(plan: &Plan, asked: PrecisionChoice) -> String {
    let on_cpu = !plan.distributed.is_on_gpus();
    match (plan.precision, plan.bf16_instructions) {
        (Precision::Fp32, _) if asked == PrecisionChoice::Amp => {
            "fp32 (amp on a CPU on which bf16 is not faster)".to_owned()
        }
        (Precision::Fp32, _) => "fp32".to_owned(),
        (Precision::Bf16, Some(instructions)) => format!("bf16 ({instructions})"),
        (Precision::Bf16, None) if on_cpu => "bf16 (rounded fp32)".to_owned(),
        (Precision::Bf16, None) => "bf16".to_owned(),
        (Precision::Fp16, _) => "fp16".to_owned(),
    }
}

/// The loss scale, as PyTorch's `GradScaler` has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerPlan {
    /// Initial scale.
    pub init: f64,
    /// Factor after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// Factor after a bad step.
    pub backoff_factor: f64,
    /// Good steps in a row before the scale grows.
    pub growth_interval: u64,
}

/// The plan of `[loss_scale]`, which only fp16 needs.
pub(super) fn loss_scale(experiment: &Experiment) -> Option<ScalerPlan> {
    let config = &experiment.loss_scale;
    (experiment.train.precision == PrecisionChoice::Fp16).then_some(ScalerPlan {
        init: config.init,
        growth_factor: config.growth_factor,
        backoff_factor: config.backoff_factor,
        growth_interval: config.growth_interval,
    })
}
