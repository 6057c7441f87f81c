//! Where each rank is, in a few bytes that outlive it: a rank that is killed cannot tell any more.
//!
//! One anonymous file holds 8 bytes per rank, `step << 8 | phase`. A rank writes its own (one system call, no
//! lock, no reader to wake), the parent reads them when it looks, and once more when the rank is gone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::launch::{Phase, shared_memory};
use crate::units::{Bytes, Rank, WorldSize};

/// The file of a group.
pub(super) struct Whereabouts(File);

impl Whereabouts {
    /// All ranks at step 0, starting.
    pub(super) fn new(world: WorldSize) -> io::Result<Self> {
        shared_memory(Bytes(8 * u64::from(world.get()))).map(Self::from)
    }

    /// Writes where `rank` is. A lost note is no reason to stop training: errors are not told.
    pub(super) fn write(&self, rank: Rank, step: u64, phase: Phase) {
        let _ = self.0.write_all_at(&(step << 8 | phase as u64).to_le_bytes(), offset(rank));
    }

    /// Where `rank` said it is.
    pub(super) fn read(&self, rank: Rank) -> (u64, Phase) {
        let mut bytes = [0; 8];
        // Unreadable reads as the start, which is what is known then.
        let _ = self.0.read_exact_at(&mut bytes, offset(rank));
        (u64::from_le_bytes(bytes) >> 8, Phase::from_number(bytes[0]))
    }
}

impl From<OwnedFd> for Whereabouts {
    fn from(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }
}

impl AsFd for Whereabouts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn offset(rank: Rank) -> u64 {
    8 * u64::from(rank.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_wrote_is_read_and_the_others_stay_at_the_start() {
        let whereabouts = Whereabouts::new(WorldSize::new(2).unwrap()).unwrap();
        whereabouts.write(Rank(1), 1 << 40, Phase::Saving);
        assert_eq!(whereabouts.read(Rank(1)), (1 << 40, Phase::Saving));
        assert_eq!(whereabouts.read(Rank(0)), (0, Phase::Starting));
    }
}
