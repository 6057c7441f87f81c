//! How long a machine waits for the others, and what ends the wait.

use std::time::{Duration, Instant};

/// Time between two looks for requests to stop.
pub(in crate::launch) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How long a machine waits for the others.
pub(in crate::launch) struct Waiting<'a> {
    pub(in crate::launch) until: Instant,
    /// From the beginning to `until`.
    pub(in crate::launch) longest: Duration,
    /// Whether the run was asked to stop meanwhile; looked at several times a second.
    pub(in crate::launch) is_called_off: &'a mut dyn FnMut() -> bool,
}

impl Waiting<'_> {
    /// End of the next part of the wait, after which to look for requests to stop.
    pub(in crate::launch) fn next_look(&self) -> Instant {
        self.until.min(Instant::now() + LOOK_INTERVAL)
    }

    /// Waits anew, as someone came and left again.
    pub(in crate::launch) fn restart(&mut self) {
        self.until = Instant::now() + self.longest;
    }

    pub(in crate::launch) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}
