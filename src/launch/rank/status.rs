//! Where each rank is, in a few bytes that outlive it: a rank that is killed cannot tell any more.
//!
//! One anonymous file holds four numbers per rank: its place (`step << 8 | phase`), how often it has said
//! where it is, how often its process has shown that it lives, and the bytes of memory that it was denied. A rank writes its own (one system call, no
//! lock, no reader to wake), the parent reads them when it looks, and once more when the rank is gone. Before them is how often the
//! parent has looked, by which ranks see that it lives.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::launch::Phase;

use crate::memory;
use crate::transport::shared_memory;
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes of the parent.
const HEAD: u64 = 8;
/// Bytes of a rank.
const SLOT: u64 = 32;
/// Place of the count of signs of life in a slot.
const BEATS: u64 = 16;
/// Place of the bytes that were denied in a slot.
const DENIED: u64 = 24;

/// The file of a group.
pub(in crate::launch) struct RankStatus(File);

/// What a rank has said about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::launch) struct Sign {
    /// Last step begun.
    pub(in crate::launch) step: u64,
    pub(in crate::launch) phase: Phase,
    /// How often it has moved; by itself, or one sample of its loader.
    pub(in crate::launch) moves: u64,
    /// How often its process has shown that it lives; 0 = not yet.
    pub(in crate::launch) beats: u64,
}

impl RankStatus {
    /// All ranks at step 0, starting.
    pub(in crate::launch) fn new(world: WorldSize) -> io::Result<Self> {
        shared_memory(Bytes(HEAD + SLOT * u64::from(world.get()))).map(Self::from)
    }

    /// Writes where `rank` is after so many moves. A lost note is no reason to stop training: errors are not told.
    pub(in crate::launch) fn write(&self, rank: Rank, step: u64, phase: Phase, moves: u64) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(step << 8 | phase as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&moves.to_le_bytes());
        let _ = self.0.write_all_at(&bytes, offset(rank));
    }

    /// Writes that the process of `rank` has shown itself so often.
    pub(in crate::launch) fn beat(&self, rank: Rank, beats: u64) {
        let _ = self.0.write_all_at(&beats.to_le_bytes(), offset(rank) + BEATS);
    }

    /// Writes that the parent has looked so often.
    pub(in crate::launch) fn look(&self, looks: u64) {
        let _ = self.0.write_all_at(&looks.to_le_bytes(), 0);
    }

    /// How often the parent has looked.
    pub(in crate::launch) fn looks(&self) -> u64 {
        self.at(0)
    }

    /// Has the allocator of this process, which is that of `rank`, write down what the system denies it.
    pub(in crate::launch) fn note_denials(&self, rank: Rank) -> io::Result<()> {
        memory::write_denials_to(self.0.try_clone()?, offset(rank) + DENIED);
        Ok(())
    }

    /// Bytes of memory that the process of `rank` asked for last and was denied; 0 = none.
    pub(in crate::launch) fn denied(&self, rank: Rank) -> Bytes {
        Bytes(self.number(rank, DENIED))
    }

    fn number(&self, rank: Rank, at: u64) -> u64 {
        self.at(offset(rank) + at)
    }

    fn at(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        // Unreadable reads as the start, which is what is known then.
        let _ = self.0.read_exact_at(&mut bytes, offset);
        u64::from_le_bytes(bytes)
    }

    /// What `rank` said last.
    pub(in crate::launch) fn read(&self, rank: Rank) -> Sign {
        let number = |at| self.number(rank, at);
        let (place, moves, beats) = (number(0), number(8), number(BEATS));
        Sign { step: place >> 8, phase: Phase::from_number(place as u8), moves, beats }
    }
}

impl From<OwnedFd> for RankStatus {
    fn from(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }
}

impl AsFd for RankStatus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn offset(rank: Rank) -> u64 {
    HEAD + SLOT * u64::from(rank.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_wrote_is_read_and_the_others_stay_at_the_start() {
        let rank_status = RankStatus::new(WorldSize::new(2).unwrap()).unwrap();
        rank_status.write(Rank(1), 1 << 40, Phase::Saving, 9);
        rank_status.beat(Rank(1), 3);
        rank_status.look(5);
        let saving = Sign { step: 1 << 40, phase: Phase::Saving, moves: 9, beats: 3 };
        assert_eq!(rank_status.read(Rank(1)), saving);
        assert_eq!(rank_status.read(Rank(0)), Sign::default());
        assert_eq!(rank_status.looks(), 5);
    }
}
