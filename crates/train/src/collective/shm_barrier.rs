//! A barrier in shared memory: no rank continues before all have arrived, none waits past the
//! deadline, and all learn which call the others make.
//!
//! The header is all zeros at first. `ARRIVALS` counts the arrivals of all ranks together and is
//! the word that ranks spin and sleep on: the n-th barrier of W ranks is complete at n W. Its top
//! bit says that the group has ended; from then on no rank arrives, so all ranks agree on whether a
//! barrier was complete. Each rank also counts its own arrivals on a cache line of its own, by
//! which waiting ranks name those that are missing. The last to arrive wakes those that sleep, if
//! any do.
//!
//! With other machines, the first rank talks to theirs while the others wait. It beats meanwhile,
//! and no deadline runs out as long as it does: it has its own, and knows who is late.
//!
//! A waiting rank spins for a moment (the others are usually microseconds away), then sleeps. With
//! fewer cores than ranks it sleeps at once: spinning would take the core of a rank that it waits
//! for.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::collective::shared_mapping::Mapping;
use crate::collective::{Call, Error, MissingRank, Op};
use crate::plan::shm_layout::MAX_RANKS;
use crate::units::{Bytes, Rank, WorldSize};

/// Most ranks: their slots fit the header.
pub(super) const MAX_WORLD: usize = MAX_RANKS as usize;

/// Word: arrivals of all ranks at all barriers, and the ended bit.
const ARRIVALS: usize = 0;
/// Word: ranks that sleep, or are about to.
const SLEEPERS: usize = 4;
/// Word: signs of life of a leader that waits for other machines while its own ranks wait for it.
const BEATS: usize = 128;
/// Word: 1 + the rank that ended the group.
const ENDED_BY: usize = 64;
/// Length of the reason, then its bytes.
const REASON: usize = 32 << 10;
const REASON_BYTES: usize = 2048;
/// Slot of each rank: a line with its arrivals and its waits for a library, then two lines with its
/// calls of odd and even number.
const SLOTS: usize = 4096;
const SLOT: usize = 256;

/// Word of a slot: how often its rank has begun to wait for a library.
#[cfg(any(feature = "cuda", test))]
const WAITS: usize = 8;

/// Fields of a call in its slot.
const SEQ: usize = 0;
const OP: usize = 1;
const BYTES: usize = 2;
const TAG: usize = 3;
const OWN: usize = 4;
/// Time of the rank's arrival, in nanoseconds of the machine's monotonic clock.
const ARRIVED_AT: usize = 5;

const ENDED: u32 = 1 << 31;
const COUNT: u32 = ENDED - 1;
/// Time for which a rank spins before it sleeps, if every rank has a core. Ranks in step are apart
/// by less; on a busy machine spinning longer costs more (50 microseconds: five times the latency)
/// than it saves.
const SPIN_TIME: Duration = Duration::from_micros(10);
/// Spins between two looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 16;
/// Longest sleep between two checks.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Time of a leader that was told to wait no longer to say for which machine it waited.
const LEADER_GRACE: Duration = Duration::from_secs(2);

/// One rank's part of the barriers of its group.
pub(super) struct ShmBarrier {
    mapping: Arc<Mapping>,
    rank: Rank,
    world: WorldSize,
    /// Number of the first rank in messages.
    first: Rank,
    timeout: Duration,
    /// True if every rank has a core.
    spins: bool,
    /// Set by another thread: the deadline is over.
    gives_up: Arc<AtomicBool>,
    arrivals: u32,
    seq: u64,
    failed: Option<Error>,
}

impl ShmBarrier {
    pub(super) fn new(
        mapping: Arc<Mapping>,
        rank: Rank,
        world: WorldSize,
        timeout: Duration,
        gives_up: Arc<AtomicBool>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = world.count() <= cores;
        let first = Rank(0);
        let arrivals = 0;
        let seq = 0;
        let failed = None;
        Self { mapping, rank, world, first, timeout, spins, gives_up, arrivals, seq, failed }
    }

    /// Names ranks by their numbers among those of all machines; `first` is the first one here.
    pub(super) fn name_from(&mut self, first: Rank) {
        self.first = first;
    }

    /// The number of a rank among those of all machines.
    fn named(&self, rank: Rank) -> Rank {
        Rank(self.first.0 + rank.0)
    }

