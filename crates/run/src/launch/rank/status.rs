//! Progress of each rank, in a few bytes that outlive it: a rank that was killed cannot report it.
//!
//! An anonymous file holds four numbers for each rank: `step << 8 | phase`, its progress reports,
//! its heartbeats, and the bytes of memory that it was denied. A rank writes its own (one system
//! call, no lock, no reader to wake); the parent reads them a few times a second, and once more
//! when the rank is gone. Before them are the heartbeats of the parent.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::launch::Phase;

use crate::memory;
use crate::transport::shared_memory;
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes of the parent's heartbeats.
const HEADER_BYTES: u64 = 8;
/// Bytes of a rank.
const SLOT_BYTES: u64 = 32;
/// Offset of the heartbeats in a slot.
const HEARTBEATS_OFFSET: u64 = 16;
/// Offset of the denied bytes in a slot.
const DENIED_OFFSET: u64 = 24;

/// The status file of a group.
pub(in crate::launch) struct RankStatus(File);

/// The state of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::launch) struct RankState {
    /// Last step begun.
    pub(in crate::launch) step: u64,
    pub(in crate::launch) phase: Phase,
    /// Number of its progress reports; each sample that its loader reads is one.
    pub(in crate::launch) progress: u64,
    /// Number of its heartbeats; 0 while its process is being loaded.
    pub(in crate::launch) heartbeats: u64,
}

impl RankStatus {
    /// All ranks at step 0, starting.
    pub(in crate::launch) fn new(world: WorldSize) -> io::Result<Self> {
        shared_memory(Bytes(HEADER_BYTES + SLOT_BYTES * u64::from(world.get()))).map(Self::from)
    }

    /// Writes where `rank` is. Errors are ignored: a lost report is no reason to stop training.
    pub(in crate::launch) fn write(&self, rank: Rank, step: u64, phase: Phase, progress: u64) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(step << 8 | phase as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&progress.to_le_bytes());
        let _ = self.0.write_all_at(&bytes, offset(rank));
    }

    /// Writes the number of heartbeats of `rank`.
    pub(in crate::launch) fn write_heartbeats(&self, rank: Rank, heartbeats: u64) {
        let _ = self.0.write_all_at(&heartbeats.to_le_bytes(), offset(rank) + HEARTBEATS_OFFSET);
    }

    /// Writes the number of heartbeats of the parent.
    pub(in crate::launch) fn write_parent_heartbeats(&self, heartbeats: u64) {
        let _ = self.0.write_all_at(&heartbeats.to_le_bytes(), 0);
    }

    /// Number of heartbeats of the parent.
    pub(in crate::launch) fn parent_heartbeats(&self) -> u64 {
        self.at(0)
    }

    /// Makes the allocator of this process, `rank`, record allocations that the system denies.
    pub(in crate::launch) fn record_denials(&self, rank: Rank) -> io::Result<()> {
        memory::write_denials_to(self.0.try_clone()?, offset(rank) + DENIED_OFFSET);
        Ok(())
    }

    /// Bytes of memory that the process of `rank` asked for last and was denied; 0 = none.
    pub(in crate::launch) fn denied(&self, rank: Rank) -> Bytes {
        Bytes(self.number(rank, DENIED_OFFSET))
    }

    fn number(&self, rank: Rank, at: u64) -> u64 {
        self.at(offset(rank) + at)
    }

    fn at(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        // What cannot be read counts as 0, the start.
        let _ = self.0.read_exact_at(&mut bytes, offset);
        u64::from_le_bytes(bytes)
    }

    /// The last state of `rank`.
    pub(in crate::launch) fn read(&self, rank: Rank) -> RankState {
        let number = |at| self.number(rank, at);
        let (place, progress, heartbeats) = (number(0), number(8), number(HEARTBEATS_OFFSET));
        RankState { step: place >> 8, phase: Phase::from_number(place as u8), progress, heartbeats }
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
    HEADER_BYTES + SLOT_BYTES * u64::from(rank.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_state_is_read_and_other_ranks_stay_at_the_start() {
        let rank_status = RankStatus::new(WorldSize::new(2).unwrap()).unwrap();
        rank_status.write(Rank(1), 1 << 40, Phase::Saving, 9);
        rank_status.write_heartbeats(Rank(1), 3);
        rank_status.write_parent_heartbeats(5);
        let saving = RankState { step: 1 << 40, phase: Phase::Saving, progress: 9, heartbeats: 3 };
        assert_eq!(rank_status.read(Rank(1)), saving);
        assert_eq!(rank_status.read(Rank(0)), RankState::default());
        assert_eq!(rank_status.parent_heartbeats(), 5);
    }
}
