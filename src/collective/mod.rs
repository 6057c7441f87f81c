//! One tensor per rank -> their sum. One trait, backends `solo`, `shm`, `tcp` (several machines) and, with the feature
//! `cuda`, `nccl`.
//!
//! Every rank makes the same calls in the same order. Every wait has a deadline; a failed collective
//! is final for its group. Sums are taken in f32 in a fixed binary tree over ranks, so that all ranks
//! hold the same bits.
//!
//! With W ranks, S bytes per rank and pieces of P = 512 KiB, `shm` takes per rank:
//!
//! | call         | waits for all | bytes read and written                     | algorithm                        |
//! |--------------|---------------|--------------------------------------------|----------------------------------|
//! | `all_reduce` | 2             | S/W from W ranks, S/W to W ranks: 2S       | each rank reduces its share      |
//! | `broadcast`  | S/P, 1 or more | rank 0 writes S, the others read S         | staging halves, write and read overlap |
//! | `all_gather` | S/P, 1 or more | S written, the sum of the others' S read   | staging halves                   |
//! | `barrier`    | 1             | 0                                          |                                  |

mod compressed;
mod lines;
mod mapping;
mod shm_barrier;
mod message;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(any(feature = "cuda", test))]
mod device_group;
mod reduce;
mod segment;
mod shm;
mod solo;
mod tcp;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "cuda")]
use crate::plan::DistributedPlan;
use crate::plan::{BackendPlan, CommHook};
use crate::transport::Peer;
use crate::units::{Bytes, Rank, WorldSize};

pub use reduce::tree_sum;
pub use segment::Segment;

/// A group of ranks that exchange tensors.
pub trait Collective: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks in the group.
    fn world_size(&self) -> WorldSize;

    /// Memory for gradients of the given lengths (f32 elements), zeroed; for `shm` a part of the mapping,
    /// so that a reduction is in place. Called once, with equal lengths on every rank.
    ///
    /// # Errors
    ///
    /// The mapping is smaller than the plan says, or the call is the second.
    fn segments(&self, lengths: &[usize]) -> Result<Vec<Segment>, Error>;

    /// Replaces the segment by its sum over all ranks, added in the fixed tree of [`tree_sum`].
    ///
    /// # Errors
    ///
    /// A rank is gone, late, or makes another call.
    fn all_reduce(&self, segment: &mut Segment) -> Result<(), Error>;

    /// Replaces `bytes` by those of rank 0. Equal lengths on every rank.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error>;

    /// Everyone's `mine`, in rank order. Lengths may differ.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Seconds by which each rank came after the first one to an `all_reduce`: the mean over those since the last
    /// call of this function. Empty if there were none, in a world of one, and where nobody knows.
    fn lags(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    ///
    /// As [`Collective::all_reduce`].
    fn barrier(&self) -> Result<(), Error>;

    /// How gradients are summed where that is not this program's own work: a library and its version.
    fn describe(&self) -> Option<String> {
        None
    }

    /// Sums of tensors in the GPU's memory, if this group makes them there.
    #[cfg(any(feature = "cuda", test))]
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        None
    }

    /// Ends the group: every rank that waits, or will wait, returns [`Error::Aborted`] with this reason.
    /// The first reason stays. For a rank that cannot go on while others wait for it.
    fn abort(&self, reason: &str);

    /// Lets a thread of this rank that waits in a call, or will wait in one, do so as if the deadline were over: it
    /// ends the group and says who is missing. For a rank that was told that waiting is in vain.
    fn give_up(&self);
}

/// Sums in the GPU's memory. Every rank makes the same calls in the same order.
#[cfg(any(feature = "cuda", test))]
pub trait OnGpu {
    /// Enqueues, after all that was enqueued on the GPU so far, the replacement of `values`, f32 and contiguous, by
    /// their sum over all ranks. What the GPU is given meanwhile runs beside it.
    ///
    /// # Errors
    ///
    /// The library's, or the group ended.
    fn enqueue_all_reduce(&self, values: &candle_core::Tensor) -> Result<(), Error>;

    /// Waits until all sums that were enqueued are there.
    ///
    /// # Errors
    ///
    /// A rank is gone or late: the group has ended.
    fn finish(&self) -> Result<(), Error>;
}

