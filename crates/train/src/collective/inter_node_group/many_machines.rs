//! Up to 128 machines of 8 ranks, each a thread with the real code of its leader, over wires that
//! count: messages, bytes, and how many messages follow one another. The table in
//! docs/internals.md is printed by
//!
//! ```text
//! cargo test --lib -- collective::inter_node_group::many_machines --nocapture
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use super::tests::{bits, tree, value};
use super::words::{FEW, PIECE, height};
use super::*;
use crate::collective::MissingRank;
use crate::collective::links::Message;
use crate::collective::message::{HEADER_BYTES, Target, check_header, header_of};

const LOCAL: u32 = 8;
const TIMEOUT: Duration = Duration::from_mins(1);
/// Elements of the gradient: 512 for each machine of the largest world.
const GRADIENT: usize = 64 << 10;
/// Bytes of a rank's vote at the end of a step, as in `benches/collectives.rs`.
const VOTE: usize = 150;

/// Messages and bytes that one leader sent in calls of one kind.
#[derive(Default)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, bytes: usize) {
        self.messages.fetch_add(1, SeqCst);
        self.bytes.fetch_add(bytes as u64, SeqCst);
    }

    fn take(&self) -> (u64, u64) {
        (self.messages.swap(0, SeqCst), self.bytes.swap(0, SeqCst))
    }
}

/// Counts of one leader, and the most messages that followed one another until now.
#[derive(Default)]
struct Counts {
    data: Count,
    control: Count,
    steps: AtomicU64,
}

enum Sent {
    /// With the number of messages that came before it, one after the other.
    Message(Vec<u8>, u64),
    End(Rank, String),
}

/// Links of a leader that are queues in memory.
struct Wires {
    machine: usize,
    to: Vec<Sender<(usize, Sent)>>,
    from: Receiver<(usize, Sent)>,
    early: Vec<VecDeque<(Vec<u8>, u64)>>,
    counts: Arc<Counts>,
}

impl Wires {
    fn machine_of(&self, peer: usize) -> usize {
        peer + usize::from(peer >= self.machine)
    }

    fn receive(&mut self, from: usize, exchange: &Exchange<'_>) -> Result<(Vec<u8>, u64), Error> {
        let rank = |machine: usize| Rank(machine as u32 * LOCAL);
        let until = Instant::now() + exchange.timeout;
        loop {
            if let Some(message) = self.early[from].pop_front() {
                return Ok(message);
            }
            match self.from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((machine, Sent::Message(bytes, steps))) => {
                    self.early[machine].push_back((bytes, steps));
                }
                Ok((_, Sent::End(by, reason))) => return Err(Error::Aborted { by, reason }),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let missing =
                        vec![MissingRank { rank: rank(from), begun: exchange.call.seq - 1 }];
                    let waited = exchange.timeout;
                    return Err(Error::Timeout { call: *exchange.call, missing, waited });
                }
            }
        }
    }
}

impl Links for Wires {
    fn exchange(
        &mut self,
        exchange: &Exchange<'_>,
        messages: Vec<Message<'_>>,
    ) -> Result<(), Error> {
        let call = exchange.call;
        let mut steps = self.counts.steps.load(SeqCst);
        for Message { peer, out, .. } in &messages {
            let Some(out) = out else { continue };
            let bytes = [&header_of(call, exchange.round, out.len()), *out].concat();
            let is_data = matches!(call.op, Op::AllReduce | Op::ReduceScatter);
            let count = if is_data { &self.counts.data } else { &self.counts.control };
            count.add(bytes.len());
            let _ = self.to[self.machine_of(*peer)]
                .send((self.machine, Sent::Message(bytes, steps + 1)));
        }
        for Message { peer, into, .. } in messages {
            let Some(mut target) = into else { continue };
            let machine = self.machine_of(peer);
            let received = self.receive(machine, exchange);
            let (bytes, after) =
                received.inspect_err(|error| self.end_all(exchange.rank, error))?;
            let (header, payload) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
            let other = Rank(machine as u32 * LOCAL);
            let checked = check_header(header, exchange.rank, other, call, exchange.round, &target);
            checked.inspect_err(|error| self.end_all(exchange.rank, error))?;
            match &mut target {
                Target::Slice(slice) => slice.copy_from_slice(payload),
                Target::Vec(bytes) => payload.clone_into(bytes),
            }
            steps = steps.max(after);
        }
        self.counts.steps.store(steps, SeqCst);
        Ok(())
    }

