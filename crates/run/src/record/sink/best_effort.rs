//! A sink that may be slow, on a thread of its own behind a bounded queue: no step waits for the
//! sink.
//!
//! Events that do not fit into the queue are dropped and counted. When a start of the run ends, the
//! sink has a limited time for the events in the queue; a thread that is not done by then is left
//! behind, and ends with the process.

use std::any::Any;
use std::collections::VecDeque;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::data::panic_message;
use crate::event::Event;
use crate::record::Error;
use crate::record::sink::{NamedSink, SinkStart, Stamped};

/// Length of the queue of one sink, in events.
const CAPACITY: usize = 1024;
/// Time for all sinks together at the end of a start.
pub(in crate::record) const TIME_AT_THE_END: Duration = Duration::from_secs(5);

/// A sink behind a queue.
pub(in crate::record) struct QueuedSink {
    name: String,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    /// Events offered to the sink.
    n_events: u64,
    /// Events that it did not receive.
    n_dropped: u64,
    /// True once the run has warned of dropped events.
    said_slow: bool,
    /// True once the run has warned that the sink failed.
    said_failed: bool,
}

impl QueuedSink {
    /// Starts the thread, which opens the sink.
    pub(in crate::record) fn start(named: NamedSink, start: SinkStart) -> Result<Self, Error> {
        let NamedSink { name, sink } = named;
        let queue = Arc::new(Queue::default());
        let work = {
            let queue = queue.clone();
            move || {
                let taken = catch_unwind(AssertUnwindSafe(|| {
                    let place = queue.deliver(sink.as_ref(), &start);
                    // What it does when it is dropped can fail as well.
                    drop(sink);
                    place
                }));
                queue.end(taken);
            }
        };
        let thread = Builder::new().name(format!("sink {name}"));
        let thread =
            thread.spawn(work).map_err(|reason| Error::Thread { what: "a sink", reason })?;
        Ok(Self {
            name,
            queue,
            thread: Some(thread),
            n_events: 0,
            n_dropped: 0,
            said_slow: false,
            said_failed: false,
        })
    }

    /// Queues an event; drops it if the queue is full.
    pub(in crate::record) fn push(&mut self, stamped: &Arc<Stamped>) {
        let mut state = self.queue.lock();
        if state.is_closed || state.ending.is_some() {
            return;
        }
        self.n_events += 1;
        if state.waiting.len() < CAPACITY {
            state.waiting.push_back(stamped.clone());
            self.queue.changed.notify_all();
        } else {
            self.n_dropped += 1;
        }
    }

    /// Closes the queue. `last` is queued even if the queue is full.
    pub(in crate::record) fn close(&mut self, last: Option<&Arc<Stamped>>) {
        let mut state = self.queue.lock();
        if let Some(last) = last.filter(|_| !state.is_closed && state.ending.is_none()) {
            self.n_events += 1;
            state.waiting.push_back(last.clone());
        }
        state.is_closed = true;
        self.queue.changed.notify_all();
    }

    /// Waits until the queue is empty or `deadline`; the rest is dropped. Returns a warning with
    /// the number of dropped events, if any.
    pub(in crate::record) fn finish(&mut self, deadline: Instant) -> Option<String> {
        let thread = self.thread.take()?;
        let mut state = self.queue.lock();
        while state.ending.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.n_dropped += state.waiting.len() as u64 + u64::from(state.is_busy);
                state.waiting.clear();
                break;
            }
            let waited = self.queue.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let has_ended = state.ending.is_some();
        drop(state);
        if has_ended {
            // Its panics are caught.
            drop(thread.join());
        }
        let Self { name, n_events, n_dropped, .. } = self;
        (*n_dropped > 0).then(|| {
            format!("the sink `{name}` was too slow: {n_dropped} of {n_events} events were dropped")
        })
    }

    /// A warning about the sink that was not yet given.
    pub(in crate::record) fn warning(&mut self) -> Option<String> {
        let name = &self.name;
        if let Some(Ending::Failed(why)) = &self.queue.lock().ending
            && !std::mem::replace(&mut self.said_failed, true)
        {
            return Some(format!("the sink `{name}` failed and gets no more events: {why}"));
        }
        let is_slow = self.n_dropped > 0 && self.thread.is_some();
        (is_slow && !std::mem::replace(&mut self.said_slow, true)).then(|| {
            format!(
                "the sink `{name}` is slower than the run: events that it cannot take are dropped"
            )
        })
    }

    /// [`OpenSink::summary_entry`](super::OpenSink::summary_entry), if the sink has received all events.
    pub(in crate::record) fn summary_entry(&self) -> Option<SummaryEntry> {
        match &self.queue.lock().ending {
            Some(Ending::Done(place)) => place.clone(),
            _ => None,
        }
    }
}

