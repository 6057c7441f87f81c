//! Where the shards of a pass wait for each other, and the last of a rank to come for the other
//! ranks.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Result, bail};

use crate::collective::{self, Collective};
use crate::ops::SyncGroup;

pub(super) const OTHER_LAYERS: &str =
    "a shard takes batch statistics where another is through with its pass";
pub(super) const LEFT_ALONE: &str = "another shard of this rank failed";

/// What a shard brings to a meeting.
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

/// The shards of this rank, and the way to those of others.
pub(super) struct Meeting {
    collective: Arc<dyn Collective>,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// Meetings so far.
    met: u64,
    /// What the shards of this rank that are here have brought.
    here: Vec<Option<Message>>,
    /// What all shards brought to the last meeting.
    all: Arc<[Message]>,
    /// Whether there are no more meetings: a shard or a rank failed.
    ended: bool,
    failure: Option<collective::Error>,
    /// Time spent in exchanges.
    waited: Duration,
}

impl Meeting {
    /// That of a rank with so many shards.
    pub(super) fn new(shards: usize, collective: Arc<dyn Collective>) -> Self {
        let state = State { here: vec![None; shards], ..State::default() };
        Self { collective, state: Mutex::new(state), news: Condvar::new() }
    }

    /// `mine` and what the shards of all ranks have brought, in their order.
    ///
    /// # Errors
    ///
    /// There are no more meetings.
    pub(super) fn meet(&self, shard: usize, mine: Message) -> Result<Arc<[Message]>> {
        let mut state = self.state();
        let number = state.met;
        state.here[shard] = Some(mine);
        if !state.ended && state.here.iter().all(Option::is_some) {
            self.exchange(&mut state);
            self.news.notify_all();
        }
        while state.met == number && !state.ended {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failure {
            _ if state.met > number => Ok(state.all.clone()),
            Some(failure) => bail!("{failure}"),
            None => bail!("{LEFT_ALONE}"),
        }
    }

    fn exchange(&self, state: &mut State) {
        let started = Instant::now();
        let mut mine = Vec::new();
        state.here.iter_mut().filter_map(Option::take).for_each(|message| message.write(&mut mine));
        let gathered = self.collective.all_gather(&mine);
        state.waited += started.elapsed();
        match gathered {
            Ok(all) => {
                let read = |rank: &Vec<u8>| {
                    let mut bytes = rank.as_slice();
                    std::iter::from_fn(|| Message::read(&mut bytes)).collect::<Vec<_>>()
                };
                state.all = all.iter().flat_map(read).collect();
                state.met += 1;
            }
            Err(failure) => {
                state.failure = Some(failure);
                state.ended = true;
            }
        }
    }

    /// Why other ranks cannot be reached, if they cannot.
    pub(super) fn failure(&self) -> Option<collective::Error> {
        self.state().failure.clone()
    }

    /// Time that this rank has waited for others since the last call.
    pub(super) fn take_waited(&self) -> Duration {
        std::mem::take(&mut self.state().waited)
    }

    /// There are no more meetings.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.news.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A shard that panics has ended the meeting.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One shard, to its layers.
pub(super) struct Part {
    pub(super) meeting: Arc<Meeting>,
    pub(super) shard: usize,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl SyncGroup for Part {
    fn all_gather(&self, mine: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        let all = self.meeting.meet(self.shard, Message::Statistics(mine))?;
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
