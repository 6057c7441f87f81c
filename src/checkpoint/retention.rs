//! Which checkpoints stay: a pure decision.

use std::cmp::Ordering;

use crate::event::Best;
use crate::plan::{CheckpointPlan, Mode};

/// What is known of a checkpoint without opening its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) step: u64,
    pub(crate) metric: Option<f64>,
}

/// Steps of the checkpoints to delete: all but the newest `keep_last` and the best `keep_best`. The
/// newest always stays.
pub(crate) fn surplus(plan: &CheckpointPlan, entries: &[Entry]) -> Vec<u64> {
    let mut newest: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.truncate(plan.keep_last.max(1));
    let best = ranked(plan.mode, entries).into_iter().take(plan.keep_best);
    let best: Vec<u64> = best.map(|(_, step)| step).collect();
    let mut surplus: Vec<u64> = entries
        .iter()
        .map(|entry| entry.step)
        .filter(|step| !newest.contains(step) && !best.contains(step))
        .collect();
    surplus.sort_unstable();
    surplus
}

/// The best checkpoint.
pub(crate) fn best(plan: &CheckpointPlan, entries: &[Entry]) -> Option<Best> {
    let &(value, step) = ranked(plan.mode, entries).first()?;
    Some(Best { metric: plan.monitor.clone(), value, step })
}

/// Metrics and steps, best first; of equals the earlier, as the run's own `best` keeps it.
fn ranked(mode: Mode, entries: &[Entry]) -> Vec<(f64, u64)> {
    let mut known: Vec<(f64, u64)> =
        entries.iter().filter_map(|entry| Some((entry.metric?, entry.step))).collect();
    known.sort_by(|a, b| {
        let by_metric = match mode {
            Mode::Min => a.0.total_cmp(&b.0),
            Mode::Max => b.0.total_cmp(&a.0),
        };
        if by_metric == Ordering::Equal { a.1.cmp(&b.1) } else { by_metric }
    });
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(keep_last: usize, keep_best: usize) -> CheckpointPlan {
        CheckpointPlan {
            dir: "checkpoints".into(),
            every: crate::plan::Cadence::Epochs(1),
            keep_last,
            keep_best,
            monitor: "val/accuracy".into(),
            mode: Mode::Max,
        }
    }

    fn entries(metrics: &[(u64, Option<f64>)]) -> Vec<Entry> {
        metrics.iter().map(|&(step, metric)| Entry { step, metric }).collect()
    }

    #[test]
    fn the_newest_and_the_best_stay() {
        let entries = entries(&[(10, Some(0.5)), (20, Some(0.9)), (30, Some(0.7)), (40, None)]);
        assert_eq!(surplus(&plan(1, 1), &entries), [10, 30]);
        assert_eq!(surplus(&plan(2, 0), &entries), [10, 20]);
        assert_eq!(surplus(&plan(0, 0), &entries), [10, 20, 30]);
        assert_eq!(best(&plan(1, 1), &entries).map(|best| best.step), Some(20));
    }

    #[test]
    fn of_equally_good_checkpoints_the_earlier_is_the_best() {
        let entries = entries(&[(10, Some(0.9)), (20, Some(0.9))]);
        assert_eq!(best(&plan(1, 1), &entries).map(|best| best.step), Some(10));
    }
}
