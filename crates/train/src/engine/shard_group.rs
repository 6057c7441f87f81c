//! All shards of a pass, of this rank and the others, as one group with an all-gather: the shards
//! of a rank are threads, and the last of them to arrive calls the ranks' collective.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Result, bail};

use crate::collective::{self, Collective};
use crate::ops::SyncGroup;

pub(super) const OTHER_LAYERS: &str =
    "a shard takes batch statistics where another has finished its pass";
pub(super) const ANOTHER_FAILED: &str = "another shard of this rank failed";

/// What a shard contributes to an all-gather.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// What a layer needs of all.
    Statistics(Vec<f64>),
    /// Nothing: it has no samples.
    Absent,
    /// Nothing: its pass is over.
    Done,
}

impl Message {
    pub(super) fn is_statistics(&self) -> bool {
        matches!(self, Self::Statistics(_))
    }

    /// Eight bytes that say what it is, and the values.
    fn write(&self, bytes: &mut Vec<u8>) {
        let (head, values): (u64, &[f64]) = match self {
            Self::Absent => (0, &[]),
            Self::Done => (1, &[]),
            Self::Statistics(values) => (2 + values.len() as u64, values),
        };
        bytes.extend(head.to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// The first message of `bytes`, which lose it.
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut next = || -> Option<[u8; 8]> {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*first)
        };
        Some(match u64::from_le_bytes(next()?) {
            0 => Self::Absent,
            1 => Self::Done,
            n => Self::Statistics(
                (2..n).map(|_| next().map(f64::from_le_bytes)).collect::<Option<_>>()?,
            ),
        })
    }
}

/// The shards of this rank, and the collective that reaches those of others.
pub(super) struct ShardGroup {
    collective: Arc<dyn Collective>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Completed all-gathers.
    completed: u64,
    /// What the shards of this rank that have arrived contribute.
    arrived: Vec<Option<Message>>,
    /// Result of the last all-gather.
    gathered: Arc<[Message]>,
    /// Whether the group was aborted: a shard or a rank failed.
    aborted: bool,
    failure: Option<collective::Error>,
    /// Time spent in the ranks' collective.
    wait_time: Duration,
}

impl ShardGroup {
    /// The group of a rank with so many shards.
    pub(super) fn new(shards: usize, collective: Arc<dyn Collective>) -> Self {
        let state = State { arrived: vec![None; shards], ..State::default() };
        Self { collective, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// What the shards of all ranks contribute, `mine` among them, in their order.
    pub(super) fn all_gather(&self, shard: usize, mine: Message) -> Result<Arc<[Message]>> {
        let mut state = self.state();
        let number = state.completed;
        state.arrived[shard] = Some(mine);
        if !state.aborted && state.arrived.iter().all(Option::is_some) {
            self.exchange(&mut state);
            self.changed.notify_all();
        }
        while state.completed == number && !state.aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failure {
            _ if state.completed > number => Ok(state.gathered.clone()),
            Some(failure) => bail!("{failure}"),
            None => bail!("{ANOTHER_FAILED}"),
        }
    }

    fn exchange(&self, state: &mut State) {
        let started = Instant::now();
        let mut mine = Vec::new();
        let arrived = state.arrived.iter_mut().filter_map(Option::take);
        arrived.for_each(|message| message.write(&mut mine));
        let gathered = self.collective.all_gather(&mine);
        state.wait_time += started.elapsed();
        match gathered {
            Ok(ranks) => {
                let read = |rank: &Vec<u8>| {
                    let mut bytes = rank.as_slice();
                    std::iter::from_fn(|| Message::read(&mut bytes)).collect::<Vec<_>>()
                };
                state.gathered = ranks.iter().flat_map(read).collect();
                state.completed += 1;
            }
            Err(failure) => {
                state.failure = Some(failure);
                state.aborted = true;
            }
        }
    }

    /// Why other ranks cannot be reached, if they cannot.
    pub(super) fn failure(&self) -> Option<collective::Error> {
        self.state().failure.clone()
    }

    /// Time that this rank has waited for others since the last call.
    pub(super) fn take_wait_time(&self) -> Duration {
        std::mem::take(&mut self.state().wait_time)
    }

    /// Wakes the shards that wait; every all-gather from now on fails.
    pub(super) fn abort(&self) {
        self.state().aborted = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A shard that panics has aborted the group.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One shard of the group, as its layers see it.
pub(super) struct Member {
    pub(super) group: Arc<ShardGroup>,
    pub(super) shard: usize,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl SyncGroup for Member {
    fn all_gather(&self, mine: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        let all = self.group.all_gather(self.shard, Message::Statistics(mine))?;
        if all.contains(&Message::Done) {
            bail!("{OTHER_LAYERS}");
        }
        let values = |message: &Message| match message {
            Message::Statistics(values) => Some(values.clone()),
            Message::Absent | Message::Done => None,
        };
        Ok(all.iter().filter_map(values).collect())
    }
}
