//! Meetings whose counters are about to pass the ends of their words.

use super::*;
use crate::transport::shared_memory;

/// What each of `world` ranks returns, whose group has begun `calls` calls and met `arrivals` times.
fn seated<T: Send>(
    world: u32,
    (calls, arrivals): (u64, u32),
    each: impl Fn(Seat) -> T + Sync,
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
    let seat = |rank| {
        let (timeout, gives_up) = (Duration::from_millis(300), Arc::new(AtomicBool::new(false)));
        let seat = Seat::new(Arc::clone(&mapping), rank, world, timeout, gives_up);
        Seat { seq: calls, arrivals, ..seat }
    };
    let (seat, each) = (&seat, &each);
    std::thread::scope(|scope| {
        let threads = ranks.into_iter().map(|rank| scope.spawn(move || each(seat(rank))));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Calls before 2^32, and arrivals at which the count of one, two or three ranks wraps, or a rank's own does.
const ENDS: [(u64, u32); 5] = [
    ((1 << 32) - 5, u32::MAX - 4),
    ((1 << 32) - 5, COUNT - 4),
    ((1 << 32) - 5, COUNT / 2 - 4),
    ((1 << 32) - 5, COUNT / 3 - 4),
    ((1 << 32) - 5, 2 * (COUNT / 3) - 4),
];

#[test]
fn counts_that_pass_the_ends_of_their_words_do_not_let_anybody_go_on_early() {
    for world in 1..=3 {
        for ends in ENDS {
            let sums = seated(world, ends, |mut seat| {
                let all = (0..world).map(Rank);
                (0..20_u64).all(|i| {
                    let mine = (i << 8) + u64::from(seat.rank.0);
                    let call = seat.begin(Op::Barrier, 0, 0, mine).unwrap();
                    assert_eq!(call.seq, ends.0 + i + 1);
                    all.clone().all(|rank| seat.own(rank) == (i << 8) + u64::from(rank.0))
                })
            });
            assert!(sums.into_iter().all(|same| same), "{world} ranks from {ends:?}");
        }
    }
}

#[test]
fn whoever_is_missing_beyond_the_ends_of_the_words_is_named_with_its_last_call() {
    for ends in ENDS {
        let missing = seated(2, ends, |mut seat| {
            let calls = if seat.rank.0 == 1 { 6 } else { 7 };
            let ended: Result<Vec<Call>, Error> =
                (0..calls).map(|_| seat.begin(Op::Barrier, 0, 0, 0)).collect();
            ended.err()
        });
        let Some(Error::Timeout { call, missing, .. }) = &missing[0] else { panic!("{missing:?}") };
        assert_eq!((call.seq, missing.len()), (ends.0 + 7, 1));
        assert_eq!((missing[0].rank, missing[0].begun), (Rank(1), ends.0 + 6));
    }
}
