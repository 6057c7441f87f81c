//! Time in each phase and resource use over time of each rank, from the ranks' reports. Pure.

use serde::Serialize;

use crate::event::{Event, RankStats, TimeShares};
use crate::record::{RunTime, Stamped};

/// Statistics of the ranks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Ranks {
    /// Seconds of each rank in each phase, over all starts, without repeated steps.
    phases: Vec<(&'static str, Vec<f64>)>,
    /// Seconds that the others waited for each rank; empty where that was not measured.
    late: Vec<f64>,
    usage: Usage,
}

/// Resource use of the ranks over time; a rank that was not there has gaps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Usage {
    /// Seconds of running until then, without the pauses between starts.
    seconds: Vec<f64>,
    step: Vec<u64>,
    /// By rank: cores in use since the report before.
    cpu: Vec<Vec<Option<f32>>>,
    /// By rank: bytes resident.
    memory: Vec<Vec<Option<u64>>>,
    /// By rank: share of the time since the report before that the others waited for it.
    late: Vec<Vec<Option<f32>>>,
    /// By rank: bytes in use of its GPU; empty without GPUs.
    gpu_memory: Vec<Vec<Option<u64>>>,
    /// By rank: how busy its GPU was, from 0 to 1; empty without GPUs.
    gpu_utilization: Vec<Vec<Option<f64>>>,
}

/// The starts of a run, each with the step that it continues from and its reports.
struct Start<'a> {
    from: u64,
    reports: Vec<(f64, &'a RankStats)>,
}

impl Ranks {
    /// Statistics from `events`: starts and the ranks' reports.
    pub(crate) fn of(events: &[Stamped]) -> Self {
        let starts = starts(events);
        let mut phases = Vec::new();
        let mut late = Vec::new();
        for (name, _) in TimeShares::default().phases() {
            let of = |stats: &RankStats| stats.phase_seconds.get(name).cloned().unwrap_or_default();
            phases.push((name, total(&starts, of)));
        }
        phases.retain(|(_, seconds)| seconds.iter().any(|&seconds| seconds > 0.0));
        late.extend(total(&starts, |stats| stats.late_seconds.clone()));
        Self { phases, late, usage: Usage::of(&starts) }
    }
}

fn starts(events: &[Stamped]) -> Vec<Start<'_>> {
    let mut starts: Vec<Start<'_>> = Vec::new();
    let mut run_time = RunTime::default();
    for Stamped { time, event, .. } in events {
        if let Event::Started(started) = event {
            run_time.restart();
            starts.push(Start { from: started.resumed_from, reports: Vec::new() });
        }
        let now = run_time.advance(*time);
        if let (Event::RankStats(stats), Some(start)) = (event, starts.last_mut()) {
            start.reports.push((now, stats));
        }
    }
    starts
}

