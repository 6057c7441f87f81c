//! Loader threads: requests for passes in, their batches out, in the order of the requests.
//!
//! Threads take whole passes, so that the order of the batches, and every bit in them, is the same
//! for any number of threads. At most `threads * prefetch_factor` batches are ready or in the
//! making.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::dataset::Dataset;
use crate::error::Error;
use crate::failpoint;
use crate::pipeline::collate::load;
pub use crate::pipeline::request::{Loaded, Request, Settings, Unreadable};
use crate::read::panic_message;

type Requests = Box<dyn Iterator<Item = Request> + Send>;

/// Loads the passes of one rank. Dropping it ends and joins its threads.
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Called while the consumer waits and samples are still being read.
    observer: Observer,
}

type Observer = Box<dyn Fn() + Send>;

/// Time between two checks of a loader that is waited for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// State shared by threads and consumer.
struct Shared {
    dataset: Arc<dyn Dataset>,
    settings: Settings,
    /// Most passes taken but not yet consumed.
    capacity: u64,
    state: Mutex<State>,
    /// A pass is done, or none will be any more.
    done: Condvar,
    /// There is room for another pass, or the loader is closed.
    room: Condvar,
}

struct State {
    requests: Requests,
    exhausted: bool,
    /// Passes that threads took; each has its number.
    taken: u64,
    /// Passes that the consumer got.
    consumed: u64,
    ready: BTreeMap<u64, Result<Loaded, Error>>,
    /// Samples that were begun.
    samples: u64,
    closed: bool,
    /// The panic message of a thread outside of any pass.
    panicked: Option<String>,
}

impl Loader {
    /// Starts loading `requests`, in their order. A run that resumes starts with later requests.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        requests: impl Iterator<Item = Request> + Send + 'static,
        settings: Settings,
    ) -> Result<Self, Error> {
        let state = State {
            requests: Box::new(requests),
            exhausted: false,
            taken: 0,
            consumed: 0,
            ready: BTreeMap::new(),
            samples: 0,
            closed: false,
            panicked: None,
        };
        let shared = Arc::new(Shared {
            dataset,
            settings,
            capacity: (settings.threads * settings.prefetch_factor.max(1)) as u64,
            state: Mutex::new(state),
            done: Condvar::new(),
            room: Condvar::new(),
        });
        let threads = Vec::with_capacity(settings.threads);
        let mut loader = Self { shared, threads, observer: Box::new(|| ()) };
        for number in 0..settings.threads {
            let shared = loader.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("loader-{number}"))
                .spawn(move || shared.run_thread())
                .map_err(|source| Error::Spawn {
                    number: number + 1,
                    wanted: settings.threads,
                    source,
                })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Has `observer` told, about once a second, that samples are being read while [`Loader::next`]
    /// waits for them: a loader that is slow does not hang. Nor does one whose samples
    /// [end by themselves](Dataset::ends_by_itself).
    pub fn observe(&mut self, observer: impl Fn() + Send + 'static) {
        self.observer = Box::new(observer);
    }
}

impl Iterator for Loader {
    type Item = Result<Loaded, Error>;

    /// The next pass, in the order of the requests; waits until it is loaded. `None` after the last
    /// one.
    ///
    /// The item is an error if a sample cannot be read under `on_bad_sample = "error"`, or a thread
    /// panicked.
    fn next(&mut self) -> Option<Self::Item> {
        if self.threads.is_empty() {
            self.shared.load_here(&self.observer)
        } else {
            self.shared.wait_for_next(&self.observer)
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches its panics, and hands them over as results.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn load_here(&self, observer: &Observer) -> Option<Result<Loaded, Error>> {
        let request = self.lock().requests.next()?;
        let cancelled = || {
            observer();
            false
        };
        Some(load(&*self.dataset, &request, &self.settings, &cancelled))
    }

    fn wait_for_next(&self, observer: &Observer) -> Option<Result<Loaded, Error>> {
        let mut state = self.lock();
        let mut samples = state.samples;
        loop {
            if let Some(message) = state.panicked.take() {
                return Some(Err(Error::Panicked { message }));
            }
            let number = state.consumed;
            if let Some(loaded) = state.ready.remove(&number) {
                state.consumed += 1;
                self.room.notify_one();
                return Some(loaded);
            }
            if state.exhausted && state.taken == state.consumed {
                return None;
            }
            let woken = self.done.wait_timeout(state, POLL_INTERVAL);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            let has_begun = std::mem::replace(&mut samples, state.samples) != state.samples;
            if has_begun || self.dataset.ends_by_itself() {
                observer();
            }
        }
    }

    /// A thread's life. What panics becomes the result of its pass: the consumer would wait for
    /// ever otherwise.
    fn run_thread(&self) {
        // Also a panic while the lock is held, of which no pass is the result.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work())) {
            self.lock().panicked = Some(panic_message(&*panic));
        }
        self.done.notify_all();
    }

    fn work(&self) {
        while let Some((number, request)) = self.take() {
            let cancelled = || {
                let mut state = self.lock();
                state.samples += 1;
                state.closed
            };
            let load = || load(&*self.dataset, &request, &self.settings, &cancelled);
            let loaded =
                catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| panicked(&*panic));
            self.lock().ready.insert(number, loaded);
            self.done.notify_all();
        }
    }

