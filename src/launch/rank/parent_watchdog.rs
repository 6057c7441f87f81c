//! For how long a process has shown no sign of life, in the time in which we could have seen one. Pure.

use std::time::Duration;

/// Follows the signs of another process.
#[derive(Debug)]
pub(in crate::launch) struct Silence {
    /// Silence that is too long.
    patience: Duration,
    /// Most that counts between two looks: if we look less often it is we who were suspended, and perhaps with us the
    /// other one.
    longest_look: Duration,
    /// Signs so far.
    signs: u64,
    looked: Duration,
    silent: Duration,
}

impl Silence {
    /// From `now` on.
    pub(in crate::launch) fn new(
        patience: Duration,
        longest_look: Duration,
        now: Duration,
    ) -> Self {
        let (signs, silent) = (0, Duration::ZERO);
        Self { patience, longest_look, signs, looked: now, silent }
    }

    /// Whether `signs`, seen `now`, have not become more for too long.
    pub(in crate::launch) fn is_too_long(&mut self, signs: u64, now: Duration) -> bool {
        let passed = now.saturating_sub(self.looked).min(self.longest_look);
        self.looked = now;
        self.silent = if signs == self.signs { self.silent + passed } else { Duration::ZERO };
        self.signs = signs;
        self.silent >= self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which the silence is too long, of looks at (second, signs).
    fn too_long(looks: &[(u64, u64)]) -> Vec<u64> {
        let second = Duration::from_secs;
        let mut silence = Silence::new(second(3), second(1), second(0));
        let found = looks.iter().filter(|(now, signs)| silence.is_too_long(*signs, second(*now)));
        found.map(|(now, _)| *now).collect()
    }

    #[test]
    fn a_silence_is_too_long_after_the_patience_and_a_sign_ends_it() {
        assert_eq!(too_long(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]), [4, 5]);
        assert_eq!(too_long(&[(1, 0), (2, 0), (3, 0)]), [3], "it never lived");
        assert!(too_long(&[(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]).is_empty());
    }

    #[test]
    fn the_time_in_which_we_did_not_look_is_no_silence() {
        // Both were suspended for an hour, and the other one comes back later than we do.
        assert!(too_long(&[(1, 1), (3601, 1), (3602, 2), (7202, 2), (7203, 2)]).is_empty());
    }
}
