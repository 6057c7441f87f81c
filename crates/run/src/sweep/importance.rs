//! Importance of each parameter: the share of the trials' ranking that it explains alone.
//!
//! The measure is Kelley's epsilon squared of the ranks (Kelley 1935; the effect size of a
//! Kruskal-Wallis test): the trials are cut into groups by the parameter's value, into equally
//! large ones where it is a number, and the share of the variance of the ranks that lies between
//! the groups is freed from what chance alone would put there. 1 means that the parameter decides
//! the order, 0 that it does not. Unlike fANOVA it needs no model, takes a diverged trial as no
//! more than the worst one, and says nothing about parameters that matter only together.

use crate::config::sweep::{Domain, Parameter, Search, value_of};
use crate::sweep::coordinates::place_of;
use crate::sweep::ranking::Ranking;
use crate::sweep::trial::{State, Trial};

/// Most groups of a parameter that is a number.
const MAX_GROUPS: usize = 6;

/// The share, 0 to 1, that each parameter explains; `None` if too few trials had it.
pub fn importance(search: &Search, ranking: &Ranking, trials: &[Trial]) -> Vec<Option<f64>> {
    let counted = |trial: &&Trial| !matches!(trial.state, State::Running | State::Failed);
    let order: Vec<&Trial> = ranking.ranked(trials).into_iter().filter(counted).collect();
    search.parameters.iter().map(|parameter| share(parameter, &order)).collect()
}

fn share(parameter: &Parameter, order: &[&Trial]) -> Option<f64> {
    let had: Vec<f64> = order
        .iter()
        .filter(|trial| parameter.is_active(&trial.values))
        .filter_map(|trial| place_of(&parameter.domain, value_of(&trial.values, &parameter.key)?))
        .collect();
    let groups = groups(parameter, &had);
    let n = had.len() as f64;
    let k = groups.iter().filter(|group| !group.is_empty()).count() as f64;
    if k < 2.0 || n < k + 2.0 {
        return None;
    }
    // The ranks are 0, 1, 2 ...: their mean and their variance are known.
    let mean = (n - 1.0) / 2.0;
    let total = n * (n * n - 1.0) / 12.0;
    let between: f64 = groups
        .iter()
        .filter(|group| !group.is_empty())
        .map(|group| {
            let size = group.len() as f64;
            let of_group = group.iter().map(|rank| *rank as f64).sum::<f64>() / size;
            size * (of_group - mean).powi(2)
        })
        .sum();
    let eta = between / total;
    Some((1.0 - (1.0 - eta) * (n - 1.0) / (n - k)).clamp(0.0, 1.0))
}

/// The ranks of each group: by choice, or by equally many neighbours on the axis. Trials with the
/// same value are in one group, that of the one in their middle: cut apart, they would be cut by
/// their ranks.
fn groups(parameter: &Parameter, places: &[f64]) -> Vec<Vec<usize>> {
    if let Domain::Categorical { values } = &parameter.domain {
        let mut groups = vec![Vec::new(); values.len()];
        places.iter().enumerate().for_each(|(rank, choice)| groups[*choice as usize].push(rank));
        return groups;
    }
    let n = ((places.len() as f64).sqrt().round() as usize).clamp(1, MAX_GROUPS);
    let mut ranks: Vec<usize> = (0..places.len()).collect();
    ranks.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let cut = |part: usize| part * ranks.len() / n;
    let mut groups = vec![Vec::new(); n];
    let mut before = 0;
    for same in ranks.chunk_by(|a, b| places[*a] == places[*b]) {
        let middle = before + same.len() / 2;
        let part = (0..n).rfind(|part| cut(*part) <= middle).unwrap_or(0);
        groups[part].extend_from_slice(same);
        before += same.len();
    }
    groups
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rng::{Key, Purpose};
    use crate::sweep::example_sweeps::{of_batch, search, trial};

    #[test]
    fn what_decides_the_order_is_near_one_and_what_does_not_is_near_zero() {
        let parameters = vec![
            Parameter::new("decides", Domain::LogUniform { min: 1e-4, max: 1.0 }),
            Parameter::new("idle", Domain::Uniform { min: 0.0, max: 1.0 }),
            Parameter::new("word", Domain::Categorical { values: vec![json!("a"), json!("b")] }),
            Parameter::new("never", Domain::Uniform { min: 0.0, max: 1.0 }),
        ];
        let key = Key::new(1, Purpose::Sweep, 0, 0);
        let trials: Vec<Trial> = (0..60)
            .map(|index| {
                let (a, b) = (key.uniform(2 * index), key.uniform(2 * index + 1));
                let values = vec![
                    ("decides".to_owned(), json!(10f64.powf(-4.0 * a))),
                    ("idle".to_owned(), json!(b)),
                    ("word".to_owned(), json!(if index % 2 == 0 { "a" } else { "b" })),
                ];
                let mut one = trial(index as u32 + 1, State::Finished, &[(a - 0.5).abs()]);
                one.values = values;
                one
            })
            .collect();
        let search = Search { parameters, ..search("random") };
        let shares = importance(&search, &Ranking::plain(search.goal), &trials);
        assert!(shares[0].unwrap() > 0.8, "{shares:?}");
        assert!(shares[1].unwrap() < 0.2 && shares[2].unwrap() < 0.1, "{shares:?}");
        assert_eq!(shares[3], None);
        assert_eq!(
            importance(&search, &Ranking::plain(search.goal), &trials[..3])[2],
            None,
            "three say nothing"
        );
    }

    #[test]
    fn a_whole_number_of_few_values_that_decides_nothing_is_not_important() {
        // One and two take turns from the best trial to the worst.
        let trials: Vec<Trial> = (0..60u32)
            .map(|index| {
                let mut one = trial(index + 1, State::Finished, &[f64::from(index)]);
                one.values = vec![("n".to_owned(), json!(1 + index % 2))];
                one
            })
            .collect();
        let whole = Domain::IntUniform { min: 1, max: 2 };
        for domain in [whole, Domain::QUniform { min: 1.0, max: 2.0, q: 1.0 }] {
            let parameters = vec![Parameter::new("n", domain)];
            let search = Search { parameters, ..search("random") };
            let share = importance(&search, &Ranking::plain(search.goal), &trials)[0].unwrap();
            assert!(share < 0.1, "{share}");
        }
    }

    #[test]
    fn a_batch_size_is_not_important_for_the_number_of_its_steps() {
        let values = vec![json!(32), json!(64)];
        let batch = Parameter::new("train.global_batch_size", Domain::Categorical { values });
        let search = Search { parameters: vec![batch], ..search("random") };
        let key = Key::new(2, Purpose::Sweep, 0, 0);
        let trials: Vec<Trial> = (0..60)
            .map(|index| {
                let batch = if index % 2 == 0 { 32 } else { 64 };
                let mut one = trial(index as u32 + 1, State::Pruned, &[key.uniform(index)]);
                one.values = vec![("train.global_batch_size".to_owned(), json!(batch))];
                of_batch(640 / batch, one)
            })
            .collect();
        let share = importance(&search, &Ranking::plain(search.goal), &trials)[0].unwrap();
        assert!(share < 0.1, "{share}");
    }
}
