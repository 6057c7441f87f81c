//! Ranks as threads, over streams with and without sealed records.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::collective::message::PIECE_BYTES;
use crate::collective::reduce::tree_sum;
use crate::transport::Key;
use crate::transport::record::SessionKeys;

const TIMEOUT: Duration = Duration::from_secs(30);

fn tcp_pair() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    (one.into(), other.into())
}

fn unix_pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = UnixStream::pair().unwrap();
    (one.into(), other.into())
}

/// For each rank its connections to all others: authenticated TCP between even and odd ranks, Unix
/// sockets between others.
pub(in crate::collective) fn peers(world: u32) -> Vec<Vec<Peer>> {
    let mut peers: Vec<Vec<Peer>> = (0..world).map(|_| Vec::new()).collect();
    for a in 0..world {
        for b in a + 1..world {
            let is_far = (a + b) % 2 == 1;
            let (to_b, to_a) = if is_far { tcp_pair() } else { unix_pair() };
            let [up, down] = [Key::random().unwrap(), Key::random().unwrap()];
            for (own, other, socket, send, receive) in
                [(a, b, to_b, &up, &down), (b, a, to_a, &down, &up)]
            {
                let keys = SessionKeys::new(send.clone(), receive.clone());
                peers[own as usize].push(Peer {
                    rank: Rank(other),
                    address: format!("machine {}", other % 2),
                    socket,
                    keys: is_far.then_some(keys),
                });
            }
        }
    }
    peers
}

/// Runs `each` on `world` ranks as threads, and returns what they return in rank order.
fn spawn<T: Send>(
    world: u32,
    timeout: Duration,
    each: impl Fn(Arc<InterNodeGroup>) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |(rank, peers)| {
            let (each, size) = (&each, WorldSize::new(world).unwrap());
            scope.spawn(move || {
                each(Arc::new(InterNodeGroup::open(Rank(rank), size, peers, timeout).unwrap()))
            })
        };
        let threads: Vec<_> = (0..).zip(peers(world)).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A value that differs between ranks and elements, and whose sum depends on the order of addition.
pub(in crate::collective) fn value(rank: u32, i: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank.wrapping_mul(40_503));
    (mixed % 20_011) as f32 * 1.37e-3 * [1.0, -1e4, 1e-4][(mixed % 3) as usize]
}

