//! Random draws from a search, and whether values satisfy its constraints. Pure.

use std::collections::BTreeMap;

use crate::config::Experiment;
use crate::config::sweep::{Domain, Json, Search, Values, in_order, on_grid, steps_of, value_of};
use crate::rng::{Key, Purpose, name_hash};

/// Draws after which the constraints are taken to leave nothing.
const MAX_ATTEMPTS: u64 = 10_000;

/// The values of an experiment's keys, for constraints that speak of keys that no parameter
/// changes.
#[derive(Clone, Debug, Default)]
pub struct BaseValues(BTreeMap<String, Json>);

impl BaseValues {
    /// Those of `experiment`.
    pub fn of(experiment: &Experiment) -> Self {
        let leaves = crate::config::leaves(experiment).into_iter();
        let parse =
            |(key, text): (String, String)| (key, serde_json::from_str(&text).unwrap_or_default());
        Self(leaves.map(parse).collect())
    }

    /// The same with this value of `key`.
    #[must_use]
    pub fn with(mut self, key: &str, value: Json) -> Self {
        self.0.insert(key.to_owned(), value);
        self
    }
}

/// Whether the values of a trial fulfil all constraints.
pub fn is_allowed(search: &Search, values: &Values, base: &BaseValues) -> bool {
    let known = |key: &str| value_of(values, key).or_else(|| base.0.get(key)).cloned();
    search.constraints.iter().all(|constraint| constraint.holds(&known))
}

/// A random draw for the trial `number`; `None` if ten thousand draws broke a constraint.
pub fn random(search: &Search, base: &BaseValues, number: u32) -> Option<Values> {
    (0..MAX_ATTEMPTS)
        .map(|attempt| {
            let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), attempt);
            in_order(&search.parameters, |parameter| {
                Some(at(&parameter.domain, key.with(name_hash(&parameter.key)).uniform(0)))
            })
        })
        .find(|values| is_allowed(search, values, base))
}

/// The value at `share` (from 0 to below 1) of a domain.
pub fn at(domain: &Domain, share: f64) -> Json {
    let between = |low: f64, high: f64| low + (high - low) * share;
    let index = |count: u64| ((share * count as f64) as u64).min(count.saturating_sub(1));
    match domain {
        Domain::Categorical { values } => values[index(values.len() as u64) as usize].clone(),
        Domain::Uniform { min, max } => Json::from(between(*min, *max)),
        Domain::LogUniform { min, max } => {
            Json::from(between(min.ln(), max.ln()).exp().clamp(*min, *max))
        }
        Domain::IntUniform { min, max } => {
            Json::from(min + index(max.abs_diff(*min).saturating_add(1)) as i64)
        }
        Domain::QUniform { min, max, q } => {
            Json::from(on_grid(*min, *q, index(steps_of(*min, *max, *q) + 1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sweep::Parameter;
    use crate::sweep::example_sweeps::search;

    #[test]
    fn a_draw_depends_on_seed_and_number_alone_and_stays_inside_its_bounds() {
        let mut search = search("random");
        search.parameters = vec![
            Parameter::new("lr", Domain::LogUniform { min: 1e-5, max: 1.0 }),
            Parameter::new("n", Domain::IntUniform { min: -2, max: 2 }),
            Parameter::new("q", Domain::QUniform { min: 0.0, max: 1.0, q: 0.25 }),
        ];
        let base = BaseValues::default();
        let draws: Vec<Values> = (1..=2000).map(|n| random(&search, &base, n).unwrap()).collect();
        assert_eq!(draws[6], random(&search, &base, 7).unwrap());
        assert_ne!(draws[6], draws[7]);
        let column = |index: usize| draws.iter().map(move |v| v[index].1.as_f64().unwrap());
        assert!(column(0).all(|lr| (1e-5..=1.0).contains(&lr)));
        let small = column(0).filter(|lr| *lr < 1e-2).count();
        assert!((1100..1300).contains(&small), "three of five decades: {small}");
        for wanted in [-2.0, -1.0, 0.0, 1.0, 2.0] {
            assert!(column(1).filter(|n| *n == wanted).count() > 300);
        }
        assert!(column(2).all(|q| (q * 4.0).fract() == 0.0));
    }

    #[test]
    fn draws_that_break_a_constraint_are_drawn_again() {
        let mut search = search("random");
        search.parameters = vec![
            Parameter::new("train.batch_size", Domain::IntUniform { min: 1, max: 64 }),
            Parameter::new("train.epochs", Domain::IntUniform { min: 1, max: 64 }),
        ];
        let rule = |text: &str| crate::config::sweep::Constraint::parse(text).unwrap();
        search.constraints = vec![rule("train.batch_size % train.epochs == 0")];
        let base = BaseValues::default();
        for number in 1..50 {
            let values = random(&search, &base, number).unwrap();
            let [a, b] = [0, 1].map(|index| values[index].1.as_i64().unwrap());
            assert_eq!(a % b, 0);
        }
        search.constraints = vec![rule("train.epochs > 64")];
        assert_eq!(random(&search, &base, 1), None);
    }
}
