//! Results of other sweeps and runs from which a sweep starts (`--from`): those of the same
//! experiment but for the parameters, whose values are in the search space.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::config::Loaded;
use crate::config::schema::Mode;
use crate::config::sweep::{
    Json, Search, Values, canonical, descend, in_order, in_toml, is_inside, value_in, value_of,
};
use crate::sweep::Error;
use crate::sweep::journal::{self, SweepSpec};
use crate::sweep::trial::{EarlierTrial, Length, State, Trial};
use crate::sweep::trial_events::TrialEvents;
use crate::terminal::counted;

/// Keys of an experiment that may differ: names, and what is saved of a run.
const FREE: [&str; 3] = ["experiment.name", "experiment.description", "checkpoint."];

/// The number of parts that gradients are summed in.
const SHARDS: &str = "distributed.shards";

/// Results of one sweep, or of one run.
#[derive(Clone, Debug)]
pub struct EarlierResults {
    /// The folder of the sweep or run.
    pub folder: PathBuf,
    /// The metric of the reports, and its direction.
    pub metric: String,
    pub goal: Mode,
    /// Ranks of each trial.
    pub devices: u32,
    /// Every key that decides results, as JSON.
    pub experiment: BTreeMap<String, String>,
    /// Trials that have ended, with their logs and the values by which they differ from the
    /// experiment.
    pub trials: Vec<(PathBuf, Trial)>,
}

impl EarlierResults {
    /// The results of the sweep in `folder`.
    pub fn of_sweep(folder: &Path) -> Result<Self, Error> {
        let story = journal::read(folder)?;
        let story = story.ok_or_else(|| Error::NoSweep { folder: folder.to_owned() })?;
        let devices = story.subject.search.get("devices_per_trial").and_then(Json::as_u64);
        let has_result = |trial: &Trial| !matches!(trial.state, State::Running | State::Failed);
        let ended = story.trials.into_iter().filter(has_result);
        Ok(Self {
            folder: folder.to_owned(),
            metric: story.subject.metric,
            goal: story.subject.goal,
            devices: devices.and_then(|n| n.try_into().ok()).unwrap_or(1),
            experiment: story.subject.experiment,
            trials: ended.map(|trial| (folder.join(trial.id()), trial)).collect(),
        })
    }

    /// The result of a finished run of the experiment `loaded` on so many devices, as one trial;
    /// `None` if it has never reported the metric of `search`.
    pub fn of_run(
        folder: &Path,
        loaded: &Loaded,
        search: &Search,
        steps_per_epoch: u64,
        devices: u32,
    ) -> Result<Option<Self>, Error> {
        let mut tail = TrialEvents::new(folder, &search.metric);
        tail.poll()?;
        let reports = std::mem::take(&mut tail.reports);
        let Some(last) = reports.last() else { return Ok(None) };
        let length = Length { steps_per_epoch: steps_per_epoch.max(1), total_steps: last.step };
        let (state, seconds) = (State::Finished, tail.seconds().unwrap_or(0.0));
        let trial = Trial { state, reports, seconds, ..Trial::new(0, Values::new(), length) };
        let SweepSpec { metric, goal, experiment, .. } = SweepSpec::new("", search, 1, loaded);
        let trials = vec![(folder.to_owned(), trial)];
        let folder = folder.to_owned();
        Ok(Some(Self { folder, metric, goal, devices, experiment, trials }))
    }
}

