//! Environment -> the role of this process: the parent, a rank of our own parent, or a rank of a
//! foreign launcher.
//!
//! The only reader of the launchers' variables. PyTorch's (torchrun, Kubernetes `PyTorchJob`) take
//! precedence over those of MPI launchers (Open MPI; MPICH and Intel MPI), and those over a Slurm
//! step's and other PMI's. A world of one without numbered ranks has no launcher: there we start
//! the ranks ourselves.

use std::os::fd::RawFd;

use crate::collective::mpi::{Family, Launcher};
use crate::launch::rank::elastic_env;
use crate::launch::rank::launcher_env::number;
use crate::launch::rank::launcher_env::{
    self, HYDRA, LAUNCHER_PROCESS, OPEN_MPI, PMI, SLURM, TORCH, rank_and_world,
};
use crate::launch::rank::launcher_process;
use crate::units::{Rank, WorldSize};

pub use crate::launch::rank::elastic_env::ElasticFlags;
pub use crate::launch::rank::launcher_env::EnvError;
pub use crate::launch::rank::launcher_env::{ExternalRank, MachineRanks, RendezvousEndpoint};

/// The control socket. Set by our own parent for its ranks, as the next three.
pub(in crate::launch) const CONTROL_FD: &str = "DDPRUN_CONTROL_FD";
/// The shared mapping; absent in a world of one.
pub(in crate::launch) const SHM_FD: &str = "DDPRUN_SHM_FD";
/// The [`RankStatus`](crate::launch::rank::status) file.
pub(in crate::launch) const STATUS_FD: &str = "DDPRUN_STATUS_FD";
/// Sockets of a machine's first rank to those of the other machines: numbers between commas.
pub(in crate::launch) const PEER_FDS: &str = "DDPRUN_PEER_FDS";
/// Set if the parent wants the events that rank 0 records.
pub(in crate::launch) const TELL_EVENTS: &str = "DDPRUN_TELL_EVENTS";

/// The role of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Not a rank: this process starts the ranks.
    Parent,
    /// A rank that our own parent started.
    Child(Child),
    /// A rank that torchrun, mpirun, srun or Kubernetes started.
    Foreign(ExternalRank),
}

/// Descriptors that our own parent gave to its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    pub rank: Rank,
    /// Socket to the parent.
    pub control_fd: RawFd,
    /// The shared mapping, if there is more than one rank.
    pub shm_fd: Option<RawFd>,
    /// The file in which ranks report where they are.
    pub status_fd: Option<RawFd>,
    /// Sockets of a machine's first rank to those of the other machines.
    pub peer_fds: Vec<RawFd>,
}

/// Reads this process's environment.
///
/// # Errors
///
/// Errors of [`parse`].
pub fn from_environment() -> Result<Role, EnvError> {
    parse(|name| match name {
        LAUNCHER_PROCESS => launcher_process::find(HYDRA.rank).map(|found| found.identity),
        _ => variable(name),
    })
}

/// Reads the variables that stand for torchrun's flags, in a process that no launcher started.
///
/// # Errors
///
/// A variable is no number, or allows several numbers of nodes.
pub fn elastic_flags() -> Result<ElasticFlags, EnvError> {
    elastic_env::parse(variable)
}

/// True if our own parent wants the events that this rank records.
pub(crate) fn tells_events() -> bool {
    [CONTROL_FD, TELL_EVENTS].iter().all(|name| std::env::var_os(name).is_some())
}

/// `NO_COLOR`, if it is set.
pub fn no_color() -> Option<String> {
    variable("NO_COLOR")
}

/// A variable of this process; what is no UTF-8 in it is replaced.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The MPI launcher that started this process.
pub(crate) fn mpi_launcher() -> Option<Launcher> {
    let (family, variable) = mpi_family(variable)?;
    let program = launcher_process::find(variable).and_then(|found| found.program);
    Some(Launcher { family, program })
}