/// The last values of each start that count, added up by rank.
fn total(starts: &[Start<'_>], of: impl Fn(&RankStats) -> Vec<f64>) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    for (at, start) in starts.iter().enumerate() {
        let until = starts[at + 1..].iter().map(|later| later.from).min().unwrap_or(u64::MAX);
        let counted = start.reports.iter().rev().find(|(_, stats)| stats.step <= until);
        let values = counted.map_or(Vec::new(), |(_, stats)| of(stats));
        sums.resize(sums.len().max(values.len()), 0.0);
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums
}

impl Usage {
    fn of(starts: &[Start<'_>]) -> Self {
        let reports = || starts.iter().flat_map(|start| &start.reports);
        let ranks = reports().map(|(_, stats)| stats.memory.len()).max().unwrap_or(0);
        let mut usage = Self::default();
        usage.cpu.resize(ranks, Vec::new());
        usage.memory.resize(ranks, Vec::new());
        usage.late.resize(ranks, Vec::new());
        usage.gpu_memory.resize(ranks, Vec::new());
        usage.gpu_utilization.resize(ranks, Vec::new());
        for Start { reports, .. } in starts {
            let mut before: Option<&(f64, &RankStats)> = None;
            for report in reports {
                usage.add(before, report);
                before = Some(report);
            }
        }
        forget_unknown(&mut usage.gpu_memory);
        forget_unknown(&mut usage.gpu_utilization);
        usage
    }

    fn add(&mut self, before: Option<&(f64, &RankStats)>, (seconds, now): &(f64, &RankStats)) {
        self.seconds.push(*seconds);
        self.step.push(now.step);
        let rate = |rank: usize, of: fn(&RankStats) -> &Vec<f64>| {
            let (earlier, before) = before?;
            let grown = of(now).get(rank)? - of(before).get(rank)?;
            let took = seconds - earlier;
            (took > 1e-3).then_some((grown / took) as f32)
        };
        let rates: [fn(&RankStats) -> &Vec<f64>; 2] =
            [|stats| &stats.cpu_seconds, |stats| &stats.late_seconds];
        for rank in 0..self.memory.len() {
            self.cpu[rank].push(rate(rank, rates[0]));
            self.late[rank].push(rate(rank, rates[1]));
            self.memory[rank].push(now.memory.get(rank).copied().filter(|&bytes| bytes > 0));
            self.gpu_memory[rank].push(now.gpu_memory.get(rank).copied().flatten());
            self.gpu_utilization[rank].push(now.gpu_utilization.get(rank).copied().flatten());
        }
    }
}

/// Empties a quantity that no rank has reported.
fn forget_unknown<T>(ranks: &mut Vec<Vec<Option<T>>>) {
    if ranks.iter().flatten().all(Option::is_none) {
        ranks.clear();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::example_events;

    fn at(second: i64, event: Event) -> Stamped {
        let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
        Stamped { time, step: event.step().unwrap_or(0), event }
    }

    fn stats(step: u64, forward: [f64; 2], cpu: [f64; 2], late: f64) -> Event {
        Event::RankStats(RankStats {
            step,
            phase_seconds: [("forward".to_owned(), forward.to_vec())].into(),
            late_seconds: vec![0.0, late],
            cpu_seconds: cpu.to_vec(),
            memory: vec![100, 0],
            ..RankStats::default()
        })
    }

    #[test]
    fn totals_are_of_what_counts_and_usage_is_of_all() {
        let start = |step| Event::Started(example_events::started(step));
        let events = [
            at(0, start(0)),
            at(2, stats(10, [1.0, 2.0], [2.0, 1.0], 0.5)),
            at(4, stats(20, [2.0, 4.0], [5.0, 1.5], 1.5)),
            at(1000, start(10)),
            at(1003, stats(15, [0.5, 0.25], [3.0, 3.0], 0.0)),
        ];
        let ranks = Ranks::of(&events);
        assert_eq!(ranks.phases, [("forward", vec![1.5, 2.25])]);
        assert_eq!(ranks.late, [0.0, 0.5]);
        let usage = ranks.usage;
        assert_eq!((usage.seconds, usage.step), (vec![2.0, 4.0, 7.0], vec![10, 20, 15]));
        assert_eq!(usage.cpu[0], [None, Some(1.5), None]);
        assert_eq!(usage.late[1], [None, Some(0.5), None]);
        assert_eq!((&usage.memory[0], &usage.memory[1]), (&vec![Some(100); 3], &vec![None; 3]));
        assert!(usage.gpu_memory.is_empty() && usage.gpu_utilization.is_empty());
    }

    #[test]
    fn gpus_have_gaps_where_a_rank_told_nothing_of_its_own() {
        let on_gpus = |step, gpu_memory: &[Option<u64>]| {
            Event::RankStats(RankStats {
                step,
                memory: vec![1, 1],
                gpu_memory: gpu_memory.to_vec(),
                ..RankStats::default()
            })
        };
        let start = Event::Started(example_events::started(0));
        let later = on_gpus(20, &[Some(8), Some(9)]);
        let events = [at(0, start), at(1, on_gpus(10, &[Some(7), None])), at(2, later)];
        let usage = Ranks::of(&events).usage;
        assert_eq!(usage.gpu_memory, [[Some(7), Some(8)], [None, Some(9)]]);
        assert!(usage.gpu_utilization.is_empty(), "{usage:?}");
    }

    #[test]
    fn a_run_of_an_older_ddprun_told_nothing_of_its_ranks() {
        let ranks = Ranks::of(&[at(0, Event::Started(example_events::started(0)))]);
        assert_eq!(ranks, Ranks::default());
    }
}
