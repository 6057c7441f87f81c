//! Where the ranks of a mapping meet: nobody goes on before all are here, nobody waits past the
//! deadline, and everyone learns what the others came for.
//!
//! The header is all zeros at first. `MET` counts the meetings that are complete and is the word that
//! ranks sleep on; its top bit says that the group has ended. Each rank counts its own arrivals on a
//! cache line of its own, so whoever waits can name those who are missing. The last to arrive (or
//! anyone who finds all arrived) completes the meeting.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::collective::mapping::Mapping;
use crate::collective::{Call, Error, Missing, Op};
use crate::units::{Bytes, Rank, WorldSize};

/// Most ranks whose slots fit the header.
pub(super) const MAX_WORLD: usize = 64;

/// Word: meetings completed, and the ended bit.
const MET: usize = 0;
/// Word: 1 + the rank that ended the group.
const ENDED_BY: usize = 64;
/// Length of the reason, then its bytes.
const REASON: usize = 32 << 10;
const REASON_BYTES: usize = 2048;
/// Slot of each rank: a line with its arrivals, then two lines with its calls of odd and even number.
const SLOTS: usize = 4096;
const SLOT: usize = 256;

const ENDED: u32 = 1 << 31;
const COUNT: u32 = ENDED - 1;
/// Looks before a rank goes to sleep, if every rank has a core: about 20 microseconds.
const SPINS: u32 = 500;
/// Longest sleep between two looks.
const NAP: Duration = Duration::from_secs(1);

/// One rank's seat at the meetings of its group.
pub(super) struct Seat {
    mapping: Arc<Mapping>,
    rank: Rank,
    world: WorldSize,
    timeout: Duration,
    spins: u32,
    arrivals: u32,
    seq: u64,
    failed: Option<Error>,
}

impl Seat {
    pub(super) fn new(
        mapping: Arc<Mapping>,
        rank: Rank,
        world: WorldSize,
        timeout: Duration,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if world.count() <= cores { SPINS } else { 0 };
        Self { mapping, rank, world, timeout, spins, arrivals: 0, seq: 0, failed: None }
    }

    /// Begins a call: meets all ranks and compares what they came for. `own` is a number that may differ between
    /// ranks; everyone's is returned, in rank order.
    pub(super) fn begin(
        &mut self,
        op: Op,
        bytes: usize,
        tag: u64,
        own: u64,
    ) -> Result<(Call, Vec<u64>), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.seq += 1;
        let call = Call { seq: self.seq, op, bytes: Bytes(bytes as u64), tag };
        // Two slots in turn: a rank that is one call ahead does not overwrite what others still read.
        let fields = [call.seq, code(op), call.bytes.0, call.tag, own];
        for (field, value) in fields.into_iter().enumerate() {
            self.mapping.long(field_at(self.rank, self.seq, field)).store(value, Relaxed);
        }
        self.meet(&call)?;
        let begun = self.compare();
        self.failed = begun.as_ref().err().cloned();
        begun.map(|own| (call, own))
    }

    /// Waits until every rank has arrived as often as this one.
    pub(super) fn meet(&mut self, call: &Call) -> Result<(), Error> {
        self.arrivals = (self.arrivals + 1) & COUNT;
        self.mapping.word(arrived(self.rank)).store(self.arrivals, SeqCst);
        let met = self.wait(call);
        self.failed = met.as_ref().err().cloned();
        met
    }

    fn wait(&self, call: &Call) -> Result<(), Error> {
        let met = self.mapping.word(MET);
        let (mut waited, mut spins) = (Duration::ZERO, self.spins);
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                self.complete();
            }
            let seen = met.load(SeqCst);
            if seen & COUNT == self.arrivals {
                return Ok(());
            }
            if seen & ENDED != 0 {
                return Err(ended(&self.mapping));
            }
            if spins > 0 {
                spins -= 1;
                std::hint::spin_loop();
            } else if waited >= self.timeout {
                return Err(self.give_up(call, missing, waited));
            } else {
                waited += sleep_on(met, seen, self.timeout.saturating_sub(waited));
            }
        }
    }

    /// Counts this meeting as complete and wakes those who sleep; only one of those who try succeeds.
    fn complete(&self) {
        let met = self.mapping.word(MET);
        let before = self.arrivals.wrapping_sub(1) & COUNT;
        if met.compare_exchange(before, self.arrivals, SeqCst, SeqCst).is_ok() {
            wake_all(&self.mapping);
        }
    }

    /// Those who have arrived less often than this rank.
    fn missing(&self) -> Vec<Missing> {
        let is_here = |rank: &Rank| {
            let theirs = self.mapping.word(arrived(*rank)).load(SeqCst);
            // One more than ours is possible: the meeting is complete and they are at the next one.
            theirs.wrapping_sub(self.arrivals) & COUNT <= 1
        };
        let missing = (0..self.world.get()).map(Rank).filter(|rank| !is_here(rank));
        missing.map(|rank| Missing { rank, begun: self.begun(rank) }).collect()
    }

    /// Number of the last call that `rank` has begun.
    fn begun(&self, rank: Rank) -> u64 {
        let seq = |parity| self.mapping.long(field_at(rank, parity, 0)).load(Relaxed);
        seq(0).max(seq(1))
    }

    fn give_up(&self, call: &Call, missing: Vec<Missing>, waited: Duration) -> Error {
        let error = Error::Timeout { call: *call, missing, waited };
        end(&self.mapping, self.rank, &error.to_string());
        error
    }

    /// After the meeting of a call: whether all ranks came for the same, and their own numbers.
    fn compare(&self) -> Result<Vec<u64>, Error> {
        let fields = |rank: Rank| -> [u64; 5] {
            let field = |field| self.mapping.long(field_at(rank, self.seq, field)).load(Relaxed);
            std::array::from_fn(field)
        };
        let ranks = || (0..self.world.get()).map(Rank);
        let first = fields(Rank(0));
        if let Some(other) = ranks().find(|&rank| fields(rank)[..4] != first[..4]) {
            let second = (other, call(other, &fields(other))?);
            return Err(Error::Mismatch { first: (Rank(0), call(Rank(0), &first)?), second });
        }
        Ok(ranks().map(|rank| fields(rank)[4]).collect())
    }
}

