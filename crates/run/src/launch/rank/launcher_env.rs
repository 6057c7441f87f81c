//! The variables of torchrun, MPI launchers and Slurm -> which rank this is, and which ranks share
//! its machine.

use std::path::PathBuf;

use crate::units::{Rank, WorldSize};

/// The token file that authenticates ranks of several machines under a foreign launcher.
pub(super) const TOKEN_FILE: &str = "DDPRUN_TOKEN_FILE";
/// The port of their rendezvous, if not the one after the launcher's.
const PORT: &str = "DDPRUN_PORT";

/// The place that a foreign launcher gave to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRank {
    pub rank: Rank,
    pub world: WorldSize,
    /// Rank within this machine.
    pub local_rank: Rank,
    /// Ranks of this machine.
    pub local_world: WorldSize,
    /// True if all machines have equally many ranks, numbered machine by machine.
    pub by_machine: bool,
    /// Cores of this machine that all its ranks have together, if the launcher tells.
    pub machine_cores: Option<usize>,
    /// Identifies this launch on this machine: run id, address, port, restart count.
    pub group: String,
    /// Restarts of the group by the launcher so far.
    pub restarts: u32,
    /// The rendezvous of ranks on several machines, if the environment names a token.
    pub rendezvous: Option<RendezvousEndpoint>,
}

/// Ranks that share memory: those of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineRanks {
    /// The lowest of them.
    pub first: Rank,
    pub count: WorldSize,
}

impl ExternalRank {
    /// The ranks with which this one shares memory. Ranks that are not numbered machine by machine
    /// are on a machine of their own each.
    pub fn machine(&self) -> MachineRanks {
        if !self.by_machine {
            return MachineRanks { first: self.rank, count: WorldSize::ONE };
        }
        let count = self.local_world;
        MachineRanks { first: Rank(self.rank.0 - self.rank.0 % count.get()), count }
    }

    /// The same rank, as if each were on a machine of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { by_machine: false, ..self.clone() }
    }

    /// Number of machines, by [`machine`](Self::machine).
    pub fn nodes(&self) -> u32 {
        self.world.get() / self.machine().count.get()
    }

    /// Number of this machine, from 0.
    pub fn node(&self) -> u32 {
        self.rank.0 / self.machine().count.get()
    }

    /// True if this rank meets those of other machines on behalf of its machine.
    pub fn is_first_of_machine(&self) -> bool {
        self.machine().first == self.rank
    }

    /// This rank's share of the `cores` that it may use: all of them if it is bound to them.
    pub fn share_of_cores(&self, cores: usize) -> usize {
        let ranks = self.local_world.count();
        let is_bound = self.machine_cores.is_some_and(|all| cores * ranks <= all);
        if is_bound { cores } else { (cores / ranks).max(1) }
    }
}

/// Address at which ranks of several machines find each other, and their token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousEndpoint {
    /// The machine of rank 0.
    pub master: String,
    /// A free port of it.
    pub port: u16,
    /// File of the token.
    pub token_file: PathBuf,
}

/// The environment contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// Not a number, or out of range.
    #[error("`{name}={value}` in the environment is not {expected}")]
    Bad { name: &'static str, value: String, expected: String },
    /// One variable of a pair.
    #[error("the environment has `{present}`, but not `{absent}`")]
    Incomplete { present: &'static str, absent: &'static str },
}

/// A variable that holds a number, if it is set.
pub(super) fn number(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<u32>, EnvError> {
    let Some(value) = get(name) else { return Ok(None) };
    let expected = || "a non-negative integer".to_owned();
    match value.trim().parse::<u32>() {
        Ok(number) if i32::try_from(number).is_ok() => Ok(Some(number)),
        _ => Err(EnvError::Bad { name, value, expected: expected() }),
    }
}

/// The variables of one launcher.
pub(super) struct LauncherVariables {
    pub(super) rank: &'static str,
    pub(super) world: &'static str,
    pub(super) local_rank: &'static str,
    /// Slurm's holds that of every machine.
    pub(super) local_world: &'static str,
    nodes: Option<&'static str>,
    /// True if ranks are numbered machine by machine, unless another variable says otherwise.
    by_machine: bool,
    cores: Option<&'static str>,
    restarts: Option<&'static str>,
    identity: &'static [&'static str],
}