/// The results that count in a sweep of `subject`, and the number of those that do not.
///
/// # Errors
///
/// None counts; the reasons are told.
pub(super) fn comparable(
    subject: &SweepSpec,
    search: &Search,
    results: &EarlierResults,
) -> Result<(Vec<EarlierTrial>, usize), Error> {
    let refused =
        |reasons: Vec<String>| Error::NotComparable { folder: results.folder.clone(), reasons };
    if results.metric != search.metric || results.goal != search.goal {
        let own = format!("{} {}", search.goal.word(), search.metric);
        let what =
            format!("it ranks by {} {}, this sweep by {own}", results.goal.word(), results.metric);
        return Err(refused(vec![what]));
    }
    if results.devices != search.devices_per_trial {
        let devices = counted(u64::from(results.devices), "device");
        let what = format!("it trains on {devices}, this sweep on {}", search.devices_per_trial);
        return Err(refused(vec![what]));
    }
    if results.trials.is_empty() {
        return Err(refused(vec!["none of its trials has ended".to_owned()]));
    }
    let mut taken = Vec::new();
    let mut reasons = BTreeSet::new();
    for (logs, trial) in &results.trials {
        let effective = Effective { experiment: &results.experiment, values: &trial.values };
        match effective.values_in(subject, search) {
            Ok(values) => {
                let from = logs.to_string_lossy().into_owned();
                taken.push(EarlierTrial { from, trial: Trial { values, ..trial.clone() } });
            }
            Err(reason) => {
                reasons.insert(reason);
            }
        }
    }
    if taken.is_empty() {
        return Err(refused(reasons.into_iter().collect()));
    }
    let n_left = results.trials.len() - taken.len();
    Ok((taken, n_left))
}

/// The experiment of an earlier trial.
struct Effective<'a> {
    experiment: &'a BTreeMap<String, String>,
    /// Changes to it.
    values: &'a Values,
}

impl Effective<'_> {
    /// The value of a key; null if it has none.
    fn get(&self, key: &str) -> Json {
        let known = value_in(self.values, key).cloned();
        known.or_else(|| parsed(self.experiment, key)).unwrap_or_default()
    }

    /// The values of the parameters; the error is the first difference that is none of theirs.
    fn values_in(&self, subject: &SweepSpec, search: &Search) -> Result<Values, String> {
        let values = in_order(&search.parameters, |parameter| Some(self.get(&parameter.key)));
        for parameter in &search.parameters {
            let Some(value) = value_of(&values, &parameter.key) else { continue };
            let mut entries = search.parameters.iter().filter(|other| other.key == parameter.key);
            if !entries.any(|entry| entry.is_active(&values) && entry.domain.contains(value)) {
                let what = shown(value);
                return Err(format!("`{}` is {what} there, outside of this space", parameter.key));
            }
        }
        let is_searched =
            |key: &str| values.iter().any(|(own, _)| own == key || is_inside(key, own));
        let changed = self.values.iter().map(|(key, _)| key);
        let keys: BTreeSet<&String> =
            subject.experiment.keys().chain(self.experiment.keys()).chain(changed).collect();
        for key in keys {
            let is_free = FREE.iter().any(|free| key.starts_with(free));
            // An earlier ddprun did not know the key.
            let is_new = subject.defaults.contains(key) && !self.experiment.contains_key(key);
            if is_free || is_new || is_searched(key) || is_repeated_as(key, search) {
                continue;
            }
            let mut there = self.get(key);
            let mut here = parsed(&subject.experiment, key).unwrap_or_default();
            if key == SHARDS {
                // A run records how many it had, which are as many as its devices by default.
                for shards in [&mut there, &mut here] {
                    if shards.as_str() == Some("auto") {
                        *shards = search.devices_per_trial.into();
                    }
                }
            }
            // What parameters set inside of a list is no difference of the rest.
            for (own, _) in values.iter().filter(|(own, _)| is_inside(own, key)) {
                let place = own[key.len()..].replace(['.', '['], "/").replace(']', "");
                for value in
                    [&mut there, &mut here].into_iter().filter_map(|it| it.pointer_mut(&place))
                {
                    *value = Json::Null;
                }
            }
            if canonical(&there) != canonical(&here) {
                let (there, here) = (shown(&there), shown(&here));
                return Err(format!("`{key}` is {there} there, and {here} in this sweep"));
            }
        }
        // Seeds of a race are no parameters, but tell repeats apart.
        let mut values = values;
        let seed = self.values.iter().find(|(key, _)| is_repeated_as(key, search));
        values.extend(seed.cloned());
        Ok(values)
    }
}

