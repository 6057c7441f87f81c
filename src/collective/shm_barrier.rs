//! Where the ranks of a mapping meet: nobody goes on before all are here, nobody waits past the
//! deadline, and everyone learns what the others came for.
//!
//! The header is all zeros at first. `ARRIVALS` counts the arrivals of all ranks together and is the word
//! that ranks watch and sleep on: the n-th barrier of W ranks is complete at n W. Its top bit says that
//! the group has ended; from then on nobody arrives, so all ranks agree on whether a barrier was complete.
//! Each rank also counts its own arrivals on a cache line of its own, so whoever waits can name those
//! who are missing. The last to arrive wakes those who sleep, if any do.
//!
//! Whoever waits watches the word for a moment (the others are usually microseconds away), then sleeps.
//! With fewer cores than ranks it sleeps at once: watching would keep the one who is waited for from
//! its core.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::collective::mapping::Mapping;
use crate::collective::{Call, Error, Missing, Op};
use crate::plan::mapping::MOST_RANKS;
use crate::units::{Bytes, Rank, WorldSize};

/// Most ranks, whose slots fit the header.
pub(super) const MAX_WORLD: usize = MOST_RANKS as usize;

/// Word: arrivals of all ranks at all barriers, and the ended bit.
const ARRIVALS: usize = 0;
/// Word: ranks that sleep, or are about to.
const SLEEPERS: usize = 4;
/// Word: 1 + the rank that ended the group.
const ENDED_BY: usize = 64;
/// Length of the reason, then its bytes.
const REASON: usize = 32 << 10;
const REASON_BYTES: usize = 2048;
/// Slot of each rank: a line with its arrivals, then two lines with its calls of odd and even number.
const SLOTS: usize = 4096;
const SLOT: usize = 256;

/// Fields of a call in its slot.
const SEQ: usize = 0;
const OP: usize = 1;
const BYTES: usize = 2;
const TAG: usize = 3;
const OWN: usize = 4;
/// When it came, in nanoseconds of the machine's monotonic clock.
const CAME: usize = 5;

const ENDED: u32 = 1 << 31;
const COUNT: u32 = ENDED - 1;
/// Time for which a rank watches before it sleeps, if every rank has a core. Ranks in step are apart by less;
/// on a busy machine a longer watch costs more (50 microseconds: five times the latency) than it saves.
const WATCH: Duration = Duration::from_micros(10);
/// Looks between two looks at the clock.
const LOOKS: u32 = 16;
/// Longest sleep between two looks.
const NAP: Duration = Duration::from_secs(1);