/// [`open`] or [`open_tcp`] for a rank that computes on a GPU: gradients go through NCCL where the plan says so, or where ranks find
/// that their GPUs differ.
///
/// # Errors
///
/// As [`open`] and [`open_tcp`], and those of NCCL.
#[cfg(feature = "cuda")]
pub(crate) fn open_on_gpu(
    gpu: &crate::ops::cuda::Gpu,
    plan: &DistributedPlan,
    rank: Rank,
    (fd, peers): (Option<OwnedFd>, Vec<Peer>),
) -> Result<Arc<dyn Collective>, Error> {
    let (world, timeout, hook) = (plan.world_size, plan.timeout, plan.comm_hook);
    let control: Arc<dyn device_group::Control> = match plan.backend {
        BackendPlan::Solo => return open(plan.backend, rank, world, fd, timeout),
        BackendPlan::Tcp | BackendPlan::Nccl { mapping: None } => {
            Arc::new(tcp::Tcp::open(rank, world, peers, timeout)?)
        }
        BackendPlan::Shm { mapping } | BackendPlan::Nccl { mapping: Some(mapping) } => {
            let fd = fd.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
            Arc::new(shm::Shm::open(&fd, mapping, rank, world, timeout)?)
        }
    };
    let is_planned = matches!(plan.backend, BackendPlan::Nccl { .. });
    if plan.nccl_shares_a_gpu() {
        nccl::check_sharing()?;
    } else if plan.nccl_if_apart || (is_planned && plan.nodes > 1) {
        // Nobody has seen the GPUs of all machines but the ranks themselves.
        match are_apart(&control.all_gather(&nccl::identity(gpu))?) {
            Err(what) if is_planned => return Err(Error::Nccl { what }),
            Err(_) => return Ok(control),
            Ok(()) => {}
        }
    } else if !is_planned {
        return Ok(control);
    }
    Ok(Arc::new(nccl::open(gpu, control, hook, timeout)?))
}

/// Whether the libraries that `backend` calls are on this machine.
///
/// # Errors
///
/// NCCL is not: where it was looked for.
#[cfg(feature = "cuda")]
pub(crate) fn check(backend: BackendPlan) -> Result<(), String> {
    match backend {
        BackendPlan::Nccl { .. } => crate::cuda_libraries::check_nccl(),
        _ => Ok(()),
    }
}

/// Whether the libraries that `backend` calls are on this machine: without CUDA it calls none.
#[cfg(not(feature = "cuda"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(crate) fn check(_backend: BackendPlan) -> Result<(), String> {
    Ok(())
}

/// That no two ranks compute on one GPU, or why they cannot use NCCL: each says which is its own, or nothing if it has no NCCL.
#[cfg(any(feature = "cuda", test))]
fn are_apart(gpus: &[Vec<u8>]) -> Result<(), String> {
    if let Some(rank) = gpus.iter().position(Vec::is_empty) {
        return Err(format!(
            "rank {rank} has no NCCL, or its driver does not tell which GPU it has"
        ));
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(earlier) = gpus[..rank].iter().position(|other| other == gpu) {
            return Err(format!(
                "ranks {earlier} and {rank} compute on the same GPU, which it refuses"
            ));
        }
    }
    Ok(())
}

/// Joins the group that the plan describes. `fd` is the shared mapping, zeroed when it was made; `solo` needs none.
/// No rank waits longer than `timeout` for another.
///
/// # Errors
///
/// [`Error::Mapping`]: the descriptor is missing, too small for the world, or cannot be mapped.
pub fn open(
    backend: BackendPlan,
    rank: Rank,
    world: WorldSize,
    fd: Option<OwnedFd>,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    match backend {
        BackendPlan::Solo if world == WorldSize::ONE => Ok(Arc::new(solo::Solo::default())),
        BackendPlan::Solo => Err(Error::mapping(format!("{world} ranks cannot share `solo`"))),
        BackendPlan::Shm { mapping } => {
            let fd = fd.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
            Ok(Arc::new(shm::Shm::open(&fd, mapping, rank, world, timeout)?))
        }
        BackendPlan::Nccl { .. } => Err(Error::mapping("`nccl` is opened on a GPU")),
        BackendPlan::Tcp => Err(Error::Lines { what: "none were received".to_owned() }),
    }
}

/// The group, whose reductions go in the half precision of `hook`, if there is one. A world of one sends nothing and stays as it is, and
/// so does a group that sums on GPUs, which got its hook when it was opened.
pub fn compressed(group: Arc<dyn Collective>, hook: CommHook) -> Arc<dyn Collective> {
    if hook == CommHook::None || group.world_size() == WorldSize::ONE {
        return group;
    }
    Arc::new(compressed::Compressed::new(group, hook))
}

/// Joins a group whose ranks share no memory, through the connections to all its other ranks. No rank waits longer
/// than `timeout` for another that shows no move.
///
/// # Errors
///
/// [`Error::Lines`]: a connection is missing, or cannot be used.
pub fn open_tcp(
    rank: Rank,
    world: WorldSize,
    peers: Vec<Peer>,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    Ok(Arc::new(tcp::Tcp::open(rank, world, peers, timeout)?))
}

/// What two ranks compare to know that they mean segments of the same lengths.
fn lengths_tag(lengths: &[usize]) -> u64 {
    let bytes: Vec<u8> = lengths.iter().flat_map(|&n| (n as u64).to_le_bytes()).collect();
    let hash = blake3::hash(&bytes);
    hash.as_bytes()[..8].iter().fold(0, |tag, &byte| tag << 8 | u64::from(byte))
}

