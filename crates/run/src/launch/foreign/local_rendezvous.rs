//! The ranks of a foreign launcher on one machine find each other: the first of them sends plan and
//! shared memory to the others.
//!
//! They connect to an abstract Unix socket, whose name identifies the launch and the machine. It
//! exists in memory only, ends with the first rank, needs no port (the launcher's own store holds
//! `MASTER_PORT`), and accepts only processes of the same user.
//!
//! ```text
//! rank r ──Hello {version, rank, world}──▶ first rank
//! rank r ◀──one byte (with the memory)──── first rank
//! rank r ◀──Welcome {plan, run} | Refused─ first rank
//! ```

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::launch::messages::{NoRun, PreparedRun};
use crate::launch::rank::env::ExternalRank;
use crate::launch::rank::peer_monitor::{MonitoredPeer, PeerMonitor};
use crate::transport::build_id;
use crate::transport::channel::{Channel, poll};
use crate::transport::shared_memory;
use crate::units::{Rank, WorldSize};

/// Longest wait for the others, where `distributed.timeout` is not known.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest time to send or receive what the other end waits for.
const SEND_TIMEOUT: Duration = Duration::from_mins(1);
/// Wait after which it is said for whom.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest wait of a rank for the first one to have the run, for which that may have to generate
/// data, and to meet other machines. Its death is noticed at once.
const PREPARE_TIMEOUT: Duration = Duration::from_hours(1);
/// Longest wait for the others to be told that there is no run.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to reach the first rank.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Deadline and messages while a rank waits for the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankWait {
    /// Longest wait for one that does not come: `distributed.timeout`.
    pub(crate) longest: Duration,
    /// Prints the ranks that it waits for.
    pub(crate) say: fn(&str),
}

impl Default for RankWait {
    fn default() -> Self {
        Self { longest: RENDEZVOUS_TIMEOUT, say: |_| () }
    }
}

impl RankWait {
    /// Prints once, after a while, the ranks that `rank` waits for. Returns when to look again.
    fn tell(self, rank: Rank, missing: &[Rank], began: Instant, is_told: &mut bool) -> Duration {
        let left = self.longest.saturating_sub(began.elapsed());
        let silence = SILENCE.saturating_sub(began.elapsed());
        if !silence.is_zero() {
            return left.min(silence);
        }
        if !std::mem::replace(is_told, true) {
            (self.say)(&format!(
                "rank {rank} waits for {}, for {:.0} s at most (`distributed.timeout`)",
                names(missing),
                self.longest.as_secs_f64()
            ));
        }
        left
    }
}

/// A failed rendezvous of the ranks of one machine.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The system refused.
    #[error("rank {rank} cannot {what}")]
    Io {
        rank: Rank,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// Ranks did not join.
    #[error("rank {rank} waited {:.0} s, but {} of {world} ranks did not come", waited.as_secs_f64(), names(missing))]
    Missing { rank: Rank, missing: Vec<Rank>, world: WorldSize, waited: Duration },
    /// A process that does not belong to this launch tried to join.
    #[error("a process claiming to be {claimed} does not belong to this group: {why}")]
    WrongProcess {
        /// The rank that it claimed to be.
        claimed: String,
        why: String,
    },
    /// The first rank has no run for this rank.
    #[error("{0}")]
    Refused(NoRun),
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    rank: Rank,
    world: WorldSize,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome(Box<PreparedRun>),
    Refused(NoRun),
}

/// Memory and connections of the ranks of one machine.
pub(in crate::launch) struct LocalGroup {
    /// The mapping, if there is more than one rank.
    pub(in crate::launch) memory: Option<OwnedFd>,
    /// The connections, kept open to notice the death of a rank.
    pub(in crate::launch) peer_monitor: PeerMonitor,
}

/// The first rank of the machine, which the others connect to.
pub(in crate::launch) struct Host<'a> {
    launch: &'a ExternalRank,
    listener: UnixListener,
}

