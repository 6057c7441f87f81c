//! Collectives over real shared memory: ranks as threads, each with its own mapping, and as
//! processes.
#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside test functions")]

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddprun::internals::collective::{self, Collective, Error, Op, tree_sum};
use ddprun::internals::transport;
use ddprun::plan::CommHook;
use ddprun::units::{Bytes, Rank, WorldSize};
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a mapping with `gradients` elements for each of `world` ranks.
fn mapping(world: u32, gradients: usize) -> Bytes {
    Bytes((64 << 10) + u64::from(world) * ((1 << 20) + 4 * gradients.next_multiple_of(64) as u64))
}

fn open(
    fd: &OwnedFd,
    size: Bytes,
    rank: u32,
    world: u32,
    timeout: Duration,
) -> Arc<dyn Collective> {
    let world = WorldSize::new(world).unwrap();
    collective::open_shm(fd, size, Rank(rank), world, timeout).unwrap()
}

/// Runs `each` on `world` ranks as threads, and returns what they return in rank order.
fn spawn<T: Send>(
    world: u32,
    gradients: usize,
    timeout: Duration,
    each: impl Fn(&dyn Collective) -> T + Sync,
) -> Vec<T> {
    let size = mapping(world, gradients);
    let fd = transport::shared_memory(size).unwrap();
    std::thread::scope(|scope| {
        let start = |rank| {
            let (fd, each) = (&fd, &each);
            scope.spawn(move || each(&*open(fd, size, rank, world, timeout)))
        };
        let threads: Vec<_> = (0..world).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A value that differs between ranks and elements, and whose sum depends on the order of addition.
fn value(rank: u32, i: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank.wrapping_mul(40_503));
    (mixed % 20_011) as f32 * 1.37e-3 * [1.0, -1e4, 1e-4][(mixed % 3) as usize]
}

fn expected(world: u32, n: usize) -> Vec<f32> {
    let mut all: Vec<Vec<f32>> =
        (0..world).map(|rank| (0..n).map(|i| value(rank, i)).collect()).collect();
    let mut parts: Vec<&mut [f32]> = all.iter_mut().map(|v| &mut v[..]).collect();
    tree_sum(&mut parts);
    parts[0].to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn sum_of(group: &dyn Collective, lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut segments = group.segments(lengths).unwrap();
    for segment in &mut segments {
        let rank = group.rank().0;
        segment.iter_mut().enumerate().for_each(|(i, v)| *v = value(rank, i));
        group.all_reduce(segment).unwrap();
    }
    segments.iter().map(|segment| bits(segment)).collect()
}

#[test]
fn sums_are_the_fixed_tree_bit_for_bit_on_all_ranks_whatever_the_lengths() {
    let lengths = [1, 0, 7, 64, 4097, 100_003];
    let gradients = lengths.iter().map(|n: &usize| n.next_multiple_of(64)).sum();
    for world in [1, 2, 3, 5] {
        let right: Vec<_> = lengths.iter().map(|&n| bits(&expected(world, n))).collect();
        for sums in spawn(world, gradients, TIMEOUT, |group| sum_of(group, &lengths)) {
            assert_eq!(sums, right, "world size {world}");
        }
    }
}

#[test]
fn each_rank_gets_the_sum_of_its_own_part_in_the_same_tree() {
    let (n, gradients) = (100_003, 2 * 100_096);
    for world in [1, 2, 3, 5] {
        let right = bits(&expected(world, n));
        // Two ranges for each rank, the last rank none.
        let ranks = world as usize;
        let part = |rank: usize| match rank {
            last if last + 1 == ranks && ranks > 1 => Vec::new(),
            rank => {
                vec![rank * 4096..rank * 4096 + 4000, 50_000 + rank * 64..50_000 + rank * 64 + 9]
            }
        };
        let parts: Vec<_> = (0..ranks).map(part).collect();
        let sums = spawn(world, gradients, TIMEOUT, |group| {
            let mut segments = group.segments(&[n, 7]).unwrap();
            let (rank, segment) = (group.rank(), &mut segments[0]);
            let mut found = Vec::new();
            // Twice: what was given back to the system is written anew.
            for _ in 0..2 {
                segment.iter_mut().enumerate().for_each(|(i, v)| *v = value(rank.0, i));
                group.reduce_scatter(segment, &parts).unwrap();
                segment.release(&[20_480..50_000, 60_000..n]);
                let mine = parts[rank.index()].iter();
                found.push(mine.map(|range| bits(&segment[range.clone()])).collect::<Vec<_>>());
            }
            found
        });
        for (rank, found) in sums.into_iter().enumerate() {
            let right: Vec<_> =
                parts[rank].iter().map(|range| right[range.clone()].to_vec()).collect();
            assert_eq!(found, [right.clone(), right], "rank {rank} of {world}");
        }
    }
}

#[test]
fn released_memory_is_zeros_and_may_be_written_again() {
    for world in [1, 2] {
        spawn(world, 100_096, TIMEOUT, |group| {
            let mut segments = group.segments(&[100_003]).unwrap();
            let segment = &mut segments[0];
            segment.fill(1.0);
            segment.release(&[0..0, 10..90_000]);
            assert_eq!((segment[9], segment[90_001]), (1.0, 1.0));
            assert_eq!(segment[50_000], 0.0, "a page in the middle");
            segment[50_000] = 2.0;
            assert_eq!(segment[50_000], 2.0);
            group.barrier().unwrap();
        });
    }
}

#[test]
fn compressed_sums_are_those_of_rounded_gradients_and_the_same_on_all_ranks() {
    type Round = fn(f32) -> f32;
    let hooks: [(CommHook, Round); 2] = [
        (CommHook::Bf16, |v| half::bf16::from_f32(v).to_f32()),
        (CommHook::Fp16, |v| half::f16::from_f32(v).to_f32()),
    ];
    let (world, n) = (3u32, 5000);
    for (hook, round) in hooks {
        let mut all: Vec<Vec<f32>> = (0..world)
            .map(|rank| (0..n).map(|i| round(value(rank, i) * (1.0 / world as f32))).collect())
            .collect();
        let mut parts: Vec<&mut [f32]> = all.iter_mut().map(|v| &mut v[..]).collect();
        tree_sum(&mut parts);
        let right: Vec<f32> = parts[0].iter().map(|v| round(*v) * world as f32).collect();
        assert!(bits(&right) != bits(&expected(world, n)));
        let size = mapping(world, n);
        let fd = transport::shared_memory(size).unwrap();
        let sums: Vec<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            let start = |rank| {
                let fd = &fd;
                scope.spawn(move || {
                    let group = collective::compressed(open(fd, size, rank, world, TIMEOUT), hook);
                    sum_of(&*group, &[n])
                })
            };
            let threads: Vec<_> = (0..world).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for found in sums {
            assert_eq!(found, [bits(&right)], "{hook:?}");
        }
    }
}

#[test]
fn a_world_of_one_needs_no_memory_and_changes_nothing() {
    let group = collective::alone();
    assert_eq!(sum_of(&*group, &[3, 0]), [bits(&expected(1, 3)), vec![]]);
    assert_eq!(group.all_gather(b"me").unwrap(), [b"me"]);
    let Err(error) = group.segments(&[1]) else { panic!("segments are given out once") };
    assert!(error.to_string().contains("its segments were already given out"), "{error}");
}

#[test]
fn everyone_receives_what_rank_0_has_also_over_many_pieces() {
    for n in [0, 1, 524_288, 524_289, 2_500_000] {
        let content: Vec<u8> = (0..n).map(|i: u32| (i % 251) as u8).collect();
        let received = spawn(3, 0, TIMEOUT, |group| {
            let mut bytes =
                if group.rank().is_first() { content.clone() } else { vec![0; n as usize] };
            group.broadcast(&mut bytes).unwrap();
            group.broadcast(&mut [1, 2]).unwrap();
            bytes
        });
        assert!(received.iter().all(|bytes| *bytes == content), "{n} bytes");
    }
}

#[test]
fn everyone_receives_everyones_bytes_whose_lengths_differ() {
    let of = |rank: u32| vec![rank as u8 + 1; [0, 700_000, 3, 1_200_000, 524_288][rank as usize]];
    for world in [2, 3, 5] {
        let right: Vec<_> = (0..world).map(of).collect();
        for got in spawn(world, 0, TIMEOUT, |group| {
            group.all_gather(&of(group.rank().0)).unwrap();
            group.all_gather(&of(group.rank().0)).unwrap()
        }) {
            assert_eq!(got, right);
        }
    }
}

#[test]
fn a_thousand_mixed_calls_stay_in_step() {
    let sums = spawn(4, 128, TIMEOUT, |group| {
        let mut segments = group.segments(&[100]).unwrap();
        let mut total = 0.0f64;
        for call in 0..1000u32 {
            segments[0].fill((group.rank().0 + call) as f32);
            group.all_reduce(&mut segments[0]).unwrap();
            total += f64::from(segments[0][99]);
            let everyone = group.all_gather(&call.to_le_bytes()).unwrap();
            assert!(everyone.iter().all(|theirs| theirs[..] == call.to_le_bytes()));
            group.barrier().unwrap();
        }
        total
    });
    let right: f64 = (0..1000).map(|call| f64::from(4 * call + 6)).sum();
    assert!(sums.iter().all(|&sum| sum == right), "{sums:?}");
}

#[test]
fn a_silent_rank_is_named_within_the_deadline_by_all_who_wait() {
    // Long enough for three threads to start on a busy machine.
    let timeout = Duration::from_secs(1);
    let began = Instant::now();
    let errors = spawn(3, 64, timeout, |group| {
        group.barrier().unwrap();
        // Rank 1 leaves here.
        (group.rank() != Rank(1)).then(|| group.all_gather(b"x").unwrap_err())
    });
    assert!(began.elapsed() < TIMEOUT / 3);
    let mut timeouts = 0;
    for error in errors.into_iter().flatten() {
        match &error {
            Error::Timeout { call, missing, waited } => {
                timeouts += 1;
                assert_eq!((call.op, call.seq), (Op::AllGather, 2));
                assert_eq!(
                    missing.iter().map(|m| (m.rank, m.begun)).collect::<Vec<_>>(),
                    [(Rank(1), 1)]
                );
                assert!(*waited >= timeout);
            }
            Error::Aborted { reason, .. } => {
                assert!(reason.contains("timed out waiting for rank 1"), "{reason}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(timeouts >= 1);
}

#[test]
fn different_lengths_are_found_on_all_ranks_before_data_moves() {
    let errors = spawn(3, 1024, TIMEOUT, |group| {
        let n = if group.rank() == Rank(2) { 65 } else { 64 };
        group.segments(&[n]).err().unwrap().to_string()
    });
    for error in errors {
        assert_eq!(
            error,
            "rank 0 is in `segments` (call 1, 256 B), but rank 2 is in `segments` (call 1, 260 B)"
        );
    }
}

#[test]
fn different_calls_are_found_on_all_ranks_and_the_group_stays_failed() {
    let errors = spawn(2, 1024, TIMEOUT, |group| {
        let mut segments = group.segments(&[64, 64]).unwrap();
        segments[1].fill(1.0);
        let bucket = group.rank().index();
        let first = group.all_reduce(&mut segments[bucket]).unwrap_err().to_string();
        assert_eq!(group.barrier().unwrap_err().to_string(), first);
        assert_eq!(segments[1][..], [1.0; 64]);
        first
    });
    for error in errors {
        assert!(error.contains("bucket 0") && error.contains("bucket 1"), "{error}");
    }
}

#[test]
fn a_rank_that_gives_up_releases_the_others_at_once_with_its_reason() {
    let began = Instant::now();
    let errors = spawn(3, 0, TIMEOUT, |group| {
        if group.rank() == Rank(2) {
            group.abort("`cat/7.png` is truncated");
        }
        group.barrier().unwrap_err().to_string()
    });
    assert!(began.elapsed() < TIMEOUT / 3);
    for error in errors {
        assert_eq!(error, "rank 2 ended the group: `cat/7.png` is truncated");
    }
}

#[test]
fn a_mapping_that_is_too_small_is_refused_instead_of_killing_the_process() {
    let fd = transport::shared_memory(Bytes(4096)).unwrap();
    let world = WorldSize::new(2).unwrap();
    let refused = collective::open_shm(&fd, mapping(2, 64), Rank(0), world, TIMEOUT).err().unwrap();
    assert!(refused.to_string().contains("holds 4.00 KiB of the planned 2.06 MiB"), "{refused}");
    let errors = spawn(2, 64, TIMEOUT, |group| group.segments(&[65]).err().unwrap().to_string());
    assert!(errors.iter().all(|error| error.contains("more than the 64 elements")), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_lengths_on_any_world_size_give_the_sequential_tree(
        world in 1u32..9,
        lengths in prop::collection::vec(0usize..3000, 1..5),
    ) {
        let gradients = lengths.iter().map(|n| n.next_multiple_of(64)).sum();
        let right: Vec<_> = lengths.iter().map(|&n| bits(&expected(world, n))).collect();
        for sums in spawn(world, gradients, TIMEOUT, |group| sum_of(group, &lengths)) {
            prop_assert_eq!(&sums, &right);
        }
    }
}

const AS_RANK: &str = "DDPRUN_TEST_RANK";

/// The body of one rank's process; does nothing in the process of the tests.
#[test]
fn as_rank_of_a_group_of_processes() {
    let Some(rank) = std::env::var_os(AS_RANK) else { return };
    let rank: u32 = rank.to_str().unwrap().parse().unwrap();
    // The mapping comes as standard input.
    let fd = rustix::io::dup(rustix::stdio::stdin()).unwrap();
    let group = open(&fd, mapping(3, 4096), rank, 3, TIMEOUT);
    let sums = sum_of(&*group, &[1000, 33]);
    assert_eq!(sums, [bits(&expected(3, 1000)), bits(&expected(3, 33))]);
    let all = group.all_gather(&std::process::id().to_le_bytes()).unwrap();
    assert_eq!(all[rank as usize], std::process::id().to_le_bytes());
    assert!(all[0] != all[1] && all[1] != all[2]);
}

#[test]
fn processes_share_the_memory_as_threads_do() {
    let fd = transport::shared_memory(mapping(3, 4096)).unwrap();
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_rank_of_a_group_of_processes", "--nocapture"]);
        command.env(AS_RANK, rank.to_string()).stdin(fd.try_clone().unwrap());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}