    /// Waits for room and takes the next request; `None` when there is none or the loader is
    /// closed.
    fn take(&self) -> Option<(u64, Request)> {
        let mut state = self.lock();
        while !state.closed && !state.exhausted && state.taken - state.consumed >= self.capacity {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed || state.exhausted {
            return None;
        }
        failpoint::reach("loader.locked");
        // Caught before the lock is let go of: another thread must not ask the broken iterator,
        // whose `None` would look like the regular end.
        let next = catch_unwind(AssertUnwindSafe(|| state.requests.next()));
        let number = state.taken;
        let request = match next {
            Ok(Some(request)) => request,
            end => {
                state.exhausted = true;
                if let Err(panic) = end {
                    state.ready.insert(number, panicked(&*panic));
                    state.taken += 1;
                }
                self.room.notify_all();
                return None;
            }
        };
        state.taken += 1;
        Some((number, request))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics while the lock is held leaves the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Result<Loaded, Error> {
    Err(Error::Panicked { message: panic_message(panic) })
}

#[cfg(test)]
mod tests {
    use crate::user_error::UserError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::plan::OnBadSample;
    use crate::rng::Key;
    use crate::{Batch, SampleError, Target};

    /// Sample i is [i, augmentation], label i % 3; some samples are bad.
    struct Numbers {
        n: usize,
        bad: fn(usize) -> bool,
        loads: AtomicUsize,
    }

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.n
        }

        fn shape(&self) -> &[usize] {
            &[2]
        }

        fn classifies(&self) -> bool {
            true
        }

        fn name(&self, index: usize) -> String {
            format!("number {index}")
        }

        fn load(
            &self,
            index: usize,
            key: Option<Key>,
            values: &mut Vec<f32>,
        ) -> Result<Target, SampleError> {
            self.loads.fetch_add(1, Ordering::SeqCst);
            if (self.bad)(index) {
                assert!(index.is_multiple_of(2), "odd numbers panic");
                return Err(SampleError::Decode {
                    path: format!("{index}.png").into(),
                    reason: "bad".to_owned(),
                });
            }
            let random = key.map_or(0.0, |key| key.uniform(0) as f32);
            values.extend_from_slice(&[index as f32, random]);
            Ok(Target::Class(index as u32 % 3))
        }
    }

    fn numbers(n: usize, bad: fn(usize) -> bool) -> Arc<Numbers> {
        Arc::new(Numbers { n, bad, loads: AtomicUsize::new(0) })
    }

    fn settings(threads: usize, on_bad_sample: OnBadSample) -> Settings {
        Settings {
            seed: 9,
            threads,
            prefetch_factor: 2,
            on_bad_sample,
            mixup: None,
            pad_to_longest: false,
        }
    }

    fn request(samples: impl IntoIterator<Item = u32>, epoch: Option<u64>) -> Request {
        Request { samples: samples.into_iter().collect(), epoch, ..Request::default() }
    }

    fn rows(batch: &Batch) -> (Vec<Vec<f32>>, Vec<u32>) {
        (batch.inputs.to_vec2().unwrap(), batch.targets.to_vec1().unwrap())
    }

    fn load_one(
        dataset: &Arc<Numbers>,
        request: Request,
        policy: OnBadSample,
    ) -> Result<Loaded, Error> {
        let settings = settings(1, policy);
        let mut loader = Loader::start(dataset.clone(), std::iter::once(request), settings)?;
        loader.next().unwrap()
    }

    #[test]
    fn batches_are_the_same_for_any_number_of_threads_and_any_start() {
        let requests = || (0..40u32).map(|i| request((0..i % 5).map(move |j| i + j), Some(1)));
        let all = |threads, skip| -> Vec<_> {
            let dataset = numbers(50, |_| false);
            let settings = settings(threads, OnBadSample::Error);
            let loader = Loader::start(dataset, requests().skip(skip), settings).unwrap();
            loader.map(|loaded| rows(&loaded.unwrap().batch)).collect()
        };
        let inline = all(0, 0);
        assert_eq!(inline.len(), 40);
        assert_eq!(inline[2].0.iter().map(|row| row[0]).collect::<Vec<_>>(), [2.0, 3.0]);
        assert_eq!(inline[2].1, [2, 0]);
        assert_eq!(all(1, 0), inline);
        assert_eq!(all(3, 0), inline);
        assert_eq!(all(3, 17), inline[17..]);
    }

    #[test]
    fn augmentation_is_keyed_by_epoch_and_sample_and_absent_in_evaluation() {
        let random = |samples: [u32; 2], epoch| {
            let loaded =
                load_one(&numbers(9, |_| false), request(samples, epoch), OnBadSample::Error);
            let [a, b] = [0, 1].map(|row| rows(&loaded.as_ref().unwrap().batch).0[row][1]);
            [a, b]
        };
        let [third, fourth] = random([3, 4], Some(0));
        assert_eq!(random([4, 3], Some(0)), [fourth, third]);
        assert_ne!(random([3, 4], Some(1)), [third, fourth]);
        assert_eq!(random([3, 4], None), [0.0, 0.0]);
    }

    #[test]
    fn an_empty_request_gives_a_batch_without_rows() {
        let loaded = load_one(&numbers(3, |_| false), request([], Some(0)), OnBadSample::Error);
        let batch = loaded.unwrap().batch;
        assert_eq!((batch.inputs.dims(), batch.targets.dims()), (&[0, 2][..], &[0][..]));
    }

    #[test]
    fn a_bad_sample_is_an_error_that_names_it() {
        let error = load_one(&numbers(9, |i| i == 4), request([3, 4], Some(0)), OnBadSample::Error);
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), "sample 4: cannot decode `4.png`: bad");
        assert!(error.help().unwrap().contains("on_bad_sample"));
    }

    #[test]
    fn a_panic_in_a_decoder_is_an_error_of_the_sample() {
        let error = load_one(&numbers(9, |i| i == 5), request([5], Some(0)), OnBadSample::Error);
        let message = error.unwrap_err().to_string();
        assert_eq!(message, "sample 5: the decoder panicked on number 5: odd numbers panic");
    }

    #[test]
    fn skip_takes_the_next_readable_sample_when_training_and_none_in_evaluation() {
        let dataset = numbers(9, |i| i >= 7);
        let loaded = load_one(&dataset, request([7, 2], Some(0)), OnBadSample::Skip).unwrap();
        assert_eq!(loaded.batch.samples, [0, 2]);
        assert_eq!((loaded.unreadable.len(), loaded.batch.unreadable), (1, 1));
        let Unreadable { sample, problem } = &loaded.unreadable[0];
        assert!(*sample == 7 && problem.ends_with("used sample 0 instead"), "{loaded:?}");
        let loaded = load_one(&dataset, request([7, 2, 8], None), OnBadSample::Skip).unwrap();
        assert_eq!((loaded.batch.samples.as_slice(), loaded.unreadable.len()), (&[2][..], 2));
        assert_eq!(rows(&loaded.batch).0, [[2.0, 0.0]]);
    }

    #[test]
    fn skip_gives_up_when_nothing_is_readable() {
        let loaded = load_one(&numbers(1000, |_| true), request([7], Some(0)), OnBadSample::Skip);
        let error = loaded.unwrap_err();
        assert!(error.to_string().starts_with("100 samples in a row cannot be read"), "{error}");
        let loaded = load_one(&numbers(1, |_| true), request([0], Some(0)), OnBadSample::Skip);
        assert!(matches!(loaded, Err(Error::ManyBadSamples { count: 1, .. })));
    }

    #[test]
    fn no_more_is_prepared_than_prefetch_allows() {
        let dataset = numbers(1000, |_| false);
        let endless = (0..).map(|_| request([1], Some(0)));
        let settings = settings(2, OnBadSample::Error);
        let mut loader = Loader::start(dataset.clone(), endless, settings).unwrap();
        for consumed in 1..50 {
            loader.next().unwrap().unwrap();
            assert!(dataset.loads.load(Ordering::SeqCst) <= consumed + 4);
        }
        // Dropping a loader in the middle of an endless stream joins its threads.
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }

    #[test]
    fn a_panic_in_a_thread_ends_the_loader_and_does_not_hang() {
        let requests = (0..3u32).map(|i| if i < 2 { request([i], None) } else { panic!("lost") });
        let settings = settings(2, OnBadSample::Error);
        let mut loader = Loader::start(numbers(9, |_| false), requests, settings).unwrap();
        assert!(loader.next().unwrap().is_ok());
        assert!(loader.next().unwrap().is_ok());
        let error = loader.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "a loader thread panicked: lost");
        assert!(loader.next().is_none());
    }
}
