//! Full buckets of a GPU on their way through the ranks' shared memory, by a thread of their own:
//! while one is copied, summed and copied back, backward goes on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::collective::{self, Collective, Elements, GradientBuffer};
use crate::engine::error::Error;

/// Sums one segment over the ranks.
pub(super) type Sum<'a> = &'a mut dyn FnMut(&mut GradientBuffer) -> Result<(), collective::Error>;

/// Takes a bucket to the ranks' memory and back.
pub(super) trait BucketCarrier: Send {
    /// An event on the device that holds the buckets.
    type Event: Send;

    /// Copies a bucket to its segment once `ready` is over, has it summed there, and enqueues the
    /// copy back. Returns when that copy is over.
    fn carry(
        &mut self,
        bucket: usize,
        ready: Self::Event,
        sum: Sum<'_>,
    ) -> Result<Self::Event, Error>;
}

/// The thread, and what it was given and has not given back.
pub(super) struct HostStagedReducer<M> {
    ready: Option<Sender<(usize, M)>>,
    back: Receiver<Result<M, Error>>,
    under_way: usize,
    /// Error of a bucket that did not come back; [`HostStagedReducer::finish`] returns it.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
}

/// The part of each rank of each bucket, where each gets the sums of its own.
pub(super) type Parts = Option<Vec<Vec<Elements>>>;

impl<M: Send + 'static> HostStagedReducer<M> {
    /// Starts the thread.
    pub(super) fn start(
        collective: Arc<dyn Collective>,
        parts: Parts,
        mut carrier: impl BucketCarrier<Event = M> + 'static,
    ) -> Result<Self, Error> {
        let (ready, to_sum) = channel();
        let (done, back) = channel();
        let work = move || {
            let sum = |bucket, segment: &mut GradientBuffer| {
                sum(collective.as_ref(), &parts, bucket, segment)
            };
            carry_all(sum, &mut carrier, &to_sum, &done);
        };
        let thread = std::thread::Builder::new().name("communication".into()).spawn(work);
        let thread = Some(thread.map_err(Error::Thread)?);
        Ok(Self { ready: Some(ready), back, under_way: 0, failed: None, thread })
    }

    /// Sends a bucket off, to be read when `ready` is over. Every rank sends the same buckets in
    /// the same order.
    pub(super) fn send(&mut self, bucket: usize, ready: M) {
        self.under_way += 1;
        if let Some(to) = &self.ready {
            // A closed channel means the thread died; `finish` reports it.
            drop(to.send((bucket, ready)));
        }
    }

    /// Calls `arrives` for each bucket that is summed by now.
    #[cfg(feature = "cuda")]
    pub(super) fn take_arrived(&mut self, mut arrives: impl FnMut(M) -> Result<(), Error>) {
        while self.failed.is_none()
            && let Ok(back) = self.back.try_recv()
        {
            self.under_way -= 1;
            self.failed = back.and_then(&mut arrives).err();
        }
    }

    /// Waits until all buckets that were sent are summed, and gives `arrives` when each is back.
    ///
    /// # Errors
    ///
    /// A bucket could not be carried or summed: the group has ended.
    pub(super) fn finish(
        &mut self,
        mut arrives: impl FnMut(M) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        while self.under_way > 0 {
            self.under_way -= 1;
            arrives(self.back.recv().map_err(|_| Error::ThreadGone)??)?;
        }
        Ok(())
    }
}

impl<M> Drop for HostStagedReducer<M> {
    fn drop(&mut self) {
        // Without a sender the thread ends after what it has.
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already seen as `ThreadGone`.
            drop(thread.join());
        }
    }
}

/// Sums a bucket, or each rank's part of it.
fn sum(
    collective: &dyn Collective,
    parts: &Parts,
    bucket: usize,
    segment: &mut GradientBuffer,
) -> Result<(), collective::Error> {
    match parts {
        None => collective.all_reduce(segment),
        Some(parts) => collective.reduce_scatter(segment, &parts[bucket]),
    }
}

