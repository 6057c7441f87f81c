//! Ranks as threads: those of a machine share memory, and the first of each has connections.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::collective::inter_node_group::tests::{bits, peers, summed, tree, value};
use crate::plan::Mapping;
use crate::transport::shared_memory;

const TIMEOUT: Duration = Duration::from_secs(30);
const LENGTHS: [usize; 4] = [1, 7, 4097, 100_003];

/// Machines, and ranks of each.
type Shape = (u32, u32);

fn size(n: u32) -> WorldSize {
    WorldSize::new(n).unwrap()
}

/// Runs `each` on all ranks as threads, and returns what they return in rank order.
fn spawn<T: Send>(
    (machines, n): Shape,
    timeout: Duration,
    each: impl Fn(Arc<HierarchicalGroup>) -> T + Sync,
) -> Vec<T> {
    let mapping = Mapping::new(size(n), LENGTHS).total();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (machine, mut peers) in (0..).zip(peers(machines)) {
            let memory = shared_memory(mapping).unwrap();
            for peer in &mut peers {
                peer.rank.0 *= n;
            }
            for own in 0..n {
                let local = Shm::open(&memory, mapping, Rank(own), size(n), timeout).unwrap();
                let (rank, world) = (Rank(machine * n + own), size(machines * n));
                let peers = std::mem::take(&mut peers);
                let group =
                    HierarchicalGroup::open(rank, world, local, timeout, |place, wait, watch| {
                        InterNodeGroup::connected(place, peers, wait, watch)
                    });
                let (group, each) = (Arc::new(group.unwrap()), &each);
                threads.push(scope.spawn(move || each(group)));
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_have_the_bits_of_the_flat_tree_on_any_machines() {
    for shape in [(2, 2), (2, 3), (3, 2), (3, 3), (2, 4)] {
        let world = shape.0 * shape.1;
        let right: Vec<_> = LENGTHS.iter().map(|&n| tree(world, n)).collect();
        let sums = spawn(shape, TIMEOUT, |group| summed(&*group, &LENGTHS));
        assert!(sums.into_iter().all(|sums| sums == right), "{shape:?}");
    }
}

#[test]
fn each_rank_gets_the_sum_of_its_own_part_with_the_bits_of_the_flat_tree() {
    for shape in [(2, 2), (2, 3)] {
        let (world, n) = (shape.0 * shape.1, LENGTHS[3]);
        let right = tree(world, n);
        let part = |rank: usize| vec![rank * 512..rank * 512 + 500, 9000 + rank..9001 + rank];
        let mut parts: Vec<Elements> = (0..world as usize).map(part).collect();
        parts[1] = Elements::new();
        let sums = spawn(shape, TIMEOUT, |group| {
            let (rank, mut segments) = (group.rank(), group.segments(&LENGTHS).unwrap());
            segments[3].iter_mut().enumerate().for_each(|(i, v)| *v = value(rank.0, i));
            group.reduce_scatter(&mut segments[3], &parts).unwrap();
            let mine = parts[rank.index()].iter();
            mine.map(|range| bits(&segments[3][range.clone()])).collect::<Vec<_>>()
        });
        for (found, part) in sums.into_iter().zip(&parts) {
            let right: Vec<_> = part.iter().map(|range| right[range.clone()].to_vec()).collect();
            assert_eq!(found, right, "{shape:?}");
        }
    }
}

#[test]
fn all_ranks_receive_the_broadcast_of_rank_0_and_what_all_ranks_gather() {
    for n in [0, 1, 700_001] {
        let content: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        let right: Vec<Vec<u8>> = (0..6).map(|rank| vec![rank; rank as usize * n / 4]).collect();
        let received = spawn((2, 3), TIMEOUT, |group| {
            let rank = group.rank();
            let mut bytes = if rank.is_first() { content.clone() } else { vec![0; n] };
            group.broadcast(&mut bytes).unwrap();
            group.barrier().unwrap();
            (bytes, group.all_gather(&right[rank.index()]).unwrap())
        });
        assert!(received.iter().all(|got| got.0 == content && got.1 == right), "{n} bytes");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_on_all_machines() {
    for late in [Rank(2), Rank(3)] {
        let (timeout, over) = (Duration::from_millis(300), std::sync::Barrier::new(4));
        let began = Instant::now();
        let errors = spawn((2, 2), timeout, |group| {
            if group.rank() == late {
                over.wait();
                return String::new();
            }
            let error = group.barrier().unwrap_err().to_string();
            over.wait();
            error
        });
        assert!(began.elapsed() < TIMEOUT);
        let named = format!("timed out waiting for rank {late} (in call 0)");
        for (rank, error) in (0..).map(Rank).zip(errors).filter(|(rank, _)| *rank != late) {
            assert!(error.contains(&named), "rank {rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_aborts_tells_all_machines_why() {
    for by in [Rank(0), Rank(1), Rank(3)] {
        let errors = spawn((2, 2), TIMEOUT, |group| {
            group.barrier().unwrap();
            if group.rank() == by {
                group.abort("`a.png` is truncated");
            }
            group.all_gather(b"vote").unwrap_err().to_string()
        });
        for error in errors {
            assert_eq!(error, format!("rank {by} ended the group: `a.png` is truncated"));
        }
    }
}

#[test]
fn a_lost_leader_is_named_with_its_machine() {
    let errors = spawn((2, 2), TIMEOUT, |group| {
        group.barrier().unwrap();
        if group.rank() == Rank(2) {
            return None;
        }
        // Its parent, or its connection with it, tells rank 3 that it is gone.
        if group.rank() == Rank(3) {
            group.abort("rank 2 died");
        }
        Some(group.barrier().unwrap_err().to_string())
    });
    for error in errors[..2].iter().flatten() {
        assert!(error.contains("the connection to rank 2 on machine 1 ended"), "{error}");
    }
    assert!(errors[3].as_ref().is_some_and(|error| error.contains("rank 2 died")));
}

#[test]
fn other_calls_and_lengths_are_named_across_machines() {
    let errors = spawn((2, 2), TIMEOUT, |group| {
        let mut bytes = vec![0; if group.rank().0 < 2 { 8 } else { 12 }];
        group.broadcast(&mut bytes).unwrap_err().to_string()
    });
    let right =
        "rank 0 is in `broadcast` (call 1, 8 B), but rank 2 is in `broadcast` (call 1, 12 B)";
    assert!(errors.iter().all(|error| error.contains(right)), "{errors:?}");
}
