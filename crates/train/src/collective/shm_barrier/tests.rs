//! Barriers whose counters are about to wrap.

use super::*;
use crate::transport::shared_memory;

/// What `each` returns on `world` ranks, whose group has begun `calls` calls and passed `arrivals`
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
        (0..2).for_each(|i| mapping.long(field_at(rank, calls - i, SEQ)).store(calls - i, SeqCst));
    }
    let barrier = |rank| {
        let (timeout, gives_up) = (Duration::from_millis(300), Arc::new(AtomicBool::new(false)));
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

/// Calls before 2^32, and arrivals at which the count of one, two or three ranks wraps, or a rank's
/// own does.
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
        let Some(Error::Timeout { call, missing, .. }) = &missing[0] else { panic!("{missing:?}") };
        assert_eq!((call.seq, missing.len()), (ends.0 + 7, 1));
        assert_eq!((missing[0].rank, missing[0].begun), (Rank(1), ends.0 + 6));
    }
}
