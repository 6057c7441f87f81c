//! The other ranks of a foreign launcher, as one rank sees them: no parent of ours is there to notice that one died.
//!
//! The connections of the meeting (`foreign`) stay open: one between rank 0 and each other rank. Who leaves says whether it
//! has finished or failed; a connection that ends without a word is a death, and the system closes it at once.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use crate::launch::messages::FromRank;
use crate::transport::channel::Channel;
use crate::units::Rank;

/// Those whom this rank is connected to: all others for rank 0, rank 0 for the others. Empty where a parent watches, and
/// where ranks are connected over the network.
#[derive(Default)]
pub(in crate::launch) struct PeerMonitor(Vec<Fellow>);

/// Another rank that has work left.
pub(in crate::launch) struct Fellow {
    rank: Rank,
    pid: u32,
    channel: Channel,
}

impl Fellow {
    /// The rank at the other end of `channel`.
    pub(in crate::launch) fn new(rank: Rank, channel: Channel) -> io::Result<Self> {
        let pid = rustix::net::sockopt::socket_peercred(&channel)?.pid;
        Ok(Self { rank, pid: pid.as_raw_nonzero().get().unsigned_abs(), channel })
    }

    /// What became of it since the last call: nothing, or why it is lost, or that it has finished.
    fn hear(&mut self) -> Fate {
        let Self { rank, pid, channel } = self;
        // What is no message comes from no rank of ours that could go on.
        let words = channel.receive::<FromRank>();
        for word in words.as_deref().unwrap_or_default() {
            match word {
                FromRank::Finished => return Fate::Finished,
                FromRank::Failed(report) => {
                    return Fate::Lost(format!("rank {rank} failed: {}", report.message));
                }
                FromRank::Saved => {}
            }
        }
        if words.is_err() || channel.is_closed() {
            return Fate::Lost(format!("rank {rank} (pid {pid}) died"));
        }
        Fate::Open
    }
}

enum Fate {
    Open,
    Finished,
    Lost(String),
}

impl PeerMonitor {
    /// What to wait for.
    pub(in crate::launch) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|fellow| PollFd::new(&fellow.channel, PollFlags::IN))
    }

    /// The same connections once more, to speak into from another thread.
    pub(in crate::launch) fn voices(&self) -> io::Result<Vec<Channel>> {
        let voice = |fellow: &Fellow| Channel::new(fellow.channel.as_fd().try_clone_to_owned()?);
        self.0.iter().map(voice).collect()
    }

    /// Why the group cannot go on, if a rank was lost since the last call.
    pub(in crate::launch) fn hear(&mut self) -> Option<String> {
        let mut lost = None;
        self.0.retain_mut(|fellow| match fellow.hear() {
            Fate::Open => true,
            Fate::Finished => false,
            Fate::Lost(why) => {
                lost.get_or_insert(why);
                false
            }
        });
        lost
    }
}

impl FromIterator<Fellow> for PeerMonitor {
    fn from_iter<I: IntoIterator<Item = Fellow>>(peer_monitor: I) -> Self {
        Self(peer_monitor.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn connected() -> (PeerMonitor, Channel) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fellow = Fellow::new(Rank(3), Channel::new(ours).unwrap()).unwrap();
        ([fellow].into_iter().collect(), Channel::new(theirs).unwrap())
    }

    #[test]
    fn a_rank_that_leaves_without_a_word_died_and_one_that_has_finished_did_not() {
        let (mut peer_monitor, theirs) = connected();
        assert_eq!(peer_monitor.hear(), None);
        drop(theirs);
        let pid = std::process::id();
        assert_eq!(peer_monitor.hear().unwrap(), format!("rank 3 (pid {pid}) died"));
        assert_eq!(peer_monitor.hear(), None, "it is told once");
        let (mut peer_monitor, mut theirs) = connected();
        theirs.send(&FromRank::Saved).unwrap();
        theirs.send(&FromRank::Finished).unwrap();
        drop(theirs);
        assert_eq!(peer_monitor.hear(), None);
        assert_eq!(peer_monitor.fds().count(), 0);
    }

    #[test]
    fn what_is_no_message_is_a_rank_that_is_lost() {
        let (mut peer_monitor, theirs) = connected();
        rustix::io::write(&theirs, &[0xff; 64]).unwrap();
        assert!(peer_monitor.hear().unwrap().ends_with(" died"));
    }
}