impl<'a> Host<'a> {
    /// Starts listening.
    pub(in crate::launch) fn open(launch: &'a ExternalRank) -> Result<Self, RendezvousError> {
        let open = || -> io::Result<UnixListener> {
            let listener = UnixListener::bind_addr(&address(launch)?)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = open().map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => RendezvousError::WrongProcess {
                claimed: format!("rank {}", launch.rank),
                why: format!("another process already is, in the launch `{}`", launch.group),
            },
            _ => io_error(launch.rank, "listen for the other ranks")(source),
        })?;
        Ok(Self { launch, listener })
    }

    /// Sends the run, and new shared memory if there is more than one rank, to all, and keeps the
    /// connections.
    pub(in crate::launch) fn welcome(
        &self,
        prepared: &PreparedRun,
        say: fn(&str),
    ) -> Result<LocalGroup, RendezvousError> {
        let memory = prepared.plan.distributed.mapping().map(shared_memory);
        let memory =
            memory.transpose().map_err(io_error(self.launch.rank, "create shared memory"))?;
        let answer = Answer::Welcome(Box::new(prepared.clone()));
        let wait = RankWait { longest: prepared.plan.distributed.timeout, say };
        let peer_monitor = self.answer_all(&answer, memory.as_ref(), wait)?;
        Ok(LocalGroup { memory, peer_monitor })
    }

    /// Tells the ranks that connect soon that there is no run.
    pub(in crate::launch) fn refuse(&self, why: NoRun) {
        // A rank that connects later waits until its own timeout, and reports that.
        let wait = RankWait { longest: REFUSAL_TIMEOUT, say: |_| () };
        let _ = self.answer_all(&Answer::Refused(why), None, wait);
    }

    fn answer_all(
        &self,
        answer: &Answer,
        memory: Option<&OwnedFd>,
        wait: RankWait,
    ) -> Result<PeerMonitor, RendezvousError> {
        let ExternalRank { rank, world, .. } = *self.launch;
        let (began, mut is_told) = (Instant::now(), false);
        let mut joined = Vec::new();
        let ranks = rank.0..rank.0 + self.launch.machine().count.get();
        let mut missing: Vec<Rank> = ranks.skip(1).map(Rank).collect();
        while !missing.is_empty() {
            if began.elapsed() >= wait.longest {
                let waited = wait.longest;
                return Err(RendezvousError::Missing { rank, missing, world, waited });
            }
            let next = wait.tell(rank, &missing, began, &mut is_told);
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(next));
            let Ok((stream, _)) = self.listener.accept() else { continue };
            let Some((peer, channel)) = self.answer(stream, answer, memory, &missing)? else {
                continue;
            };
            missing.retain(|rank| *rank != peer);
            let peer = MonitoredPeer::new(peer, channel);
            joined.push(peer.map_err(io_error(rank, "identify a process that has joined"))?);
        }
        Ok(joined.into_iter().collect())
    }

    /// Answers one process; `None` if it belongs to another user or has left.
    fn answer(
        &self,
        stream: UnixStream,
        answer: &Answer,
        memory: Option<&OwnedFd>,
        missing: &[Rank],
    ) -> Result<Option<(Rank, Channel)>, RendezvousError> {
        if !is_same_user(&stream) {
            return Ok(None);
        }
        let Ok(mut channel) = Channel::new(stream) else { return Ok(None) };
        let Ok(hello) = channel.receive_one::<Hello>(REFUSAL_TIMEOUT) else { return Ok(None) };
        let refuse = |mut channel: Channel, why: &str| {
            // A process that has left gets no answer.
            let _ = send_memory(&channel, None);
            let _ = channel.send_all(&Answer::Refused(NoRun::unfit(why)), REFUSAL_TIMEOUT);
        };
        if let Some(why) = self.objection(&hello) {
            refuse(channel, &why);
            return Err(RendezvousError::WrongProcess {
                claimed: format!("rank {}", hello.rank),
                why,
            });
        }
        if !missing.contains(&hello.rank) {
            // The first one is already a member: the group continues without this one.
            refuse(channel, "this rank has already joined");
            return Ok(None);
        }
        let sent =
            send_memory(&channel, memory).and_then(|()| channel.send_all(answer, SEND_TIMEOUT));
        sent.map_err(io_error(self.launch.rank, "send the plan"))?;
        Ok(Some((hello.rank, channel)))
    }

    fn objection(&self, hello: &Hello) -> Option<String> {
        let ExternalRank { rank, world, .. } = *self.launch;
        if hello.version != build_id() {
            Some(format!("it is ddprun {}, but rank {rank} is {}", hello.version, build_id()))
        } else if hello.world != world {
            Some(format!("its world size is {}, but that of rank {rank} is {world}", hello.world))
        } else {
            None
        }
    }
}

