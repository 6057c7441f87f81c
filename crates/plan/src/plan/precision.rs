//! Numbers of matrix products.

use train_numbers::{Bf16Instructions, Precision};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;
use crate::plan::Facts;
use crate::plan::distributed::Ranks;

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
pub(crate) fn decide(experiment: &Experiment, ranks: &Ranks, facts: &Facts) -> Precision {
    match experiment.train.precision {
        PrecisionChoice::Fp16 => Precision::Fp16,
        PrecisionChoice::Bf16 => Precision::Bf16,
        PrecisionChoice::Amp if ranks.on_gpus() || facts.bf16_is_faster => Precision::Bf16,
        PrecisionChoice::Fp32 | PrecisionChoice::Amp => Precision::Fp32,
    }
}

/// The instructions that a plan uses.
pub(crate) fn instructions(
    experiment: &Experiment,
    ranks: &Ranks,
    facts: &Facts,
) -> Option<Bf16Instructions> {
    let is_bf16 = decide(experiment, ranks, facts) == Precision::Bf16;
    if is_bf16 && !ranks.on_gpus() { facts.bf16 } else { None }
}