type SummaryEntry = (&'static str, PathBuf);

/// Shared by the run and the thread of a sink.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Stamped>>,
    /// True while the sink handles an event.
    is_busy: bool,
    /// True after the last event.
    is_closed: bool,
    /// Set when the thread has ended.
    ending: Option<Ending>,
}

enum Ending {
    Done(Option<SummaryEntry>),
    Failed(String),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next event; `None` after the last.
    fn next(&self) -> Option<Arc<Stamped>> {
        let mut state = self.lock();
        state.is_busy = false;
        loop {
            if let Some(stamped) = state.waiting.pop_front() {
                state.is_busy = true;
                return Some(stamped);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Opens the sink and passes it all events.
    fn deliver(
        &self,
        sink: &dyn super::Sink,
        start: &SinkStart,
    ) -> Result<Option<SummaryEntry>, Error> {
        let mut open = sink.open(start)?;
        let mut finished = None;
        while let Some(stamped) = self.next() {
            open.record(&stamped)?;
            if let Event::Finished(last) = &stamped.event {
                finished = Some(last.clone());
            }
        }
        open.sync()?;
        open.finish()?;
        Ok(finished.and_then(|finished| open.summary_entry(&finished)))
    }

    /// Stores how the thread has ended.
    fn end(&self, taken: Result<Result<Option<SummaryEntry>, Error>, Box<dyn Any + Send>>) {
        let mut state = self.lock();
        state.waiting.clear();
        state.ending = Some(match taken {
            Ok(Ok(place)) => Ending::Done(place),
            Ok(Err(error)) => Ending::Failed(with_causes(&error)),
            Err(panic) => Ending::Failed(format!("it panicked: {}", panic_message(&*panic))),
        });
        self.changed.notify_all();
    }
}

/// The error and all of its causes.
fn with_causes(error: &Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words += &format!(": {cause}");
        source = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::event::Finished;
    use crate::plan::RunFolders;
    use crate::record::{
        Delivery, EVENTS, Jsonl, OpenSink, Recorder, Screen, Settings, Sink, example_events,
        read_events,
    };

    /// Does something with every event.
    struct Tracker<F>(F);

    impl<F> std::fmt::Debug for Tracker<F> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Tracker")
        }
    }

    impl<F: Fn(&Stamped) -> Result<(), Error> + Clone + Send + Sync + 'static> Sink for Tracker<F> {
        fn open(&self, _: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
            Ok(Box::new(Self(self.0.clone())))
        }

        fn delivery(&self) -> Delivery {
            Delivery::BestEffort
        }
    }

    impl<F: Fn(&Stamped) -> Result<(), Error> + Send> OpenSink for Tracker<F> {
        fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
            (self.0)(stamped)
        }

        fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
            Some(("tracker", "http://tracker/r".into()))
        }
    }

    fn named(
        take: impl Fn(&Stamped) -> Result<(), Error> + Clone + Send + Sync + 'static,
    ) -> NamedSink {
        NamedSink { name: "tracker".to_owned(), sink: Box::new(Tracker(take)) }
    }

    fn recorder(folder: &Path, tracker: NamedSink) -> Recorder {
        let run = RunFolders {
            id: "r".into(),
            logs: folder.to_owned(),
            checkpoints: folder.join("none"),
        };
        let jsonl = NamedSink { name: "jsonl".into(), sink: Box::new(Jsonl {}) };
        let settings = Settings {
            start: SinkStart { run, total_steps: 5000, ..SinkStart::default() },
            sinks: vec![tracker, jsonl],
            screen: Screen::Silent,
            steps_per_epoch: 20,
        };
        Recorder::open(settings).unwrap()
    }

    fn step(step: u64) -> Event {
        Event::StepDone(example_events::step_done(step))
    }

    fn finished() -> Event {
        Event::Finished(example_events::finished())
    }

    /// Warnings in `events.jsonl`; true if the last event is the end of the run.
    fn warnings(folder: &Path) -> (Vec<String>, bool) {
        let events = read_events(&folder.join(EVENTS)).unwrap().events;
        let is_last = matches!(events.last().map(|last| &last.event), Some(Event::Finished(_)));
        let message = |stamped: Stamped| match stamped.event {
            Event::Warned { message } => Some(message),
            _ => None,
        };
        (events.into_iter().filter_map(message).collect(), is_last)
    }

    #[test]
    fn a_slow_sink_costs_no_step_and_has_all_events_in_the_end() {
        const PAUSE: Duration = Duration::from_millis(20);
        let folder = tempfile::tempdir().unwrap();
        let (taken, told): (Sender<Stamped>, Receiver<Stamped>) = channel();
        let mut recorder = recorder(
            folder.path(),
            named(move |stamped| {
                std::thread::sleep(PAUSE);
                taken.send(stamped.clone()).unwrap();
                Ok(())
            }),
        );
        let begun = Instant::now();
        (1..=50).for_each(|at| recorder.record(&step(at)).unwrap());
        let took = begun.elapsed();
        assert!(took < 25 * PAUSE, "{took:?} for steps that the sink needs {:?} for", 50 * PAUSE);
        recorder.record(&finished()).unwrap();
        let log = std::fs::read_to_string(folder.path().join("rank-0.log")).unwrap();
        assert!(log.contains("http://tracker/r"), "{log}");
        drop(recorder);
        // The thread has ended: nobody sends any more.
        let events: Vec<Event> = told.iter().map(|stamped| stamped.event).collect();
        assert_eq!(events, (1..=50).map(step).chain([finished()]).collect::<Vec<_>>());
        assert_eq!(warnings(folder.path()), (vec![], true));
    }

    #[test]
    fn a_full_queue_drops_events_and_the_run_says_how_many() {
        let folder = tempfile::tempdir().unwrap();
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let mut recorder = recorder(
            folder.path(),
            named(move |_| {
                // Until the sender is gone.
                held.lock().unwrap().recv().unwrap_err();
                Ok(())
            }),
        );
        (1..=3000).for_each(|at| recorder.record(&step(at)).unwrap());
        drop(release);
        recorder.record(&finished()).unwrap();
        let (said, is_last) = warnings(folder.path());
        assert!(is_last);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("the sink `tracker` is slower than the run"), "{said:?}");
        // One was taken out of the queue, if the thread was there in time; a warning is an event.
        let n = |dropped| {
            format!("the sink `tracker` was too slow: {dropped} of 3002 events were dropped")
        };
        assert!([n(3001 - 1024), n(3001 - 1025)].contains(&said[1]), "{said:?}");
        let log = read_events(&folder.path().join(EVENTS)).unwrap();
        let steps = log.events.iter().filter(|it| matches!(it.event, Event::StepDone(_)));
        assert_eq!(steps.count(), 3000, "the others have every event");
    }

    #[test]
    fn a_sink_that_fails_or_panics_is_given_up_with_one_warning() {
        let fail = |_: &Stamped| -> Result<(), Error> {
            let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
            Err(Error::io("write", Path::new("tracker.db"), full))
        };
        let panic = |_: &Stamped| -> Result<(), Error> { panic!("no such project") };
        for (tracker, why) in [
            (named(fail), "cannot write `tracker.db`: No space left on device"),
            (named(panic), "it panicked: no such project"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut recorder = recorder(folder.path(), tracker);
            (1..=100).for_each(|at| recorder.record(&step(at)).unwrap());
            recorder.record(&finished()).unwrap();
            drop(recorder);
            let (said, is_last) = warnings(folder.path());
            assert!(is_last);
            assert_eq!(said.len(), 1, "{said:?}");
            let words = format!("the sink `tracker` failed and gets no more events: {why}");
            assert!(said[0].starts_with(&words), "{said:?}");
        }
    }

    #[test]
    fn a_sink_that_does_not_come_back_is_left_behind() {
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let tracker = named(move |_| {
            held.lock().unwrap().recv().unwrap_err();
            Ok(())
        });
        let mut sink = QueuedSink::start(tracker, SinkStart::default()).unwrap();
        let time = "2026-11-23T12:00:00Z".parse().unwrap();
        let stamped = Arc::new(Stamped { time, step: 1, event: step(1) });
        sink.push(&stamped);
        sink.close(Some(&stamped));
        let loss = sink.finish(Instant::now());
        assert_eq!(
            loss.as_deref(),
            Some("the sink `tracker` was too slow: 2 of 2 events were dropped")
        );
        assert_eq!(sink.summary_entry(), None);
        assert_eq!(sink.finish(Instant::now()), None, "it is said once");
        drop(release);
    }
}
