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
    Call, Collective, DeviceExchange, Error, GradientBuffer, MissingRank, OnGpu, Op,
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
    pub(super) missing: Vec<MissingRank>,
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
pub(super) mod tests {
    //! A fake library sums for ranks that are threads; their control groups are real.

    use std::collections::BTreeMap;
    use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::collective::inter_node_group::InterNodeGroup;
    use crate::collective::inter_node_group::tests::peers;
    use crate::collective::shm::Shm;
    use crate::plan::Mapping;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(300);

    /// The values of each rank in a sum.
    type Enqueued = Vec<Option<Vec<f32>>>;

    /// All sums of each group, by its id.
    type Groups = BTreeMap<[u8; ID_BYTES], Vec<Enqueued>>;

    /// The fake library.
    #[derive(Default)]
    struct Library(Mutex<Groups>);

    impl Library {
        fn groups(&self) -> MutexGuard<'_, Groups> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A rank of it. A sum is complete when all ranks have enqueued their values.
    struct FakeReducer {
        library: Arc<Library>,
        group: [u8; ID_BYTES],
        rank: Rank,
        world: WorldSize,
        enqueued: Mutex<usize>,
        aborted: Mutex<bool>,
        /// The error that the library detects.
        detects: Option<&'static str>,
    }

    impl FakeReducer {
        /// The complete sums.
        fn results(&self) -> Vec<f32> {
            let groups = self.library.groups();
            let sums = groups.get(&self.group).into_iter().flatten();
            let whole = sums.filter(|sum| sum.iter().all(Option::is_some));
            whole.map(|sum| sum.iter().flatten().flatten().sum()).collect()
        }
    }

    fn nccl(what: &str) -> Error {
        Error::Nccl { what: what.to_owned() }
    }

    impl DeviceReducer for FakeReducer {
        /// Sums that were enqueued before it.
        type Event = usize;

        fn describe(&self) -> String {
            "fake".to_owned()
        }

        fn enqueue(&self, exchange: DeviceExchange<'_>) -> Result<(), Error> {
            let DeviceExchange::AllReduce(values) = exchange else { return Err(nccl("only sums")) };
            if *self.aborted.lock().unwrap() {
                return Err(nccl("aborted"));
            }
            let mut enqueued = self.enqueued.lock().unwrap();
            let mut groups = self.library.groups();
            let sums = groups.entry(self.group).or_default();
            if sums.len() == *enqueued {
                sums.push(vec![None; self.world.count()]);
            }
            sums[*enqueued][self.rank.index()] = Some(values.to_vec1().unwrap());
            *enqueued += 1;
            Ok(())
        }

        fn record(&self) -> Result<usize, Error> {
            Ok(*self.enqueued.lock().unwrap())
        }

        fn is_complete(&self, event: &usize) -> Result<bool, Error> {
            Ok(self.results().len() >= *event)
        }

        fn failure(&self) -> Option<Error> {
            self.detects.map(nccl)
        }

        fn abort(&self) {
            *self.aborted.lock().unwrap() = true;
        }
    }

    fn world(ranks: usize) -> WorldSize {
        WorldSize::new(ranks as u32).unwrap()
    }

    /// Ranks that are connected as those of several machines.
    fn over_connections(ranks: usize, timeout: Duration) -> Vec<Arc<dyn Control>> {
        let open = |(rank, peers)| {
            let tcp = InterNodeGroup::open(Rank(rank), world(ranks), peers, timeout).unwrap();
            Arc::new(tcp) as Arc<dyn Control>
        };
        (0..).zip(peers(ranks as u32)).map(open).collect()
    }

    /// Ranks of one machine.
    pub(in crate::collective) fn over_memory(
        ranks: usize,
        timeout: Duration,
    ) -> Vec<Arc<dyn Control>> {
        let size = Mapping::new(world(ranks), []).total();
        let fd = rustix::fs::memfd_create("device_group", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, size.0).unwrap();
        let open = |rank| {
            let shm = Shm::open(&fd, size, Rank(rank), world(ranks), timeout).unwrap();
            Arc::new(shm) as Arc<dyn Control>
        };
        (0..ranks as u32).map(open).collect()
    }

    /// Opens the control groups of so many ranks, with this timeout.
    type OpenControls = fn(usize, Duration) -> Vec<Arc<dyn Control>>;

    const CONTROLS: [OpenControls; 2] = [over_connections, over_memory];

