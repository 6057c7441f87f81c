//! A sweep's trials -> `sweep.csv`, `sweep.json`, `best.toml` and pictures.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::sweep::{Parameter, Search};
use crate::files;
use crate::record::{RESOLVED, newest_of};
use crate::sweep::importance::importance;
use crate::sweep::journal::SweepSpec;
use crate::sweep::ped_anova::ped_anova;
use crate::sweep::ranking::{Ranking, best};
use crate::sweep::trial::Trial;
use crate::sweep::trial_rows::{self, CSV};
use crate::sweep::{Error, pictures, repeats};

/// Name of everything as JSON.
pub const JSON: &str = "sweep.json";
/// Name of the resolved experiment of the best trial.
pub const BEST: &str = "best.toml";
/// Version of `sweep.json`.
const FORMAT: u32 = 1;

/// Writes everything that a sweep leaves beside its journal and trials. Pictures are drawn once a
/// trial is finished.
pub(crate) fn write(
    folder: &Path,
    subject: &SweepSpec,
    search: &Search,
    ranking: &Ranking,
    trials: &[Trial],
) -> Result<(), Error> {
    write_tables(folder, subject, search, ranking, trials)?;
    if best(trials, search.goal).is_some() {
        pictures::write(folder, search, ranking, trials)?;
    }
    Ok(())
}

/// Writes the tables, and the experiment of the best trial.
pub(super) fn write_tables(
    folder: &Path,
    subject: &SweepSpec,
    search: &Search,
    ranking: &Ranking,
    trials: &[Trial],
) -> Result<(), Error> {
    let rows = trial_rows::csv(folder, subject, ranking, trials);
    files::write_atomic(&folder.join(CSV), rows.as_bytes())?;
    let mut value = summary(subject, ranking, trials);
    let shares = importance(search, ranking, trials);
    let shares: Map<String, Value> =
        names(search).into_iter().zip(shares.iter().map(|share| json!(share))).collect();
    value["importance"] = Value::Object(shares);
    let bytes =
        serde_json::to_vec_pretty(&value).map_err(|reason| Error::Encode { what: JSON, reason })?;
    files::write_atomic(&folder.join(JSON), &bytes)?;
    if let Some(best) = best(trials, search.goal) {
        write_best(folder, subject, trials, best)?;
    }
    Ok(())
}

/// The parameters by their keys; those of several entries with where each counts.
fn names(search: &Search) -> Vec<String> {
    let entries = |key: &str| search.parameters.iter().filter(|other| other.key == key).count();
    let name = |parameter: &Parameter| {
        let is_alone = entries(&parameter.key) == 1;
        if is_alone { parameter.key.clone() } else { pictures::label(parameter) }
    };
    search.parameters.iter().map(name).collect()
}

/// `best.toml`: what the best trial ran, under a line that says so.
fn write_best(
    folder: &Path,
    subject: &SweepSpec,
    trials: &[Trial],
    best: &Trial,
) -> Result<(), Error> {
    let path = newest_of(&folder.join(best.id()), RESOLVED);
    let Ok(resolved) = files::read_to_string(&path) else {
        // The trial's folder was removed; its values are still in the tables.
        return Ok(());
    };
    let value = repeats::reached(best, trials, subject.goal, &subject.metric);
    let head = format!(
        "# The best trial of the sweep `{}`: {}, {} {value}.\n",
        subject.name,
        best.id(),
        subject.metric
    );
    Ok(files::write_atomic(&folder.join(BEST), (head + &resolved).as_bytes())?)
}

/// Everything that is known, for programs.
pub fn summary(subject: &SweepSpec, ranking: &Ranking, trials: &[Trial]) -> Value {
    let one = |trial: &Trial| {
        let best = trial.best(subject.goal);
        let reports: Vec<Value> =
            trial.reports.iter().map(|report| json!([report.step, report.value])).collect();
        json!({
            "trial": trial.number,
            "state": trial.state,
            "value": best.and_then(|best| best.value),
            "step": best.map(|best| best.step),
            "epochs": trial.epochs(),
            "seconds": trial.seconds,
            "error": trial.error,
            "values": trial.values.iter().cloned().collect::<Map<String, Value>>(),
            "reports": reports,
            "run": trial.id(),
        })
    };
    let best = best(trials, subject.goal).map(|best| {
        let mut found = one(best);
        if let Some(setting) = repeats::repeats_of(trials, subject.goal, best.number) {
            found["mean"] = json!(setting.mean);
            found["standard_error"] = json!(setting.error());
            found["repeats"] = json!(setting.trials.len());
        }
        found
    });
    let search = subject.search();
    let shares = search.map(|search| ped_anova(&search, ranking, trials)).unwrap_or_default();
    json!({
        "format": FORMAT,
        "name": subject.name,
        "base": subject.base,
        "metric": subject.metric,
        "goal": subject.goal,
        "planned": (subject.trials < usize::MAX).then_some(subject.trials),
        "best": best,
        "ped_anova": shares.into_iter().map(|(key, share)| (key, json!(share))).collect::<Value>(),
        "repeats": repeats::json(trials, subject.goal),
        "trials": ranking.ranked(trials).into_iter().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::sweep::{Condition, Domain};
    use crate::sweep::example_sweeps::{search, subject, trial, with_values};
    use crate::sweep::trial::State;

    fn trials() -> Vec<Trial> {
        let failed =
            Trial { error: Some("a \"bad\", disk".into()), ..trial(3, State::Failed, &[]) };
        vec![
            with_values(
                trial(1, State::Finished, &[0.5, 0.75]),
                json!({"optimizer.lr": 0.1, "n": "sgd"}),
            ),
            with_values(
                trial(2, State::Pruned, &[0.25]),
                json!({"optimizer.lr": 0.000_123_456, "m": [1, 2]}),
            ),
            with_values(failed, json!({"optimizer.lr": 1.0})),
        ]
    }

    #[test]
    fn each_entry_of_a_key_has_its_own_importance() {
        let rates = |name: &str| Parameter {
            when: vec![Condition { key: "optimizer.name".into(), values: vec![json!(name)] }],
            ..Parameter::new("optimizer.lr", Domain::Uniform { min: 0.0, max: 1.0 })
        };
        let names = Domain::Categorical { values: vec![json!("sgd"), json!("adamw")] };
        let parameters =
            vec![Parameter::new("optimizer.name", names), rates("sgd"), rates("adamw")];
        let search = Search { parameters, ..search("random") };
        let folder = tempfile::tempdir().unwrap();
        let ranking = Ranking::plain(subject().goal);
        write(folder.path(), &subject(), &search, &ranking, &trials()[1..]).unwrap();
        let text = fs::read_to_string(folder.path().join(JSON)).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        let keys: Vec<&String> = written["importance"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["optimizer.name", "optimizer.lr (sgd)", "optimizer.lr (adamw)"]);
        assert_eq!(written["ped_anova"], json!({}), "two trials say nothing");
    }
}
