//! Limits of time and memory for cutting a text into tokens. Tokenizers and chat templates are
//! programs of others: a regular expression, a rule that makes a letter long, or a loop in one can
//! take hours or all memory for a few bytes of text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::units::Bytes;

/// Processor time for any text, and for each MiB of it: a hundred times what tokenizers take.
const TIME: Duration = Duration::from_secs(30);
const TIME_PER_MIB: Duration = Duration::from_secs(10);
/// Memory for any text, and for each byte of it.
const MEMORY: u64 = 2 << 30;
const MEMORY_PER_BYTE: u64 = 64;
/// Time between two looks at what was taken.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Most time and memory for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Processor time of all threads of this process.
    time: Duration,
    /// More than the process has now.
    memory: u64,
}

impl Budget {
    /// The budget for the text in these files.
    pub(super) fn of(files: &[PathBuf]) -> Self {
        let bytes =
            files.iter().map(|file| fs::metadata(file).map_or(0, |found| found.len())).sum();
        Self::of_bytes(bytes)
    }

    fn of_bytes(bytes: u64) -> Self {
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let memory = MEMORY.saturating_add(bytes.saturating_mul(MEMORY_PER_BYTE));
        Self { time: TIME.saturating_add(TIME_PER_MIB.saturating_mul(mib)), memory }
    }

    /// Does `work` on a thread of its own. One that takes too much is left alone, to end with the
    /// process: nothing can interrupt it.
    pub(super) fn keep<T: Send + 'static>(
        self,
        file: &Path,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = channel();
        let work = move || drop(sender.send(work()));
        let spawned = thread::Builder::new().name("tokens".into()).spawn(work);
        let failed = |source| Error::Io { action: "cut", path: file.to_owned(), source };
        spawned.map_err(failed)?;
        let time = processor_time();
        let memory = resident();
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "a thread panicked while it was cut into tokens".to_owned();
                    return Err(Error::Format { path: file.to_owned(), what });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let taken = if processor_time().saturating_sub(time) > self.time {
                format!("{} s of processor time", self.time.as_secs())
            } else if resident().saturating_sub(memory) > self.memory {
                format!("{} of memory", Bytes(self.memory))
            } else {
                continue;
            };
            return Err(Error::TooMuch { path: file.to_owned(), taken });
        }
    }
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// Bytes that this process has resident; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn kept<T: Send + 'static>(
        budget: Budget,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, String> {
        budget.keep(Path::new("a.txt"), work).map_err(|error| error.to_string())
    }

    #[test]
    fn work_within_its_budget_is_done_and_its_error_is_its_own() {
        let budget = Budget::of(&["/no/such/file".into()]);
        assert_eq!(budget, Budget { time: TIME, memory: MEMORY });
        let folder = tempfile::tempdir().unwrap();
        let parts = ["a", "b"].map(|name| folder.path().join(name));
        for part in &parts {
            crate::files::write_atomic(part, &vec![b'a'; 1 << 20]).unwrap();
        }
        assert_eq!(Budget::of(&parts), Budget::of_bytes(2 << 20), "all parts count");
        assert_eq!(kept(budget, || Ok(3)), Ok(3));
        let wrong = || Err::<(), _>(Error::Format { path: "a.txt".into(), what: "no".to_owned() });
        assert_eq!(kept(budget, wrong), Err("`a.txt`: no".to_owned()));
    }

    #[test]
    fn work_that_never_ends_is_left_after_its_time() {
        let budget = Budget { time: Duration::from_millis(50), memory: u64::MAX };
        let (stop, spinning) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stops, spins) = (stop.clone(), spinning.clone());
        let error = kept(budget, move || {
            spins.store(true, Ordering::Relaxed);
            while !stops.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        assert!(error.unwrap_err().contains("0 s of processor time"));
        assert!(spinning.load(Ordering::Relaxed));
    }

    #[test]
    fn work_that_takes_too_much_memory_is_left() {
        let budget = Budget { time: Duration::from_mins(1), memory: 64 << 20 };
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let error = kept(budget, move || {
            let mut taken = Vec::new();
            while !stops.load(Ordering::Relaxed) && taken.len() < 64 {
                taken.push(vec![1_u8; 16 << 20]);
                thread::sleep(Duration::from_millis(2));
            }
            Ok(taken.len())
        });
        stop.store(true, Ordering::Relaxed);
        assert!(error.unwrap_err().contains("64.00 MiB of memory"));
    }
}
