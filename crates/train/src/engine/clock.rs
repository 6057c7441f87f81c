//! The engine's only look at the time.

use std::time::Instant;

/// A running stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Processor time that all threads of this process have used, in seconds.
    pub(crate) fn cpu_seconds() -> f64 {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        spent.tv_sec as f64 + 1e-9 * spent.tv_nsec as f64
    }

    /// Seconds since the start.
    pub fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
