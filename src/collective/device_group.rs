//! Gradients are summed by a library of the devices; everything else, which is small and lives on the CPU, goes through a group of
//! this program (its control): shared memory of one machine, or connections between several.
//!
//! A library waits for other ranks without a deadline and does not know why one is gone. So nobody waits in it: its work is
//! given to a thread that can be left behind, or enqueued and asked after, and between two looks the control is asked whether
//! the group has ended. Then the library's part is aborted, so that it lets go of the device.

use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use crate::collective::{Collective, Error, OnGpu, Segment};
use crate::units::{Rank, WorldSize};

/// Bytes of what identifies a group of the library.
pub(super) const ID_BYTES: usize = 128;
/// Time between two looks at sums that are under way: a fraction of a small step.
const LOOK: Duration = Duration::from_micros(50);

/// A group of this program that can be asked how it stands while this rank waits for something else.
pub(super) trait Control: Collective {
    /// Why the group has ended, if it has. Waits for nobody.
    fn end(&self) -> Option<Error>;

    /// Whether this rank was told that waiting is in vain.
    fn gives_up(&self) -> bool;
}

/// One rank's part of the library's group.
pub(super) trait Sums: Send + Sync {
    /// A moment in the order of the device's work.
    type Moment;

    /// The library and its version.
    fn describe(&self) -> String;

    /// As [`OnGpu::enqueue_all_reduce`].
    fn enqueue(&self, values: &Tensor) -> Result<(), Error>;

    /// Lets all that the device is given from now on wait for the sums, and says when they are there.
    fn close(&self) -> Result<Self::Moment, Error>;

    /// Whether it is that moment, or later.
    fn is_over(&self, moment: &Self::Moment) -> Result<bool, Error>;

    /// What the library found out by itself since it was last asked.
    fn failure(&self) -> Option<Error>;

    /// Takes all that is under way from the device. The group is of no further use.
    fn abort(&self);
}

/// One rank of both groups.
pub(super) struct DeviceGroup<S> {
    control: Arc<dyn Control>,
    sums: S,
    timeout: Duration,
}

impl<S: Sums> DeviceGroup<S> {
    /// Makes the library's group together with the other ranks: rank 0 gives it a `name`, which the control takes to all; then
    /// each joins it. `joined` waits for the others without a deadline, on a thread of its own; `enter` is this rank's part.
    ///
    /// # Errors
    ///
    /// The library's or the control's, or a rank did not come in time. The other ranks are told.
    pub(super) fn open<J: Send + 'static>(
        control: Arc<dyn Control>,
        timeout: Duration,
        name: impl FnOnce() -> Result<[u8; ID_BYTES], Error>,
        joined: impl FnOnce([u8; ID_BYTES], Rank, WorldSize) -> Result<J, Error> + Send + 'static,
        enter: impl FnOnce(J) -> Result<S, Error>,
    ) -> Result<Self, Error> {
        let made = meet(control.as_ref(), timeout, name, joined).and_then(enter);
        let sums = made.inspect_err(|error| control.abort(&error.to_string()))?;
        Ok(Self { control, sums, timeout })
    }

    /// Ends both groups and passes the reason on.
    fn end(&self, error: Error) -> Error {
        self.control.abort(&error.to_string());
        self.sums.abort();
        error
    }

    fn wait(&self) -> Result<(), Error> {
        let over = self.sums.close()?;
        let what = "a sum of gradients did not end";
        wait_for(self.control.as_ref(), self.timeout, what, || {
            if self.sums.is_over(&over)? {
                return Ok(Some(()));
            }
            self.sums.failure().map_or(Ok(None), Err)
        })
    }
}

/// Meets the other ranks in the library's group.
fn meet<J: Send + 'static>(
    control: &dyn Control,
    timeout: Duration,
    name: impl FnOnce() -> Result<[u8; ID_BYTES], Error>,
    joined: impl FnOnce([u8; ID_BYTES], Rank, WorldSize) -> Result<J, Error> + Send + 'static,
) -> Result<J, Error> {
    let (rank, world) = (control.rank(), control.world_size());
    let mut id = if rank.is_first() { name()? } else { [0; ID_BYTES] };
    control.broadcast(&mut id)?;
    let (made, here) = channel();
    // Nobody listens any more if it took too long: the process then ends.
    let join = move || drop(made.send(joined(id, rank, world)));
    let thread = std::thread::Builder::new().name("nccl".into()).spawn(join);
    thread.map_err(|error| Error::Nccl { what: format!("no thread for it: {error}") })?;
    wait_for(control, timeout, "not all ranks joined the group", || match here.try_recv() {
        Ok(joined) => joined.map(Some),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => {
            Err(Error::Nccl { what: "the thread that joins the group is gone".to_owned() })
        }
    })
}

/// Asks until there is an answer, or until waiting makes no sense any more: `what` then says what did not happen.
fn wait_for<T>(
    control: &dyn Control,
    timeout: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        // What the library says of a rank that is gone is a consequence: the control may know why.
        if let Some(answer) = ask().map_err(|error| control.end().unwrap_or(error))? {
            return Ok(answer);
        }
        if let Some(end) = control.end() {
            return Err(end);
        }
        let waited = began.elapsed();
        if waited >= timeout || control.gives_up() {
            let seconds = waited.as_secs_f64();
            let what = format!("{what} within {seconds:.1} s: a rank did not join it");
            return Err(Error::Nccl { what });
        }
        // CUDA has no wait with a deadline.
        std::thread::park_timeout(LOOK);
    }
}

impl<S: Sums> OnGpu for DeviceGroup<S> {
    fn enqueue_all_reduce(&self, values: &Tensor) -> Result<(), Error> {
        self.sums.enqueue(values).map_err(|error| self.end(self.control.end().unwrap_or(error)))
    }

    fn finish(&self) -> Result<(), Error> {
        self.wait().map_err(|error| self.end(error))
    }
}

impl<S: Sums> Collective for DeviceGroup<S> {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.control.world_size()
    }

    /// Gradients live in the device's memory.
    fn segments(&self, _lengths: &[usize]) -> Result<Vec<Segment>, Error> {
        Err(Error::mapping("gradients are in the devices' memory"))
    }

    fn all_reduce(&self, _segment: &mut Segment) -> Result<(), Error> {
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
        Some(self.sums.describe())
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        Some(self)
    }

    fn abort(&self, reason: &str) {
        self.control.abort(reason);
        self.sums.abort();
    }

    fn give_up(&self) {
        self.control.give_up();
    }
}

#[cfg(test)]
mod tests;
