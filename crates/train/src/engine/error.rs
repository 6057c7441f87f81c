//! Errors of training and evaluation.

use crate::collective;
use crate::data;
use crate::event::Stop;
use crate::units::Rank;
use crate::user_error::{ExitCode, UserError};

/// A failure of a step or an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error("the {phase} pass of step {step} failed: {source}")]
    Tensor {
        /// "forward", "backward" ...
        phase: &'static str,
        /// The step, from 1.
        step: u64,
        /// Candle's error.
        #[source]
        source: candle_core::Error,
    },
    /// Another rank is gone, late or does something else.
    #[error(transparent)]
    Collective(#[from] collective::Error),
    /// A sample cannot be had.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// Loss or gradient of a step is NaN or infinite, and such steps are not left out.
    #[error("{what} is not finite at step {step}{culprit}")]
    NotFinite {
        /// "the loss", "the gradient" ...
        what: &'static str,
        /// The step, from 1.
        step: u64,
        /// Rank, samples and first parameter concerned.
        culprit: String,
    },
    /// The loss of an evaluation is NaN or infinite.
    #[error("the {split} loss is not finite after step {step}")]
    EvaluationNotFinite {
        /// "validation" or "test".
        split: &'static str,
        /// Finished steps.
        step: u64,
    },
    /// The loss is finite and past `fault.divergence_threshold`.
    #[error(
        "the loss of step {step} is {loss:.4e}, greater than `fault.divergence_threshold` = \
         {threshold}"
    )]
    Exploded {
        /// The step, from 1.
        step: u64,
        /// Mean over the global batch.
        loss: f64,
        /// The most that was admitted.
        threshold: f64,
    },
    /// The fp16 loss scale shrank to nothing.
    #[error("the loss scale fell below {floor} at step {step}: gradients overflow at any scale")]
    ScaleUnderflow {
        /// The step, from 1.
        step: u64,
        /// Least scale.
        floor: f64,
    },
    /// Some parameters received no gradient.
    #[error("parameters received no gradient at step {step} on rank {rank}: {}", list(names))]
    Unused {
        /// The step, from 1.
        step: u64,
        /// First rank concerned.
        rank: Rank,
        /// Names of the parameters.
        names: Vec<String>,
    },
    /// Ranks built different models.
    #[error("rank {rank} built another model than rank 0: {difference}")]
    ModelDiffers {
        /// First rank that differs.
        rank: Rank,
        /// First difference.
        difference: String,
    },
    /// Ranks restored checkpoints of different steps.
    #[error("rank {rank} starts after step {step}, but rank 0 after step {first}")]
    StartDiffers {
        /// First rank that differs.
        rank: Rank,
        /// Step after which that rank starts.
        step: u64,
        /// Step after which rank 0 starts.
        first: u64,
        /// True if it is this rank.
        is_mine: bool,
    },
    /// Ranks restored checkpoints of the same step that are not the same.
    #[error(
        "at step {step} the restored {what} of {} differ from those of the other ranks",
        each(ranks)
    )]
    RestoredDiffers {
        step: u64,
        /// "optimizer state" ...
        what: &'static str,
        /// The ranks that have not what most have.
        ranks: Vec<Rank>,
        /// True if this rank is one of them.
        is_mine: bool,
    },
    /// Something that all ranks should have in common differs.
    #[error(
        "after step {step} the {what} of {} differ from those of the other ranks{}",
        each(ranks), since(*equal)
    )]
    Diverged {
        /// The step, from 1.
        step: u64,
        /// The step after which they were the same, if anybody looked.
        equal: Option<u64>,
        /// "weights", "optimizer state" ...
        what: &'static str,
        /// The ranks that have not what most have.
        ranks: Vec<Rank>,
        /// True if this rank is one of them.
        is_mine: bool,
    },
    /// An evaluation saw too few or too many samples.
    #[error("the evaluation counted {counted} samples, but there are {expected}")]
    Miscounted {
        /// Seen.
        counted: u64,
        /// There.
        expected: u64,
    },
    /// The run is asked to stop, and does not wait for the end of an evaluation.
    #[error("the evaluation was broken off, as the run is asked to stop")]
    BrokenOff(Stop),
    /// No label of an evaluation counts.
    #[error("all labels of the {split} samples are ignored (-100), so there is no loss to measure")]
    NothingCounts {
        /// "validation" or "test".
        split: &'static str,
    },
    /// The communication thread cannot be started.
    #[error("cannot start the communication thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The communication thread died.
    #[error("the communication thread died")]
    ThreadGone,
    /// A message of another rank cannot be read.
    #[error("rank {rank} sent a vote that cannot be read: {source}")]
    Vote {
        /// Sender.
        rank: Rank,
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Returns what makes an error of a failed tensor operation in `phase` of `step`.
    pub(super) fn tensor(
        phase: &'static str,
        step: u64,
    ) -> impl Fn(candle_core::Error) -> Self + Copy {
        move |source| Self::Tensor { phase, step, source }
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotFinite { .. }
            | Self::EvaluationNotFinite { .. }
            | Self::Exploded { .. }
            | Self::ScaleUnderflow { .. } => ExitCode::Numeric,
            Self::Data(error) => error.exit_code(),
            Self::NothingCounts { .. } => ExitCode::Data,
            Self::Unused { .. } => ExitCode::Refused,
            Self::Collective(_)
            | Self::ModelDiffers { .. }
            | Self::StartDiffers { .. }
            | Self::RestoredDiffers { .. }
            | Self::Diverged { .. }
            | Self::Vote { .. } => ExitCode::Peer,
            Self::Thread(_) => ExitCode::Resource,
            Self::BrokenOff(_) => ExitCode::Preempted,
            Self::Tensor { .. } | Self::Miscounted { .. } | Self::ThreadGone => ExitCode::Bug,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NotFinite { .. } => Some(
                "lower `optimizer.lr`, set `train.clip_grad_norm = 1.0` or a `scheduler.warmup`; \
                 `train.on_non_finite = \"skip\"` leaves such steps out"
                    .into(),
            ),
            Self::EvaluationNotFinite { .. } => Some(
                "start a new run with a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0` or a \
                 `scheduler.warmup`; if it was not finite from the start, look at the samples that \
                 it was measured on"
                    .into(),
            ),
            Self::Exploded { .. } => Some(
                "start a new run with a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0` or a \
                 `scheduler.warmup`, or run `ddprun resume fault.divergence_threshold=...` with a \
                 greater one: the weights were not updated and the checkpoints are unchanged"
                    .into(),
            ),
            Self::ScaleUnderflow { .. } => {
                Some("use `train.precision = \"bf16\"`, which needs no loss scale".into())
            }
            Self::Unused { .. } => Some(
                "remove it from the model if it is never used, or replace the layer after it that \
                 has no backward (candle-nn's `LayerNorm`, `RmsNorm`, `softmax_last_dim` and \
                 rotary embeddings have none); if it is unused in some steps only, set \
                 `distributed.find_unused_parameters = true`"
                    .into(),
            ),
            Self::StartDiffers { .. } | Self::RestoredDiffers { .. } => Some(
                "make sure that every rank can read the same checkpoints; `ddprun checkpoint \
                 verify` says which of them are whole"
                    .into(),
            ),
            Self::Diverged { .. } => Some(
                "test this machine's memory and processor, which may be bad; then `ddprun resume` \
                 continues from a checkpoint that was compared (`fault.max_restarts` does so by \
                 itself)"
                    .into(),
            ),
            Self::NothingCounts { .. } => Some(
                "raise `data.seq_len`, or evaluate on other samples: with `data.mask_prompt` each \
                 answer must begin within that many tokens"
                    .into(),
            ),
            Self::Data(error) => error.help(),
            _ => None,
        }
    }
}

/// "rank 2", "rank 0 and rank 3"
fn each(ranks: &[Rank]) -> String {
    ranks.iter().map(|rank| format!("rank {rank}")).collect::<Vec<_>>().join(" and ")
}

fn since(equal: Option<u64>) -> String {
    equal.map_or(String::new(), |step| format!("; after step {step} they were the same"))
}

/// The first names, and how many more there are.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_an_evaluation_is_not_said_to_be_left_out() {
        let step = Error::NotFinite { what: "the loss", step: 3, culprit: String::new() };
        assert!(step.help().unwrap().contains("on_non_finite"));
        let evaluation = Error::EvaluationNotFinite { split: "validation", step: 3 };
        assert_eq!(evaluation.to_string(), "the validation loss is not finite after step 3");
        let help = evaluation.help().unwrap();
        assert!(help.contains("`optimizer.lr`") && !help.contains("on_non_finite"), "{help}");
    }
}