    fn end_all(&mut self, rank: Rank, error: &Error) {
        let (by, reason) = error.abort_reason(rank);
        for to in &self.to {
            let _ = to.send((self.machine, Sent::End(by, reason.clone())));
        }
    }

    fn received_end(&mut self, _call: &Call) -> Option<Error> {
        None
    }
}

/// Runs `each` on the leaders of so many machines as threads, and returns what they return.
fn spawn<T: Send>(
    machines: usize,
    timeout: Duration,
    each: impl Fn(&InterNodeGroup, &Counts) -> T + Sync,
) -> Vec<T> {
    let (to, from): (Vec<_>, Vec<_>) = (0..machines).map(|_| channel()).unzip();
    let start = |(machine, from): (usize, _)| {
        let counts = Arc::new(Counts::default());
        let early = (0..machines).map(|_| VecDeque::new()).collect();
        let wires = Wires { machine, to: to.clone(), from, early, counts: counts.clone() };
        let [local, world] =
            [LOCAL, LOCAL * machines as u32].map(|ranks| WorldSize::new(ranks).unwrap());
        let at = Topology { rank: Rank(machine as u32 * LOCAL), world, local };
        (InterNodeGroup::linked(at, Box::new(wires), timeout, None).unwrap(), counts)
    };
    let all: Vec<_> = from.into_iter().enumerate().map(start).collect();
    std::thread::scope(|scope| {
        let each = &each;
        let run = |(leaders, counts): (InterNodeGroup, Arc<Counts>)| {
            scope.spawn(move || each(&leaders, &counts))
        };
        let threads: Vec<_> = all.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Counts of one machine in a step, and the number of messages in turn until it is done.
struct Step {
    data: (u64, u64),
    control: (u64, u64),
    steps: [u64; 2],
    sums: Vec<u32>,
}

/// A step: the machine's sums are added to those of all, and each rank votes.
fn step(leaders: &InterNodeGroup, counts: &Counts, together: &Barrier) -> Step {
    let first = leaders.rank().0;
    let mut ranks: Vec<Vec<f32>> = (first..first + LOCAL)
        .map(|rank| (0..GRADIENT).map(|i| value(rank, i)).collect())
        .collect();
    let mut parts: Vec<&mut [f32]> = ranks.iter_mut().map(Vec::as_mut_slice).collect();
    crate::collective::tree_sum(&mut parts);
    let mut sums = ranks.swap_remove(0);
    let shares = leaders.shares(GRADIENT);
    let (call, mut state) = leaders.begin(Op::AllReduce, 4 * GRADIENT, 0).unwrap();
    let own = sums.clone();
    let out: Vec<&[f32]> = shares.iter().map(|share| &own[share.clone()]).collect();
    leaders.reduce_share(&mut state, &call, &out).unwrap();
    leaders.gather_shares(&mut state, &call, &mut sums, &shares).unwrap();
    drop(state);
    let of_data = counts.steps.swap(0, SeqCst);
    // Every machine has reset its count before the first of them votes.
    together.wait();
    let votes = vec![first as u8; LOCAL as usize * VOTE];
    let all = leaders.all_gather(&votes).unwrap();
    assert!(
        all.iter().zip(0..).all(|(votes, machine)| *votes == vec![(LOCAL * machine) as u8; 1200])
    );
    let steps = [of_data, counts.steps.load(SeqCst)];
    Step { data: counts.data.take(), control: counts.control.take(), steps, sums: bits(&sums) }
}

#[test]
fn to_a_thousand_ranks_a_machine_sends_its_gradient_twice_and_votes_grow_linearly() {
    println!(
        "| ranks | machines | gradients: sent by a machine / their bytes | messages of all | in turn \
         | votes: most bytes from a machine | messages of all | in turn |"
    );
    for machines in [2, 4, 8, 16, 32, 64, 128] {
        let together = Barrier::new(machines);
        let all = spawn(machines, TIMEOUT, |leaders, counts| step(leaders, counts, &together));
        let right = tree(LOCAL * machines as u32, GRADIENT);
        assert!(all.iter().all(|one| one.sums == right), "{machines} machines");
        let most = |of: &dyn Fn(&Step) -> u64| all.iter().map(of).max().unwrap();
        let sum = |of: &dyn Fn(&Step) -> u64| all.iter().map(of).sum::<u64>();
        let headers = most(&|one| one.data.0) * HEADER_BYTES as u64;
        let data = most(&|one| one.data.1) - headers;
        let gradient = 4 * GRADIENT as u64;
        let messages = [sum(&|one| one.data.0), sum(&|one| one.control.0)];
        let steps = [0, 1].map(|at| most(&|one| one.steps[at]));
        println!(
            "| {} | {machines} | {:.2} | {} | {} | {} | {} | {} |",
            LOCAL as usize * machines,
            data as f64 / gradient as f64,
            messages[0],
            steps[0],
            most(&|one| one.control.1),
            messages[1],
            steps[1],
        );
        let n = machines as u64;
        assert!(data <= 2 * gradient, "{machines} machines: {data} bytes");
        assert_eq!(messages[0], 2 * n * (n - 1), "two from each to each");
        assert_eq!(steps[0], 2);
        let levels = u64::from(height(0, machines));
        let (least, in_turn) =
            if machines <= FEW { (n * (n - 1), 1) } else { (3 * (n - 1), 1 + 2 * levels) };
        assert_eq!((messages[1], steps[1] <= in_turn), (least, true), "{steps:?}");
        assert!(messages[1] <= 8 * n && steps[1] <= 1 + 2 * (1 + u64::from(n.ilog2()) / 3));
    }
}

#[test]
fn a_machine_that_does_not_come_is_named_on_all_of_a_hundred() {
    for late in [0, 1, 12, 99] {
        let (begin, over) = (Barrier::new(100), Barrier::new(100));
        let errors = spawn(100, Duration::from_secs(1), |leaders, _| {
            // On a busy machine threads start late.
            begin.wait();
            let is_late = leaders.rank() == Rank(late * LOCAL);
            let error = if is_late { None } else { leaders.all_gather(b"vote").err() };
            over.wait();
            (is_late, error.map(|error| error.to_string()))
        });
        let named = format!("timed out waiting for rank {} (in call 0)", late * LOCAL);
        for (is_late, error) in errors {
            assert!(
                is_late || error.as_ref().is_some_and(|text| text.contains(&named)),
                "{error:?}"
            );
        }
    }
}

#[test]
fn a_machine_in_another_call_is_named_through_the_tree() {
    let errors = spawn(20, TIMEOUT, |leaders, _| match leaders.rank() {
        Rank(96) => leaders.barrier().unwrap_err().to_string(),
        _ => leaders.all_gather(b"vote").unwrap_err().to_string(),
    });
    let named = "rank 96 is in `barrier` (call 1)";
    assert!(errors.iter().all(|error| error.contains(named)), "{errors:?}");
}

#[test]
fn broadcasts_and_what_is_gathered_go_through_the_tree_whole() {
    for (machines, n) in [(9, 0), (9, 2 * PIECE + 5), (20, PIECE), (75, 1000)] {
        let content: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        let received = spawn(machines, TIMEOUT, |leaders, _| {
            let machine = leaders.machine();
            let mut bytes = if machine == 0 { content.clone() } else { vec![0; n] };
            leaders.broadcast(&mut bytes).unwrap();
            leaders.barrier().unwrap();
            (bytes == content, leaders.all_gather(&vec![machine as u8; machine]).unwrap())
        });
        let right: Vec<Vec<u8>> =
            (0..machines).map(|machine| vec![machine as u8; machine]).collect();
        assert!(received.into_iter().all(|(same, all)| same && all == right), "{machines}, {n}");
    }
}
