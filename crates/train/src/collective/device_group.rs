//! Gradients are summed by a library on the devices. All else, which is small and in the CPU's
//! memory, goes through a group of this program, the control group: shared memory of one machine,
//! or connections between several.
//!
//! The library waits for other ranks without a deadline, and does not know why one is gone. So this
//! program never waits in it: a thread that can be abandoned joins the library's group, and sums
//! are enqueued and polled. Between two polls the control group is asked whether it has ended; then
//! the library's part is aborted, to free the device.

use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::collective::{
    Call, Collective, DeviceExchange, Error, GradientBuffer, Missing, OnGpu, Op,
};
use crate::units::{Bytes, Rank, WorldSize};

/// Bytes of the library's group id.
pub(super) const ID_BYTES: usize = 128;
/// Time between two polls of pending sums: a fraction of a small step.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A group of this program that can be polled while this rank waits for something else.
pub(super) trait Control: Collective {
    /// Returns the error with which the group has ended, if it has. Does not wait.
    fn end(&self) -> Option<Error>;

    /// True if this rank was told to wait no longer.
    fn gives_up(&self) -> bool;

    /// Announces to the others that this rank begins to wait for the library once more.
    fn begin_wait(&self);

    /// The ranks that have begun to wait for it less often than this one; `None` = none of this
    /// machine, and of others it is not known.
    fn late(&self) -> Option<LateRanks>;
}

/// The ranks that a wait for the library waits for.
pub(super) struct LateRanks {
    /// The number of the wait, from 1.
    pub(super) wait: u64,
    /// Each with the number of its last one.
    pub(super) missing: Vec<Missing>,
}

/// One rank's part of the library's group.
pub(super) trait DeviceReducer: Send + Sync {
    /// A point in the order of the device's work.
    type Event;

    /// The library and its version.
    fn describe(&self) -> String;

    /// See [`OnGpu::enqueue`].
    fn enqueue(&self, exchange: DeviceExchange<'_>) -> Result<(), Error>;

    /// Makes later work of the device wait for all that was enqueued, and returns the event of its
    /// completion.
    fn record(&self) -> Result<Self::Event, Error>;

    /// True if the device has reached the event.
    fn is_complete(&self, event: &Self::Event) -> Result<bool, Error>;

    /// An error that the library has detected since the last call.
    fn failure(&self) -> Option<Error>;

    /// Cancels all pending sums. The group is unusable then.
    fn abort(&self);
}

/// One rank of both groups.
pub(super) struct DeviceGroup<S> {
    control: Arc<dyn Control>,
    reducer: S,
    timeout: Duration,
}

impl<S: DeviceReducer> DeviceGroup<S> {
    /// Creates the library's group with the other ranks: the control group broadcasts the id that
    /// rank 0 gets from `new_id`. `join` joins the group of that id on a thread of its own, where
    /// it may wait for the others without a deadline; `finish` makes this rank's part of the
    /// result.
    ///
    /// # Errors
    ///
    /// The library's or the control group's, or a rank did not join in time. The other ranks are
    /// told.
    pub(super) fn open<J: Send + 'static>(
        control: Arc<dyn Control>,
        timeout: Duration,
        new_id: impl FnOnce() -> Result<[u8; ID_BYTES], Error>,
        join: impl FnOnce([u8; ID_BYTES], Rank, WorldSize) -> Result<J, Error> + Send + 'static,
        finish: impl FnOnce(J) -> Result<S, Error>,
    ) -> Result<Self, Error> {
        let joined = join_library(control.as_ref(), timeout, new_id, join).and_then(finish);
        let reducer = joined.inspect_err(|error| control.abort(&error.to_string()))?;
        Ok(Self { control, reducer, timeout })
    }

    /// Ends both groups and passes the reason on.
    fn end(&self, error: Error) -> Error {
        self.control.abort(&error.to_string());
        self.reducer.abort();
        error
    }

    fn wait(&self) -> Result<(), Error> {
        let event = self.reducer.record()?;
        let what = "an exchange of the GPUs did not end";
        wait_for(self.control.as_ref(), self.timeout, what, || {
            if self.reducer.is_complete(&event)? {
                return Ok(Some(()));
            }
            self.reducer.failure().map_or(Ok(None), Err)
        })
    }
}

