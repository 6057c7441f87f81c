//! Ranks of a foreign launcher find each other: rank 0 hands plan and shared memory to the others.
//!
//! They meet at an abstract Unix socket, named after what only this launch has in common. It exists in memory
//! only, ends with rank 0, needs no port (the launcher's own store holds `MASTER_PORT`), and
//! admits processes of the same user only.
//!
//! ```text
//! rank r ──Hello {version, rank, world}──▶ rank 0
//! rank r ◀──one byte (with the memory)──── rank 0
//! rank r ◀──Welcome {plan, run} | Refused─ rank 0
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

use crate::launch::join::Made;
use crate::launch::rank::env::Foreign;
use crate::launch::rank::peer_monitor::{Fellow, PeerMonitor};
use crate::transport::build_id::identity;
use crate::transport::channel::{Channel, poll};
use crate::transport::shared_memory;
use crate::units::{Rank, WorldSize};

/// Longest wait for the others.
const PATIENCE: Duration = Duration::from_mins(1);
/// Longest wait of a rank for rank 0 to make the run: data may have to be generated first.
const MAKE_PATIENCE: Duration = Duration::from_mins(15);
/// Longest wait for those who come to hear that there is no run.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries to reach rank 0.
const RETRY: Duration = Duration::from_millis(20);

/// Why the ranks did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("rank {rank} cannot {what}")]
    Io {
        /// This rank.
        rank: Rank,
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A rank did not come.
    #[error("rank {rank} waited {:.0} s, but {} of {world} ranks did not come", waited.as_secs_f64(), names(missing))]
    Missing {
        /// This rank.
        rank: Rank,
        /// Who is missing.
        missing: Vec<Rank>,
        /// All ranks.
        world: WorldSize,
        /// How long.
        waited: Duration,
    },
    /// A process came that does not belong here.
    #[error("a process that says it is {came} does not fit this group: {why}")]
    Stranger {
        /// As whom.
        came: String,
        /// Why not.
        why: String,
    },
    /// Rank 0 has no run for us.
    #[error("rank 0 could not prepare the run: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    rank: Rank,
    world: WorldSize,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Made>),
    Refused(String),
}

/// Rank 0, where the others come to.
pub(in crate::launch) struct Host<'a> {
    place: &'a Foreign,
    listener: UnixListener,
}

impl<'a> Host<'a> {
    /// Opens the meeting place.
    pub(in crate::launch) fn open(place: &'a Foreign) -> Result<Self, Error> {
        let open = || -> io::Result<UnixListener> {
            let listener = UnixListener::bind_addr(&address(place)?)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = open().map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => Error::Stranger {
                came: "rank 0".to_owned(),
                why: format!("another process already is, in the launch `{}`", place.group),
            },
            _ => io_error(place.rank, "open the meeting place")(source),
        })?;
        Ok(Self { place, listener })
    }

    /// Hands the run, and new shared memory if there is more than one rank, to all, and keeps the connections.
    pub(in crate::launch) fn welcome(
        &self,
        made: &Made,
    ) -> Result<(Option<OwnedFd>, PeerMonitor), Error> {
        let memory = made.0.distributed.backend.mapping().map(shared_memory);
        let memory = memory.transpose().map_err(io_error(self.place.rank, "make shared memory"))?;
        let answer = Answer::Welcome(Box::new(made.clone()));
        let peer_monitor = self.answer_all(&answer, memory.as_ref(), PATIENCE)?;
        Ok((memory, peer_monitor))
    }

    /// Tells all who come soon that there is no run.
    pub(in crate::launch) fn refuse(&self, reason: &str) {
        // A rank that does not come in time waits for us until its own deadline, and says so.
        let _ = self.answer_all(&Answer::Refused(reason.to_owned()), None, REFUSAL_PATIENCE);
    }

    fn answer_all(
        &self,
        answer: &Answer,
        memory: Option<&OwnedFd>,
        patience: Duration,
    ) -> Result<PeerMonitor, Error> {
        let Foreign { rank, world, .. } = *self.place;
        let began = Instant::now();
        let mut here = Vec::new();
        let mut missing: Vec<Rank> = (1..world.get()).map(Rank).collect();
        while !missing.is_empty() {
            let left = patience.checked_sub(began.elapsed());
            let left = left.ok_or_else(|| Error::Missing {
                rank,
                missing: missing.clone(),
                world,
                waited: patience,
            })?;
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(left));
            let Ok((stream, _)) = self.listener.accept() else { continue };
            let Some((came, channel)) = self.answer(stream, answer, memory, &missing)? else {
                continue;
            };
            missing.retain(|rank| *rank != came);
            here.push(Fellow::new(came, channel).map_err(io_error(rank, "tell who has come"))?);
        }
        Ok(here.into_iter().collect())
    }

    /// Answers one process; `None` if it is of another user or left again.
    fn answer(
        &self,
        stream: UnixStream,
        answer: &Answer,
        memory: Option<&OwnedFd>,
        missing: &[Rank],
    ) -> Result<Option<(Rank, Channel)>, Error> {
        if !is_same_user(&stream) {
            return Ok(None);
        }
        let Ok(mut channel) = Channel::new(stream) else { return Ok(None) };
        let Ok(hello) = channel.receive_one::<Hello>(REFUSAL_PATIENCE) else { return Ok(None) };
        let refuse = |mut channel: Channel, why: &str| {
            // A process that left meanwhile needs no answer.
            let _ = send_memory(&channel, None);
            let _ = channel.send_all(&Answer::Refused(why.to_owned()), REFUSAL_PATIENCE);
        };
        if let Some(why) = self.objection(&hello) {
            refuse(channel, &why);
            return Err(Error::Stranger { came: format!("rank {}", hello.rank), why });
        }
        if !missing.contains(&hello.rank) {
            // The one that came first is good: the group goes on without this one.
            refuse(channel, "this rank has already joined");
            return Ok(None);
        }
        let sent = send_memory(&channel, memory).and_then(|()| channel.send_all(answer, PATIENCE));
        sent.map_err(io_error(self.place.rank, "hand over the plan"))?;
        Ok(Some((hello.rank, channel)))
    }

    fn objection(&self, hello: &Hello) -> Option<String> {
        let world = self.place.world;
        if hello.version != identity() {
            Some(format!("it is ddprun {}, but rank 0 is {}", hello.version, identity()))
        } else if hello.world != world {
            Some(format!("its world size is {}, but that of rank 0 is {world}", hello.world))
        } else {
            None
        }
    }
}