/// What a rank does in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Collective::segments`]: lengths are compared.
    Segments,
    /// [`Collective::all_reduce`]
    AllReduce,
    /// [`Collective::broadcast`]
    Broadcast,
    /// [`Collective::all_gather`]
    AllGather,
    /// [`Collective::barrier`]
    Barrier,
    /// Sums that a library makes on devices; it is only named, never compared.
    SumOnDevices,
}

impl Op {
    const ALL: [Self; 5] =
        [Self::Segments, Self::AllReduce, Self::Broadcast, Self::AllGather, Self::Barrier];

    /// What stands for it where only numbers can.
    fn code(self) -> u64 {
        self as u64 + 1
    }

    fn of_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }
}

/// One call of a rank: what is compared between ranks before data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Position in the sequence of the group's calls, from 1.
    pub seq: u64,
    /// Which operation.
    pub op: Op,
    /// Its length; 0 where lengths may differ.
    pub bytes: Bytes,
    /// Segment of an `all_reduce`; hash of all lengths for `segments`; else 0.
    pub tag: u64,
}

/// A rank that did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The rank.
    pub rank: Rank,
    /// Calls that it has begun.
    pub begun: u64,
}

/// Why a collective failed. Any of them ends the group.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Some ranks did not come within the deadline.
    #[error("no sign of {} after {:.1} s in {call}", list(missing), waited.as_secs_f64())]
    Timeout {
        /// What this rank waits in.
        call: Call,
        /// Who is missing.
        missing: Vec<Missing>,
        /// How long this rank waited.
        waited: Duration,
    },
    /// The connection to a rank ended: its process, its machine or the network is gone.
    #[error("the connection to rank {rank} on {address} ended in {call}: {why}")]
    Gone {
        /// The rank.
        rank: Rank,
        /// Its machine.
        address: String,
        /// What this rank was in.
        call: Call,
        /// The system's reason.
        why: String,
    },
    /// The connections to the other ranks cannot be used.
    #[error("the connections to the other ranks cannot be used: {what}")]
    Lines {
        /// What is wrong with them.
        what: String,
    },
    /// Ranks make different calls.
    #[error("rank {} is in {}, but rank {} is in {}", first.0, first.1, second.0, second.1)]
    Mismatch {
        /// Rank 0, or the lower one of two, and its call.
        first: (Rank, Call),
        /// The first rank that differs, and its call.
        second: (Rank, Call),
    },
    /// A rank ended the group.
    #[error("rank {by} ended the group: {reason}")]
    Aborted {
        /// Who.
        by: Rank,
        /// Why, in its words.
        reason: String,
    },
    /// NCCL failed, or a rank did not come to its sums in time.
    #[error("NCCL: {what}")]
    Nccl {
        /// What, in NCCL's words or ours.
        what: String,
    },
    /// The shared mapping cannot be used.
    #[error("the shared mapping cannot be used: {what}")]
    Mapping {
        /// What is wrong with it.
        what: String,
        /// The system's reason, if it refused.
        #[source]
        source: Option<Arc<std::io::Error>>,
    },
}

impl Error {
    /// The ranks that did not come in time.
    pub fn missing(&self) -> &[Missing] {
        match self {
            Self::Timeout { missing, .. } => missing,
            _ => &[],
        }
    }

    fn mapping(what: impl Into<String>) -> Self {
        Self::Mapping { what: what.into(), source: None }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segments => "segments",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::SumOnDevices => "sum on devices",
        })
    }
}

impl fmt::Display for Call {
    /// `` `all_reduce` (call 414, 25.00 MiB, bucket 3) ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (call {}", self.op, self.seq)?;
        if self.bytes.0 > 0 {
            write!(f, ", {}", self.bytes)?;
        }
        if self.op == Op::AllReduce {
            write!(f, ", bucket {}", self.tag)?;
        }
        f.write_str(")")
    }
}

fn list(missing: &[Missing]) -> String {
    let each = missing.iter().map(|m| format!("rank {} (in call {})", m.rank, m.begun));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::are_apart;

    #[test]
    fn gpus_are_apart_if_all_are_known_and_none_is_there_twice() {
        let apart = |names: &[&str]| {
            let gpus: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            are_apart(&gpus)
        };
        assert_eq!(apart(&["a", "c", "b"]), Ok(()));
        let shared = apart(&["a", "b", "a"]).unwrap_err();
        assert!(shared.starts_with("ranks 0 and 2 compute on the same GPU"), "{shared}");
        let without = apart(&["a", ""]).unwrap_err();
        assert!(without.starts_with("rank 1 has no NCCL"), "{without}");
    }
}
