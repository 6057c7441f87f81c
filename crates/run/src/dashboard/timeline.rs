//! Events -> how long a run had run at which step, without the pauses between its starts. Pure.

use crate::event::Event;
use crate::record::Stamped;

/// Places of a timeline.
const MAX_PLACES: usize = 64;

/// Steps with the seconds until then, both rising.
pub(super) fn timeline(events: &[Stamped]) -> Vec<(u64, f64)> {
    let mut places: Vec<(u64, f64)> = Vec::new();
    let mut start = None;
    let mut before = 0.0;
    let mut seconds = 0.0;
    for Stamped { time, step, event } in events {
        if let Event::Started(started) = event {
            (start, before) = (Some(*time), seconds);
            // What is done again counts where it is done the last time.
            places.retain(|(known, _)| *known < started.resumed_from);
        }
        let begin = *start.get_or_insert(*time);
        seconds = before + time.duration_since(begin).as_secs_f64().max(0.0);
        // A checkpoint is said some steps after its own.
        if !matches!(event, Event::Saved(_)) && places.last().is_none_or(|last| last.0 < *step) {
            places.push((*step, seconds));
        }
    }
    let stride = places.len().div_ceil(MAX_PLACES).max(1);
    let last = places.len().saturating_sub(1);
    let kept = places.into_iter().enumerate();
    kept.filter(|(at, _)| at % stride == 0 || *at == last).map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::record::example_events;

    #[test]
    fn pauses_and_what_was_done_again_do_not_count() {
        let at = |second: i64, event: Event| {
            let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
            Stamped { time, step: event.step().unwrap_or(0), event }
        };
        let step = |step| Event::StepDone(example_events::step_done(step));
        let start = |step| Event::Started(example_events::started(step));
        let events = [
            at(0, start(0)),
            at(5, step(20)),
            at(9, step(30)),
            at(1000, start(20)),
            at(1004, step(30)),
        ];
        assert_eq!(timeline(&events), [(0, 0.0), (20, 9.0), (30, 13.0)]);
        assert!(timeline(&[]).is_empty());
    }
}
