//! Decides which checkpoints stay. Pure.

use crate::event::Best;
use crate::plan::CheckpointPlan;

/// A checkpoint, as far as it is known without opening its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) step: u64,
    pub(crate) metric: Option<f64>,
    /// `val/loss`, by which equal metrics are told apart.
    pub(crate) loss: Option<f64>,
}

/// Steps of the checkpoints to delete: all but the newest `keep_last` and the best `keep_best`. The
/// newest always stays.
pub(crate) fn surplus(plan: &CheckpointPlan, entries: &[Candidate]) -> Vec<u64> {
    let mut newest: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.truncate(plan.keep_last.max(1));
    let best: Vec<u64> = ranked(plan, entries).take(plan.keep_best).map(|best| best.step).collect();
    let mut surplus: Vec<u64> = entries
        .iter()
        .map(|entry| entry.step)
        .filter(|step| !newest.contains(step) && !best.contains(step))
        .collect();
    surplus.sort_unstable();
    surplus
}

/// The best checkpoint.
pub(crate) fn best(plan: &CheckpointPlan, entries: &[Candidate]) -> Option<Best> {
    ranked(plan, entries).next()
}

/// The checkpoints whose metric is known, best first: each is what a run would call its best if it
/// had evaluated only those that are left, in the order of their steps.
fn ranked(plan: &CheckpointPlan, candidates: &[Candidate]) -> impl Iterator<Item = Best> {
    let mode = plan.mode;
    let known = |&Candidate { step, metric, loss }: &Candidate| {
        Some(Best { metric: plan.monitor.clone(), value: metric?, loss, step })
    };
    let mut left: Vec<Best> = candidates.iter().filter_map(known).collect();
    left.sort_by_key(|best| best.step);
    std::iter::from_fn(move || {
        let better = |best: usize, at: usize| {
            if left[at].is_better_than(&left[best], mode) { at } else { best }
        };
        let first = (0..left.len()).reduce(better)?;
        Some(left.remove(first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;

    fn plan(keep_last: usize, keep_best: usize) -> CheckpointPlan {
        CheckpointPlan {
            dir: "checkpoints".into(),
            every: crate::plan::Interval::Epochs(1),
            keep_last,
            keep_best,
            monitor: "val/accuracy".into(),
            mode: Mode::Max,
        }
    }

    fn entries(metrics: &[(u64, Option<f64>)]) -> Vec<Candidate> {
        metrics.iter().map(|&(step, metric)| Candidate { step, metric, loss: None }).collect()
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
        let found = |entries: &[Candidate]| best(&plan(1, 1), entries).map(|best| best.step);
        assert_eq!(found(&entries), Some(10));
        for (entry, loss) in entries.iter_mut().zip([0.5, 0.3, 0.3]) {
            entry.loss = Some(loss);
        }
        assert_eq!(found(&entries), Some(20));
        assert_eq!(surplus(&plan(1, 1), &entries), [10]);
        entries[1].loss = None;
        assert_eq!(found(&entries), Some(30), "a loss that is unknown is neither less nor more");
    }
}