/// One rank's seat at the barriers of its group.
pub(super) struct Seat {
    mapping: Arc<Mapping>,
    rank: Rank,
    world: WorldSize,
    timeout: Duration,
    /// Whether every rank has a core.
    watches: bool,
    /// Set by another thread: the deadline is over.
    gives_up: Arc<AtomicBool>,
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
        gives_up: Arc<AtomicBool>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let watches = world.count() <= cores;
        let (arrivals, seq, failed) = (0, 0, None);
        Self { mapping, rank, world, timeout, watches, gives_up, arrivals, seq, failed }
    }

    /// Begins a call: meets all ranks and compares what they came for. `own` is a number that may differ between
    /// ranks; [`Seat::own`] gives everyone's.
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
        // Two slots in turn: a rank that is one call ahead does not overwrite what others still read.
        let fields = [call.seq, op.code(), call.bytes.0, call.tag, own, now()];
        for (field, value) in fields.into_iter().enumerate() {
            self.mapping.long(field_at(self.rank, self.seq, field)).store(value, Relaxed);
        }
        self.meet(&call)?;
        let begun = self.compare();
        self.failed = begun.as_ref().err().cloned();
        begun.map(|()| call)
    }

    /// The own number of `rank` in the call that was begun last.
    pub(super) fn own(&self, rank: Rank) -> u64 {
        self.field(rank, OWN)
    }

    /// By how many nanoseconds each rank came after the first to the call that was begun last.
    pub(super) fn lags(&self) -> impl Iterator<Item = u64> {
        let came = || (0..self.world.get()).map(|rank| self.field(Rank(rank), CAME));
        let first = came().min().unwrap_or(0);
        came().map(move |came| came - first)
    }

    /// Waits until every rank has arrived as often as this one.
    pub(super) fn meet(&mut self, call: &Call) -> Result<(), Error> {
        self.arrivals = self.arrivals.wrapping_add(1);
        let met = self.arrive().and_then(|seen| self.wait(call, seen));
        self.failed = met.as_ref().err().cloned();
        met
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

    /// Whether `seen` counts all arrivals at this barrier. Others may have arrived at the next one already.
    fn is_complete(&self, seen: u32) -> bool {
        let all = self.arrivals.wrapping_mul(self.world.get());
        seen.wrapping_sub(all) & COUNT <= COUNT / 2
    }

    fn wait(&self, call: &Call, mut seen: u32) -> Result<(), Error> {
        let arrivals = self.mapping.word(ARRIVALS);
        let mut watch = Watch::new(self.watches);
        let mut waited = Duration::ZERO;
        while !self.is_complete(seen) {
            if seen & ENDED != 0 {
                return Err(ended(&self.mapping));
            }
            if !watch.goes_on() {
                if waited >= self.timeout || self.gives_up.load(SeqCst) {
                    return self.give_up(call, waited);
                }
                waited += self.sleep(self.timeout.saturating_sub(waited));
            }
            seen = arrivals.load(SeqCst);
        }
        Ok(())
    }

    /// Sleeps until somebody completes the barrier or ends the group, at most for `time`, and says how long. While
    /// the whole group stands still (Ctrl-Z), so does the deadline: a nap counts no longer than it was meant to be.
    fn sleep(&self, time: Duration) -> Duration {
        let (arrivals, sleepers) = (self.mapping.word(ARRIVALS), self.mapping.word(SLEEPERS));
        let nap = time.min(NAP);
        let timeout = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
        let began = Instant::now();
        sleepers.fetch_add(1, SeqCst);
        let seen = arrivals.load(SeqCst);
        if !self.is_complete(seen) && seen & ENDED == 0 {
            // Any return, also by a signal or because the word has changed, only means to look again.
            let _ = futex::wait(arrivals, futex::Flags::empty(), seen, Some(&timeout));
        }
        sleepers.fetch_sub(1, SeqCst);
        began.elapsed().min(nap)
    }

    /// Those who have arrived less often than this rank.
    fn missing(&self) -> Vec<Missing> {
        let is_here = |rank: &Rank| {
            let theirs = self.mapping.word(arrived(*rank)).load(SeqCst);
            // One more than ours is possible: the barrier is complete and they are at the next one.
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

    /// Ends the group. If the barrier became complete meanwhile, this call goes on, as it does on the other ranks.
    fn give_up(&self, call: &Call, waited: Duration) -> Result<(), Error> {
        let error = Error::Timeout { call: *call, missing: self.missing(), waited };
        end(&self.mapping, self.rank, &error.to_string());
        let seen = self.mapping.word(ARRIVALS).load(SeqCst);
        if self.is_complete(seen) { Ok(()) } else { Err(error) }
    }

    /// After the barrier of a call: whether all ranks came for the same.
    fn compare(&self) -> Result<(), Error> {
        let came_for = |rank| [SEQ, OP, BYTES, TAG].map(|field| self.field(rank, field));
        let first = came_for(Rank(0));
        let others = (1..self.world.get()).map(Rank);
        for (other, second) in others.map(|rank| (rank, came_for(rank))) {
            if first != second {
                let (first, second) = (call(Rank(0), first)?, call(other, second)?);
                return Err(Error::Mismatch { first: (Rank(0), first), second: (other, second) });
            }
        }
        Ok(())
    }

    fn field(&self, rank: Rank, field: usize) -> u64 {
        self.mapping.long(field_at(rank, self.seq, field)).load(Relaxed)
    }
}

/// How long a rank watches before it sleeps.
struct Watch {
    /// `None` once the time is over.
    looks: Option<u32>,
    since: Option<Instant>,
}

impl Watch {
    fn new(watches: bool) -> Self {
        Self { looks: watches.then_some(0), since: None }
    }

    /// Passes a moment; `false` once it is time to sleep.
    fn goes_on(&mut self) -> bool {
        let Some(looks) = &mut self.looks else { return false };
        *looks += 1;
        if looks.is_multiple_of(LOOKS) {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() >= WATCH {
                self.looks = None;
            }
        }
        std::hint::spin_loop();
        true
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
    mapping.word(ARRIVALS).fetch_or(ENDED, SeqCst);
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

/// Why the group ended, if it did.
#[cfg(any(feature = "cuda", test))]
pub(super) fn end_of(mapping: &Mapping) -> Option<Error> {
    (mapping.word(ENDED_BY).load(SeqCst) != 0).then(|| ended(mapping))
}

/// Lets all who sleep look again.
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
mod tests;
