//! Which of several settings may still be the best, by the results of their repeats. Pure.
//!
//! Results of the same repeat (a seed, a fold) are compared in pairs, as in Maron and Moore's
//! racing (1994) and F-Race (Birattari et al. 2002): what makes one fold harder than another does
//! so for both. A setting leaves the race if its mean difference to the leader is more than chance
//! would give once in twenty times (one-sided t-test, with the variance pooled over all settings).

/// Costs of a setting, one for each of its repeats; `None` where it has no result.
pub(super) type Costs = Vec<Option<f64>>;

/// For each setting, whether it may still be the best.
pub(super) fn in_race(settings: &[Costs]) -> Vec<bool> {
    let Some(leader) = leader(settings) else { return vec![true; settings.len()] };
    let differences: Vec<Vec<f64>> =
        settings.iter().map(|costs| differences(costs, leader)).collect();
    let (mut squares, mut freedom) = (0.0, 0);
    for own in &differences {
        let mean = mean(own);
        squares += own.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>();
        freedom += own.len().saturating_sub(1);
    }
    // The leader has no difference to itself, and says nothing about chance.
    freedom -= leader.iter().flatten().count().saturating_sub(1);
    if freedom == 0 {
        return vec![true; settings.len()];
    }
    let variance = squares / freedom as f64;
    let may_win = |own: &Vec<f64>| {
        let error = (variance / own.len() as f64).sqrt();
        own.is_empty() || mean(own) <= t_quantile(freedom) * error
    };
    differences.iter().map(may_win).collect()
}

/// The setting with the best mean among those with the most results.
fn leader(settings: &[Costs]) -> Option<&Costs> {
    let results = |costs: &&Costs| costs.iter().flatten().copied().collect::<Vec<f64>>();
    let most = settings.iter().map(|costs| results(&costs).len()).max().filter(|most| *most > 0)?;
    let whole = settings.iter().filter(|costs| results(costs).len() == most);
    whole.min_by(|a, b| mean(&results(a)).total_cmp(&mean(&results(b))))
}

/// Differences of the repeats that both have.
fn differences(costs: &Costs, leader: &Costs) -> Vec<f64> {
    costs.iter().zip(leader).filter_map(|(own, best)| Some((*own)? - (*best)?)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The 95 % quantile of Student's t distribution.
fn t_quantile(freedom: usize) -> f64 {
    const SMALL: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
    let n = freedom as f64;
    // Above ten, the first terms of its expansion about the normal quantile.
    let expanded = 1.6449 + 1.5238 / n + 1.4197 / (n * n);
    SMALL.get(freedom.wrapping_sub(1)).copied().unwrap_or(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    fn costs(values: &[f64], n: usize) -> Costs {
        (0..n).map(|index| values.get(index).copied()).collect()
    }

    #[test]
    fn what_is_clearly_worse_leaves_and_what_may_be_chance_stays() {
        let settings = [
            costs(&[0.10, 0.12, 0.11], 3),
            costs(&[0.12, 0.13, 0.14], 3),
            costs(&[0.50], 3),
            costs(&[0.11], 3),
            costs(&[], 3),
        ];
        assert_eq!(in_race(&settings), [true, false, false, true, true]);
        // Without two settings that were repeated, nothing is known about chance.
        assert_eq!(in_race(&settings[2..]), [true; 3]);
        assert_eq!(in_race(&[settings[0].clone(), settings[2].clone()]), [true; 2]);
        assert_eq!(in_race(&[costs(&[], 3)]), [true]);
    }

    #[test]
    fn folds_of_different_difficulty_are_compared_in_pairs() {
        // The second fold is much harder for all of them.
        let settings = [costs(&[0.10, 0.90], 2), costs(&[0.21, 1.00], 2), costs(&[0.30], 2)];
        assert_eq!(in_race(&settings), [true, false, false]);
        let of_hard = Costs::from([None, Some(0.91)]);
        assert!(in_race(&[settings[0].clone(), settings[1].clone(), of_hard])[2]);
    }

    #[test]
    fn an_equally_good_setting_is_lost_by_chance_once_in_twenty_times() {
        let n = 4000;
        let lost = (0..n).filter(|&case| {
            let mut stream = Key::new(case, Purpose::Sweep, 0, 0).stream();
            let mut results = || -> Costs { (0..4).map(|_| Some(stream.normal())).collect() };
            let settings = [results(), results()];
            in_race(&settings).contains(&false)
        });
        // One of two equals is the leader: either may be lost.
        let share = lost.count() as f64 / n as f64;
        assert!((0.08..0.12).contains(&share), "{share}");
    }

    #[test]
    fn the_quantiles_are_those_of_the_tables() {
        for (freedom, expected) in [(1, 6.314), (10, 1.812), (11, 1.796), (20, 1.725), (120, 1.658)]
        {
            assert!((t_quantile(freedom) - expected).abs() < 0.002, "{freedom}");
        }
    }
}
