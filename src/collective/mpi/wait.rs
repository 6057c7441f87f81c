//! Waiting for transfers without blocking in the library: every wait has a deadline, and can be
//! ended by another thread or another rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::collective::mpi::headers::{END_BYTES, END_TAG, end, read_end};
use crate::collective::mpi::library::Transfer;
use crate::collective::mpi::world::{World, world};
use crate::collective::{Call, Error, Missing};
use crate::units::Rank;

/// Time between two looks for a message that ends the group.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Time for which data are polled without sleeping: the library moves them only while it is called.
pub(super) const BUSY: Duration = Duration::from_millis(20);
/// Time for which other ranks are waited for without sleeping.
pub(super) const BRIEFLY: Duration = Duration::from_millis(1);
/// Time between two polls after that.
const NAP: Duration = Duration::from_micros(100);
/// No pause counts for longer: while the whole group is suspended (Ctrl-Z), so is the deadline.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Time that other ranks have to report why their group ended, before this one ends them.
const GRACE: Duration = Duration::from_secs(2);
/// Longest time to tell other ranks that the group has ended.
const TELL_TIMEOUT: Duration = Duration::from_millis(500);

/// Requests of other threads of this rank to the one that waits.
#[derive(Default)]
pub(super) struct Interrupts {
    gives_up: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Interrupts {
    /// Requests to wait no longer.
    pub(super) fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
    }

    /// Requests to end the group. The first reason stays.
    pub(super) fn abort(&self, reason: &str) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| reason.to_owned());
    }

    fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The waits of one call.
pub(super) struct Wait<'a> {
    pub(super) world: &'a World,
    pub(super) interrupts: &'a Interrupts,
    pub(super) call: &'a Call,
    pub(super) timeout: Duration,
}

impl Wait<'_> {
    /// What the library says, as an error.
    pub(super) fn failed(&self, why: &str) -> Error {
        Error::Mpi { what: format!("{why}, in {}", self.call) }
    }

    /// Waits for all transfers, and returns their memory. `missing` are the ranks that those at
    /// these positions wait for; `busy` is the time without sleep.
    pub(super) fn complete<B>(
        &self,
        mut transfers: Vec<Transfer<B>>,
        busy: Duration,
        missing: impl Fn(&[usize]) -> Vec<Missing>,
    ) -> Result<Vec<B>, Error> {
        let mut open: Vec<usize> = (0..transfers.len()).collect();
        let (mut pace, mut looked) = (Pace::start(busy), Instant::now());
        while !open.is_empty() {
            let polled = self.poll(&mut transfers, &open);
            open = polled.map_err(|why| self.failed(&why))?;
            if open.is_empty() {
                break;
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                self.look_for_end()?;
                looked = Instant::now();
            }
            let is_over = pace.waited >= self.timeout;
            if is_over || self.interrupts.gives_up.load(Ordering::SeqCst) {
                let (missing, waited) = (missing(&open), pace.waited);
                return Err(Error::Timeout { call: *self.call, missing, waited });
            }
            pace.pause();
        }
        Ok(transfers.into_iter().filter_map(Transfer::finish).collect())
    }

    /// The positions of those that are not complete.
    fn poll<B>(&self, transfers: &mut [Transfer<B>], open: &[usize]) -> Result<Vec<usize>, String> {
        let library = self.world.library();
        let mut still = Vec::with_capacity(open.len());
        for &at in open {
            if !transfers[at].poll(&library)? {
                still.push(at);
            }
        }
        Ok(still)
    }

    /// Whether this rank was told to end the group, or another one has.
    fn look_for_end(&self) -> Result<(), Error> {
        if let Some(reason) = self.interrupts.reason() {
            return Err(Error::Aborted { by: self.world.rank, reason });
        }
        for other in others(self.world) {
            let found = self.world.library().has_message(other, END_TAG);
            if found.map_err(|why| self.failed(&why))? {
                return Err(self.receive_end(other));
            }
        }
        Ok(())
    }

    fn receive_end(&self, from: usize) -> Error {
        let begun = self.world.library().receive(END_BYTES, from, END_TAG);
        let received = begun.map_err(|why| self.failed(&why)).map(|mut transfer| {
            let until = Instant::now() + TELL_TIMEOUT;
            while Instant::now() < until {
                if !matches!(transfer.poll(&self.world.library()), Ok(false)) {
                    break;
                }
                std::thread::sleep(NAP);
            }
            transfer.finish()
        });
        match received {
            Ok(Some(bytes)) => read_end(&bytes),
            Ok(None) => {
                let reason = "its reason did not arrive".to_owned();
                Error::Aborted { by: Rank(from as u32), reason }
            }
            Err(error) => error,
        }
    }
}

/// Tells all ranks why the group has ended, as far as they can be reached in a short time.
pub(super) fn tell(world: &World, error: &Error) {
    world.has_told.store(true, Ordering::SeqCst);
    let (by, reason) = match error {
        Error::Aborted { by, reason } => (*by, reason.clone()),
        other => (world.rank, other.to_string()),
    };
    let send = |other| world.library().send(end(by, &reason), other, END_TAG).ok();
    let mut sent: Vec<_> = others(world).filter_map(send).collect();
    let until = Instant::now() + TELL_TIMEOUT;
    while !sent.is_empty() && Instant::now() < until {
        let library = world.library();
        sent.retain_mut(|transfer| matches!(transfer.poll(&library), Ok(false)));
        drop(library);
        std::thread::sleep(NAP);
    }
}

/// Ends all ranks with this code, where this process has started MPI: the last thing that a rank
/// does that has failed, so that no other waits for ever.
pub(crate) fn abort(code: u8) {
    let Some(world) = world() else { return };
    if !world.has_told.load(Ordering::SeqCst) {
        let reason = format!("it failed, with exit code {code}");
        tell(world, &Error::Aborted { by: world.rank, reason });
    }
    // The others shall say so before they are ended.
    std::thread::sleep(GRACE);
    world.library().abort(code);
}

/// All ranks but this one.
pub(super) fn others(world: &World) -> impl Iterator<Item = usize> {
    let me = world.rank.index();
    (0..world.size.count()).filter(move |other| *other != me)
}

/// Pauses between polls: short at first.
struct Pace {
    busy: Duration,
    waited: Duration,
    last: Instant,
}

impl Pace {
    fn start(busy: Duration) -> Self {
        Self { busy, waited: Duration::ZERO, last: Instant::now() }
    }

    fn pause(&mut self) {
        if self.waited < self.busy {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
        let now = Instant::now();
        self.waited += (now - self.last).min(MAX_PAUSE);
        self.last = now;
    }
}
