//! How long a run has run: each of its starts from its first event to its last.

use jiff::Timestamp;

/// The time of a run whose events are told one after the other.
#[derive(Debug, Default)]
pub(crate) struct RunTime {
    /// Seconds of the starts before the newest one.
    before: f64,
    /// First and last event of the newest start.
    newest: Option<(Timestamp, Timestamp)>,
}

impl RunTime {
    /// The run is started again: the pause does not count.
    pub(crate) fn begin_again(&mut self) {
        self.before += self.newest.take().map_or(0.0, |(first, last)| span(first, last));
    }

    /// An event came at this time.
    pub(crate) fn hear(&mut self, time: Timestamp) {
        let first = self.newest.map_or(time, |(first, _)| first);
        self.newest = Some((first, time));
    }

    /// Seconds without the pauses between the starts; `None` before the first event.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let (first, last) = self.newest?;
        Some(self.before + span(first, last))
    }

    /// As [`RunTime::seconds`], of a run that is still running.
    pub(crate) fn seconds_until_now(&self) -> Option<f64> {
        let (first, last) = self.newest?;
        Some(self.before + span(first, last.max(Timestamp::now())))
    }
}

/// Seconds from one time to a later one.
fn span(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}
