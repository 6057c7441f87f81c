//! The story of a run in a few lines. Pure.

use super::Records;
use super::outcome::ending;
use crate::event::{Event, Started};
use crate::record::text::escape;
use crate::record::{Context, Log, Stamped, line, restart};
use crate::terminal::counted;

/// Name and run, for titles; `None` if the log has no start.
pub(crate) fn title(log: &Log) -> Option<String> {
    starts(log).next_back().map(|started| format!("{} · {}", started.name, started.run))
}

/// Describes the run, its resumes, its warnings, the result of its test and its outcome.
pub(crate) fn story(records: &Records) -> String {
    let Records { log, traces, .. } = records;
    let mut lines = Vec::new();
    match starts(log).next_back() {
        // Of a run that was given more epochs, the newest numbers hold.
        Some(started) => lines.extend(description(started)),
        None => lines.push(traces.run.clone()),
    }
    lines.extend(log.events.iter().filter_map(later_start));
    let events = log.effective();
    lines.extend(events.iter().filter_map(|stamped| told(&stamped.event)));
    lines.push(ending(&events, traces));
    match log.n_unreadable {
        0 => {}
        1 => lines.push("1 line of the log is unreadable".to_owned()),
        n => lines.push(format!("{n} lines of the log are unreadable")),
    }
    escape(&lines.join("\n")).into_owned() + "\n"
}

fn description(started: &Started) -> Vec<String> {
    let mut lines = vec![format!("{}  {}", started.name, started.run)];
    lines.extend(started.arithmetic.iter().cloned());
    lines.push(ranks(started));
    lines
}

fn starts(log: &Log) -> impl DoubleEndedIterator<Item = &Started> {
    log.events.iter().filter_map(|stamped| match &stamped.event {
        Event::Started(started) => Some(started),
        _ => None,
    })
}

fn ranks(started: &Started) -> String {
    let Started { devices, steps_per_epoch, total_steps, .. } = started;
    let n = devices.len();
    let mut kinds = devices.clone();
    kinds.dedup();
    let kinds = kinds.join(", ");
    let ranks = if n == 1 { "rank" } else { "ranks" };
    let steps = if Context::of(started).is_bounded() {
        format!("{}, {steps_per_epoch} per epoch", counted(*total_steps, "step"))
    } else {
        format!("epochs of {steps_per_epoch} steps")
    };
    format!("{n} {ranks} on {kinds}, {steps}")
}

fn later_start(stamped: &Stamped) -> Option<String> {
    match &stamped.event {
        Event::Started(started) if started.resumed_from > 0 || !started.restarts.is_empty() => {
            let cause = started.restarts.last();
            let cause = cause.map(|cause| format!(": {}", restart(started.restarts.len(), cause)));
            let step = started.resumed_from;
            let cause = cause.unwrap_or_default();
            Some(format!("resumed after step {step} at {:.0}{cause}", stamped.time))
        }
        _ => None,
    }
}

/// Warnings, and the result of the test.
fn told(event: &Event) -> Option<String> {
    let is_told = matches!(
        event,
        Event::Warned { .. }
            | Event::Straggler(_)
            | Event::StepSkipped { .. }
            | Event::Tested(_)
            | Event::Unreadable(_)
    );
    is_told.then(|| line(event, &Context::default())).flatten()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::event::Evaluated;
    use crate::record::example_events;
    use crate::report::outcome::OutcomeFiles;

    fn log(events: Vec<Event>) -> Log {
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        let stamp = |event: Event| Stamped { time, step: event.step().unwrap_or(7), event };
        Log { events: events.into_iter().map(stamp).collect(), n_unreadable: 0 }
    }

    fn told_of(events: Vec<Event>) -> String {
        story(&Records { log: log(events), ..Records::default() })
    }

    #[test]
    fn a_finished_run_tells_its_whole_story() {
        let events = vec![
            Event::Started(example_events::started(0)),
            Event::StepSkipped { step: 3, loss_scale: Some(32768.0) },
            Event::StepDone(example_events::step_done(30)),
            Event::Started(Started {
                restarts: vec!["rank 1".into()],
                ..example_events::started(20)
            }),
            Event::Warned { message: "the disk is slow".into() },
            Event::Tested(Evaluated {
                metrics: [("test/loss".to_owned(), 0.5)].into(),
                ..example_events::evaluated(40)
            }),
            Event::Finished(example_events::finished()),
            Event::Warned { message: "the run missed what it should reach".into() },
        ];
        assert_snapshot!(told_of(events), @r"
        shapes  20261120-132556-3fa2
        128 = 32 x 2 ranks x 2 passes
        lr 0.05 = 0.1 x 128/256 (linear)
        2 ranks on cpu, 50 steps, 20 per epoch
        resumed after step 20 at 2026-11-20T13:25:56Z: restart 1, because of rank 1
        step 3 skipped: a gradient is not finite; loss scale now 32768
        warning: the disk is slow
        test loss 0.5000  (weights of step 40, 1000 samples)
        warning: the run missed what it should reach
        completed after step 50 in 2m 31s, 1234 samples/s
        best val/accuracy 72.50 % at step 40
        time: data 1.3 %, forward 33.1 %, backward 52.3 %, communication 3.3 %,
              optimizer 2.6 %, evaluation 5.3 %, checkpoint 0.7 %, other 1.3 %
        ");
    }

    #[test]
    fn a_run_that_was_given_more_epochs_is_told_by_its_newest_numbers() {
        let arithmetic = vec!["80 steps = 4 epochs".to_owned()];
        let longer = Started { arithmetic, total_steps: 80, ..example_events::started(50) };
        let text =
            told_of(vec![Event::Started(example_events::started(0)), Event::Started(longer)]);
        assert!(text.contains("80 steps = 4 epochs\n2 ranks on cpu, 80 steps"), "{text}");
        assert!(!text.contains("50 steps"), "{text}");
    }

    #[test]
    fn a_run_without_events_has_its_end_at_least() {
        let failure = Some("failed at step 0 (loading the data, exit 3): no files".to_owned());
        let traces = OutcomeFiles { run: "r-1".into(), failure, ..OutcomeFiles::default() };
        let text = story(&Records { traces, ..Records::default() });
        assert_eq!(text, "r-1\nfailed at step 0 (loading the data, exit 3): no files\n");
        assert_eq!(title(&Log::default()), None);
    }
}
