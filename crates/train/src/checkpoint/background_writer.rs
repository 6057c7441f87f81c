//! The thread that writes checkpoints while training goes on.
//!
//! The training thread leaves a copy of its state in a slot and goes on; the writer takes it from
//! there. One copy is being written and one may wait: on a slow disk a newer copy takes the place
//! of the one that waits, so that training never waits for the disk and memory holds two copies at
//! most.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkpoint::save::{Destination, WrittenCheckpoint};
use crate::checkpoint::state_copy::{self, Snapshot, StateCopy};
use crate::checkpoint::{Error, Importance};
use crate::event::Saved;
use crate::failpoint;
use crate::files;
use crate::plan::Interval;
use crate::units::Bytes;

/// Checkpoints that must have been due while one is being written, and the time that this must have
/// taken, before it is worth a warning.
const OVERDUE: (u64, Duration) = (3, Duration::from_secs(10));
/// Interval at which a thread that waits for the disk checks its progress.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Added to the writer's niceness: the threads that compute come first.
const NICENESS: i32 = 10;

/// Writes checkpoints in the background. What it writes when it is dropped is written to its end;
/// what waits is not.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<SharedState>,
    changed: Condvar,
}

/// State that the two threads share.
#[derive(Default)]
struct SharedState {
    waiting: Option<Job>,
    /// Memory for the next copy.
    spare: Option<StateCopy>,
    /// True while that memory is being prepared: who needs it waits, so that there are not two of
    /// it.
    is_preparing: bool,
    is_closed: bool,
    /// The checkpoint that is being written.
    writing: Option<Writing>,
    saved: Vec<Saved>,
    failure: Option<Failure>,
}

/// A checkpoint that is being written.
#[derive(Clone, Copy)]
struct Writing {
    began: Instant,
    /// Age from which on it is worth a warning; it doubles with each.
    warns_after: Duration,
}

/// A checkpoint that the disk has been writing for long, while others were due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overdue {
    /// Time since the writing began.
    pub time: Duration,
    /// Checkpoints that were due meanwhile.
    pub due: u64,
}

/// A copy that is to be written.
struct Job {
    copied: StateCopy,
    importance: Importance,
    began: Instant,
    stall_seconds: f64,
    /// Copies that gave way to this one.
    replaced: u64,
}

/// Memory for a copy, and how many copies give way to it.
struct CopyBudget {
    copied: StateCopy,
    replaced: u64,
}

/// An error or a panic that ended the writer.
enum Failure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// Writes a copy.
type Store = Box<dyn FnMut(&StateCopy) -> Result<WrittenCheckpoint, Error> + Send>;

impl Writer {
    /// Starts the thread, which first makes room for copies of `snapshot`, unless checkpoints are
    /// made only when the run is stopped. Links point at the checkpoint from which the run
    /// continues when it returns.
    pub fn start(destination: Destination, snapshot: &Snapshot<'_>) -> Result<Self, Error> {
        destination.finish_interrupted(snapshot.state.step)?;
        let plan = &snapshot.plan.checkpoint;
        let is_rare = plan.every == Interval::Never && plan.keep_best == 0;
        let sizes = if is_rare { [0; 3] } else { state_copy::sizes(snapshot) };
        Self::with_store(sizes, Box::new(move |copied| destination.write(copied)))
    }

