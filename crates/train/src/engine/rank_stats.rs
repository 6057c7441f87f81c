//! Statistics of each rank, which reach the record of rank 0 with the votes of a step, so that no
//! call is added to it. Rank 0 asks by its clock, in a vote of the step before.

use std::time::Instant;

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::event::{RankStats, TimeShares};
use crate::memory;
use crate::ops::{GpuUsage, gpu_usage};
use crate::units::Rank;

/// Least time between two reports, in seconds.
const MIN_INTERVAL: f64 = 1.0;
/// Share of the time since the start after which the next report is due, so that a day of training
/// has about three thousand.
const INTERVAL_SHARE: f64 = 0.002;

/// One rank's statistics since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankReport {
    time: TimeShares,
    cpu: f64,
    memory: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuUsage>,
}

impl RankReport {
    /// Returns the report of this process, which spent `time` and computes on `device`.
    pub(crate) fn now(time: TimeShares, device: &Device) -> Self {
        let memory = memory::resident().map_or(0, |bytes| bytes.0);
        Self { time, cpu: Clock::cpu_seconds(), memory, gpu: gpu_usage(device) }
    }

    fn gpu_memory(&self) -> Option<u64> {
        self.gpu.map(|gpu| gpu.memory.0)
    }

    fn gpu_utilization(&self) -> Option<f64> {
        self.gpu?.utilization
    }
}

/// The reports of all ranks as an event; `late` are the seconds that the others waited for each.
pub(crate) fn of(step: u64, all: &[RankReport], late: &[f64]) -> RankStats {
    let micros = |seconds: f64| (1e6 * seconds).round() / 1e6;
    let names = TimeShares::default().phases().map(|(name, _)| name.to_owned());
    let phase = |at: usize| all.iter().map(|report| micros(report.time.phases()[at].1)).collect();
    RankStats {
        step,
        phase_seconds: names.into_iter().enumerate().map(|(at, name)| (name, phase(at))).collect(),
        late_seconds: late.iter().map(|seconds| micros(*seconds)).collect(),
        cpu_seconds: all.iter().map(|report| micros(report.cpu)).collect(),
        memory: all.iter().map(|report| report.memory).collect(),
        gpu_memory: known(all, RankReport::gpu_memory),
        gpu_utilization: known(all, RankReport::gpu_utilization),
    }
}

/// A quantity of each rank; nothing if no rank knows it.
fn known<T>(all: &[RankReport], of: fn(&RankReport) -> Option<T>) -> Vec<Option<T>> {
    let values: Vec<_> = all.iter().map(of).collect();
    if values.iter().any(Option::is_some) { values } else { Vec::new() }
}

/// Schedule of the reports, and the last that came.
#[derive(Debug)]
pub(crate) struct StatsClock {
    clock: Clock,
    /// Seconds after the start.
    due: f64,
    is_asked: bool,
    found: Option<RankStats>,
}

impl StatsClock {
    /// The first report is due soon.
    pub(crate) fn start() -> Self {
        Self { clock: Clock::start(), due: MIN_INTERVAL, is_asked: false, found: None }
    }

    /// True if `rank` asks for reports now: only rank 0 does.
    pub(crate) fn is_due(&self, rank: Rank) -> bool {
        rank.is_first() && !self.is_asked && self.clock.seconds() >= self.due
    }

    /// True if this rank sends its report.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Takes the `reports` that came with the votes of a step, if all ranks sent one, and whether
    /// rank 0 `asks` for more.
    pub(crate) fn record(
        &mut self,
        step: u64,
        asks: bool,
        reports: Option<&[RankReport]>,
        late: &[f64],
    ) {
        self.is_asked = asks;
        if let Some(reports) = reports {
            self.found = Some(of(step, reports, late));
            let now = self.clock.seconds();
            self.due = now + MIN_INTERVAL.max(INTERVAL_SHARE * now);
        }
    }

    /// The last reports, once.
    pub(crate) fn take(&mut self) -> Option<RankStats> {
        self.found.take()
    }
}

/// A running stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Processor time that all threads of this process have used, in seconds.
    fn cpu_seconds() -> f64 {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        spent.tv_sec as f64 + 1e-9 * spent.tv_nsec as f64
    }

    /// Seconds since the start.
    pub fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::vote::Vote;
    use crate::units::Bytes;

    fn report(cpu: f64) -> RankReport {
        let time = TimeShares { forward: 0.123_456_78, ..TimeShares::default() };
        RankReport { time, cpu, memory: 7, gpu: None }
    }

    #[test]
    fn ranks_tell_in_the_step_after_rank_0_has_asked() {
        let mut clock = StatsClock::start();
        assert!(!clock.is_due(Rank(0)), "not at once");
        clock.due = 0.0;
        assert!(clock.is_due(Rank(0)) && !clock.is_due(Rank(1)) && !clock.is_asked());
        clock.record(1, true, None, &[]);
        assert!(clock.is_asked() && !clock.is_due(Rank(0)) && clock.take().is_none());
        clock.record(2, false, Some(&[report(1.0), report(2.0)]), &[0.0, 0.5]);
        assert!(!clock.is_asked() && clock.due >= MIN_INTERVAL);
        let found = clock.take().unwrap();
        assert_eq!((found.step, &found.cpu_seconds[..]), (2, &[1.0, 2.0][..]));
        assert_eq!(found.phase_seconds["forward"], [0.123_457; 2]);
        assert_eq!((found.late_seconds, found.memory), (vec![0.0, 0.5], vec![7, 7]));
        assert!(clock.take().is_none());
    }

    #[test]
    fn gpus_are_told_of_if_a_rank_has_one_and_else_not_mentioned() {
        let of_gpu = |utilization| {
            let gpu = GpuUsage { memory: Bytes(5 << 30), utilization };
            RankReport { gpu: Some(gpu), ..report(1.0) }
        };
        let stats = of(1, &[of_gpu(Some(0.5)), of_gpu(None), report(1.0)], &[]);
        assert_eq!(stats.gpu_memory, [Some(5 << 30), Some(5 << 30), None]);
        assert_eq!(stats.gpu_utilization, [Some(0.5), None, None]);
        let back: RankReport =
            serde_json::from_str(&serde_json::to_string(&of_gpu(Some(0.25))).unwrap()).unwrap();
        assert_eq!(back, of_gpu(Some(0.25)));
        let text = serde_json::to_string(&of(1, &[report(1.0)], &[])).unwrap();
        assert!(!text.contains("gpu"), "{text}");
        assert!(!serde_json::to_string(&report(1.0)).unwrap().contains("gpu"));
    }

    #[test]
    fn this_process_has_used_some_processor_time_and_memory() {
        let report = RankReport::now(TimeShares::default(), &Device::Cpu);
        assert!(report.cpu > 0.0 && report.memory > 1 << 20, "{report:?}");
        assert_eq!(report.gpu, None);
    }

    #[test]
    fn a_vote_without_reports_is_no_longer_than_before() {
        let text = serde_json::to_string(&Vote::default()).unwrap();
        assert!(!text.contains("asks") && !text.contains("done"), "{text}");
        let whole = Vote { asks: true, done: Some(report(0.1 + 0.2)), ..Vote::default() };
        let back: Vote = serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
        assert_eq!(back, whole);
    }
}
