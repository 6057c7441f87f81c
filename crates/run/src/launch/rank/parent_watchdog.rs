//! Notices a parent that is silent: alive, but stopped or hung. One that dies takes its ranks with
//! it (`inherit`).

use std::time::Duration;

/// Follows the heartbeats of the parent.
#[derive(Debug)]
pub(super) struct ParentWatchdog {
    /// Silence that is too long.
    timeout: Duration,
    /// Longest time that counts between two checks: a longer gap means that this process was
    /// suspended, and perhaps the parent, too.
    max_gap: Duration,
    /// Heartbeats so far.
    heartbeats: u64,
    checked_at: Duration,
    silent: Duration,
}

impl ParentWatchdog {
    /// A watchdog that starts at `now`.
    pub(super) fn new(timeout: Duration, max_gap: Duration, now: Duration) -> Self {
        let (heartbeats, silent) = (0, Duration::ZERO);
        Self { timeout, max_gap, heartbeats, checked_at: now, silent }
    }

    /// True if the number of `heartbeats`, read `now`, has not grown for too long.
    pub(super) fn has_timed_out(&mut self, heartbeats: u64, now: Duration) -> bool {
        let passed = now.saturating_sub(self.checked_at).min(self.max_gap);
        self.checked_at = now;
        self.silent =
            if heartbeats == self.heartbeats { self.silent + passed } else { Duration::ZERO };
        self.heartbeats = heartbeats;
        self.silent >= self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which the parent has timed out, of checks at (second, heartbeats).
    fn timed_out(checks: &[(u64, u64)]) -> Vec<u64> {
        let second = Duration::from_secs;
        let mut watchdog = ParentWatchdog::new(second(3), second(1), second(0));
        let found = checks
            .iter()
            .filter(|(now, heartbeats)| watchdog.has_timed_out(*heartbeats, second(*now)));
        found.map(|(now, _)| *now).collect()
    }

    #[test]
    fn a_silent_parent_times_out_and_a_heartbeat_ends_the_silence() {
        assert_eq!(timed_out(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]), [4, 5]);
        assert_eq!(timed_out(&[(1, 0), (2, 0), (3, 0)]), [3], "it never showed a heartbeat");
        assert!(timed_out(&[(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]).is_empty());
    }

    #[test]
    fn time_without_checks_does_not_count() {
        // Both were suspended for an hour, and the parent resumes later than this process.
        assert!(timed_out(&[(1, 1), (3601, 1), (3602, 2), (7202, 2), (7203, 2)]).is_empty());
    }
}
