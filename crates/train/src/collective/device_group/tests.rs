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
pub(in crate::collective) fn over_memory(ranks: usize, timeout: Duration) -> Vec<Arc<dyn Control>> {
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

/// Runs `each` with the control of each of `ranks` ranks as threads, and returns what they return
/// in rank order.
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
        let words =
            ["timed out waiting for rank 1 (in call 1) after 0.3 s", "did not end within 0.3 s"];
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
        assert!(errors[1].contains("not all ranks joined the group within 0.3 s"), "{errors:?}");
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
        assert!(told.contains("rank 1 (in call 1)") || told.contains("another machine"), "{told}");
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