    /// Begins a call: waits for all ranks and compares their calls. `own` is a number that may
    /// differ between ranks; [`ShmBarrier::own`] returns that of each.
    pub(super) fn begin(
        &mut self,
        op: Op,
        bytes: usize,
        tag: u64,
        own: u64,
    ) -> Result<Call, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.seq += 1;
        let call = Call { seq: self.seq, op, bytes: Bytes(bytes as u64), tag };
        // Two slots in turn: a rank that is one call ahead does not overwrite what others still
        // read.
        let fields = [call.seq, op.code(), call.bytes.0, call.tag, own, now()];
        for (field, value) in fields.into_iter().enumerate() {
            self.mapping.long(field_at(self.rank, self.seq, field)).store(value, Relaxed);
        }
        self.wait(&call)?;
        let begun = self.compare();
        self.failed = begun.as_ref().err().cloned();
        begun.map(|()| call)
    }

    /// The own number of `rank` in the call that was begun last.
    pub(super) fn own(&self, rank: Rank) -> u64 {
        self.field(rank, OWN)
    }

    /// Returns the nanoseconds by which each rank arrived later than the first at the call that was
    /// begun last.
    pub(super) fn lags(&self) -> impl Iterator<Item = u64> {
        let arrived_at = || (0..self.world.get()).map(|rank| self.field(Rank(rank), ARRIVED_AT));
        let first = arrived_at().min().unwrap_or(0);
        arrived_at().map(move |at| at - first)
    }

    /// Waits until every rank has arrived as often as this one.
    pub(super) fn wait(&mut self, call: &Call) -> Result<(), Error> {
        self.arrivals = self.arrivals.wrapping_add(1);
        let done = self.arrive().and_then(|seen| self.wait_until_complete(call, seen));
        self.failed = done.as_ref().err().cloned();
        done
    }

    /// Counts this rank in, wakes the sleepers if it is the last, and returns the count.
    fn arrive(&self) -> Result<u32, Error> {
        let arrivals = self.mapping.word(ARRIVALS);
        let next = |seen: u32| (seen & ENDED == 0).then_some((seen + 1) & COUNT);
        let Ok(before) = arrivals.fetch_update(SeqCst, SeqCst, next) else {
            return Err(ended(&self.mapping));
        };
        self.mapping.word(arrived(self.rank)).store(self.arrivals, SeqCst);
        let seen = (before + 1) & COUNT;
        // A rank that sleeps from now on looks at the count after it has said so, and sees ours.
        if self.is_complete(seen) && self.mapping.word(SLEEPERS).load(SeqCst) > 0 {
            wake_all(&self.mapping);
        }
        Ok(seen)
    }

    /// True if `seen` counts all arrivals at this barrier. Others may have arrived at the next one
    /// already.
    fn is_complete(&self, seen: u32) -> bool {
        let all = self.arrivals.wrapping_mul(self.world.get());
        seen.wrapping_sub(all) & COUNT <= COUNT / 2
    }

    fn wait_until_complete(&self, call: &Call, mut seen: u32) -> Result<(), Error> {
        let arrivals = self.mapping.word(ARRIVALS);
        let mut spin = Spin::new(self.spins);
        let mut waited = Duration::ZERO;
        let mut beats = self.beats();
        let mut waits_for_leader = false;
        while !self.is_complete(seen) {
            if seen & ENDED != 0 {
                return Err(ended(&self.mapping));
            }
            if !spin.again() {
                // A leader that is alive knows better than this rank for whom all of them wait.
                if std::mem::replace(&mut beats, self.beats()) != beats {
                    (waits_for_leader, waited) = (true, Duration::ZERO);
                }
                let patience = self.patience(waits_for_leader);
                if waited >= patience {
                    return self.give_up(call, waited);
                }
                waited += self.sleep(patience.saturating_sub(waited));
            }
            seen = arrivals.load(SeqCst);
        }
        Ok(())
    }

    fn beats(&self) -> u32 {
        self.mapping.word(BEATS).load(SeqCst)
    }

    /// Returns the time to wait for ranks that give no sign of life.
    fn patience(&self, waits_for_leader: bool) -> Duration {
        match (self.gives_up.load(SeqCst), waits_for_leader) {
            (true, false) => Duration::ZERO,
            (true, true) => self.timeout.min(LEADER_GRACE),
            (false, _) => self.timeout,
        }
    }

    /// Sleeps until the barrier is complete or the group ended, at most for `time`, and returns how
    /// long. No sleep counts for longer than it was meant to be: while the whole group is suspended
    /// (Ctrl-Z), so is the deadline.
    fn sleep(&self, time: Duration) -> Duration {
        let arrivals = self.mapping.word(ARRIVALS);
        let sleepers = self.mapping.word(SLEEPERS);
        let time = time.min(MAX_SLEEP);
        let timeout =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let began = Instant::now();
        sleepers.fetch_add(1, SeqCst);
        let seen = arrivals.load(SeqCst);
        if !self.is_complete(seen) && seen & ENDED == 0 {
            // Whatever the result, the caller checks again.
            let _ = futex::wait(arrivals, futex::Flags::empty(), seen, Some(&timeout));
        }
        sleepers.fetch_sub(1, SeqCst);
        began.elapsed().min(time)
    }

    /// The ranks that have arrived less often than this one.
    fn missing(&self) -> Vec<MissingRank> {
        let is_here = |rank: &Rank| {
            let theirs = self.mapping.word(arrived(*rank)).load(SeqCst);
            // One more than ours is possible: the barrier is complete and they are at the next one.
            theirs.wrapping_sub(self.arrivals) & COUNT <= 1
        };
        let missing = (0..self.world.get()).map(Rank).filter(|rank| !is_here(rank));
        missing
            .map(|rank| MissingRank { rank: self.named(rank), begun: self.begun(rank) })
            .collect()
    }

    /// Number of the last call that `rank` has begun.
    fn begun(&self, rank: Rank) -> u64 {
        let seq = |parity| self.mapping.long(field_at(rank, parity, 0)).load(Relaxed);
        seq(0).max(seq(1))
    }

    /// Ends the group. If the barrier became complete meanwhile, this call continues, as it does on
    /// the other ranks.
    fn give_up(&self, call: &Call, waited: Duration) -> Result<(), Error> {
        let error = Error::Timeout { call: *call, missing: self.missing(), waited };
        end(&self.mapping, self.named(self.rank), &error.to_string());
        let seen = self.mapping.word(ARRIVALS).load(SeqCst);
        if self.is_complete(seen) { Ok(()) } else { Err(error) }
    }

    /// After the barrier of a call: whether all ranks make the same one.
    fn compare(&self) -> Result<(), Error> {
        let call_of = |rank| [SEQ, OP, BYTES, TAG].map(|field| self.field(rank, field));
        let first = call_of(Rank(0));
        let others = (1..self.world.get()).map(Rank);
        for (other, second) in others.map(|rank| (rank, call_of(rank))) {
            if first != second {
                let [one, other] = [Rank(0), other].map(|rank| self.named(rank));
                let first = (one, call(one, first)?);
                let second = (other, call(other, second)?);
                return Err(Error::Mismatch { first, second });
            }
        }
        Ok(())
    }

    fn field(&self, rank: Rank, field: usize) -> u64 {
        self.mapping.long(field_at(rank, self.seq, field)).load(Relaxed)
    }
}

