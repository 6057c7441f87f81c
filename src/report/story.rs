//! Events -> what happened in a run, in a few lines. Pure.

use crate::event::{Event, Started};
use crate::record::text::escape;
use crate::record::{Context, Log, Stamped, line, restart, summary};

/// Name and run, for titles; `None` if the log does not say.
pub(crate) fn title(log: &Log) -> Option<String> {
    first_start(log).map(|started| format!("{} · {}", started.name, started.run))
}

/// What the run was, how often it was continued, what it warned of, and how it ended. Empty without
/// events.
pub fn story(log: &Log) -> String {
    let Some(started) = first_start(log) else { return String::new() };
    let mut lines = vec![format!("{}  {}", started.name, started.run)];
    lines.extend(started.arithmetic.iter().cloned());
    lines.push(ranks(started));
    lines.extend(log.events.iter().filter_map(later_start));
    let events = log.effective();
    lines.extend(events.iter().filter_map(|stamped| warning(&stamped.event)));
    lines.push(ending(&events));
    if log.n_unreadable > 0 {
        lines.push(format!("{} lines of the log are unreadable", log.n_unreadable));
    }
    escape(&lines.join("\n")).into_owned() + "\n"
}

fn first_start(log: &Log) -> Option<&Started> {
    log.events.iter().find_map(|stamped| match &stamped.event {
        Event::Started(started) => Some(started),
        _ => None,
    })
}

fn ranks(started: &Started) -> String {
    let Started { devices, steps_per_epoch, total_steps, .. } = started;
    let n = devices.len();
    let mut kinds = devices.clone();
    kinds.dedup();
    let (kinds, ranks) = (kinds.join(", "), if n == 1 { "rank" } else { "ranks" });
    format!("{n} {ranks} on {kinds}, {total_steps} steps in epochs of {steps_per_epoch}")
}

fn later_start(stamped: &Stamped) -> Option<String> {
    match &stamped.event {
        Event::Started(started) if started.resumed_from > 0 || !started.restarts.is_empty() => {
            let cause = started.restarts.last();
            let cause = cause.map(|cause| format!(": {}", restart(started.restarts.len(), cause)));
            let (step, cause) = (started.resumed_from, cause.unwrap_or_default());
            Some(format!("resumed after step {step} at {:.0}{cause}", stamped.time))
        }
        _ => None,
    }
}

fn warning(event: &Event) -> Option<String> {
    let is_told =
        matches!(event, Event::Warned { .. } | Event::Straggler(_) | Event::StepSkipped { .. });
    is_told.then(|| line(event, &Context::default())).flatten()
}

/// The last word, or what its absence means.
fn ending(events: &[&Stamped]) -> String {
    let last_step = events.iter().map(|stamped| stamped.step).max().unwrap_or(0);
    let mut last_words = events.iter().rev().map(|stamped| &stamped.event);
    // A run that is over may still warn of what it missed.
    match last_words.find(|event| !matches!(event, Event::Warned { .. })) {
        Some(Event::Finished(finished)) => summary(finished, &Vec::new()),
        Some(event @ Event::Failed { .. }) => line(event, &Context::default()).unwrap_or_default(),
        _ => format!("no end is recorded: the run goes on, or was killed after step {last_step}"),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::record::examples;
    use crate::units::Rank;

    fn log(events: Vec<Event>) -> Log {
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        let stamp = |event: Event| Stamped { time, step: event.step().unwrap_or(7), event };
        Log { events: events.into_iter().map(stamp).collect(), n_unreadable: 0 }
    }

    #[test]
    fn a_finished_run_tells_its_whole_story() {
        let events = vec![
            Event::Started(examples::started(0)),
            Event::StepSkipped { step: 3, loss_scale: Some(32768.0) },
            Event::StepDone(examples::step_done(30)),
            Event::Started(Started { restarts: vec!["rank 1".into()], ..examples::started(20) }),
            Event::Warned { message: "the disk is slow".into() },
            Event::Finished(examples::finished()),
            Event::Warned { message: "the run missed what it should reach".into() },
        ];
        assert_snapshot!(story(&log(events)), @r"
        shapes  20261120-132556-3fa2
        128 = 32 x 2 ranks x 2 passes
        lr 0.05 = 0.1 x 128/256 (linear)
        2 ranks on cpu, 50 steps in epochs of 20
        resumed after step 20 at 2026-11-20T13:25:56Z: restart 1, because of rank 1
        step 3 skipped: a gradient is not finite; loss scale 32768 from here
        warning: the disk is slow
        warning: the run missed what it should reach
        completed after step 50 in 2m 31s, 1234 samples/s
        best val/accuracy 72.50 % at step 40
        time: data 1.3 %, forward 33.1 %, backward 52.3 %, communication 3.3 %,
              optimizer 2.6 %, evaluation 5.3 %, checkpoint 0.7 %, other 1.3 %
        ");
    }

    #[test]
    fn a_run_without_an_end_and_a_failed_one_say_so() {
        let running =
            vec![Event::Started(examples::started(0)), Event::StepDone(examples::step_done(30))];
        let last = |events| story(&log(events)).lines().last().unwrap().to_owned();
        assert_snapshot!(last(running.clone()),
            @"no end is recorded: the run goes on, or was killed after step 30");
        let failed = Event::Failed { rank: Rank(1), step: 31, message: "the disk is full".into() };
        let failed = running.into_iter().chain([failed]).collect();
        assert_snapshot!(last(failed), @"rank 1 failed at step 31: the disk is full");
    }

    #[test]
    fn no_events_make_no_story() {
        assert_eq!(story(&Log::default()), "");
        assert_eq!(title(&Log::default()), None);
    }
}
