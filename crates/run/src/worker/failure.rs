//! Errors of a rank, with their exit codes and remedies.

use std::any::Any;
use std::io;
use std::path::PathBuf;

use crate::checkpoint;
use crate::collective;
use crate::data;
use crate::engine;
use crate::files;
use crate::kinds;
use crate::launch::{Blame, LESS_MEMORY};
use crate::nn;
use crate::record;
use crate::units::Rank;
use crate::user_error::{ExitCode, UserError};

/// Names of a lack of memory in the errors of CUDA's driver, cuBLAS, cuDNN and cuRAND.
const NO_MEMORY: [&str; 3] = ["OUT_OF_MEMORY", "STATUS_ALLOC_FAILED", "STATUS_ALLOCATION_FAILED"];

/// A failure of one rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Data(#[from] data::Error),
    /// A step or an evaluation.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The group of ranks.
    #[error(transparent)]
    Collective(#[from] collective::Error),
    /// A model or another kind cannot be built.
    #[error("cannot build the model: {0}")]
    Model(#[from] kinds::Error),
    /// `model.pretrained`, or `model.lora.adapters`, does not fit.
    #[error("cannot start from given weights: {0}")]
    Pretrained(#[from] nn::state_dict::Error),
    /// The checkpoint that `model.pretrained` names is not the one that it was.
    #[error("cannot start from `{}`: it is not the checkpoint that this run was planned with", path.display())]
    OtherWeights { path: PathBuf },
    /// The weights that the model is compared with are others than at the start.
    #[error("cannot continue: the reference of the loss, `{}`, has other weights than when the run began", path.display())]
    OtherReference { path: PathBuf },
    /// A checkpoint cannot be written or used.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A file of the run folder cannot be written.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A record of the run cannot be written.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// A thread cannot be started.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// "the training thread"
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The ranks do not take each sample of an epoch once.
    #[error("ddprun has a bug: in epoch {epoch} {what}")]
    Partition {
        /// Counted from 1.
        epoch: u64,
        what: String,
    },
    /// Our bug.
    #[error("ddprun has a bug: {0}")]
    Panic(String),
}

impl Error {
    /// An error with the message of a panic.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Self::Panic(text.unwrap_or_else(|| "a thread panicked".into()))
    }

    /// True if memory ran out: a device's driver says so in a tensor operation, or a library of
    /// CUDA when it is opened or wants work memory, or the kernel denies a call the memory that it
    /// needs, as in a control group at its limit. (An allocation in main memory that is denied
    /// aborts the process, which its parent sees.)
    pub(crate) fn is_out_of_memory(&self) -> bool {
        if was_denied_memory(self) {
            return true;
        }
        let words = match self {
            Self::Engine(engine::Error::Tensor { source, .. }) => source.to_string(),
            Self::Model(error) => error.to_string(),
            Self::Data(error) | Self::Engine(engine::Error::Data(error)) => error.to_string(),
            Self::Collective(error) | Self::Engine(engine::Error::Collective(error)) => {
                error.to_string()
            }
            _ => return false,
        };
        NO_MEMORY.iter().any(|name| words.contains(name))
    }

    /// Blames this rank or another one.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Collective(_)
            | Self::Engine(
                engine::Error::Collective(_)
                | engine::Error::StartDiffers { is_mine: false, .. }
                | engine::Error::RestoredDiffers { is_mine: false, .. }
                | engine::Error::Diverged { is_mine: false, .. },
            ) => Blame::Peer,
            _ => Blame::Own,
        }
    }

    /// The ranks that did not come to a collective.
    pub(crate) fn suspects(&self) -> Vec<Rank> {
        match self {
            Self::Collective(error) | Self::Engine(engine::Error::Collective(error)) => {
                error.missing().iter().map(|missing| missing.rank).collect()
            }
            Self::Engine(
                engine::Error::Diverged { ranks, .. }
                | engine::Error::RestoredDiffers { ranks, .. },
            ) => ranks.clone(),
            Self::Engine(engine::Error::StartDiffers { rank, .. }) => vec![*rank],
            _ => vec![],
        }
    }
}

