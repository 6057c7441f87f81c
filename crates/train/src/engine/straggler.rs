//! Detects a rank that comes late to the reductions, step after step, so that the others wait for
//! it, and whether it waits for its data or computes meanwhile. Pure.

use crate::event::Straggler;
use crate::units::Rank;

/// Steps over which ranks are compared.
const STEPS: u32 = 20;
/// Steps of these in which a rank must have been the last by far.
const LAST: u32 = 16;
/// Least share of the step that the others waited: a rank that takes half as long again makes them
/// wait a third.
const MIN_WAIT_SHARE: f64 = 0.25;
/// Least time per step that is worth a word, in seconds.
const MIN_WAIT_SECONDS: f64 = 5e-3;

/// Follows the ranks of a group.
#[derive(Debug)]
pub(crate) struct Stragglers {
    steps: u32,
    /// Seconds of those steps.
    seconds: f64,
    ranks: Vec<Lateness>,
    /// Ranks that were named before.
    named: Vec<Rank>,
    /// Seconds that the others waited for each rank so far.
    late: Vec<f64>,
}

/// Lateness of a rank, over the steps in which it was the last.
#[derive(Clone, Copy, Debug, Default)]
struct Lateness {
    /// Seconds behind the others.
    lag: f64,
    /// Seconds in which it waited for its data.
    waited: f64,
    /// Number of those steps.
    times: u32,
}

impl Stragglers {
    pub(crate) fn new(world: usize) -> Self {
        let ranks = vec![Lateness::default(); world];
        Self { steps: 0, seconds: 0.0, ranks, named: Vec::new(), late: vec![0.0; world] }
    }

    /// Takes in by how many seconds each rank came after the first one to the buckets of a step
    /// (the mean over them) that took `seconds`, and how many of these each rank waited for its
    /// data. Names a rank once.
    pub(crate) fn step(
        &mut self,
        step: u64,
        lags: &[f64],
        waits: &[f64],
        seconds: f64,
    ) -> Option<Straggler> {
        if let Some((last, lag)) = last_of(lags) {
            let behind = &mut self.ranks[last];
            behind.lag += lag;
            behind.waited += waits.get(last).copied().unwrap_or(0.0);
            behind.times += 1;
            self.late[last] += lag;
        }
        self.steps += 1;
        self.seconds += seconds;
        if self.steps < STEPS {
            return None;
        }
        let found = self.judge(step);
        (self.steps, self.seconds) = (0, 0.0);
        self.ranks.fill(Lateness::default());
        self.named.extend(found.as_ref().map(|found| found.rank));
        found
    }

    /// Seconds that the others waited for each rank so far.
    pub(crate) fn late_seconds(&self) -> &[f64] {
        &self.late
    }

    fn judge(&self, step: u64) -> Option<Straggler> {
        let step_seconds = self.seconds / f64::from(self.steps);
        let mut ranks = (0..).map(Rank).zip(&self.ranks);
        let (rank, lag_seconds, data_seconds) = ranks.find_map(|(rank, behind)| {
            let steps = f64::from(behind.times.max(1));
            let lag = behind.lag / steps;
            let is_late = behind.times >= LAST
                && lag >= MIN_WAIT_SECONDS
                && lag >= MIN_WAIT_SHARE * step_seconds;
            let is_news = is_late && !self.named.contains(&rank);
            is_news.then_some((rank, lag, behind.waited / steps))
        })?;
        Some(Straggler { rank, step, lag_seconds, data_seconds, step_seconds })
    }
}

/// The last rank, and by how much it came after the one before it; a rank that is early delays no
/// other.
fn last_of(lags: &[f64]) -> Option<(usize, f64)> {
    let last = (0..lags.len()).max_by(|&a, &b| lags[a].total_cmp(&lags[b]))?;
    let others = (0..lags.len()).filter(|&rank| rank != last).map(|rank| lags[rank]);
    let before = others.max_by(f64::total_cmp)?;
    Some((last, lags[last] - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps and ranks that are named in 60 steps of a tenth of a second, with the lags
    /// that `lags` returns for each step.
    fn named(lags: impl Fn(u64) -> Vec<f64>) -> Vec<(u64, u32)> {
        let mut stragglers = Stragglers::new(lags(0).len());
        let found = (1..=60).filter_map(|step| stragglers.step(step, &lags(step), &[], 0.1));
        found.map(|found| (found.step, found.rank.0)).collect()
    }

    #[test]
    fn a_rank_that_is_always_late_is_named_once_after_20_steps() {
        assert_eq!(named(|_| vec![0.0, 0.0, 0.05, 0.001]), [(20, 2)]);
        assert_eq!(named(|_| vec![0.05, 0.0]), [(20, 0)]);
        let from_30 = |step| vec![0.0, if step > 30 { 0.05 } else { 0.0 }];
        assert_eq!(named(from_30), [(60, 1)]);
    }

    #[test]
    fn ranks_that_take_turns_are_a_little_late_or_late_together_are_not_named() {
        assert_eq!(named(|step| vec![0.0, 0.05 * (step % 2) as f64]), []);
        assert_eq!(named(|_| vec![0.0, 0.02]), []);
        assert_eq!(named(|_| vec![0.0, 0.05, 0.05]), [], "the first one is early");
        assert_eq!(named(|_| vec![]), []);
    }

    #[test]
    fn a_straggler_is_known_by_its_own_wait_for_data_in_the_steps_in_which_it_was_the_last() {
        let mut stragglers = Stragglers::new(2);
        // Rank 0 waits too, but no rank waits for it.
        let lags = |step: u64| if step <= 2 { [0.01, 0.0] } else { [0.0, 0.05] };
        let mut steps = 1..=20;
        let found = steps.find_map(|step| stragglers.step(step, &lags(step), &[0.07, 0.04], 0.1));
        assert!((found.unwrap().data_seconds - 0.04).abs() < 1e-12, "{found:?}");
        let late = stragglers.late_seconds();
        assert!((late[0] - 0.02).abs() < 1e-12 && (late[1] - 0.9).abs() < 1e-12, "{late:?}");
    }
}
