//! The last lines of a run: why it ended, its best result, where its time went, and the paths of
//! its files. Pure.

use std::path::PathBuf;

use super::text::{duration, escape, metric, rate};
use crate::event::{Finished, Reason, TimeShares};

/// Files and folders that the last lines name, each with a label.
pub(crate) type Places = Vec<(&'static str, PathBuf)>;

/// The last lines of the run that commands call `run`; if it can go on, the very last one is the
/// command for it.
pub(crate) fn summary(finished: &Finished, run: &str, places: &Places) -> String {
    let mut lines = vec![ending(finished)];
    if let Some(best) = &finished.best {
        let value = metric(&best.metric, best.value);
        lines.push(format!("best {} {value} at step {}", best.metric, best.step));
    }
    if has_trained(finished) {
        lines.push(format!("time: {}", shares(&finished.time, finished.seconds)));
    }
    if let Some(peak) = finished.peak_memory {
        lines.push(format!("memory: peak {peak} (rank 0)"));
    }
    if finished.no_checkpoint {
        lines.push("no checkpoint was saved, as `checkpoint.every` is \"never\"".to_owned());
    }
    let width = places.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    lines.extend(places.iter().map(|(what, path)| format!("{what:<width$}  {}", path.display())));
    lines.extend(
        remedy(finished.reason).map(|more| format!("continue with: ddprun resume {run}{more}")),
    );
    escape(&lines.join("\n")).into_owned()
}

/// Arguments of `ddprun resume RUN` beside the run; `None` if the run cannot go on.
fn remedy(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::Stopped | Reason::Abandoned => Some(""),
        Reason::OutOfTime => Some(" train.time=..."),
        Reason::Completed | Reason::EarlyStopped => None,
    }
}

fn ending(finished: &Finished) -> String {
    let why = match finished.reason {
        Reason::Completed => "completed",
        Reason::EarlyStopped => "stopped early (no improvement)",
        Reason::OutOfTime => "time limit reached",
        Reason::Stopped => "stopped (state saved)",
        Reason::Abandoned => "stopped (state not saved)",
    };
    let rate = if has_trained(finished) {
        format!(", {}", rate(finished.samples_per_second))
    } else {
        String::new()
    };
    format!("{why} after step {} in {}{rate}", finished.step, duration(finished.seconds))
}

/// False for a run that was already complete when it was started again.
fn has_trained(finished: &Finished) -> bool {
    finished.samples_per_second > 0.0
}

/// Each phase's share of `seconds` in percent, on two lines. What no phase claims is `other`:
/// start, logging, waiting.
fn shares(time: &TimeShares, seconds: f64) -> String {
    let phases = time.phases();
    let claimed: f64 = phases.iter().map(|(_, spent)| spent).sum();
    // Clocks of phases and run are read at different moments; the whole is never less than its
    // parts.
    let whole = seconds.max(claimed);
    if whole <= 0.0 {
        return "too short to measure".to_owned();
    }
    let share = |name: &str, spent: f64| format!("{name} {:.1} %", 100.0 * spent / whole);
    let mut words: Vec<String> = phases.iter().map(|(name, spent)| share(name, *spent)).collect();
    words.push(share("other", whole - claimed));
    let (first, second) = words.split_at(4);
    format!("{},\n      {}", first.join(", "), second.join(", "))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::record::example_events;
    use crate::units::Bytes;

    #[test]
    fn the_last_lines_name_reason_best_time_and_places() {
        let places = vec![
            ("best", "checkpoints/shapes/r/best".into()),
            ("history", "logs/shapes/r/training_history.json".into()),
        ];
        assert_snapshot!(summary(&example_events::finished(), "r", &places), @r"
        completed after step 50 in 2m 31s, 1234 samples/s
        best val/accuracy 72.50 % at step 40
        time: data 1.3 %, forward 33.1 %, backward 52.3 %, communication 3.3 %,
              optimizer 2.6 %, evaluation 5.3 %, checkpoint 0.7 %, other 1.3 %
        best     checkpoints/shapes/r/best
        history  logs/shapes/r/training_history.json
        ");
    }

    #[test]
    fn a_run_that_was_over_has_no_speed() {
        let finished = Finished { samples_per_second: 0.0, ..example_events::finished() };
        assert_snapshot!(summary(&finished, "r", &Vec::new()), @r"
        completed after step 50 in 2m 31s
        best val/accuracy 72.50 % at step 40
        ");
    }

    #[test]
    fn shares_add_up_to_a_hundred_even_if_the_clocks_disagree() {
        let time = TimeShares { forward: 3.0, backward: 5.0, ..TimeShares::default() };
        let words = shares(&time, 7.9);
        assert!(words.starts_with("data 0.0 %, forward 37.5 %, backward 62.5 %"), "{words}");
        assert!(words.ends_with("other 0.0 %"), "{words}");
        assert_eq!(shares(&TimeShares::default(), 0.0), "too short to measure");
    }

    #[test]
    fn the_largest_memory_is_named_where_it_is_known() {
        let finished =
            Finished { peak_memory: Some(Bytes(400 << 20)), ..example_events::finished() };
        let text = summary(&finished, "r", &Vec::new());
        assert!(text.ends_with("\nmemory: peak 400.00 MiB (rank 0)"), "{text}");
    }

    #[test]
    fn a_run_that_has_saved_nothing_says_so() {
        let finished = Finished { no_checkpoint: true, ..example_events::finished() };
        let text = summary(&finished, "r", &Vec::new());
        assert!(text.ends_with("\nno checkpoint was saved, as `checkpoint.every` is \"never\""));
    }

    #[test]
    fn the_last_line_of_a_run_that_was_stopped_continues_it() {
        let places = vec![("best", "checkpoints/shapes/r/best".into())];
        let last = |reason| {
            let text = summary(&Finished { reason, ..example_events::finished() }, "r-1", &places);
            text.lines().last().unwrap().to_owned()
        };
        for reason in [Reason::Stopped, Reason::Abandoned] {
            assert_eq!(last(reason), "continue with: ddprun resume r-1");
        }
        let longer = "continue with: ddprun resume r-1 train.time=...";
        assert_eq!(last(Reason::OutOfTime), longer);
        let over = Finished { reason: Reason::EarlyStopped, ..example_events::finished() };
        assert!(!summary(&over, "r-1", &places).contains("resume"));
    }
}