/// Ends the group, unless it has ended: all who wait, and all who come, get `reason`.
pub(super) fn end(mapping: &Mapping, by: Rank, reason: &str) {
    if mapping.word(ENDED_BY).compare_exchange(0, by.0 + 1, SeqCst, SeqCst).is_err() {
        return;
    }
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES)];
    for (at, bytes) in reason.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        mapping.long(REASON + 8 * (1 + at)).store(u64::from_le_bytes(word), Relaxed);
    }
    mapping.long(REASON).store(reason.len() as u64, Relaxed);
    mapping.word(MET).fetch_or(ENDED, SeqCst);
    wake_all(mapping);
}

/// The error that `end` left. Acquires what was written before the ended bit, which the caller has seen.
fn ended(mapping: &Mapping) -> Error {
    let by = Rank(mapping.word(ENDED_BY).load(Acquire).saturating_sub(1));
    let len = (mapping.long(REASON).load(Relaxed) as usize).min(REASON_BYTES);
    let words = (0..len.div_ceil(8)).map(|at| mapping.long(REASON + 8 * (1 + at)).load(Relaxed));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    Error::Aborted { by, reason: String::from_utf8_lossy(&bytes).into_owned() }
}

/// Sleeps until `word` is no longer `seen`, at most for `time`, and says how long. While the whole group stands still
/// (Ctrl-Z), so does the deadline: a nap counts no longer than it was meant to be.
fn sleep_on(word: &AtomicU32, seen: u32, time: Duration) -> Duration {
    let nap = time.min(NAP);
    let timeout = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
    let began = Instant::now();
    // Any return, also by a signal, only means to look again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
    began.elapsed().min(nap)
}

fn wake_all(mapping: &Mapping) {
    // It fails only for a word that is not mapped, and this one is.
    let _ = futex::wake(mapping.word(MET), futex::Flags::empty(), i32::MAX as u32);
}

fn arrived(rank: Rank) -> usize {
    SLOTS + SLOT * rank.index()
}

fn field_at(rank: Rank, seq: u64, field: usize) -> usize {
    arrived(rank) + 64 * (1 + (seq & 1) as usize) + 8 * field
}

fn code(op: Op) -> u64 {
    match op {
        Op::Segments => 1,
        Op::AllReduce => 2,
        Op::Broadcast => 3,
        Op::AllGather => 4,
        Op::Barrier => 5,
    }
}

fn call(rank: Rank, fields: &[u64; 5]) -> Result<Call, Error> {
    let ops = [Op::Segments, Op::AllReduce, Op::Broadcast, Op::AllGather, Op::Barrier];
    let op = ops.into_iter().find(|&op| code(op) == fields[1]);
    let op = op.ok_or_else(|| Error::mapping(format!("the slot of rank {rank} is damaged")))?;
    Ok(Call { seq: fields[0], op, bytes: Bytes(fields[2]), tag: fields[3] })
}