/// True for the seed where `sweep.repeats` varies it.
fn is_repeated_as(key: &str, search: &Search) -> bool {
    key == "experiment.seed" && search.repeats.is_some()
}

/// The value of a key of an experiment, also inside of a list.
fn parsed(experiment: &BTreeMap<String, String>, key: &str) -> Option<Json> {
    let of = |key: &str| experiment.get(key).and_then(|text| serde_json::from_str(text).ok());
    of(key).or_else(|| {
        let (list, _) = key.split_once('[')?;
        descend(&of(list)?, &key[list.len()..]).cloned()
    })
}

fn shown(value: &Json) -> String {
    if value.is_null() { "absent".to_owned() } else { in_toml(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::sweep::{Domain, Parameter};
    use crate::sweep::example_sweeps::{search, subject, trial};

    fn experiment(keys: &[(&str, Json)]) -> BTreeMap<String, String> {
        keys.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect()
    }

    fn results(keys: &[(&str, Json)], values: &[Values]) -> EarlierResults {
        let numbered = (1..).zip(values);
        let of = |(number, values): (u32, &Values)| {
            (
                PathBuf::from("a"),
                Trial { values: values.clone(), ..trial(number, State::Finished, &[0.5]) },
            )
        };
        EarlierResults {
            folder: "logs/a".into(),
            metric: "val/loss".into(),
            goal: Mode::Min,
            devices: 1,
            experiment: experiment(keys),
            trials: numbered.map(of).collect(),
        }
    }

    fn value(key: &str, value: Json) -> (String, Json) {
        (key.to_owned(), value)
    }

    #[test]
    fn what_differs_in_the_parameters_alone_counts_and_the_rest_says_why_not() {
        let rate = Parameter::new("optimizer.lr", Domain::Uniform { min: 0.0, max: 1.0 });
        let search = Search { parameters: vec![rate], ..search("tpe") };
        let base = [("optimizer.lr", json!(0.1)), ("train.epochs", json!(3))];
        let own = SweepSpec { experiment: experiment(&base), ..subject() };
        let told = |results: &EarlierResults| {
            comparable(&own, &search, results).map_err(|error| error.to_string())
        };
        // Its own rate, one of its sweep, one outside, and one of another length.
        let all = results(
            &base,
            &[
                vec![],
                vec![value("optimizer.lr", json!(0.5))],
                vec![value("optimizer.lr", json!(2.0))],
                vec![value("train.epochs", json!(9))],
            ],
        );
        let (taken, left) = told(&all).unwrap();
        let rates: Vec<&Json> = taken.iter().map(|one| &one.trial.values[0].1).collect();
        assert_eq!((rates, left), (vec![&json!(0.1), &json!(0.5)], 2));
        // Runs record what the base leaves open.
        let shards = |value: Json| [base[0].clone(), base[1].clone(), (SHARDS, value)];
        let open = SweepSpec { experiment: experiment(&shards(json!("auto"))), ..subject() };
        for (there, counts) in [(json!(1), true), (json!(2), false)] {
            let run = results(&shards(there), &[vec![]]);
            assert_eq!(comparable(&open, &search, &run).is_ok(), counts);
        }
        let longer = results(&[base[0].clone(), ("train.epochs", json!(9))], &[vec![]]);
        let why = told(&longer).unwrap_err();
        assert!(why.contains("`train.epochs` is 9 there, and 3 in this sweep"), "{why}");
        let outside = results(&base, &[vec![value("optimizer.lr", json!(2.0))]]);
        assert!(told(&outside).unwrap_err().contains("is 2.0 there, outside of this space"));
        let other = EarlierResults { metric: "val/accuracy".into(), goal: Mode::Max, ..all };
        let why = told(&other).unwrap_err();
        assert!(why.contains("it ranks by max val/accuracy, this sweep by min val/loss"), "{why}");
    }
}