    fn with_store(sizes: [usize; 3], mut store: Store) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        shared.state().is_preparing = true;
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("checkpoints".into()).spawn(move || {
            let work = || {
                of_thread.prepare(StateCopy::with_room_for(sizes));
                // Where it is not allowed, the writer is as important as the others.
                let _ = rustix::process::nice(NICENESS);
                while let Some(job) = of_thread.next() {
                    let result = catch_unwind(AssertUnwindSafe(|| store(&job.copied)));
                    of_thread.store_result(job, result);
                }
            };
            // Also a panic outside of `store`: the thread that waits for memory for a copy, or
            // for one to be on disk, would wait for ever.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                of_thread.give_up(panic);
            }
        });
        let thread = thread.map_err(Error::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Copies `snapshot`, to be written as soon as the disk is free, and returns. On a slow disk
    /// the copy takes the place of one that waits; a [`Importance::Regular`] one is not taken where
    /// a [`Importance::Best`] one waits.
    ///
    /// # Errors
    ///
    /// An earlier checkpoint could not be written, so none is any more; or the state has no written
    /// form.
    ///
    /// # Panics
    ///
    /// The writer panicked.
    pub fn save(&self, snapshot: &Snapshot<'_>, importance: Importance) -> Result<(), Error> {
        let began = Instant::now();
        let Some(room) = self.shared.prepared().make_room(importance)? else { return Ok(()) };
        let CopyBudget { mut copied, replaced } = room;
        copied.take(snapshot)?;
        let stall_seconds = began.elapsed().as_secs_f64();
        let job = Job { copied, importance, began, stall_seconds, replaced };
        let mut state = self.shared.state();
        state.fail()?;
        state.waiting = Some(job);
        drop(state);
        self.shared.changed.notify_all();
        if failpoint::waits("checkpoint.queued") {
            drop(self.shared.idle());
        }
        Ok(())
    }

    /// The checkpoints that have reached the disk since the last call, in their order.
    ///
    /// # Errors
    ///
    /// One could not be written; none is written any more.
    ///
    /// # Panics
    ///
    /// The writer panicked.
    pub fn saved(&self) -> Result<Vec<Saved>, Error> {
        self.shared.state().result()
    }

    /// Waits until everything that was asked for is on disk, and returns what [`Writer::saved`]
    /// does.
    ///
    /// # Panics
    ///
    /// The writer panicked.
    pub fn finish(&self) -> Result<Vec<Saved>, Error> {
        self.shared.idle().result()
    }

    /// Does what [`Writer::finish`] does, and calls `moves` about every second in which the disk
    /// has taken something.
    ///
    /// # Panics
    ///
    /// The writer panicked.
    pub fn finish_observed(&self, moves: &mut dyn FnMut()) -> Result<Vec<Saved>, Error> {
        let mut written = files::bytes_written();
        let mut state = self.shared.state();
        while state.is_at_work() {
            let changed = self.shared.changed.wait_timeout(state, LOOK_INTERVAL);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
            let now = files::bytes_written();
            if std::mem::replace(&mut written, now) != now {
                moves();
            }
        }
        state.result()
    }

    /// The checkpoint that the disk does not finish though others are due; each time after twice as
    /// long.
    pub fn overdue(&self) -> Option<Overdue> {
        self.shared.state().overdue()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.is_closed = true;
            state.waiting = None;
        }
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panics are in the shared state.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A panicking thread leaves the state in order: every change is one assignment.
    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&SharedState) -> bool) -> MutexGuard<'_, SharedState> {
        let waited = self.changed.wait_while(self.state(), |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the memory for the first copy is there.
    fn prepared(&self) -> MutexGuard<'_, SharedState> {
        self.wait_while(|state| state.is_preparing)
    }

    /// Waits until nothing waits and nothing is being written.
    fn idle(&self) -> MutexGuard<'_, SharedState> {
        self.wait_while(SharedState::is_at_work)
    }

    fn prepare(&self, room: StateCopy) {
        let mut state = self.state();
        state.spare = Some(room);
        state.is_preparing = false;
        drop(state);
        self.changed.notify_all();
    }

    /// The next copy to write; `None` when there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = self.wait_while(|state| state.is_open() && state.waiting.is_none());
        if !state.is_open() {
            return None;
        }
        state.writing = Some(Writing { began: Instant::now(), warns_after: OVERDUE.1 });
        failpoint::reach("writer.locked");
        state.waiting.take()
    }

    /// Stores the panic that ended the writer.
    fn give_up(&self, panic: Box<dyn Any + Send>) {
        let mut state = self.state();
        (state.is_preparing, state.writing) = (false, None);
        state.failure = Some(Failure::Panic(panic));
        drop(state);
        self.changed.notify_all();
    }

    /// Stores the result of writing `job`.
    fn store_result(
        &self,
        job: Job,
        result: std::thread::Result<Result<WrittenCheckpoint, Error>>,
    ) {
        let mut state = self.state();
        state.writing = None;
        match result {
            Ok(Ok(written)) => {
                state.saved.push(job.saved(written));
                state.spare.get_or_insert(job.copied);
            }
            Ok(Err(error)) => state.failure = Some(Failure::Error(error)),
            Err(panic) => state.failure = Some(Failure::Panic(panic)),
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl SharedState {
    /// Takes the memory for a copy; `None` if a more important one waits.
    fn make_room(&mut self, importance: Importance) -> Result<Option<CopyBudget>, Error> {
        self.fail()?;
        if self.is_closed {
            return Err(Error::WriterEnded);
        }
        match &mut self.waiting {
            Some(job) if job.importance > importance => {
                job.replaced += 1;
                return Ok(None);
            }
            _ => {}
        }
        Ok(Some(match self.waiting.take() {
            Some(Job { copied, replaced, .. }) => CopyBudget { copied, replaced: replaced + 1 },
            None => CopyBudget { copied: self.spare.take().unwrap_or_default(), replaced: 0 },
        }))
    }

    fn is_open(&self) -> bool {
        !self.is_closed && self.failure.is_none()
    }

    fn is_at_work(&self) -> bool {
        self.is_open() && (self.writing.is_some() || self.waiting.is_some())
    }

    fn overdue(&mut self) -> Option<Overdue> {
        let due = self.waiting.as_ref().map_or(0, |job| 1 + job.replaced);
        if due < OVERDUE.0 {
            return None;
        }
        let writing = self.writing.as_mut()?;
        let time = writing.began.elapsed();
        if time < writing.warns_after {
            return None;
        }
        writing.warns_after = 2 * time;
        Some(Overdue { time, due })
    }

    fn result(&mut self) -> Result<Vec<Saved>, Error> {
        self.fail()?;
        Ok(std::mem::take(&mut self.saved))
    }

    /// Returns the failure once; the writer has then ended.
    fn fail(&mut self) -> Result<(), Error> {
        match self.failure.take() {
            None => Ok(()),
            Some(failure) => {
                self.is_closed = true;
                match failure {
                    Failure::Error(error) => Err(error),
                    Failure::Panic(panic) => resume_unwind(panic),
                }
            }
        }
    }
}

impl Job {
    fn saved(&self, written: WrittenCheckpoint) -> Saved {
        Saved {
            step: self.copied.step,
            path: written.path,
            best: written.best,
            surplus: written.surplus,
            size: Bytes(self.copied.size()),
            seconds: self.began.elapsed().as_secs_f64(),
            stall_seconds: self.stall_seconds,
            replaced: self.replaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A writer whose disk takes a checkpoint whenever the test lets it.
    struct SlowDisk {
        writer: Writer,
        /// Steps that the disk has begun to write.
        begun: Receiver<u64>,
        /// Lets the disk end one.
        end: Sender<Result<(), Error>>,
    }

    impl SlowDisk {
        fn new() -> Self {
            let (tell, begun) = channel();
            let (end, ends) = channel::<Result<(), Error>>();
            let store = move |copied: &StateCopy| {
                tell.send(copied.step).unwrap();
                ends.recv().unwrap()?;
                Ok(WrittenCheckpoint { path: PathBuf::new(), best: false, surplus: None })
            };
            let writer = Writer::with_store([8; 3], Box::new(store)).unwrap();
            Self { writer, begun, end }
        }

        /// Saves as [`Writer::save`], a state that is only a step.
        fn save(&self, step: u64, importance: Importance) -> Result<(), Error> {
            let shared = &self.writer.shared;
            let Some(room) = shared.prepared().make_room(importance)? else { return Ok(()) };
            shared.state().waiting = Some(job(step, importance, room));
            shared.changed.notify_all();
            Ok(())
        }

        fn ends(&self) -> u64 {
            let step = self.begun.recv().unwrap();
            self.end.send(Ok(())).unwrap();
            step
        }
    }

    /// A copy of a state that is only a step.
    fn job(step: u64, importance: Importance, room: CopyBudget) -> Job {
        let CopyBudget { mut copied, replaced } = room;
        copied.step = step;
        Job { copied, importance, began: Instant::now(), stall_seconds: 0.0, replaced }
    }

    fn steps(saved: &[Saved]) -> Vec<(u64, u64)> {
        saved.iter().map(|saved| (saved.step, saved.replaced)).collect()
    }

    #[test]
    fn on_a_busy_disk_a_newer_copy_takes_the_place_of_the_one_that_waits() {
        let disk = SlowDisk::new();
        disk.save(1, Importance::Regular).unwrap();
        let first = disk.begun.recv().unwrap();
        for step in 2..=5 {
            disk.save(step, Importance::Regular).unwrap();
        }
        assert!(disk.writer.saved().unwrap().is_empty(), "nothing is said before it is on disk");
        disk.end.send(Ok(())).unwrap();
        assert_eq!((first, disk.ends()), (1, 5));
        assert_eq!(steps(&disk.writer.finish().unwrap()), [(1, 0), (5, 3)]);
        assert!(disk.writer.finish().unwrap().is_empty());
    }

    #[test]
    fn the_best_state_never_gives_way_to_one_that_is_not() {
        let disk = SlowDisk::new();
        disk.save(1, Importance::Regular).unwrap();
        let first = disk.begun.recv().unwrap();
        disk.save(2, Importance::Regular).unwrap();
        disk.save(3, Importance::Best).unwrap();
        disk.save(4, Importance::Regular).unwrap();
        disk.save(5, Importance::Best).unwrap();
        disk.save(6, Importance::Regular).unwrap();
        disk.end.send(Ok(())).unwrap();
        assert_eq!((first, disk.ends()), (1, 5));
        assert_eq!(steps(&disk.writer.finish().unwrap()), [(1, 0), (5, 4)]);
    }

    #[test]
    fn a_disk_that_fails_is_said_at_the_next_call_and_ends_the_writer() {
        let disk = SlowDisk::new();
        disk.save(1, Importance::Regular).unwrap();
        disk.begun.recv().unwrap();
        disk.save(2, Importance::Best).unwrap();
        disk.end.send(Err(Error::Encode { step: 1, why: "full".into() })).unwrap();
        let error = disk.writer.finish().unwrap_err();
        assert_eq!(error.to_string(), "cannot write the state of step 1: full");
        assert!(
            disk.writer.finish().unwrap().is_empty(),
            "no thread waits for a writer that is gone"
        );
        let again = disk.save(3, Importance::Regular).unwrap_err();
        assert!(matches!(again, Error::WriterEnded), "what will not be written is not taken");
        assert!(disk.begun.recv().is_err(), "what waited is not written");
    }

    #[test]
    fn a_panic_of_the_writer_reaches_the_thread_that_trains() {
        // No memory is that large.
        let unprepared = Writer::with_store([usize::MAX; 3], Box::new(|_| unreachable!())).unwrap();
        let wait = || drop(unprepared.shared.prepared().make_room(Importance::Regular));
        let panic = catch_unwind(AssertUnwindSafe(wait)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"capacity overflow"));

        let writer = Writer::with_store([0; 3], Box::new(|_| panic!("a bug"))).unwrap();
        let room = CopyBudget { copied: StateCopy::default(), replaced: 0 };
        writer.shared.state().waiting = Some(job(1, Importance::Regular, room));
        writer.shared.changed.notify_all();
        let panic = catch_unwind(AssertUnwindSafe(|| writer.finish())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a bug"));
    }

    #[test]
    fn what_is_being_written_is_written_to_its_end_and_what_waits_is_not() {
        let disk = SlowDisk::new();
        disk.save(1, Importance::Regular).unwrap();
        disk.begun.recv().unwrap();
        disk.save(2, Importance::Best).unwrap();
        disk.end.send(Ok(())).unwrap();
        disk.end.send(Ok(())).unwrap();
        let SlowDisk { writer, begun, .. } = disk;
        let shared = Arc::clone(&writer.shared);
        drop(writer);
        let saved = steps(&shared.state().saved);
        assert_eq!(saved.first(), Some(&(1, 0)));
        assert_eq!(begun.iter().count() + 1, saved.len(), "no checkpoint is half-written");
    }
}