/// The launcher whose variables the environment has, and the variable that differs between ranks.
fn mpi_family(get: impl Fn(&str) -> Option<String>) -> Option<(Family, &'static str)> {
    // It may have inherited those of a launcher that started its parent.
    if get(CONTROL_FD).is_some() {
        return None;
    }
    let families =
        [(Family::OpenMpi, OPEN_MPI.rank), (Family::Pmi, HYDRA.rank), (Family::Pmix, "PMIX_RANK")];
    families.into_iter().find(|(_, variable)| get(variable).is_some())
}

/// The role of a process with these variables.
///
/// # Errors
///
/// A variable is not a number, out of range, or set without another one that it needs.
pub fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Role, EnvError> {
    if let Some(control_fd) = number(&get, CONTROL_FD)? {
        let rank = number(&get, TORCH.rank)?;
        let rank = rank.ok_or(EnvError::Incomplete { present: CONTROL_FD, absent: TORCH.rank })?;
        let [shm_fd, status_fd] = [number(&get, SHM_FD)?, number(&get, STATUS_FD)?];
        let (shm_fd, status_fd) = (shm_fd.map(|fd| fd as RawFd), status_fd.map(|fd| fd as RawFd));
        let control_fd = control_fd as RawFd;
        let (rank, peer_fds) = (Rank(rank), peer_fds(&get)?);
        return Ok(Role::Child(Child { rank, control_fd, shm_fd, status_fd, peer_fds }));
    }
    let foreign =
        |names, rank, world| launcher_env::parse(&get, names, rank, world).map(Role::Foreign);
    if get(TORCH.rank).is_some() || get(TORCH.world).is_some() {
        let (rank, world) = rank_and_world(&get, &TORCH)?;
        // A Kubernetes job of one pod: we use all of the pod's devices.
        let alone = world == WorldSize::ONE && get(TORCH.local_rank).is_none();
        return if alone { Ok(Role::Parent) } else { foreign(&TORCH, rank, world) };
    }
    // Hydra starts its own helpers by srun, and srun may speak PMI.
    let hydra = get(HYDRA.local_world).map(|_| &HYDRA);
    for names in [Some(&OPEN_MPI), hydra, Some(&SLURM), Some(&PMI)].into_iter().flatten() {
        if get(names.world).is_some() && get(names.rank).is_some() {
            let (rank, world) = rank_and_world(&get, names)?;
            if world > WorldSize::ONE {
                return foreign(names, rank, world);
            }
        }
    }
    Ok(Role::Parent)
}

fn peer_fds(get: &impl Fn(&str) -> Option<String>) -> Result<Vec<RawFd>, EnvError> {
    let Some(value) = get(PEER_FDS) else { return Ok(Vec::new()) };
    let numbers: Result<_, _> = value.split(',').map(str::parse).collect();
    let expected = "a comma-separated list of numbers".to_owned();
    numbers.map_err(|_| EnvError::Bad { name: PEER_FDS, value: value.clone(), expected })
}

