//! The values of trials as numbers on axes, for methods that model them. Pure.

use crate::config::sweep::{
    Domain, Json, Parameter, Search, Values, canonical, is_repeat, on_grid, ordered, steps_of,
    value_of,
};
use crate::rng::{Key, name_hash};
use crate::sweep::parzen::Axis;
use crate::sweep::sampler::{self, BaseValues, log_ends};

/// The axis of a domain; logarithms where each decade is as likely as another.
pub(super) fn axis(domain: &Domain) -> Axis {
    match domain {
        Domain::Categorical { values } => Axis::Choices { n: values.len() },
        Domain::Uniform { min, max } => Axis::Numbers { low: *min, high: *max, step: 0.0 },
        Domain::LogUniform { min, max } => {
            Axis::Numbers { low: min.ln(), high: max.ln(), step: 0.0 }
        }
        Domain::IntUniform { min, max } => {
            Axis::Numbers { low: *min as f64, high: *max as f64, step: 1.0 }
        }
        Domain::IntLogUniform { min, max } => {
            let (low, high) = log_ends(*min, *max);
            Axis::Numbers { low, high, step: 0.0 }
        }
        Domain::QUniform { min, max, q } => {
            let high = min + q * steps_of(*min, *max, *q) as f64;
            Axis::Numbers { low: *min, high, step: *q }
        }
    }
}

/// Coordinate of a value on its axis.
pub(super) fn place_of(domain: &Domain, value: &Json) -> Option<f64> {
    let number = || value.as_f64();
    match domain {
        Domain::Categorical { values } => {
            let value = canonical(value);
            values.iter().position(|known| canonical(known) == value).map(|index| index as f64)
        }
        Domain::LogUniform { min, max } => {
            number().filter(|x| (min..=max).contains(&x)).map(f64::ln)
        }
        Domain::Uniform { min, max } | Domain::QUniform { min, max, .. } => {
            number().filter(|x| (min..=max).contains(&x))
        }
        Domain::IntLogUniform { min, max } => {
            number().filter(|x| (*min as f64..=*max as f64).contains(x)).map(f64::ln)
        }
        Domain::IntUniform { min, max } => {
            number().filter(|x| (*min as f64..=*max as f64).contains(x))
        }
    }
}

/// Inverse of [`place_of`].
pub(super) fn value_at(domain: &Domain, place: f64) -> Json {
    match domain {
        Domain::Categorical { values } => {
            values.get(place as usize).or(values.first()).cloned().unwrap_or_default()
        }
        Domain::Uniform { .. } => Json::from(place),
        Domain::LogUniform { min, max } => Json::from(place.exp().clamp(*min, *max)),
        Domain::IntUniform { .. } => Json::from(place.round() as i64),
        Domain::IntLogUniform { min, max } => {
            Json::from((place.exp().round() as i64).clamp(*min, *max))
        }
        Domain::QUniform { min, q, .. } => {
            Json::from(on_grid(*min, *q, ((place - min) / q).round().max(0.0) as u64))
        }
    }
}

/// The values of a trial, and those of the base for parameters that it does not have: they were
/// added to the search later.
pub(super) fn as_it_ran(search: &Search, base: &BaseValues, values: &Values) -> Values {
    let mut all = values.clone();
    for parameter in ordered(&search.parameters) {
        if value_of(&all, &parameter.key).is_none()
            && parameter.is_active(&all)
            && let Some(value) = base.get(&parameter.key)
            && place_of(&parameter.domain, value).is_some()
        {
            all.push((parameter.key.clone(), value.clone()));
        }
    }
    all
}

/// Folds and seeds, and the parameters that are modelled; parents before what depends on them.
pub(super) fn repeats_and_modelled(search: &Search) -> (Vec<&Parameter>, Vec<&Parameter>) {
    ordered(&search.parameters).into_iter().partition(|parameter| is_repeat(&parameter.key))
}

/// Draws folds and seeds at random: none is better than another.
pub(super) fn draw_repeats(repeats: &[&Parameter], key: Key, values: &mut Values) {
    for parameter in repeats {
        let share = key.with(name_hash(&parameter.key)).uniform(0);
        if parameter.is_active(values) && value_of(values, &parameter.key).is_none() {
            values.push((parameter.key.clone(), sampler::at(&parameter.domain, share)));
        }
    }
}