/// True if `error` was caused by a system call that ended with `ENOMEM`.
fn was_denied_memory(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::OutOfMemory)
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_out_of_memory() => ExitCode::Resource,
            Self::Data(error) => error.exit_code(),
            Self::Engine(error) => error.exit_code(),
            Self::Collective(error) => error.exit_code(),
            Self::Model(error) => error.exit_code(),
            Self::Checkpoint(error) => error.exit_code(),
            // A rank that finds a file in use cannot write it.
            Self::Files(_) => ExitCode::Storage,
            Self::Record(error) => error.exit_code(),
            Self::Pretrained(_) | Self::OtherWeights { .. } | Self::OtherReference { .. } => {
                ExitCode::Checkpoint
            }
            Self::Thread { .. } => ExitCode::Resource,
            Self::Partition { .. } | Self::Panic(_) => ExitCode::Bug,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            _ if self.is_out_of_memory() => Some(LESS_MEMORY.into()),
            Self::Data(error) => error.help(),
            Self::Collective(error) | Self::Engine(engine::Error::Collective(error)) => {
                error.help()
            }
            Self::Engine(error) => error.help(),
            Self::Record(record::Error::Thread { .. }) => None,
            Self::Files(error) | Self::Record(record::Error::Files(error))
                if error.is_no_file() =>
            {
                Some("remove it, then `ddprun resume`".into())
            }
            Self::Files(_) | Self::Record(_) => Some(MORE_ROOM.into()),
            Self::Checkpoint(error) if error.is_storage() => Some(MORE_ROOM.into()),
            Self::Checkpoint(checkpoint::Error::NoneUsable { folder, damaged })
                if !damaged.is_empty() =>
            {
                Some(format!(
                    "put an intact copy back there, or move `{}` away and run `ddprun resume \
                     --from-scratch`",
                    folder.display()
                ))
            }
            Self::Checkpoint(error @ checkpoint::Error::Damaged { .. }) => error.help(),
            Self::Checkpoint(checkpoint::Error::NotFinite { .. }) => Some(
                "start a new run with a smaller `optimizer.lr` or with `train.clip_grad_norm`; the \
                 checkpoints before it are as they were"
                    .into(),
            ),
            Self::Pretrained(error) => Some(error.help().unwrap_or_else(|| {
                "start a new run with weights that fit, or without `model.pretrained`".into()
            })),
            Self::OtherWeights { .. } | Self::OtherReference { .. } => {
                Some("put it back there, or start a new run".into())
            }
            Self::Panic(_) => Some("report it with this text and the log of the rank".into()),
            _ => None,
        }
    }
}

/// Remedy if a file cannot be written.
const MORE_ROOM: &str = "make room, or move the folder and leave a link (`ln -s`) in its place; \
                         then `ddprun resume`";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_device_without_memory_is_told_from_other_tensor_errors() {
        let of = |text: &str| {
            let source = candle_core::Error::Msg(text.to_owned());
            Error::from(engine::Error::Tensor { phase: "forward", step: 3, source })
        };
        let full = of("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
        assert_eq!((full.is_out_of_memory(), full.exit_code()), (true, ExitCode::Resource));
        assert!(full.help().unwrap().contains("fault.on_oom"));
        for library in ["CUDNN_STATUS_ALLOC_FAILED", "CURAND_STATUS_ALLOCATION_FAILED"] {
            assert!(of(&format!("cuDNN says CudnnError({library}) for ...")).is_out_of_memory());
        }
        assert_eq!(
            (of("shape mismatch").is_out_of_memory(), of("x").exit_code()),
            (false, ExitCode::Bug)
        );
    }

    #[test]
    fn a_call_of_the_kernel_that_is_denied_memory_is_told_from_a_full_disk() {
        let of = |number| {
            let path = Path::new("step-4/model.safetensors");
            Error::from(files::Error::io("write", path)(io::Error::from_raw_os_error(number)))
        };
        let denied = of(libc::ENOMEM);
        assert_eq!((denied.is_out_of_memory(), denied.exit_code()), (true, ExitCode::Resource));
        assert_eq!(of(libc::ENOSPC).exit_code(), ExitCode::Storage);
    }

    #[test]
    fn ranks_that_restored_other_states_exit_as_peers_and_may_be_restarted() {
        let other_step =
            engine::Error::StartDiffers { rank: Rank(1), step: 2, first: 4, is_mine: false };
        let what = "optimizer state";
        let ranks = vec![Rank(1)];
        let other_bits = engine::Error::RestoredDiffers { step: 4, what, ranks, is_mine: true };
        for error in [other_step, other_bits].map(Error::from) {
            assert_eq!(error.exit_code(), ExitCode::Peer, "{error}");
            assert_eq!(error.suspects(), [Rank(1)]);
        }
    }
}