pub(super) const TORCH: LauncherVariables = LauncherVariables {
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world: "LOCAL_WORLD_SIZE",
    nodes: Some("GROUP_WORLD_SIZE"),
    by_machine: true,
    cores: None,
    restarts: Some("TORCHELASTIC_RESTART_COUNT"),
    identity: &["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
};

pub(super) const OPEN_MPI: LauncherVariables = LauncherVariables {
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
    nodes: None,
    by_machine: false,
    cores: None,
    restarts: Some("OMPI_MCA_orte_num_restarts"),
    identity: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
};

/// Hydra, the `mpirun` of MPICH and Intel MPI. It tells no identity of a launch: that is its
/// process.
pub(super) const HYDRA: LauncherVariables = LauncherVariables {
    rank: "PMI_RANK",
    world: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world: "MPI_LOCALNRANKS",
    nodes: None,
    by_machine: false,
    cores: None,
    restarts: None,
    identity: &[LAUNCHER_PROCESS],
};

/// Other launchers with PMI, such as Cray's.
pub(super) const PMI: LauncherVariables = LauncherVariables {
    local_rank: "PMI_LOCAL_RANK",
    local_world: "PMI_LOCAL_SIZE",
    identity: &["PMI_JOBID", LAUNCHER_PROCESS],
    ..HYDRA
};

/// No variable of the environment: the process of the launcher on this machine.
pub(super) const LAUNCHER_PROCESS: &str = "(process of the launcher)";

/// `SLURM_PROCID` alone is also set in a batch script, which is not a launcher.
pub(super) const SLURM: LauncherVariables = LauncherVariables {
    rank: "SLURM_PROCID",
    world: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world: "SLURM_STEP_TASKS_PER_NODE",
    nodes: Some("SLURM_STEP_NUM_NODES"),
    by_machine: true,
    cores: Some("SLURM_CPUS_ON_NODE"),
    restarts: Some("SLURM_RESTART_COUNT"),
    identity: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
};
/// Number of this machine among those of a step.
const SLURM_NODE: &str = "SLURM_NODEID";
/// Distribution of `srun -m`; "block", the default, numbers ranks machine by machine.
const SLURM_ORDER: &str = "SLURM_DISTRIBUTION";

/// Reads the place of `rank` of `world` from the variables `names` of a launcher.
pub(super) fn parse(
    get: &impl Fn(&str) -> Option<String>,
    names: &LauncherVariables,
    rank: Rank,
    world: WorldSize,
) -> Result<ExternalRank, EnvError> {
    let nodes = names.nodes.map(|name| number(get, name)).transpose()?.flatten();
    let (local_world, as_many) = ranks_of_machine(get, names, world, nodes)?;
    let local_guess = if local_world == WorldSize::ONE { Rank(0) } else { rank };
    let local_rank = number(get, names.local_rank)?.map_or(local_guess, Rank);
    let in_place = local_rank.0 == rank.0 % local_world.get();
    let by_machine = world == local_world || (as_many && in_place);
    let cores = names.cores.map(|name| number(get, name)).transpose()?.flatten();
    let restarts = names.restarts.map(|name| number(get, name)).transpose()?.flatten();
    let identity = names.identity.iter().map(|name| get(name).unwrap_or_default());
    Ok(ExternalRank {
        rank,
        world,
        local_rank,
        local_world,
        by_machine,
        machine_cores: cores.map(|cores| cores as usize),
        group: identity.collect::<Vec<_>>().join("/"),
        restarts: restarts.unwrap_or(0),
        rendezvous: if world == local_world { None } else { rendezvous(get)? },
    })
}

/// Ranks of this machine, and whether every machine has as many.
fn ranks_of_machine(
    get: &impl Fn(&str) -> Option<String>,
    names: &LauncherVariables,
    world: WorldSize,
    nodes: Option<u32>,
) -> Result<(WorldSize, bool), EnvError> {
    if names.local_world == SLURM.local_world {
        return slurm_step(get, world, nodes);
    }
    let here =
        get("MASTER_ADDR").is_some_and(|at| ["localhost", "127.0.0.1", "::1"].contains(&&*at));
    let guess = if here { world } else { WorldSize::ONE };
    let ranks = number(get, names.local_world)?.and_then(WorldSize::new).unwrap_or(guess);
    let as_many = match nodes {
        Some(nodes) => u64::from(nodes) * u64::from(ranks.get()) == u64::from(world.get()),
        None => world.get().is_multiple_of(ranks.get()),
    };
    Ok((ranks, names.by_machine && as_many))
}

/// The same of a step of Slurm.
fn slurm_step(
    get: &impl Fn(&str) -> Option<String>,
    world: WorldSize,
    nodes: Option<u32>,
) -> Result<(WorldSize, bool), EnvError> {
    if nodes.is_none_or(|nodes| nodes == 1) {
        return Ok((world, true));
    }
    let tasks = get(SLURM.local_world).map(|list| tasks(&list)).unwrap_or_default();
    let node = number(get, SLURM_NODE)?.unwrap_or(0) as usize;
    let ranks = tasks.get(node).and_then(|&ranks| WorldSize::new(ranks));
    let by_block = get(SLURM_ORDER).is_none_or(|order| order.starts_with("block"));
    let as_many = tasks.windows(2).all(|pair| pair[0] == pair[1]);
    Ok((ranks.unwrap_or(WorldSize::ONE), by_block && as_many))
}

/// Tasks of each machine by Slurm's list: "2(x3),1" is 2, 2, 2, 1. Empty if it cannot be read.
fn tasks(list: &str) -> Vec<u32> {
    let part = |part: &str| -> Option<Vec<u32>> {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        Some(vec![tasks.parse().ok()?; times])
    };
    let parts: Option<Vec<_>> = list.trim().split(',').map(part).collect();
    parts.unwrap_or_default().concat()
}

/// `MASTER_PORT` is the launcher's own: torchrun's store listens there.
fn rendezvous(
    get: &impl Fn(&str) -> Option<String>,
) -> Result<Option<RendezvousEndpoint>, EnvError> {
    const MASTER: &str = "MASTER_ADDR";
    const MASTER_PORT: &str = "MASTER_PORT";
    let Some(token_file) = get(TOKEN_FILE).map(PathBuf::from) else { return Ok(None) };
    let master = get(MASTER).ok_or(EnvError::Incomplete { present: TOKEN_FILE, absent: MASTER })?;
    let (name, port) = match (number(get, PORT)?, number(get, MASTER_PORT)?) {
        (Some(port), _) => (PORT, port),
        (None, port) => (MASTER_PORT, port.unwrap_or(29_500) + 1),
    };
    let expected = "a port, from 1 to 65534".to_owned();
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    let port =
        port.ok_or(EnvError::Bad { name, value: get(name).unwrap_or_default(), expected })?;
    Ok(Some(RendezvousEndpoint { master, port, token_file }))
}

/// The numbers of this rank and of all.
pub(super) fn rank_and_world(
    get: &impl Fn(&str) -> Option<String>,
    names: &LauncherVariables,
) -> Result<(Rank, WorldSize), EnvError> {
    let (rank, world) = match (number(get, names.rank)?, number(get, names.world)?) {
        (Some(rank), Some(world)) => (rank, world),
        (None, _) => return Err(EnvError::Incomplete { present: names.world, absent: names.rank }),
        (_, None) => return Err(EnvError::Incomplete { present: names.rank, absent: names.world }),
    };
    let bad =
        |name, value: u32, expected| EnvError::Bad { name, value: value.to_string(), expected };
    let size = WorldSize::new(world).ok_or_else(|| bad(names.world, 0, "at least 1".to_owned()))?;
    if rank >= world {
        return Err(bad(names.rank, rank, format!("below `{}={world}`", names.world)));
    }
    Ok((Rank(rank), size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::rank::env::{Role, parse, variables};

    fn launched(environment: &str) -> ExternalRank {
        match parse(variables(environment)) {
            Ok(Role::Foreign(foreign)) => foreign,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn has_place(environment: &str, (first, count): (u32, u32), (node, nodes): (u32, u32)) {
        let found = launched(environment);
        let machine = found.machine();
        assert_eq!((machine.first.0, machine.count.get()), (first, count), "{environment}");
        assert_eq!((found.node(), found.nodes()), (node, nodes), "{environment}");
        assert_eq!(found.is_first_of_machine(), found.rank.0 == first, "{environment}");
    }

    #[test]
    fn ranks_that_torchrun_numbers_machine_by_machine_share_its_memory() {
        let torch = "WORLD_SIZE=6 LOCAL_WORLD_SIZE=3 GROUP_WORLD_SIZE=2";
        has_place(&format!("{torch} RANK=4 LOCAL_RANK=1"), (3, 3), (1, 2));
        has_place(&format!("{torch} RANK=3 LOCAL_RANK=0"), (3, 3), (1, 2));
        has_place("WORLD_SIZE=4 RANK=3 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1", (2, 2), (1, 2));
    }

    #[test]
    fn ranks_in_another_order_or_in_other_numbers_are_machines_of_their_own() {
        // `mpirun --map-by node` is seen by some of the ranks alone.
        let mpi = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        let rank = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1";
        has_place(&format!("{mpi} {rank}"), (3, 1), (3, 4));
        has_place("WORLD_SIZE=4 RANK=2 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1", (2, 1), (2, 4));
        let uneven = "WORLD_SIZE=4 GROUP_WORLD_SIZE=3 LOCAL_WORLD_SIZE=2";
        has_place(&format!("{uneven} RANK=0 LOCAL_RANK=0"), (0, 1), (0, 4));
        let step = "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_PROCID=0 SLURM_LOCALID=0";
        let cyclic = "SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_DISTRIBUTION=cyclic";
        has_place(&format!("{step} {cyclic}"), (0, 1), (0, 4));
        has_place(&format!("{step} SLURM_STEP_TASKS_PER_NODE=3,1"), (0, 1), (0, 4));
    }

    #[test]
    fn slurm_tells_how_many_tasks_each_machine_has() {
        assert_eq!(tasks("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(tasks("4"), [4]);
        assert_eq!((tasks("2(x3"), tasks("two")), (vec![], vec![]));
        let step = "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_PROCID=3 SLURM_NODEID=1";
        let two = format!("{step} SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2(x2)");
        has_place(&two, (2, 2), (1, 2));
        let apart = launched(&two).apart();
        assert_eq!((apart.machine().count.get(), apart.node(), apart.nodes()), (1, 3, 4));
        let one = format!("{step} SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=3,1");
        assert_eq!(launched(&one).local_world.get(), 1);
    }

    #[test]
    fn a_rank_that_slurm_has_bound_to_cores_has_all_of_them() {
        let step = "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=0 SLURM_LOCALID=0";
        let bound = launched(&format!("{step} SLURM_CPUS_ON_NODE=16"));
        assert_eq!([4, 16].map(|cores| bound.share_of_cores(cores)), [4, 4]);
        assert_eq!([4, 2].map(|cores| launched(step).share_of_cores(cores)), [1, 1]);
    }

    #[test]
    fn ranks_of_several_machines_use_the_port_after_the_launchers_if_there_is_a_token() {
        let rendezvous = |more: &str| {
            let text = format!("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 {more}");
            match parse(variables(&text)) {
                Ok(Role::Foreign(ExternalRank { rendezvous: Some(at), .. })) => {
                    format!("{}:{} {}", at.master, at.port, at.token_file.display())
                }
                Ok(_) => "none".to_owned(),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(rendezvous("MASTER_ADDR=h MASTER_PORT=7"), "none");
        let token = "DDPRUN_TOKEN_FILE=t MASTER_ADDR=h";
        assert_eq!(rendezvous(token), "h:29501 t");
        assert_eq!(rendezvous(&format!("{token} MASTER_PORT=7")), "h:8 t");
        assert_eq!(rendezvous(&format!("{token} MASTER_PORT=7 DDPRUN_PORT=9")), "h:9 t");
        let last = "`MASTER_PORT=65535` in the environment is not a port, from 1 to 65534";
        assert_eq!(rendezvous(&format!("{token} MASTER_PORT=65535")), last);
        let half = "the environment has `DDPRUN_TOKEN_FILE`, but not `MASTER_ADDR`";
        assert_eq!(rendezvous("DDPRUN_TOKEN_FILE=t"), half);
    }
}