/// Variables for tests: `NAME=value`, separated by blanks.
#[cfg(test)]
pub(in crate::launch) fn variables(text: &str) -> impl Fn(&str) -> Option<String> {
    move |name| {
        let mut pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(environment: &str, expected: &str) {
        let shown = match parse(variables(environment)) {
            Ok(Role::Parent) => "parent".to_owned(),
            Ok(Role::Child(child)) => format!("child {child:?}"),
            Ok(Role::Foreign(f)) => format!(
                "rank {} of {}, local {} of {}, in {}",
                f.rank, f.world, f.local_rank, f.local_world, f.group
            ),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn without_a_launcher_we_are_the_parent() {
        check("", "parent");
        check("MASTER_ADDR=localhost MASTER_PORT=29500", "parent");
    }

    #[test]
    fn torchrun_names_rank_world_and_group() {
        check(
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29500 \
             TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=3",
            "rank 1 of 2, local 1 of 2, in none/h/29500/3",
        );
        check(
            "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
            "rank 0 of 1, local 0 of 1, in ///",
        );
    }

    #[test]
    fn a_pytorch_job_has_one_rank_per_pod_unless_its_master_is_this_machine() {
        check("RANK=2 WORLD_SIZE=4 MASTER_ADDR=job-0", "rank 2 of 4, local 0 of 1, in /job-0//");
        check(
            "RANK=2 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1",
            "rank 2 of 4, local 2 of 4, in /127.0.0.1//",
        );
        check("RANK=0 WORLD_SIZE=1 MASTER_ADDR=job-0", "parent");
    }

    #[test]
    fn mpirun_and_srun_are_understood_and_a_batch_script_is_not_a_launcher() {
        check(
            "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 \
             OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=j SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
            "rank 3 of 4, local 3 of 4, in j//",
        );
        let srun =
            "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
        check(&format!("{srun} SLURM_STEP_NUM_NODES=1"), "rank 1 of 4, local 1 of 4, in 7/0/");
        check(
            &format!("{srun} SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2(x2)"),
            "rank 1 of 4, local 1 of 2, in 7/0/",
        );
        check("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", "parent");
        check("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=7", "parent");
    }

    #[test]
    fn the_mpirun_of_mpich_is_understood_also_where_srun_started_its_helpers() {
        let hydra = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
        check(hydra, "rank 1 of 4, local 1 of 2, in ");
        let helper = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2";
        check(&format!("{hydra} {helper}"), "rank 1 of 4, local 1 of 2, in ");
        check("PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "parent");
        let srun = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=7 \
                    SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 PMI_RANK=1 PMI_SIZE=4";
        check(srun, "rank 1 of 4, local 1 of 4, in 7/0/");
        let cray = "PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PMI_JOBID=9";
        check(cray, "rank 3 of 4, local 1 of 2, in 9/");
    }

    #[test]
    fn an_mpi_launcher_is_known_by_its_variables_but_not_by_our_own_ranks() {
        let family = |text: &str| {
            mpi_family(|name| text.split(' ').any(|key| key == name).then(|| "0".to_owned()))
                .map(|(family, _)| family)
        };
        assert_eq!(family("OMPI_COMM_WORLD_RANK PMIX_RANK"), Some(Family::OpenMpi));
        assert_eq!(family("PMI_RANK SLURM_PROCID"), Some(Family::Pmi));
        assert_eq!(family("PMIX_RANK SLURM_PROCID"), Some(Family::Pmix));
        assert_eq!(family("RANK SLURM_PROCID"), None);
        assert_eq!(family("PMI_RANK DDPRUN_CONTROL_FD"), None);
    }

    #[test]
    fn our_own_parent_takes_precedence_over_every_launcher() {
        check(
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 DDPRUN_CONTROL_FD=5 DDPRUN_SHM_FD=6 \
             DDPRUN_STATUS_FD=7",
            "child Child { rank: Rank(1), control_fd: 5, shm_fd: Some(6), status_fd: Some(7), \
             peer_fds: [] }",
        );
        check(
            "RANK=1 DDPRUN_CONTROL_FD=5 DDPRUN_PEER_FDS=8,9",
            "child Child { rank: Rank(1), control_fd: 5, shm_fd: None, status_fd: None, peer_fds: \
             [8, 9] }",
        );
        check("DDPRUN_CONTROL_FD=5", "the environment has `DDPRUN_CONTROL_FD`, but not `RANK`");
    }

    #[test]
    fn contradictions_name_the_variable() {
        check("RANK=1", "the environment has `RANK`, but not `WORLD_SIZE`");
        check("WORLD_SIZE=2", "the environment has `WORLD_SIZE`, but not `RANK`");
        check("RANK=x WORLD_SIZE=2", "`RANK=x` in the environment is not a non-negative integer");
        check("RANK=2 WORLD_SIZE=2", "`RANK=2` in the environment is not below `WORLD_SIZE=2`");
        check("RANK=0 WORLD_SIZE=0", "`WORLD_SIZE=0` in the environment is not at least 1");
        check(
            "RANK=0 WORLD_SIZE=9999999999",
            "`WORLD_SIZE=9999999999` in the environment is not a non-negative integer",
        );
    }
}
