//! Ranks that another launcher started (torchrun, srun, mpirun, Kubernetes).

pub(in crate::launch) mod launch_id;
pub(in crate::launch) mod local_rendezvous;
pub(in crate::launch) mod mpi;