/// Another rank: connects to the first one of its machine, and waits for the run.
pub(in crate::launch) fn join(
    launch: &ExternalRank,
    wait: RankWait,
) -> Result<(PreparedRun, LocalGroup), RendezvousError> {
    let ExternalRank { rank, world, .. } = *launch;
    let first = launch.machine().first;
    let stream = connect(launch, wait)?;
    if !is_same_user(&stream) {
        let why = "it belongs to another user".to_owned();
        return Err(RendezvousError::WrongProcess { claimed: format!("rank {first}"), why });
    }
    let lost = |source: io::Error| match source.kind() {
        ErrorKind::TimedOut => {
            RendezvousError::Missing { rank, missing: vec![first], world, waited: PREPARE_TIMEOUT }
        }
        _ => io_error(rank, "receive the plan from the first rank of its machine")(source),
    };
    let mut channel = Channel::new(stream).map_err(lost)?;
    let hello = Hello { version: build_id().to_owned(), rank, world };
    channel.send_all(&hello, SEND_TIMEOUT).map_err(lost)?;
    let memory = receive_memory(&channel).map_err(lost)?;
    match channel.receive_one(SEND_TIMEOUT).map_err(lost)? {
        Answer::Welcome(prepared) => {
            let first = MonitoredPeer::new(first, channel).map_err(lost)?;
            let peer_monitor = std::iter::once(first).collect();
            Ok((*prepared, LocalGroup { memory, peer_monitor }))
        }
        Answer::Refused(why) => Err(RendezvousError::Refused(why)),
    }
}

/// Connects to the first rank, which may start later than this one.
fn connect(launch: &ExternalRank, wait: RankWait) -> Result<UnixStream, RendezvousError> {
    let ExternalRank { rank, world, .. } = *launch;
    let address = address(launch).map_err(io_error(rank, "name the socket of its machine"))?;
    let missing = vec![launch.machine().first];
    let (began, mut is_told) = (Instant::now(), false);
    while began.elapsed() < wait.longest {
        let _ = wait.tell(rank, &missing, began, &mut is_told);
        match UnixStream::connect_addr(&address) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(error) => return Err(io_error(rank, "reach the first rank of its machine")(error)),
        }
    }
    Err(RendezvousError::Missing { rank, missing, world, waited: wait.longest })
}

fn address(launch: &ExternalRank) -> io::Result<SocketAddr> {
    let user = rustix::process::geteuid().as_raw();
    // Two machines of a launch may be containers that share a network.
    let group = format!("{}/{}", launch.group, launch.machine().first);
    // Any user of the machine could take a name that they can guess.
    let secret = files::user_secret().unwrap_or_default();
    let group = blake3::hash(&[group.as_bytes(), &secret].concat()).to_hex();
    SocketAddr::from_abstract_name(format!("ddprun-{user}-{}", &group[..32]))
}

fn is_same_user(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Sends one byte, which carries the descriptor.
fn send_memory(to: &Channel, memory: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = memory.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(to.as_fd(), &[IoSlice::new(b"+")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_memory(from: &Channel) -> io::Result<Option<OwnedFd>> {
    let began = Instant::now();
    loop {
        let left = PREPARE_TIMEOUT.checked_sub(began.elapsed()).ok_or(ErrorKind::TimedOut)?;
        poll(&mut [PollFd::new(from, PollFlags::IN)], Some(left))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(from.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                return Ok(ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                    _ => None,
                }));
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn io_error(rank: Rank, what: &'static str) -> impl Fn(io::Error) -> RendezvousError {
    move |source| RendezvousError::Io { rank, what, source }
}

fn names(missing: &[Rank]) -> String {
    let names: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    names.join(", ")
}
