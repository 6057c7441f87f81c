//! Decides which checkpoints stay. Pure.

use std::cmp::Ordering;

use crate::event::Best;
use crate::plan::{CheckpointPlan, Mode};

/// A checkpoint, as far as it is known without opening its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) step: u64,
    pub(crate) metric: Option<f64>,
    /// `val/loss`, by which equal metrics are told apart.
    pub(crate) loss: Option<f64>,
}

/// Steps of the checkpoints to delete: all but the newest `keep_last` and the best `keep_best`. The
/// newest always stays.
pub(crate) fn surplus(plan: &CheckpointPlan, entries: &[Entry]) -> Vec<u64> {
    let mut newest: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.truncate(plan.keep_last.max(1));
    let best = ranked(plan.mode, entries).into_iter().take(plan.keep_best);
    let best: Vec<u64> = best.map(|(_, entry)| entry.step).collect();
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
    let &(value, Entry { step, loss, .. }) = ranked(plan.mode, entries).first()?;
    Some(Best { metric: plan.monitor.clone(), value, loss, step })
}

/// Metrics and checkpoints, best first; of equals that with the smaller loss or else the earlier,
/// as the run's own `best` keeps it.
fn ranked(mode: Mode, entries: &[Entry]) -> Vec<(f64, Entry)> {
    let mut known: Vec<(f64, Entry)> =
        entries.iter().filter_map(|entry| Some((entry.metric?, *entry))).collect();
    known.sort_by(|(a, first), (b, second)| {
        let by_metric = match mode {
            Mode::Min => a.total_cmp(b),
            Mode::Max => b.total_cmp(a),
        };
        let by_loss = || match (first.loss, second.loss) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => Ordering::Equal,
        };
        by_metric.then_with(by_loss).then(first.step.cmp(&second.step))
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
        metrics.iter().map(|&(step, metric)| Entry { step, metric, loss: None }).collect()
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
    fn of_equally_good_checkpoints_that_with_the_smaller_loss_or_the_earlier_is_the_best() {
        let mut entries = entries(&[(10, Some(0.9)), (20, Some(0.9)), (30, Some(0.9))]);
        let found = |entries: &[Entry]| best(&plan(1, 1), entries).map(|best| best.step);
        assert_eq!(found(&entries), Some(10));
        for (entry, loss) in entries.iter_mut().zip([0.5, 0.3, 0.3]) {
            entry.loss = Some(loss);
        }
        assert_eq!(found(&entries), Some(20));
        assert_eq!(surplus(&plan(1, 1), &entries), [10]);
    }
}