/// Spins for a while before the rank sleeps.
struct Spin {
    /// `None` once the time is over.
    spins: Option<u32>,
    since: Option<Instant>,
}

impl Spin {
    fn new(enabled: bool) -> Self {
        Self { spins: enabled.then_some(0), since: None }
    }

    /// Spins once; `false` once it is time to sleep.
    fn again(&mut self) -> bool {
        let Some(spins) = &mut self.spins else { return false };
        *spins += 1;
        if spins.is_multiple_of(SPINS_PER_CLOCK_READ) {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() >= SPIN_TIME {
                self.spins = None;
            }
        }
        std::hint::spin_loop();
        true
    }
}

/// Ends the group, unless it has ended: all present and later calls return `reason`.
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
    mapping.word(ARRIVALS).fetch_or(ENDED, SeqCst);
    wake_all(mapping);
}

/// The error that `end` left. Acquires what was written before the ended bit, which the caller has
/// seen.
fn ended(mapping: &Mapping) -> Error {
    let by = Rank(mapping.word(ENDED_BY).load(Acquire).saturating_sub(1));
    let len = (mapping.long(REASON).load(Relaxed) as usize).min(REASON_BYTES);
    let words = (0..len.div_ceil(8)).map(|at| mapping.long(REASON + 8 * (1 + at)).load(Relaxed));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    Error::Aborted { by, reason: String::from_utf8_lossy(&bytes).into_owned() }
}

/// Returns the error with which the group ended, if it did.
pub(super) fn end_of(mapping: &Mapping) -> Option<Error> {
    (mapping.word(ARRIVALS).load(Acquire) & ENDED != 0).then(|| ended(mapping))
}

/// Counts that `rank` begins to wait for a library.
#[cfg(any(feature = "cuda", test))]
pub(super) fn begin_wait(mapping: &Mapping, rank: Rank) {
    mapping.word(arrived(rank) + WAITS).fetch_add(1, SeqCst);
}

/// Returns the number of times that `rank` has begun to wait for a library.
#[cfg(any(feature = "cuda", test))]
pub(super) fn waits(mapping: &Mapping, rank: Rank) -> u64 {
    mapping.word(arrived(rank) + WAITS).load(SeqCst).into()
}

