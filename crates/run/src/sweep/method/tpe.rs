//! `sweep.method = "tpe"`
//!
//! The tree-structured Parzen estimator (Bergstra et al. 2011) as Optuna 5's `TPESampler` does it
//! with `group=True`: ten random trials, then draws near the best tenth.
//!
//! Parameters with the same conditions are drawn together, from the trials in which they counted. A
//! trial of before a parameter was added ran with the base's value of it; where the space does not
//! hold that, the parameters are parted into groups that trials have whole, as Optuna does. Folds
//! and seeds are drawn at random.
//! Trials that still run count among the others, so that trials of the same time do not all try the
//! same place. A draw is a pure function of the seed, the trial's number and what the other trials
//! have reported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{Parameter, Search, Values, as_written, value_of};
use crate::rng::{Key, Purpose};
use crate::sweep::coordinates::{
    as_it_ran, axis, draw_repeats, place_of, repeats_and_modelled, value_at,
};
use crate::sweep::method::{Method, N_STARTUP_TRIALS, ProposalRequest};
use crate::sweep::parzen::{Axis, suggest};
use crate::sweep::sampler;
use crate::sweep::trial::{State, Trial};

/// Draws after which a space with constraints is drawn from at random.
const ATTEMPTS: u64 = 100;
/// Keeps these draws apart from the random ones of the same trial.
const STREAM: u64 = 1 << 32;

/// Bayesian optimisation: ten random trials, then the tree-structured Parzen estimator (Bergstra et
/// al. 2011) as in Optuna 5: parameters with the same condition are drawn together, and new trials
/// keep away from running ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tpe {}

impl Kind for Tpe {
    const NAME: &'static str = "tpe";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Trials];
}

impl Method for Tpe {
    fn propose(&self, request: &ProposalRequest<'_>) -> Option<Values> {
        let ProposalRequest { search, base, ranking, number, trials, .. } = *request;
        let n_done = request.n_ended();
        if n_done < N_STARTUP_TRIALS {
            return sampler::random(request);
        }
        let n_good = n_done.div_ceil(10).min(25);
        let (good, others) = split(ranking.ranked(trials), n_good);
        let ran = |trials: Vec<&Trial>| -> Vec<Values> {
            trials.into_iter().map(|trial| as_it_ran(search, base, &trial.values)).collect()
        };
        let good = ran(good);
        let others = ran(others);
        (0..ATTEMPTS)
            .map(|attempt| {
                let stream = STREAM + attempt;
                let key = Key::new(search.seed, Purpose::Sweep, u64::from(number), stream);
                draw_groups(search, key, &good, &others)
            })
            .find(|values| request.admits(values))
            .or_else(|| sampler::random(request))
    }

    fn n_independent(&self) -> usize {
        N_STARTUP_TRIALS
    }
}

/// Trials, best first -> the best `n_good` of those that have ended, and the others; each in the
/// order of numbers, because older trials fade.
fn split(ranked: Vec<&Trial>, n_good: usize) -> (Vec<&Trial>, Vec<&Trial>) {
    let mut good = Vec::new();
    let mut others = Vec::new();
    for trial in ranked {
        match trial.state {
            State::Failed => {}
            State::Running => others.push(trial),
            _ if good.len() < n_good => good.push(trial),
            _ => others.push(trial),
        }
    }
    good.sort_by_key(|trial| trial.number);
    others.sort_by_key(|trial| trial.number);
    (good, others)
}

/// Draws the parameters, group by group, parents first.
fn draw_groups(search: &Search, key: Key, good: &[Values], others: &[Values]) -> Values {
    let mut values = Values::new();
    let (repeats, modelled) = repeats_and_modelled(search);
    draw_repeats(&repeats, key, &mut values);
    for (index, group) in groups(&modelled, &[good, others]).into_iter().enumerate() {
        let group: Vec<&Parameter> = group
            .into_iter()
            .filter(|parameter| parameter.is_active(&values))
            .filter(|parameter| value_of(&values, &parameter.key).is_none())
            .collect();
        if group.is_empty() {
            continue;
        }
        let axes: Vec<Axis> = group.iter().map(|parameter| axis(&parameter.domain)).collect();
        let seen = |trials: &[Values]| -> Vec<Vec<f64>> {
            trials.iter().filter_map(|values| place_of_trial(&group, values)).collect()
        };
        let mut stream = key.with(index as u64).stream();
        let point = suggest(&axes, &seen(good), &seen(others), &mut stream);
        for (parameter, place) in group.iter().zip(point) {
            values.push((parameter.key.clone(), value_at(&parameter.domain, place)));
        }
    }
    as_written(&search.parameters, &mut values);
    values
}

/// Parameters that always count together, parents before those that depend on them: those with the
/// same condition, of which every trial has all or none.
fn groups<'a>(parameters: &[&'a Parameter], trials: &[&[Values]]) -> Vec<Vec<&'a Parameter>> {
    let mut groups: Vec<Vec<&Parameter>> = Vec::new();
    for &parameter in parameters {
        match groups.iter_mut().find(|group| group[0].when == parameter.when) {
            Some(group) => group.push(parameter),
            None => groups.push(vec![parameter]),
        }
    }
    for values in trials.iter().flat_map(|trials| trials.iter()) {
        let has = |parameter: &&Parameter| value_of(values, &parameter.key).is_some();
        let parted = groups.into_iter().flat_map(|group| {
            let (with, without): (Vec<&Parameter>, Vec<&Parameter>) =
                group.into_iter().partition(has);
            [with, without]
        });
        groups = parted.filter(|group| !group.is_empty()).collect();
    }
    groups
}

/// Coordinates of a trial on the axes of a group; `None` if a parameter did not count, or had a
/// value that the space no longer contains.
fn place_of_trial(group: &[&Parameter], values: &Values) -> Option<Vec<f64>> {
    let place = |parameter: &&Parameter| {
        let value = value_of(values, &parameter.key)?;
        let counted = parameter.is_active(values);
        if counted { place_of(&parameter.domain, value) } else { None }
    };
    group.iter().map(place).collect()
}