pub(in crate::collective) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The sum of all ranks by the flat tree.
pub(in crate::collective) fn tree(world: u32, n: usize) -> Vec<u32> {
    let all = (0..world).map(|rank| (0..n).map(|i| value(rank, i)).collect());
    let mut all: Vec<Vec<f32>> = all.collect();
    tree_sum(&mut all.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    bits(&all[0])
}

/// The bits of all-reduced segments of these lengths, to which each rank gives its values.
pub(in crate::collective) fn summed(group: &dyn Collective, lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut segments = group.segments(lengths).unwrap();
    for segment in &mut segments {
        let rank = group.rank().0;
        segment.iter_mut().enumerate().for_each(|(i, v)| *v = value(rank, i));
        group.all_reduce(segment).unwrap();
    }
    segments.iter().map(|segment| bits(segment)).collect()
}

#[test]
fn sums_are_those_of_the_fixed_tree_bit_for_bit_on_all_ranks() {
    let lengths = [1, 0, 7, 64, 4097, 300_003];
    for world in [2, 3, 5] {
        let right: Vec<_> = lengths.iter().map(|&n| tree(world, n)).collect();
        let sums = spawn(world, TIMEOUT, |group| summed(&*group, &lengths));
        assert!(sums.into_iter().all(|sums| sums == right), "world size {world}");
    }
}

#[test]
fn each_rank_gets_the_sum_of_its_own_part_in_the_same_tree() {
    let n = 30_003;
    for world in [2, 3, 5] {
        let right = tree(world, n);
        let part = |rank: usize| vec![rank * 512..rank * 512 + 500, 9000 + rank..9001 + rank];
        let mut parts: Vec<Elements> = (0..world as usize).map(part).collect();
        parts[1] = Elements::new();
        let sums = spawn(world, TIMEOUT, |group| {
            let (rank, mut segments) = (group.rank(), group.segments(&[n]).unwrap());
            segments[0].iter_mut().enumerate().for_each(|(i, v)| *v = value(rank.0, i));
            group.reduce_scatter(&mut segments[0], &parts).unwrap();
            let mine = parts[rank.index()].iter();
            mine.map(|range| bits(&segments[0][range.clone()])).collect::<Vec<_>>()
        });
        for (found, part) in sums.into_iter().zip(&parts) {
            let right: Vec<_> = part.iter().map(|range| right[range.clone()].to_vec()).collect();
            assert_eq!(found, right, "world size {world}");
        }
    }
}

#[test]
fn all_ranks_receive_the_broadcast_of_rank_0_and_what_all_ranks_gather() {
    // Many use the tree.
    for (world, n) in
        [(3, 0), (3, 1), (3, PIECE_BYTES), (3, PIECE_BYTES + 1), (3, 3_000_001), (11, 500_001)]
    {
        let content: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        let right: Vec<Vec<u8>> =
            (0..world as u8).map(|rank| vec![rank; rank as usize * n]).collect();
        let received = spawn(world, TIMEOUT, |group| {
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
fn other_calls_and_lengths_are_named_on_both_sides_before_data_moves() {
    let errors = spawn(2, TIMEOUT, |group| match group.rank() {
        Rank(0) => group.broadcast(&mut [0; 8]).unwrap_err().to_string(),
        _ => group.broadcast(&mut [0; 12]).unwrap_err().to_string(),
    });
    let right =
        "rank 0 is in `broadcast` (call 1, 8 B), but rank 1 is in `broadcast` (call 1, 12 B)";
    assert!(errors.iter().any(|error| error == right), "{errors:?}");
    assert!(errors.iter().all(|error| error.contains(right)), "{errors:?}");
    for error in spawn(2, TIMEOUT, |group| match group.rank() {
        Rank(0) => group.barrier().map(drop).unwrap_err(),
        _ => group.all_gather(b"x").map(drop).unwrap_err(),
    }) {
        assert!(error.to_string().contains("rank 0 is in `barrier` (call 1)"), "{error}");
    }
}

#[test]
fn a_lost_rank_is_named_with_its_machine_and_the_group_has_ended() {
    let errors = spawn(3, TIMEOUT, |group| {
        group.barrier().unwrap();
        if group.rank() == Rank(2) {
            return None;
        }
        let error = group.all_gather(b"vote").unwrap_err();
        assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
        Some(error.to_string())
    });
    assert_eq!(errors.iter().flatten().count(), 2);
    for error in errors.into_iter().flatten() {
        assert!(error.contains("the connection to rank 2 on machine 0 ended"), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let began = Instant::now();
    let (timeout, over) = (Duration::from_millis(300), std::sync::Barrier::new(3));
    let errors = spawn(3, timeout, |group| {
        if group.rank() == Rank(1) {
            // It joins when the others have left.
            over.wait();
            // Their messages of this call are complete; they do not join the next.
            return group.barrier().and_then(|()| group.barrier()).unwrap_err();
        }
        let error = group.barrier().unwrap_err();
        over.wait();
        error
    });
    assert!(began.elapsed() < TIMEOUT);
    for error in [&errors[0], &errors[2]] {
        let text = error.to_string();
        assert!(text.contains("timed out waiting for rank 1 (in call 0) after 0.3 s"), "{text}");
    }
}

#[test]
fn a_rank_that_gives_up_waits_no_longer_and_names_the_missing() {
    let errors = spawn(2, TIMEOUT, |group| {
        if group.rank() == Rank(1) {
            let error = group.all_gather(b"too late");
            return error.map(drop).unwrap_err().to_string();
        }
        group.give_up();
        // The other may have joined already: then it does not join the next.
        loop {
            match group.barrier() {
                Ok(()) => {}
                Err(error) => return error.to_string(),
            }
        }
    });
    assert!(errors.iter().all(|error| !error.is_empty()), "{errors:?}");
}

#[test]
fn a_rank_that_aborts_tells_the_others_why() {
    let errors = spawn(3, TIMEOUT, |group| {
        group.barrier().unwrap();
        if group.rank() == Rank(1) {
            group.abort("`a.png` is truncated");
        }
        group.all_gather(b"vote").unwrap_err().to_string()
    });
    for error in errors {
        assert_eq!(error, "rank 1 ended the group: `a.png` is truncated");
    }
}

#[test]
fn a_waiting_thread_returns_when_another_of_its_rank_aborts() {
    let errors = spawn(2, TIMEOUT, |group| {
        if group.rank() == Rank(1) {
            let until_told = group.all_gather(b"").and_then(|_| group.barrier());
            return until_told.unwrap_err().to_string();
        }
        group.all_gather(b"").unwrap();
        let waiting = Arc::clone(&group);
        let thread = std::thread::spawn(move || waiting.all_gather(b"x"));
        group.abort("out of memory");
        thread.join().unwrap().unwrap_err().to_string()
    });
    assert!(errors[0].contains("out of memory") || errors[0].contains("`barrier`"), "{errors:?}");
}

/// A reduction of so many elements.
const ELEMENTS: usize = 50_000;
/// Bytes of its first message: a header, a piece and their tags.
const MESSAGE: usize = 48 + 16 + 2 * ELEMENTS + 16;

/// Reduces over two ranks while somebody between them changes what the first one sends, up to the
/// end of its first message. Returns what the second rank received, or its error.
fn reduction_after(change: impl FnOnce(&mut Vec<u8>) + Send) -> Result<Vec<f32>, String> {
    let mut all = peers(2);
    let (mut theirs, mut mine) = (all.remove(0), all.remove(0));
    // The socket of the first rank now ends at the attacker, who holds that to the second one.
    let (to_first, of_first) = tcp_pair();
    let to_second = std::mem::replace(&mut theirs[0].socket, of_first);
    let mine = mine.remove(0);
    std::thread::scope(|scope| {
        let open = |rank, peer| {
            InterNodeGroup::open(Rank(rank), WorldSize::new(2).unwrap(), vec![peer], TIMEOUT)
                .unwrap()
        };
        let reduce = move |rank: u32, peer: Peer| {
            let group = open(rank, peer);
            let mut segment = GradientBuffer::new(0, ELEMENTS);
            segment.fill(0.5);
            let done = group.all_reduce(&mut segment).map_err(|error| error.to_string());
            done.map(|()| segment.to_vec())
        };
        scope.spawn(move || drop(reduce(0, theirs.remove(0))));
        scope.spawn(move || {
            let [mut from, mut to] = [TcpStream::from(to_first), TcpStream::from(to_second)];
            let mut back = [from.try_clone().unwrap(), to.try_clone().unwrap()];
            scope.spawn(move || {
                let [to, from] = &mut back;
                let _ = std::io::copy(from, to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            let mut message = vec![0; MESSAGE];
            std::io::Read::read_exact(&mut from, &mut message).unwrap();
            change(&mut message);
            // The second rank may have closed its end by now.
            let _ = std::io::Write::write_all(&mut to, &message);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        reduce(1, mine)
    })
}

#[test]
fn an_unchanged_message_is_summed_through_the_same_wire() {
    let sum = reduction_after(|bytes| {
        let floats = 0.5_f32.to_le_bytes().repeat(4);
        assert!(!bytes.windows(16).any(|window| window == floats), "gradients can be read");
    });
    assert_eq!(sum.unwrap(), vec![1.0; ELEMENTS]);
}

#[test]
fn no_byte_of_a_reduction_can_be_changed() {
    let payload = 64..MESSAGE;
    let places = (0..64).chain(payload.clone().step_by(4999)).chain(MESSAGE - 17..MESSAGE);
    for at in places {
        let error = reduction_after(|bytes| bytes[at] ^= 1 << (at % 8)).unwrap_err();
        assert!(error.contains("altered, replayed or inserted"), "byte {at}: {error}");
        assert!(error.contains("the connection to rank 0 on machine 0 ended"), "{error}");
    }
}

#[test]
fn a_record_that_is_repeated_dropped_moved_inserted_or_cut_ends_the_group() {
    let changes: [fn(&mut Vec<u8>); 5] = [
        |bytes| *bytes = [&bytes[..64], &bytes[..]].concat(),
        |bytes| drop(bytes.drain(..64)),
        |bytes| bytes.rotate_left(64),
        |bytes| drop(bytes.splice(..0, [7; 64])),
        |bytes| bytes.truncate(MESSAGE - 1),
    ];
    for change in changes {
        let error = reduction_after(change).unwrap_err();
        assert!(error.contains("altered, replayed or inserted"), "{error}");
    }
}

#[test]
fn a_forged_end_of_the_group_is_not_believed() {
    let mut all = peers(2);
    let (one, theirs) = (all.remove(0), all.remove(0));
    let wire = theirs[0].socket.try_clone().unwrap();
    let group = InterNodeGroup::open(Rank(0), WorldSize::new(2).unwrap(), one, TIMEOUT).unwrap();
    let end = [0xE0D_u64, 0, 0, 0, 1, 0].map(u64::to_le_bytes).concat();
    let flags = rustix::net::SendFlags::empty();
    rustix::net::send(&wire, &[end, vec![7; 16]].concat(), flags).unwrap();
    // As a rank sees it that waits for its GPU, and then as one in a call.
    let seen = group.end().unwrap().to_string();
    assert!(seen.contains("altered, replayed or inserted"), "{seen}");
    assert_eq!(group.barrier().unwrap_err().to_string(), seen);
}

#[test]
fn a_group_without_all_connections_is_refused() {
    let mut some = peers(3).remove(0);
    some.pop();
    let error =
        InterNodeGroup::open(Rank(0), WorldSize::new(3).unwrap(), some, TIMEOUT).err().unwrap();
    assert!(error.to_string().contains("rank 0 of 3 has 1 of them"), "{error}");
}