/// A leader that waits for other machines is alive.
pub(super) fn beat(mapping: &Mapping) {
    mapping.word(BEATS).fetch_add(1, SeqCst);
}

/// Wakes all ranks that sleep.
pub(super) fn wake_all(mapping: &Mapping) {
    // It fails only for a word that is not mapped, and this one is.
    let _ = futex::wake(mapping.word(ARRIVALS), futex::Flags::empty(), i32::MAX as u32);
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn arrived(rank: Rank) -> usize {
    SLOTS + SLOT * rank.index()
}

fn field_at(rank: Rank, seq: u64, field: usize) -> usize {
    arrived(rank) + 64 * (1 + (seq & 1) as usize) + 8 * field
}

fn call(rank: Rank, [seq, code_of_op, bytes, tag]: [u64; 4]) -> Result<Call, Error> {
    let op = Op::of_code(code_of_op);
    let op = op.ok_or_else(|| Error::mapping(format!("the slot of rank {rank} is damaged")))?;
    Ok(Call { seq, op, bytes: Bytes(bytes), tag })
}

#[cfg(test)]
mod tests {
    //! Barriers whose counters are about to wrap.

    use super::*;
    use crate::transport::shared_memory;

    /// Runs `each` on `world` ranks, whose group has begun `calls` calls and passed `arrivals`
    /// barriers.
    fn with_counters<T: Send>(
        world: u32,
        (calls, arrivals): (u64, u32),
        each: impl Fn(ShmBarrier) -> T + Sync,
    ) -> Vec<T> {
        let world = WorldSize::new(world).unwrap();
        let size = crate::plan::Mapping::new(world, []).total();
        let fd = shared_memory(size).unwrap();
        let mapping = Arc::new(Mapping::open(&fd, size, world).unwrap());
        mapping.word(ARRIVALS).store(arrivals.wrapping_mul(world.get()) & COUNT, SeqCst);
        let ranks: Vec<Rank> = (0..world.get()).map(Rank).collect();
        for &rank in &ranks {
            mapping.word(arrived(rank)).store(arrivals, SeqCst);
            for call in [calls, calls - 1] {
                mapping.long(field_at(rank, call, SEQ)).store(call, SeqCst);
            }
        }
        let barrier = |rank| {
            let (timeout, gives_up) =
                (Duration::from_millis(300), Arc::new(AtomicBool::new(false)));
            let new = ShmBarrier::new(Arc::clone(&mapping), rank, world, timeout, gives_up);
            ShmBarrier { seq: calls, arrivals, ..new }
        };
        let (barrier, each) = (&barrier, &each);
        std::thread::scope(|scope| {
            let threads = ranks.into_iter().map(|rank| scope.spawn(move || each(barrier(rank))));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Calls before 2^32, and arrivals at which the count of one, two or three ranks wraps, or a
    /// rank's own does.
    const ENDS: [(u64, u32); 5] = [
        ((1 << 32) - 5, u32::MAX - 4),
        ((1 << 32) - 5, COUNT - 4),
        ((1 << 32) - 5, COUNT / 2 - 4),
        ((1 << 32) - 5, COUNT / 3 - 4),
        ((1 << 32) - 5, 2 * (COUNT / 3) - 4),
    ];

    #[test]
    fn no_rank_continues_early_when_counters_wrap() {
        for world in 1..=3 {
            for ends in ENDS {
                let sums = with_counters(world, ends, |mut barrier| {
                    let all = (0..world).map(Rank);
                    (0..20_u64).all(|i| {
                        let mine = (i << 8) + u64::from(barrier.rank.0);
                        let call = barrier.begin(Op::Barrier, 0, 0, mine).unwrap();
                        assert_eq!(call.seq, ends.0 + i + 1);
                        all.clone().all(|rank| barrier.own(rank) == (i << 8) + u64::from(rank.0))
                    })
                });
                assert!(sums.into_iter().all(|same| same), "{world} ranks from {ends:?}");
            }
        }
    }

    #[test]
    fn missing_ranks_are_named_with_their_last_call_when_counters_wrap() {
        for ends in ENDS {
            let missing = with_counters(2, ends, |mut barrier| {
                let calls = if barrier.rank.0 == 1 { 6 } else { 7 };
                let ended: Result<Vec<Call>, Error> =
                    (0..calls).map(|_| barrier.begin(Op::Barrier, 0, 0, 0)).collect();
                ended.err()
            });
            let Some(Error::Timeout { call, missing, .. }) = &missing[0] else {
                panic!("{missing:?}")
            };
            assert_eq!((call.seq, missing.len()), (ends.0 + 7, 1));
            assert_eq!((missing[0].rank, missing[0].begun), (Rank(1), ends.0 + 6));
        }
    }
}
