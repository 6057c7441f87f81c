//! Notices the death of other ranks under a foreign launcher, where no parent of ours does.
//!
//! The connections of the rendezvous (`foreign`) stay open: one between rank 0 and each other rank.
//! A rank that leaves reports whether it has finished or failed. A connection that ends without a
//! report is a death: the system closes it at once.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use crate::launch::messages::FromRank;
use crate::transport::channel::Channel;
use crate::units::Rank;

/// The ranks that this rank is connected to: all others for rank 0, rank 0 for the others. Empty
/// where a parent watches, and where ranks are connected over the network.
#[derive(Default)]
pub(in crate::launch) struct PeerMonitor(Vec<MonitoredPeer>);

/// Another rank that has work left.
pub(in crate::launch) struct MonitoredPeer {
    rank: Rank,
    pid: u32,
    channel: Channel,
}

impl MonitoredPeer {
    /// The rank at the other end of `channel`.
    pub(in crate::launch) fn new(rank: Rank, channel: Channel) -> io::Result<Self> {
        let pid = rustix::net::sockopt::socket_peercred(&channel)?.pid;
        Ok(Self { rank, pid: pid.as_raw_nonzero().get().unsigned_abs(), channel })
    }

    /// Reads its messages since the last call.
    fn check(&mut self) -> PeerState {
        let Self { rank, pid, channel } = self;
        // A rank that sends anything but messages cannot continue.
        let messages = channel.receive::<FromRank>();
        for message in messages.as_deref().unwrap_or_default() {
            match message {
                FromRank::Finished => return PeerState::Finished,
                FromRank::Failed(report) => {
                    return PeerState::Lost(format!("rank {rank} failed: {}", report.message));
                }
                FromRank::Saved | FromRank::Event(_) => {}
            }
        }
        if messages.is_err() || channel.is_closed() {
            return PeerState::Lost(format!("rank {rank} (pid {pid}) died"));
        }
        PeerState::Alive
    }
}

enum PeerState {
    Alive,
    Finished,
    Lost(String),
}

impl PeerMonitor {
    /// The descriptors to poll.
    pub(in crate::launch) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|peer| PollFd::new(&peer.channel, PollFlags::IN))
    }

    /// The same connections, to send from another thread.
    pub(in crate::launch) fn clone_channels(&self) -> io::Result<Vec<Channel>> {
        let clone = |peer: &MonitoredPeer| Channel::new(peer.channel.as_fd().try_clone_to_owned()?);
        self.0.iter().map(clone).collect()
    }

    /// Returns the reason why the group cannot continue, if a rank was lost since the last call.
    pub(in crate::launch) fn check(&mut self) -> Option<String> {
        let mut lost = None;
        self.0.retain_mut(|peer| match peer.check() {
            PeerState::Alive => true,
            PeerState::Finished => false,
            PeerState::Lost(why) => {
                lost.get_or_insert(why);
                false
            }
        });
        lost
    }
}

impl FromIterator<MonitoredPeer> for PeerMonitor {
    fn from_iter<I: IntoIterator<Item = MonitoredPeer>>(peers: I) -> Self {
        Self(peers.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn connected() -> (PeerMonitor, Channel) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = MonitoredPeer::new(Rank(3), Channel::new(ours).unwrap()).unwrap();
        ([peer].into_iter().collect(), Channel::new(theirs).unwrap())
    }

    #[test]
    fn a_rank_that_leaves_without_a_report_died_and_one_that_has_finished_did_not() {
        let (mut peer_monitor, theirs) = connected();
        assert_eq!(peer_monitor.check(), None);
        drop(theirs);
        let pid = std::process::id();
        assert_eq!(peer_monitor.check().unwrap(), format!("rank 3 (pid {pid}) died"));
        assert_eq!(peer_monitor.check(), None, "it is reported once");
        let (mut peer_monitor, mut theirs) = connected();
        theirs.send(&FromRank::Saved).unwrap();
        theirs.send(&FromRank::Finished).unwrap();
        drop(theirs);
        assert_eq!(peer_monitor.check(), None);
        assert_eq!(peer_monitor.fds().count(), 0);
    }

    #[test]
    fn a_rank_that_sends_garbage_is_lost() {
        let (mut peer_monitor, theirs) = connected();
        rustix::io::write(&theirs, &[0xff; 64]).unwrap();
        assert!(peer_monitor.check().unwrap().ends_with(" died"));
    }
}