/// Joins the library's group.
fn join_library<J: Send + 'static>(
    control: &dyn Control,
    timeout: Duration,
    new_id: impl FnOnce() -> Result<[u8; ID_BYTES], Error>,
    join: impl FnOnce([u8; ID_BYTES], Rank, WorldSize) -> Result<J, Error> + Send + 'static,
) -> Result<J, Error> {
    let rank = control.rank();
    let world = control.world_size();
    let mut id = if rank.is_first() { new_id()? } else { [0; ID_BYTES] };
    control.broadcast(&mut id)?;
    let (sender, receiver) = channel();
    // After a timeout nothing receives it: the process then ends.
    let join = move || drop(sender.send(join(id, rank, world)));
    let thread = std::thread::Builder::new().name("nccl".into()).spawn(join);
    thread.map_err(|error| Error::Nccl { what: format!("cannot start the thread: {error}") })?;
    wait_for(control, timeout, "not all ranks joined the group", || match receiver.try_recv() {
        Ok(joined) => joined.map(Some),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => {
            Err(Error::Nccl { what: "the thread that joins the group is gone".to_owned() })
        }
    })
}

/// Polls until there is an answer, or until the group has ended or the timeout is over. `what`
/// names what did not happen.
fn wait_for<T>(
    control: &dyn Control,
    timeout: Duration,
    what: &str,
    mut poll: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    control.begin_wait();
    let began = Instant::now();
    loop {
        // The library's error may be the consequence of a rank that is gone: the control group may
        // know why.
        if let Some(answer) = poll().map_err(|error| control.end().unwrap_or(error))? {
            return Ok(answer);
        }
        if let Some(end) = control.end() {
            return Err(end);
        }
        let waited = began.elapsed();
        if waited >= timeout || control.gives_up() {
            return Err(late(control, what, waited));
        }
        // CUDA has no wait with a deadline.
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// The error of a wait that was too long; it names the missing ranks, as far as they are known.
fn late(control: &dyn Control, what: &str, waited: Duration) -> Error {
    let seconds = waited.as_secs_f64();
    let nccl = |why| Error::Nccl { what: format!("{what} within {seconds:.1} s{why}") };
    match control.late() {
        None => nccl(": a rank of another machine did not come; the ranks' logs say where each is"),
        Some(LateRanks { missing, .. }) if missing.is_empty() => nccl(
            ", though all ranks wait for it: look at the GPUs (`nvidia-smi`) and, with \
             NCCL_DEBUG=INFO, at their connections",
        ),
        Some(LateRanks { wait, missing }) => Error::Timeout {
            call: Call { seq: wait, op: Op::SumOnDevices, bytes: Bytes(0), tag: 0 },
            missing,
            waited,
        },
    }
}

impl<S: DeviceReducer> OnGpu for DeviceGroup<S> {
    fn enqueue(&self, exchange: DeviceExchange<'_>) -> Result<(), Error> {
        let enqueued = self.reducer.enqueue(exchange);
        enqueued.map_err(|error| self.end(self.control.end().unwrap_or(error)))
    }

    fn join(&self) -> Result<(), Error> {
        let joined = self.reducer.record().map(drop);
        joined.map_err(|error| self.end(self.control.end().unwrap_or(error)))
    }

    fn finish(&self) -> Result<(), Error> {
        self.wait().map_err(|error| self.end(error))
    }
}

impl<S: DeviceReducer> Collective for DeviceGroup<S> {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.control.world_size()
    }

    /// Gradients live in the device's memory.
    fn segments(&self, _lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        Err(Error::mapping("gradients are in the devices' memory"))
    }

    fn all_reduce(&self, _segment: &mut GradientBuffer) -> Result<(), Error> {
        Err(Error::mapping("gradients are in the devices' memory"))
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.control.broadcast(bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.control.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.control.barrier()
    }

    fn describe(&self) -> Option<String> {
        Some(self.reducer.describe())
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        Some(self)
    }

    fn abort(&self, reason: &str) {
        self.control.abort(reason);
        self.reducer.abort();
    }

    fn give_up(&self) {
        self.control.give_up();
    }
}

#[cfg(test)]
pub(super) mod tests;