/// Another rank: goes to rank 0, and waits there for the run.
pub(in crate::launch) fn receive(
    place: &Foreign,
) -> Result<(Made, Option<OwnedFd>, PeerMonitor), Error> {
    let Foreign { rank, world, .. } = *place;
    let stream = reach(place)?;
    if !is_same_user(&stream) {
        let why = "it belongs to another user".to_owned();
        return Err(Error::Stranger { came: "rank 0".to_owned(), why });
    }
    let lost = |source: io::Error| match source.kind() {
        ErrorKind::TimedOut => {
            Error::Missing { rank, missing: vec![Rank(0)], world, waited: MAKE_PATIENCE }
        }
        _ => io_error(rank, "receive the plan from rank 0")(source),
    };
    let mut channel = Channel::new(stream).map_err(lost)?;
    let hello = Hello { version: identity().to_owned(), rank, world };
    channel.send_all(&hello, PATIENCE).map_err(lost)?;
    let memory = receive_memory(&channel).map_err(lost)?;
    match channel.receive_one(PATIENCE).map_err(lost)? {
        Answer::Welcome(made) => {
            let first = Fellow::new(Rank(0), channel).map_err(lost)?;
            Ok((*made, memory, std::iter::once(first).collect()))
        }
        Answer::Refused(reason) => Err(Error::Refused { reason }),
    }
}

/// Connects to rank 0, which may start later than this rank.
fn reach(place: &Foreign) -> Result<UnixStream, Error> {
    let Foreign { rank, world, .. } = *place;
    let address = address(place).map_err(io_error(rank, "name the meeting place"))?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match UnixStream::connect_addr(&address) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(RETRY),
            Err(error) => return Err(io_error(rank, "reach rank 0")(error)),
        }
    }
    Err(Error::Missing { rank, missing: vec![Rank(0)], world, waited: PATIENCE })
}

fn address(place: &Foreign) -> io::Result<SocketAddr> {
    let user = rustix::process::geteuid().as_raw();
    let group = blake3::hash(place.group.as_bytes()).to_hex();
    SocketAddr::from_abstract_name(format!("ddprun-{user}-{}", &group[..32]))
}

fn is_same_user(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// One byte, which carries the descriptor.
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
        let left = MAKE_PATIENCE.checked_sub(began.elapsed()).ok_or(ErrorKind::TimedOut)?;
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

fn io_error(rank: Rank, what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { rank, what, source }
}

fn names(missing: &[Rank]) -> String {
    let names: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    names.join(", ")
}
