//! Random draws from a search, its constraints, and settings that were already tried. Pure.

use std::collections::{BTreeMap, HashSet};

use crate::config::Experiment;
use crate::config::sweep::{
    Domain, Json, MAX_POINTS, Search, Values, descend, in_order, on_grid, setting_of, steps_of,
    value_in,
};
use crate::rng::{Key, Purpose, name_hash};
use crate::sweep::method::{Grid, ProposalRequest, points};
use crate::sweep::trial::Trial;

/// Draws after which no values are assumed to satisfy the constraints.
const MAX_ATTEMPTS: u64 = 10_000;

/// The values of an experiment's keys, for constraints that speak of keys that no parameter
/// changes.
#[derive(Clone, Debug, Default)]
pub struct BaseValues(BTreeMap<String, Json>);

impl BaseValues {
    /// The values of `experiment`.
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

    /// The value of `key`, also inside of a list.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let in_list = || {
            let (list, _) = key.split_once('[')?;
            descend(self.0.get(list)?, &key[list.len()..])
        };
        self.0.get(key).or_else(in_list)
    }

    /// The canonical form of `values` over these: see [`setting_of`].
    pub(super) fn setting(&self, values: &Values) -> String {
        setting_of(values, |key| self.get(key).cloned())
    }
}

/// Settings of earlier trials. None is trained again: it would give the same numbers.
#[derive(Clone, Debug, Default)]
pub struct Tried(HashSet<String>);

impl Tried {
    /// The settings of `trials`.
    pub fn of(trials: &[Trial], base: &BaseValues) -> Self {
        Self(trials.iter().map(|trial| base.setting(&trial.values)).collect())
    }

    /// Returns true if a trial has had `values`, or others that train the same.
    pub fn has(&self, values: &Values, base: &BaseValues) -> bool {
        self.0.contains(&base.setting(values))
    }

    /// Adds `values`. Returns true if they are new.
    pub(super) fn add(&mut self, values: &Values, base: &BaseValues) -> bool {
        self.0.insert(base.setting(values))
    }
}

/// Returns true if the values of a trial satisfy all constraints.
pub fn is_allowed(search: &Search, values: &Values, base: &BaseValues) -> bool {
    let known = |key: &str| value_in(values, key).or_else(|| base.get(key)).cloned();
    search.constraints.iter().all(|constraint| constraint.holds(&known))
}

/// Draws values at random that no trial has had; `None` if ten thousand draws broke a constraint or
/// were already tried.
pub fn random(request: &ProposalRequest<'_>) -> Option<Values> {
    let ProposalRequest { search, number, .. } = *request;
    (0..MAX_ATTEMPTS)
        .map(|attempt| {
            let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), attempt);
            in_order(&search.parameters, |parameter| {
                Some(at(&parameter.domain, key.with(name_hash(&parameter.key)).uniform(0)))
            })
        })
        .find(|values| request.admits(values))
}

/// Picks one of the settings that no trial has had, if all can be counted; else draws at random.
pub(super) fn untried(request: &ProposalRequest<'_>) -> Option<Values> {
    /// Keeps this draw apart from the random ones of the same trial.
    const STREAM: u64 = 1 << 33;
    let Some(mut left) = all_points(request.search, request.base) else { return random(request) };
    left.retain(|values| request.admits(values));
    let key = Key::new(request.search.seed, Purpose::Sweep, u64::from(request.number), STREAM);
    let n = left.len();
    let index = (key.uniform(0) * n as f64) as usize;
    (n > 0).then(|| left.swap_remove(index.min(n - 1)))
}

/// Every setting of a search that satisfies its constraints, if they can be counted.
pub(super) fn all_points(search: &Search, base: &BaseValues) -> Option<Vec<Values>> {
    let mut count: usize = 1;
    for parameter in &search.parameters {
        count = count.saturating_mul(parameter.domain.points(MAX_POINTS)?.len());
    }
    if count > MAX_POINTS { None } else { points(&Grid {}, search, base) }
}

/// Logarithms between which all whole numbers from `min` to `max` have their place.
pub(super) fn log_ends(min: i64, max: i64) -> (f64, f64) {
    ((min as f64 - 0.5).ln(), (max as f64 + 0.5).ln())
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
        Domain::IntLogUniform { min, max } => {
            let (low, high) = log_ends(*min, *max);
            Json::from((between(low, high).exp().round() as i64).clamp(*min, *max))
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
    use crate::sweep::ranking::Ranking;

    /// The draw for the trial `number` after others that have had `tried`.
    fn random_after(search: &Search, number: u32, tried: &Tried) -> Option<Values> {
        let (base, ranking) = (&BaseValues::default(), &Ranking::plain(search.goal));
        super::random(&ProposalRequest { search, base, ranking, number, trials: &[], tried })
    }

    fn random(search: &Search, _: &BaseValues, number: u32) -> Option<Values> {
        random_after(search, number, &Tried::default())
    }

    #[test]
    fn a_draw_depends_on_seed_and_number_alone_and_stays_inside_its_bounds() {
        let mut search = search("random");
        search.parameters = vec![
            Parameter::new("lr", Domain::LogUniform { min: 1e-5, max: 1.0 }),
            Parameter::new("n", Domain::IntUniform { min: -2, max: 2 }),
            Parameter::new("q", Domain::QUniform { min: 0.0, max: 1.0, q: 0.25 }),
            Parameter::new("width", Domain::IntLogUniform { min: 1, max: 1000 }),
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
        assert!(column(3).all(|n| (1.0..=1000.0).contains(&n) && n.fract() == 0.0));
        let [ones, tens] = [(1.0, 9.5), (9.5, 99.5)]
            .map(|(low, high)| column(3).filter(|n| (low..high).contains(n)).count());
        // ln(19) and ln(10.5) of ln(2001).
        assert!((700..850).contains(&ones) && (560..680).contains(&tens), "{ones} {tens}");
    }

    #[test]
    fn no_setting_is_drawn_twice_and_an_exhausted_space_has_none_left() {
        let mut search = search("random");
        let values = vec![1.into(), 2.into(), Json::Null];
        search.parameters = vec![Parameter::new("a", Domain::Categorical { values })];
        let base = BaseValues::default().with("a", Json::from(2.0));
        let (mut tried, ranking) = (Tried::default(), Ranking::plain(search.goal));
        assert!(tried.add(&vec![("b".to_owned(), 1.into()), ("a".to_owned(), 1.into())], &base));
        assert!(tried.add(&Values::new(), &base), "the base, where a is 2");
        let drawn: Vec<Option<Values>> = (1..=3)
            .map(|number| {
                let (search, base, ranking) = (&search, &base, &ranking);
                let request =
                    ProposalRequest { search, base, ranking, number, trials: &[], tried: &tried };
                let values = untried(&request);
                assert_eq!(values.is_some(), super::random(&request).is_some());
                values.inspect(|values| assert!(tried.add(values, base)))
            })
            .collect();
        let of = |value: Json| Some(vec![("a".to_owned(), value)]);
        assert!(drawn.contains(&of(1.into())) && drawn.contains(&of(Json::Null)), "{drawn:?}");
        assert_eq!(drawn[2], None);
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