/// Body of the thread. After a failure nothing more is summed: the group has ended.
fn carry_all<C: BucketCarrier>(
    sum: impl Fn(usize, &mut GradientBuffer) -> Result<(), collective::Error>,
    carrier: &mut C,
    to_sum: &Receiver<(usize, C::Event)>,
    done: &Sender<Result<C::Event, Error>>,
) {
    for (bucket, ready) in to_sum {
        let carried = carrier.carry(bucket, ready, &mut |segment| sum(bucket, segment));
        let failed = carried.is_err();
        if done.send(carried).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::*;
    use crate::plan::Mapping;
    use crate::units::{Rank, WorldSize};

    /// Buckets in the CPU's memory as if it were a GPU's. A moment is the bucket's values then.
    struct FakeDevice {
        segments: Vec<GradientBuffer>,
        /// The bucket that the device loses.
        loses: Option<usize>,
    }

    impl BucketCarrier for FakeDevice {
        type Event = Vec<f32>;

        fn carry(
            &mut self,
            bucket: usize,
            ready: Vec<f32>,
            sum: Sum<'_>,
        ) -> Result<Vec<f32>, Error> {
            if self.loses == Some(bucket) {
                let source = candle_core::Error::Msg("lost".into());
                return Err(Error::Tensor { phase: "reduction", step: 0, source });
            }
            self.segments[bucket].copy_from_slice(&ready);
            sum(&mut self.segments[bucket])?;
            Ok(self.segments[bucket].to_vec())
        }
    }

    const LENGTHS: [usize; 3] = [5, 1, 40];

    fn group(world: u32) -> Vec<Arc<dyn Collective>> {
        let world = WorldSize::new(world).unwrap();
        let mapping = Mapping::new(world, LENGTHS).total();
        let fd = rustix::fs::memfd_create("reducer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, mapping.0).unwrap();
        let join = |rank| {
            let (fd, wait) = (fd.try_clone().unwrap(), Duration::from_secs(20));
            collective::open_shm(&fd, mapping, Rank(rank), world, wait).unwrap()
        };
        (0..world.get()).map(join).collect()
    }

    /// Two steps of one rank: what came back, or the failure.
    fn steps(group: &Arc<dyn Collective>, loses: Option<usize>) -> Result<Vec<Vec<f32>>, String> {
        let segments = group.segments(&LENGTHS).map_err(|error| error.to_string())?;
        let mut reducer =
            HostStagedReducer::start(group.clone(), None, FakeDevice { segments, loses }).unwrap();
        let mut found = Vec::new();
        for step in 0..2 {
            for (bucket, length) in LENGTHS.into_iter().enumerate() {
                let value =
                    (1 + group.rank().0) as f32 + 10.0 * bucket as f32 + 100.0 * step as f32;
                reducer.send(bucket, vec![value; length]);
            }
            reducer
                .finish(|values| {
                    found.push(values);
                    Ok(())
                })
                .inspect_err(|error| group.abort(&error.to_string()))
                .map_err(|error| error.to_string())?;
        }
        Ok(found)
    }

    fn on_two_ranks(loses: Option<usize>) -> Vec<Result<Vec<Vec<f32>>, String>> {
        let found = Mutex::new(vec![None, None]);
        let group = group(2);
        std::thread::scope(|scope| {
            for (rank, member) in group.iter().enumerate() {
                let (found, loses) = (&found, loses.filter(|_| rank == 1));
                scope.spawn(move || {
                    let result = steps(member, loses);
                    found.lock().unwrap_or_else(PoisonError::into_inner)[rank] = Some(result);
                });
            }
        });
        found.into_inner().unwrap().into_iter().flatten().collect()
    }

    #[test]
    fn every_rank_gets_the_sum_of_each_bucket_in_the_order_in_which_they_were_sent() {
        let expected: Vec<Vec<f32>> = (0..2)
            .flat_map(|step| {
                let sum = move |bucket: usize| 3.0 + 20.0 * bucket as f32 + 200.0 * step as f32;
                LENGTHS.into_iter().enumerate().map(move |(b, length)| vec![sum(b); length])
            })
            .collect();
        assert_eq!(on_two_ranks(None), [Ok(expected.clone()), Ok(expected)]);
    }

    #[test]
    fn a_bucket_that_is_lost_ends_the_step_on_its_rank_and_then_on_the_other() {
        let found = on_two_ranks(Some(1));
        let lost = found[1].as_ref().unwrap_err();
        assert!(lost.contains("lost"), "{lost}");
        let told = found[0].as_ref().unwrap_err();
        assert!(told.contains("rank 1 ended the group") && told.contains("lost"), "{told}");
    }
}
