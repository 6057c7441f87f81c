//! Links between the leaders of several machines: messages over connections of our own
//! (`exchange`), or through an MPI library (`mpi`).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::collective::message::Target;
use crate::collective::{Call, Error};
use crate::transport::Waker;
use crate::units::Rank;

/// Called again and again by a leader that waits for others.
pub(super) type WaitHook = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// One exchange of a call.
pub(super) struct Exchange<'a> {
    pub(super) rank: Rank,
    pub(super) call: &'a Call,
    /// Number of the exchange within its call, from 0.
    pub(super) round: u64,
    pub(super) interrupts: &'a Interrupts,
    pub(super) timeout: Duration,
    /// For a leader that ranks of its machine wait for: called again and again; an error ends the
    /// exchange.
    pub(super) wait_hook: Option<&'a WaitHook>,
}

/// A message to another leader, and the one expected from it.
pub(super) struct Message<'a> {
    /// Index among the other leaders, from 0.
    pub(super) peer: usize,
    pub(super) out: Option<&'a [u8]>,
    pub(super) into: Option<Target<'a>>,
}

/// The links of a leader to all others.
pub(super) trait Links: Send {
    /// Sends and receives these messages, in the order of the others, at most one each. One that
    /// makes no progress at all for the timeout is missing.
    ///
    /// # Errors
    ///
    /// A leader is gone, late, ended the group, or makes another call. The links are then unusable,
    /// and the others have been told as far as possible.
    fn exchange(
        &mut self,
        exchange: &Exchange<'_>,
        messages: Vec<Message<'_>>,
    ) -> Result<(), Error>;

    /// Tells all others why the group has ended.
    fn end_all(&mut self, rank: Rank, error: &Error);

    /// Returns the reason for which the group has ended, as far as the links show it between two
    /// calls. A message of a leader that is ahead, in its next call, is left unread. Does not wait.
    #[cfg(any(feature = "cuda", test))]
    fn received_end(&mut self, call: &Call) -> Option<Error>;

    /// Replaces `values` by their sums over all ranks, which a library adds up. All make this call.
    fn sum_by_library(
        &mut self,
        _exchange: &Exchange<'_>,
        _values: &mut Vec<f32>,
    ) -> Result<(), Error> {
        Err(Error::Connections { what: "no library adds up what they carry".to_owned() })
    }

    /// The library behind them, if there is one.
    fn describe(&self) -> Option<String> {
        None
    }
}

/// Requests of other threads of this rank to the one that waits in an exchange.
pub(super) struct Interrupts {
    pub(super) waker: Waker,
    gives_up: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Interrupts {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            gives_up: AtomicBool::new(false),
            reason: Mutex::new(None),
        })
    }

    /// Requests to wait no longer.
    pub(super) fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Requests to end the group. The first reason stays.
    pub(super) fn abort(&self, reason: &str) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| reason.to_owned());
        self.waker.wake();
    }

    /// True if this rank shall wait no longer.
    pub(super) fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::SeqCst)
    }

    /// Returns the reason to end the group, if that was requested.
    pub(super) fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