    /// The group of a rank; `detects` as in [`FakeReducer`].
    fn open(
        library: &Arc<Library>,
        control: Arc<dyn Control>,
        timeout: Duration,
        detects: Option<&'static str>,
    ) -> Result<DeviceGroup<FakeReducer>, Error> {
        let library = Arc::clone(library);
        let joined = move |group, rank, world| Ok((group, rank, world));
        DeviceGroup::open(
            control,
            timeout,
            || Ok([7; ID_BYTES]),
            joined,
            |(group, rank, world)| {
                let (enqueued, aborted) = (Mutex::new(0), Mutex::new(false));
                Ok(FakeReducer { library, group, rank, world, enqueued, aborted, detects })
            },
        )
    }

    /// Runs `each` with the control of each of `ranks` ranks as threads, and returns what they
    /// return in rank order.
    pub(in crate::collective) fn spawn<T: Send>(
        controls: Vec<Arc<dyn Control>>,
        each: impl Fn(Arc<dyn Control>) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let each = &each;
            let start = |control| scope.spawn(move || each(control));
            let threads: Vec<_> = controls.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn values(rank: Rank, step: usize) -> Tensor {
        let value = (1 + rank.0) as f32 * 10_f32.powi(step as i32);
        Tensor::from_slice(&[value], 1, &Device::Cpu).unwrap()
    }

    #[test]
    fn all_ranks_get_the_id_of_rank_0_and_gradients_and_votes_are_independent() {
        for controls in CONTROLS {
            let library = Arc::new(Library::default());
            let found = spawn(controls(3, TIMEOUT), |control| {
                let group = open(&library, control, TIMEOUT, None).unwrap();
                let rank = group.rank();
                for step in 0..4 {
                    let sums = group.on_gpu().unwrap();
                    sums.enqueue(DeviceExchange::AllReduce(&values(rank, step))).unwrap();
                    sums.finish().unwrap();
                    // One rank has sent its vote while another still polls its sum.
                    let votes = group.all_gather(&[rank.0 as u8, step as u8]).unwrap();
                    assert_eq!(votes, [0, 1, 2].map(|rank| vec![rank, step as u8]));
                }
                group.barrier().unwrap();
                (group.reducer.group, group.reducer.results(), group.describe())
            });
            let right = ([7; ID_BYTES], vec![6.0, 60.0, 600.0, 6000.0], Some("fake".to_owned()));
            assert!(found.iter().all(|found| *found == right), "{found:?}");
        }
    }

    #[test]
    fn a_rank_that_aborts_frees_those_that_wait_in_the_library_and_says_why() {
        for controls in CONTROLS {
            let (library, here) = (Arc::new(Library::default()), Barrier::new(3));
            let errors = spawn(controls(3, TIMEOUT), |control| {
                let group = open(&library, control, TIMEOUT, None).unwrap();
                here.wait();
                if group.rank() == Rank(1) {
                    group.abort("`a.png` is truncated");
                } else {
                    group.enqueue(DeviceExchange::AllReduce(&values(group.rank(), 0))).unwrap();
                }
                let error = group.finish().and_then(|()| group.barrier()).unwrap_err().to_string();
                (error, *group.reducer.aborted.lock().unwrap())
            });
            for (error, aborted) in errors {
                assert_eq!(error, "rank 1 ended the group: `a.png` is truncated");
                assert!(aborted, "its kernels would stay on the device");
            }
        }
    }

    #[test]
    fn a_lost_rank_of_another_machine_is_named_while_the_library_still_waits() {
        let library = Arc::new(Library::default());
        let errors = spawn(over_connections(3, TIMEOUT), |control| {
            let group = open(&library, control, TIMEOUT, None).unwrap();
            group.barrier().unwrap();
            if group.rank() == Rank(2) {
                return None;
            }
            group.enqueue(DeviceExchange::AllReduce(&values(group.rank(), 0))).unwrap();
            let error = group.finish().unwrap_err();
            assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
            Some(error.to_string())
        });
        assert_eq!(errors.iter().flatten().count(), 2);
        for error in errors.into_iter().flatten() {
            let is_gone =
                error.contains("the connection to rank 2 on machine 0 ended in `sum on devices`");
            // A slower rank has it from a faster one.
            assert!(is_gone, "{error}");
        }
    }

    #[test]
    fn a_sum_without_all_ranks_has_a_deadline() {
        for controls in CONTROLS {
            let (library, over) = (Arc::new(Library::default()), Barrier::new(2));
            let errors = spawn(controls(2, TIMEOUT), |control| {
                let mut group = open(&library, control, TIMEOUT, None).unwrap();
                over.wait();
                if group.rank() == Rank(1) {
                    over.wait();
                    return String::new();
                }
                group.timeout = SHORT;
                group.enqueue(DeviceExchange::AllReduce(&values(Rank(0), 0))).unwrap();
                let error = group.finish().unwrap_err().to_string();
                over.wait();
                error
            });
            let told = &errors[0];
            let words = [
                "timed out waiting for rank 1 (in call 1) after 0.3 s",
                "did not end within 0.3 s",
            ];
            assert!(words.iter().any(|words| told.contains(words)), "{told}");
            assert!(!told.contains("rank 0"), "{told}");
        }
    }

    #[test]
    fn a_library_that_does_not_return_from_joining_is_abandoned_at_the_deadline() {
        for controls in CONTROLS {
            let (library, over) = (Arc::new(Library::default()), Barrier::new(2));
            let errors = spawn(controls(2, TIMEOUT), |control| {
                if control.rank().is_first() {
                    let group = open(&library, control, TIMEOUT, None);
                    over.wait();
                    return group.err().map_or(String::new(), |error| error.to_string());
                }
                let (leave, told) = channel::<()>();
                // A call of the library that does not return before `leave` is dropped.
                let joined = move |_, _, _| told.recv().map_err(|_| nccl("abandoned"));
                let enter = |()| Err::<FakeReducer, _>(nccl("unreachable"));
                let error =
                    DeviceGroup::open(control, SHORT, || Ok([1; ID_BYTES]), joined, enter).err();
                over.wait();
                drop(leave);
                error.unwrap().to_string()
            });
            assert!(
                errors[1].contains("not all ranks joined the group within 0.3 s"),
                "{errors:?}"
            );
        }
    }

    #[test]
    fn a_rank_that_is_told_to_give_up_does_not_wait_for_the_deadline() {
        for controls in CONTROLS {
            let (library, over) = (Arc::new(Library::default()), Barrier::new(2));
            let errors = spawn(controls(2, TIMEOUT), |control| {
                let group = open(&library, control, TIMEOUT, None).unwrap();
                over.wait();
                if group.rank() == Rank(1) {
                    over.wait();
                    return String::new();
                }
                group.enqueue(DeviceExchange::AllReduce(&values(Rank(0), 0))).unwrap();
                group.give_up();
                let error = group.finish().unwrap_err().to_string();
                over.wait();
                error
            });
            let told = &errors[0];
            assert!(
                told.contains("rank 1 (in call 1)") || told.contains("another machine"),
                "{told}"
            );
        }
    }

    #[test]
    fn an_error_of_the_library_on_one_rank_is_told_to_all() {
        for controls in CONTROLS {
            let (library, here) = (Arc::new(Library::default()), Barrier::new(2));
            let errors = spawn(controls(2, TIMEOUT), |control| {
                let detects = (control.rank() == Rank(1)).then_some("unhandled system error");
                let group = open(&library, control, TIMEOUT, detects).unwrap();
                here.wait();
                if group.rank() == Rank(1) {
                    // Rank 0 never enqueues the second.
                    group.enqueue(DeviceExchange::AllReduce(&values(Rank(1), 0))).unwrap();
                }
                group.enqueue(DeviceExchange::AllReduce(&values(group.rank(), 0))).unwrap();
                group.finish().and_then(|()| group.barrier()).unwrap_err().to_string()
            });
            assert_eq!(errors[1], "NCCL: unhandled system error");
            assert_eq!(errors[0], "rank 1 ended the group: NCCL: unhandled system error");

            let errors = spawn(controls(2, TIMEOUT), |control| {
                let joined = |_, _, _| Ok(());
                let name = || Err(nccl("no socket interface found"));
                let enter = |()| Err::<FakeReducer, _>(nccl("unreachable"));
                DeviceGroup::open(control, TIMEOUT, name, joined, enter).err().unwrap().to_string()
            });
            assert_eq!(errors[0], "NCCL: no socket interface found");
            assert_eq!(errors[1], "rank 0 ended the group: NCCL: no socket interface found");
        }
    }
}
