//! Time before its end at which a job is told to save: from the cluster's table, else from the
//! saves of an earlier run, else two minutes. Pure.

use std::time::Duration;

use crate::config::values;

/// The time without a measured save, and the shortest that follows from one.
pub(crate) const DEFAULT: Duration = Duration::from_mins(2);

/// The save of an earlier run of the experiment that took longest.
#[derive(Clone, Debug, PartialEq)]
pub struct LongestSave {
    pub seconds: f64,
    /// Id of that run.
    pub run: String,
}

impl LongestSave {
    /// Time that a job needs to stop and save: the step, or the batch of an evaluation, comes to
    /// its end, and a save that is being written, before the last one begins.
    fn needs(&self) -> Duration {
        let minutes = (3.0 * self.seconds.clamp(0.0, 1e6) + 30.0) / 60.0;
        Duration::from_mins(minutes.ceil() as u64)
    }
}

/// Time before its end at which a job is told to save.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveTime {
    pub time: Duration,
    /// Line for the user: the origin of the time, or a warning that it may be too short.
    pub message: Option<String>,
}

impl SaveTime {
    /// The value `set` of the key `key`, or what the longest known save needs.
    pub(crate) fn of(
        key: &str,
        set: Option<values::Duration>,
        longest: Option<&LongestSave>,
    ) -> Self {
        let time = set
            .map_or_else(|| longest.map_or(DEFAULT, |save| save.needs().max(DEFAULT)), |set| set.0);
        let note = longest.and_then(|save| note(key, time, save, set.is_some()));
        Self { time, message: note }
    }
}

fn note(key: &str, time: Duration, save: &LongestSave, is_set: bool) -> Option<String> {
    let shown = values::Duration(time);
    let needs = values::Duration(save.needs());
    let took = format!("a save of run {} took {:.1} s", save.run, save.seconds);
    if is_set && time.as_secs_f64() < save.seconds {
        return Some(format!("warning: {key} = {shown} is too short: {took}; {needs} would do"));
    }
    (!is_set && time > DEFAULT).then(|| format!("{key} = {shown}: {took}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(set: Option<u64>, longest: Option<f64>, expected: (u64, Option<&str>)) {
        let set = set.map(|seconds| values::Duration(Duration::from_secs(seconds)));
        let longest = longest.map(|seconds| LongestSave { seconds, run: "r".to_owned() });
        let found = SaveTime::of("grace", set, longest.as_ref());
        assert_eq!((found.time.as_secs(), found.message.as_deref()), expected);
    }

    #[test]
    fn what_was_measured_may_make_it_longer_but_never_shorter() {
        check(None, None, (120, None));
        check(None, Some(0.2), (120, None));
        check(None, Some(30.0), (120, None));
        check(None, Some(41.0), (180, Some("grace = 3m: a save of run r took 41.0 s")));
        check(None, Some(600.0), (1_860, Some("grace = 31m: a save of run r took 600.0 s")));
        check(None, Some(f64::NAN), (120, None));
    }

    #[test]
    fn what_is_set_counts_and_is_doubted_where_a_save_took_longer() {
        check(Some(30), None, (30, None));
        check(Some(30), Some(29.0), (30, None));
        let doubt = "warning: grace = 30s is too short: a save of run r took 41.0 s; 3m would do";
        check(Some(30), Some(41.0), (30, Some(doubt)));
        check(Some(600), Some(41.0), (600, None));
    }
}
